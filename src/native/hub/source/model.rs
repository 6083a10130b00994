//! A [`Source`] against a model of an engine and of everything that can go wrong between the two, in memory and in virtual
//! time.
//!
//! The rule: a block that the hub credits is one that the engine holds, or the message that takes it back is yet to be
//! dealt with: it is on its way, or lost and no later one of the same or a later life of the engine was dealt with. And
//! after quiet the hub has what the engine has, or says of the replica that it may hold more. What the model leaves out:
//! an engine that starts over without ending its connections has its first message arrive, as otherwise its numbers can
//! go on by chance where the earlier ones ended, until its metrics tell of the new process.

mod cases;
mod engine;
mod world;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{LastScrape, ProcessChanged, Publisher, Source};
use crate::fingerprint::PrefixHash;
use crate::native::hub::config::HubConfig;
use crate::native::hub::continuity::Place;
use crate::native::hub::contract::ModelLabels;
use crate::native::hub::followed::ReplicaIndex;
use crate::native::hub::metrics::{Metrics, ReplicaMetrics};
use crate::native::hub::state::HubState;
use crate::publisher::PublisherLimits;
use engine::Random;
use world::{Counts, Faults, Line, World};

const SEEDS: u64 = 236;
const STEPS: usize = 900;

/// A source that follows a model.
struct Followed {
    line: Line,
    state: Arc<HubState>,
    index: ReplicaIndex,
    metrics: ReplicaMetrics,
    scraped: LastScrape,
    changed: mpsc::Sender<ProcessChanged>,
    task: JoinHandle<()>,
}

impl Followed {
    fn start(world: World, events: &str, planted: Option<fn(Place) -> Place>) -> Followed {
        let yaml = format!(
            "replicas: [{{id: a, address: 'h:1', kv_events: 'tcp://h:2', model: m, block_size: 1}}]\n\
             reassert: {{every_ms: 3000}}\nevents: {{{events}}}"
        );
        let config = HubConfig::from_yaml(&yaml).unwrap();
        let publisher = crate::publisher::Publisher::new(PublisherLimits::default());
        let state = Arc::new(HubState::new(1, publisher, 1 << 16));
        let index = state.follow(&config.replicas[0], None);
        let metrics = Metrics::new(ModelLabels::new(std::iter::empty())).replica("a");
        let line = Line::new(world);
        let scraped = LastScrape::default();
        let (changed, changes) = mpsc::channel(1);
        let publisher = Publisher { index, name: "a".into(), rank: None };
        let mut source =
            Source::new(publisher, line.clone(), &config, Arc::clone(&state), metrics.clone(), scraped.clone());
        source.continuity.planted = planted;
        let task = tokio::spawn(source.run(changes, CancellationToken::new()));
        Followed { line, state, index, metrics, scraped, changed, task }
    }

    fn world<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        self.line.act(act)
    }

    /// What the hub credits.
    fn held(&self) -> HashSet<PrefixHash> {
        let replicas = self.state.snapshot().replicas;
        replicas
            .into_iter()
            .filter(|replica| replica.complete)
            .flat_map(|replica| replica.held)
            .map(|(_, hash, _)| hash)
            .collect()
    }

    /// What is wrong, if anything is.
    fn check(&self) -> Result<(), String> {
        assert!(!self.task.is_finished(), "the source has ended");
        let held = self.held();
        self.world(|world| {
            let wrong = held.into_iter().filter(|hash| !world.engine.holds(*hash) && !world.may_be_credited(*hash));
            match wrong.count() {
                0 => Ok(()),
                count => Err(format!("{count} blocks are credited that the engine gave up, after {:?}", world.counts)),
            }
        })
    }

    /// What is wrong after quiet, else whether all that the engine holds is known.
    fn check_quiet(&self) -> Result<bool, String> {
        let held = self.held();
        let holds: HashSet<PrefixHash> = self.world(|world| world.engine.held().collect());
        let is_whole = self.metrics.incomplete.get() == 0;
        if is_whole && held != holds {
            return Err(format!("{} blocks are known of {}, and it counts as whole", held.len(), holds.len()));
        }
        let extra = held.difference(&holds).count();
        if extra > 0 {
            Err(format!("{extra} blocks stay credited that the engine does not hold"))
        } else {
            Ok(is_whole)
        }
    }
}

