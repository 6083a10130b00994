//! Keys of different widths side by side: what is written down and read again is what was held.
//!
//! A width is written once for many keys, so that keys of different widths, taken for one, would come back as other keys
//! and credit a replica with blocks that it was never reported to hold. Seeded random histories of reports whose keys are
//! of any width, at the limits too, against a plain set of what is held.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

use std::collections::BTreeSet;

#[path = "support/random.rs"]
mod random;

use random::Random;
use warmroute::index::log::{Incarnation, Page, Segment};
use warmroute::index::{Index, Pair};
use warmroute::observation::{
    BlockKey, Counted, Member, Observation, ReplicaCounts, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock, Tier,
};
use warmroute::publisher::message::{CacheEvent, CacheStateUpdate, EventKind, PrefixEntry};
use warmroute::publisher::{Publisher, PublisherLimits};
use warmroute::wire;

const HISTORIES: u64 = 400;
const OPERATIONS: usize = 40;
const PAGES: u16 = 3;
const WIDTHS: [usize; 8] = [1, 2, 3, 7, 8, 9, 32, 256];
const NOW_MS: u64 = 1_700_000_000_000;

// === Histories ===

fn bytes(random: &mut Random) -> Vec<u8> {
    let width = random.pick(&WIDTHS);
    let mut bytes = vec![b'x'; width];
    // Few keys of each width, and such as come out of others when they are cut elsewhere.
    bytes[0] = random.pick(b"xyz");
    bytes[width - 1] = random.pick(b"xyz");
    bytes
}

fn key(random: &mut Random) -> BlockKey {
    BlockKey::from_bytes(&bytes(random)).unwrap()
}

fn keys(random: &mut Random, most: u64) -> Vec<BlockKey> {
    (0..=random.below(most)).map(|_| key(random)).collect()
}

fn distinct(keys: Vec<BlockKey>) -> Vec<BlockKey> {
    let mut seen = BTreeSet::new();
    keys.into_iter().filter(|key| seen.insert(key.clone())).collect()
}

fn observation(random: &mut Random) -> Observation {
    let (replica, scope) = (ReplicaSlot(1 + random.below(3) as u32), ScopeSlot(1 + random.below(2) as u32));
    match random.below(10) {
        0..2 => Observation::Removed { replica, scope, keys: keys(random, 6) },
        2 => {
            let keys = distinct(keys(random, 6));
            let counts = (0..=random.below(keys.len() as u64)).map(|_| random.below(9) as u32).take(keys.len());
            let counts = ReplicaCounts { replica, counts: counts.collect() };
            Observation::Counted(Counted { scope, keys, replicas: vec![counts] })
        }
        _ => {
            // Mostly single blocks, which stand together where nothing is known of what comes before them.
            let most = random.pick(&[1, 1, 1, 4, 20]);
            let keys = distinct(keys(random, most));
            let blocks = keys.into_iter().map(|key| StoredBlock { key, token_count: 16 + random.below(2) as u32 });
            let blocks: Vec<StoredBlock> = blocks.collect();
            let parent = (random.below(3) == 0).then(|| key(random));
            Observation::Stored(Stored {
                replica,
                scope,
                tier: Tier::T1,
                last_seen_ms: NOW_MS + random.below(2),
                parent: parent.filter(|parent| blocks.iter().all(|block| block.key != *parent)),
                page: random.below(PAGES.into()) as u16,
                blocks,
                ..Stored::default()
            })
        }
    }
}

fn index() -> Index {
    let mut index = Index::new(PAGES.into());
    for number in 1..=2 {
        let scope = Scope {
            tenant_id: "t".into(),
            model_id: "m".into(),
            hash_scheme: format!("s{number}"),
            adapter_id: String::new(),
        };
        index.apply(1, Observation::Scope { slot: ScopeSlot(number), scope });
    }
    for number in 1..=3 {
        let (replica, member) = (ReplicaSlot(number), Member::new("t", "m", format!("r{number}")));
        index.apply(
            1,
            Observation::ReplicaUp { replica, member, address: "10.0.0.1:80".into(), data_parallel_rank: None },
        );
        index.apply(1, Observation::ReplicaComplete { replica });
    }
    index
}

// === What is held ===

fn apply(held: &mut BTreeSet<Pair>, observation: &Observation) {
    match observation {
        Observation::Stored(stored) => {
            held.extend(stored.blocks.iter().map(|block| (stored.scope, block.key.clone(), stored.replica)));
        }
        Observation::Removed { replica, scope, keys } => {
            held.retain(|(within, key, holder)| (within, holder) != (scope, replica) || !keys.contains(key));
        }
        _ => {}
    }
}

fn pairs_of(observations: &[Observation]) -> BTreeSet<Pair> {
    let mut held = BTreeSet::new();
    observations.iter().for_each(|observation| apply(&mut held, observation));
    held
}

fn held(index: &Index) -> BTreeSet<Pair> {
    index.held().into_iter().map(|(scope, key, holder)| (scope, key, holder.replica)).collect()
}

/// What a history leaves, with hits, at an index that gets it as `carried` hands it on.
fn follow(history: &[Observation], carried: impl Fn(&[Observation]) -> Vec<Observation>) -> Index {
    let mut index = index();
    for (at, observation) in history.iter().enumerate() {
        let sequence = at as u64 + 2;
        let carried = carried(std::slice::from_ref(observation));
        carried.into_iter().for_each(|observation| index.apply(sequence, observation));
    }
    index
}

