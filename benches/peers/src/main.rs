//! The index beside `kv-index`, `dynamo-kv-router` and a flat map: one state, one process, one thread.
//!
//! In: the conversation trace (`WARMROUTE_TRACE`) or the generated stand-in, on 8 replicas. Out: a table of nanoseconds a
//! block (ingest, removal), bytes a pair, and microseconds a lookup of every request in random order. Every design
//! answers every request as the flat map does before anything is timed, in blocks per replica. Rounds go over the
//! designs in turn, so that whatever else the machine does falls on all alike; a figure is the median of its rounds.
//!
//! What differs: the peers look up content hashes and chain on their own where they need to, ours gets ready prefix
//! hashes (chaining them costs 3.5 ns a block, reported as a row); the peers do not keep last-seen, tier or token
//! counts, and answer with a hash map, ours answers with runs, oldest time and coldest tier. `kv-index` is also measured
//! through `score_into`, which fills no map. Its ingest goes through a block map for each worker that removal needs, as
//! the engine's own keys differ from ours; here both are the same hash. The radix tree takes its request by value: the
//! copy is made outside the time, freeing it is inside.

#[path = "../../support/counting.rs"]
mod counting;
#[path = "../../support/flat.rs"]
mod flat;
#[path = "../../support/ours.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod ours;
#[path = "../../support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

mod designs;

use std::time::{Duration, Instant};

use designs::{Design, all};
use warmroute::fingerprint::{ContentHash, PrefixHash};
use workload::{Random, State, Workload};

const REPLICAS: u32 = 8;
/// Events undone at the end: first these many in one call each, then as many a block at a time.
const REMOVED_EVENTS: usize = 1_500;

/// Figures of one design, a value a round.
#[derive(Default)]
struct Figures {
    ingest_ns: Vec<f64>,
    chunk_ns: Vec<f64>,
    remove_ns: Vec<f64>,
    remove_each_ns: Vec<f64>,
    bytes: f64,
    mean_us: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    /// The same with the request in cache, as it is when its hashes have just been computed.
    hot_mean_us: Vec<f64>,
    hot_p50_us: Vec<f64>,
    hot_p99_us: Vec<f64>,
}

fn main() {
    let rounds = std::env::var("ROUNDS").ok().map_or(5, |rounds| rounds.parse().expect("ROUNDS: a number"));
    let pairs = std::env::var("PAIRS").ok().map_or(usize::MAX, |pairs| pairs.parse().expect("PAIRS: a number"));
    let workload = Workload::trace().unwrap_or_else(|| Workload::generated(12_031));
    println!("{}: {}", workload.name, workload.shape());
    let state = workload.state(REPLICAS, pairs);
    println!("{} events, {} pairs, {} replicas, {rounds} rounds\n", state.events.len(), state.pairs, REPLICAS);
    let order = order(&state);
    let mut figures: Vec<Figures> = all().iter().map(|_| Figures::default()).collect();
    let mut loaded = Vec::new();
    for (make, figures) in all().into_iter().zip(&mut figures) {
        let before = counting::live();
        let mut design = make();
        load(&mut *design, &state, figures);
        figures.bytes = (counting::live() - before) as f64;
        loaded.push(design);
    }
    check(&mut loaded, &state);
    for _ in 0..rounds {
        for (design, figures) in loaded.iter_mut().zip(&mut figures) {
            look(&mut **design, &state, &order, figures);
        }
    }
    for (design, figures) in loaded.iter_mut().zip(&mut figures) {
        undo(&mut **design, &state, figures);
    }
    let names: Vec<&str> = loaded.iter().map(|design| design.name()).collect();
    drop(loaded);
    for _ in 1..rounds {
        for (make, figures) in all().into_iter().zip(&mut figures) {
            let mut design = make();
            load(&mut *design, &state, figures);
            undo(&mut *design, &state, figures);
        }
    }
    print(&names, &figures, &state);
    println!("\nchaining content hashes into prefix hashes: {:.2} ns a block", chaining_ns(&state));
}

fn order(state: &State) -> Vec<usize> {
    let mut order: Vec<usize> = (0..state.requests.len()).collect();
    Random(7).shuffle(&mut order);
    order
}

fn load(design: &mut dyn Design, state: &State, figures: &mut Figures) {
    let (mut total, mut blocks) = (Duration::ZERO, 0);
    let mut chunks = Vec::new();
    for first in (0..state.events.len()).step_by(256) {
        let events = first..(first + 256).min(state.events.len());
        design.prepare(state, events.clone());
        let of_chunk: usize = state.events[events.clone()]
            .iter()
            .map(|event| state.requests[event.request].hashes.len() - event.from)
            .sum();
        let start = Instant::now();
        design.store(state, events);
        let took = start.elapsed();
        total += took;
        blocks += of_chunk;
        chunks.push(took.as_nanos() as f64 / of_chunk as f64);
    }
    design.prepare(state, 0..0);
    figures.ingest_ns.push(total.as_nanos() as f64 / blocks as f64);
    figures.chunk_ns.push(median(&mut chunks));
}

