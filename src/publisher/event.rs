//! One change at a reported replica: `PublishEvent`.
//!
//! An event has no hash scheme, so that it goes for all of them. One that concerns nothing that is known changes nothing.

use super::Publisher;
use super::dropped::{DropReason, Dropped};
use super::entries::ReplicaName;
use super::message::{CacheEvent, EventKind};
use super::report::time_ms;
use crate::observation::{BlockKey, Member, Observation, RESERVED_TENANT, ReplicaStats};

/// Blocks that a step of clearing takes away.
const CLEARED_AT_ONCE: usize = 256;

// === impl Publisher ===

impl Publisher {
    /// Takes in what a producer says happened. What was left out is returned, and counted.
    pub fn event(&mut self, event: &CacheEvent, now_ms: u64) -> Dropped {
        let mut dropped = Dropped::default();
        if let Err(reason) = self.take_event(event, now_ms) {
            dropped.add(reason, 1);
            self.dropped += dropped;
        }
        dropped
    }

    fn take_event(&mut self, event: &CacheEvent, now_ms: u64) -> Result<(), DropReason> {
        if event.tenant_id == RESERVED_TENANT {
            return Err(DropReason::ReservedTenant);
        }
        let member = Member::new(&*event.tenant_id, &*event.model_id, &*event.replica_id);
        let happened_ms = time_ms(event.timestamp_us, now_ms);
        self.check_member(&member, happened_ms, now_ms)?;
        match event.kind {
            EventKind::Unspecified | EventKind::PrefixAdded => {}
            EventKind::PrefixEvicted => {
                let key = BlockKey::from_bytes(&event.prefix_hash).map_err(|_| DropReason::EmptyHash)?;
                self.evicted(&member, &key, &event.adapter_id);
            }
            EventKind::ReplicaUpdated => {
                if let Some(stats) = self.members.get_mut(&member).and_then(|reported| reported.stats.as_mut()) {
                    stats.last_seen_ms = happened_ms;
                }
            }
            EventKind::AllCleared => self.cleared(&member),
        }
        Ok(())
    }

    /// The member no longer holds the block: in no adapter, or only in the one that is named.
    fn evicted(&mut self, member: &Member, key: &BlockKey, adapter_id: &str) {
        let Some(replica) = self.known_replica(member) else { return };
        let scopes: Vec<_> =
            self.index.scopes_of(replica.slot).into_iter().filter_map(|slot| self.scope_name(slot)).collect();
        let concerned = scopes.iter().filter(|name| adapter_id.is_empty() || name.scope.adapter_id == adapter_id);
        for scope in concerned {
            if self.index.holder(scope.slot, key, replica.slot).is_some() {
                self.remove(&replica, scope, key);
            }
        }
    }

    /// The member that this event clears; none if it is not such an event, or one that is left out.
    pub fn cleared_by(&self, event: &CacheEvent, now_ms: u64) -> Option<Member> {
        let member = Member::new(&*event.tenant_id, &*event.model_id, &*event.replica_id);
        let is_taken = event.kind == EventKind::AllCleared
            && event.tenant_id != RESERVED_TENANT
            && self.check_member(&member, time_ms(event.timestamp_us, now_ms), now_ms).is_ok();
        is_taken.then_some(member)
    }

    /// Takes away some of what a reported member holds, from a place in the index on, and says where to go on, if there is more.
    /// With the steps from 0 on before [`Publisher::event`] clears a member, there is nothing left to walk the whole index for,
    /// and between any two others can have their turn. Ask [`Publisher::cleared_by`] first: this cannot be taken back.
    pub fn clear_step(&mut self, member: &Member, from: u32) -> Option<u32> {
        let replica = self.known_replica(member)?;
        let (blocks, next) = self.index.blocks_from(from, CLEARED_AT_ONCE, replica.slot);
        for (scope, key) in blocks {
            if let Some(scope) = self.scope_name(scope) {
                self.remove(&replica, &scope, &key);
            }
        }
        next.filter(|_| self.index.pairs_of(replica.slot) > 0)
    }

    /// The member holds nothing any more, and its load is not known. It stays a member until the next sweep, for it may
    /// well live, or until another needs its place.
    fn cleared(&mut self, member: &Member) {
        let Some(replica) = self.known_replica(member) else { return };
        if self.index.pairs_of(replica.slot) > 0 {
            self.clearing(&replica, Observation::Cleared { replica: replica.slot });
        }
        self.forget_stats(member);
        self.cleared.insert(member.clone());
    }

    /// The member's load is not known any more.
    pub(super) fn forget_stats(&mut self, member: &Member) {
        let Some(reported) = self.members.get_mut(member) else { return };
        if reported.stats.take().is_some() {
            // No load, never reported: what a decision makes of it is what it makes of none.
            let (replica, stats) = (reported.replica.slot, ReplicaStats::default());
            self.commit(Observation::Stats { replica, stats });
        }
    }

    fn known_replica(&self, member: &Member) -> Option<ReplicaName> {
        self.members.get(member).map(|reported| reported.replica.clone())
    }
}
