//! Hits on their way from the VMs that serve into everybody's counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::DOMAIN;
use super::hub::KEYS;
use super::scenarios::{Pool, stored};
use crate::flow::credits::Hit;
use crate::flow::follower::View;
use crate::flow::keys::Keys;
use crate::flow::metrics;
use crate::flow::node::Node;
use crate::flow::sim::scope;
use crate::host::Host;
use crate::index::log::{Credits, Head, Incarnation};
use crate::index::{Index, LeadingRun};
use crate::observation::{BlockKey, Counted, ReplicaCounts, ReplicaSlot, ScopeSlot};
use crate::request::{ChainBlock, RequestChain};
use crate::routing::decision::RankedReplica;

/// How often each block was hit at each replica, by the log's numbers.
pub type Hits = BTreeMap<(ReplicaSlot, BlockKey), u32>;

// === impl Pool ===

impl Pool {
    /// Three VMs of which the first leads, and a replica that holds these blocks.
    fn holding(keys: &[u64]) -> Pool {
        let mut pool = Pool::new(3);
        pool.tick_all(3);
        pool.reset(keys);
        pool.tick_all(2);
        pool
    }

    /// A request at this VM for the chain 1, 2, … that is told of the match.
    fn hit(&mut self, vm: usize, blocks: u64) {
        let known = self.vms[vm].ask(&self.host, 5_000_000);
        let View::Index(index) = known.view else { panic!("VM {vm} knows nothing") };
        let chain = RequestChain::Chain((1..=blocks).map(block).collect());
        let slot = index.dictionary().scope_slot(&scope()).unwrap();
        let delivered: Vec<_> = index.leading_runs(slot, &chain, 0).into_iter().map(ranked).collect();
        assert_eq!(delivered.len(), 1);
        let hit = Hit::new(slot, &chain, &delivered).unwrap();
        self.vms[vm].delivered(hit);
    }

    /// What a VM has counted of each of the first blocks.
    fn counts(&mut self, vm: usize, blocks: u64) -> Vec<u32> {
        let known = self.vms[vm].ask(&self.host, 5_000_000);
        let View::Index(index) = known.view else { panic!("VM {vm} knows nothing") };
        let slot = index.dictionary().scope_slot(&scope()).unwrap();
        (1..=blocks).map(|key| count(index, slot, key)).collect()
    }

    pub(super) fn counted(&self, metric: &str) -> u64 {
        self.host.0.counts.borrow().get(metric).copied().unwrap_or(0)
    }

    fn lost(&self) -> Vec<String> {
        let counts = self.host.0.counts.borrow();
        counts.keys().filter(|name| name.contains("lost") || name.contains("dropped")).cloned().collect()
    }

    fn queued(&self) -> usize {
        let queues = self.host.0.queues.borrow();
        queues.iter().find(|(name, _)| *name == Keys::new(DOMAIN).credits()).map_or(0, |(_, messages)| messages.len())
    }

    fn enqueue(&self, message: &[u8]) {
        let queue = self.host.find_queue(&Keys::new(DOMAIN).credits()).unwrap();
        assert!(self.host.enqueue(queue, message));
    }
}

/// A request for all keys hits what replicas hold of them from the first on. Returns what the VM has counted so far.
pub fn hit(node: &mut Node, all: &mut Hits) -> Hits {
    let View::Index(index) = node.view() else { return Hits::new() };
    let Some(slot) = index.dictionary().scope_slot(&scope()) else { return Hits::new() };
    let chain = RequestChain::Chain((1..=KEYS).map(block).collect());
    let runs = index.leading_runs(slot, &chain, 0);
    let mut counted = Hits::new();
    for (replica, _) in index.dictionary().replicas() {
        for key in (1..=KEYS).map(BlockKey::Hash64) {
            let holder = index.holder(slot, &key, replica);
            counted.extend(holder.map(|holder| ((replica, key), holder.access_count)));
        }
    }
    for run in &runs {
        (1..=run.blocks as u64).for_each(|key| *all.entry((run.replica, BlockKey::Hash64(key))).or_default() += 1);
    }
    let delivered: Vec<_> = runs.into_iter().map(ranked).collect();
    Hit::new(slot, &chain, &delivered).into_iter().for_each(|hit| node.delivered(hit));
    counted
}

fn block(key: u64) -> ChainBlock {
    ChainBlock { key: BlockKey::Hash64(key), tokens: 16 }
}

fn count(index: &Index, slot: ScopeSlot, key: u64) -> u32 {
    let chain = RequestChain::Exact { key: BlockKey::Hash64(key) };
    let run = index.leading_runs(slot, &chain, 0).first().copied().unwrap();
    index.holder(slot, &BlockKey::Hash64(key), run.replica).unwrap().access_count
}

fn ranked(run: LeadingRun) -> RankedReplica {
    RankedReplica {
        replica: run.replica,
        replica_id: Arc::from("a"),
        address: Arc::from("10.0.0.1:80"),
        score: 1.0,
        matched_tokens: 16,
        matched_blocks: run.blocks,
        hit_probability: 1.0,
        tier: run.tier,
        data_parallel_rank: None,
    }
}

/// What one hit of this block at this replica adds, as another VM would send it.
fn batch(incarnation: Incarnation, replica: u32, key: u64) -> Vec<u8> {
    let replicas = vec![ReplicaCounts { replica: ReplicaSlot(replica), counts: vec![1] }];
    let hit = Counted { scope: ScopeSlot(1), keys: vec![BlockKey::Hash64(key)], replicas };
    Credits { incarnation, hits: vec![hit] }.encode()
}

