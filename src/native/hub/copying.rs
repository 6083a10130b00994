//! The full state, copied a part at a time: events are taken in between any two.
//!
//! What is small is copied at once, as of a sequence: that of the copy. So is what producers report, of which a million blocks hold up
//! events for some 400 ms. What followed replicas hold is copied after that, so a part of it
//! may know of later changes. These are in the history after the copy's sequence as well, and are told to whoever was told the
//! copy. To apply them once more changes nothing in the end: each says what of a block is so from then on. So what follows from
//! the copy and all changes after its sequence is what follows from the whole history:
//!
//! - A block that none of the later changes names is in the copy exactly if it was held at the sequence, since it is copied
//!   once and is held or not all the while. Of any other, the last change that names it decides.
//! - Until all of them are applied, a block may be known as of any time between the sequence and the end of the copying, as
//!   with events that are on their way.
//! - A scope that came later is announced later: blocks in it are left out, as all of them are stored later too. So are those
//!   of a replica that is another generation by then.

use std::collections::HashSet;

use super::followed::ReplicaIndex;
use super::sharded::SHARDS;
use super::snapshot::Snapshot;
use super::state::HubState;
use crate::observation::ScopeSlot;

/// A copy that is being made.
pub struct Copying {
    snapshot: Snapshot,
    /// The replicas of the snapshot.
    replicas: Vec<ReplicaIndex>,
    scopes: HashSet<ScopeSlot>,
    /// How many parts were copied, of the first replica, then of the second.
    parts: usize,
}

// === impl Copying ===

impl Copying {
    /// Begins to copy `state`.
    pub fn begin(state: &HubState) -> Copying {
        let (snapshot, replicas) = state.outline();
        let scopes = snapshot.scopes.iter().map(|(slot, _)| *slot).collect();
        Copying { snapshot, replicas, scopes, parts: 0 }
    }

    /// Copies the next part; false if there is none.
    pub fn step(&mut self, state: &HubState) -> bool {
        let (replica, part) = (self.parts / SHARDS, self.parts % SHARDS);
        let (Some(snapshot), Some(index)) = (self.snapshot.replicas.get_mut(replica), self.replicas.get(replica))
        else {
            return false;
        };
        let held = state.held_by(*index, snapshot.slot, part);
        snapshot.held.extend(held.into_iter().filter(|(scope, ..)| self.scopes.contains(scope)));
        self.parts += 1;
        true
    }

    /// The copy.
    pub fn into_snapshot(self) -> Snapshot {
        self.snapshot
    }
}

