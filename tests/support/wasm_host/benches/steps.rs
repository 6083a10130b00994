//! The processor time of background steps: what ticks and stream messages take in each VM while a pool of 64 replicas changes.
//!
//! Wall-clock times of the same steps in Envoy hold whatever else the machine does in the middle of them. Here the VMs run one
//! after the other on one thread, and clock and times are that thread's processor time, by which the module's own budgets
//! are measured too. What differs from Envoy: Cranelift compiles the module, not V8, and the host calls are this host's.
//!
//! `PAIRS` (1,000,000), `CHANGES` a second (50,000), `SECONDS` (30): `make bench` has the command.

#![allow(clippy::unwrap_used, reason = "what goes wrong ends it")]

#[path = "../tests/hub/mod.rs"]
mod hub;

use hub::{BLOCKS, CONFIGURATION, Pool, body};
use wasm_host::{Process, module_path, thread_time_ns};

const REPLICAS: u32 = 64;
/// The one on the main thread, which leads, and two workers.
const VMS: usize = 3;
/// Blocks that an engine stores or removes at once.
const EVENT: u32 = 20;
/// Requests a second to each worker: only a VM that serves follows the log.
const REQUESTS: u64 = 100;
/// Messages a second: the hub sends what there is as soon as the last message is out.
const MESSAGES: u32 = 500;
const MS_NS: u64 = 1_000_000;

/// What one kind of step took, in ns.
#[derive(Default)]
struct Times(Vec<u64>);

/// What happened, by kind of step.
#[derive(Default)]
struct Steps {
    leader_messages: Times,
    leader_ticks: Times,
    follower_ticks: Times,
    requests: Times,
}

struct Bench<'p> {
    pool: Pool<'p>,
    /// Unix time in ns by the simulated clock, without what the thread has used since it was set.
    now_ns: u64,
    /// When each VM ticks next.
    ticks_ns: [u64; VMS],
    steps: Steps,
    /// What is asked for.
    body: Vec<u8>,
}

// === impl Times ===

impl Times {
    fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let before_ns = thread_time_ns();
        let done = act();
        self.0.push(thread_time_ns() - before_ns);
        done
    }

    fn row(&self, kind: &str) -> String {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize] / 1_000;
        let short = sorted.iter().filter(|time| **time <= MS_NS).count() as f64 / sorted.len() as f64 * 100.0;
        let (p50, p99, p999, most) = (at(0.5), at(0.99), at(0.999), at(1.0));
        format!("| {kind} | {} | {p50} | {p99} | {p999} | {most} | {short:.3} |", sorted.len())
    }
}

// === impl Bench ===

impl Bench<'_> {
    /// So much simulated time, with what the hub has to tell in each of its messages.
    fn run(&mut self, ms: u64, messages_a_second: u32, mut facts: impl FnMut(&mut Pool<'_>, u64)) {
        let every_ms = 1_000 / u64::from(messages_a_second.max(1));
        for passed_ms in 0..ms {
            self.now_ns += MS_NS;
            self.pool.process.run_clock(self.now_ns);
            if passed_ms % every_ms == 0 {
                let pool = &mut self.pool;
                self.steps.leader_messages.time(|| facts(pool, passed_ms / every_ms));
            }
            for at in 0..VMS {
                if self.ticks_ns[at] > self.now_ns {
                    continue;
                }
                let (root, vm) = self.pool.worker(at);
                let times = if at == 0 { &mut self.steps.leader_ticks } else { &mut self.steps.follower_ticks };
                times.time(|| vm.tick(root).unwrap());
                self.ticks_ns[at] = self.now_ns + u64::from(vm.tick_period_ms(root).max(1)) * MS_NS;
            }
            if passed_ms % (1_000 / REQUESTS) == 0 {
                for at in 1..VMS {
                    let pool = &mut self.pool;
                    self.steps.requests.time(|| pool.ask(at, &self.body).unwrap());
                }
            }
            self.pool.serve().unwrap();
        }
    }

    fn print(&mut self, phase: &str) {
        println!("\n{phase}\n");
        println!(
            "| step | count | p50 us | p99 us | p99.9 us | most us | up to 1 ms % |\n|---|---|---|---|---|---|---|"
        );
        let steps = std::mem::take(&mut self.steps);
        let mut all = Times::default();
        for (kind, times) in [
            ("message, leader", steps.leader_messages),
            ("tick, leader", steps.leader_ticks),
            ("tick, follower", steps.follower_ticks),
        ] {
            println!("{}", times.row(kind));
            all.0.extend(times.0);
        }
        println!("{}", all.row("all of these"));
        println!("{}", steps.requests.row("request, with what it does to catch up"));
    }
}

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

fn main() {
    let (pairs, changes, seconds) = (setting("PAIRS", 1_000_000), setting("CHANGES", 50_000), setting("SECONDS", 30));
    let process = Process::new(&module_path());
    let pool = Pool::of_replicas(&process, VMS, CONFIGURATION, REPLICAS).unwrap();
    let now_ns = process.now_ns();
    let mut bench = Bench { pool, now_ns, ticks_ns: [now_ns; VMS], steps: Steps::default(), body: body(BLOCKS) };
    // The main thread's VM ticks first, and so leads.
    bench.run(4_000, MESSAGES, |_, _| {});
    let prompt = |number: u32| hub::token_ids(1_000 + number, 400);
    let prompts = pairs / 400;
    let mut told = 0;
    bench.run(u64::from(prompts) * 8, 125, |pool, _| {
        pool.tell_replica_of(told % REPLICAS + 1, &prompt(told)).unwrap();
        told += 1;
    });
    bench.run(20_000, MESSAGES, |pool, _| pool.beat().unwrap());
    let held = process.gauge("warmroute_index_pairs");
    let known: Vec<_> = (1..VMS).map(|at| bench.pool.ask(at, &body(BLOCKS)).unwrap().code).collect();
    assert_eq!(known, vec![Some("PREFIX_MATCH".to_owned()); VMS - 1]);
    println!("{held} pairs, {} MiB a VM", bench.pool.vms[1].1.memory_bytes() >> 20);
    assert!(held >= i64::from(pairs / 400 * 400), "{held} pairs are held of {pairs}");
    bench.steps = Steps::default();
    bench.run(u64::from(seconds) * 1_000, MESSAGES, |pool, _| pool.beat().unwrap());
    bench.print("idle");
    // Each message: so many events, of which half store the next blocks of a replica, half remove those stored longest ago.
    let events = changes / MESSAGES / EVENT;
    let mut event = 0_u32;
    bench.run(u64::from(seconds) * 1_000, MESSAGES, |pool, _| {
        let facts = (0..events).flat_map(|_| {
            event += 1;
            let (pair, lag) = (event / 2, 3 * REPLICAS);
            let of = |number: u32| (number % REPLICAS + 1, hub::token_ids(1_000_000 + number, EVENT));
            match event % 2 {
                0 => hub::stored(of(pair).0, &of(pair).1),
                _ => hub::removed(of(pair.saturating_sub(lag)).0, &of(pair.saturating_sub(lag)).1),
            }
        });
        let facts = facts.collect();
        pool.delta(facts).unwrap();
    });
    bench.print(&format!("{} changes a second", events * EVENT * MESSAGES));
    for at in 1..VMS {
        let known = bench.pool.ask(at, &body(BLOCKS)).unwrap();
        assert_eq!(known.code.as_deref(), Some("PREFIX_MATCH"), "{known:?}");
    }
}
