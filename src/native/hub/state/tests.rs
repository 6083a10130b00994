use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::native::engine::{BlockStored, EngineKey};
use crate::native::hub::clock::tests::Hands;
use crate::native::hub::config::HubConfig;
use crate::native::hub::snapshot::ReplicaSnapshot;
use crate::observation::Stored;
use crate::observation::{BlockKey, Observation};
use crate::publisher::PublisherLimits;
use crate::publisher::message::{CacheStateUpdate, PrefixEntry};

const A: ReplicaIndex = ReplicaIndex(0);

fn replica() -> ReplicaConfig {
    let yaml = "replicas: [{id: a, address: 'h:1', kv_events: 'tcp://h:2', model: m}]";
    HubConfig::from_yaml(yaml).unwrap().replicas.remove(0)
}

fn state() -> HubState {
    let state = HubState::new(7, Publisher::new(PublisherLimits::default()), 1 << 20);
    assert_eq!(state.follow(&replica(), None), A);
    state
}

fn stored(keys: std::ops::Range<u64>) -> KvEvent {
    KvEvent::BlockStored(BlockStored {
        token_ids: keys.clone().map(|key| key as u32).collect(),
        block_hashes: keys.map(EngineKey::Int).collect(),
        block_size: 1,
        ..BlockStored::default()
    })
}

fn extended(parent: u64, keys: std::ops::Range<u64>) -> KvEvent {
    let KvEvent::BlockStored(event) = stored(keys) else { panic!() };
    KvEvent::BlockStored(BlockStored { parent_block_hash: Some(EngineKey::Int(parent)), ..event })
}

fn history(state: &HubState, after: u64) -> Vec<Observation> {
    let changes = state.after(after, usize::MAX).unwrap();
    changes.iter().map(|change| change.observation.clone()).collect()
}

fn held(observations: &[Observation]) -> BTreeMap<ReplicaSlot, BTreeSet<BlockKey>> {
    let mut held: BTreeMap<ReplicaSlot, BTreeSet<BlockKey>> = BTreeMap::new();
    for observation in observations {
        match observation {
            Observation::Stored(Stored { replica, blocks, .. }) => {
                held.entry(*replica).or_default().extend(blocks.iter().map(|block| block.key.clone()));
            }
            Observation::Removed { replica, keys, .. } => {
                held.entry(*replica).or_default().retain(|key| !keys.contains(key));
            }
            Observation::Cleared { replica } => {
                held.remove(replica);
            }
            _ => {}
        }
    }
    held
}

#[test]
fn a_replica_and_its_scope_are_announced_before_they_are_used() {
    let state = state();
    assert_eq!(state.apply(A, &[stored(0..3)], 5), Tally::default(), "not announced");
    state.announce(A, "10.0.0.1:1");
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..3)], 5);
    state.complete(A);
    state.complete(A);
    let kinds: Vec<_> = history(&state, 0).iter().map(std::mem::discriminant).collect();
    assert_eq!(kinds.len(), 4, "scope, replica up, stored, complete");
    assert!(state.is_complete());
    assert_eq!(*state.watch().borrow(), 4);
}

#[test]
fn a_snapshot_and_the_changes_after_it_are_the_whole_history() {
    let state = state();
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..5_000)], 5);
    let snapshot = state.snapshot();
    let sequence = snapshot.sequence;
    let mut replayed: Vec<_> = snapshot.replicas.into_iter().flat_map(ReplicaSnapshot::into_observations).collect();
    let removed = crate::native::engine::BlockRemoved {
        block_hashes: (10..20).map(EngineKey::Int).collect(),
        ..Default::default()
    };
    state.apply(A, &[KvEvent::BlockRemoved(removed)], 6);
    replayed.extend(history(&state, sequence));
    assert_eq!(held(&replayed), held(&history(&state, 0)));
    assert_eq!(held(&replayed).values().next().map(BTreeSet::len), Some(4_990));
}

#[test]
fn a_new_address_is_a_new_generation_that_holds_nothing() {
    let state = state();
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..3)], 5);
    state.complete(A);
    state.announce(A, "10.0.0.2:1");
    assert_eq!((state.view()[0].blocks, state.view()[0].complete), (0, false));
    let slots: Vec<_> = history(&state, 0)
        .into_iter()
        .filter_map(|observation| match observation {
            Observation::ReplicaUp { replica, .. } => Some(replica.0),
            _ => None,
        })
        .collect();
    assert_eq!(slots, [1, 2]);
}

#[test]
fn a_replica_that_is_gone_comes_back_as_another_one_that_holds_nothing() {
    let state = state();
    assert!(!state.gone(A), "not announced");
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..3)], 5);
    state.complete(A);
    assert!(state.gone(A) && !state.gone(A));
    assert_eq!(history(&state, 0).last(), Some(&Observation::ReplicaGone { replica: ReplicaSlot(1) }));
    assert_eq!(state.apply(A, &[stored(0..3)], 6), Tally::default(), "nothing is followed of it");
    assert!(state.announce(A, "10.0.0.1:1"));
    assert_eq!((state.view()[0].blocks, state.snapshot().replicas[0].slot), (0, ReplicaSlot(2)));
    state.unfollow(A);
    assert!(state.view().is_empty() && state.snapshot().replicas.is_empty());
    assert_eq!(state.follow(&replica(), None), ReplicaIndex(1), "numbers do not repeat");
}

