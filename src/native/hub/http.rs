//! The HTTP side, for operators: `/metrics`, `/healthz`, `/readyz`, `/state`.
//!
//! `/healthz` answers 200 while the process runs. `/readyz` answers 200 once the replicas are found, or were looked for long
//! enough, and of every one is known all that can be: it was caught up with, or could not be reached in time. `/state` is a
//! [`HubReport`](super::report::HubReport).

mod serve;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::fleet::Fleet;
use super::metrics::{CONTENT_TYPE, Metrics};
use super::state::HubState;
pub use serve::serve;

/// What the handlers read.
#[derive(Clone)]
pub struct Operations {
    /// The hub's state.
    pub state: Arc<HubState>,
    /// The hub's metrics.
    pub metrics: Arc<Metrics>,
    /// The replicas that are followed.
    pub fleet: Arc<Fleet>,
}

/// The routes.
pub fn router(operations: Operations) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/state", get(state::state))
        .with_state(operations)
}

async fn metrics(State(operations): State<Operations>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], operations.metrics.text(&operations.state)).into_response()
}

async fn ready(State(operations): State<Operations>) -> (StatusCode, &'static str) {
    let state = &operations.state;
    match (state.awaits_replicas(), state.is_complete()) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "replicas are being looked for\n"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "replicas are being caught up with\n"),
        (false, true) => (StatusCode::OK, "ready\n"),
    }
}
