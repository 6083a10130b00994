//! `replicas`: the replicas to follow, one by one.

use std::collections::{BTreeMap, HashMap, HashSet};

use hyper::Uri;
use serde::Deserialize;

use super::defaults;
use crate::fingerprint::BlockSize;
use crate::native::hub::problems::{Problems, http_url, is_host_and_port, port};

/// The most replicas.
pub const MAX_REPLICAS: usize = 4_096;

/// The most ranks of one replica.
pub(super) const MAX_RANKS: u64 = 1_024;

/// What the endpoint of a gRPC stream of events begins with.
const GRPC: &str = "grpc://";

/// Whose events a replica sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Told by each event's form.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM.
    TensorrtLlm,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Its id.
    pub id: String,
    /// `host:port` as Envoy knows it.
    pub address: String,
    /// The engine's event publisher; that of rank 0, where there are several, with the others at the ports after it.
    pub kv_events: String,
    /// The engine's replay socket; with several ranks as `kv_events`.
    pub kv_replay: Option<String>,
    /// The prefix of the topics to subscribe to; empty for all.
    pub topic: String,
    /// The URL of the engine's metrics.
    pub metrics: Uri,
    /// The model, as requests name it.
    pub model: String,
    /// The tenant.
    pub tenant: String,
    /// The tag that requests' keys must carry.
    pub hash_scheme: String,
    /// Tokens in a full block; `None` to learn it from the events.
    pub block_size: Option<BlockSize>,
    /// Whose events these are.
    pub engine: EngineKind,
    /// Ranks of data parallelism behind this address, each with a cache, a publisher and a replay socket of its own.
    pub data_parallel_size: u32,
    /// Names of LoRA adapters by the number that the engine gives them, for engines that do not say the name.
    pub adapter_names: BTreeMap<i64, String>,
}

// === impl ReplicaConfig ===

impl ReplicaConfig {
    /// Its ranks: each has a cache of its own, so that it counts as a replica. None for the only one.
    pub fn ranks(&self) -> impl Iterator<Item = Option<u32>> + use<> {
        let several = self.data_parallel_size > 1;
        (0..self.data_parallel_size).map(move |rank| several.then_some(rank))
    }

    /// The id under which a rank is announced.
    pub fn member_id(&self, rank: Option<u32>) -> String {
        rank.map_or_else(|| self.id.clone(), |rank| format!("{}/dp{rank}", self.id))
    }

    /// Where a rank has what rank 0 has at `endpoint`: the port is that of rank 0 and the rank, as engines choose it.
    pub fn endpoint(&self, endpoint: &str, rank: Option<u32>) -> String {
        let (Some((host, _)), Some(port)) = (endpoint.rsplit_once(':'), port(endpoint)) else {
            return endpoint.to_owned();
        };
        format!("{host}:{}", u32::from(port).saturating_add(rank.unwrap_or(0)))
    }

    /// `host:port` of the engine's gRPC stream of events, if that is what is to be followed.
    pub fn event_stream(&self) -> Option<&str> {
        self.kv_events.strip_prefix(GRPC)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReplica {
    id: String,
    address: String,
    kv_events: String,
    kv_replay: Option<String>,
    #[serde(default)]
    topic: String,
    metrics: Option<String>,
    model: String,
    tenant: Option<String>,
    hash_scheme: Option<String>,
    block_size: Option<u64>,
    #[serde(default)]
    engine: EngineKind,
    data_parallel_size: Option<u64>,
    #[serde(default)]
    adapter_names: BTreeMap<i64, String>,
}

// === impl EngineKind ===

impl EngineKind {
    /// Every kind.
    pub const ALL: [EngineKind; 4] = [EngineKind::Auto, EngineKind::Vllm, EngineKind::Sglang, EngineKind::TensorrtLlm];

    /// Where its HTTP server has Prometheus' text.
    pub fn metrics_path(self) -> &'static str {
        match self {
            EngineKind::Auto | EngineKind::Vllm | EngineKind::Sglang => "/metrics",
            // Its `/metrics` is JSON.
            EngineKind::TensorrtLlm => "/prometheus/metrics",
        }
    }

    /// As the configuration and `/state` have it.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineKind::Auto => "auto",
            EngineKind::Vllm => "vllm",
            EngineKind::Sglang => "sglang",
            EngineKind::TensorrtLlm => "tensorrt_llm",
        }
    }
}

