//! When a block is too old to be kept: by the eviction TTL of the policy that its tenant has, the hub's or ours.

use std::collections::BTreeMap;

use super::follower::View;
use crate::observation::Scope;
use crate::routing::policy::{Policies, Policy};

/// The TTLs as of one moment.
#[derive(Debug)]
pub struct Expiry<'a> {
    ours: &'a Policies,
    published: BTreeMap<String, Policy>,
    published_default: Option<Policy>,
    now_ms: u64,
}

// === impl Expiry ===

impl<'a> Expiry<'a> {
    /// By the policies in `view`, and where it has none, by `ours`.
    pub fn new(ours: &'a Policies, view: View<'_>, now_ms: u64) -> Expiry<'a> {
        let mut expiry = Expiry { ours, published: BTreeMap::new(), published_default: None, now_ms };
        if let View::Index(index) = view {
            for (tenant_id, policy) in index.dictionary().policies() {
                match tenant_id {
                    Some(tenant_id) => drop(expiry.published.insert(tenant_id.to_owned(), policy.clone())),
                    None => expiry.published_default = Some(policy.clone()),
                }
            }
        }
        expiry
    }

    /// Whether a block of `scope` that was last seen then no longer counts.
    pub fn has_expired(&self, scope: &Scope, last_seen_ms: u64) -> bool {
        let policy = self.ours.effective(&scope.tenant_id, |tenant_id| match tenant_id {
            Some(tenant_id) => self.published.get(tenant_id),
            None => self.published_default.as_ref(),
        });
        self.now_ms.saturating_sub(last_seen_ms) >= policy.eviction_ttl_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Index;
    use crate::observation::Observation;

    fn ttl(eviction_ttl_ms: u64) -> Policy {
        Policy { eviction_ttl_ms, ..Policy::default() }
    }

    fn expired_at(expiry: &Expiry<'_>, tenant_id: &str) -> u64 {
        let scope = Scope {
            tenant_id: tenant_id.into(),
            model_id: "m".into(),
            hash_scheme: "vllm".into(),
            adapter_id: String::new(),
        };
        let age = (0..=10).find(|age| expiry.has_expired(&scope, expiry.now_ms - age * 1_000));
        age.unwrap()
    }

    #[test]
    fn the_hubs_ttl_of_a_tenant_counts_before_ours() {
        let ours = Policies { default: ttl(1_000), by_tenant: BTreeMap::from([("a".to_owned(), ttl(2_000))]) };
        let nothing = Expiry::new(&ours, View::CatchingUp, 100_000);
        assert_eq!(["a", "b"].map(|tenant_id| expired_at(&nothing, tenant_id)), [2, 1]);
        let mut index = Index::new(1);
        for (tenant_id, ttl_ms) in [(Some("a"), 3_000), (None, 4_000)] {
            let tenant_id = tenant_id.map(str::to_owned);
            index.apply(1, Observation::Policy { tenant_id, policy: ttl(ttl_ms) });
        }
        let published = Expiry::new(&ours, View::Index(&index), 100_000);
        assert_eq!(["a", "b"].map(|tenant_id| expired_at(&published, tenant_id)), [3, 4]);
    }
}
