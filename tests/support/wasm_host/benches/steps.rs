//! The processor time of background steps: what ticks and stream messages take in each VM while a pool of 64 replicas changes.
//!
//! Wall-clock times of the same steps in Envoy hold whatever else the machine does in the middle of them. Here the VMs run one
//! after the other on one thread, and clock and times are that thread's processor time, by which the module's own budgets
//! are measured too. What differs from Envoy: Cranelift compiles the module, not V8, and the host calls are this host's.
//!
//! `SECONDS` (20) a phase, `CHANGES` a second (50,000): `make bench` has the command.

#![allow(clippy::unwrap_used, reason = "what goes wrong ends it")]

#[path = "../tests/hub/mod.rs"]
mod hub;

use hub::{BLOCKS, Pool, body};
use warmroute::observation::Observation;
use wasm_host::{Process, module_path, thread_time_ns};

/// Pairs held, in two pools that are compared.
const SIZES: [u32; 2] = [1_000_000, 4_000_000];
/// Blocks of the prompts that they hold.
const LOADED: u32 = 400;
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
    stored: Times,
    removed: Times,
    beats: Times,
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

    fn mean_us(&self) -> f64 {
        self.0.iter().sum::<u64>() as f64 / self.0.len() as f64 / 1_000.0
    }

    fn row(&self, kind: &str) -> String {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize] / 1_000;
        let short = sorted.iter().filter(|time| **time <= MS_NS).count() as f64 / sorted.len() as f64 * 100.0;
        let (p50, p99, p999, most) = (at(0.5), at(0.99), at(0.999), at(1.0));
        let mean = self.mean_us();
        format!("| {kind} | {} | {mean:.1} | {p50} | {p99} | {p999} | {most} | {short:.3} |", sorted.len())
    }
}

// === impl Bench ===

impl Bench<'_> {
    /// So much simulated time, with what the hub has to tell in each of its messages; that it lives if there is nothing.
    fn run(&mut self, ms: u64, messages_a_second: u32, mut facts: impl FnMut(u64, u64) -> Vec<Observation>) {
        let every_ms = 1_000 / u64::from(messages_a_second.max(1));
        for passed_ms in 0..ms {
            self.now_ns += MS_NS;
            self.pool.process.run_clock(self.now_ns);
            if passed_ms % every_ms == 0 {
                let facts = facts(passed_ms / every_ms, self.now_ns / MS_NS);
                let times = match facts.first() {
                    Some(Observation::Stored(_)) => &mut self.steps.stored,
                    Some(_) => &mut self.steps.removed,
                    None => &mut self.steps.beats,
                };
                let pool = &mut self.pool;
                times.time(|| if facts.is_empty() { pool.beat() } else { pool.delta(facts) }).unwrap();
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

    /// Prints the phase's times. Returns the mean time of all background steps for each of so many changes, in ns.
    fn print(&mut self, phase: &str, changes: u32) -> f64 {
        println!("\n{phase}\n");
        println!("| step | count | mean us | p50 us | p99 us | p99.9 us | most us | up to 1 ms % |");
        println!("|---|---|---|---|---|---|---|---|");
        let steps = std::mem::take(&mut self.steps);
        let (mut all, mut leader_ns) = (Times::default(), 0);
        for (kind, times) in [
            ("leader: message, stored", steps.stored),
            ("leader: message, removed", steps.removed),
            ("leader: heartbeat", steps.beats),
            ("leader: tick", steps.leader_ticks),
            ("follower: tick", steps.follower_ticks),
        ] {
            if times.0.is_empty() {
                continue;
            }
            println!("{}", times.row(kind));
            leader_ns += if kind.starts_with("leader") { times.0.iter().sum::<u64>() } else { 0 };
            all.0.extend(times.0);
        }
        println!("{}", all.row("all of these"));
        println!("{}", steps.requests.row("request, with what it does to catch up"));
        leader_ns as f64 / f64::from(changes.max(1))
    }

    /// Waits until nothing is left to do, and forgets what was measured.
    fn rest(&mut self) {
        self.run(20_000, MESSAGES, |_, _| Vec::new());
        self.steps = Steps::default();
    }
}

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

/// A pool that holds `pairs`, of which each replica has its share.
fn loaded<'p>(process: &'p Process, pairs: u32, configuration: &str) -> Bench<'p> {
    let pool = Pool::of_replicas(process, VMS, configuration, REPLICAS).unwrap();
    let now_ns = process.now_ns();
    let mut bench = Bench { pool, now_ns, ticks_ns: [now_ns; VMS], steps: Steps::default(), body: body(BLOCKS) };
    // The main thread's VM ticks first, and so leads.
    bench.run(4_000, MESSAGES, |_, _| Vec::new());
    let prompts = pairs / LOADED;
    bench.run(u64::from(prompts) * 8, 125, |told, now_ms| {
        let told = told as u32;
        hub::stored(told % REPLICAS + 1, &hub::token_ids(1_000 + told, LOADED), now_ms)
    });
    bench.rest();
    let held = process.gauge("warmroute_index_pairs");
    let known: Vec<_> = (1..VMS).map(|at| bench.pool.ask(at, &body(BLOCKS)).unwrap().code).collect();
    assert_eq!(known, vec![Some("PREFIX_MATCH".to_owned()); VMS - 1]);
    println!("\n## {held} pairs, {} MiB a VM", bench.pool.vms[1].1.memory_bytes() >> 20);
    assert!(held >= i64::from(prompts * LOADED), "{held} pairs are held of {pairs}");
    bench
}

