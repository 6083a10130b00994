//! The engine's HTTP paths.
//!
//! | Path | Answer |
//! |---|---|
//! | `POST /v1/completions` | see [`completion`](super::completion) |
//! | `GET /v1/models` | the one model, and the adapters on it |
//! | `GET /health` | 200, empty |
//! | `GET /metrics` | see [`metrics`] |
//! | `POST /reset_prefix_cache` | 200 and an `AllBlocksCleared`; 409 while requests use blocks, and nothing is cleared (vLLM clears nothing either, but answers 200) |
//! | `GET /debug/requests` | see [`request_log`](super::request_log) |
//!
//! Anything else is 404 or 405 with vLLM's body. Every request is logged, and every response has `x-engine-id`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::completion::{CompletionRequest, InvalidRequest, Reply, Usage};
use super::metrics;
use super::request_log::RequestLog;
use super::scheduler::{Generation, Scheduler};

/// The largest body read.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

const ENGINE_ID: HeaderName = HeaderName::from_static("x-engine-id");
const REQUEST_LOG_PATH: &str = "/debug/requests";

/// What the paths share; clones share it.
#[derive(Clone)]
pub struct App {
    /// The engine's name.
    pub id: HeaderValue,
    /// The model served.
    pub model: Arc<str>,
    /// The LoRA adapters on it.
    pub loras: Arc<[String]>,
    /// What runs requests.
    pub scheduler: Scheduler,
    /// What arrived.
    pub requests: RequestLog,
    /// When the engine started.
    pub started: SystemTime,
    /// Completions so far.
    pub completions: Arc<AtomicU64>,
}

/// Part of a body that did not arrive whole.
enum BodyFault {
    TooLarge,
    Broken,
}

/// The paths over `app`.
pub fn router(app: App) -> axum::Router {
    axum::Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(async || StatusCode::OK))
        .route("/metrics", get(metrics_page))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route(REQUEST_LOG_PATH, get(request_log))
        .fallback(async || (StatusCode::NOT_FOUND, Json(json!({ "detail": "Not Found" }))))
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, Json(json!({ "detail": "Method Not Allowed" })))
        })
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(app.clone(), log_and_sign))
        .with_state(app)
}

/// Reads the body, logs the request, and signs the response.
async fn log_and_sign(State(app): State<App>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let mut received = Vec::new();
    let fault = read_body(body, &mut received).await.err();
    if parts.uri.path() != REQUEST_LOG_PATH {
        app.requests.add(&parts, &received, fault.is_none());
    }
    let mut response = match fault {
        None => next.run(Request::from_parts(parts, Body::from(received))).await,
        Some(BodyFault::TooLarge) => {
            let message = format!("body: larger than {MAX_BODY_BYTES} bytes");
            error(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", None, &message)
        }
        Some(BodyFault::Broken) => {
            error(StatusCode::BAD_REQUEST, "BadRequestError", None, "body: ended before it was complete")
        }
    };
    response.headers_mut().insert(ENGINE_ID, app.id);
    response
}

async fn read_body(mut body: Body, received: &mut Vec<u8>) -> Result<(), BodyFault> {
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyFault::Broken)?.into_data() else { continue };
        if received.len() + data.len() > MAX_BODY_BYTES {
            return Err(BodyFault::TooLarge);
        }
        received.extend_from_slice(&data);
    }
    Ok(())
}