/// One run of a seed: what happened, and whether the engine's whole cache was known at the end.
async fn run(seed: u64, faults: Option<Faults>, planted: Option<fn(Place) -> Place>) -> (Counts, Result<bool, String>) {
    let mut random = Random::new(seed);
    let faults = faults.unwrap_or_else(|| Faults::random(&mut random));
    let events = "replay_timeout_ms: 400, replay_cooldown_ms: 2000, verify_idle_ms: 1000, gone_after_ms: 4000";
    let followed = Followed::start(World::new(seed, faults), events, planted);
    let result = drive(&followed, &mut random).await;
    let counts = followed.world(|world| world.counts.clone());
    followed.task.abort();
    (counts, result)
}

async fn drive(followed: &Followed, random: &mut Random) -> Result<bool, String> {
    if followed.world(|world| world.faults.renumbers) {
        // It has to be there for the first message, as nothing tells of those before.
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..STEPS {
        let restarted = followed.world(World::step);
        if restarted && random.one_in(2) {
            let _ = followed.changed.try_send(ProcessChanged);
        }
        if random.one_in(2) {
            sleep(Duration::from_millis(1 + random.below(3))).await;
            followed.check()?;
        } else if random.one_in(150) {
            sleep(Duration::from_millis(random.below(4_000))).await;
            followed.check()?;
        }
        if random.one_in(8) {
            followed.scraped.note(Instant::now());
        }
    }
    let ends_with_a_message = followed.world(|world| {
        let Faults { replays, ring, renumbers, .. } = world.faults;
        world.faults = Faults { replays, ring, renumbers, ..Faults::default() };
        !world.faults.replays || world.counts.batches.is_multiple_of(2)
    });
    // Whoever cannot ask for replays learns from the next message only, and not before it applies messages again.
    for _ in 0..4 {
        quiet(followed, 5).await;
        if ends_with_a_message {
            followed.world(World::step);
        }
    }
    quiet(followed, 10).await;
    followed.check()?;
    followed.check_quiet()
}

/// So many seconds without events, in which the replica's metrics tell that it is there.
async fn quiet(followed: &Followed, seconds: u32) {
    for _ in 0..seconds {
        followed.scraped.note(Instant::now());
        sleep(Duration::from_secs(1)).await;
    }
}

fn in_virtual_time<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// The seeds to run: all, or the one in `WARMROUTE_SEED`, with a log.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("WARMROUTE_SEED").map(|seed| seed.parse::<u64>()) {
        Ok(Ok(seed)) => {
            let log =
                tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false).with_test_writer();
            let _ = log.try_init();
            seed..seed + 1
        }
        _ => 0..SEEDS,
    }
}

#[test]
fn never_more_is_credited_than_the_engine_holds_over_a_million_events() {
    let totals = Mutex::new((Counts::default(), 0_u64));
    let threads = 2;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let totals = &totals;
            scope.spawn(move || {
                for seed in seeds().skip(thread).step_by(threads) {
                    let (counts, result) = in_virtual_time(run(seed, None, None));
                    let is_whole = result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
                    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                    totals.0.add(&counts);
                    totals.1 += u64::from(is_whole);
                }
            });
        }
    });
    let (counts, whole) = totals.into_inner().unwrap();
    println!("{SEEDS} seeds, {whole} of them known as a whole at the end: {counts:?}");
    assert!(counts.events >= 1_000_000, "{}", counts.events);
    assert!(counts.each_happened(), "{counts:?}");
    assert!((SEEDS / 4..SEEDS).contains(&whole), "{whole} of {SEEDS}");
}

/// Whether a fault in the source is noticed within some seeds.
fn is_caught(planted: fn(Place) -> Place) -> bool {
    (0..20).any(|seed| in_virtual_time(run(seed, None, Some(planted))).1.is_err())
}

#[test]
fn a_source_that_ignores_gaps_is_caught() {
    assert!(is_caught(|place| if place == Place::Gap { Place::Next } else { place }));
}

#[test]
fn whoever_cannot_tell_that_messages_come_again_or_are_missing_is_caught() {
    let renumbered = Faults { renumbers: true, ring: 100, ..Faults::default() };
    for faults in [Faults { doubled: 10, ..renumbered.clone() }, Faults { lost: 50, ..renumbered.clone() }] {
        let is_wrong = |seed| in_virtual_time(run(seed, Some(faults.clone()), None)).1.is_err();
        assert!((0..5).any(is_wrong), "{faults:?}");
    }
    let sound = in_virtual_time(run(0, Some(renumbered), None)).1;
    assert_eq!(sound, Ok(true), "numbers as they come are right where nothing is missing");
}

#[test]
fn a_source_that_takes_another_life_of_the_engine_for_late_messages_is_caught() {
    assert!(is_caught(|place| if place == Place::Restarted { Place::Duplicate } else { place }));
}
