//! Generations of replicas: which of them count, and which they end.

use super::{Dictionary, Replica, Standing, Turn};
use crate::observation::{Member, Observation, ReplicaSlot};

// === impl Dictionary ===

impl Dictionary {
    /// A generation begins; it counts once it is complete.
    pub(super) fn up(
        &mut self,
        slot: ReplicaSlot,
        member: &Member,
        address: &str,
        data_parallel_rank: Option<u32>,
    ) -> Turn {
        let ended = self.end(slot).into_iter().collect();
        self.generations.entry_ref(member).or_default().insert(slot);
        let replica = Replica {
            replica_id: member.replica_id.as_str().into(),
            member: member.clone(),
            address: address.into(),
            data_parallel_rank,
            standing: Standing::Arriving,
            stats: None,
            reasserted_ms: 0,
            published: None,
        };
        self.replicas.insert(slot, replica);
        Turn { begun: None, ended }
    }

    /// A complete generation ends the others of the same replica, but for those that are still arriving: they are newer.
    pub(super) fn complete(&mut self, slot: ReplicaSlot) -> Turn {
        let Some(replica) = self.replicas.get_mut(&slot) else { return Turn::default() };
        let before = std::mem::replace(&mut replica.standing, Standing::Complete);
        let member = replica.member.clone();
        let begun = (before == Standing::Arriving).then_some(slot);
        if begun.is_some() {
            let models = self.members.entry_ref(&member.tenant_id).or_default();
            models.entry_ref(&member.model_id).or_default().insert(slot);
        }
        let is_newer = |other| other > slot && self.complete_replica(other).is_none();
        let others: Vec<_> = self.generations(&member).filter(|other| *other != slot && !is_newer(*other)).collect();
        Turn { begun, ended: others.into_iter().filter_map(|other| self.end(other)).collect() }
    }

    /// An older generation that waited for this one to be complete has nothing left to wait for.
    pub(super) fn gone(&mut self, slot: ReplicaSlot) -> Turn {
        let Some(gone) = self.replicas.get(&slot) else { return Turn::default() };
        let older: Vec<_> = self.generations(&gone.member).filter(|other| *other <= slot).collect();
        Turn { begun: None, ended: older.into_iter().filter_map(|other| self.end(other)).collect() }
    }

    /// Ends a generation; its number if it counted.
    fn end(&mut self, slot: ReplicaSlot) -> Option<ReplicaSlot> {
        let Replica { member, standing, .. } = self.replicas.remove(&slot)?;
        if let Some(generations) = self.generations.get_mut(&member) {
            generations.remove(&slot);
            if generations.is_empty() {
                self.generations.remove(&member);
            }
        }
        if standing == Standing::Arriving {
            return None;
        }
        if let Some(models) = self.members.get_mut(&member.tenant_id) {
            if let Some(members) = models.get_mut(&member.model_id) {
                members.remove(&slot);
                if members.is_empty() {
                    models.remove(&member.model_id);
                }
            }
            if models.is_empty() {
                self.members.remove(&member.tenant_id);
            }
        }
        Some(slot)
    }
}

// === impl Replica ===

impl Replica {
    /// Observations that rebuild it.
    pub(super) fn to_observations(&self, slot: ReplicaSlot, out: &mut Vec<Observation>) {
        out.push(Observation::ReplicaUp {
            replica: slot,
            member: self.member.clone(),
            address: self.address.to_string(),
            data_parallel_rank: self.data_parallel_rank,
        });
        out.extend(self.published.map(|published| Observation::PublishedReplica { replica: slot, published }));
        out.extend(self.stats.map(|stats| Observation::Stats { replica: slot, stats }));
        if self.reasserted_ms > 0 {
            out.push(Observation::Reasserted { replica: slot, at_ms: self.reasserted_ms });
        }
        if self.standing == Standing::Complete {
            out.push(Observation::ReplicaComplete { replica: slot });
        }
    }
}
