//! The hub's own metrics and the contract's, in Prometheus' OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::capacity::{Bound, GivenUp};
use super::clock::hub_ms;
use super::contract::{ContractMetrics, ModelLabels};
use super::discovery::DiscoveryMetrics;
use super::models::ModelMetrics;
use super::policies::PolicyMetrics;
use super::replica_cache::Tally;
use super::roster::Roster;
use super::scrape::ScrapeFault;
use super::security::SecurityMetrics;
use super::state::HubState;
use crate::native::engine::SkipReason;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why engine keys were given up that may stand for more than one prefix.
const DOUBTS: &str = "ambiguous";

/// Which replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReplicaLabel {
    replica: String,
}

/// Which replica, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    replica: String,
    reason: &'static str,
}

/// All metrics of one hub.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    hub: HubMetrics,
    contract: Arc<ContractMetrics>,
    roster: Arc<Roster>,
    /// Held while a text is made: some series are made anew for each.
    writing: Mutex<()>,
}

/// Metrics that have a series for each replica.
trait ByReplica: Debug + Send + Sync {
    fn forget(&self, label: &ReplicaLabel);
}

#[derive(Debug, Default)]
struct HubMetrics {
    /// Every family below with a label for replicas alone.
    by_replica: Vec<Box<dyn ByReplica>>,
    messages: Family<ReplicaLabel, Counter>,
    blocks_stored: Family<ReplicaLabel, Counter>,
    blocks_removed: Family<ReplicaLabel, Counter>,
    skipped: Family<ReasonLabel, Counter>,
    given_up: Family<ReasonLabel, Counter>,
    keys_given_up: Family<ReasonLabel, Counter>,
    gaps: Family<ReplicaLabel, Counter>,
    replays: Family<ReplicaLabel, Counter>,
    replays_failed: Family<ReplicaLabel, Counter>,
    restarts: Family<ReplicaLabel, Counter>,
    clears: Family<ReplicaLabel, Counter>,
    connections_lost: Family<ReplicaLabel, Counter>,
    suspensions: Family<ReplicaLabel, Counter>,
    gone: Family<ReplicaLabel, Counter>,
    incomplete: Family<ReplicaLabel, Gauge>,
    reassertions: Family<ReplicaLabel, Counter>,
    reassert_suspended: Family<ReplicaLabel, Gauge>,
    scrapes_failed: Family<ReasonLabel, Counter>,
    event_lag: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
    cache_usage: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
    connected: Family<ReplicaLabel, Gauge>,
    unreadable: Family<ReplicaLabel, Gauge>,
    event_sequence: Family<ReplicaLabel, Gauge>,
    blocks_held: Family<ReplicaLabel, Gauge>,
    pressure: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
    subscribers: Gauge,
    resets: Counter,
    resumes: Counter,
    subscribers_dropped: Counter,
    clock_jumps: Counter,
    sequence: Gauge,
    policies: PolicyMetrics,
    models: ModelMetrics,
    security: SecurityMetrics,
    discovery: DiscoveryMetrics,
}

/// The metrics of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    replica: String,
    messages: Counter,
    blocks_stored: Counter,
    blocks_removed: Counter,
    skipped: Family<ReasonLabel, Counter>,
    keys_given_up: Family<ReasonLabel, Counter>,
    scrapes_failed: Family<ReasonLabel, Counter>,
    cache_usage: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
    times: Arc<EventTimes>,
    /// Times that all blocks were given up, by the engine's word or for want of it.
    pub clears: Counter,
    /// Messages found to be missing.
    pub gaps: Counter,
    /// Replays asked for.
    pub replays: Counter,
    /// Replays without an answer, or with an incomplete one.
    pub replays_failed: Counter,
    /// Engines found to have started over.
    pub restarts: Counter,
    /// Connections to the publisher that ended.
    pub connections_lost: Counter,
    /// Times that nothing was applied for a while, since too much was missing.
    pub suspensions: Counter,
    /// Times that the replica was announced as gone.
    pub gone: Counter,
    /// 1 while the replica may hold more than is known.
    pub incomplete: Gauge,
    /// Times that the replica was said to hold still what it held.
    pub reassertions: Counter,
    /// 1 while that is not said although it should be.
    pub reassert_suspended: Gauge,
    /// How long after the engine made it the last message was applied, in seconds.
    event_lag: Gauge<f64, AtomicU64>,
    /// 1 while connected to the publisher.
    pub connected: Gauge,
    /// 1 while nothing that the engine sends can be read.
    pub unreadable: Gauge,
    /// The number of the last event message applied; -1 before the first.
    pub last_sequence: Gauge,
}