/// Pairs of replicas, by their places, that would follow one publisher under two ids for one model and tenant: what one engine
/// holds would be said of both. The later one first; each once. An engine that serves several models or tenants is one replica
/// in each.
pub fn shared_publishers(replicas: &[ReplicaConfig]) -> Vec<(usize, usize)> {
    let mut owners: HashMap<(String, &str, &str), usize> = HashMap::new();
    let mut shared = Vec::new();
    for (at, replica) in replicas.iter().enumerate() {
        // One stream has all ranks.
        let publishers = if replica.event_stream().is_some() { 1 } else { usize::MAX };
        let mut owner = None;
        for rank in replica.ranks().take(publishers) {
            let endpoint = replica.endpoint(&replica.kv_events, rank).to_ascii_lowercase();
            let first = *owners.entry((endpoint, &replica.model, &replica.tenant)).or_insert(at);
            owner = owner.or(Some(first).filter(|first| *first != at));
        }
        shared.extend(owner.map(|owner| (at, owner)));
    }
    shared
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReplicas {
    replicas: Vec<RawReplica>,
}

/// A hub that names what others may report, or where replicas are found, can do with none that it lists.
pub(super) fn replicas(raw: Vec<RawReplica>, least: usize, problems: &mut Problems) -> Vec<ReplicaConfig> {
    if raw.len() < least || raw.len() > MAX_REPLICAS {
        let allowed = format!("1 to {MAX_REPLICAS}, or none with a `reports` or `discovery` section");
        problems.add("replicas", format!("{} entries", raw.len()), &allowed);
    }
    let mut ids = HashSet::new();
    let mut replicas = Vec::with_capacity(raw.len());
    for (at, raw) in raw.into_iter().enumerate() {
        if !ids.insert(raw.id.clone()) {
            problems.add(&format!("replicas[{at}].id"), &raw.id, "an id that no other replica has");
        }
        replicas.push(replica(at, raw, problems));
    }
    let several = |replica: &&ReplicaConfig| replica.data_parallel_size > 1;
    for replica in replicas.iter().filter(several) {
        for member in replica.ranks().map(|rank| replica.member_id(rank)).filter(|member| ids.contains(member)) {
            problems.add("replicas[].id", member, &format!("an id that no rank of `{}` has", replica.id));
        }
    }
    // Of what is wrong already nothing more is to be said.
    let shared = if problems.is_empty() { shared_publishers(&replicas) } else { Vec::new() };
    for (at, other) in shared {
        if let (Some(replica), Some(other)) = (replicas.get(at), replicas.get(other)) {
            let allowed =
                format!("an endpoint that no other replica of this model and tenant has: `{}` has it", other.id);
            problems.add(
                &format!("replicas[{at}].kv_events"),
                format!("{} of {}", replica.kv_events, replica.id),
                &allowed,
            );
        }
    }
    replicas
}

fn replica(at: usize, raw: RawReplica, problems: &mut Problems) -> ReplicaConfig {
    let field = |name: &str| format!("replicas[{at}].{name}");
    let path = raw.engine.metrics_path();
    let metrics = raw.metrics.unwrap_or_else(|| format!("http://{}{path}", raw.address));
    let tenant = raw.tenant.unwrap_or_else(|| defaults::TENANT.to_owned());
    let hash_scheme = raw.hash_scheme.unwrap_or_else(|| defaults::HASH_SCHEME.to_owned());
    for (name, value) in [("id", &raw.id), ("model", &raw.model), ("tenant", &tenant), ("hash_scheme", &hash_scheme)] {
        problems.name(&field(name), value);
    }
    if !is_host_and_port(&raw.address) {
        problems.add(&field("address"), &raw.address, "host:port with a port of 1 to 65535, IPv6 in brackets");
    }
    let ranks = problems.number(&field("data_parallel_size"), raw.data_parallel_size, 1, 1, MAX_RANKS);
    let is_stream = raw.kv_events.starts_with(GRPC);
    if !is_stream {
        problems.endpoint(&field("kv_events"), &raw.kv_events, ranks.max(1));
    } else if !raw.kv_events.strip_prefix(GRPC).is_some_and(is_host_and_port) {
        problems.add(&field("kv_events"), &raw.kv_events, "grpc://host:port with a port of 1 to 65535");
    }
    if let Some(endpoint) = &raw.kv_replay {
        if is_stream {
            problems.add(&field("kv_replay"), endpoint, "nothing beside kv_events of grpc://, which replays itself");
        }
        problems.endpoint(&field("kv_replay"), endpoint, ranks.max(1));
        let of = |endpoint: &str| Some((endpoint.rsplit_once(':')?.0.to_owned(), u64::from(port(endpoint)?)));
        if let (Some((host, events)), Some((other, replay))) = (of(&raw.kv_events), of(endpoint))
            && host == other
            && events.abs_diff(replay) < ranks.max(1)
        {
            problems.add(&field("kv_replay"), endpoint, &format!("a port at least {ranks} from that of kv_events"));
        }
    }
    let metrics = http_url(&metrics).unwrap_or_else(|| {
        problems.add(&field("metrics"), &metrics, "an http:// or https:// URL");
        Uri::default()
    });
    let block_size = block_size(&field("block_size"), raw.block_size, problems);
    for name in raw.adapter_names.values() {
        problems.name(&field("adapter_names"), name);
    }
    ReplicaConfig {
        id: raw.id,
        address: raw.address,
        kv_events: raw.kv_events,
        kv_replay: raw.kv_replay,
        topic: raw.topic,
        metrics,
        model: raw.model,
        tenant,
        hash_scheme,
        block_size,
        engine: raw.engine,
        data_parallel_size: u32::try_from(ranks).unwrap_or(1),
        adapter_names: raw.adapter_names,
    }
}

/// Tokens in a full block, if they are given.
pub(super) fn block_size(field: &str, tokens: Option<u64>, problems: &mut Problems) -> Option<BlockSize> {
    let tokens = tokens?;
    let block_size = BlockSize::try_new(tokens).ok();
    if block_size.is_none() {
        problems.add(field, tokens, &format!("1 to {} tokens", BlockSize::MAX));
    }
    block_size
}

/// The replicas of a file of them: a list, or an object with the list as `replicas`.
///
/// # Errors
/// One line for each thing that is wrong, with field, value and what is allowed.
pub fn replicas_of_file(text: &str) -> Result<Vec<ReplicaConfig>, Vec<String>> {
    let not_yaml = |error: serde_norway::Error| vec![error.to_string()];
    let document: serde_norway::Value = serde_norway::from_str(text).map_err(not_yaml)?;
    let raw = match document {
        serde_norway::Value::Mapping(_) => {
            serde_norway::from_str::<RawReplicas>(text).map(|file| file.replicas).map_err(not_yaml)?
        }
        // A file with nothing in it says so in words: one that is still being written must not end all replicas.
        serde_norway::Value::Null => return Err(vec!["the file is empty, allowed is a list of replicas".to_owned()]),
        _ => serde_norway::from_str(text).map_err(not_yaml)?,
    };
    let mut problems = Problems::default();
    let replicas = replicas(raw, 0, &mut problems);
    if problems.is_empty() { Ok(replicas) } else { Err(problems.into_lines()) }
}