async fn completions(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Response {
    if !is_json(&headers) {
        let message = "Unsupported Media Type: Only 'application/json' is allowed";
        return error(StatusCode::BAD_REQUEST, "BadRequestError", Some("content-type"), message);
    }
    let request = match CompletionRequest::parse(&body, &app.model, &app.loras, app.scheduler.capacity_tokens()) {
        Ok(request) => request,
        Err(fault) => return refusal(&fault),
    };
    let Ok(generation) = app.scheduler.prefill(request.lora.as_deref(), &request.prompt, request.max_tokens).await
    else {
        let message = "the engine is shutting down";
        return error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", None, message);
    };
    let reply = Reply {
        id: format!("cmpl-{}", app.completions.fetch_add(1, Ordering::Relaxed)),
        created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs(),
        model: request.lora.clone().unwrap_or_else(|| app.model.to_string()),
    };
    if request.stream {
        stream_reply(request, reply, generation)
    } else {
        whole_reply(request, reply, generation).await
    }
}

async fn whole_reply(request: CompletionRequest, reply: Reply, mut generation: Generation) -> Response {
    let mut token_ids = Vec::new();
    while let Some(token_id) = generation.next_token().await {
        token_ids.push(token_id);
    }
    Json(reply.whole(&request, &token_ids, usage(&generation))).into_response()
}

/// Server-sent events: a chunk per token, the usage if asked for, `[DONE]`. Dropped by the client, it stops.
fn stream_reply(request: CompletionRequest, reply: Reply, generation: Generation) -> Response {
    let closing_request = request.clone();
    let closing_reply = reply.clone();
    let prompt_tokens = generation.prompt_tokens();
    let cached_tokens = generation.cached_tokens();
    let chunks = stream::unfold(generation, move |mut generation| {
        let (request, reply) = (request.clone(), reply.clone());
        async move {
            let token_id = generation.next_token().await?;
            let produced = generation.produced();
            let chunk = reply.chunk(&request, token_id, produced == 1, produced == request.max_tokens);
            Some((server_sent(&chunk.to_string()), generation))
        }
    });
    let closing_usage = Usage { prompt_tokens, cached_tokens, completion_tokens: closing_request.max_tokens };
    let usage = closing_request.include_usage.then(|| closing_reply.usage_chunk(closing_usage).to_string());
    let closing = usage.into_iter().chain(["[DONE]".to_owned()]).map(|data| server_sent(&data));
    let body = Body::from_stream(chunks.chain(stream::iter(closing.collect::<Vec<_>>())));
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}

fn server_sent(data: &str) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(format!("data: {data}\n\n")))
}

fn usage(generation: &Generation) -> Usage {
    Usage {
        prompt_tokens: generation.prompt_tokens(),
        cached_tokens: generation.cached_tokens(),
        completion_tokens: generation.produced(),
    }
}

async fn models(State(app): State<App>) -> Json<Value> {
    let created = app.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let model = json!({
        "id": &*app.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": &*app.model,
        "parent": null,
        "max_model_len": app.scheduler.capacity_tokens(),
    });
    let adapter = |name: &String| {
        json!({
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": &*app.model,
            "max_model_len": null,
        })
    };
    let served: Vec<Value> = std::iter::once(model).chain(app.loras.iter().map(adapter)).collect();
    Json(json!({ "object": "list", "data": served }))
}

async fn metrics_page(State(app): State<App>) -> Response {
    let page = metrics::render(app.scheduler.load(), &app.model, app.started);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}

async fn reset_prefix_cache(State(app): State<App>) -> Response {
    match app.scheduler.reset_prefix_cache() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(in_use) => {
            let message = format!("the prefix cache was not cleared: requests use {} blocks", in_use.0);
            error(StatusCode::CONFLICT, "ConflictError", None, &message)
        }
    }
}

async fn request_log(State(app): State<App>) -> Response {
    Json(app.requests.entries()).into_response()
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn refusal(fault: &InvalidRequest) -> Response {
    let message = fault.to_string();
    match fault {
        InvalidRequest::Body(_) => error(StatusCode::BAD_REQUEST, "BadRequestError", None, &message),
        InvalidRequest::Field { param, .. } => error(StatusCode::BAD_REQUEST, "BadRequestError", Some(param), &message),
        InvalidRequest::UnknownModel(_) => error(StatusCode::NOT_FOUND, "NotFoundError", Some("model"), &message),
    }
}

/// vLLM's error body, with the field at fault in `param`.
fn error(status: StatusCode, kind: &str, param: Option<&str>, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": kind, "param": param, "code": status.as_u16() } });
    (status, Json(body)).into_response()
}
