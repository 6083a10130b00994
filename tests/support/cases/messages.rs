//! The contract's messages as plain values, and how case files spell them.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

/// Bytes. In a file a string stands for its UTF-8, one that begins with `hex:` for what its digits spell.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// A float. In a file a number, or one of `NaN`, `+Inf`, `Inf`, `-Inf`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Float(pub f64);

/// Token ids. In a file a list, or `{start, n}` for `n` consecutive ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

/// A `CacheStateUpdate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Update {
    pub replica_id: String,
    pub model_id: String,
    pub tenant_id: String,
    pub hash_scheme: String,
    pub adapter_id: String,
    /// When, in ms from the clock's start; absent is `timestamp_us` 0, the server's own time.
    pub at_ms: Option<i64>,
    pub prefixes: Vec<Prefix>,
    pub stats: Option<Stats>,
    /// Written straight into the index, past what the call refuses.
    pub bypass: bool,
}

/// A `PrefixEntry`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefix {
    pub prefix_hash: Bytes,
    pub token_count: i32,
    pub block_hashes: Vec<Bytes>,
    pub block_token_counts: Vec<i32>,
    pub tier: i32,
    pub adapter_id: String,
}

/// A `ReplicaStats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stats {
    pub replica_id: String,
    pub cache_memory_bytes: i64,
    pub hit_rate: Float,
    pub pressure: Float,
    pub client_version: String,
    pub t2_hit_tokens: i64,
    pub t2_query_tokens: i64,
}

/// A `CacheEvent`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    /// The name of the type, or its number.
    #[serde(rename = "type")]
    pub kind: EventKind,
    pub replica_id: String,
    pub model_id: String,
    pub tenant_id: String,
    pub prefix_hash: Bytes,
    pub adapter_id: String,
    /// As in [`Update`].
    pub at_ms: Option<i64>,
}

/// `CacheEvent.Type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum EventKind {
    #[default]
    #[serde(rename = "TYPE_UNSPECIFIED")]
    Unspecified,
    #[serde(rename = "PREFIX_ADDED")]
    PrefixAdded,
    #[serde(rename = "PREFIX_EVICTED")]
    PrefixEvicted,
    #[serde(rename = "REPLICA_UPDATED")]
    ReplicaUpdated,
    #[serde(rename = "ALL_CLEARED")]
    AllCleared,
    /// Any name that the contract does not have.
    #[serde(other)]
    Unknown,
}

/// A `LookupRouteRequest`, and how it is called.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lookup {
    pub request: Request,
    /// The client's deadline from the call on; below 1 it has passed.
    pub caller_deadline_ms: Option<i64>,
}

/// A `LookupRouteRequest`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    pub model_id: String,
    pub tenant_id: String,
    pub hash_scheme: String,
    pub adapter_id: String,
    pub prefix_hash: Bytes,
    pub prefix_token_count: i32,
    pub block_hashes: Vec<Bytes>,
    pub block_token_counts: Vec<i32>,
    pub token_ids: TokenIds,
    pub prompt_text: String,
    /// How often `prompt_text` is written one after the other; absent is once.
    pub prompt_text_repeat: Option<usize>,
    pub slo_ttft_ms: i32,
    pub slo_tbt_ms: i32,
}

/// A `LookupRouteResponse`, without its latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Response {
    pub reason_code: String,
    pub replica_scores: Vec<ReplicaScore>,
    pub token_ids: Vec<u32>,
    pub adapter_id: String,
}

/// A `ReplicaScore`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplicaScore {
    pub replica_id: String,
    pub score: f32,
    pub matched_tokens: i32,
    pub estimated_cache_hit_prob: f32,
    pub tier: i32,
}

/// A `GetCacheStateResponse`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheState {
    pub replicas: Vec<ReplicaState>,
    pub total_prefixes: i64,
    pub hot_prefixes: i64,
}

/// A `ReplicaStats` as it is given out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaState {
    pub replica_id: String,
    pub cache_memory_bytes: i64,
    pub hit_rate: f32,
    pub pressure: f32,
    pub client_version: String,
    pub t2_hit_tokens: i64,
    pub t2_query_tokens: i64,
}

/// Totals of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Distinct keys, and (key, replica) pairs, those of the reserved tenant included.
    pub prefix_keys: i64,
    pub replica_entries: i64,
    /// Distinct keys without the reserved tenant's.
    pub total: i64,
    pub by_tenant: BTreeMap<String, i64>,
    pub by_model: BTreeMap<String, i64>,
    /// By `tenant|reason`.
    pub tenant_evictions: BTreeMap<String, i64>,
    /// By `algorithm|reason`.
    pub index_evictions: BTreeMap<String, i64>,
}

/// Names one (key, replica) pair.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Entry {
    pub replica_id: String,
    pub model_id: String,
    pub tenant_id: String,
    pub hash_scheme: String,
    pub adapter_id: String,
    pub prefix_hash: Bytes,
}

// === impl Bytes ===

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Some(digits) = text.strip_prefix("hex:") else { return Ok(Bytes(text.into_bytes())) };
        unhex(digits).map(Bytes).ok_or_else(|| D::Error::custom(format!("`{text}` is not pairs of hex digits")))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The bytes that pairs of hex digits spell.
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

// === impl Float ===

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Float, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Name(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Float(number)),
            Form::Name(name) => name.parse().map(Float).map_err(|_| D::Error::custom(format!("`{name}` is no number"))),
        }
    }
}

// === impl TokenIds ===

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenIds, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Listed(Vec<u32>),
            Counting { start: u32, n: u32 },
        }
        Ok(TokenIds(match Form::deserialize(deserializer)? {
            Form::Listed(ids) => ids,
            Form::Counting { start, n } => (0..n).map(|id| start.wrapping_add(id)).collect(),
        }))
    }
}

// === impl Request ===

impl Request {
    /// The text, written as often as it is to be.
    pub fn text(&self) -> String {
        self.prompt_text.repeat(self.prompt_text_repeat.unwrap_or(1))
    }
}
