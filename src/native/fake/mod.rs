//! A fake engine: a vLLM replica as far as routing can see, without a model.
//!
//! It has a [block cache](cache) of fixed capacity with the engine's own [keys](engine_key), publishes the cache's
//! changes as [KV events](events) over [ZeroMQ](publisher) with replay, and answers [completions](completion) after the
//! time that the uncached part of a prompt takes ([scheduler], [`Timing`]). Text is tokenized by a model's
//! [vocabulary], or byte by byte; it generates [text](tokens) that means nothing. Everything about one engine is drawn anew when it starts: sequences count from 0, the cache is empty and
//! its keys differ from any before.
//!
//! What it leaves out: preemption, chunked prefill, several KV cache groups, and every sampling parameter.

pub mod cache;
pub mod completion;
pub mod engine_key;
pub mod events;
pub mod http;
pub mod metrics;
pub mod options;
mod pieces;
pub mod publisher;
pub mod ranks;
pub mod reply;
pub mod request_log;
pub mod scheduler;
pub mod server;
mod streamed;
pub mod tokens;
pub mod vocabulary;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use axum::http::HeaderValue;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use events::{EventEncoding, HashForm};
pub use options::{EngineOptions, Timing};

use http::App;
use publisher::{BindError, Endpoints, EventSink, Publisher, PublisherOptions, endpoint_of_rank};
use ranks::Ranks;
use request_log::RequestLog;
use scheduler::Scheduler;
use vocabulary::{InvalidModelDir, Vocabulary};

/// A running engine. Dropped, it stops on its own time; [`Engine::shutdown`] waits until its ports are free.
pub struct Engine {
    address: SocketAddr,
    /// Those of each rank that publishes.
    endpoints: Vec<Endpoints>,
    ranks: Ranks,
    requests: RequestLog,
    stop: DropGuard,
    server: JoinHandle<()>,
    publishers: Vec<JoinHandle<()>>,
}

/// Why an engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// The id cannot be sent in a header.
    Id(String),
    /// `kv_replay` without `kv_events`.
    ReplayWithoutEvents,
    /// `model_dir` holds no model.
    Model(InvalidModelDir),
    /// The HTTP address cannot be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A ZeroMQ endpoint cannot be bound.
    Bind(BindError),
}

// === impl Engine ===

impl Engine {
    /// Starts an engine inside the current tokio runtime. It answers once this returns.
    ///
    /// # Errors
    /// When an option is not valid or an address cannot be bound.
    pub async fn start(options: EngineOptions) -> Result<Engine, StartError> {
        let id = HeaderValue::from_str(&options.id).map_err(|_| StartError::Id(options.id.clone()))?;
        let vocabulary = match &options.model_dir {
            Some(folder) => Vocabulary::load(folder).map_err(StartError::Model)?,
            None => Vocabulary::bytes(),
        };
        let listener = TcpListener::bind(options.listen).await;
        let listener = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = listener.map_err(|source| StartError::Listen { address: options.listen, source })?;
        let stop = CancellationToken::new();
        let (mut endpoints, mut publishers, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut start_rank = async |rank| {
            let (bound, sink, publisher) = start_publisher(&options, rank, &stop).await?;
            endpoints.extend(bound);
            publishers.extend(publisher);
            Ok(Scheduler::new(&options, Arc::clone(vocabulary.generated()), sink))
        };
        let first = start_rank(0).await?;
        for rank in 1..options.data_parallel_size {
            others.push(start_rank(rank).await?);
        }
        let ranks = Ranks::new(first, others);
        let requests = RequestLog::default();
        let app = App {
            id,
            model: options.model.into(),
            loras: options.lora.into(),
            vocabulary: Arc::new(vocabulary),
            ranks: ranks.clone(),
            requests: requests.clone(),
            started: SystemTime::now(),
            completions: Arc::new(AtomicU64::new(0)),
        };
        let server = tokio::spawn(server::serve(listener, http::router(app), stop.clone()));
        Ok(Engine { address, endpoints, ranks, requests, stop: stop.drop_guard(), server, publishers })
    }

    /// Where HTTP is served, its port resolved.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where rank 0 publishes KV events, the port resolved.
    pub fn kv_events(&self) -> Option<&str> {
        self.endpoints.first().map(|endpoints| endpoints.events.as_str())
    }

    /// Where rank 0 answers replay requests, the port resolved.
    pub fn kv_replay(&self) -> Option<&str> {
        self.endpoints.first().and_then(|endpoints| endpoints.replay.as_deref())
    }

    /// The requests that have arrived.
    pub fn requests(&self) -> request_log::Entries {
        self.requests.entries()
    }

    /// Stops: requests that run have half a second to finish. All ports are free once this returns.
    pub async fn shutdown(self) {
        self.ranks.shut_down();
        drop(self.stop);
        // A task that panicked has stopped as well.
        let _ = self.server.await;
        for publisher in self.publishers {
            let _ = publisher.await;
        }
    }
}

type StartedPublisher = (Option<Endpoints>, EventSink, Option<JoinHandle<()>>);

async fn start_publisher(
    options: &EngineOptions,
    rank: u16,
    stop: &CancellationToken,
) -> Result<StartedPublisher, StartError> {
    let Some(events_endpoint) = options.kv_events.as_deref() else {
        return match options.kv_replay {
            Some(_) => Err(StartError::ReplayWithoutEvents),
            None => Ok((None, EventSink::none(), None)),
        };
    };
    let events_endpoint = endpoint_of_rank(events_endpoint, rank);
    let replay_endpoint = options.kv_replay.as_deref().map(|endpoint| endpoint_of_rank(endpoint, rank));
    let bound = Publisher::bind(PublisherOptions {
        events_endpoint: &events_endpoint,
        replay_endpoint: replay_endpoint.as_deref(),
        topic: &options.topic,
        format: options.event_format(rank),
        faults: options.faults,
        replay_buffer: options.replay_buffer,
    });
    let (publisher, endpoints) = bound.await.map_err(StartError::Bind)?;
    let (sink, task) = publisher.start(stop.clone());
    Ok((Some(endpoints), sink, Some(task)))
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::Id(id) => write!(f, "id is {id:?}, visible ASCII characters and spaces are allowed"),
            StartError::ReplayWithoutEvents => f.write_str("kv_replay is set, kv_events is needed with it"),
            StartError::Model(error) => error.fmt(f),
            StartError::Listen { address, source } => {
                write!(f, "listen is {address}, an address that is free is needed: {source}")
            }
            StartError::Bind(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Id(_) | StartError::ReplayWithoutEvents => None,
            StartError::Model(error) => Some(error),
            StartError::Listen { source, .. } => Some(source),
            StartError::Bind(error) => Some(error),
        }
    }
}
