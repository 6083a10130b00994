//! The hub's configuration: YAML, then the fields as written, then [`HubConfig`] that can be trusted.
//!
//! Every default is named here. A configuration is refused as a whole, with one line for each thing that is wrong.

mod discovery;
mod limits;
mod replicas;
mod reports;
mod security;
mod template;
mod tokenizers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::problems::Problems;
use super::yaml;
use crate::config::{Adapter, ranking_from_json};
use crate::routing::policy::Ranking;

pub use discovery::{DiscoveryConfig, DnsDiscovery, DnsRecords, FileDiscovery, KubernetesDiscovery, PodNamespace};
pub use limits::LimitsConfig;
pub use replicas::{EngineKind, MAX_REPLICAS, ReplicaConfig, replicas_of_file, shared_publishers};
pub use reports::{ModelBlocks, ReportsConfig, filled};
pub use security::{Access, OperationsConfig, SecurityConfig, TlsConfig, TokensConfig};
pub use template::{ReplicaTemplate, is_path};
pub use tokenizers::TokenizersConfig;

/// Defaults of the optional fields.
pub mod defaults {
    /// `listen.grpc`.
    pub const GRPC: &str = "127.0.0.1:9090";
    /// `listen.http`.
    pub const HTTP: &str = "127.0.0.1:8081";
    /// `replicas[].tenant`.
    pub const TENANT: &str = "default";
    /// `replicas[].hash_scheme`.
    pub const HASH_SCHEME: &str = "vllm";
    /// `scrape_interval_ms`.
    pub const SCRAPE_INTERVAL_MS: u64 = 500;
    /// `pressure_ceiling`, in requests: vLLM's usual `max_num_seqs`.
    pub const PRESSURE_CEILING: u64 = 256;
    /// `heartbeat_ms`.
    pub const HEARTBEAT_MS: u64 = 1_000;
    /// `resume_buffer_bytes`.
    pub const RESUME_BUFFER_BYTES: u64 = 64 * 1024 * 1024;
    /// `acknowledge_timeout_ms`.
    pub const ACKNOWLEDGE_TIMEOUT_MS: u64 = 30_000;
    /// `events.reconnect_min_ms`.
    pub const RECONNECT_MIN_MS: u64 = 50;
    /// `events.reconnect_max_ms`.
    pub const RECONNECT_MAX_MS: u64 = 1_000;
    /// `events.continuity_grace_ms`.
    pub const CONTINUITY_GRACE_MS: u64 = 1_000;
    /// `events.replay_timeout_ms`.
    pub const REPLAY_TIMEOUT_MS: u64 = 2_000;
    /// `events.replay_cooldown_ms`.
    pub const REPLAY_COOLDOWN_MS: u64 = 10_000;
    /// `events.verify_idle_ms`.
    pub const VERIFY_IDLE_MS: u64 = 5_000;
    /// `events.gone_after_ms`.
    pub const GONE_AFTER_MS: u64 = 15_000;
    /// `reassert.every_ms`.
    pub const REASSERT_EVERY_MS: u64 = 30_000;
    /// `policies.poll_ms`.
    pub const POLICY_POLL_MS: u64 = 1_000;
}

/// A valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct HubConfig {
    /// Where the Observe stream is served.
    pub grpc: SocketAddr,
    /// Where metrics, health and state are served.
    pub http: SocketAddr,
    /// The replicas to follow.
    pub replicas: Vec<ReplicaConfig>,
    /// Where more of them are found.
    pub discovery: DiscoveryConfig,
    /// How often a replica's `/metrics` is read.
    pub scrape_interval: Duration,
    /// The file of the authorities of engines whose metrics are at `https://`; `None` for those of the system.
    pub metrics_ca: Option<PathBuf>,
    /// Running and waiting requests at which a replica counts as saturated.
    pub pressure_ceiling: u64,
    /// The longest silence on a stream.
    pub heartbeat: Duration,
    /// The most bytes of past changes kept for subscribers that come back.
    pub resume_buffer_bytes: usize,
    /// A subscriber that has a full window and acknowledges nothing for this long is closed.
    pub acknowledge_timeout: Duration,
    /// How engines' events are followed.
    pub events: EventsConfig,
    /// Whether and how often followed replicas are said to hold what they held.
    pub reassert: ReassertConfig,
    /// What other producers may report.
    pub reports: ReportsConfig,
    /// Block sizes of prompts that come over LookupRoute.
    pub models: Vec<ModelBlocks>,
    /// LoRA adapters that requests may name as the model, by that name.
    pub adapters: BTreeMap<String, Adapter>,
    /// Where CachePolicies are read from, if anywhere.
    pub policies: Option<PoliciesConfig>,
    /// Where models' tokenizers and chat templates are read from, if anywhere.
    pub tokenizers: Option<TokenizersConfig>,
    /// `routing`: the settings for lookups that the hub answers itself, named as in the plugin's configuration.
    pub routing: Ranking,
    /// Who may talk to the hub.
    pub security: SecurityConfig,
    /// How much of everything there may be.
    pub limits: LimitsConfig,
}

