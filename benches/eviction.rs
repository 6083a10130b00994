//! What evicting costs at the cap, at 1 M and at 4 M pairs: what the leader does for it beside writing the log.
//!
//! A step asks the order for the pairs that go first, takes them out of the index, and lets the order take note, as the
//! leader does with each commit. What goes is checked: what was reported longest ago first. Times are those of the thread, where the
//! kernel tells them; a step's longest is by the wall clock. With `--bench` at full size, else small.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]

#[path = "support/own_time.rs"]
mod own_time;
#[path = "support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

use std::collections::BTreeMap;
use std::time::Instant;

use own_time::OwnTime;
use warmroute::index::Index;
use warmroute::index::victims::{Order, Prefixes, Victim};
use warmroute::observation::{BlockKey, Member, Observation, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock};
use workload::{Event, State, Workload};

const REPLICAS: u32 = 64;
const SCOPE: ScopeSlot = ScopeSlot(1);
const TENANT: &str = "t";
const START_MS: u64 = 1_700_000_000_000;
/// Pairs of a step, as the leader commits them.
const AT_ONCE: usize = 512;
const STEPS: usize = 40;

/// Which bound is kept.
#[derive(Clone, Copy)]
enum Kept {
    CapLru,
    CapLfu,
    Quota,
}

/// What a bound costs at one size.
struct Cost {
    /// Median and least of the steps, ns a pair.
    median_ns: f64,
    least_ns: f64,
    longest_us: f64,
    entries: usize,
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let sizes = if full { [1_000_000, 4_000_000] } else { [20_000, 80_000] };
    let workload = Workload::trace().unwrap_or_else(|| Workload::generated(12_031));
    println!("{}: {REPLICAS} replicas, at most {STEPS} steps of {AT_ONCE} pairs\n", workload.name);
    println!(
        "| evicting for | ns a pair at {} | at {} | ratio | least at both | ratio | longest step, us | entries of the order |",
        sizes[0], sizes[1]
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, kept) in [("the cap, LRU", Kept::CapLru), ("the cap, LFU", Kept::CapLfu), ("a quota", Kept::Quota)] {
        let [small, large] = sizes.map(|pairs| cost(&workload.state(REPLICAS, pairs), kept));
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} | {:.0}, {:.0} | {:.2} | {:.0}, {:.0} | {}, {} |",
            small.median_ns,
            large.median_ns,
            large.median_ns / small.median_ns,
            small.least_ns,
            large.least_ns,
            large.least_ns / small.least_ns,
            small.longest_us,
            large.longest_us,
            small.entries,
            large.entries
        );
    }
}

fn cost(state: &State, kept: Kept) -> Cost {
    let mut index = loaded(state);
    let (mut order, mut prefixes) = (Order::default(), Prefixes::new([String::from(TENANT)].iter()));
    let is_lfu = |_: &Scope| matches!(kept, Kept::CapLfu);
    while !order.build(&index, usize::MAX, is_lfu) || !prefixes.build(&index, usize::MAX) {}
    index.take_journal();
    let entries = if matches!(kept, Kept::Quota) { prefixes.len() } else { order.len() };
    let (mut times, mut longest_us, mut last_ms) = (Vec::new(), 0f64, 0);
    for step in 0..STEPS.min(state.pairs / (2 * AT_ONCE)) {
        let before = index.pairs();
        let (wall, own) = (Instant::now(), OwnTime::now());
        let victims = match kept {
            Kept::CapLru | Kept::CapLfu => order.next(&index, AT_ONCE, |_| true),
            Kept::Quota => prefixes.next(&index, TENANT, AT_ONCE, AT_ONCE),
        };
        let oldest_ms = first_seen(&index, &victims, kept);
        let pairs = victims.len();
        for removed in removals(victims) {
            index.apply(2 + step as u64, removed);
        }
        let changes = index.take_journal();
        order.note(&index, &changes, is_lfu);
        prefixes.note(&index, &changes);
        times.push(own.elapsed_ns() / pairs as f64);
        longest_us = longest_us.max(wall.elapsed().as_secs_f64() * 1e6);
        assert_eq!(before - index.pairs(), pairs as u64, "all that was named goes");
        assert!(pairs >= AT_ONCE && last_ms <= oldest_ms, "the oldest goes first");
        last_ms = oldest_ms;
    }
    times.sort_unstable_by(f64::total_cmp);
    Cost { median_ns: times[times.len() / 2], least_ns: times[0], longest_us, entries }
}

/// When the first of the victims was last reported, where a quota is kept by anyone.
fn first_seen(index: &Index, victims: &[Victim], kept: Kept) -> u64 {
    let first = victims.first().unwrap();
    match kept {
        Kept::Quota => index.holders(first.scope, &first.key).map(|holder| holder.last_seen_ms).max().unwrap(),
        _ => index.holder(first.scope, &first.key, first.replica).unwrap().last_seen_ms,
    }
}

/// What is of one replica goes together.
fn removals(victims: Vec<Victim>) -> impl Iterator<Item = Observation> {
    let mut gone: BTreeMap<(ReplicaSlot, ScopeSlot), Vec<BlockKey>> = BTreeMap::new();
    for Victim { scope, key, replica } in victims {
        gone.entry((replica, scope)).or_default().push(key);
    }
    gone.into_iter().map(|((replica, scope), keys)| Observation::Removed { replica, scope, keys })
}

fn loaded(state: &State) -> Index {
    let mut index = Index::new(4_096);
    index.take_journal();
    let scope =
        Scope { tenant_id: TENANT.into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() };
    index.apply(1, Observation::Scope { slot: SCOPE, scope });
    for number in 0..REPLICAS {
        let (replica, member) = (ReplicaSlot(number), Member::new(TENANT, "m", format!("r{number}")));
        index.apply(
            1,
            Observation::ReplicaUp {
                replica,
                member,
                address: format!("10.0.0.{number}:80"),
                data_parallel_rank: None,
            },
        );
        index.apply(1, Observation::ReplicaComplete { replica });
    }
    for (number, Event { request, from, replica }) in state.events.iter().enumerate() {
        let hashes = &state.requests[*request].hashes;
        let block = |at: usize| StoredBlock { key: BlockKey::Hash64(hashes[at]), token_count: 16 * (at as u32 + 1) };
        let stored = Stored {
            replica: ReplicaSlot(*replica),
            scope: SCOPE,
            last_seen_ms: START_MS + number as u64,
            parent: from.checked_sub(1).map(|before| BlockKey::Hash64(hashes[before])),
            chained: true,
            page: (number / 64 % 4_096) as u16,
            blocks: (*from..hashes.len()).map(block).collect(),
            ..Stored::default()
        };
        index.apply(1, Observation::Stored(stored));
    }
    index.take_journal();
    assert_eq!(index.pairs(), state.pairs as u64);
    index
}
