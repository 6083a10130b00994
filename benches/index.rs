//! Time to look up, take in, remove and clear, in the index of runs and in a flat map probed block by block.
//!
//! Every benchmark asserts its answers. States are built from the conversation trace where `WARMROUTE_TRACE` names it,
//! else from the generated stand-in; the shape of both is printed. Sizes go by (block, replica) pairs. Beside published
//! crates: `benches/peers`. Memory, and 1 M against 4 M pairs: `benches/index_growth.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]

#[path = "support/flat.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod flat;
#[path = "support/ours.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod ours;
#[path = "support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flat::Flat;
use warmroute::index::LeadingRun;
use warmroute::index::runs::chain::Blocks;
use warmroute::index::runs::{KeyRef, Runs};
use warmroute::observation::{BlockKey, ReplicaSlot};
use warmroute::request::ChainBlock;
use workload::{Event, Random, Request, State, Workload};

const REPLICAS: u32 = 64;
const LENGTHS: [usize; 4] = [64, 625, 2_048, 6_250];
const HOLDERS: [u32; 3] = [1, 8, 64];
/// Chains that a lookup benchmark goes through in turn.
const CHAINS: usize = 32;
/// Events that an ingest or removal benchmark takes in and out again.
const CHUNK: usize = 256;

/// Sizes in pairs; a run as a test is satisfied with little.
fn sizes(of: &[usize]) -> Vec<usize> {
    if std::env::args().any(|argument| argument == "--bench") { of.to_vec() } else { vec![10_000] }
}

fn workload() -> Workload {
    Workload::trace().unwrap_or_else(|| Workload::generated(12_031))
}

/// Every request of the workload, in random order: most of what it needs is not in cache.
fn every_request(criterion: &mut Criterion) {
    let workload = workload();
    println!("{}: {}", workload.name, workload.shape());
    println!("generated: {}", Workload::generated(12_031).shape());
    let mut group = criterion.benchmark_group(format!("every_request/{}", workload.name));
    for pairs in sizes(&[1_000_000, 4_000_000]) {
        let state = workload.state(8, pairs);
        let (runs, flat) = (ours::loaded(&state), loaded_flat(&state));
        let mut order: Vec<usize> = (0..state.requests.len()).collect();
        Random(7).shuffle(&mut order);
        let mut out = Vec::new();
        for request in &state.requests {
            ours::look(&runs, &request.hashes, &mut out);
            let expected = flat.leading_runs(&request.hashes);
            let same = |(run, truth): (&LeadingRun, &flat::FlatRun)| {
                run.replica.0 == u32::from(truth.replica)
                    && run.matched_tokens == i64::from(truth.blocks * ours::BLOCK_SIZE)
                    && run.last_seen_ms == ours::START_MS + u64::from(truth.last_seen)
                    && run.tier == truth.tier
            };
            assert!(out.len() == expected.len() && out.iter().zip(&expected).all(same), "{out:?}, not {expected:?}");
        }
        let mut order = order.iter().cycle();
        group.bench_function(BenchmarkId::new("runs", pairs), |bencher| {
            bencher.iter(|| {
                ours::look(&runs, &state.requests[*order.next().unwrap()].hashes, &mut out);
                black_box(out.len())
            });
        });
        group.bench_function(BenchmarkId::new("flat", pairs), |bencher| {
            bencher.iter(|| flat.leading_runs(&state.requests[*order.next().unwrap()].hashes).len());
        });
    }
    group.finish();
}

