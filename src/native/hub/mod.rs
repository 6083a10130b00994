//! The hub: engines' KV events and producers' reports in, the Observe stream and answers to lookups out.
//!
//! ```text
//! files, DNS, Kubernetes ─► discovery ─► fleet, which has for each replica:
//! engine   ── ZeroMQ ───► source ───►┐
//!          ── /metrics ─► scrape ───►├─ HubState ──► subscriber ── gRPC ──► filter
//! producer ── gRPC ─────► contract ─►┘     ├───────► contract ──── gRPC ──► gateway
//!                                          └───────► http ──► operators
//! ```
//!
//! Replicas are listed or discovered, and come and go while the hub runs. For each a `source` follows the engine's events and a `scrape`r reads its load; both write into one `state`,
//! as do other producers over the public [contract], and its numbered history is what every `subscriber` follows. The hub
//! is not on the path of requests: without it, filters serve on with what they know until that is stale.

mod capacity;
mod clock;
pub mod config;
mod continuity;
pub mod contract;
mod copying;
mod discovery;
mod event_reader;
mod exposition;
mod fleet;
mod followed;
mod http;
pub mod https;
mod jumps;
mod metrics;
pub mod models;
mod parts;
pub mod policies;
mod problems;
mod reassert;
pub mod replica_blocks;
pub mod replica_cache;
pub mod report;
mod resets;
mod ring;
mod roster;
mod scope_filter;
mod scrape;
pub mod security;
mod service;
pub mod sharded;
mod shelf;
mod skip_log;
mod snapshot;
mod sockets;
mod source;
mod state;
mod stream;
mod subscriber;
mod sweep;
mod transport;
mod window;
mod yaml;
mod zmtp;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::publisher::{Publisher, PublisherLimits};
use crate::routing::policy::Policies;
use capacity::Capacity;
pub use config::{HubConfig, InvalidConfig, ReplicaConfig};
use contract::{Contract, ModelLabels, SharedTokenizer};
use discovery::Discovery;
pub use discovery::problems as discovery_problems;
use fleet::Fleet;
use http::Operations;
use metrics::Metrics;
use models::ModelsFollower;
use policies::{PolicyFollower, TenantPolicies};
use security::{Door, GateLayer, Refusals, Security};
use service::ObserveService;
use state::HubState;
use subscriber::StreamLimits;

/// How long tasks may take to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(800);
/// How long after the start subscribers wait for a state with the models of their directories. What is told sooner without
/// them would have filters drop those that they have, and what they know beside is fresh for about that long.
const MODELS_LIMIT: Duration = Duration::from_secs(10);

/// A running hub.
pub struct Hub {
    grpc: SocketAddr,
    http: SocketAddr,
    state: Arc<HubState>,
    fleet: Arc<Fleet>,
    discovery: Arc<Discovery>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// What a hub is started with beside its configuration.
#[derive(Clone, Default)]
pub struct HubOptions {
    /// Turns the texts of LookupRoute into token ids, in place of the models' own tokenizers.
    pub tokenizer: Option<SharedTokenizer>,
}

/// Why a hub did not start.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be listened on.
    Listen {
        /// The field of the configuration.
        field: &'static str,
        /// The address in it.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// What is wrong with the files of certificates and tokens, one line each.
    Security(Vec<String>),
    /// What is wrong with the file of `metrics_ca`.
    MetricsCa(String),
}

// === impl Hub ===

impl Hub {
    /// Listens, and starts to follow every replica. Port 0 stands for any free one.
    ///
    /// # Errors
    /// When an address cannot be listened on, or a file of certificates or tokens is wrong.
    pub async fn start(config: HubConfig) -> Result<Hub, StartError> {
        Hub::start_with(config, HubOptions::default()).await
    }

    /// The same, with these options.
    ///
    /// # Errors
    /// When an address cannot be listened on, or a file of certificates or tokens is wrong.
    pub async fn start_with(config: HubConfig, options: HubOptions) -> Result<Hub, StartError> {
        let (security, files) = Security::load(&config.security).map_err(StartError::Security)?;
        let security = Arc::new(security);
        let scrapes = scrape::client(config.metrics_ca.as_deref()).map_err(StartError::MetricsCa)?;
        let (grpc_listener, grpc) = listen("listen.grpc", config.grpc).await?;
        let (http_listener, http) = listen("listen.http", config.http).await?;
        let state = Arc::new(empty_state(&config));
        let metrics = Arc::new(Metrics::new(model_labels(&config)));
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let fleet = Arc::new(Fleet::new(&config, &state, &metrics, scrapes, &stop));
        let (sources, listed) = (&config.discovery, &config.replicas);
        let discovery = Discovery::start(sources, listed, &fleet, &state, metrics.discovery(), &stop, &mut tasks);
        follow_policies(&config, &state, &metrics, &stop, &mut tasks).await;
        follow_models(&config, &state, &fleet, &metrics, &stop, &mut tasks);
        tasks.spawn(sweep::run(Arc::clone(&state), stop.clone()));
        tasks.spawn(jumps::run(Arc::clone(&state), Arc::clone(&metrics), stop.clone()));
        let capacity = Capacity { replica_blocks: config.limits.replica_blocks, blocks: config.limits.blocks };
        tasks.spawn(capacity::run(Arc::clone(&state), capacity, Arc::clone(&metrics), stop.clone()));
        let limits = StreamLimits { heartbeat: config.heartbeat, acknowledge_timeout: config.acknowledge_timeout };
        let refusals = Arc::new(Refusals::new(metrics.security()));
        tasks.spawn(Arc::clone(&security).follow(files, metrics.security(), stop.clone()));
        let door = |listener, is_grpc| {
            let (security, refusals) = (Arc::clone(&security), Arc::clone(&refusals));
            let (limit, idle, stop) = (config.limits.connections, config.limits.idle, stop.clone());
            Door { listener, security, is_grpc, limit, idle, refusals, stop }.open()
        };
        let (grpc_incoming, http_incoming) = (door(grpc_listener, true), door(http_listener, false));
        let gate = GateLayer::new(&security, &refusals, config.limits.streams);
        let service = ObserveService::new(&state, &metrics, &refusals, limits, &config.limits, &stop);
        let contract = Contract::new(&config, &state, fleet.book(), options.tokenizer, metrics.contract(), &stop);
        tasks.spawn(async move {
            if let Err(error) = service.serve(contract, gate, grpc_incoming).await {
                error!("the gRPC server failed: {error}");
            }
        });
        let router = http::router(Operations { state: Arc::clone(&state), metrics, fleet: Arc::clone(&fleet) });
        let router = security::guarded(router, &security, &refusals);
        tasks.spawn(http::serve(http_incoming, router, config.limits.idle, stop.clone()));
        info!(%grpc, %http, replicas = config.replicas.len(), "the hub is up");
        Ok(Hub { grpc, http, state, fleet, discovery, stop, tasks })
    }

