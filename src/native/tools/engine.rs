//! An engine's `/tokenize`, as vLLM has it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::cases::CasePrompt;

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The longest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// As much of a refusal as is shown.
const MAX_SHOWN_CHARACTERS: usize = 300;

/// An engine.
pub(super) struct Engine {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    model: String,
}

/// What an engine makes of a prompt.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    /// The ids.
    pub(super) tokens: Vec<u32>,
    /// How many it says there are.
    pub(super) count: Option<usize>,
    /// The longest prompt.
    pub(super) max_model_len: Option<u64>,
}

/// Why there are no ids.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The engine has no such path.
    NoTokenize,
    /// It refused the prompt.
    Refused(String),
    /// It could not be asked, or did not answer as it should.
    Failed(String),
}

// === impl Engine ===

impl Engine {
    /// The engine at `base`, which serves `model`.
    ///
    /// # Errors
    /// When that is no such URL.
    pub(super) fn new(base: &str, model: &str) -> Result<Engine, String> {
        let url: Uri = format!("{}/tokenize", base.trim_end_matches('/'))
            .parse()
            .map_err(|error| format!("--engine is `{base}`, which is no URL: {error}"))?;
        if url.scheme_str() != Some("http") || url.host().is_none() {
            return Err(format!("--engine is `{base}`, allowed is http://host:port"));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Engine { client, url, model: model.to_owned() })
    }

    /// The ids of a prompt.
    pub(super) async fn tokenize(&self, prompt: &CasePrompt) -> Result<Answer, NoAnswer> {
        let failed = |what: String| NoAnswer::Failed(format!("{}: {what}", self.url));
        let request = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(Value::Object(self.body(prompt)).to_string()))
            .map_err(|error| failed(error.to_string()))?;
        let answered = timeout(ANSWER_LIMIT, async {
            let response = self.client.request(request).await.map_err(|error| failed(error_chain(&error)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            Ok((status, body.map_err(|error| failed(error.to_string()))?.to_bytes()))
        });
        let (status, body) = answered.await.map_err(|_| failed("no answer in time".into()))??;
        match status {
            StatusCode::OK => serde_json::from_slice(&body)
                .map_err(|error| failed(format!("an answer without ids: {error}: {}", shown(&body)))),
            StatusCode::METHOD_NOT_ALLOWED => Err(NoAnswer::NoTokenize),
            // vLLM says 404 also for a model that it does not serve, and names it then.
            StatusCode::NOT_FOUND if !shown(&body).contains(&self.model) => Err(NoAnswer::NoTokenize),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
                Err(NoAnswer::Refused(format!("{status}: {}", shown(&body))))
            }
            status => Err(failed(format!("{status}: {}", shown(&body)))),
        }
    }

    fn body(&self, prompt: &CasePrompt) -> Map<String, Value> {
        let mut body = match prompt {
            CasePrompt::Text { text, add_special_tokens } => {
                let fields = [("prompt", json!(text)), ("add_special_tokens", json!(add_special_tokens))];
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }
            CasePrompt::Chat(fields) => {
                let mut body = fields.clone();
                body.entry("add_generation_prompt").or_insert(json!(true));
                body.insert("add_special_tokens".to_owned(), json!(false));
                body
            }
        };
        body.insert("model".to_owned(), json!(self.model));
        body
    }
}

/// An error with what caused it.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    std::iter::once(error.to_string()).chain(causes.map(ToString::to_string)).collect::<Vec<_>>().join(": ")
}

fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(MAX_SHOWN_CHARACTERS).collect()
}
