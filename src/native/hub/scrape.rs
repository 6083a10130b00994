//! Reads a replica's `/metrics` at an interval.
//!
//! Effects: its load goes into the hub's state, a process that started at another time than before is reported to the
//! replica's [`Source`](super::source), which checks whether events were missed, and how the last read went is there for
//! whoever [asks](ScrapeView). A failed read changes nothing but a counter: an engine under load may answer late, and that
//! says nothing about its cache. Metrics that are not there fail a read as well, rather than count as 0: after
//! [`LOUD_AFTER`] such reads in a row there is one line in the log, and one when they are back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::clock::hub_ms;
use super::exposition::{EngineFigures, EngineReport};
use super::followed::ReplicaIndex;
use super::https::{self, Connector, Trust};
use super::metrics::ReplicaMetrics;
use super::source::{LastScrape, ProcessChanged};
use super::state::HubState;
use crate::observation::ReplicaStats;

/// The longest text that is read, in bytes.
const MAX_TEXT_BYTES: usize = 8 * 1024 * 1024;
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// After so many failed reads in a row there is a line in the log.
const LOUD_AFTER: u32 = 3;

/// A client for all scrapers.
pub type ScrapeClient = Client<Connector, Empty<Bytes>>;

/// Reads one replica's metrics until it is stopped.
pub struct Scraper {
    /// The replica's id.
    pub id: String,
    /// The metrics' URL.
    pub url: Uri,
    /// How often.
    pub every: Duration,
    /// Running and waiting requests that count as saturated.
    pub pressure_ceiling: u64,
    /// Where the load goes.
    pub state: Arc<HubState>,
    /// Whom they are about: the replica, or each of its ranks.
    pub targets: Vec<ScrapeTarget>,
    /// Told of each text that was read.
    pub read: LastScrape,
    /// Shared by all scrapers.
    pub client: ScrapeClient,
}

/// A replica, or one of its data-parallel ranks.
pub struct ScrapeTarget {
    /// Which.
    pub index: ReplicaIndex,
    /// Which rank of how many; `None` for the whole.
    pub rank: Option<(u32, u32)>,
    /// Where failures are counted.
    pub metrics: ReplicaMetrics,
    /// Its source.
    pub changed: mpsc::Sender<ProcessChanged>,
    /// How the reads go.
    pub view: watch::Sender<ScrapeView>,
}

/// How the reads of a replica's metrics go.
#[derive(Clone, Debug, Default)]
pub struct ScrapeView {
    /// When the engine last answered, if it did, in the hub's own ms: whatever it said, its process was there.
    pub answered_ms: Option<u64>,
    /// What it said last, of the replica or the rank.
    pub figures: EngineFigures,
    /// What is wrong with the last read.
    pub fault: Option<ScrapeFault>,
}

/// What is wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeFault {
    /// No connection, or it was lost.
    NoConnection,
    /// No answer in time.
    TimedOut,
    /// A status that is no success.
    BadStatus,
    /// A text that is cut off, or too long.
    BadBody,
    /// The load cannot be computed.
    MissingLoad,
    /// The hit rate cannot be; the load is used.
    MissingHitRate,
}

/// What was read of one target before.
#[derive(Clone, Default)]
struct Earlier {
    figures: EngineFigures,
    hit_rate: f32,
}

/// When there is something to be said of reads that fail.
#[derive(Debug, Default)]
struct Alarm {
    /// Failed reads in a row.
    failed: u32,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Broken,
    Mended,
}