fn through_a_page(page: u16, records: Vec<Observation>) -> Vec<Observation> {
    let page = Page { incarnation: Incarnation(1), number: u32::from(page) + 1, as_of: 9, records };
    let read = Page::decode(&page.encode()).unwrap();
    assert_eq!(read.records, page.records, "what is listed is written as it is");
    read.records
}

fn through_a_segment(records: &[Observation]) -> Vec<Observation> {
    let segment = Segment { incarnation: Incarnation(1), term: 1, sequence: 2, records: records.to_vec() };
    Segment::decode(&segment.encode()).unwrap().records
}

// === The index ===

#[test]
fn pages_and_the_log_hold_the_same_keys_whatever_their_widths() {
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let history: Vec<Observation> = (0..OPERATIONS).map(|_| observation(&mut random)).collect();
        let leader = follow(&history, <[Observation]>::to_vec);
        assert_eq!(held(&leader), pairs_of(&history), "seed {seed}");

        let follower = follow(&history, through_a_segment);
        assert_eq!(follower.held(), leader.held(), "seed {seed}: by the log, with times, tokens and hits");

        let mut late = index();
        for page in 0..PAGES {
            late.load_page(page, 2 + OPERATIONS as u64, &through_a_page(page, leader.page_observations(page)));
        }
        assert_eq!(late.held(), leader.held(), "seed {seed}: by pages, with times, tokens and hits");
    }
}

#[test]
fn single_blocks_of_different_widths_come_back_from_a_page_as_they_are() {
    let longest = "x".repeat(256);
    for keys in [&["a", "bcd", "ef"][..], &["abcd", "ef"], &["12345678", "a", &longest, "123456789", "1234567"]] {
        let single = |key: &&str| {
            Observation::Stored(Stored {
                replica: ReplicaSlot(1),
                scope: ScopeSlot(1),
                last_seen_ms: 5,
                blocks: vec![StoredBlock { key: BlockKey::from_bytes(key.as_bytes()).unwrap(), token_count: 16 }],
                ..Stored::default()
            })
        };
        let history: Vec<Observation> = keys.iter().map(single).collect();
        let listed = through_a_page(0, follow(&history, <[Observation]>::to_vec).page_observations(0));
        assert_eq!(pairs_of(&listed), pairs_of(&history));
        assert_eq!(pairs_of(&listed).len(), keys.len());
    }
}

#[test]
fn single_blocks_share_runs_though_their_widths_alternate() {
    let mut index = index();
    for number in 0..900_u32 {
        let bytes = number.to_be_bytes().repeat(3);
        let key = BlockKey::from_bytes(&bytes[..[4, 8, 12][number as usize % 3]]).unwrap();
        let blocks = vec![StoredBlock { key, token_count: 16 }];
        let stored =
            Stored { replica: ReplicaSlot(1), scope: ScopeSlot(1), last_seen_ms: 5, blocks, ..Stored::default() };
        index.apply(2, Observation::Stored(stored));
    }
    assert_eq!(index.pairs(), 900);
    assert!(index.size().runs < 20, "{:?}", index.size());
}

// === The publisher ===

fn report(random: &mut Random) -> CacheStateUpdate {
    let entry = |random: &mut Random| {
        let chain: Vec<Vec<u8>> = (0..random.below(4)).map(|_| bytes(random)).collect();
        PrefixEntry {
            prefix_hash: bytes(random),
            token_count: 64,
            block_token_counts: vec![16; chain.len()],
            block_hashes: chain,
            ..PrefixEntry::default()
        }
    };
    CacheStateUpdate {
        replica_id: random.pick(&["a", "b"]).into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        prefixes: (0..=random.below(5)).map(|_| entry(random)).collect(),
        ..CacheStateUpdate::default()
    }
}

#[test]
fn what_producers_report_is_told_as_it_was_reported() {
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let mut publisher = Publisher::new(PublisherLimits { max_entries: 40, ..PublisherLimits::default() });
        let mut told = Vec::new();
        for _ in 0..8 {
            publisher.report(&report(&mut random), NOW_MS);
            let event = CacheEvent {
                kind: EventKind::PrefixEvicted,
                replica_id: random.pick(&["a", "b"]).into(),
                model_id: "m".into(),
                tenant_id: "t".into(),
                prefix_hash: bytes(&mut random),
                ..CacheEvent::default()
            };
            publisher.event(&event, NOW_MS);
            let changes = publisher.take_changes();
            assert!(changes.iter().all(Observation::is_uniform));
            let carried = wire::decode_records(&wire::encode_records(&changes)).unwrap();
            assert_eq!(carried, changes, "seed {seed}: one change is one fact");
            told.extend(carried);
        }
        let expected = held(publisher.index());
        assert!(expected.len() > 5, "seed {seed}: {} pairs", expected.len());
        assert_eq!(pairs_of(&told), expected, "seed {seed}: by changes");
        let all = publisher.reported_observations();
        let carried = wire::decode_records(&wire::encode_records(&all)).unwrap();
        assert_eq!(pairs_of(&carried), expected, "seed {seed}: all at once");
    }
}
