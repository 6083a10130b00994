//! Memory of the index, and what a change costs at 1 M and at 4 M pairs.
//!
//! Bytes are those asked of the allocator, counted; they are asserted. Times are medians of interleaved rounds: a round
//! takes the last events of both states out, block by block, and in again. With `--bench` at full size, else small.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]

#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
#[path = "support/counting.rs"]
mod counting;
#[path = "support/ours.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod ours;
#[path = "support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

use std::time::Instant;

use warmroute::index::runs::chain::PrefixHashes;
use warmroute::index::runs::{KeyRef, Runs};
use warmroute::observation::ReplicaSlot;
use workload::{Random, Request, State, Workload};

const ROUNDS: usize = 15;
const CHUNK: usize = 256;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let sizes = if full { [1_000_000, 4_000_000] } else { [20_000, 80_000] };
    let workload = Workload::trace().unwrap_or_else(|| Workload::generated(12_031));
    println!("{}: {}\n", workload.name, workload.shape());
    println!("| state | pairs | runs | B/pair, counted | B/pair, own account |");
    println!("|---|---|---|---|---|");
    for pairs in sizes {
        for replicas in [8, 64] {
            let state = workload.state(replicas, pairs);
            let (bytes, runs) = counted(|| ours::loaded(&state));
            report(&format!("{replicas} replicas, LRU"), bytes, &runs);
            assert!(bytes <= 32.0 * runs.pairs() as f64, "more than 32 bytes a pair");
            drop(runs);
            let (bytes, runs) = counted(|| credited(&state));
            report(&format!("{replicas} replicas, LFU, every request credited"), bytes, &runs);
            assert!(bytes <= 36.0 * runs.pairs() as f64, "more than 36 bytes a pair");
        }
        for (name, parents) in [("one event a block, with parents", true), ("one event a block, without", false)] {
            let (bytes, runs) = counted(|| block_by_block(pairs, parents));
            report(&format!("worst case: {name}"), bytes, &runs);
        }
        let (bytes, runs) = counted(|| holed(&workload.state(8, pairs)));
        report("8 replicas, two in five blocks evicted at random", bytes, &runs);
    }
    growth(&workload, sizes);
}

fn counted(make: impl FnOnce() -> Runs) -> (f64, Runs) {
    let before = counting::live();
    let runs = make();
    ((counting::live() - before) as f64, runs)
}

fn report(state: &str, bytes: f64, runs: &Runs) {
    let size = runs.size();
    let pairs = size.pairs as f64;
    println!("| {state} | {} | {} | {:.1} | {:.1} |", size.pairs, size.runs, bytes / pairs, size.bytes as f64 / pairs);
}

/// Every request hits once, and what it hits is credited: access counts differ wherever requests end.
fn credited(state: &State) -> Runs {
    let mut runs = ours::loaded(state);
    let mut found = Vec::new();
    for request in &state.requests {
        ours::look(&runs, &request.hashes, &mut found);
        let chain = PrefixHashes { hashes: &request.hashes, block_size: ours::BLOCK_SIZE };
        for run in &found {
            let blocks = run.blocks;
            runs.count(1, (ours::SCOPE, &chain), (run.replica, 0..blocks), |hits| hits + 1);
        }
    }
    runs
}

/// 8 replicas generate 100 prompts each at a time, a block at a time, every block at a time of its own.
fn block_by_block(pairs: usize, parents: bool) -> Runs {
    const PROMPTS: usize = 800;
    let length = pairs / PROMPTS;
    let prompts: Vec<Request> = (0..PROMPTS as u64).map(|seed| Request::apart(seed, length)).collect();
    let mut runs = Runs::new(1_024);
    for at in 0..length {
        for (number, prompt) in prompts.iter().enumerate() {
            let hashes = if parents { &prompt.hashes[..=at] } else { &prompt.hashes[at..=at] };
            let seen = ours::START_MS + (at * PROMPTS + number) as u64;
            ours::store(&mut runs, number as u32 % 8, seen, hashes, hashes.len() - 1);
        }
    }
    drop(prompts);
    assert_eq!(runs.pairs(), (length * PROMPTS) as u64);
    runs
}

/// Two in five of the blocks of each replica are gone, wherever they are.
fn holed(state: &State) -> Runs {
    let mut runs = ours::loaded(state);
    let mut random = Random(3);
    for event in &state.events {
        let hashes = &state.requests[event.request].hashes[event.from..];
        let gone: Vec<KeyRef<'_>> =
            hashes.iter().filter(|_| random.below(5) < 2).map(|hash| KeyRef::Hash(*hash)).collect();
        assert_eq!(runs.remove(1, ours::SCOPE, ReplicaSlot(event.replica), gone.iter().copied()), gone.len() as u64);
    }
    runs
}

/// A change at one size against the same at four times the size.
fn growth(workload: &Workload, sizes: [usize; 2]) {
    let states = sizes.map(|pairs| workload.state(8, pairs));
    let mut runs = [ours::loaded(&states[0]), ours::loaded(&states[1])];
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (which, state) in states.iter().enumerate() {
            let chunk = state.events.len().saturating_sub(CHUNK)..state.events.len();
            let start = Instant::now();
            let gone: u64 = chunk.clone().rev().map(|number| ours::remove_each(&mut runs[which], state, number)).sum();
            times[which][0].push(start.elapsed().as_nanos() as f64 / gone as f64);
            let start = Instant::now();
            let new: u64 = chunk.map(|number| ours::store_event(&mut runs[which], state, number)).sum();
            times[which][1].push(start.elapsed().as_nanos() as f64 / new as f64);
            assert_eq!((new, runs[which].pairs()), (gone, state.pairs as u64));
        }
    }
    println!("\n| change | ns/block at {} pairs | at {} | ratio | least at both | ratio |", sizes[0], sizes[1]);
    println!("|---|---|---|---|---|---|");
    for (which, what) in ["removal, a call a block", "ingest"].into_iter().enumerate() {
        let [small, large] = [0, 1].map(|size| {
            let mut rounds = times[size][which].clone();
            rounds.sort_unstable_by(f64::total_cmp);
            (rounds[rounds.len() / 2], rounds[0])
        });
        println!(
            "| {what} | {:.0} | {:.0} | {:.2} | {:.0}, {:.0} | {:.2} |",
            small.0,
            large.0,
            large.0 / small.0,
            small.1,
            large.1,
            large.1 / small.1
        );
    }
}
