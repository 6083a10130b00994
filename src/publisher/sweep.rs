//! What goes by age.
//!
//! A block goes when it was last reported its tenant's `evictionTTL` ago or longer, statistics when the replica was last
//! said to live that long ago, a reported replica when nothing of it is left, a scope when nothing is held in it. A sweep
//! can be made in steps.

use super::entries::ReplicaName;
use super::evict::Cause;
use super::{Publisher, Reported};
use crate::observation::{BlockKey, Member, ReplicaSlot, ScopeSlot};

/// Blocks, and runs of them, that a step goes over.
const STEP: usize = 256;

// === impl Publisher ===

impl Publisher {
    /// Sweeps all. Changes follow for what goes by age; what has ended with its generation is forgotten.
    pub fn sweep(&mut self, now_ms: u64) {
        // One that was under way is ended first, since it has passed some by.
        for _ in 0..2 {
            while !self.sweep_step(now_ms) {}
        }
    }

    /// Sweeps the next part; true when that was the last one, and the next step begins anew.
    pub fn sweep_step(&mut self, now_ms: u64) -> bool {
        let policies = &self.policies;
        let (expired, until) = self.index.expired_next(STEP, |scope, last_seen_ms| {
            now_ms.saturating_sub(last_seen_ms) >= policies.for_tenant(&scope.tenant_id).eviction_ttl_ms
        });
        for (scope, key, replica) in expired {
            self.expire(scope, key, replica);
        }
        let complete = self.index.sweep_until(until, STEP, |_, _, _| false);
        if complete {
            self.sweep_members(now_ms);
            let limited: Vec<String> = self.entries.tenants_with_quota().map(str::to_owned).collect();
            limited.iter().for_each(|tenant_id| self.enforce_quota(tenant_id, |_, _, _| {}));
            self.enforce_cap(|_, _, _| {});
            self.sweep_scopes();
        }
        complete
    }

    fn expire(&mut self, scope: ScopeSlot, key: BlockKey, replica: ReplicaSlot) {
        let Some(scope) = self.scope_name(scope) else { return };
        let Some(known) = self.index.dictionary().replica(replica) else { return };
        let replica = ReplicaName { replica_id: std::sync::Arc::clone(&known.replica_id), slot: replica };
        self.remove(&replica, &scope, &key);
        self.count_eviction(&scope.scope.tenant_id, Cause::Ttl);
        if !self.entries.reported.contains(&replica.slot) {
            self.expired.add(scope.slot, replica.slot, key);
        }
    }

    /// Ends a member that was cleared and of which nothing was reported since, if there is one: another takes its place.
    pub(super) fn make_room(&mut self) -> bool {
        while let Some(member) = self.cleared.pop_first() {
            if self.members.get(&member).is_some_and(|reported| self.is_empty(reported)) {
                self.forget(&member);
                self.addresses.remove(&member);
                return true;
            }
        }
        false
    }

    fn is_empty(&self, reported: &Reported) -> bool {
        reported.stats.is_none() && self.index.pairs_of(reported.replica.slot) == 0
    }

    fn sweep_members(&mut self, now_ms: u64) {
        let policies = &self.policies;
        let silent: Vec<Member> = self
            .members
            .iter()
            .filter(|(member, reported)| {
                let ttl_ms = policies.for_tenant(&member.tenant_id).eviction_ttl_ms;
                reported.stats.is_some_and(|stats| now_ms.saturating_sub(stats.last_seen_ms) >= ttl_ms)
            })
            .map(|(member, _)| member.clone())
            .collect();
        silent.iter().for_each(|member| self.forget_stats(member));
        let empty = self.members.iter().filter(|(_, reported)| self.is_empty(reported));
        let empty: Vec<Member> = empty.map(|(member, _)| member.clone()).collect();
        empty.iter().for_each(|member| self.forget(member));
        self.cleared.clear();
        self.addresses.retain(|member, _| self.members.contains_key(member));
    }
}