/// Chains of some length at some holders, on top of a state of some size: a full hit, a hit of the first half, a miss.
fn lookups(criterion: &mut Criterion) {
    let workload = workload();
    for pairs in sizes(&[10_000, 100_000, 1_000_000, 4_000_000]) {
        let state = workload.state(REPLICAS, pairs);
        let mut runs = ours::loaded(&state);
        for length in LENGTHS {
            for holders in HOLDERS {
                let seed = (length as u64) << 32 | u64::from(holders) << 16;
                let chains: Vec<Request> =
                    (0..CHAINS as u64).map(|chain| Request::apart(seed | chain, length)).collect();
                for (chain, replica) in
                    chains.iter().flat_map(|chain| (0..holders).map(move |replica| (chain, replica)))
                {
                    ours::store(&mut runs, replica, ours::START_MS, &chain.hashes, 0);
                }
                lookup(criterion, &runs, &format!("lookup/{length}_blocks_{holders}_holders"), pairs, &chains, holders);
                let keys = |chain: &Request| chain.hashes.iter().map(|hash| KeyRef::Hash(*hash)).collect::<Vec<_>>();
                for (chain, replica) in
                    chains.iter().flat_map(|chain| (0..holders).map(move |replica| (chain, replica)))
                {
                    assert_eq!(runs.remove(1, ours::SCOPE, ReplicaSlot(replica), keys(chain)), length as u64);
                }
            }
        }
    }
}

fn lookup(criterion: &mut Criterion, runs: &Runs, name: &str, pairs: usize, chains: &[Request], holders: u32) {
    let mut group = criterion.benchmark_group(name);
    let half = |chain: &Request| {
        let hashes = &chain.hashes;
        let other = Request::apart(hashes[0], hashes.len());
        [&hashes[..hashes.len() / 2], &other.hashes[hashes.len() / 2..]].concat()
    };
    let cases: [(&str, Vec<Vec<u64>>, usize); 3] = [
        ("full", chains.iter().map(|chain| chain.hashes.clone()).collect(), chains[0].hashes.len()),
        ("half", chains.iter().map(half).collect(), chains[0].hashes.len() / 2),
        (
            "miss",
            (1..=CHAINS as u64).map(|seed| Request::apart(seed << 48, chains[0].hashes.len()).hashes).collect(),
            0,
        ),
    ];
    let mut out = Vec::new();
    for (case, requests, blocks) in &cases {
        let expected_holders = if *blocks == 0 { 0 } else { holders as usize };
        let mut next = requests.iter().cycle();
        group.bench_function(BenchmarkId::new(*case, pairs), |bencher| {
            bencher.iter(|| ours::look(runs, next.next().unwrap(), &mut out));
        });
        assert_eq!(out.len(), expected_holders);
        assert!(out.iter().all(|run| run.matched_tokens as usize == blocks * ours::BLOCK_SIZE as usize));
    }
    // The same blocks as a request that brought its keys along: compared one by one.
    let explicit: Vec<Vec<ChainBlock>> =
        cases[0].1.iter().map(|hashes| hashes.iter().map(explicit_block).collect()).collect();
    let mut next = explicit.iter().cycle();
    group.bench_function(BenchmarkId::new("full_explicit", pairs), |bencher| {
        bencher.iter(|| {
            let chain = Blocks { blocks: next.next().unwrap(), proven: false };
            runs.leading_runs(ours::SCOPE, &chain, 0, &mut out);
        });
    });
    assert_eq!(out.len(), holders as usize);
    group.finish();
}

fn explicit_block(hash: &u64) -> ChainBlock {
    ChainBlock { key: BlockKey::Hash64(*hash), tokens: ours::BLOCK_SIZE as i32 }
}

