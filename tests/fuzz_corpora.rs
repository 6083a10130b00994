//! A short run of every fuzz target in stable Rust: the kept corpora, and seeded mutations of them, on the stack that a
//! VM has and within the memory that an input pays for. `make fuzz` looks further; see `fuzz/README.md`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unsafe_code,
    reason = "a failing test says so by panicking, helpers included; the allocator counts"
)]

#[path = "support/allocations.rs"]
mod allocations;
#[path = "support/fuzz/mod.rs"]
mod fuzz;
#[path = "support/random.rs"]
mod random;
#[path = "support/small_stack.rs"]
mod small_stack;

use small_stack::on_a_small_stack;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fuzz::vms::fleet::Fleet;
use fuzz::vms::proxy::Proxy;
use random::Random;
use warmroute::config::FilterConfig;
use warmroute::flow::follower::View;
use warmroute::flow::keys::Keys;
use warmroute::host::{Cas, Host};
use warmroute::index::log::{Head, Incarnation, Page};

/// Mutations of the corpus that a target is run over, the corpus as it is apart.
const MUTATIONS: usize = 300;
/// The longest input that is made.
const MAX_INPUT_BYTES: usize = 16 << 10;
/// What an execution may take at a time: what a target stands on, and what a byte of its input pays for.
const FIXED_BYTES: usize = 8 << 20;
const BYTES_A_BYTE: usize = 512;
/// Bytes that mean something in one of the formats.
const TOKENS: [&[u8]; 18] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\xff",
    b"\0",
    b"-1",
    b"1e999",
    b"\\ud800",
    b"{%",
    b"%}",
    b"null",
    b"\n",
    b"\xff\xff\xff\xff\x0f",
];

/// Runs a target over its corpus and mutations of it; the number of executions.
fn run(name: &'static str, target: fn(&[u8])) {
    let corpus = corpus(name);
    let test = move || {
        // Once for what a target makes and keeps.
        execute(name, target, &corpus[0], usize::MAX);
        let mut random = Random(name.len() as u64);
        for input in &corpus {
            execute(name, target, input, FIXED_BYTES + BYTES_A_BYTE * input.len());
        }
        for _ in 0..MUTATIONS {
            let input = mutated(&mut random, &corpus);
            execute(name, target, &input, FIXED_BYTES + BYTES_A_BYTE * input.len());
        }
    };
    on_a_small_stack(test);
}

fn execute(name: &str, target: fn(&[u8]), input: &[u8], allowed_bytes: usize) {
    let mut outcome = Ok(());
    let peak = allocations::peak_of(|| outcome = catch_unwind(AssertUnwindSafe(|| target(input))));
    assert!(outcome.is_ok(), "{name} panics at {:?}", String::from_utf8_lossy(input));
    assert!(peak as usize <= allowed_bytes, "{name} takes {peak} bytes for {:?}", String::from_utf8_lossy(input));
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// One of the corpus with up to eight changes.
fn mutated(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len() as u64) as usize].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(input.len() as u64 + 1) as usize;
        let end = (at + random.below(32) as usize).min(input.len());
        match random.below(6) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next() as u8,
            2 => drop(input.splice(at..at, random.pick(&TOKENS).iter().copied())),
            3 => drop(input.drain(at..end)),
            4 => {
                let repeated = input[at..end].repeat(random.below(64) as usize);
                input.splice(at..at, repeated);
            }
            _ => {
                let other = &corpus[random.below(corpus.len() as u64) as usize];
                let from = random.below(other.len() as u64 + 1) as usize;
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

#[test]
fn configurations() {
    run("config", fuzz::config);
}

#[test]
fn packages() {
    run("package", fuzz::package);
}

#[test]
fn requests() {
    run("request", fuzz::request);
}

#[test]
fn values_in_shared_data() {
    run("shared_data", fuzz::shared_data);
}

#[test]
fn messages_of_the_stream() {
    run("stream", fuzz::stream);
}

#[test]
fn templates() {
    run("template", fuzz::template);
}

#[test]
fn tokenizers() {
    run("tokenizer", fuzz::tokenizer);
}

#[test]
fn responses() {
    run("usage", fuzz::usage);
}

#[cfg(feature = "native")]
#[test]
fn engines_events() {
    run("engine_events", fuzz::engine_events);
}

#[cfg(feature = "native")]
#[test]
fn policies() {
    run("policies", fuzz::policies);
}

/// That the checks above can fail.
#[test]
fn a_panic_and_an_allocation_that_nothing_pays_for_are_found() {
    let found = |target: fn(&[u8])| catch_unwind(|| execute("planted", target, b"\xff\xff\xff\x7f", 1 << 20)).is_err();
    assert!(found(|input| assert!(input.is_empty())));
    assert!(found(|input| drop(vec![0_u8; input.len() << 20])));
    assert!(!found(|input| drop(input.to_vec())));
}

/// Found by `shared_data`: pages that are true of a later sequence than the head's last were served, thrown away and read
/// again for as long as the request had time.
#[test]
fn pages_ahead_of_the_head_are_not_read_again_and_again() {
    let config = FilterConfig::from_json(br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}]}"#).unwrap();
    let keys = Keys::new(&config.domain());
    let mut fleet = Fleet::new(Proxy::at(1_700_000_000_000), config, 1);
    let incarnation = Incarnation(7);
    let head = Head { last: 300, ..Head::new(incarnation, 1, 3, 8) };
    fleet.proxy.shared_set(&keys.head(), &Head { first: 290, complete: true, ..head.clone() }.encode(), Cas(0));
    for number in 0..3 {
        let page = Page { incarnation, number, as_of: 301, records: Vec::new() };
        fleet.proxy.shared_set(&keys.page(number), &page.encode(), Cas(0));
    }
    // The clock stands still: without an end of its own, this has none.
    assert!(matches!(fleet.ask(0).view, View::CatchingUp));
    fleet.proxy.shared_set(&keys.head(), &Head { first: 290, last: 301, complete: true, ..head }.encode(), Cas(0));
    assert!(matches!(fleet.ask(0).view, View::Index(_)));
}