fn undo(design: &mut dyn Design, state: &State, figures: &mut Figures) {
    let last = state.events.len();
    let middle = last.saturating_sub(REMOVED_EVENTS);
    let first = middle.saturating_sub(REMOVED_EVENTS);
    figures.remove_ns.push(removal_ns(design, state, middle..last, false));
    figures.remove_each_ns.push(removal_ns(design, state, first..middle, true));
}

fn removal_ns(design: &mut dyn Design, state: &State, events: std::ops::Range<usize>, each: bool) -> f64 {
    let (mut total, mut blocks) = (Duration::ZERO, 0);
    for number in events.rev() {
        let event = state.events[number];
        design.prepare_removal(state, number, each);
        let start = Instant::now();
        design.remove(state, number, each);
        total += start.elapsed();
        blocks += state.requests[event.request].hashes.len() - event.from;
    }
    total.as_nanos() as f64 / blocks as f64
}

fn check(loaded: &mut [Box<dyn Design>], state: &State) {
    let (first, others) = loaded.split_first_mut().expect("the flat map comes first");
    for number in 0..state.requests.len() {
        let expected = first.answer(state, number);
        assert!(!expected.is_empty());
        for design in others.iter_mut() {
            assert_eq!(design.answer(state, number), expected, "{} on request {number}", design.name());
        }
    }
}

/// Every request in random order: all at once, each timed, and each timed with the request in cache.
fn look(design: &mut dyn Design, state: &State, order: &[usize], figures: &mut Figures) {
    design.copy_requests(state, order);
    let start = Instant::now();
    let found: u64 = order.iter().map(|number| design.look(state, *number)).sum();
    figures.mean_us.push(start.elapsed().as_nanos() as f64 / 1e3 / order.len() as f64);
    assert!(found > 0);
    for hot in [false, true] {
        design.copy_requests(state, order);
        let mut each: Vec<f64> = order.iter().map(|number| timed_us(design, state, *number, hot)).collect();
        each.sort_unstable_by(f64::total_cmp);
        let (p50, p99) = (each[each.len() / 2], each[each.len() * 99 / 100]);
        if hot {
            // The slowest hundredth is mostly the machine doing something else.
            let kept = &each[..each.len() * 99 / 100];
            figures.hot_mean_us.push(kept.iter().sum::<f64>() / kept.len() as f64);
            figures.hot_p50_us.push(p50);
            figures.hot_p99_us.push(p99);
        } else {
            figures.p50_us.push(p50);
            figures.p99_us.push(p99);
        }
    }
}

fn timed_us(design: &mut dyn Design, state: &State, number: usize, hot: bool) -> f64 {
    if hot {
        design.read_request(state, number);
    }
    let start = Instant::now();
    std::hint::black_box(design.look(state, number));
    start.elapsed().as_nanos() as f64 / 1e3
}

fn chaining_ns(state: &State) -> f64 {
    let start = Instant::now();
    let mut blocks = 0;
    for request in &state.requests {
        let last =
            request.contents.iter().fold(PrefixHash(0), |parent, content| parent.extended_by(ContentHash(*content)));
        std::hint::black_box(last);
        blocks += request.contents.len();
    }
    start.elapsed().as_nanos() as f64 / blocks as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print(names: &[&str], figures: &[Figures], state: &State) {
    let of = |values: &[f64]| median(&mut values.to_vec());
    let least = |values: &[f64]| values.iter().copied().fold(f64::MAX, f64::min);
    println!("| lookup, us | mean | least round | p50 | p99 | request in cache: mean of 99 % | p50 | p99 |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, figures) in names.iter().zip(figures) {
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            of(&figures.mean_us),
            least(&figures.mean_us),
            of(&figures.p50_us),
            of(&figures.p99_us),
            of(&figures.hot_mean_us),
            of(&figures.hot_p50_us),
            of(&figures.hot_p99_us),
        );
    }
    println!(
        "\n| ns a block | ingest | least round | chunk median | M blocks/s | removal, a call an event | least | a call a block | least | B/pair |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (name, figures) in names.iter().zip(figures) {
        let ingest = of(&figures.ingest_ns);
        println!(
            "| {name} | {ingest:.0} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} |",
            least(&figures.ingest_ns),
            of(&figures.chunk_ns),
            1e3 / ingest,
            of(&figures.remove_ns),
            least(&figures.remove_ns),
            of(&figures.remove_each_ns),
            least(&figures.remove_each_ns),
            figures.bytes / state.pairs as f64,
        );
    }
}