#[test]
fn hits_of_all_vms_are_counted_once_by_everybody() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    pool.hit(1, 3);
    pool.hit(1, 3);
    pool.hit(2, 2);
    for _ in 0..2 {
        pool.tick_all(25);
        assert_eq!([1, 2].map(|vm| pool.counts(vm, 3)), [[3, 3, 2]; 2]);
        assert_eq!(pool.counted(metrics::CREDITS), 8);
    }
    // Of one commit, two shares in one block; and what the leader's own VM serves.
    pool.hit(1, 1);
    pool.hit(2, 3);
    pool.hit(0, 2);
    pool.tick_all(40);
    assert_eq!([0, 1, 2].map(|vm| pool.counts(vm, 3)), [[6, 5, 3]; 3]);
    pool.delta(vec![stored(&[1, 2, 3])]);
    pool.tick_all(1);
    assert_eq!([0, 1, 2].map(|vm| pool.counts(vm, 3)), [[6, 5, 3]; 3], "a new report keeps them");
    assert_eq!(pool.lost(), Vec::<String>::new());
}

#[test]
fn the_next_leader_goes_on_with_the_counts_and_with_what_is_in_the_queue() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    pool.hit(1, 3);
    pool.tick_all(25);
    pool.hit(1, 2);
    pool.hit(2, 1);
    pool.tick(1);
    pool.tick(2);
    assert_eq!(pool.queued(), 2);
    // The leader's VM is no more.
    pool.vms[0].on_done(&pool.host, 1);
    let before = pool.head().term;
    for _ in 0..30 {
        pool.tick(1);
        pool.tick(2);
    }
    assert_eq!(pool.head().term, before + 1);
    pool.hit(1, 3);
    pool.hit(2, 3);
    for _ in 0..30 {
        pool.tick(1);
        pool.tick(2);
    }
    assert_eq!([1, 2].map(|vm| pool.counts(vm, 3)), [[5, 4, 3]; 2]);
    assert_eq!((pool.lost(), pool.queued()), (vec![], 0));
}

#[test]
fn a_vm_that_starts_from_the_pages_has_the_counts() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    (0..4).for_each(|_| pool.hit(1, 2));
    pool.tick_all(25);
    for key in 4..=60 {
        pool.delta(vec![stored(&[key])]);
        pool.tick_all(1);
    }
    assert!(pool.head().first > 1, "the ring has gone round");
    pool.vms.push(Node::new(DOMAIN));
    assert_eq!(pool.counts(3, 4), [4, 4, 0, 0]);
}

#[test]
fn garbage_in_the_queue_is_counted_and_changes_nothing() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    let life = pool.head().incarnation;
    let good = batch(life, 1, 1);
    for message in [
        &b""[..],
        b"garbage",
        &good[..good.len() - 1],
        &[&good[..], b"x"].concat(),
        &Head::new(life, 1, 1, 1).encode(),
        &batch(Incarnation(life.0 - 1), 1, 1),
        &batch(life, 9, 1),
        &batch(life, 1, 99),
    ] {
        pool.enqueue(message);
    }
    pool.hit(1, 3);
    pool.tick_all(25);
    assert_eq!(pool.counts(2, 3), [1, 1, 1]);
    assert_eq!(pool.counted(&metrics::credit_batches_dropped("unreadable")), 5);
    assert_eq!(pool.counted(&metrics::credit_batches_dropped("other_log")), 1);
    assert_eq!(pool.counted(&metrics::credits_lost("not_held")), 2);
    assert_eq!(pool.counted(metrics::CREDITS), 3);
}

#[test]
fn nothing_piles_up_where_nobody_leads() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    pool.config.limits.lease_ticks = 20;
    for tick in 0..58 {
        pool.hit(1, 3);
        pool.tick(1);
        assert!(pool.queued() <= 21, "{} after {tick} ticks", pool.queued());
    }
    let before = pool.queued();
    // What this VM knows of the head is no sign of a leader: it never saw it change.
    pool.vms.push(Node::new(DOMAIN));
    for _ in 0..10 {
        pool.hit(3, 3);
        pool.tick(3);
    }
    assert_eq!(pool.queued(), before);
    pool.tick_all(40);
    assert_eq!([1, 2, 3].map(|vm| pool.counts(vm, 3)), [[68, 68, 68]; 3], "nor is it lost");
    assert_eq!(pool.queued(), 0);
}

#[test]
fn a_queue_that_a_leader_cannot_keep_up_with_is_emptied() {
    let mut pool = Pool::holding(&[1, 2, 3]);
    let life = pool.head().incarnation;
    // Every look at the clock takes as long as a tick may count: one part a tick.
    pool.host.0.look_ns.set(500_000);
    let mut most = 0;
    for _ in 0..300 {
        (0..5).for_each(|_| pool.enqueue(&batch(life, 1, 1)));
        pool.tick(0);
        most = most.max(pool.queued());
    }
    assert!((100..200).contains(&most), "{most} batches at the most");
    let dropped = pool.counted(&metrics::credit_batches_dropped("too_many"));
    let counted = pool.counted(metrics::CREDITS);
    assert!(dropped > 0 && counted > 0);
    assert_eq!(dropped + counted + pool.queued() as u64, 1_500);
    assert_eq!(u64::from(pool.counts(1, 1)[0]), counted);
}
