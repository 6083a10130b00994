use std::sync::Arc;

use super::*;
use crate::flow::metrics;
use crate::flow::sim::SimHost;
use crate::host::Host;
use crate::index::log::{Credits, Incarnation};
use crate::observation::{BlockKey, Counted, ReplicaSlot, ScopeSlot, Tier};
use crate::request::{ChainBlock, RequestChain};
use crate::routing::decision::RankedReplica;

const LIFE: Incarnation = Incarnation(1);
const QUEUE: &str = "q";

fn chain(keys: impl IntoIterator<Item = u64>) -> RequestChain {
    let block = |key| ChainBlock { key: BlockKey::Hash64(key), tokens: 16 };
    RequestChain::Chain(keys.into_iter().map(block).collect())
}

fn matched(replica: u32, blocks: usize) -> RankedReplica {
    RankedReplica {
        replica: ReplicaSlot(replica),
        replica_id: Arc::from("r"),
        address: Arc::from("10.0.0.1:80"),
        score: 1.0,
        matched_tokens: 16,
        matched_blocks: blocks,
        hit_probability: 1.0,
        tier: Tier::T1,
        data_parallel_rank: None,
    }
}

fn hit(keys: impl IntoIterator<Item = u64>, replicas: &[(u32, usize)]) -> Hit {
    let delivered: Vec<_> = replicas.iter().map(|(replica, blocks)| matched(*replica, *blocks)).collect();
    Hit::new(ScopeSlot(1), &chain(keys), &delivered).unwrap()
}

/// What is in the queue, as batches.
fn sent(host: &SimHost) -> Vec<Credits> {
    let queue = host.find_queue(QUEUE).unwrap();
    std::iter::from_fn(|| host.dequeue(queue))
        .inspect(|bytes| assert!(bytes.len() <= MAX_BATCH_BYTES, "{} bytes", bytes.len()))
        .map(|bytes| Credits::decode(&bytes).unwrap())
        .collect()
}

/// How often each key was hit at a replica.
fn total(parts: &[Counted], replica: u32) -> Vec<(BlockKey, u32)> {
    let mut counts = std::collections::BTreeMap::new();
    for part in parts {
        for at in part.replicas.iter().filter(|at| at.replica == ReplicaSlot(replica)) {
            for (key, count) in part.keys.iter().zip(&at.counts) {
                *counts.entry(key.clone()).or_default() += count;
            }
        }
    }
    counts.into_iter().collect()
}

fn lost(host: &SimHost, outbox: &mut Outbox, kind: &str) -> u64 {
    outbox.report(host);
    host.0.counts.borrow().get(&metrics::credits_lost(kind)).copied().unwrap_or(0)
}

#[test]
fn nothing_matched_is_no_hit() {
    assert_eq!(Hit::new(ScopeSlot(1), &chain([1, 2]), &[]), None);
    assert_eq!(Hit::new(ScopeSlot(1), &chain([1, 2]), &[matched(1, 0)]), None);
    let exact = RequestChain::Exact { key: BlockKey::Hash64(1) };
    assert_eq!(Hit::new(ScopeSlot(1), &exact, &[matched(1, 1)]), Some(hit([1], &[(1, 1)])));
}

#[test]
fn a_hit_is_as_long_as_the_longest_match() {
    assert_eq!(hit(1..=9, &[(1, 2), (2, 3)]), hit(1..=3, &[(1, 2), (2, 3)]));
    assert_ne!(hit(1..=9, &[(1, 2)]), hit(1..=9, &[(1, 3)]));
}

#[test]
fn equal_hits_are_sent_as_one() {
    let (host, mut outbox) = (SimHost::default(), Outbox::default());
    host.register_queue(QUEUE);
    for _ in 0..3 {
        outbox.add(LIFE, hit(1..=4, &[(1, 4), (2, 2)]));
    }
    outbox.add(LIFE, hit(1..=4, &[(1, 4)]));
    outbox.send(&host, QUEUE, LIFE);
    outbox.send(&host, QUEUE, LIFE);
    let batches = sent(&host);
    assert_eq!(batches.len(), 1);
    assert_eq!((batches[0].incarnation, batches[0].hits.len()), (LIFE, 2));
    let keys = |last, count| -> Vec<_> { (1..=last).map(|key| (BlockKey::Hash64(key), count)).collect() };
    assert_eq!(total(&batches[0].hits, 1), keys(4, 4));
    assert_eq!(total(&batches[0].hits, 2), keys(2, 3));
}