#[test]
fn what_is_held_still_is_said_once_a_replica_and_in_a_snapshot() {
    let state = state();
    state.reassert(A, 5);
    assert_eq!(state.sequence(), 0, "not announced");
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..3)], 5);
    state.complete(A);
    let before = state.sequence();
    state.reassert(A, 9);
    state.reassert(A, 12);
    let replica = ReplicaSlot(1);
    let said = [9, 12].map(|at_ms| Observation::Reasserted { replica, at_ms });
    assert_eq!(history(&state, before), said);
    let rebuilt = |state: &HubState| -> Vec<Observation> {
        state.snapshot().replicas.into_iter().flat_map(ReplicaSnapshot::into_observations).collect()
    };
    assert!(rebuilt(&state).ends_with(&[said[1].clone(), Observation::ReplicaComplete { replica }]));
    state.announce(A, "10.0.0.2:1");
    let is_said = |observation: &Observation| matches!(observation, Observation::Reasserted { .. });
    assert!(!rebuilt(&state).iter().any(is_said), "of this generation nothing was said");
}

#[test]
fn what_went_by_age_is_published_again_once_it_is_known_to_be_held_still() {
    const TTL_MS: u64 = 30 * 60 * 1_000;
    let state = state();
    state.announce(A, "10.0.0.1:1");
    state.apply(A, &[stored(0..3)], 5);
    state.apply(A, &[extended(2, 3..5)], 5 + TTL_MS);
    state.complete(A);
    state.change(|publisher| publisher.sweep(5 + TTL_MS));
    let pairs = || state.read(|publisher| publisher.index().pairs());
    assert_eq!(pairs(), 2, "the first three went by age");
    let before = state.sequence();
    state.reassert(A, 7 + TTL_MS);
    assert_eq!(pairs(), 5);
    let again = history(&state, before);
    let [Observation::Reasserted { .. }, Observation::Stored(stored)] = &again[..] else { panic!("{again:?}") };
    let token_counts: Vec<u32> = stored.blocks.iter().map(|block| block.token_count).collect();
    assert_eq!((stored.last_seen_ms, token_counts), (7 + TTL_MS, vec![1, 2, 3]));
    assert!(stored.chained && stored.parent.is_none());
    state.reassert(A, 9 + TTL_MS);
    assert_eq!(state.sequence(), before + 3, "nothing more to say than that");
}

#[test]
fn an_unchanged_load_is_published_again_only_after_a_while() {
    let state = state();
    state.announce(A, "10.0.0.1:1");
    let start = state.sequence();
    let report = |pressure, reported_ms| {
        state.stats(A, ReplicaStats { pressure, hit_rate: 0.5, reported_ms });
        state.sequence() - start
    };
    assert_eq!(report(0.1, 1_000), 1);
    assert_eq!(report(0.1, 5_999), 1);
    assert_eq!(report(0.1, 6_000), 2);
    assert_eq!(report(0.2, 6_001), 3);
}

#[test]
fn what_is_held_neither_goes_nor_stays_by_a_wall_clock_that_is_set() {
    const TTL_MS: u64 = 30 * 60 * 1_000;
    for jump_ms in [TTL_MS as i64 * 9, -(TTL_MS as i64 * 9)] {
        let start_ms = 100 * TTL_MS;
        let hands = Hands::at(start_ms);
        let state = state().with_wall(hands.wall());
        state.announce(A, "10.0.0.1:1");
        state.apply(A, &[stored(0..3)], start_ms);
        let later_ms = start_ms + 60_000;
        let unix_ms = later_ms.saturating_add_signed(jump_ms);
        hands.set(later_ms, unix_ms);
        // A report that was made a minute ago, by a clock that was set like this one.
        let report = report(state.wall().to_hub_us((unix_ms - 60_000) as i64 * 1_000));
        assert_eq!(state.change(|publisher| publisher.report(&report, later_ms)).total(), 0);
        let pairs = |at_ms| {
            state.change(|publisher| publisher.sweep(at_ms));
            state.read(|publisher| publisher.index().pairs())
        };
        assert_eq!(pairs(later_ms), 4);
        assert_eq!(pairs(start_ms + TTL_MS - 1), 4);
        // Whoever is told so is told the age that it has.
        let mut told = state.snapshot().replicas.remove(0).into_observations().nth(1).unwrap();
        state.wall().tell(&mut told);
        assert!(matches!(told, Observation::Stored(stored) if stored.last_seen_ms == unix_ms - 60_000));
        assert_eq!(pairs(start_ms + TTL_MS), 0);
    }
}

#[test]
fn who_was_told_times_before_the_clock_was_set_is_told_anew() {
    let hands = Hands::at(1_000_000);
    let state = state().with_wall(hands.wall());
    state.announce(A, "10.0.0.1:1");
    let (told, mut anew) = (state.sequence(), state.told_anew());
    assert_eq!((state.look_at_wall(), anew.has_changed().unwrap()), (None, false));
    hands.set(1_000_000, 9_000_000);
    assert_eq!((state.look_at_wall(), anew.has_changed().unwrap()), (Some(8_000_000), true));
    assert!(told < *anew.borrow_and_update());
    state.apply(A, &[stored(0..3)], 1_000_000);
    assert!(state.sequence() >= *state.told_anew().borrow(), "what is told from now on counts");
    assert_eq!((state.look_at_wall(), anew.has_changed().unwrap()), (None, false));
}

fn report(timestamp_us: i64) -> CacheStateUpdate {
    CacheStateUpdate {
        replica_id: "reported".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        timestamp_us,
        prefixes: vec![PrefixEntry { prefix_hash: b"p".to_vec(), token_count: 16, ..PrefixEntry::default() }],
        ..CacheStateUpdate::default()
    }
}