/// When events came, in the hub's own ms; 0 before the first.
#[derive(Debug, Default)]
struct EventTimes {
    /// When the last message was applied.
    applied_ms: AtomicU64,
    /// When the engine made it.
    made_ms: AtomicU64,
    /// How long that took when it was live, in ms, and 1.
    lag_ms: AtomicU64,
}

/// What one replica's counters say, as operators see it.
#[derive(Clone, Debug, Default)]
pub struct ReplicaCounts {
    /// Times that messages were missing.
    pub gaps: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Those of them without a complete answer.
    pub replays_failed: u64,
    /// Engines found to have started over.
    pub restarts: u64,
    /// Times that all blocks were given up.
    pub clears: u64,
    /// What was not credited, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// When the last message was applied, in the hub's own ms.
    pub last_message_ms: Option<u64>,
    /// When the engine made it, in the hub's own ms.
    pub last_event_ms: Option<u64>,
    /// How long after an engine made it the last message was applied that was not replayed, in ms.
    pub lag_ms: Option<u64>,
}

impl<M: Send + Sync + Debug + 'static> ByReplica for Family<ReplicaLabel, M> {
    fn forget(&self, label: &ReplicaLabel) {
        self.remove(label);
    }
}

// === impl Metrics ===

impl Metrics {
    /// All metrics at 0, with labels for these models.
    pub fn new(models: ModelLabels) -> Metrics {
        let mut registry = Registry::default();
        let hub = HubMetrics::new(registry.sub_registry_with_prefix("warmroute_hub"));
        let contract = Arc::new(ContractMetrics::new(models, &mut registry));
        Metrics { registry, hub, contract, roster: Arc::default(), writing: Mutex::default() }
    }

    /// The Observe streams that are open.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Those of the discovery of replicas.
    pub fn discovery(&self) -> DiscoveryMetrics {
        self.hub.discovery.clone()
    }

    /// Those of the contract.
    pub fn contract(&self) -> Arc<ContractMetrics> {
        Arc::clone(&self.contract)
    }

    /// Those of the directory of CachePolicies.
    pub fn policies(&self) -> PolicyMetrics {
        self.hub.policies.clone()
    }

    /// Those of the models' directories.
    pub fn models(&self) -> ModelMetrics {
        self.hub.models.clone()
    }

    /// Those of who is let in.
    pub fn security(&self) -> SecurityMetrics {
        self.hub.security.clone()
    }

