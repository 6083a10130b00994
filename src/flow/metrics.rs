//! The names of the module's metrics.
//!
//! Envoy's metrics have no labels of their own; `stats_tags` in the bootstrap cuts them out of the name, where each is
//! written `.label.=value.;`. Nothing that a client chooses becomes part of a name: a model is one that the configuration
//! names, codes and details are ours. So the number of names, and of ids kept for them, is bounded.

/// Requests decided, by model, reason code, and whether a hint was given.
pub fn lookup_calls(model: &str, reason_code: &str, hint_used: bool) -> String {
    format!(
        "inferencecache_lookup_route_calls_total.model.={}.;.reason_code.={reason_code}.;.hint_used.={hint_used}.;",
        label(model)
    )
}

/// Time from the end of a request's input to its decision, in us.
pub fn lookup_latency(model: &str) -> String {
    format!("inferencecache_lookup_route_latency_us.model.={}.;", label(model))
}

/// Requests without a hint, by detail.
pub fn no_hint(detail: &str) -> String {
    format!("warmroute_no_hint_total.detail.={detail}.;")
}

/// Hints by the prompt's hash, by the detail of what they stand in for.
pub fn affinity_hint(detail: &str) -> String {
    format!("warmroute_affinity_hint_total.detail.={detail}.;")
}

/// Hints, by whether Envoy took the first replica, another of the list, or none of it.
pub fn hint_followed(followed: &str) -> String {
    format!("warmroute_hint_followed_total.followed.={followed}.;")
}

/// Blocks that the index refused, by reason.
pub fn blocks_refused(kind: &str) -> String {
    format!("warmroute_blocks_refused_total.kind.={kind}.;")
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
/// Times that a VM of this Envoy took the lead.
pub const LEADER_CHANGES: &str = "warmroute_leader_changes_total";
/// Times that the shared log was begun anew.
pub const LOG_RESTARTS: &str = "warmroute_log_restarts_total";
/// Times that a stream to the hub was opened.
pub const STREAM_OPENED: &str = "warmroute_stream_opened_total";
/// Messages from the hub that were refused.
pub const STREAM_REFUSED: &str = "warmroute_stream_refused_messages_total";
/// 1 while the stream to the hub is open.
pub const STREAM_CONNECTED: &str = "warmroute_stream_connected";
/// Values in shared data that could not be read.
pub const SHARED_UNREADABLE: &str = "warmroute_shared_unreadable_total";
/// Times that a VM had to load the pages because the log had moved on without it.
pub const FELL_OFF: &str = "warmroute_fell_off_log_total";
/// (block, replica) pairs in the leader's index.
pub const INDEX_PAIRS: &str = "warmroute_index_pairs";
/// The last committed log sequence.
pub const LOG_SEQUENCE: &str = "warmroute_log_sequence";
/// The plugin configurations refused.
pub const CONFIG_REFUSED: &str = "warmroute_config_refused_total";

/// A label value that cannot end its label early.
fn label(value: &str) -> String {
    value.replace(".;", "..")
}
