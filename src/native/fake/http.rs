//! The engine's HTTP paths.
//!
//! | Path | Answer |
//! |---|---|
//! | `POST /v1/completions` | see [`completion`](super::completion) and [`reply`](super::reply) |
//! | `POST /v1/chat/completions`, `/v1/responses`, `/v1/messages` | the same; only with a model's vocabulary |
//! | `POST /tokenize`, `/detokenize` | the ids of `messages` or of `prompt`, the text of `tokens`, as vLLM has it |
//! | `GET /v1/models` | the one model, and the adapters on it |
//! | `GET /health` | 200, empty |
//! | `GET /metrics` | see [`metrics`] |
//! | `POST /reset_prefix_cache` | 200 and an `AllBlocksCleared`; 409 while requests use blocks, and nothing is cleared (vLLM clears nothing either, but answers 200) |
//! | `GET /debug/requests` | see [`request_log`] |
//!
//! Anything else is 404 or 405 with vLLM's body. Every request is logged, and every response has `x-engine-id` and the
//! XXH3-64 of the body that it answers, as in the log, in `x-received-xxh3`; one that is sent as a whole has that of its own
//! body in `x-sent-xxh3`.

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
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::{Value, json};

use super::cache::Namespace;
use super::completion::{
    Api, CompletionRequest, InvalidRequest, Served, conversation, invalid, object, plain, present,
};
use super::metrics;
use super::ranks::{NoSuchRank, RANK_HEADER, Ranks};
use super::reply::Reply;
use super::request_log::{self, RequestLog};
use super::streamed::respond;
use super::vocabulary::Vocabulary;
use crate::request::ChatApi;

/// The largest body read.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

const ENGINE_ID: HeaderName = HeaderName::from_static("x-engine-id");
const RECEIVED: HeaderName = HeaderName::from_static("x-received-xxh3");
const SENT: HeaderName = HeaderName::from_static("x-sent-xxh3");
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
    /// What makes token ids of text.
    pub vocabulary: Arc<Vocabulary>,
    /// What runs requests.
    pub ranks: Ranks,
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

// === impl App ===

impl App {
    fn served(&self) -> Served<'_> {
        Served {
            model: &self.model,
            loras: &self.loras,
            vocabulary: &self.vocabulary,
            capacity_tokens: self.ranks.capacity_tokens(),
        }
    }
}

/// The paths over `app`.
pub fn router(app: App) -> axum::Router {
    let mut conversations = axum::Router::new();
    if app.vocabulary.is_a_models() {
        conversations = conversations
            .route("/v1/chat/completions", post(chat))
            .route("/v1/responses", post(responses))
            .route("/v1/messages", post(messages));
    }
    conversations
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(async || StatusCode::OK))
        .route("/metrics", get(metrics_page))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .route(REQUEST_LOG_PATH, get(request_log))
        .route("/debug/restart", post(restart))
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
    let digest = digest(&received);
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
    response.headers_mut().insert(RECEIVED, digest);
    sign_body(response).await
}

/// Only of a body that is there: a stream is not held up.
async fn sign_body(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    if body.size_hint().exact().is_none() {
        return Response::from_parts(parts, body);
    }
    // A body of known length cannot fail.
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    parts.headers.insert(SENT, digest(&bytes));
    Response::from_parts(parts, Body::from(bytes))
}

fn digest(bytes: &[u8]) -> HeaderValue {
    // Digits are a valid value.
    HeaderValue::from_str(&request_log::digest(bytes)).unwrap_or(HeaderValue::from_static(""))
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
    generate(app, &headers, &body, Api::Completions).await
}