    /// The metrics of the replica with this id.
    pub fn replica(&self, id: &str) -> ReplicaMetrics {
        let label = ReplicaLabel { replica: id.to_owned() };
        let last_sequence = self.hub.event_sequence.get_or_create_owned(&label);
        last_sequence.set(-1);
        let connected = self.hub.connected.get_or_create_owned(&label);
        connected.set(0);
        self.hub.unreadable.get_or_create(&label).set(0);
        self.hub.cache_usage.remove(&label);
        ReplicaMetrics {
            replica: id.to_owned(),
            messages: self.hub.messages.get_or_create_owned(&label),
            blocks_stored: self.hub.blocks_stored.get_or_create_owned(&label),
            blocks_removed: self.hub.blocks_removed.get_or_create_owned(&label),
            skipped: self.hub.skipped.clone(),
            keys_given_up: self.hub.keys_given_up.clone(),
            clears: self.hub.clears.get_or_create_owned(&label),
            gaps: self.hub.gaps.get_or_create_owned(&label),
            replays: self.hub.replays.get_or_create_owned(&label),
            replays_failed: self.hub.replays_failed.get_or_create_owned(&label),
            restarts: self.hub.restarts.get_or_create_owned(&label),
            connections_lost: self.hub.connections_lost.get_or_create_owned(&label),
            suspensions: self.hub.suspensions.get_or_create_owned(&label),
            gone: self.hub.gone.get_or_create_owned(&label),
            incomplete: self.hub.incomplete.get_or_create_owned(&label),
            reassertions: self.hub.reassertions.get_or_create_owned(&label),
            reassert_suspended: self.hub.reassert_suspended.get_or_create_owned(&label),
            scrapes_failed: self.hub.scrapes_failed.clone(),
            cache_usage: self.hub.cache_usage.clone(),
            event_lag: self.hub.event_lag.get_or_create_owned(&label),
            times: Arc::default(),
            connected,
            unreadable: self.hub.unreadable.get_or_create_owned(&label),
            last_sequence,
        }
    }

    /// Blocks of the replica with this id were given up.
    pub fn given_up(&self, id: &str, bound: Bound, given_up: GivenUp) {
        let label = ReasonLabel { replica: id.to_owned(), reason: bound.as_str() };
        self.hub.given_up.get_or_create(&label).inc_by(given_up.blocks as u64);
        self.hub.keys_given_up.get_or_create(&label).inc_by(given_up.keys as u64);
    }

    /// Drops all series of the replica with this id. What still writes to them makes none anew, except for
    /// [`ReplicaMetrics::skip`], [`ReplicaMetrics::scrape_failed`] and [`ReplicaMetrics::cache_usage`].
    pub fn forget(&self, id: &str) {
        let label = ReplicaLabel { replica: id.to_owned() };
        self.hub.by_replica.iter().for_each(|family| family.forget(&label));
        for reason in SkipReason::ALL {
            self.hub.skipped.remove(&ReasonLabel { replica: id.to_owned(), reason: reason.as_str() });
        }
        for bound in [Bound::Replica, Bound::Total] {
            let label = ReasonLabel { replica: id.to_owned(), reason: bound.as_str() };
            self.hub.given_up.remove(&label);
            self.hub.keys_given_up.remove(&label);
        }
        self.hub.keys_given_up.remove(&ReasonLabel { replica: id.to_owned(), reason: DOUBTS });
        for fault in ScrapeFault::ALL {
            self.hub.scrapes_failed.remove(&ReasonLabel { replica: id.to_owned(), reason: fault.as_str() });
        }
    }

    /// An Observe stream opened.
    pub fn subscriber_opened(&self) {
        self.hub.subscribers.inc();
    }

    /// An Observe stream ended.
    pub fn subscriber_closed(&self) {
        self.hub.subscribers.dec();
    }

    /// Observe streams open now.
    pub fn subscribers(&self) -> i64 {
        self.hub.subscribers.get()
    }

    /// An Observe stream began with the full state.
    pub fn reset(&self) {
        self.hub.resets.inc();
    }

    /// An Observe stream went on where it stopped.
    pub fn resumed(&self) {
        self.hub.resumes.inc();
    }

    /// An Observe stream was closed because the subscriber was too slow.
    pub fn subscriber_dropped(&self) {
        self.hub.subscribers_dropped.inc();
    }

    /// The wall clock was set.
    pub fn clock_jumped(&self) {
        self.hub.clock_jumps.inc();
    }

