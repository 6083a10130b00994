//! What replicas are beside their addresses, where these are discovered.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hyper::Uri;
use serde::Deserialize;

use super::defaults;
use super::replicas::{EngineKind, MAX_RANKS, ReplicaConfig, block_size};
use crate::fingerprint::BlockSize;
use crate::native::hub::problems::{Problems, http_url};

/// The port of vLLM's and SGLang's event publishers, unless they are told another one.
pub const KV_EVENTS_PORT: u64 = 5_557;

/// What replicas are beside their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTemplate {
    /// The model; empty where it is said elsewhere.
    pub model: String,
    /// The tenant.
    pub tenant: String,
    /// The tag that requests' keys must carry.
    pub hash_scheme: String,
    /// The prefix of the topics to subscribe to; empty for all.
    pub topic: String,
    /// Tokens in a full block; `None` to learn it from the events.
    pub block_size: Option<BlockSize>,
    /// Whose events these are.
    pub engine: EngineKind,
    /// Ranks of data parallelism.
    pub data_parallel_size: u32,
    /// Names of LoRA adapters by number.
    pub adapter_names: BTreeMap<i64, String>,
    /// The port of the event publisher.
    pub kv_events_port: u16,
    /// The port of the replay socket, if there is one.
    pub kv_replay_port: Option<u16>,
    /// The port of the metrics; `None`: the replica's own.
    pub metrics_port: Option<u16>,
    /// The path of the metrics; `None`: the engine's usual one.
    pub metrics_path: Option<String>,
}

/// `replica` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTemplate {
    model: Option<String>,
    tenant: Option<String>,
    hash_scheme: Option<String>,
    #[serde(default)]
    topic: String,
    block_size: Option<u64>,
    #[serde(default)]
    engine: EngineKind,
    data_parallel_size: Option<u64>,
    #[serde(default)]
    adapter_names: BTreeMap<i64, String>,
    kv_events_port: Option<u64>,
    kv_replay_port: Option<u64>,
    metrics_port: Option<u64>,
    metrics_path: Option<String>,
}

// === impl ReplicaTemplate ===

impl ReplicaTemplate {
    /// The replica of this id at `address`.
    pub fn replica(&self, id: String, address: SocketAddr) -> ReplicaConfig {
        let at = |port: u16| SocketAddr::new(address.ip(), port);
        let path = self.metrics_path.as_deref().unwrap_or(self.engine.metrics_path());
        let metrics = format!("http://{}{path}", self.metrics_port.map_or(address, at));
        ReplicaConfig {
            id,
            address: address.to_string(),
            kv_events: format!("tcp://{}", at(self.kv_events_port)),
            kv_replay: self.kv_replay_port.map(|port| format!("tcp://{}", at(port))),
            topic: self.topic.clone(),
            // An address and a path that was checked.
            metrics: http_url(&metrics).unwrap_or_default(),
            model: self.model.clone(),
            tenant: self.tenant.clone(),
            hash_scheme: self.hash_scheme.clone(),
            block_size: self.block_size,
            engine: self.engine,
            data_parallel_size: self.data_parallel_size,
            adapter_names: self.adapter_names.clone(),
        }
    }
}

/// Checks the template at `at`; `needs_model`: whether the model is said nowhere else.
pub fn template(at: &str, raw: RawTemplate, needs_model: bool, problems: &mut Problems) -> ReplicaTemplate {
    let field = |name: &str| format!("{at}.{name}");
    let tenant = raw.tenant.unwrap_or_else(|| defaults::TENANT.to_owned());
    let hash_scheme = raw.hash_scheme.unwrap_or_else(|| defaults::HASH_SCHEME.to_owned());
    if needs_model || raw.model.is_some() {
        problems.name(&field("model"), raw.model.as_deref().unwrap_or_default());
    }
    for (name, value) in [("tenant", &tenant), ("hash_scheme", &hash_scheme)] {
        problems.name(&field(name), value);
    }
    let block_size = block_size(&field("block_size"), raw.block_size, problems);
    let ranks = problems.number(&field("data_parallel_size"), raw.data_parallel_size, 1, 1, MAX_RANKS);
    for name in raw.adapter_names.values() {
        problems.name(&field("adapter_names"), name);
    }
    if let Some(path) = raw.metrics_path.as_ref().filter(|path| !is_path(path)) {
        problems.add(&field("metrics_path"), path, "a path that begins with /");
    }
    let mut optional_port =
        |name: &str, value: Option<u64>| value.map(|value| port(&field(name), Some(value), 1, problems));
    let kv_replay_port = optional_port("kv_replay_port", raw.kv_replay_port);
    let metrics_port = optional_port("metrics_port", raw.metrics_port);
    ReplicaTemplate {
        model: raw.model.unwrap_or_default(),
        tenant,
        hash_scheme,
        topic: raw.topic,
        block_size,
        engine: raw.engine,
        data_parallel_size: u32::try_from(ranks).unwrap_or(1),
        adapter_names: raw.adapter_names,
        kv_events_port: port(&field("kv_events_port"), raw.kv_events_port, KV_EVENTS_PORT, problems),
        kv_replay_port,
        metrics_port,
        metrics_path: raw.metrics_path,
    }
}

/// A port, or its default.
pub fn port(field: &str, value: Option<u64>, default: u64, problems: &mut Problems) -> u16 {
    let port = problems.number(field, value, default, 1, u64::from(u16::MAX));
    u16::try_from(port).unwrap_or(u16::MAX)
}

/// Whether a URL can have this path.
pub fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.parse::<Uri>().is_ok()
}
