//! What `/state` says: the hub as an operator sees it, in JSON. `warmroute-hub inspect` reads the same.
//!
//! Times are Unix time in ms, ages and delays in ms. What is not known is `null`. Fields may be added; a reader passes over
//! those that it does not know. Lists are cut to a bounded length, each beside the number that there are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most followed replicas that are listed.
pub const MAX_FOLLOWED: usize = 8_192;
/// The most streams that are listed.
pub const MAX_STREAMS: usize = 1_000;
/// The most reported replicas that are listed.
pub const MAX_REPORTED: usize = 1_000;

/// The hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HubReport {
    /// The build.
    pub version: String,
    /// When this was said.
    pub now_ms: u64,
    /// The lifetime of the hub's history.
    pub epoch: u64,
    /// The latest change in it.
    pub sequence: u64,
    /// Whether the replicas are found, and of each is known all that can be.
    pub complete: bool,
    /// The Observe streams that are open.
    pub subscribers: i64,
    /// The oldest [`MAX_STREAMS`] of them.
    pub streams: Vec<StreamReport>,
    /// The first [`MAX_FOLLOWED`] replicas that are followed, in the order in which they came.
    pub replicas: Vec<ReplicaReport>,
    /// How many these are.
    pub replicas_total: usize,
    /// The first [`MAX_REPORTED`] replicas that producers report.
    pub reported: Vec<ReportedReport>,
    /// How many these are.
    pub reported_total: usize,
    /// The models whose text can be turned into token ids.
    pub models: Vec<ModelReport>,
    /// What takes memory.
    pub memory: MemoryReport,
}

/// An Observe stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReport {
    /// Who subscribed; empty before it said so.
    pub node_id: String,
    /// How long the stream is open.
    pub open_for_ms: u64,
    /// The sequence that the subscriber has once it applied all that was sent.
    pub position: u64,
    /// How far that is behind the hub's.
    pub behind: u64,
    /// Bytes sent and not acknowledged.
    pub unacknowledged_bytes: usize,
    /// The most that these may be.
    pub window_bytes: usize,
}

/// A replica that the hub follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaReport {
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: String,
    /// Its model.
    pub model: String,
    /// Where Envoy reaches it, `ip:port`; `null` before its name was resolved.
    pub address: Option<String>,
    /// Whose events it sends, as configured: `auto`, `vllm`, `sglang` or `tensorrt_llm`.
    pub engine: String,
    /// Ranks of data parallelism, as configured.
    pub data_parallel_size: u32,
    /// Which of them this is, where they are followed apart.
    pub data_parallel_rank: Option<u32>,
    /// Whether the hub is connected to its event publisher.
    pub connected: bool,
    /// Whether of it is known all that can be.
    pub complete: bool,
    /// Whether it may hold blocks that are not known, as the events that said so cannot be had.
    pub incomplete: bool,
    /// Blocks held.
    pub blocks: usize,
    /// The same by tier: `T1` (the engine's own cache), `T2` (offloaded), `T3` (remote).
    pub blocks_by_tier: BTreeMap<String, usize>,
    /// The number of the last event message applied; -1 before the first.
    pub event_sequence: i64,
    /// Times that event messages were missing.
    pub gaps: u64,
    /// Replays asked for.
    pub replays: u64,
    /// Those of them without a complete answer.
    pub replays_failed: u64,
    /// Times that the engine was found to have started over.
    pub restarts: u64,
    /// Times that all its blocks were given up.
    pub clears: u64,
    /// What was not credited, by reason.
    pub drops: BTreeMap<String, u64>,
    /// From when the engine made the last live message until it was applied.
    pub lag_ms: Option<u64>,
    /// How long ago the engine made the last message, by its clock.
    pub last_event_ago_ms: Option<u64>,
    /// How long ago the last message was applied.
    pub last_message_ago_ms: Option<u64>,
    /// Requests that it serves.
    pub running: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Load, 0 to 1.
    pub pressure: Option<f32>,
    /// Share of tokens found in its cache lately, 0 to 1.
    pub hit_rate: Option<f32>,
    /// Share of its cache that is in use, 0 to 1.
    pub cache_usage: Option<f64>,
    /// Tokens found in a cache behind its own, since it started.
    pub external_hit_tokens: Option<f64>,
    /// Tokens looked for there, since it started.
    pub external_query_tokens: Option<f64>,
    /// How long ago it answered with its metrics.
    pub last_scrape_ago_ms: Option<u64>,
    /// What is wrong with the last read of its metrics, the `reason` of `warmroute_hub_scrapes_failed_total`.
    pub scrape_fault: Option<String>,
}

/// A replica that producers report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedReport {
    /// Its id.
    pub id: String,
    /// Its tenant.
    pub tenant: String,
    /// Its model.
    pub model: String,
    /// Where Envoy reaches it; empty while that is not known.
    pub address: String,
    /// Blocks held.
    pub blocks: u64,
    /// Load, 0 to 1.
    pub pressure: Option<f32>,
    /// Share of tokens found in its cache lately, 0 to 1.
    pub hit_rate: Option<f32>,
}

/// A model whose text can be turned into token ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelReport {
    /// Its id.
    pub id: String,
    /// The digest of its package, hexadecimal.
    pub digest: String,
    /// The package's bytes.
    pub bytes: u64,
    /// The kind of tokenizer.
    pub kind: String,
    /// Tokens of its vocabulary.
    pub vocabulary: u64,
    /// Whether conversations can be rendered.
    pub chat_template: bool,
}

/// What takes memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryReport {
    /// Of the process; `null` where the system does not say.
    pub resident_bytes: Option<u64>,
    /// Of past changes kept for subscribers that come back, as they are on the wire.
    pub resume_buffer_bytes: usize,
    /// Blocks held by followed replicas.
    pub followed_blocks: usize,
    /// (replica, block) pairs that are published.
    pub index_pairs: u64,
    /// Bytes of the index of these.
    pub index_bytes: u64,
    /// Scopes: tenants, models, hash schemes and adapters.
    pub scopes: usize,
}
