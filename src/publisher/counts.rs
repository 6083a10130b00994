//! What operators ask: totals, `GetCacheState`, and the hits that LFU goes by.

use std::collections::BTreeMap;

use super::Publisher;
use super::entries::ReplicaName;
use super::message::ReportedStats;
use crate::index::dictionary::Replica;
use crate::observation::{BlockKey, Member, RESERVED_TENANT, ReplicaSlot, Scope};
use crate::request::RequestChain;
use crate::routing::decision::RankedReplica;
use crate::routing::policy::Eviction;

/// How much is held; what has expired or ended counts until the sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Distinct blocks, those of the reserved tenant included.
    pub prefix_keys: u64,
    /// (Block, replica) pairs, those of the reserved tenant included.
    pub entries: u64,
    /// Distinct blocks, without those of the reserved tenant.
    pub total: u64,
    /// The same by tenant.
    pub by_tenant: BTreeMap<String, u64>,
    /// The same by model.
    pub by_model: BTreeMap<String, u64>,
}

/// `GetCacheStateResponse`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheState {
    /// The replicas whose load is known, by id.
    pub replicas: Vec<ReplicaState>,
    /// Distinct blocks.
    pub total_prefixes: u64,
}

/// What a replica last said of its load.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaState {
    /// The replica.
    pub replica_id: String,
    /// As it was reported, without what is not a number.
    pub stats: ReportedStats,
}

// === impl Publisher ===

impl Publisher {
    /// How much is held.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { entries: self.index.pairs(), ..Counts::default() };
        for (slot, scope) in self.index.dictionary().scopes() {
            let keys = self.index.keys_of(slot);
            counts.prefix_keys += keys;
            if keys > 0 && scope.tenant_id != RESERVED_TENANT {
                counts.total += keys;
                *counts.by_tenant.entry(scope.tenant_id.clone()).or_default() += keys;
                *counts.by_model.entry(scope.model_id.clone()).or_default() += keys;
            }
        }
        counts
    }

    /// What is known of a model for a tenant; nothing of the reserved one.
    pub fn cache_state(&self, tenant_id: &str, model_id: &str) -> CacheState {
        if tenant_id == RESERVED_TENANT {
            return CacheState::default();
        }
        let dictionary = self.index.dictionary();
        let mut replicas: Vec<ReplicaState> =
            self.index.members_of(tenant_id, model_id).filter_map(|(_, replica)| self.replica_state(replica)).collect();
        replicas.sort_by(|a, b| a.replica_id.cmp(&b.replica_id));
        let scopes =
            dictionary.scopes().filter(|(_, scope)| scope.tenant_id == tenant_id && scope.model_id == model_id);
        CacheState { replicas, total_prefixes: scopes.map(|(slot, _)| self.index.keys_of(slot)).sum() }
    }

    /// Counts a delivered hit for each block that it matched. Only where the tenant's policy is LFU; a hint without a match
    /// has no blocks.
    pub fn credit(&mut self, scope: &Scope, chain: &RequestChain, delivered: &[RankedReplica]) {
        if self.policies.for_tenant(&scope.tenant_id).eviction != Eviction::Lfu {
            return;
        }
        for ranked in delivered {
            for key in chain.keys(ranked.matched_blocks) {
                self.hit(scope, &key, ranked.replica);
            }
        }
    }

    /// How often a block at a replica was hit; none if it does not hold it.
    pub fn access_count(&self, scope: &Scope, key: &BlockKey, replica_id: &str) -> Option<u32> {
        let slot = self.index.dictionary().scope_slot(scope)?;
        let replica = self.member_slot(scope, replica_id)?;
        Some(self.index.holder(slot, key, replica)?.access_count)
    }

    /// Sets how often a block at a replica was hit. False if it does not hold it.
    pub fn set_access_count(&mut self, scope: &Scope, key: &BlockKey, replica_id: &str, count: u32) -> bool {
        let held = self.access_count(scope, key, replica_id).is_some();
        if let Some(replica) = self.member_slot(scope, replica_id) {
            self.count_hits(scope, key, replica, |_| count);
        }
        held
    }

    /// The generation of a replica that counts for the scope's tenant and model.
    fn member_slot(&self, scope: &Scope, replica_id: &str) -> Option<ReplicaSlot> {
        let dictionary = self.index.dictionary();
        let member = Member::new(&*scope.tenant_id, &*scope.model_id, replica_id);
        let mut generations = dictionary.generations(&member);
        generations.find(|slot| dictionary.complete_replica(*slot).is_some())
    }

    fn hit(&mut self, scope: &Scope, key: &BlockKey, replica: ReplicaSlot) {
        self.count_hits(scope, key, replica, |count| count.saturating_add(1));
    }

    fn count_hits(&mut self, scope: &Scope, key: &BlockKey, slot: ReplicaSlot, count: impl Fn(u32) -> u32) {
        let dictionary = self.index.dictionary();
        let Some(scope) = dictionary.scope_slot(scope).and_then(|slot| self.scope_name(slot)) else { return };
        let Some(replica) = dictionary.replica(slot) else { return };
        let replica = ReplicaName { replica_id: std::sync::Arc::clone(&replica.replica_id), slot };
        self.changing(&replica, &scope, key, |publisher| {
            publisher.index.count_hits(scope.slot, key, slot, count);
        });
    }

    fn replica_state(&self, replica: &Replica) -> Option<ReplicaState> {
        let replica_id = replica.member.replica_id.clone();
        if let Some(reported) = self.members.get(&replica.member) {
            return Some(ReplicaState { replica_id, stats: reported.stats?.stats });
        }
        let followed = replica.stats?;
        let stats =
            ReportedStats { hit_rate: followed.hit_rate, pressure: followed.pressure, ..ReportedStats::default() };
        Some(ReplicaState { replica_id, stats })
    }
}
