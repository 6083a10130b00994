//! The hub: engines' KV events in, the Observe stream out.
//!
//! ```text
//! engine ── ZeroMQ ──► source ──► HubState ──► subscriber ── gRPC ──► filter
//!        ── /metrics ► scrape ──►    │
//!                                    └──► http ──► operators
//! ```
//!
//! For each replica a `source` follows the engine's events and a `scrape`r reads its load; both write into one `state`,
//! whose numbered history every `subscriber` follows. The hub is not on the path of requests: without it,
//! filters serve on with what they know until that is stale.

mod clock;
pub mod config;
mod continuity;
mod exposition;
mod http;
mod metrics;
pub mod policies;
mod problems;
mod replica_cache;
mod ring;
mod scope_filter;
mod scrape;
mod service;
mod snapshot;
mod sockets;
mod source;
mod state;
mod subscriber;
mod window;
mod yaml;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use config::{HubConfig, InvalidConfig};
use http::Operations;
use metrics::{Metrics, ReplicaMetrics};
use scrape::Scraper;
use service::ObserveService;
use source::Source;
use state::{HubState, ReplicaIndex};
use subscriber::StreamLimits;

/// How long tasks may take to end.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(800);

/// A running hub.
pub struct Hub {
    grpc: SocketAddr,
    http: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

/// Why a hub did not start.
#[derive(Debug)]
pub struct StartError {
    /// The field of the configuration.
    pub field: &'static str,
    /// The address in it.
    pub address: SocketAddr,
    /// What the system said.
    pub error: io::Error,
}

// === impl Hub ===

impl Hub {
    /// Listens, and starts to follow every replica. Port 0 stands for any free one.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub async fn start(config: HubConfig) -> Result<Hub, StartError> {
        let (grpc_listener, grpc) = listen("listen.grpc", config.grpc).await?;
        let (http_listener, http) = listen("listen.http", config.http).await?;
        // The time of the start: a number that no earlier start had.
        let epoch = clock::unix_ns().max(1);
        let state = Arc::new(HubState::new(epoch, &config.replicas, config.resume_buffer_bytes));
        let metrics = Arc::new(Metrics::new());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let replicas = follow_replicas(&config, &state, &metrics, &stop, &mut tasks);
        let limits = StreamLimits { heartbeat: config.heartbeat, acknowledge_timeout: config.acknowledge_timeout };
        let service =
            ObserveService { state: Arc::clone(&state), metrics: Arc::clone(&metrics), limits, stop: stop.clone() };
        tasks.spawn(async move {
            if let Err(error) = service.serve(grpc_listener).await {
                error!("the gRPC server failed: {error}");
            }
        });
        let router = http::router(Operations { state, metrics, replicas: replicas.into() });
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move {
            if let Err(error) = axum::serve(http_listener, router).with_graceful_shutdown(stopped).await {
                error!("the HTTP server failed: {error}");
            }
        });
        info!(%grpc, %http, replicas = config.replicas.len(), "the hub is up");
        Ok(Hub { grpc, http, stop, tasks })
    }

    /// Where the Observe stream is served.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc
    }

    /// Where metrics, health and state are served.
    pub fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// Ends all streams and tasks, within a second.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let all_ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_LIMIT, all_ended).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

/// Starts the tasks of every replica.
fn follow_replicas(
    config: &HubConfig,
    state: &Arc<HubState>,
    metrics: &Metrics,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Vec<ReplicaMetrics> {
    let client = scrape::client();
    let mut all = Vec::with_capacity(config.replicas.len());
    for (at, replica) in config.replicas.iter().enumerate() {
        let index = ReplicaIndex(at);
        let metrics = metrics.replica(&replica.id);
        let (changed, process_changes) = mpsc::channel(1);
        let events = config.events.clone();
        let source = Source::new(index, replica.clone(), events, Arc::clone(state), metrics.clone());
        tasks.spawn(source.run(process_changes, stop.clone()));
        let scraper = Scraper {
            index,
            url: replica.metrics.clone(),
            every: config.scrape_interval,
            pressure_ceiling: config.pressure_ceiling,
            state: Arc::clone(state),
            metrics: metrics.clone(),
            changed,
            client: client.clone(),
        };
        tasks.spawn(scraper.run(stop.clone()));
        all.push(metrics);
    }
    all
}

async fn listen(field: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error| StartError { field, address, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is `{}`, which cannot be listened on: {}", self.field, self.address, self.error)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