    /// Where the Observe stream and the contract are served.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// Where metrics, health and state are served.
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// Replaces the policies. Where the configuration names a directory of them, its next change replaces these.
    pub fn set_policies(&self, policies: Policies) {
        self.state.change(|publisher| publisher.set_policies(policies));
    }

    /// Replaces the quotas of `reports.quotas`.
    pub fn set_quotas(&self, quotas: BTreeMap<String, u64>) {
        self.state.change(|publisher| publisher.set_quotas(quotas));
    }

    /// Follows these replicas from now on in place of those that the configuration lists, beside those that are discovered.
    /// What is known of those that stay as they are stays.
    pub fn set_replicas(&self, replicas: &[ReplicaConfig]) {
        self.discovery.set_listed(replicas);
    }

    /// Ends all streams and tasks, within a second.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let all_ended = async {
            self.fleet.ended().await;
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(SHUTDOWN_LIMIT, all_ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

/// A state in which nothing is known yet.
fn empty_state(config: &HubConfig) -> HubState {
    let limits = PublisherLimits {
        max_entries: config.reports.max_entries,
        quotas: config.reports.quotas.clone(),
        future_tolerance_ms: u64::try_from(config.reports.future_tolerance.as_millis()).unwrap_or(u64::MAX),
        ..PublisherLimits::default()
    };
    // The time of the start: a number that no earlier start had.
    let epoch = clock::unix_ns().max(1);
    HubState::new(epoch, Publisher::new(limits), config.resume_buffer_bytes)
}

/// The models that the configuration names.
fn model_labels(config: &HubConfig) -> ModelLabels {
    let followed = config.replicas.iter().map(|replica| replica.model.clone());
    ModelLabels::new(followed.chain(config.models.iter().map(|model| model.model_id.clone())))
}

/// Reads the CachePolicies, if there are any, and goes on to read them: a lookup never finds fewer than there are.
async fn follow_policies(
    config: &HubConfig,
    state: &Arc<HubState>,
    metrics: &Metrics,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let Some(policies) = &config.policies else { return };
    let mut follower = PolicyFollower::new(&policies.directory, metrics.policies());
    let first = spawn_blocking(move || {
        let policies = follower.poll().cloned();
        (follower, policies)
    });
    let Ok((follower, first)) = first.await else { return };
    let state = Arc::clone(state);
    let publish = move |policies: &TenantPolicies| {
        let own = policies.iter().filter_map(|(tenant_id, policy)| Some((tenant_id.clone()?, policy.clone())));
        let (default, own) = (policies.get(&None).cloned(), own.collect());
        state.change(|publisher| publisher.set_given_policies(default, own));
    };
    first.iter().for_each(&publish);
    tasks.spawn(follower.run(policies.poll, publish, stop.clone()));
}

/// Goes on to read the models' directories, if there are any.
fn follow_models(
    config: &HubConfig,
    state: &Arc<HubState>,
    fleet: &Fleet,
    metrics: &Metrics,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let Some(tokenizers) = &config.tokenizers else { return };
    let follower = ModelsFollower::new(tokenizers.clone(), metrics.models()).with_fleet(fleet.book());
    let (first, first_read) = oneshot::channel();
    state.set_awaits_models(true);
    let publisher = Arc::clone(state);
    let publish = move |models: &shelf::TextModels| publisher.set_models(models);
    // Which models there are is known once the replicas are.
    let (found, poll, stopped) = (Arc::clone(state), tokenizers.poll, stop.clone());
    tasks.spawn(async move {
        if stopped.run_until_cancelled(found.replicas_found()).await.is_some() {
            follower.run(poll, publish, first, stopped).await;
        }
    });
    let state = Arc::clone(state);
    let stop = stop.clone();
    tasks.spawn(async move {
        stop.run_until_cancelled(state.replicas_found()).await;
        let read = stop.run_until_cancelled(timeout(MODELS_LIMIT, first_read)).await;
        if matches!(read, Some(Err(_))) {
            warn!("the models' tokenizers are still being compiled: filters are told that there are none");
        }
        state.set_awaits_models(false);
    });
}

async fn listen(field: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error| StartError::Listen { field, address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Listen { field, address, error } => {
                write!(f, "{field} is `{address}`, which cannot be listened on: {error}")
            }
            StartError::Security(problems) => f.write_str(&problems.join("\n")),
            StartError::MetricsCa(problem) => write!(f, "metrics_ca: {problem}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Listen { error, .. } => Some(error),
            StartError::Security(_) | StartError::MetricsCa(_) => None,
        }
    }
}
