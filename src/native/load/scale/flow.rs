//! Part `flow`: requests on an idle index and on one that changes all the time, in turn, in one run.
//!
//! What changes beside the filter's work is the machine's: publishers, hub and Envoy share its cores. Requests past Envoy,
//! sent in between, show how much of the difference that is.

use std::time::{Duration, Instant};

use super::measure::Latencies;
use super::options::ScaleOptions;
use super::seen::{self, Seen};
use super::site::{Figures, Site};
use super::traffic::{Outcome, Target, Traffic};
use super::verdict::Verdicts;
use super::{ScaleError, machine};

/// After a busy phase everything must be known within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// From an engine's event to a decision by it, p99 in ms.
const SEEN_LIMIT_MS: f64 = 250.0;
/// So many of the changes asked for must be made, and in the index when the phase ends, the last moment apart.
const APPLIED_SHARE: f64 = 0.95;
/// Changes may make memory larger by so much, once and for all: allocators keep what blocks that moved have left.
const MEMORY_GROWTH: f64 = 1.5;
/// A background step may take this long, in us.
const STEP_LIMIT_US: f64 = 1_000.0;

/// What a program uses, of all that is counted.
type BytesOf = fn(&Figures) -> u64;

/// One phase.
struct Phase {
    busy: bool,
    took: Duration,
    changed: usize,
    settled: Duration,
    outcome: Outcome,
    before: Figures,
    after: Figures,
    seen: Seen,
    load: String,
}

/// Runs the part.
///
/// # Errors
/// When a program does not answer, or changes are lost.
pub async fn run(site: &Site, options: &ScaleOptions, verdicts: &mut Verdicts) -> Result<(), ScaleError> {
    let target = site.target(options.connections, options.rate);
    // Connections, and what Envoy allocates once.
    Traffic::start(&target, &site.pool).stop_after(options.phase().min(Duration::from_secs(5))).await;
    println!("\n## Requests beside {} changes a second\n\n{}", options.changes, Phase::HEAD);
    let mut phases = Vec::new();
    for turn in 0..options.rounds * 2 {
        let phase = phase(site, options, &target, turn % 2 == 1).await?;
        println!("{phase}");
        phases.push(phase);
    }
    println!();
    judge(&phases, options.changes, verdicts);
    Ok(())
}

async fn phase(site: &Site, options: &ScaleOptions, target: &Target, busy: bool) -> Result<Phase, ScaleError> {
    let before = site.figures().await?;
    let traffic = Traffic::start(target, &site.pool);
    let start = Instant::now();
    let (mut changed, mut seen) = (0, Seen::default());
    if busy {
        let changing = site.pool.change(options.changes, options.phase());
        let base = site.stack.envoy_url();
        let (looked, made) = tokio::join!(seen::look(&site.pool, &base, options.phase()), changing);
        (changed, seen) = (made?, looked);
    } else {
        tokio::time::sleep(options.phase()).await;
    }
    let took = start.elapsed();
    let outcome = traffic.stop().await;
    let load = machine::load();
    let settled = site.all_known(SETTLED_WITHIN).await?;
    let after = site.figures().await?;
    Ok(Phase { busy, took, changed, settled, outcome, before, after, seen, load })
}

fn judge(phases: &[Phase], changes: usize, verdicts: &mut Verdicts) {
    let all = |busy: bool| {
        let outcomes = phases.iter().filter(|phase| phase.busy == busy).map(|phase| phase.outcome.clone());
        outcomes.reduce(Outcome::and).unwrap_or_default()
    };
    let (idle, busy) = (all(false), all(true));
    let ratio = |of: fn(&Outcome) -> Latencies, share| of(&busy).percentile_ms(share) / of(&idle).percentile_ms(share);
    println!(
        "busy / idle: p50 {:.2}, p99 {:.2} with the filter; p50 {:.2}, p99 {:.2} without it; p50 {:.2}, p99 {:.2} past Envoy",
        ratio(Outcome::filtered, 0.5),
        ratio(Outcome::filtered, 0.99),
        ratio(|outcome| outcome.plain.clone(), 0.5),
        ratio(|outcome| outcome.plain.clone(), 0.99),
        ratio(|outcome| outcome.direct.clone(), 0.5),
        ratio(|outcome| outcome.direct.clone(), 0.99),
    );
    verdicts.at_most("p99 of requests, busy / idle", 1.5, ratio(Outcome::filtered, 0.99));
    verdicts.none("requests not answered", idle.sent + busy.sent - idle.answered - busy.answered);
    verdicts.none("requests hinted to a replica that does not hold it", idle.wrong + busy.wrong);
    let applied = phases.iter().filter(|phase| phase.busy).map(Phase::applied_per_second);
    let share = applied.fold(f64::INFINITY, f64::min) / changes as f64;
    verdicts.at_least("changes applied in time, of those asked for", APPLIED_SHARE, share);
    let steps =
        phases.iter().filter(|phase| phase.busy).map(|phase| phase.after.background.since(&phase.before.background));
    for share in steps.filter_map(|steps| steps.share_up_to(STEP_LIMIT_US)) {
        verdicts.at_least("share of background steps up to 1 ms, busy", 0.999, share);
    }
    judge_seen(phases, verdicts);
    judge_memory(phases, verdicts);
    let failures = [idle.failure, busy.failure];
    failures.iter().flatten().for_each(|failure| println!("a request failed: {failure}"));
}

