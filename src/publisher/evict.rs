//! What goes to make room: whole blocks beyond a tenant's quota, then single entries beyond the cap.
//!
//! Which ones is decided under the policies of the moment, in the contract's order; see
//! [`entries`](super::entries).

use std::collections::BTreeMap;

use super::Publisher;
use super::entries::{ReplicaName, ScopeName};
use crate::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot};

/// What went so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// (Block, replica) pairs that went, by the tenant's algorithm (`lru`, `lfu`) and the reason (`cap`, `ttl`).
    pub entries: BTreeMap<(&'static str, &'static str), u64>,
    /// Blocks that went beyond their tenant's quota, by tenant.
    pub over_quota: BTreeMap<String, u64>,
}

/// Why an entry goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Cap,
    Ttl,
}

// === impl Publisher ===

impl Publisher {
    /// Takes away what is beyond the tenant's quota, and says so of each block and replica.
    pub(super) fn enforce_quota(&mut self, tenant_id: &str, mut gone: impl FnMut(ScopeSlot, &BlockKey, ReplicaSlot)) {
        while let Some(prefix) = self.entries.pop_beyond_quota(tenant_id) {
            let holders: Vec<ReplicaName> = self.reported_holders(&prefix.scope, &prefix.key.0).collect();
            for replica in holders {
                self.remove(&replica, &prefix.scope, &prefix.key.0);
                gone(prefix.scope.slot, &prefix.key.0, replica.slot);
            }
            *self.evictions.over_quota.entry(tenant_id.to_owned()).or_default() += 1;
        }
    }

    /// Takes away what is beyond the cap, and says so of each block and replica.
    pub(super) fn enforce_cap(&mut self, mut gone: impl FnMut(ScopeSlot, &BlockKey, ReplicaSlot)) {
        let max_entries = match self.limits.max_entries {
            0 => u64::MAX,
            max_entries => max_entries,
        };
        while let Some(entry) = self.entries.pop_beyond(max_entries) {
            self.remove(&entry.replica, &entry.scope, &entry.key.0);
            gone(entry.scope.slot, &entry.key.0, entry.replica.slot);
            self.count_eviction(&entry.scope.scope.tenant_id, Cause::Cap);
        }
    }

    pub(super) fn count_eviction(&mut self, tenant_id: &str, cause: Cause) {
        let algorithm = self.policies.for_tenant(tenant_id).eviction.as_str();
        *self.evictions.entries.entry((algorithm, cause.as_str())).or_default() += 1;
    }

    /// `replica`, which is reported, no longer holds the block.
    pub(super) fn remove(&mut self, replica: &ReplicaName, scope: &ScopeName, key: &BlockKey) {
        self.changing(replica, scope, key, |publisher| {
            let keys = vec![key.clone()];
            publisher.commit(Observation::Removed { replica: replica.slot, scope: scope.slot, keys });
        });
    }
}

// === impl Cause ===

impl Cause {
    fn as_str(self) -> &'static str {
        match self {
            Cause::Cap => "cap",
            Cause::Ttl => "ttl",
        }
    }
}