/// A chunk of events more, and taken out again one block at a time, at some size.
fn changes(criterion: &mut Criterion) {
    let workload = workload();
    for pairs in sizes(&[1_000_000, 4_000_000]) {
        let state = workload.state(8, pairs + pairs / 8);
        let chunk = state.events.len().saturating_sub(CHUNK)..state.events.len();
        let mut runs = Runs::new(1_024);
        let mut flat = Flat::default();
        for number in 0..chunk.start {
            ours::store_event(&mut runs, &state, number);
            flat.store(state.events[number].replica as u16, number as u32, of_event(&state, number));
        }
        let held = runs.pairs();
        let blocks: usize = chunk.clone().map(|number| of_event(&state, number).len()).sum();
        for (what, in_or_out) in [("ingest", true), ("removal", false)] {
            let mut group = criterion.benchmark_group(what);
            group.throughput(Throughput::Elements(blocks as u64));
            group.bench_function(BenchmarkId::new("runs", pairs), |bencher| {
                bencher.iter_custom(|times| {
                    let (mut entering, mut leaving) = (Duration::ZERO, Duration::ZERO);
                    for _ in 0..times {
                        let start = Instant::now();
                        let new: u64 = chunk.clone().map(|number| ours::store_event(&mut runs, &state, number)).sum();
                        entering += start.elapsed();
                        let start = Instant::now();
                        let gone: u64 =
                            chunk.clone().rev().map(|number| ours::remove_each(&mut runs, &state, number)).sum();
                        leaving += start.elapsed();
                        assert_eq!((new, gone, runs.pairs()), (blocks as u64, blocks as u64, held));
                    }
                    if in_or_out { entering } else { leaving }
                });
            });
            group.bench_function(BenchmarkId::new("flat", pairs), |bencher| {
                bencher.iter_custom(|times| {
                    let (mut entering, mut leaving) = (Duration::ZERO, Duration::ZERO);
                    for _ in 0..times {
                        let start = Instant::now();
                        for number in chunk.clone() {
                            flat.store(state.events[number].replica as u16, number as u32, of_event(&state, number));
                        }
                        entering += start.elapsed();
                        let start = Instant::now();
                        for number in chunk.clone().rev() {
                            let replica = state.events[number].replica as u16;
                            of_event(&state, number).iter().rev().for_each(|hash| flat.remove(replica, &[*hash]));
                        }
                        leaving += start.elapsed();
                    }
                    if in_or_out { entering } else { leaving }
                });
            });
            group.finish();
        }
    }
}

/// One replica of 64 is cleared; the sweep that gives the memory back is measured by the step.
fn clearing(criterion: &mut Criterion) {
    let workload = workload();
    let mut group = criterion.benchmark_group("clear");
    for pairs in sizes(&[1_000_000, 4_000_000]) {
        let state = workload.state(REPLICAS, pairs);
        let mut runs = ours::loaded(&state);
        let of_replica: Vec<usize> =
            (0..state.events.len()).filter(|number| state.events[*number].replica == 3).collect();
        let held: u64 = of_replica.iter().map(|number| of_event(&state, *number).len() as u64).sum();
        for (what, sweeping) in [("at_once", false), ("swept", true)] {
            group.bench_function(BenchmarkId::new(what, pairs), |bencher| {
                bencher.iter_custom(|times| {
                    let (mut clear, mut sweep) = (Duration::ZERO, Duration::ZERO);
                    for _ in 0..times {
                        let start = Instant::now();
                        assert_eq!(runs.clear(ReplicaSlot(3)), held);
                        clear += start.elapsed();
                        let start = Instant::now();
                        while !runs.sweep(1_000, |_, _, _| true, |_| true).complete {}
                        sweep += start.elapsed();
                        assert_eq!(runs.pairs(), state.pairs as u64 - held);
                        let again: u64 =
                            of_replica.iter().map(|number| ours::store_event(&mut runs, &state, *number)).sum();
                        assert_eq!(again, held);
                    }
                    if sweeping { sweep } else { clear }
                });
            });
        }
    }
    group.finish();
}

fn loaded_flat(state: &State) -> Flat {
    let mut flat = Flat::default();
    for number in 0..state.events.len() {
        flat.store(state.events[number].replica as u16, number as u32, of_event(state, number));
    }
    flat
}

fn of_event(state: &State, number: usize) -> &[u64] {
    let Event { request, from, .. } = state.events[number];
    &state.requests[request].hashes[from..]
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(250))
        .without_plots()
}

criterion_group! { name = benches; config = short(); targets = every_request, changes, clearing, lookups }
criterion_main!(benches);
