//! What the chats took, as Prometheus metrics: the one place where the time to first token is known by reason code.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use super::report::Served;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What a response without a reason code counts under: the filter was not asked.
const NO_REASON: &str = "none";
/// Upper bounds of the histogram, in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0];

/// Why a request went where it went.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason_code: String,
}

/// The metrics of all chats.
pub(super) struct ChatMetrics {
    registry: Registry,
    time_to_first_token: Family<ReasonLabel, Histogram, fn() -> Histogram>,
    prompt_tokens: Family<ReasonLabel, Counter>,
    cached_tokens: Family<ReasonLabel, Counter>,
    failed: Counter,
}

// === impl ChatMetrics ===

impl Default for ChatMetrics {
    fn default() -> ChatMetrics {
        let mut registry = Registry::with_prefix("loadgen");
        let time_to_first_token: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(BOUNDS));
        let (prompt_tokens, cached_tokens, failed) = (Family::default(), Family::default(), Counter::default());
        let help = "From sending a request to the first event with text";
        registry.register_with_unit("time_to_first_token", help, Unit::Seconds, time_to_first_token.clone());
        registry.register("prompt_tokens", "Tokens of prompts, as engines count them", prompt_tokens.clone());
        registry.register("cached_tokens", "Of them, those that engines had in their caches", cached_tokens.clone());
        registry.register("requests_failed", "Requests without a whole response of status 200", failed.clone());
        ChatMetrics { registry, time_to_first_token, prompt_tokens, cached_tokens, failed }
    }
}

impl ChatMetrics {
    /// Counts an answered request.
    pub(super) fn served(&self, served: &Served) {
        let reason_code = if served.reason_code.is_empty() { NO_REASON } else { &served.reason_code };
        let label = ReasonLabel { reason_code: reason_code.to_owned() };
        self.time_to_first_token.get_or_create(&label).observe(served.time_to_first_token.as_secs_f64());
        self.prompt_tokens.get_or_create(&label).inc_by(served.prompt_tokens);
        self.cached_tokens.get_or_create(&label).inc_by(served.cached_tokens);
    }

    /// Counts a request that failed.
    pub(super) fn failed(&self) {
        self.failed.inc();
    }

    fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Serves `/metrics` until the caller drops this future.
///
/// # Errors
/// When nothing can listen at `address`.
pub(super) async fn serve(address: SocketAddr, metrics: Arc<ChatMetrics>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    axum::serve(listener, Router::new().route("/metrics", get(page)).with_state(metrics)).await
}

async fn page(State(metrics): State<Arc<ChatMetrics>>) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn served(reason_code: &str) -> Served {
        Served {
            name: "chat-00".into(),
            turn: Some(1),
            reason_code: reason_code.into(),
            detail: String::new(),
            matched_tokens: String::new(),
            replica: "engine-0".into(),
            prompt_tokens: 100,
            cached_tokens: 64,
            time_to_first_token: Duration::from_millis(40),
        }
    }

    #[test]
    fn times_and_tokens_are_told_apart_by_reason() {
        let metrics = ChatMetrics::default();
        for reason in ["PREFIX_MATCH", "PREFIX_MATCH", ""] {
            metrics.served(&served(reason));
        }
        metrics.failed();
        let page = metrics.text().unwrap();
        for line in [
            r#"loadgen_time_to_first_token_seconds_bucket{le="0.03",reason_code="PREFIX_MATCH"} 0"#,
            r#"loadgen_time_to_first_token_seconds_bucket{le="0.05",reason_code="PREFIX_MATCH"} 2"#,
            r#"loadgen_time_to_first_token_seconds_count{reason_code="none"} 1"#,
            r#"loadgen_prompt_tokens_total{reason_code="PREFIX_MATCH"} 200"#,
            r#"loadgen_cached_tokens_total{reason_code="none"} 64"#,
            "loadgen_requests_failed_total 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} not in\n{page}");
        }
    }
}
