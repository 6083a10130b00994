//! Files of CachePolicies.

use warmroute::native::hub::policies::read_file;

/// The same bytes under each kind of name. A file that is not taken says why.
pub fn policies(bytes: &[u8]) {
    for name in ["t.yaml", "t.json"] {
        match read_file(name, bytes) {
            Ok(policies) => assert!(policies.iter().all(|named| named.policy.eviction_ttl_ms > 0)),
            Err(problems) => assert!(!problems.is_empty()),
        }
    }
}
