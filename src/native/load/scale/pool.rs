//! A pool of many replicas in one process: their event publishers, and one tiny HTTP server for all their ports.
//!
//! Events go out over ZeroMQ by the fake engine's own publisher, with its replay, so that to the hub each is an engine.
//! Completions are answered at once and compute nothing. Publishers run on a thread of their own, so that encoding events
//! does not delay the clients that measure.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ScaleError;
use super::content::{Conversation, mixed};
use super::holder::Holder;
use crate::native::fake::events::EventFormat;
use crate::native::fake::publisher::{EventSink, Publisher, PublisherFaults, PublisherOptions};
use crate::native::fake::server;
use crate::native::load::envoy_config::EngineAddresses;

/// Batches kept for replay: vLLM's default.
const REPLAY_BATCHES: usize = 10_000;
/// How often a replica that changes publishes a batch.
const STEP: Duration = Duration::from_millis(100);
/// What the hub reads of an engine that is idle.
const IDLE_METRICS: &str =
    "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\nprocess_start_time_seconds 1.0\n";

/// The pool. Dropped, everything stops.
pub struct Pool {
    replicas: Vec<Arc<Replica>>,
    publishing: Option<Runtime>,
    _servers: DropGuard,
}

/// One replica.
struct Replica {
    holder: Mutex<Holder>,
    /// When the latest conversation was whole, as of its batch.
    whole_at: Mutex<Option<(u64, std::time::Instant)>>,
    sink: EventSink,
    stop: CancellationToken,
}

// === impl Pool ===

impl Pool {
    /// Replicas at these addresses that hold nothing.
    ///
    /// # Errors
    /// When a port cannot be listened on.
    pub async fn start(addresses: &[EngineAddresses]) -> Result<Pool, ScaleError> {
        let servers = CancellationToken::new();
        let publishing = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut pool =
            Pool { replicas: Vec::new(), publishing: Some(publishing), _servers: servers.clone().drop_guard() };
        for (place, addresses) in addresses.iter().enumerate() {
            let listener = TcpListener::bind(addresses.http).await?;
            tokio::spawn(server::serve(listener, router(place)?, servers.clone()));
            let replica = pool.publish(Replica::start(place, *addresses)).await??;
            pool.replicas.push(Arc::new(replica));
        }
        Ok(pool)
    }

    /// Replicas, those that have left too.
    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// Blocks held by all that have not left.
    pub fn blocks(&self) -> usize {
        self.present().map(|replica| replica.holder().blocks()).sum()
    }

    /// Stores conversations until each of these replicas holds `blocks` or a little more.
    ///
    /// # Errors
    /// When the pool's thread is gone.
    pub async fn fill(&self, places: std::ops::Range<usize>, blocks: usize) -> Result<(), ScaleError> {
        let replicas: Vec<Arc<Replica>> = self.replicas.get(places).unwrap_or_default().to_vec();
        self.publish(async move {
            for replica in replicas {
                replica.fill(blocks);
                tokio::task::yield_now().await;
            }
        })
        .await
    }

    /// Lets `per_second` blocks of the whole pool change for this long, half of them gone and half come; how many did.
    ///
    /// # Errors
    /// When the pool's thread is gone.
    pub async fn change(&self, per_second: usize, during: Duration) -> Result<usize, ScaleError> {
        let replicas: Vec<Arc<Replica>> = self.present().cloned().collect();
        self.publish(change_steadily(replicas, per_second, during)).await
    }

    /// Lets the oldest conversation of every replica go.
    ///
    /// # Errors
    /// When the pool's thread is gone.
    pub async fn drop_oldest(&self, conversations: usize) -> Result<(), ScaleError> {
        let replicas: Vec<Arc<Replica>> = self.present().cloned().collect();
        self.publish(async move {
            for replica in replicas {
                let mut holder = replica.holder();
                (0..conversations).for_each(|_| replica.sink.publish(holder.drop_conversation()));
            }
        })
        .await
    }

    /// These replicas end, as a process does that is killed.
    pub fn leave(&self, places: std::ops::Range<usize>) {
        self.replicas.get(places).unwrap_or_default().iter().for_each(|replica| replica.stop.cancel());
    }

    /// One of the conversations that are held whole and have not gone for a while, by any number.
    pub fn some_held(&self, random: u64) -> Option<Conversation> {
        let place = (mixed(random) % self.replicas.len().max(1) as u64) as usize;
        self.held_by(place, mixed(random ^ 1))
    }

