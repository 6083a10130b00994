//! The names of the module's metrics.
//!
//! Envoy's metrics have no labels of their own; `stats_tags` in the bootstrap cuts them out of the name, where each is
//! written `.label.=value.;`. Nothing that a client chooses becomes part of a name: a model is one that the configuration
//! names, codes and details are ours. So the number of names, and of ids kept for them, is bounded. Names that requests
//! count under are formatted once.
//!
//! The metrics are the process's, not a VM's. What every VM has of its own is a histogram, to which each adds; a gauge is
//! set by the leader alone, of which there is one.

mod memo;

use std::rc::Rc;

use crate::host::Host;
use crate::routing::policy::Eviction;
use memo::OfModel;

/// Why a pair of the index was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evicted {
    /// `limits.max_index_entries`.
    Cap,
    /// The tenant's quota.
    Quota,
    /// The tenant's TTL.
    Ttl,
    /// `limits.max_index_bytes`.
    Memory,
}

/// Why blocks that the hub told of were not taken as told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The index has as many pairs as it may.
    Full,
    /// The index takes as much memory as it may.
    Memory,
    /// The log names as many scopes as it may.
    TooManyScopes,
    /// The block has a time ahead of this clock: taken, with the time now.
    FutureTime,
}

/// What the index is known to lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undercount {
    /// Blocks that were [refused](Refusal), because there was no room for them.
    Refused(Refusal),
    /// Hits of requests that did not reach the leader.
    CreditsLost,
    /// Times that changes were missed, or may have been, so that the hub has to tell everything anew; until then the index
    /// is what it was.
    Gap,
}

/// Why a part of a model's package that the hub sent was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartRefusal {
    /// Nobody asked for parts of this version.
    NotAskedFor,
    /// Its number or its length is not one that was asked for.
    Malformed,
}

/// Why a VM does not use the package of an announced version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackageRefusal {
    /// It does not fit into `limits.max_model_bytes`.
    TooLarge,
    /// Its contents are not those that its digest was taken of.
    Damaged,
    /// Its format, tokenizer or templates are none that this build can use.
    Invalid,
}

/// Requests decided, by model, reason code, and whether a hint was given.
pub fn lookup_calls(model: &str, reason_code: &'static str, hint_used: bool) -> Rc<str> {
    memo::of_model(model, OfModel::Calls { reason_code, hint_used }, || {
        let model = label(model);
        format!(
            "inferencecache_lookup_route_calls_total.model.={model}.;.reason_code.={reason_code}.;.hint_used.={hint_used}.;"
        )
    })
}

/// Time from the end of a request's input to its decision, in us.
pub fn lookup_latency(model: &str) -> Rc<str> {
    memo::of_model(model, OfModel::Latency, || {
        format!("inferencecache_lookup_route_latency_us.model.={}.;", label(model))
    })
}

/// Time from the end of a request's input to the first byte of its response's body, in ms; of requests that were looked up and
/// answered with 2xx.
pub fn time_to_first_byte(model: &str, reason_code: &'static str) -> Rc<str> {
    memo::of_model(model, OfModel::FirstByte { reason_code }, || {
        format!("warmroute_time_to_first_byte_ms.model.={}.;.reason_code.={reason_code}.;", label(model))
    })
}

/// Tokens that were foretold to be cached at the replica that answered, of each response compared.
pub fn predicted_tokens(model: &str) -> Rc<str> {
    memo::of_model(model, OfModel::Predicted, || format!("warmroute_predicted_tokens.model.={}.;", label(model)))
}

/// Tokens that its engine says were cached.
pub fn cached_tokens(model: &str) -> Rc<str> {
    memo::of_model(model, OfModel::Cached, || format!("warmroute_cached_tokens.model.={}.;", label(model)))
}

/// Responses whose usage was held against what was foretold, by outcome.
pub fn usage_compared(model: &str, outcome: &'static str) -> Rc<str> {
    memo::of_model(model, OfModel::Compared { outcome }, || {
        format!("warmroute_usage_compared_total.model.={}.;.outcome.={outcome}.;", label(model))
    })
}

/// Predictions that failed.
pub fn prediction_failures(model: &str) -> Rc<str> {
    memo::of_model(model, OfModel::Failures, || {
        format!("warmroute_prediction_failures_total.model.={}.;", label(model))
    })
}

/// Prompts of which the engine counted other tokens than were counted here.
pub fn prompt_tokens_mismatch(model: &str) -> Rc<str> {
    memo::of_model(model, OfModel::Mismatch, || {
        format!("warmroute_prompt_tokens_mismatch_total.model.={}.;", label(model))
    })
}

