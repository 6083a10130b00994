//! What is counted of the discovery of replicas.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Which source: `replicas`, or its kind and what it looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: String,
}

/// The metrics of all sources.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryMetrics {
    replicas: Family<SourceLabel, Gauge>,
    up: Family<SourceLabel, Gauge>,
    updates: Family<SourceLabel, Counter>,
    failures: Family<SourceLabel, Counter>,
    clashes: Gauge,
}

/// The metrics of one source.
#[derive(Clone, Debug)]
pub(super) struct SourceMetrics {
    replicas: Gauge,
    up: Gauge,
    updates: Counter,
    failures: Counter,
}

// === impl DiscoveryMetrics ===

impl DiscoveryMetrics {
    /// Adds the metrics to the hub's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("discovery_replicas", "Replicas that a source knows now", self.replicas.clone());
        registry.register("discovery_up", "1 while a source's last answer could be used", self.up.clone());
        registry.register("discovery_updates", "Answers of a source that were used", self.updates.clone());
        let help = "Answers of a source that could not be used, or did not come";
        registry.register("discovery_failures", help, self.failures.clone());
        let help = "Replicas not followed as another one has their id, or as there are too many";
        registry.register("discovery_clashes", help, self.clashes.clone());
    }

    /// Those of the source of this name.
    pub(super) fn source(&self, name: &str) -> SourceMetrics {
        let label = SourceLabel { source: name.to_owned() };
        SourceMetrics {
            replicas: self.replicas.get_or_create_owned(&label),
            up: self.up.get_or_create_owned(&label),
            updates: self.updates.get_or_create_owned(&label),
            failures: self.failures.get_or_create_owned(&label),
        }
    }

    /// So many replicas are left out now.
    pub(super) fn clashes(&self, count: usize) {
        self.clashes.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

// === impl SourceMetrics ===

impl SourceMetrics {
    /// The source knows so many replicas.
    pub(super) fn answered(&self, replicas: usize) {
        self.updates.inc();
        self.up.set(1);
        self.replicas.set(i64::try_from(replicas).unwrap_or(i64::MAX));
    }

    /// Whether its last answer could be used.
    pub(super) fn is_up(&self, is_up: bool) {
        self.up.set(i64::from(is_up));
    }

    /// It could not.
    pub(super) fn failed(&self) {
        self.failures.inc();
    }
}