    /// The same of one replica: of the later half, since the oldest may go at any time.
    pub fn held_by(&self, place: usize, random: u64) -> Option<Conversation> {
        let replica = self.replicas.get(place).filter(|replica| !replica.stop.is_cancelled())?;
        let (oldest, next) = replica.holder().whole();
        let half = (next - oldest) / 2;
        let number = oldest + half + mixed(random).checked_rem(next - oldest - half)?;
        Some(Conversation { replica: place, number })
    }

    /// The conversation that became whole last at one replica while it changed, and when its last block was published.
    pub fn whole_since(&self, place: usize) -> Option<(Conversation, std::time::Instant)> {
        let (number, at) = (*self.replicas.get(place)?.whole_at())?;
        Some((Conversation { replica: place, number }, at))
    }

    /// Whether the replica has let nothing go of this conversation.
    pub fn holds(&self, conversation: &Conversation) -> bool {
        let replica = self.replicas.get(conversation.replica).filter(|replica| !replica.stop.is_cancelled());
        replica.is_some_and(|replica| replica.holder().holds_whole(conversation.number))
    }

    /// The conversations that went last from one replica, latest first.
    pub fn gone_from(&self, place: usize) -> impl Iterator<Item = Conversation> {
        let oldest = self.replicas.get(place).map_or(0, |replica| replica.holder().whole().0);
        (0..oldest).rev().map(move |number| Conversation { replica: place, number })
    }

    fn present(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.replicas.iter().filter(|replica| !replica.stop.is_cancelled())
    }

    /// Runs on the publishers' thread.
    async fn publish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ScaleError> {
        let runtime = self.publishing.as_ref().ok_or_else(|| ScaleError::new("the pool has stopped"))?;
        runtime.spawn(work).await.map_err(ScaleError::new)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.publishing.take() {
            runtime.shutdown_background();
        }
    }
}

/// Each replica publishes one batch a [`STEP`], all of them spread over it.
async fn change_steadily(replicas: Vec<Arc<Replica>>, per_second: usize, during: Duration) -> usize {
    let count = replicas.len().max(1);
    let started = Instant::now();
    let mut turns = interval_at(started, STEP / count as u32);
    turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut changed, mut turn) = (0, 0);
    while started.elapsed() < during {
        turns.tick().await;
        turn += 1;
        // By the clock, whatever a turn takes: half of the changes due until now, and not made yet.
        let due = (per_second as f64 * started.elapsed().as_secs_f64()) as usize;
        let half = due.saturating_sub(changed) / 2;
        if let Some(replica) = replicas.get(turn % count).filter(|_| half > 0) {
            replica.change(half);
            changed += 2 * half;
        }
    }
    changed
}

fn router(place: usize) -> Result<Router, ScaleError> {
    let id = HeaderValue::from_str(&format!("engine-{place}")).map_err(ScaleError::new)?;
    Ok(Router::new().fallback(move |uri: Uri, body: Bytes| async move {
        drop(body);
        let headers = HeaderMap::from_iter([(axum::http::HeaderName::from_static("x-engine-id"), id)]);
        let text = if uri.path() == "/metrics" { IDLE_METRICS } else { "{}" };
        (StatusCode::OK, headers, text)
    }))
}

// === impl Replica ===

impl Replica {
    async fn start(place: usize, addresses: EngineAddresses) -> Result<Replica, ScaleError> {
        let (events, replay) = (format!("tcp://{}", addresses.kv_events), format!("tcp://{}", addresses.kv_replay));
        let options = PublisherOptions {
            events_endpoint: &events,
            replay_endpoint: Some(&replay),
            topic: "",
            format: EventFormat::default(),
            replay_buffer: NonZeroUsize::new(REPLAY_BATCHES).unwrap_or(NonZeroUsize::MIN),
            faults: PublisherFaults::default(),
        };
        let (publisher, _) = Publisher::bind(options).await.map_err(ScaleError::new)?;
        let stop = CancellationToken::new();
        let (sink, _) = publisher.start(stop.clone());
        Ok(Replica { holder: Mutex::new(Holder::new(place)), whole_at: Mutex::default(), sink, stop })
    }

    /// Lets so many blocks go and as many come, in one batch.
    fn change(&self, half: usize) {
        let mut holder = self.holder();
        let (_, before) = holder.whole();
        let events = holder.change(half, half);
        let (_, next) = holder.whole();
        drop(holder);
        let now = std::time::Instant::now();
        self.sink.publish(events);
        if next > before {
            *self.whole_at() = Some((next - 1, now));
        }
    }

    fn whole_at(&self) -> MutexGuard<'_, Option<(u64, std::time::Instant)>> {
        self.whole_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self, blocks: usize) {
        let mut holder = self.holder();
        self.sink.publish(holder.store_system_prompts());
        while holder.blocks() < blocks {
            self.sink.publish(vec![holder.store_conversation()]);
        }
    }
}
