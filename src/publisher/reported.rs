//! All that producers reported, for whoever begins to follow.

use super::Publisher;
use crate::index::dictionary::Replica;
use crate::observation::{Member, Observation, ReplicaSlot};

// === impl Publisher ===

impl Publisher {
    /// The replicas that producers report, in the order in which they came.
    pub fn reported(&self) -> Vec<(ReplicaSlot, &Replica)> {
        let all = self.index.dictionary().replicas();
        let mut replicas: Vec<_> = all.filter(|(slot, _)| self.entries.reported.contains(slot)).collect();
        replicas.sort_unstable_by_key(|(slot, _)| *slot);
        replicas
    }

    /// Where a reported member was said to be reached; empty if that is not known.
    pub fn reported_address(&self, member: &Member) -> Option<&str> {
        let replica = self.members.get(member)?.replica.slot;
        self.index.dictionary().replica(replica).map(|replica| &*replica.address)
    }

    /// Observations that rebuild what producers reported, scopes apart. Consecutive blocks that are alike come
    /// together, however many these are. A producer never says that it has said all, so each replica is complete.
    pub fn reported_observations(&self) -> Vec<Observation> {
        let replicas = self.reported();
        let mut observations = Vec::new();
        for (replica, known) in &replicas {
            let (member, address) = (known.member.clone(), known.address.to_string());
            observations.push(Observation::ReplicaUp { replica: *replica, member, address, data_parallel_rank: None });
            observations.extend(known.stats.map(|stats| Observation::Stats { replica: *replica, stats }));
        }
        observations.extend(self.index.observations_of(|slot| self.entries.reported.contains(&slot)));
        observations.extend(replicas.iter().map(|(replica, _)| Observation::ReplicaComplete { replica: *replica }));
        observations
    }
}
