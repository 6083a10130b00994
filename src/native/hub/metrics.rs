//! The hub's own metrics and the contract's, in Prometheus' OpenMetrics text.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::contract::{ContractMetrics, ModelLabels};
use super::models::ModelMetrics;
use super::policies::PolicyMetrics;
use super::replica_cache::Tally;
use super::state::HubState;
use crate::native::engine::SkipReason;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
}

#[derive(Debug, Default)]
struct HubMetrics {
    messages: Family<ReplicaLabel, Counter>,
    blocks_stored: Family<ReplicaLabel, Counter>,
    blocks_removed: Family<ReplicaLabel, Counter>,
    skipped: Family<ReasonLabel, Counter>,
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
    scrapes_failed: Family<ReplicaLabel, Counter>,
    connected: Family<ReplicaLabel, Gauge>,
    event_sequence: Family<ReplicaLabel, Gauge>,
    blocks_held: Family<ReplicaLabel, Gauge>,
    pressure: Family<ReplicaLabel, Gauge<f64, AtomicU64>>,
    subscribers: Gauge,
    resets: Counter,
    resumes: Counter,
    subscribers_dropped: Counter,
    sequence: Gauge,
    policies: PolicyMetrics,
    models: ModelMetrics,
}

/// The metrics of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    replica: String,
    messages: Counter,
    blocks_stored: Counter,
    blocks_removed: Counter,
    skipped: Family<ReasonLabel, Counter>,
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
    /// Failed reads of the engine's metrics.
    pub scrapes_failed: Counter,
    /// 1 while connected to the publisher.
    pub connected: Gauge,
    /// The number of the last event message applied; -1 before the first.
    pub last_sequence: Gauge,
}

// === impl Metrics ===

impl Metrics {
    /// All metrics at 0, with labels for these models.
    pub fn new(models: ModelLabels) -> Metrics {
        let mut registry = Registry::default();
        let hub = HubMetrics::new(registry.sub_registry_with_prefix("warmroute_hub"));
        let contract = Arc::new(ContractMetrics::new(models, &mut registry));
        Metrics { registry, hub, contract }
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

    /// The metrics of the replica with this id.
    pub fn replica(&self, id: &str) -> ReplicaMetrics {
        let label = ReplicaLabel { replica: id.to_owned() };
        let last_sequence = self.hub.event_sequence.get_or_create_owned(&label);
        last_sequence.set(-1);
        ReplicaMetrics {
            replica: id.to_owned(),
            messages: self.hub.messages.get_or_create_owned(&label),
            blocks_stored: self.hub.blocks_stored.get_or_create_owned(&label),
            blocks_removed: self.hub.blocks_removed.get_or_create_owned(&label),
            skipped: self.hub.skipped.clone(),
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
            scrapes_failed: self.hub.scrapes_failed.get_or_create_owned(&label),
            connected: self.hub.connected.get_or_create_owned(&label),
            last_sequence,
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

    /// All metrics as text, with those that are read from `state`.
    pub fn text(&self, state: &HubState) -> String {
        self.contract.read(state);
        self.hub.sequence.set(i64::try_from(state.sequence()).unwrap_or(i64::MAX));
        for view in state.view() {
            let label = ReplicaLabel { replica: view.id };
            self.hub.blocks_held.get_or_create(&label).set(i64::try_from(view.blocks).unwrap_or(i64::MAX));
            self.hub.pressure.get_or_create(&label).set(view.stats.map_or(0.0, |stats| f64::from(stats.pressure)));
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
        let metrics = HubMetrics::default();
        let mut add = |name: &str, help: &str, family: &Family<ReplicaLabel, Counter>| {
            registry.register(name, help, family.clone());
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
        add("scrapes_failed", "Failed reads of an engine's metrics", &metrics.scrapes_failed);
        let help = "Blocks, events or batches that were not credited, by reason";
        registry.register("skipped", help, metrics.skipped.clone());
        let help = "1 while a replica may hold blocks that are not known, as the events that said so cannot be had";
        registry.register("incomplete", help, metrics.incomplete.clone());
        registry.register("connected", "1 while connected to the event publisher", metrics.connected.clone());
        let help = "1 while a replica is not said to hold what it held, as events may have been missed";
        registry.register("reassert_suspended", help, metrics.reassert_suspended.clone());
        let help = "Number of the last event message applied, -1 before the first";
        registry.register("event_sequence", help, metrics.event_sequence.clone());
        registry.register("blocks_held", "Blocks credited now", metrics.blocks_held.clone());
        registry.register("pressure", "Load, 0 to 1", metrics.pressure.clone());
        registry.register("subscribers", "Observe streams open now", metrics.subscribers.clone());
        registry.register("resets", "Observe streams that began with the full state", metrics.resets.clone());
        registry.register("resumes", "Observe streams that went on where they stopped", metrics.resumes.clone());
        let help = "Observe streams closed because the subscriber was too slow";
        registry.register("subscribers_dropped", help, metrics.subscribers_dropped.clone());
        registry.register("sequence", "The latest sequence", metrics.sequence.clone());
        metrics.policies.register(registry);
        metrics.models.register(registry);
        metrics
    }
}

// === impl ReplicaMetrics ===

impl ReplicaMetrics {
    /// A message was applied, with this outcome.
    pub fn message(&self, tally: &Tally) {
        self.messages.inc();
        self.count(tally);
    }

    /// Blocks changed outside a message.
    pub fn count(&self, tally: &Tally) {
        self.blocks_stored.inc_by(tally.stored);
        self.blocks_removed.inc_by(tally.removed);
        self.clears.inc_by(tally.cleared);
        for (reason, count) in &tally.skipped {
            self.skip(*reason, *count);
        }
    }

    /// Something was not credited.
    pub fn skip(&self, reason: SkipReason, count: u64) {
        let label = ReasonLabel { replica: self.replica.clone(), reason: reason.as_str() };
        self.skipped.get_or_create(&label).inc_by(count);
    }
}