/// Requests without a hint, by detail.
pub fn no_hint(detail: &'static str) -> Rc<str> {
    memo::labelled("warmroute_no_hint_total", "detail", detail)
}

/// Hints by the prompt's hash, by the detail of what they stand in for.
pub fn affinity_hint(detail: &'static str) -> Rc<str> {
    memo::labelled("warmroute_affinity_hint_total", "detail", detail)
}

/// Hints, by whether Envoy took the first replica, another of the list, or none of it.
pub fn hint_followed(followed: &'static str) -> Rc<str> {
    memo::labelled("warmroute_hint_followed_total", "followed", followed)
}

/// Blocks that the index refused, by reason.
pub fn blocks_refused(refusal: Refusal) -> Rc<str> {
    memo::labelled("warmroute_blocks_refused_total", "kind", refusal.as_str())
}

/// Credits (one hit of one block at one replica) that no index will have, by reason.
pub fn credits_lost(kind: &str) -> String {
    format!("warmroute_lfu_credits_lost_total.kind.={kind}.;")
}

/// Batches of credits that the leader dropped unread, by reason.
pub fn credit_batches_dropped(kind: &str) -> String {
    format!("warmroute_lfu_batches_dropped_total.kind.={kind}.;")
}

/// Credits that the leader has committed.
pub const CREDITS: &str = "warmroute_lfu_credits_total";
/// What the index is known to lack, by reason; each reason has its own unit.
pub fn known_undercount(undercount: Undercount) -> Rc<str> {
    memo::labelled("warmroute_known_undercount_total", "reason", undercount.as_str())
}

/// Pairs evicted, by the algorithm of their tenant's policy and the reason.
pub fn evictions(algorithm: Eviction, reason: Evicted) -> String {
    format!("warmroute_evictions_total.algorithm.={}.;.reason.={}.;", algorithm.as_str(), reason.as_str())
}

/// Counts `credits` that are lost, and hits that the leader does not know of: what is not held any more has none.
pub fn count_credits_lost(host: &impl Host, kind: &str, credits: u64) {
    if credits == 0 {
        return;
    }
    host.count(&credits_lost(kind), credits);
    if kind != NOT_HELD {
        host.count(&known_undercount(Undercount::CreditsLost), credits);
    }
}

/// The kind of credits of blocks that are not held any more.
pub const NOT_HELD: &str = "not_held";

/// Counts `pairs` that the leader evicted.
pub fn count_evictions(host: &impl Host, algorithm: Eviction, reason: Evicted, pairs: u64) {
    if pairs > 0 {
        host.count(&evictions(algorithm, reason), pairs);
    }
}

/// Counts `blocks` that were refused, and those of them that the index lacks from then on.
pub fn count_refused(host: &impl Host, refusal: Refusal, blocks: u64) {
    if blocks == 0 {
        return;
    }
    host.count(&blocks_refused(refusal), blocks);
    if refusal != Refusal::FutureTime {
        host.count(&known_undercount(Undercount::Refused(refusal)), blocks);
    }
}

/// Counts a part that was not taken.
pub fn count_part_refused(host: &impl Host, refusal: PartRefusal) {
    host.count(&memo::labelled("warmroute_model_parts_refused_total", "kind", refusal.as_str()), 1);
}

/// Counts a package that a VM does not use.
pub fn count_package_refused(host: &impl Host, refusal: PackageRefusal) {
    host.count(&memo::labelled("warmroute_model_packages_refused_total", "kind", refusal.as_str()), 1);
}

