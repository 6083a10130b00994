//! What was refused: counted by reason, logged with the peer at most once in a while.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tracing::warn;

/// A reason is logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why somebody was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// `limits.max_connections` are open.
    TooManyConnections,
    /// `limits.max_streams` are open.
    TooManyStreams,
    /// `limits.max_subscribers` are served.
    TooManySubscribers,
    /// A message is larger than `limits.max_message_bytes`.
    MessageTooLarge,
    /// TLS did not come about: no TLS at all, no common version, or the client does not know the hub's authority.
    Tls,
    /// TLS took too long.
    TlsTimeout,
    /// No client certificate.
    NoCertificate,
    /// A client certificate that is not valid, or of another authority.
    Certificate,
    /// No bearer token.
    NoToken,
    /// A bearer token that there is not.
    WrongToken,
    /// A bearer token that is not good for that.
    NotAllowed,
    /// The bearer token of an open stream is not valid any more.
    Revoked,
}

/// Which reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The metrics of who is let in.
#[derive(Clone, Debug, Default)]
pub struct SecurityMetrics {
    refused: Family<ReasonLabel, Counter>,
    connections: Gauge,
    streams: Gauge,
    reloads: Counter,
    problems: Gauge,
}

/// Counts and logs what is refused.
pub struct Refusals {
    metrics: SecurityMetrics,
    /// When each reason was last logged, and how many there were since.
    logged: Mutex<HashMap<Refusal, (Instant, u64)>>,
}

// === impl Refusal ===

impl Refusal {
    /// Its name, as the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::TooManyConnections => "too_many_connections",
            Refusal::TooManyStreams => "too_many_streams",
            Refusal::TooManySubscribers => "too_many_subscribers",
            Refusal::MessageTooLarge => "message_too_large",
            Refusal::Tls => "tls",
            Refusal::TlsTimeout => "tls_timeout",
            Refusal::NoCertificate => "no_certificate",
            Refusal::Certificate => "certificate",
            Refusal::NoToken => "no_token",
            Refusal::WrongToken => "wrong_token",
            Refusal::NotAllowed => "not_allowed",
            Refusal::Revoked => "revoked",
        }
    }
}

// === impl Refusals ===

impl Refusals {
    /// None so far.
    pub fn new(metrics: SecurityMetrics) -> Refusals {
        Refusals { metrics, logged: Mutex::default() }
    }

    /// Where connections and streams are counted.
    pub fn metrics(&self) -> &SecurityMetrics {
        &self.metrics
    }

    /// `peer` was refused. `what` it was about must show no secret.
    pub fn note(&self, refusal: Refusal, peer: SocketAddr, what: &str) {
        self.metrics.refused.get_or_create(&ReasonLabel { reason: refusal.as_str() }).inc();
        let now = Instant::now();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let more = match logged.get_mut(&refusal) {
            Some((at, more)) if now.duration_since(*at) < LOG_INTERVAL => {
                *more += 1;
                return;
            }
            Some((_, more)) => *more,
            None => 0,
        };
        logged.insert(refusal, (now, 0));
        drop(logged);
        warn!(%peer, reason = refusal.as_str(), what, more_since_last = more, "refused");
    }
}

// === impl SecurityMetrics ===

impl SecurityMetrics {
    /// Adds them to the registry.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Connections, calls, streams and messages refused, by reason";
        registry.register("refused", help, self.refused.clone());
        registry.register("connections", "Connections open now", self.connections.clone());
        registry.register("streams", "Calls and streams of the gRPC side open now", self.streams.clone());
        registry.register(
            "security_reloads",
            "Times that certificates and tokens were read anew",
            self.reloads.clone(),
        );
        let help = "Problems of the certificates and tokens last read, of which the ones before stay in use";
        registry.register("security_problems", help, self.problems.clone());
    }

    /// Connections open now.
    pub fn connections(&self) -> &Gauge {
        &self.connections
    }

    /// Calls and streams open now.
    pub fn streams(&self) -> &Gauge {
        &self.streams
    }

    /// The files were read anew, and are good.
    pub fn reloaded(&self) {
        self.reloads.inc();
        self.problems.set(0);
    }

    /// The files were read anew, and are not.
    pub fn reload_failed(&self, problems: usize) {
        self.problems.set(i64::try_from(problems).unwrap_or(i64::MAX));
    }
}
