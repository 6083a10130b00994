//! An HTTP client for the stack: plain requests, and completions whose time to first token is measured.
//!
//! Every request has a deadline. The completion client speaks `/v1/completions`, or `/v1/chat/completions` where the prompt
//! is a conversation, with `stream: true`, and reads the server-sent events: the first one with text marks the first token,
//! the last one carries the usage.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The longest that one request may take.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A client over HTTP/1.1 with kept-alive connections; clones share them.
#[derive(Clone, Debug)]
pub struct Client(Pool<HttpConnector, Full<Bytes>>);

/// A response that was read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// A request that got no whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailed {
    /// Where it went.
    pub url: String,
    /// What went wrong.
    pub problem: String,
}

/// A prompt, in one of the forms that the API takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text, which the engine tokenizes.
    Text(String),
    /// Token ids.
    TokenIds(Vec<u32>),
    /// A conversation, which the engine renders and tokenizes.
    Chat(Chat),
}

/// A conversation, as OpenAI's API has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// The messages so far.
    pub messages: Vec<Value>,
    /// The tools that may be called.
    pub tools: Vec<Value>,
}

/// A completion that was streamed to its end.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The status; the fields below are empty unless it is 200.
    pub status: StatusCode,
    /// The response's headers.
    pub headers: HeaderMap,
    /// From sending the request to the first event with text.
    pub time_to_first_token: Duration,
    /// The generated text.
    pub text: String,
    /// Tokens of the prompt, as the engine counts them.
    pub prompt_tokens: u64,
    /// Of those, the ones that the engine had in its cache.
    pub cached_tokens: u64,
}

/// One server-sent event of a completion.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    cached_tokens: Option<u64>,
}

// === impl Prompt ===

impl Prompt {
    /// Where it is sent, and the fields that say it.
    fn path_and_body(&self) -> (&'static str, Map<String, Value>) {
        let field = |name: &str, value: Value| (name.to_owned(), value);
        match self {
            Prompt::Text(text) => ("/v1/completions", Map::from_iter([field("prompt", json!(text))])),
            Prompt::TokenIds(ids) => ("/v1/completions", Map::from_iter([field("prompt", json!(ids))])),
            Prompt::Chat(chat) => {
                // An empty list of tools is refused.
                let tools = (!chat.tools.is_empty()).then(|| field("tools", json!(chat.tools)));
                let messages = field("messages", json!(chat.messages));
                ("/v1/chat/completions", std::iter::once(messages).chain(tools).collect())
            }
        }
    }
}

// === impl Client ===

impl Default for Client {
    fn default() -> Client {
        Client(Pool::builder(TokioExecutor::new()).build_http())
    }
}

impl Client {
    /// Fetches a URL.
    ///
    /// # Errors
    /// When there is no whole response within [`DEADLINE`]. Any status is a response.
    pub async fn get(&self, url: &str) -> Result<Answer, RequestFailed> {
        self.request(url, Request::builder().method(Method::GET), Bytes::new()).await
    }

    /// Posts a JSON body.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn post_json(&self, url: &str, body: impl Into<Bytes>) -> Result<Answer, RequestFailed> {
        let head = Request::builder().method(Method::POST).header(CONTENT_TYPE, "application/json");
        self.request(url, head, body.into()).await
    }

    /// Sends a request of the caller's making; `head` gets its URL here.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub async fn request(
        &self,
        url: &str,
        head: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Answer, RequestFailed> {
        let exchange = async {
            let response = self.send(url, head, body).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| RequestFailed::new(url, error))?.to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body })
        };
        in_time(url, exchange).await
    }

    /// Asks for a completion and streams it; `base` is the server's URL without a path.
    ///
    /// # Errors
    /// As for [`Client::get`], and when the events are not those of a completion.
    pub async fn complete(
        &self,
        base: &str,
        model: &str,
        prompt: &Prompt,
        max_tokens: u32,
    ) -> Result<Completion, RequestFailed> {
        let (path, mut body) = prompt.path_and_body();
        let url = format!("{base}{path}");
        for (field, value) in [
            ("model", json!(model)),
            ("max_tokens", json!(max_tokens)),
            ("stream", json!(true)),
            ("stream_options", json!({ "include_usage": true })),
        ] {
            body.insert(field.to_owned(), value);
        }
        let head = Request::builder().method(Method::POST).header(CONTENT_TYPE, "application/json");
        let exchange = async {
            let start = Instant::now();
            let response = self.send(&url, head, Bytes::from(Value::Object(body).to_string())).await?;
            read_completion(&url, start, response).await
        };
        in_time(&url, exchange).await
    }

    async fn send(
        &self,
        url: &str,
        head: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Incoming>, RequestFailed> {
        let request = head.uri(url).body(Full::new(body)).map_err(|error| RequestFailed::new(url, error))?;
        self.0.request(request).await.map_err(|error| RequestFailed::new(url, error))
    }
}

async fn in_time<T>(url: &str, exchange: impl Future<Output = Result<T, RequestFailed>>) -> Result<T, RequestFailed> {
    match tokio::time::timeout(DEADLINE, exchange).await {
        Ok(result) => result,
        Err(_) => Err(RequestFailed::new(url, format!("no whole response in {DEADLINE:?}"))),
    }
}

async fn read_completion(url: &str, start: Instant, response: Response<Incoming>) -> Result<Completion, RequestFailed> {
    let (parts, mut body) = response.into_parts();
    let mut completion = Completion {
        status: parts.status,
        headers: parts.headers,
        time_to_first_token: Duration::ZERO,
        text: String::new(),
        prompt_tokens: 0,
        cached_tokens: 0,
    };
    let mut unread = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestFailed::new(url, error))?;
        unread.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if completion.status == StatusCode::OK {
            completion.read_events(url, start, &mut unread)?;
        }
    }
    Ok(completion)
}

// === impl Completion ===

impl Completion {
    /// Takes every whole line out of `unread`.
    fn read_events(&mut self, url: &str, start: Instant, unread: &mut Vec<u8>) -> Result<(), RequestFailed> {
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else { continue };
            if data != b"[DONE]" {
                let event = serde_json::from_slice(data).map_err(|error| RequestFailed::new(url, error))?;
                self.read_event(start, event);
            }
        }
        Ok(())
    }

    fn read_event(&mut self, start: Instant, event: Event) {
        for choice in event.choices {
            let text = choice.text.or_else(|| choice.delta?.content).unwrap_or_default();
            if self.text.is_empty() && !text.is_empty() {
                self.time_to_first_token = start.elapsed();
            }
            self.text.push_str(&text);
        }
        if let Some(usage) = event.usage {
            self.prompt_tokens = usage.prompt_tokens;
            self.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        }
    }

    /// A response header as text; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        text_header(&self.headers, name)
    }
}

// === impl Answer ===

impl Answer {
    /// The body as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A response header as text; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        text_header(&self.headers, name)
    }
}

fn text_header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

// === impl RequestFailed ===

impl RequestFailed {
    fn new(url: &str, problem: impl std::fmt::Display) -> RequestFailed {
        RequestFailed { url: url.to_owned(), problem: problem.to_string() }
    }
}

impl std::fmt::Display for RequestFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.url, self.problem)
    }
}

impl std::error::Error for RequestFailed {}