/// Copies all of `state`.
pub fn copy(state: &HubState) -> Snapshot {
    let mut copying = Copying::begin(state);
    while copying.step(state) {}
    copying.into_snapshot()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::index::Index;
    use crate::native::engine::{BlockRemoved, BlockStored, EngineKey, KvEvent, Place};
    use crate::native::hub::config::HubConfig;
    use crate::native::hub::snapshot::ReplicaSnapshot;
    use crate::observation::{BlockKey, Observation, ReplicaSlot, Stored, Tier};
    use crate::publisher::message::{CacheStateUpdate, PrefixEntry};
    use crate::publisher::{Publisher, PublisherLimits};

    fn state(replicas: usize) -> HubState {
        let state = HubState::new(7, Publisher::new(PublisherLimits::default()), 1 << 30);
        for id in 0..replicas {
            let yaml = format!("replicas: [{{id: r{id}, address: 'h:1', kv_events: 'tcp://h:2', model: m}}]");
            state.follow(&HubConfig::from_yaml(&yaml).unwrap().replicas[0], None);
        }
        state
    }

    fn stored(keys: std::ops::Range<u64>, parent: Option<u64>, place: Place, lora_name: Option<String>) -> KvEvent {
        KvEvent::BlockStored(BlockStored {
            token_ids: keys.clone().map(|key| key as u32).collect(),
            block_hashes: keys.map(EngineKey::Int).collect(),
            parent_block_hash: parent.map(EngineKey::Int),
            block_size: 1,
            place,
            lora_name,
            ..BlockStored::default()
        })
    }

    /// What changes at random.
    struct Changes {
        random: u64,
        at_ms: u64,
        ports: u64,
        adapters: u64,
    }

    impl Changes {
        fn below(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) % below
        }

        fn make(&mut self, state: &HubState) {
            self.at_ms += self.below(3);
            let replica = ReplicaIndex(self.below(3) as usize);
            let media = [None, Some("GPU"), Some("CPU"), Some("DISK")];
            let medium = media[self.below(4) as usize].map(str::to_owned);
            let place = Place { medium, ..Place::default() };
            match self.below(60) {
                0 => {
                    self.ports += 1;
                    state.announce(replica, &format!("10.0.0.1:{}", self.ports));
                }
                1 => state.renew(replica),
                2 => {
                    state.gone(replica);
                }
                3 => {
                    state.clear(replica);
                }
                4..8 => state.complete(replica),
                8..10 => state.reassert(replica, self.at_ms),
                10..30 => {
                    let first = self.below(400);
                    let block_hashes = (first..first + self.below(9)).map(EngineKey::Int).collect();
                    state.apply(replica, &[KvEvent::BlockRemoved(BlockRemoved { block_hashes, place })], self.at_ms);
                }
                at => {
                    if at == 30 {
                        self.adapters += 1;
                    }
                    let lora_name = (self.below(4) == 0).then(|| format!("lora{}", self.adapters));
                    let first = self.below(40) * 10;
                    let parent = (self.below(2) == 0).then(|| first.saturating_sub(1));
                    let event = stored(first..first + 1 + self.below(10), parent, place, lora_name);
                    state.apply(replica, &[event], self.at_ms);
                }
            }
        }
    }

    type Held = BTreeMap<(ReplicaSlot, ScopeSlot, BlockKey), (Tier, u64, u32)>;

    /// What an index has of these replicas.
    fn held(index: &Index, slots: &[ReplicaSlot]) -> Held {
        let mut held = Held::new();
        for observation in index.observations_of(|slot| slots.contains(&slot)) {
            let Observation::Stored(Stored { replica, scope, tier, last_seen_ms, blocks, .. }) = observation else {
                panic!("{observation:?}");
            };
            for block in blocks {
                held.insert((replica, scope, block.key), (tier, last_seen_ms, block.token_count));
            }
        }
        held
    }

    fn rebuild(snapshot: Snapshot) -> Index {
        let mut index = Index::new(4);
        let scopes = snapshot.scopes.into_iter().map(|(slot, scope)| Observation::Scope { slot, scope });
        let replicas = snapshot.replicas.into_iter().flat_map(ReplicaSnapshot::into_observations);
        scopes.chain(replicas).for_each(|observation| index.apply(1, observation));
        index
    }

    #[test]
    fn a_copy_and_the_changes_after_it_are_the_whole_history_whatever_happens_meanwhile() {
        let mut meanwhile = 0;
        for seed in 0..150 {
            let state = state(3);
            let mut changes = Changes { random: seed, at_ms: 1_000, ports: 0, adapters: 0 };
            for replica in 0..3 {
                state.announce(ReplicaIndex(replica), "10.0.0.1:1");
            }
            (0..changes.below(300)).for_each(|_| changes.make(&state));
            let mut copying = Copying::begin(&state);
            let often = 1 + changes.below(6);
            while copying.step(&state) {
                (0..changes.below(often)).for_each(|_| changes.make(&state));
            }
            let copy = copying.into_snapshot();
            let sequence = copy.sequence;
            meanwhile += state.sequence() - sequence;
            let mut told = rebuild(copy);
            for change in state.after(sequence, usize::MAX).unwrap() {
                told.apply(1, change.observation.clone());
            }
            let exact = state.snapshot();
            let slots: Vec<ReplicaSlot> = exact.replicas.iter().map(|replica| replica.slot).collect();
            let exact = rebuild(exact);
            assert_eq!(held(&told, &slots), held(&exact, &slots), "seed {seed}");
            let counts = |index: &Index, slot: ReplicaSlot| index.dictionary().complete_replica(slot).is_some();
            assert!(slots.iter().all(|slot| counts(&told, *slot) == counts(&exact, *slot)), "seed {seed}");
        }
        assert!(meanwhile > 1_000, "{meanwhile} changes");
    }

    /// What is held longest is what a follower of events waits for: on two busy cores 724 ms at once, 15 ms in parts.
    #[test]
    #[ignore = "measures; run it in a release build with --nocapture"]
    fn how_long_events_wait_while_four_million_blocks_are_copied() {
        const REPLICAS: usize = 8;
        const BLOCKS: u64 = 500_000;
        let state = Arc::new(state(REPLICAS));
        for replica in (0..REPLICAS).map(ReplicaIndex) {
            state.announce(replica, "10.0.0.1:1");
            for first in (0..BLOCKS).step_by(100) {
                state.apply(replica, &[stored(first..first + 100, None, Place::default(), None)], 5);
            }
        }
        for (name, copy) in [("at once", HubState::snapshot as fn(&HubState) -> Snapshot), ("in parts", copy)] {
            let stop = Arc::new(AtomicBool::new(false));
            let events = {
                let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let (mut longest, mut count) = (Duration::ZERO, 0_u64);
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        state.apply(ReplicaIndex(0), &[stored(0..1, None, Place::default(), None)], 6);
                        longest = longest.max(begun.elapsed());
                        count += 1;
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    (longest, count)
                })
            };
            std::thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            let blocks: usize = copy(&state).replicas.iter().map(|replica| replica.held.len()).sum();
            let took = begun.elapsed();
            stop.store(true, Ordering::Relaxed);
            let (longest, count) = events.join().unwrap();
            println!("{name}: {blocks} blocks in {took:?}; of {count} events the longest took {longest:?}");
            assert_eq!(blocks as u64, REPLICAS as u64 * BLOCKS);
        }
    }

    /// What producers report is copied at once, with the outline.
    #[test]
    #[ignore = "measures; run it in a release build with --nocapture"]
    fn how_long_events_wait_while_a_million_reported_blocks_are_copied() {
        let state = state(0);
        for replica in 0..64 {
            for chain in 0..16_u32 {
                let hash = |block: u32| [replica as u32, chain, block].map(u32::to_be_bytes).concat();
                let prefix = PrefixEntry {
                    block_hashes: (0..977).map(hash).collect(),
                    block_token_counts: vec![16; 977],
                    ..PrefixEntry::default()
                };
                let report = CacheStateUpdate {
                    replica_id: format!("r{replica}"),
                    model_id: "m".into(),
                    tenant_id: "t".into(),
                    hash_scheme: "s".into(),
                    timestamp_us: 1_000,
                    prefixes: vec![prefix],
                    ..CacheStateUpdate::default()
                };
                state.change(|publisher| publisher.report(&report, 1));
            }
        }
        let begun = Instant::now();
        let (outline, _) = state.outline();
        println!("{} blocks in {:?}", state.read(|publisher| publisher.index().pairs()), begun.elapsed());
        assert!(!outline.reported.is_empty());
    }
}
