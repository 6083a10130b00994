//! Where reported members are reached. Producers do not say; whoever runs the publisher may know.

use std::sync::Arc;

use super::Publisher;
use super::entries::{ReplicaName, ScopeName};
use crate::index::Holder;
use crate::observation::{BlockKey, Member, Observation, ReplicaSlot, Stored, StoredBlock};

// === impl Publisher ===

impl Publisher {
    /// Where a member is reached once it is reported, `ip:port` as Envoy knows it; empty if that is not known. A member
    /// that is reported already becomes a new generation, which holds what it held. False if there are as many addresses
    /// as there may be, or the numbers have run out.
    pub fn set_address(&mut self, member: &Member, address: &str) -> bool {
        while self.addresses.len() >= self.limits.max_members && !self.addresses.contains_key(member) {
            if !self.make_room() {
                return false;
            }
        }
        self.addresses.insert(member.clone(), address.to_owned());
        let Some(reported) = self.members.get(member) else { return true };
        let old = reported.replica.clone();
        let is_there = self.index.dictionary().replica(old.slot).is_some_and(|replica| &*replica.address == address);
        is_there || self.move_to(member, &old, address).is_some()
    }

    /// Makes a new generation with what the old one holds.
    fn move_to(&mut self, member: &Member, old: &ReplicaName, address: &str) -> Option<ReplicaSlot> {
        let slot = self.announce(member.clone(), address, None)?;
        let new = ReplicaName { replica_id: Arc::clone(&old.replica_id), slot };
        self.entries.reported.insert(slot);
        for (scope, key, holder) in self.holdings(old) {
            self.hand_over(&new, &scope, key, &holder);
        }
        if let Some(stats) = self.index.dictionary().replica(old.slot).and_then(|replica| replica.stats) {
            self.commit(Observation::Stats { replica: slot, stats });
        }
        self.clearing(old, Observation::ReplicaComplete { replica: slot });
        self.entries.reported.remove(&old.slot);
        if let Some(reported) = self.members.get_mut(member) {
            reported.replica = new;
        }
        Some(slot)
    }

    /// What a reported replica holds, blocks of one report together.
    fn holdings(&self, replica: &ReplicaName) -> Vec<(ScopeName, BlockKey, Holder)> {
        let held = self.index.blocks_of(replica.slot).into_iter().filter_map(|(scope, key)| {
            let holder = self.index.holder(scope, &key, replica.slot)?;
            Some((self.scope_name(scope)?, key, holder))
        });
        let mut held: Vec<(ScopeName, BlockKey, Holder)> = held.collect();
        held.sort_by_cached_key(|(scope, key, holder)| {
            (scope.slot, holder.tier, holder.last_seen_ms, key.width(), holder.token_count)
        });
        held
    }

    fn hand_over(&mut self, new: &ReplicaName, scope: &ScopeName, key: BlockKey, holder: &Holder) {
        let Holder { tier, access_count, token_count, last_seen_ms, .. } = *holder;
        let (replica, slot) = (new.slot, scope.slot);
        self.changing(new, scope, &key.clone(), |publisher| {
            let blocks = vec![StoredBlock { key: key.clone(), token_count }];
            publisher.commit(Observation::Stored(Stored {
                replica,
                scope: slot,
                tier,
                last_seen_ms,
                blocks,
                ..Stored::default()
            }));
            publisher.index.count_hits(slot, &key, replica, |_| access_count);
        });
    }
}