/// Where CachePolicies are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoliciesConfig {
    /// A directory.
    pub directory: PathBuf,
    /// How often it is read.
    pub poll: Duration,
}

/// How engines' events are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// The first pause before connecting again; doubles up to `reconnect_max`.
    pub reconnect_min: Duration,
    /// The longest pause before connecting again.
    pub reconnect_max: Duration,
    /// After a lost connection the replica is cleared unless it is proved within this time that no event was missed.
    pub continuity_grace: Duration,
    /// The longest silence inside a replay.
    pub replay_timeout: Duration,
    /// After a replay without an answer none is asked for in this time.
    pub replay_cooldown: Duration,
    /// After this long without events a replay checks that none were missed.
    pub verify_idle: Duration,
    /// A replica of which neither events nor metrics were heard for this long, or whose name had no address, is gone.
    pub gone_after: Duration,
}

/// Engines announce a block once: what is known to be held still is said again, replica by replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReassertConfig {
    /// Whether it is; if not, a block counts for its tenant's `evictionTTL` after it was announced.
    pub enabled: bool,
    /// How often. An `evictionTTL` that is not well above it has blocks come and go.
    pub every: Duration,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// One line each.
    pub problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    listen: RawListen,
    #[serde(default)]
    replicas: Vec<replicas::RawReplica>,
    #[serde(default)]
    discovery: discovery::RawDiscovery,
    scrape_interval_ms: Option<u64>,
    metrics_ca: Option<PathBuf>,
    pressure_ceiling: Option<u64>,
    heartbeat_ms: Option<u64>,
    resume_buffer_bytes: Option<u64>,
    acknowledge_timeout_ms: Option<u64>,
    #[serde(default)]
    events: RawEvents,
    #[serde(default)]
    reassert: RawReassert,
    reports: Option<reports::RawReports>,
    #[serde(default)]
    models: Vec<reports::RawModelBlocks>,
    policies: Option<RawPolicies>,
    tokenizers: Option<tokenizers::RawTokenizers>,
    routing: Option<serde_norway::Value>,
    #[serde(default)]
    security: security::RawSecurity,
    #[serde(default)]
    limits: limits::RawLimits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPolicies {
    directory: PathBuf,
    poll_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawListen {
    grpc: Option<String>,
    http: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvents {
    reconnect_min_ms: Option<u64>,
    reconnect_max_ms: Option<u64>,
    continuity_grace_ms: Option<u64>,
    replay_timeout_ms: Option<u64>,
    replay_cooldown_ms: Option<u64>,
    verify_idle_ms: Option<u64>,
    gone_after_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReassert {
    enabled: Option<bool>,
    every_ms: Option<u64>,
}

// === impl HubConfig ===

impl HubConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// When it is not YAML of the expected shape, or values are not allowed.
    pub fn from_yaml(text: &str) -> Result<HubConfig, InvalidConfig> {
        let raw: RawConfig =
            serde_norway::from_str(text).map_err(|error| InvalidConfig { problems: vec![error.to_string()] })?;
        let mut problems = Problems::default();
        let config = validated(raw, &mut problems);
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(InvalidConfig { problems: problems.into_lines() }),
        }
    }
}

fn validated(raw: RawConfig, problems: &mut Problems) -> Option<HubConfig> {
    let grpc = problems.listener("listen.grpc", raw.listen.grpc.as_deref().unwrap_or(defaults::GRPC));
    let http = problems.listener("listen.http", raw.listen.http.as_deref().unwrap_or(defaults::HTTP));
    if let (Some(grpc), Some(http)) = (grpc, http)
        && grpc == http
        && http.port() != 0
    {
        problems.add("listen.http", http, "an address that listen.grpc does not have");
    }
    let minute = 60_000;
    let scrape_interval =
        problems.millis("scrape_interval_ms", raw.scrape_interval_ms, defaults::SCRAPE_INTERVAL_MS, 50, minute);
    let pressure_ceiling =
        problems.number("pressure_ceiling", raw.pressure_ceiling, defaults::PRESSURE_CEILING, 1, 1_000_000);
    let heartbeat = problems.millis("heartbeat_ms", raw.heartbeat_ms, defaults::HEARTBEAT_MS, 50, minute);
    let gibibyte = 1 << 30;
    let buffer = raw.resume_buffer_bytes;
    let resume_buffer_bytes =
        problems.number("resume_buffer_bytes", buffer, defaults::RESUME_BUFFER_BYTES, 0, 16 * gibibyte);
    let acknowledge_timeout = raw.acknowledge_timeout_ms;
    let acknowledge_timeout = problems.millis(
        "acknowledge_timeout_ms",
        acknowledge_timeout,
        defaults::ACKNOWLEDGE_TIMEOUT_MS,
        100,
        60 * minute,
    );
    let events = events(&raw.events, problems);
    let reassert = reassert(&raw.reassert, problems);
    let policies = raw.policies.map(|raw| policies(raw, problems));
    let routing = raw.routing.map(|raw| routing(raw, problems)).unwrap_or_default();
    let security = security::security(raw.security, grpc, http, problems);
    let limits = limits::limits(&raw.limits, problems);
    let discovery = discovery::discovery(raw.discovery, problems);
    let least = usize::from(raw.reports.is_none() && discovery.is_empty());
    let replicas = replicas::replicas(raw.replicas, least, problems);
    let reports = reports::reports(raw.reports.unwrap_or_default(), problems);
    let (models, adapters) = reports::models(raw.models, problems);
    let tokenizers = raw.tokenizers.map(|raw| {
        let followed = replicas.iter().map(|replica| replica.model.as_str());
        let known = followed.chain(models.iter().map(|model| model.model_id.as_str()));
        tokenizers::tokenizers(raw, known.chain(discovery.models()), !discovery.is_empty(), problems)
    });
    Some(HubConfig {
        grpc: grpc?,
        http: http?,
        replicas,
        discovery,
        scrape_interval,
        metrics_ca: raw.metrics_ca,
        pressure_ceiling,
        heartbeat,
        resume_buffer_bytes: usize::try_from(resume_buffer_bytes).unwrap_or(usize::MAX),
        acknowledge_timeout,
        events,
        reassert,
        reports,
        models,
        adapters,
        policies,
        tokenizers,
        routing,
        security,
        limits,
    })
}

fn policies(raw: RawPolicies, problems: &mut Problems) -> PoliciesConfig {
    if raw.directory.as_os_str().is_empty() {
        problems.add("policies.directory", "", "a path");
    }
    let poll = problems.millis("policies.poll_ms", raw.poll_ms, defaults::POLICY_POLL_MS, 50, 60_000);
    PoliciesConfig { directory: raw.directory, poll }
}

fn routing(raw: serde_norway::Value, problems: &mut Problems) -> Ranking {
    let settings = yaml::json_of(raw, "routing").map_err(|problem| vec![problem]);
    let ranking = settings.and_then(|settings| {
        let errors = ranking_from_json(&settings, "routing");
        errors.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    });
    ranking.unwrap_or_else(|lines| {
        lines.into_iter().for_each(|line| problems.add_line(line));
        Ranking::default()
    })
}

fn events(raw: &RawEvents, problems: &mut Problems) -> EventsConfig {
    let minute = 60_000;
    let mut millis = |name: &str, value, default, least| {
        problems.millis(&format!("events.{name}"), value, default, least, 10 * minute)
    };
    let events = EventsConfig {
        reconnect_min: millis("reconnect_min_ms", raw.reconnect_min_ms, defaults::RECONNECT_MIN_MS, 1),
        reconnect_max: millis("reconnect_max_ms", raw.reconnect_max_ms, defaults::RECONNECT_MAX_MS, 1),
        continuity_grace: millis("continuity_grace_ms", raw.continuity_grace_ms, defaults::CONTINUITY_GRACE_MS, 1),
        replay_timeout: millis("replay_timeout_ms", raw.replay_timeout_ms, defaults::REPLAY_TIMEOUT_MS, 10),
        replay_cooldown: millis("replay_cooldown_ms", raw.replay_cooldown_ms, defaults::REPLAY_COOLDOWN_MS, 0),
        verify_idle: millis("verify_idle_ms", raw.verify_idle_ms, defaults::VERIFY_IDLE_MS, 100),
        gone_after: millis("gone_after_ms", raw.gone_after_ms, defaults::GONE_AFTER_MS, 100),
    };
    if events.reconnect_max < events.reconnect_min {
        let (max, min) = (events.reconnect_max.as_millis(), events.reconnect_min.as_millis());
        problems.add("events.reconnect_max_ms", max, &format!("at least reconnect_min_ms, which is {min}"));
    }
    events
}

fn reassert(raw: &RawReassert, problems: &mut Problems) -> ReassertConfig {
    let every = problems.millis("reassert.every_ms", raw.every_ms, defaults::REASSERT_EVERY_MS, 100, 600_000);
    ReassertConfig { enabled: raw.enabled.unwrap_or(true), every }
}

impl std::fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for InvalidConfig {}

#[cfg(test)]
mod tests;