/// A client for scrapers, which trusts these authorities, or the system's.
///
/// # Errors
/// What is wrong with the file.
pub fn client(ca: Option<&Path>) -> Result<ScrapeClient, String> {
    let connector = https::connector(Trust { ca, ..Trust::default() })?;
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// An error with what caused it: that of the client says next to nothing.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
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
        let mut earlier = vec![Earlier::default(); self.targets.len()];
        let mut alarm = Alarm::default();
        loop {
            ticks.tick().await;
            let silent = Err((ScrapeFault::TimedOut, "no answer in time".to_owned()));
            let read = timeout(ANSWER_LIMIT, self.report()).await.unwrap_or(silent);
            if read.is_ok() {
                self.read.note(Instant::now());
            }
            let faults = self.targets.iter().zip(&mut earlier).map(|(target, earlier)| {
                let fault = match &read {
                    Ok(report) => self.take(report, target, earlier),
                    Err(fault) => Some(fault.clone()),
                };
                target.view.send_modify(|view| view.fault = fault.as_ref().map(|(fault, _)| *fault));
                fault.iter().for_each(|(fault, _)| target.metrics.scrape_failed(*fault));
                fault
            });
            let first = faults.fold(None, |first, fault| first.or(fault));
            self.say(first, &mut alarm);
        }
    }

    /// Passes on what was read of a target; what is missing in it.
    fn take(
        &self,
        report: &EngineReport,
        target: &ScrapeTarget,
        earlier: &mut Earlier,
    ) -> Option<(ScrapeFault, String)> {
        let figures = target.rank.map_or(report.whole, |(rank, ranks)| report.of_rank(rank, ranks));
        earlier.hit_rate = figures.hit_rate_since(&earlier.figures).unwrap_or(earlier.hit_rate);
        target.metrics.cache_usage(figures.cache_usage);
        if let Some(pressure) = figures.pressure(self.pressure_ceiling) {
            let stats = ReplicaStats { pressure, hit_rate: earlier.hit_rate, reported_ms: hub_ms() };
            self.state.stats(target.index, stats);
        }
        if let (Some(now), Some(before)) = (figures.process_start, earlier.figures.process_start)
            && now != before
        {
            // A full channel already says the same.
            let _ = target.changed.try_send(ProcessChanged);
        }
        // A text without the start time does not undo that it was seen.
        let process_start = figures.process_start.or(earlier.figures.process_start);
        earlier.figures = EngineFigures { process_start, ..figures };
        target.view.send_modify(|view| {
            view.answered_ms = Some(hub_ms());
            view.figures = figures;
        });
        if let Some(missing) = figures.missing_load() {
            return Some((ScrapeFault::MissingLoad, format!("the text has {missing}")));
        }
        let missing = "the text has neither prefix cache hits and queries nor a hit rate";
        (!figures.has_hit_rate()).then(|| (ScrapeFault::MissingHitRate, missing.to_owned()))
    }

    /// Says in the log what is wrong, once it has been for a while, and when it no longer is.
    fn say(&self, fault: Option<(ScrapeFault, String)>, alarm: &mut Alarm) {
        let (replica, url) = (&self.id, &self.url);
        match (alarm.note(fault.is_some()), fault) {
            (Some(Said::Mended), _) => info!(replica, %url, "metrics can be used again"),
            (Some(Said::Broken), Some((fault, what))) => {
                let reason = fault.as_str();
                error!(replica, %url, reason, "metrics cannot be used, {LOUD_AFTER} times in a row: {what}");
            }
            (_, Some((fault, what))) => {
                debug!(replica, %url, reason = fault.as_str(), "metrics cannot be used: {what}")
            }
            (_, None) => {}
        }
    }

    async fn report(&self) -> Result<EngineReport, (ScrapeFault, String)> {
        let response = self.client.get(self.url.clone()).await;
        let response = response.map_err(|error| (ScrapeFault::NoConnection, with_causes(&error)))?;
        if !response.status().is_success() {
            return Err((ScrapeFault::BadStatus, format!("status {}", response.status())));
        }
        let body = Limited::new(response.into_body(), MAX_TEXT_BYTES).collect().await;
        let text = body.map_err(|error| (ScrapeFault::BadBody, error.to_string()))?.to_bytes();
        Ok(EngineReport::parse(&String::from_utf8_lossy(&text)))
    }
}

// === impl Alarm ===

impl Alarm {
    /// A read failed or did not.
    fn note(&mut self, has_failed: bool) -> Option<Said> {
        if !has_failed {
            let was_loud = std::mem::take(&mut self.failed) >= LOUD_AFTER;
            return was_loud.then_some(Said::Mended);
        }
        self.failed = self.failed.saturating_add(1);
        (self.failed == LOUD_AFTER).then_some(Said::Broken)
    }
}

// === impl ScrapeFault ===

impl ScrapeFault {
    /// Every fault.
    pub const ALL: [ScrapeFault; 6] = [
        ScrapeFault::NoConnection,
        ScrapeFault::TimedOut,
        ScrapeFault::BadStatus,
        ScrapeFault::BadBody,
        ScrapeFault::MissingLoad,
        ScrapeFault::MissingHitRate,
    ];

    /// As a metric's label and in `/state`.
    pub fn as_str(self) -> &'static str {
        match self {
            ScrapeFault::NoConnection => "no_connection",
            ScrapeFault::TimedOut => "timed_out",
            ScrapeFault::BadStatus => "bad_status",
            ScrapeFault::BadBody => "bad_body",
            ScrapeFault::MissingLoad => "missing_load",
            ScrapeFault::MissingHitRate => "missing_hit_rate",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_loud_once_after_three_failures_in_a_row_and_once_when_they_end() {
        let mut alarm = Alarm::default();
        let reads = [true, true, false, true, true, true, true, true, false, false, true];
        let said = reads.map(|has_failed| alarm.note(has_failed));
        let loud: Vec<_> = said.iter().enumerate().filter_map(|(at, said)| Some((at, (*said)?))).collect();
        assert_eq!(loud, [(5, Said::Broken), (8, Said::Mended)]);
    }
}