#[test]
fn what_is_long_goes_in_several_batches_and_none_is_too_large() {
    let (host, mut outbox) = (SimHost::default(), Outbox::default());
    host.register_queue(QUEUE);
    let replicas: Vec<(u32, usize)> = (1..=150).map(|replica| (replica, 300)).collect();
    for _ in 0..1_000 {
        outbox.add(LIFE, hit(1..=300, &replicas));
    }
    let wide = |key: u64| ChainBlock { key: BlockKey::Bytes([key as u8; 256].into()), tokens: 1 };
    let mixed =
        (1..=20).map(|key| if key % 7 == 0 { ChainBlock { key: BlockKey::Hash64(key), tokens: 1 } } else { wide(key) });
    let mixed = RequestChain::Chain(mixed.collect());
    outbox.add(LIFE, Hit::new(ScopeSlot(1), &mixed, &[matched(200, 20), matched(201, 8)]).unwrap());
    let mut batches = Vec::new();
    for _ in 0..40 {
        outbox.send(&host, QUEUE, LIFE);
        let one = sent(&host);
        assert!(one.len() <= 1, "one batch a tick");
        batches.extend(one);
    }
    assert!(batches.len() > 5);
    let parts: Vec<Counted> = batches.into_iter().flat_map(|batch| batch.hits).collect();
    for (replica, expected) in [(1, (300, 1_000)), (150, (300, 1_000)), (200, (20, 1)), (201, (8, 1))] {
        let counts = total(&parts, replica);
        assert_eq!(counts.len(), expected.0, "blocks of {replica}");
        assert!(counts.iter().all(|(_, count)| *count == expected.1), "{counts:?}");
    }
}

#[test]
fn what_finds_no_room_is_lost_and_room_comes_back() {
    let (host, mut outbox) = (SimHost::default(), Outbox::default());
    for first in 0..100 {
        outbox.add(LIFE, hit(first * 1_000..first * 1_000 + 500, &[(1, 500)]));
    }
    let no_room = lost(&host, &mut outbox, "no_room");
    assert!((80 * 500..100 * 500).contains(&no_room) && no_room.is_multiple_of(500), "{no_room}");
    assert_eq!(lost(&host, &mut outbox, "no_room"), no_room, "told once");
    outbox.send(&host, QUEUE, LIFE);
    assert_eq!(lost(&host, &mut outbox, "refused"), 0, "without a queue it waits");
    host.register_queue(QUEUE);
    (0..6).for_each(|_| outbox.send(&host, QUEUE, LIFE));
    let taken: u64 = sent(&host).iter().flat_map(|batch| &batch.hits).map(outbox::credits_of).sum();
    assert_eq!(taken + no_room, 100 * 500);
    outbox.add(LIFE, hit(0..500, &[(1, 500)]));
    assert_eq!(lost(&host, &mut outbox, "no_room"), no_room);
}

#[test]
fn hits_of_another_life_of_the_log_are_not_sent() {
    let (host, mut outbox) = (SimHost::default(), Outbox::default());
    host.register_queue(QUEUE);
    outbox.add(LIFE, hit(1..=3, &[(1, 3)]));
    outbox.add(Incarnation(2), hit(1..=2, &[(1, 2)]));
    assert_eq!(lost(&host, &mut outbox, "other_log"), 3);
    outbox.send(&host, QUEUE, Incarnation(3));
    assert_eq!((sent(&host), lost(&host, &mut outbox, "other_log")), (vec![], 5));
}

#[test]
fn a_short_match_of_a_long_prompt_keeps_little() {
    let long = hit(0..60_000, &[(1, 2)]);
    assert!(long.memory_bytes() < 1_000, "{}", long.memory_bytes());
}
