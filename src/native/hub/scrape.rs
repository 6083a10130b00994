//! Reads a replica's `/metrics` at an interval.
//!
//! Effects: its load goes into the hub's state, and a process that started at another time than before is reported to the
//! replica's [`Source`](super::source), which checks whether events were missed. A failed read changes nothing but a
//! counter: an engine under load may answer late, and that says nothing about its cache.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::clock::unix_ms;
use super::exposition::EngineFigures;
use super::followed::ReplicaIndex;
use super::metrics::ReplicaMetrics;
use super::source::{LastScrape, ProcessChanged};
use super::state::HubState;
use crate::observation::ReplicaStats;

/// The longest text that is read, in bytes.
const MAX_TEXT_BYTES: usize = 8 * 1024 * 1024;
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// An HTTP client for all scrapers.
pub type ScrapeClient = Client<HttpConnector, Empty<Bytes>>;

/// Reads one replica's metrics until it is stopped.
pub struct Scraper {
    /// Which replica.
    pub index: ReplicaIndex,
    /// The metrics' URL.
    pub url: Uri,
    /// How often.
    pub every: Duration,
    /// Running and waiting requests that count as saturated.
    pub pressure_ceiling: u64,
    /// Where the load goes.
    pub state: Arc<HubState>,
    /// Where failures are counted.
    pub metrics: ReplicaMetrics,
    /// The replica's source.
    pub changed: mpsc::Sender<ProcessChanged>,
    /// Told of each text that was read.
    pub read: LastScrape,
    /// Shared by all scrapers.
    pub client: ScrapeClient,
}

/// A client for scrapers.
pub fn client() -> ScrapeClient {
    Client::builder(TokioExecutor::new()).build_http()
}

// === impl Scraper ===

impl Scraper {
    /// Reads until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.read_forever() => {}
        }
    }

    async fn read_forever(self) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut earlier = EngineFigures::default();
        let mut hit_rate = 0.0;
        loop {
            ticks.tick().await;
            match timeout(ANSWER_LIMIT, self.text()).await.unwrap_or_else(|_| Err("no answer in time".into())) {
                Ok(figures) => {
                    self.read.note(Instant::now());
                    hit_rate = figures.hit_rate_since(&earlier).unwrap_or(hit_rate);
                    self.report(&figures, &earlier, hit_rate);
                    // A text without the start time does not undo that it was seen.
                    let process_start = figures.process_start.or(earlier.process_start);
                    earlier = EngineFigures { process_start, ..figures };
                }
                Err(error) => {
                    debug!(url = %self.url, "metrics cannot be read: {error}");
                    self.metrics.scrapes_failed.inc();
                }
            }
        }
    }

    fn report(&self, figures: &EngineFigures, earlier: &EngineFigures, hit_rate: f32) {
        if let Some(pressure) = figures.pressure(self.pressure_ceiling) {
            self.state.stats(self.index, ReplicaStats { pressure, hit_rate, reported_ms: unix_ms() });
        }
        if let (Some(now), Some(before)) = (figures.process_start, earlier.process_start)
            && now != before
        {
            // A full channel already says the same.
            let _ = self.changed.try_send(ProcessChanged);
        }
    }

    async fn text(&self) -> Result<EngineFigures, String> {
        let response = self.client.get(self.url.clone()).await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_TEXT_BYTES).collect().await;
        let text = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(EngineFigures::parse(&String::from_utf8_lossy(&text)))
    }
}
