//! Changes to what is reported, with the orders of [`entries`](super::entries) kept in step with the index.
//!
//! The index is the one place that knows ages and hits: where a block stands in the orders is read from it before a change
//! and after.

use std::sync::Arc;

use super::Publisher;
use super::entries::{Rank, ReplicaName, ScopeName};
use crate::index::Holder;
use crate::observation::{BlockKey, Observation, ScopeSlot};
use crate::routing::policy::Eviction;

// === impl Publisher ===

impl Publisher {
    /// Makes a change after which `replica` holds nothing.
    pub(super) fn clearing(&mut self, replica: &ReplicaName, change: Observation) {
        let held = self.index.blocks_of(replica.slot);
        let named = held.into_iter().filter_map(|(scope, key)| Some((self.scope_name(scope)?, key)));
        let ranked: Vec<(ScopeName, BlockKey, Rank)> = named
            .map(|(scope, key)| {
                let rank = self.rank(replica, &scope, &key);
                (scope, key, rank)
            })
            .collect();
        self.index.drop_blocks(replica.slot);
        self.commit(change);
        for (scope, key, before) in ranked {
            let now = self.rank(replica, &scope, &key);
            self.entries.reorder(&scope, &key, replica, before, now);
        }
    }

    /// Makes a change to one block at a reported replica.
    pub(super) fn changing(
        &mut self,
        replica: &ReplicaName,
        scope: &ScopeName,
        key: &BlockKey,
        change: impl FnOnce(&mut Publisher),
    ) {
        let before = self.rank(replica, scope, key);
        change(self);
        let now = self.rank(replica, scope, key);
        self.entries.reorder(scope, key, replica, before, now);
    }

    /// A scope with its number.
    pub(super) fn scope_name(&self, slot: ScopeSlot) -> Option<ScopeName> {
        Some(ScopeName { scope: Arc::clone(self.index.dictionary().scope_name(slot)?), slot })
    }

    /// What a block at `replica` is ordered by now.
    pub(super) fn rank(&self, replica: &ReplicaName, scope: &ScopeName, key: &BlockKey) -> Rank {
        let tenant_id = &scope.scope.tenant_id;
        let entry = self.reported_holder(replica, scope, key).map(|holder| {
            match self.policies.for_tenant(tenant_id).eviction {
                Eviction::Lru => (0, holder.last_seen_ms),
                Eviction::Lfu => (holder.access_count, holder.last_seen_ms),
            }
        });
        let newest_ms = if self.entries.has_quota(tenant_id) {
            self.reported_holdings(scope, key).map(|holder| holder.last_seen_ms).max()
        } else {
            None
        };
        Rank { entry, newest_ms }
    }

    /// The replicas that the block was reported of.
    pub(super) fn reported_holders(&self, scope: &ScopeName, key: &BlockKey) -> impl Iterator<Item = ReplicaName> {
        self.reported_holdings(scope, key).filter_map(|holder| {
            let slot = holder.replica;
            let replica_id = Arc::clone(&self.index.dictionary().replica(slot)?.replica_id);
            Some(ReplicaName { replica_id, slot })
        })
    }

    fn reported_holdings(&self, scope: &ScopeName, key: &BlockKey) -> impl Iterator<Item = Holder> {
        self.index.holders(scope.slot, key).filter(|holder| self.is_reported(holder))
    }

    fn reported_holder(&self, replica: &ReplicaName, scope: &ScopeName, key: &BlockKey) -> Option<Holder> {
        self.index.holder(scope.slot, key, replica.slot).filter(|holder| self.is_reported(holder))
    }

    /// Whether a producer reported it of a replica that is not gone since.
    fn is_reported(&self, holder: &Holder) -> bool {
        self.entries.reported.contains(&holder.replica) && self.index.dictionary().replica(holder.replica).is_some()
    }
}
