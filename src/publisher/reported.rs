//! All that producers reported, for whoever begins to follow.

use super::Publisher;
use crate::observation::{Observation, ReplicaSlot};

// === impl Publisher ===

impl Publisher {
    /// Observations that rebuild what producers reported, scopes apart. The blocks of one report in one shard come
    /// together, however many these are. A producer never says that it has said all, so each replica is complete.
    pub fn reported_observations(&self) -> Vec<Observation> {
        let is_reported = |slot: &ReplicaSlot| self.entries.reported.contains(slot);
        let mut replicas: Vec<_> = self.index.dictionary().replicas().filter(|(slot, _)| is_reported(slot)).collect();
        replicas.sort_unstable_by_key(|(slot, _)| *slot);
        let mut observations = Vec::new();
        for (replica, known) in &replicas {
            let (member, address) = (known.member.clone(), known.address.to_string());
            observations.push(Observation::ReplicaUp { replica: *replica, member, address });
            observations.extend(known.stats.map(|stats| Observation::Stats { replica: *replica, stats }));
        }
        observations.extend(self.index.observations_of(|slot| is_reported(&slot)));
        observations.extend(replicas.iter().map(|(replica, _)| Observation::ReplicaComplete { replica: *replica }));
        observations
    }
}