/// Parts of models' packages that the leader has written.
pub const MODEL_PARTS_STORED: &str = "warmroute_model_parts_stored_total";
/// Models whose text can be turned into token ids, as the leader knows them.
pub const MODELS_ANNOUNCED: &str = "warmroute_models_announced";
/// Announced versions whose contents are all in shared data, as the leader last looked at them.
pub const MODEL_VERSIONS_STORED: &str = "warmroute_model_versions_stored";
/// Bytes of announced versions' contents in shared data, as the leader last looked at them.
pub const MODEL_BYTES: &str = "warmroute_shared_model_bytes";
/// Versions that a VM has loaded, of each VM that serves from time to time.
pub const VM_MODELS: &str = "warmroute_vm_models";
/// KiB of the packages that a VM has loaded, likewise.
pub const VM_MODEL_KIB: &str = "warmroute_vm_model_kib";
/// Time that a VM took to load a model from its whole package, in us.
pub const MODEL_LOAD_US: &str = "warmroute_model_load_us";
/// Time from the first part of a package to the loaded model, in ms.
pub const MODEL_COLLECT_MS: &str = "warmroute_model_collect_ms";
/// Times that a VM of this Envoy took the lead, and that another root context of the leading VM took it over.
pub const LEADER_CHANGES: &str = "warmroute_leader_changes_total";
/// Times that the shared log was begun anew.
pub const LOG_RESTARTS: &str = "warmroute_log_restarts_total";
/// Times that a stream to the hub was opened.
pub const STREAM_OPENED: &str = "warmroute_stream_opened_total";
/// Times that another hub was heard than before.
pub const HUB_CHANGES: &str = "warmroute_hub_changes_total";
/// Messages from the hub that were refused.
pub const STREAM_REFUSED: &str = "warmroute_stream_refused_messages_total";
/// 1 while a stream to the hub is open over which it has been heard.
pub const STREAM_CONNECTED: &str = "warmroute_stream_connected";
/// Values in shared data that could not be read.
pub const SHARED_UNREADABLE: &str = "warmroute_shared_unreadable_total";
/// Times that a VM had to load the pages because the log had moved on without it.
pub const FELL_OFF: &str = "warmroute_fell_off_log_total";
/// Times that a VM began to build its index from pages and log.
pub const CATCH_UPS_BEGUN: &str = "warmroute_catch_ups_begun_total";
/// Times that requests began to see an index that was so built.
pub const CATCH_UPS_COMPLETED: &str = "warmroute_catch_ups_completed_total";
/// From the one to the other, in ms.
pub const CATCH_UP_MS: &str = "warmroute_catch_up_ms";
/// Segments that a VM that serves requests has not applied, at each of its ticks.
pub const LAG_SEGMENTS: &str = "warmroute_lag_segments";
/// (block, replica) pairs in the leader's index.
pub const INDEX_PAIRS: &str = "warmroute_index_pairs";
/// Replica generations that hold something in the leader's index.
pub const INDEX_HOLDERS: &str = "warmroute_index_holders";
/// Bytes that the leader's index takes.
pub const INDEX_BYTES: &str = "warmroute_index_bytes";
/// KiB that the index of a VM takes, of each VM from time to time. Envoy's histograms end at 3.6 M: bytes do not fit.
pub const VM_INDEX_KIB: &str = "warmroute_vm_index_kib";
/// The last committed log sequence, which is also the one that the leader has applied.
pub const LOG_SEQUENCE: &str = "warmroute_log_sequence";
/// Bytes of the log's segments in shared data, as the leader last looked at each.
pub const LOG_BYTES: &str = "warmroute_shared_log_bytes";
/// Bytes of the pages in shared data, as the leader last looked at each.
pub const PAGE_BYTES: &str = "warmroute_shared_page_bytes";
/// Pages in shared data that have been written.
pub const PAGES: &str = "warmroute_shared_pages";
/// Time that one step of background work took from its VM, in us: a tick, or a callback of the stream to the hub.
pub const BACKGROUND_STEP_US: &str = "warmroute_background_step_us";
/// The plugin configurations refused.
pub const CONFIG_REFUSED: &str = "warmroute_config_refused_total";

// === impl Evicted ===

impl Evicted {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Evicted::Cap => "cap",
            Evicted::Quota => "quota",
            Evicted::Ttl => "ttl",
            Evicted::Memory => "memory",
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Full => "full",
            Refusal::Memory => "memory",
            Refusal::TooManyScopes => "too_many_scopes",
            Refusal::FutureTime => "future_time",
        }
    }
}

// === impl PartRefusal ===

impl PartRefusal {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            PartRefusal::NotAskedFor => "not_asked_for",
            PartRefusal::Malformed => "malformed",
        }
    }
}

// === impl PackageRefusal ===

impl PackageRefusal {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            PackageRefusal::TooLarge => "too_large",
            PackageRefusal::Damaged => "damaged",
            PackageRefusal::Invalid => "invalid",
        }
    }
}

// === impl Undercount ===

impl Undercount {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Undercount::Refused(refusal) => refusal.as_str(),
            Undercount::CreditsLost => "credits_lost",
            Undercount::Gap => "gap",
        }
    }
}

/// A label value that cannot end its label early.
fn label(value: &str) -> String {
    value.replace(".;", "..")
}

#[cfg(test)]
mod tests;