async fn chat(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Response {
    generate(app, &headers, &body, Api::Chat(ChatApi::ChatCompletions)).await
}

async fn responses(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Response {
    generate(app, &headers, &body, Api::Chat(ChatApi::Responses)).await
}

async fn messages(State(app): State<App>, headers: HeaderMap, body: Bytes) -> Response {
    generate(app, &headers, &body, Api::Chat(ChatApi::Messages)).await
}

async fn generate(app: App, headers: &HeaderMap, body: &[u8], api: Api) -> Response {
    if !is_json(headers) {
        let message = "Unsupported Media Type: Only 'application/json' is allowed";
        return error(StatusCode::BAD_REQUEST, "BadRequestError", Some("content-type"), message);
    }
    let request = match CompletionRequest::parse(api, body, app.served()) {
        Ok(request) => request,
        Err(fault) => return refusal(&fault),
    };
    let (rank, scheduler) = match app.ranks.pick(headers) {
        Ok(picked) => picked,
        Err(NoSuchRank(named)) => {
            let message = format!("data_parallel_rank {named} is out of range");
            return error(StatusCode::BAD_REQUEST, "BadRequestError", Some(RANK_HEADER), &message);
        }
    };
    let namespace = Namespace { lora: request.lora.as_deref(), salt: request.salt.as_deref() };
    let Ok(generation) = scheduler.prefill(namespace, &request.prompt, request.max_tokens).await else {
        let message = "the engine is shutting down";
        return error(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", None, message);
    };
    let reply = Reply {
        number: app.completions.fetch_add(1, Ordering::Relaxed),
        created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs(),
        model: request.lora.clone().unwrap_or_else(|| app.model.to_string()),
        api,
    };
    let mut response = respond(request, reply, app.vocabulary, generation).await;
    response.headers_mut().insert(RANK_HEADER, HeaderValue::from(rank));
    response
}

/// vLLM's `/tokenize`: of `messages`, or of `prompt`.
async fn tokenize(State(app): State<App>, body: Bytes) -> Response {
    let ids = object(&body).and_then(|fields| {
        app.served().adapter(&fields)?;
        match present(&fields, "prompt") {
            _ if present(&fields, "messages").is_some() => {
                if present(&fields, "add_special_tokens").is_some_and(|given| *given != Value::Bool(false)) {
                    return Err(invalid("add_special_tokens", "of messages only false is supported".to_owned()));
                }
                conversation(ChatApi::ChatCompletions, &body, &app.vocabulary)
            }
            Some(Value::String(text)) => plain(&fields, text, &app.vocabulary),
            _ => Err(invalid("prompt", "no string, and no messages either".to_owned())),
        }
    });
    match ids {
        Ok(ids) => {
            let max_model_len = app.ranks.capacity_tokens();
            let answer = json!({
                "count": ids.len(), "max_model_len": max_model_len, "tokens": ids, "token_strs": null,
            });
            Json(answer).into_response()
        }
        Err(fault) => refusal(&fault),
    }
}

async fn detokenize(State(app): State<App>, body: Bytes) -> Response {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = object(&body).and_then(|fields| {
        let tokens = present(&fields, "tokens").and_then(Value::as_array);
        let ids: Option<Vec<u32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
        ids.ok_or_else(|| invalid("tokens", "an array of token ids is needed".to_owned()))
    });
    match ids {
        Ok(ids) => Json(json!({ "prompt": app.vocabulary.detokenize(&ids) })).into_response(),
        Err(fault) => refusal(&fault),
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
        "max_model_len": app.ranks.capacity_tokens(),
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
    let page = metrics::render(&app.ranks.loads(), &app.model, app.started);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}

async fn reset_prefix_cache(State(app): State<App>) -> Response {
    match app.ranks.reset_prefix_cache() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(in_use) => {
            let message = format!("the prefix cache was not cleared: requests use {} blocks", in_use.0);
            error(StatusCode::CONFLICT, "ConflictError", None, &message)
        }
    }
}

async fn restart(State(app): State<App>) -> Response {
    match app.ranks.restart() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(in_use) => {
            let message = format!("the engine did not start over: requests use {} blocks", in_use.0);
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
