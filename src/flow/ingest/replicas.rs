//! What the hub's replicas are in the log.
//!
//! Every announcement begins a generation. A newer one of the same replica supersedes it, and so does one that the hub
//! gives the same number; which replica a number stands for may change.

use hashbrown::HashMap;

use crate::index::Index;
use crate::observation::{Member, ReplicaSlot, ReplicaStats};

/// The replicas that the hub names, by its numbers.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    by_number: HashMap<ReplicaSlot, Published>,
    /// The hub's number of each replica's newest generation.
    newest: HashMap<Member, ReplicaSlot>,
}

/// A replica of the hub's, and the log's number for its present generation.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) slot: ReplicaSlot,
    pub(super) member: Member,
    pub(super) reached: Reached,
    pub(super) stats: Option<ReplicaStats>,
    /// A newer generation of the same replica was announced: this one ends when that is complete.
    pub(super) superseded: bool,
}

/// Where Envoy reaches a replica.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub(super) address: String,
    pub(super) data_parallel_rank: Option<u32>,
}

/// What an announcement does to generations before it, by the log's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// Those that end when what was announced is complete.
    pub(super) superseded: Vec<ReplicaSlot>,
    /// That of another replica, whose number this one has now.
    pub(super) displaced: Option<ReplicaSlot>,
}

// === impl Replicas ===

impl Replicas {
    /// Those that the log of `index` names.
    pub(super) fn of(index: &Index) -> Replicas {
        let mut replicas = Replicas::default();
        let mut published: Vec<_> = index.dictionary().published_replicas().collect();
        // The later one of two generations is the newer.
        published.sort_unstable_by_key(|(_, slot)| *slot);
        for (number, slot) in published {
            if let Some(published) = Published::of(slot, index) {
                replicas.announce(number, published);
            }
        }
        replicas
    }

    /// How many numbers stand for a replica.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Published> {
        self.by_number.values()
    }

    /// The generations that no newer one supersedes.
    pub(super) fn current(&self) -> impl Iterator<Item = ReplicaSlot> {
        self.values().filter(|published| !published.superseded).map(|published| published.slot)
    }

    pub(super) fn get(&self, number: ReplicaSlot) -> Option<&Published> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: ReplicaSlot) -> Option<&mut Published> {
        self.by_number.get_mut(&number)
    }

    /// A generation begins, under the hub's `number`.
    pub(super) fn announce(&mut self, number: ReplicaSlot, published: Published) -> Before {
        let mut before = Before::default();
        if let Some(other) = self.remove(number) {
            if other.member != published.member {
                before.displaced = Some(other.slot);
            } else if !other.superseded {
                before.superseded.push(other.slot);
            }
        }
        let older = self.newest.insert(published.member.clone(), number);
        if let Some(older) = older.and_then(|older| self.by_number.get_mut(&older)) {
            older.superseded = true;
            before.superseded.push(older.slot);
        }
        self.by_number.insert(number, published);
        before
    }

    pub(super) fn remove(&mut self, number: ReplicaSlot) -> Option<Published> {
        let published = self.by_number.remove(&number)?;
        if self.newest.get(&published.member) == Some(&number) {
            self.newest.remove(&published.member);
        }
        Some(published)
    }

    pub(super) fn clear(&mut self) {
        self.by_number.clear();
        self.newest.clear();
    }
}

// === impl Published ===

impl Published {
    fn of(slot: ReplicaSlot, index: &Index) -> Option<Published> {
        let replica = index.dictionary().replica(slot)?;
        Some(Published {
            slot,
            member: replica.member.clone(),
            reached: Reached { address: replica.address.to_string(), data_parallel_rank: replica.data_parallel_rank },
            stats: replica.stats,
            superseded: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(slot: u32, replica_id: &str) -> Published {
        let reached = Reached { address: "10.0.0.1:80".into(), data_parallel_rank: None };
        let member = Member::new("t", "m", replica_id);
        Published { slot: ReplicaSlot(slot), member, reached, stats: None, superseded: false }
    }

    #[test]
    fn the_newest_generation_of_a_replica_supersedes_the_one_before_it_and_no_other() {
        let mut replicas = Replicas::default();
        assert_eq!(replicas.announce(ReplicaSlot(1), published(10, "a")), Before::default());
        assert_eq!(replicas.announce(ReplicaSlot(2), published(11, "b")), Before::default());
        let before = replicas.announce(ReplicaSlot(3), published(12, "a"));
        assert_eq!(before, Before { superseded: vec![ReplicaSlot(10)], displaced: None });
        let before = replicas.announce(ReplicaSlot(4), published(13, "a"));
        assert_eq!(before, Before { superseded: vec![ReplicaSlot(12)], displaced: None });
        let mut current: Vec<ReplicaSlot> = replicas.current().collect();
        current.sort_unstable();
        assert_eq!(current, [ReplicaSlot(11), ReplicaSlot(13)]);
        // The newest ends: the next one supersedes nothing that is not superseded already.
        assert_eq!(replicas.remove(ReplicaSlot(4)).unwrap().slot, ReplicaSlot(13));
        assert_eq!(replicas.announce(ReplicaSlot(5), published(14, "a")), Before::default());
    }

    #[test]
    fn a_number_that_is_given_anew_leaves_nothing_of_what_it_stood_for() {
        let mut replicas = Replicas::default();
        replicas.announce(ReplicaSlot(1), published(10, "a"));
        let before = replicas.announce(ReplicaSlot(1), published(11, "a"));
        assert_eq!(before, Before { superseded: vec![ReplicaSlot(10)], displaced: None });
        let before = replicas.announce(ReplicaSlot(1), published(12, "b"));
        assert_eq!(before, Before { superseded: Vec::new(), displaced: Some(ReplicaSlot(11)) });
        assert_eq!((replicas.len(), replicas.newest.len()), (1, 1));
        assert_eq!(replicas.get(ReplicaSlot(1)).unwrap().member.replica_id, "b");
        assert!(replicas.remove(ReplicaSlot(1)).is_some() && replicas.newest.is_empty());
    }
}
