//! Replicas that the publisher follows itself: whoever does gets numbers here and says what it sees with them.

use super::Publisher;
use crate::observation::{Member, Observation, ReplicaSlot, Stored};

// === impl Publisher ===

impl Publisher {
    /// A new generation of a replica that is followed from now on: what producers reported of it is gone, and what they
    /// report is left out until it is gone itself. `rank` is that of data parallelism, where several are at the address: its id
    /// is `<id>/dp<rank>`, and what is reported of `<id>` is of a replica that is followed as well. None if the numbers have run
    /// out.
    pub fn replica_up(&mut self, member: Member, address: &str, rank: Option<u32>) -> Option<ReplicaSlot> {
        self.forget(&member);
        if let Some((whole, rank)) = whole_of(&member, rank) {
            self.forget(&whole);
            self.ranks.entry(whole).or_default().insert(rank);
        }
        self.announce(member, address, rank)
    }

    /// What is seen at a followed replica, under the numbers given here. False if it was not taken in: the number is
    /// not that of a followed replica or of a scope, or the observation is one that only a publisher makes.
    pub fn publish(&mut self, observation: Observation) -> bool {
        let (replica, scope) = match &observation {
            Observation::Stored(Stored { replica, scope, .. }) | Observation::Removed { replica, scope, .. } => {
                (*replica, Some(*scope))
            }
            Observation::Cleared { replica }
            | Observation::Stats { replica, .. }
            | Observation::Reasserted { replica, .. }
            | Observation::ReplicaComplete { replica }
            | Observation::ReplicaGone { replica } => (*replica, None),
            _ => return false,
        };
        let dictionary = self.index.dictionary();
        let is_followed = dictionary.replica(replica).is_some() && !self.entries.reported.contains(&replica);
        let is_known = scope.is_none_or(|scope| dictionary.scope(scope).is_some());
        if is_followed && is_known {
            self.expired.forget(&observation);
            if let Observation::ReplicaGone { replica } = observation {
                self.forget_rank(replica);
            }
            self.commit(observation);
        }
        is_followed && is_known
    }

    /// Whether the publisher follows this replica itself, or ranks of it.
    pub(super) fn is_followed(&self, member: &Member) -> bool {
        let mut generations = self.index.dictionary().generations(member);
        generations.any(|slot| !self.entries.reported.contains(&slot)) || self.ranks.contains_key(member)
    }

    /// A followed replica is gone. If it was the last rank of its engine, others may report that.
    fn forget_rank(&mut self, replica: ReplicaSlot) {
        let Some(known) = self.index.dictionary().replica(replica) else { return };
        let Some((whole, rank)) = whole_of(&known.member, known.data_parallel_rank) else { return };
        if let Some(ranks) = self.ranks.get_mut(&whole) {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.ranks.remove(&whole);
            }
        }
    }

    /// Announces a new generation.
    pub(super) fn announce(&mut self, member: Member, address: &str, rank: Option<u32>) -> Option<ReplicaSlot> {
        self.last_replica = self.last_replica.checked_add(1)?;
        let replica = ReplicaSlot(self.last_replica);
        self.commit(Observation::ReplicaUp { replica, member, address: address.to_owned(), data_parallel_rank: rank });
        Some(replica)
    }

    /// A reported replica is gone with all that was reported of it; nothing changes if it is not reported.
    pub(super) fn forget(&mut self, member: &Member) {
        let Some(reported) = self.members.remove(member) else { return };
        let replica = reported.replica.slot;
        self.clearing(&reported.replica, Observation::ReplicaGone { replica });
        self.entries.reported.remove(&replica);
    }
}

/// The replica of which a member is a rank, and which: none where it is none.
fn whole_of(member: &Member, rank: Option<u32>) -> Option<(Member, u32)> {
    let rank = rank?;
    let id = member.replica_id.strip_suffix(&format!("/dp{rank}"))?;
    Some((Member::new(&*member.tenant_id, &*member.model_id, id), rank))
}
