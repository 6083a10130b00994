//! The HTTP side, for operators: `/metrics`, `/healthz`, `/readyz`, `/state`.
//!
//! `/healthz` answers 200 while the process runs. `/readyz` answers 200 once of every replica is known all that can be: it
//! was caught up with, or could not be reached in time. `/state` is a JSON object: every followed replica, every model whose
//! text can be turned into token ids, and the first
//! [`MAX_REPORTED`] of those that producers report, with how many these are.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::metrics::{CONTENT_TYPE, Metrics};
use super::state::HubState;
use crate::publisher::Publisher;

/// The most reported replicas in `/state`.
const MAX_REPORTED: usize = 1_000;

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
        .route("/state", get(state))
        .with_state(operations)
}

async fn metrics(State(operations): State<Operations>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], operations.metrics.text(&operations.state)).into_response()
}

async fn ready(State(operations): State<Operations>) -> (StatusCode, &'static str) {
    if operations.state.is_complete() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "replicas are being caught up with\n")
    }
}

async fn state(State(operations): State<Operations>) -> Json<Value> {
    let replicas: Vec<Value> = operations
        .state
        .view()
        .into_iter()
        .filter_map(|view| Some((operations.fleet.metrics(view.index)?, view)))
        .map(|(metrics, view)| {
            json!({
                "id": view.id,
                "data_parallel_rank": view.data_parallel_rank,
                "address": view.address,
                "connected": metrics.connected.get() == 1,
                "complete": view.complete,
                "incomplete": metrics.incomplete.get() == 1,
                "blocks": view.blocks,
                "event_sequence": metrics.last_sequence.get(),
                "pressure": view.stats.map(|stats| stats.pressure),
                "hit_rate": view.stats.map(|stats| stats.hit_rate),
            })
        })
        .collect();
    Json(json!({
        "epoch": operations.state.epoch(),
        "sequence": operations.state.sequence(),
        "subscribers": operations.metrics.subscribers(),
        "replicas": replicas,
        "reported": operations.state.read(reported),
        "models": models(&operations.state),
        "reported_total": operations.state.read(|publisher| publisher.reported().len()),
    }))
}

fn models(state: &HubState) -> Vec<Value> {
    let all = state.models().all().into_iter();
    all.map(|(model_id, model)| {
        json!({
            "id": model_id,
            "digest": format!("{:032x}", model.version.digest.0),
            "bytes": model.version.length,
            "kind": model.outline.kind,
            "vocabulary": model.outline.vocabulary,
            "chat_template": model.has_chat_template,
        })
    })
    .collect()
}

fn reported(publisher: &Publisher) -> Vec<Value> {
    let all = publisher.reported().into_iter().take(MAX_REPORTED);
    all.map(|(slot, replica)| {
        json!({
            "id": replica.member.replica_id,
            "tenant": replica.member.tenant_id,
            "model": replica.member.model_id,
            "address": &*replica.address,
            "blocks": publisher.index().pairs_of(slot),
            "pressure": replica.stats.map(|stats| stats.pressure),
            "hit_rate": replica.stats.map(|stats| stats.hit_rate),
        })
    })
    .collect()
}
