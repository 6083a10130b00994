//! The shape of a case file.
//!
//! What a case sets up, asks or expects is read strictly: a field that is not known here would otherwise be a check that
//! is silently not made. Beside it a file may carry anything (`note`, `origin`, what was observed elsewhere).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::messages::{Entry, Event, Float, Lookup, TokenIds, Update};

/// A file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CaseFile {
    pub fingerprint: Vectors,
    pub affinity: Vectors,
    pub cases: Vec<Raw>,
}

/// Vectors of a hash: [`FingerprintVector`](super::vectors::FingerprintVector)s or
/// [`AffinityVector`](super::vectors::AffinityVector)s.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Vectors {
    pub vectors: Vec<Raw>,
}

/// A case or a vector that is not read yet, so that one that cannot be read does not hide the others.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Raw(pub Value);

/// A case.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub config: Config,
    pub steps: Vec<Step>,
}

/// How the server is set up.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Per-tenant policies; a tenant without one has the contract's defaults.
    pub policies: Vec<Policy>,
    pub tenants: Vec<Tenant>,
    /// The TTL where the policy has none; absent is 30 min.
    pub ttl_ms: Option<u64>,
    /// The most (key, replica) pairs; absent is a million, 0 no limit.
    pub max_entries: Option<u64>,
    pub ranker: Ranker,
    pub block_size: Option<u64>,
    /// Absent: there is none.
    pub tokenizer: Option<Tokenizer>,
    /// What every index lookup takes.
    pub lookup_delay_ms: u64,
}

/// A resolved policy. What it leaves out is off for the two minimums, and otherwise has the contract's default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    pub namespace: String,
    pub eviction: Option<String>,
    #[serde(rename = "evictionTTLMs")]
    pub eviction_ttl_ms: i64,
    pub minimum_prefix_tokens: i64,
    pub minimum_matched_tokens: i64,
    pub routing_floor_score: Option<f64>,
    pub lookup_timeout_ms: i64,
    pub strategy: Option<Strategy>,
    pub affinity_routing: Option<bool>,
}

/// `strategy` of a policy.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Strategy {
    pub enable_chain_matching: Option<bool>,
    pub require_chain: Option<bool>,
    pub enable_tenant_hot: Option<bool>,
}

/// A tenant's quota of distinct keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    #[serde(rename = "tenantID")]
    pub tenant_id: String,
    #[serde(rename = "maxIndexEntries")]
    pub max_index_entries: Option<i64>,
}

/// What of the ranking's constants is not the contract's.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranker {
    pub pressure_weight: Option<f64>,
    pub slo_tight_ttft_ms: Option<i64>,
    pub slo_tight_bias: Option<f64>,
    pub tenant_hot_min_hit_rate: Option<f64>,
    pub tenant_hot_max_age_ms: Option<i64>,
}

/// A tokenizer that does as the case says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenizer {
    #[serde(default)]
    pub kind: TokenizerKind,
    /// What a `fixed` one makes of any text.
    #[serde(default)]
    pub tokens: TokenIds,
    /// What it takes.
    #[serde(default)]
    pub delay_ms: u64,
    /// The bound where nobody else sets one; absent is 5 s.
    pub timeout_ms: Option<u64>,
    /// All its slots are taken.
    #[serde(default)]
    pub saturated: bool,
}

/// What a tokenizer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerKind {
    /// Gives the same ids for every text.
    Fixed,
    /// Fails.
    Error,
    /// Is not there.
    #[default]
    #[serde(alias = "none")]
    Unavailable,
}

/// An operation, and what it must come to.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Step {
    Ingest(Update),
    Event(Event),
    Advance {
        ms: i64,
    },
    Sweep,
    Policies {
        policies: Vec<Policy>,
        tenants: Option<Vec<Tenant>>,
    },
    SetAccessCount {
        #[serde(flatten)]
        entry: Entry,
        count: i64,
    },
    AccessCount {
        #[serde(flatten)]
        entry: Entry,
        expect: ExpectedCount,
    },
    Counts {
        #[serde(default)]
        expect: ExpectedCounts,
    },
    CacheState {
        #[serde(default)]
        model_id: String,
        #[serde(default)]
        tenant_id: String,
        #[serde(default)]
        expect: ExpectedState,
    },
    Lookup {
        #[serde(flatten)]
        lookup: Lookup,
        /// How often it is asked; the last answer counts.
        repeat: Option<u64>,
        #[serde(default)]
        expect: Box<ExpectedAnswer>,
    },
}

/// What a lookup must answer; what is absent is not compared.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedAnswer {
    pub reason_code: Option<String>,
    /// All of them, in order.
    pub ranked_replicas: Option<Vec<String>>,
    pub replica_count: Option<usize>,
    /// The first must be one of these.
    pub one_of: Option<Vec<String>>,
    pub scores: BTreeMap<String, Float>,
    pub matched_tokens: BTreeMap<String, i64>,
    pub hit_prob: BTreeMap<String, Float>,
    pub tiers: BTreeMap<String, i64>,
    pub adapter_id: Option<String>,
    pub echoed_token_count: Option<usize>,
}

/// What an entry's access count must be; -1 is no such entry.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCount {
    pub count: i64,
}

/// What the totals must be. A name that is missing among the totals stands at 0.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedCounts {
    pub prefix_keys: Option<i64>,
    pub replica_entries: Option<i64>,
    pub total: Option<i64>,
    pub by_tenant: BTreeMap<String, i64>,
    pub by_model: BTreeMap<String, i64>,
    pub tenant_evictions: BTreeMap<String, i64>,
    pub index_evictions: BTreeMap<String, i64>,
}

/// What `GetCacheState` must answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedState {
    pub total_prefixes: Option<i64>,
    pub hot_prefixes: Option<i64>,
    /// All of them, in any order.
    pub replicas: Option<Vec<ExpectedReplica>>,
}

/// A replica that `GetCacheState` must name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExpectedReplica {
    pub replica_id: String,
    pub cache_memory_bytes: Option<i64>,
    pub hit_rate: Option<Float>,
    pub pressure: Option<Float>,
    pub client_version: Option<String>,
    pub t2_hit_tokens: Option<i64>,
    pub t2_query_tokens: Option<i64>,
}

// === impl Raw ===

impl Raw {
    /// Its id, or its name if it has none.
    pub fn id(&self) -> String {
        let id = self.0.get("id").or_else(|| self.0.get("name")).unwrap_or(&Value::Null);
        id.as_str().map_or_else(|| id.to_string(), str::to_owned)
    }

    /// What it is.
    ///
    /// # Errors
    /// When it has not the shape that is documented here; names what is wrong.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.0).map_err(|error| error.to_string())
    }
}