/// What one change takes of the leader with so many pairs, in ns: stored, removed, and stored at the cap, where one goes
/// for each that comes.
fn changes(pairs: u32, changes: u32, seconds: u32) -> [f64; 3] {
    let events = changes / MESSAGES / EVENT;
    let (ms, messages) = (u64::from(seconds) * 1_000, seconds * MESSAGES);
    let ids = |number: u32| hub::token_ids(1_000_000 + number, EVENT);
    let of_message = |message: u64| {
        let first = message as u32 * events;
        first..first + events
    };
    let process = Process::new(&module_path());
    let mut bench = loaded(&process, pairs, &with_cap(2 * pairs));
    bench.run(ms, MESSAGES, |_, _| Vec::new());
    bench.print("Idle:", 0);
    // Messages in turn: the next blocks are stored, those stored a second ago are removed.
    bench.run(ms, MESSAGES, |message, now_ms| {
        let all = of_message(message / 2);
        match message % 2 {
            0 => all.flat_map(|number| hub::stored(number % REPLICAS + 1, &ids(number), now_ms)).collect(),
            _ => {
                let ago = all.map(|number| number.saturating_sub(events * MESSAGES / 2));
                ago.flat_map(|number| hub::removed(number % REPLICAS + 1, &ids(number))).collect()
            }
        }
    });
    let [stored, removed] = [&bench.steps.stored, &bench.steps.removed].map(|times| times.mean_us() * 1_000.0);
    let per_message = f64::from(events * EVENT);
    bench.print(&format!("{changes} changes a second:"), messages * events * EVENT);
    drop(bench);
    let process = process.restarted();
    let mut bench = loaded(&process, pairs - pairs / 50, &with_cap(pairs));
    let store = |message: u64, now_ms: u64| {
        of_message(message)
            .flat_map(|number| hub::stored(number % REPLICAS + 1, &ids(number), now_ms))
            .collect::<Vec<_>>()
    };
    bench.run(ms, MESSAGES, store);
    bench.rest();
    let messages_so_far = u64::from(messages);
    bench.run(ms, MESSAGES, |message, now_ms| store(messages_so_far + message, now_ms));
    let evicted = process.metric("warmroute_evictions_total");
    let at_cap = bench.print(&format!("{changes} blocks stored a second at the cap:"), messages * events * EVENT);
    let held = process.gauge("warmroute_index_pairs");
    println!("\n{evicted} evicted, {held} pairs held");
    assert!(evicted > i64::from(messages * events * EVENT) && held <= i64::from(pairs / 4 * 5), "{evicted} {held}");
    [stored / per_message, removed / per_message, at_cap]
}

/// A configuration under which the index holds at most so many pairs.
fn with_cap(pairs: u32) -> String {
    let limits = format!(r#"{{"max_index_entries":{pairs}}}"#);
    format!(r#"{{"hub_cluster":"hub","models":[{{"model_id":"m"}}],"policy":{{"eviction":"LRU"}},"limits":{limits}}}"#)
}

fn main() {
    let (per_second, seconds) = (setting("CHANGES", 50_000), setting("SECONDS", 20));
    let [small, large] = SIZES.map(|pairs| changes(pairs, per_second, seconds));
    println!(
        "\n| ns of the leader's for a change | {} pairs | {} pairs | ratio |\n|---|---|---|---|",
        SIZES[0], SIZES[1]
    );
    for (kind, at) in
        [("stored, decoded, logged", 0), ("removed, decoded, logged", 1), ("stored and another evicted, all steps", 2)]
    {
        println!("| {kind} | {:.0} | {:.0} | {:.2} |", small[at], large[at], large[at] / small[at]);
    }
}