    /// All metrics as text, with those that are read from `state`.
    pub fn text(&self, state: &HubState) -> String {
        self.contract.read(state);
        self.hub.sequence.set(i64::try_from(state.sequence()).unwrap_or(i64::MAX));
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // Made anew, so that replicas that are gone and loads that are not known have no series.
        self.hub.blocks_held.clear();
        self.hub.pressure.clear();
        for view in state.view() {
            let label = ReplicaLabel { replica: view.id };
            self.hub.blocks_held.get_or_create(&label).set(i64::try_from(view.blocks).unwrap_or(i64::MAX));
            if let Some(stats) = view.stats {
                self.hub.pressure.get_or_create(&label).set(f64::from(stats.pressure));
            }
        }
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

// === impl HubMetrics ===

impl HubMetrics {
    fn new(registry: &mut Registry) -> HubMetrics {
        let mut metrics = HubMetrics::default();
        let mut by_replica: Vec<Box<dyn ByReplica>> = Vec::new();
        let mut add = |name: &str, help: &str, family: &Family<ReplicaLabel, Counter>| {
            registry.register(name, help, family.clone());
            by_replica.push(Box::new(family.clone()));
        };
        add("messages", "Event messages applied", &metrics.messages);
        add("blocks_stored", "Blocks credited, or credited again", &metrics.blocks_stored);
        add("blocks_removed", "Blocks no longer credited because the engine removed them", &metrics.blocks_removed);
        add("gaps", "Times that event messages were missing", &metrics.gaps);
        add("replays", "Replays asked for", &metrics.replays);
        add("replays_failed", "Replays without a complete answer", &metrics.replays_failed);
        add("restarts", "Times that an engine was found to have started over", &metrics.restarts);
        add("clears", "Times that a replica's blocks were all given up", &metrics.clears);
        add("connections_lost", "Connections to an event publisher that ended", &metrics.connections_lost);
        let help = "Times that a replica was not followed for a while, since too many event messages were missing";
        add("suspensions", help, &metrics.suspensions);
        add("gone", "Times that a replica was announced as gone", &metrics.gone);
        add("reassertions", "Times that a replica was said to hold still what it held", &metrics.reassertions);
        let mut add = |name: &str, help: &str, family: &Family<ReplicaLabel, Gauge>| {
            registry.register(name, help, family.clone());
            by_replica.push(Box::new(family.clone()));
        };
        add("connected", "1 while connected to the event publisher", &metrics.connected);
        let help = "1 while a replica may hold blocks that are not known, as the events that said so cannot be had";
        add("incomplete", help, &metrics.incomplete);
        add("unreadable", "1 while nothing that an engine sends can be read", &metrics.unreadable);
        let help = "1 while a replica is not said to hold what it held, as events may have been missed";
        add("reassert_suspended", help, &metrics.reassert_suspended);
        let help = "Number of the last event message applied, -1 before the first";
        add("event_sequence", help, &metrics.event_sequence);
        add("blocks_held", "Blocks credited now", &metrics.blocks_held);
        let mut add = |name: &str, help: &str, family: &Family<ReplicaLabel, Gauge<f64, AtomicU64>>| {
            registry.register(name, help, family.clone());
            by_replica.push(Box::new(family.clone()));
        };
        add("pressure", "Load, 0 to 1", &metrics.pressure);
        add("cache_usage", "Share of the engine's cache that is in use, 0 to 1", &metrics.cache_usage);
        let help = "From when the engine made the last event message until it was applied, in seconds";
        add("event_lag_seconds", help, &metrics.event_lag);
        metrics.by_replica = by_replica;
        let help = "Failed reads of an engine's metrics, by reason";
        registry.register("scrapes_failed", help, metrics.scrapes_failed.clone());
        let help = "Blocks, events or batches that were not credited, by reason";
        registry.register("skipped", help, metrics.skipped.clone());
        let help = "Blocks given up because there were more than are kept, by limit";
        registry.register("blocks_given_up", help, metrics.given_up.clone());
        let help = "Engine keys given up with them, or as it was not certain what too many of them stand for, by limit";
        registry.register("keys_given_up", help, metrics.keys_given_up.clone());
        registry.register("subscribers", "Observe streams open now", metrics.subscribers.clone());
        registry.register("resets", "Observe streams that began with the full state", metrics.resets.clone());
        registry.register("resumes", "Observe streams that went on where they stopped", metrics.resumes.clone());
        let help = "Observe streams closed because the subscriber was too slow";
        registry.register("subscribers_dropped", help, metrics.subscribers_dropped.clone());
        registry.register("clock_jumps", "Times that the wall clock was set", metrics.clock_jumps.clone());
        registry.register("sequence", "The latest sequence", metrics.sequence.clone());
        metrics.policies.register(registry);
        metrics.models.register(registry);
        metrics.security.register(registry);
        metrics.discovery.register(registry);
        metrics
    }
}

// === impl ReplicaMetrics ===

impl ReplicaMetrics {
    /// A message was applied, with this outcome.
    pub fn message(&self, tally: &Tally) {
        self.messages.inc();
        self.times.applied_ms.store(hub_ms(), Ordering::Relaxed);
        self.count(tally);
    }

    /// Blocks changed outside a message.
    pub fn count(&self, tally: &Tally) {
        self.blocks_stored.inc_by(tally.stored);
        self.blocks_removed.inc_by(tally.removed);
        self.clears.inc_by(tally.cleared);
        if tally.doubts_given_up > 0 {
            let label = ReasonLabel { replica: self.replica.clone(), reason: DOUBTS };
            self.keys_given_up.get_or_create(&label).inc_by(tally.doubts_given_up);
        }
        for (reason, count) in &tally.skipped {
            self.skip(*reason, *count);
        }
    }

    /// Something was not credited.
    pub fn skip(&self, reason: SkipReason, count: u64) {
        let label = ReasonLabel { replica: self.replica.clone(), reason: reason.as_str() };
        self.skipped.get_or_create(&label).inc_by(count);
    }

    /// The engine's metrics could not be used.
    pub fn scrape_failed(&self, fault: ScrapeFault) {
        let label = ReasonLabel { replica: self.replica.clone(), reason: fault.as_str() };
        self.scrapes_failed.get_or_create(&label).inc();
    }

    /// The engine made the message that is applied now at `made_ms`, in the hub's own ms; `is_live` unless it is replayed.
    pub fn made(&self, made_ms: u64, is_live: bool) {
        self.times.made_ms.store(made_ms.max(1), Ordering::Relaxed);
        if is_live {
            let lag_ms = hub_ms().saturating_sub(made_ms);
            self.times.lag_ms.store(lag_ms.saturating_add(1), Ordering::Relaxed);
            self.event_lag.set(lag_ms as f64 / 1_000.0);
        }
    }

    /// The share of the engine's cache that is in use, if it says so.
    pub fn cache_usage(&self, share: Option<f64>) {
        let label = ReplicaLabel { replica: self.replica.clone() };
        match share {
            Some(share) => {
                self.cache_usage.get_or_create(&label).set(share);
            }
            None => {
                self.cache_usage.remove(&label);
            }
        }
    }

    /// What the counters say.
    pub fn counts(&self) -> ReplicaCounts {
        let dropped = SkipReason::ALL.into_iter().filter_map(|reason| {
            let label = ReasonLabel { replica: self.replica.clone(), reason: reason.as_str() };
            Some((reason.as_str(), self.skipped.get(&label)?.get()))
        });
        let time = |of: &AtomicU64| Some(of.load(Ordering::Relaxed)).filter(|ms| *ms > 0);
        ReplicaCounts {
            gaps: self.gaps.get(),
            replays: self.replays.get(),
            replays_failed: self.replays_failed.get(),
            restarts: self.restarts.get(),
            clears: self.clears.get(),
            drops: dropped.collect(),
            last_message_ms: time(&self.times.applied_ms),
            last_event_ms: time(&self.times.made_ms),
            lag_ms: time(&self.times.lag_ms).map(|lag_ms| lag_ms - 1),
        }
    }
}
