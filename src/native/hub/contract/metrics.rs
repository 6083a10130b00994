//! The contract's metrics, under the names that its dashboards know.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::labels::ModelLabels;
use crate::index::Index;
use crate::native::hub::state::HubState;
use crate::routing::reason::ReasonCode;

/// The upper bounds of the latency's buckets, in seconds; the contract's.
const LATENCY_BUCKETS: [f64; 10] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    model: String,
    reason_code: &'static str,
    hint_used: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantEviction {
    tenant_id: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IndexEviction {
    algorithm: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

/// What is counted of the contract's calls.
#[derive(Debug)]
pub struct ContractMetrics {
    models: ModelLabels,
    calls: Family<CallLabels, Counter>,
    latency: Family<ModelLabel, Histogram, fn() -> Histogram>,
    index_entries: Family<ModelLabel, Gauge>,
    tenant_evictions: Family<TenantEviction, Counter>,
    index_evictions: Family<IndexEviction, Counter>,
    dropped: Family<DropLabel, Counter>,
}

// === impl ContractMetrics ===

impl ContractMetrics {
    /// All at 0, in `registry`. Models that `models` does not know share a label, until something is held of them.
    pub fn new(models: ModelLabels, registry: &mut Registry) -> ContractMetrics {
        let metrics = ContractMetrics {
            models,
            calls: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCY_BUCKETS)),
            index_entries: Family::default(),
            tenant_evictions: Family::default(),
            index_evictions: Family::default(),
            dropped: Family::default(),
        };
        registry.register("inferencecache_lookup_route_calls", "LookupRoute calls answered", metrics.calls.clone());
        let help = "From the arrival of a LookupRoute call to its answer, in seconds";
        registry.register("inferencecache_lookup_route_latency_seconds", help, metrics.latency.clone());
        let help = "Distinct prefixes held, the reserved tenant's left out";
        registry.register("inferencecache_index_entries", help, metrics.index_entries.clone());
        let help = "Distinct prefixes that went because their tenant's quota was exceeded";
        registry.register("inferencecache_tenant_evictions", help, metrics.tenant_evictions.clone());
        let help = "(Replica, prefix) entries that went beyond the cap or by age";
        registry.register("inferencecache_index_evictions", help, metrics.index_evictions.clone());
        let help = "Reported prefixes, statistics and events that were left out, by reason";
        registry.register("warmroute_hub_reports_dropped", help, metrics.dropped.clone());
        metrics
    }

    /// `model` is served by a replica that the hub follows: it gets a label of its own, if there may be another.
    pub fn know_model(&self, model: &str) {
        self.models.label(model, || true);
    }

    /// A LookupRoute call was answered.
    pub fn answered(&self, model_id: &str, reason: ReasonCode, has_hint: bool, took: Duration, state: &HubState) {
        let is_held = || state.read(|publisher| holds(publisher.index(), model_id));
        let model = self.models.label(model_id, is_held);
        let hint_used = if has_hint { "true" } else { "false" };
        self.latency.get_or_create(&ModelLabel { model: model.clone() }).observe(took.as_secs_f64());
        self.calls.get_or_create(&CallLabels { model, reason_code: reason.as_str(), hint_used }).inc();
    }

    /// Takes over what `state` has counted.
    pub fn read(&self, state: &HubState) {
        let (counts, evictions, dropped) =
            state.read(|publisher| (publisher.counts(), publisher.evictions().clone(), *publisher.dropped()));
        let mut by_label: BTreeMap<String, u64> = self.models.all().into_iter().map(|model| (model, 0)).collect();
        for (model, entries) in counts.by_model {
            *by_label.entry(self.models.label(&model, || true)).or_default() += entries;
        }
        for (model, entries) in by_label {
            self.index_entries.get_or_create(&ModelLabel { model }).set(i64::try_from(entries).unwrap_or(i64::MAX));
        }
        for (tenant_id, count) in &evictions.over_quota {
            let label = TenantEviction { tenant_id: tenant_id.clone(), reason: "over_entries" };
            set(&self.tenant_evictions.get_or_create(&label), *count);
        }
        for ((algorithm, reason), count) in &evictions.entries {
            set(&self.index_evictions.get_or_create(&IndexEviction { algorithm, reason }), *count);
        }
        for (reason, count) in dropped.reasons() {
            set(&self.dropped.get_or_create(&DropLabel { reason: reason.as_str() }), count);
        }
    }
}

/// Whether anything is held of this model, for any tenant.
fn holds(index: &Index, model_id: &str) -> bool {
    let mut scopes = index.dictionary().scopes().filter(|(_, scope)| scope.model_id == model_id);
    scopes.any(|(slot, _)| index.keys_of(slot) > 0)
}

/// Sets a counter to a total that is kept elsewhere and never falls.
fn set(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, Ordering::Relaxed);
}