/// As many blocks are held after the changes as before: what memory grew by is what the changes left behind.
fn judge_memory(phases: &[Phase], verdicts: &mut Verdicts) {
    let (Some(first), Some(last)) = (phases.first(), phases.last()) else { return };
    let programs: [(&str, &'static str, BytesOf); 2] = [
        ("hub", "memory of the hub, after / before the changes", |figures| figures.hub.rss_bytes),
        ("Envoy", "memory of Envoy, after / before the changes", |figures| figures.envoy.rss_bytes),
    ];
    for (program, what, of) in programs {
        let [before, after] = [of(&first.after), of(&last.after)].map(|bytes| bytes as f64 / f64::from(1 << 20));
        println!("memory of {program}: {before:.0} MiB before the changes, {after:.0} MiB after");
        verdicts.at_most(what, MEMORY_GROWTH, after / before);
    }
}

fn judge_seen(phases: &[Phase], verdicts: &mut Verdicts) {
    let seen = phases.iter().filter(|phase| phase.busy).map(|phase| phase.seen.clone());
    let seen = seen.reduce(Seen::and).unwrap_or_default();
    // What can make a credit late, beside a machine that is short of time.
    let sum = |of: fn(&Figures) -> f64| phases.iter().map(|phase| of(&phase.after) - of(&phase.before)).sum::<f64>();
    let (gaps, fell_off) = (sum(|figures| figures.gaps), sum(|figures| figures.fell_off));
    println!(
        "meanwhile: {gaps} times the hub missed messages of a replica and had them replayed, {fell_off} times a VM fell off the log"
    );
    for (took, what) in &seen.slowest {
        println!("slow from event to credit: {:.0} ms, {what}", took.as_secs_f64() * 1_000.0);
    }
    verdicts.at_most("p99 from an engine's event to a credit, ms", SEEN_LIMIT_MS, seen.credited.percentile_ms(0.99));
    verdicts.none("messages of replicas that the hub missed", gaps as usize);
    verdicts.none("conversations held and not credited in 5 s", seen.never);
    verdicts.at_least("conversations looked for from event to credit", 1.0, seen.credited.len() as f64);
}

// === impl Phase ===

impl Phase {
    const HEAD: &str = "| phase | requests | not answered | hinted | p50 ms | p99 ms | ids p99 | hashes p99 | no filter p50 | no filter \
         p99 | past Envoy p99 | changes/s made | applied/s | all known after s | seen | seen p50 ms | seen p99 ms | seen max ms | removed before | log segments/s | steps | up to 1 ms % | up to 5 ms % | Envoy cores | hub cores | load |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

    /// What the hub took in, over the time until the index had all of it.
    fn applied_per_second(&self) -> f64 {
        (self.after.hub_changes - self.before.hub_changes) / (self.took + self.settled).as_secs_f64()
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Phase { outcome, before, after, seen, .. } = self;
        let seconds = self.took.as_secs_f64();
        let filtered = outcome.filtered();
        let steps = after.background.since(&before.background);
        let up_to = |us| steps.share_up_to(us).map_or_else(|| "-".to_owned(), |share| format!("{:.2}", 100.0 * share));
        let cores = |after: u64, before: u64| after.saturating_sub(before) as f64 / 1_000.0 / seconds;
        write!(
            f,
            "| {} | {} | {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {:.2} | {} | {:.0} | {:.0} | {:.0} | {} | {:.1} | {} | {} | {} | {:.2} \
             | {:.2} | {} |",
            if self.busy { "busy" } else { "idle" },
            outcome.sent,
            outcome.sent - outcome.answered,
            outcome.hinted,
            filtered.percentile_ms(0.5),
            filtered.percentile_ms(0.99),
            outcome.body.percentile_ms(0.99),
            outcome.hashes.percentile_ms(0.99),
            outcome.plain.percentile_ms(0.5),
            outcome.plain.percentile_ms(0.99),
            outcome.direct.percentile_ms(0.99),
            self.changed as f64 / seconds,
            self.applied_per_second(),
            self.settled.as_secs_f64(),
            seen.credited.len(),
            seen.credited.percentile_ms(0.5),
            seen.credited.percentile_ms(0.99),
            seen.credited.percentile_ms(1.0),
            seen.removed,
            (after.log_sequence - before.log_sequence) / seconds,
            steps.count(),
            up_to(STEP_LIMIT_US),
            up_to(5.0 * STEP_LIMIT_US),
            cores(after.envoy.cpu_ms, before.envoy.cpu_ms),
            cores(after.hub.cpu_ms, before.hub.cpu_ms),
            self.load,
        )
    }
}
