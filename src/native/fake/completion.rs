//! What is asked for: the body of a request for text.
//!
//! In: a body. Out: a [`CompletionRequest`], or a fault that names the field. Read are the prompt, `model`, `n` (only 1),
//! `stream`, `stream_options.include_usage`, `return_token_ids`, `cache_salt` and how many tokens to generate; null counts as absent; all
//! other fields are accepted and have no effect but on what a chat template makes of them.
//!
//! | [`Api`] | Prompt | Tokens to generate |
//! |---|---|---|
//! | `/v1/completions` | `prompt`, a string (with `add_special_tokens`) or an array of token ids | `max_tokens` |
//! | `/v1/chat/completions` | the whole body, through the model's template | `max_completion_tokens`, `max_tokens` |
//! | `/v1/responses` | the same | `max_output_tokens` |
//! | `/v1/messages` | the same | `max_tokens` |

use serde_json::{Map, Value};

use super::vocabulary::Vocabulary;
use crate::request::{ChatApi, TextPrompt};

/// vLLM's default for `max_tokens` of completions; an engine that generates nothing of worth needs no other.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What a body means, and so what a reply looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// A conversation.
    Chat(ChatApi),
}

/// A request that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRequest {
    /// What kind of request it is.
    pub api: Api,
    /// The LoRA adapter that is to compute it; none for the model itself.
    pub lora: Option<String>,
    /// The salt of its blocks' keys, if it has one.
    pub salt: Option<String>,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate, at least 1.
    pub max_tokens: usize,
    /// Whether tokens are sent as they come.
    pub stream: bool,
    /// Whether a stream ends with a chunk that has the usage.
    pub include_usage: bool,
    /// Whether the reply has the token ids of the prompt and the completion.
    pub return_token_ids: bool,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidRequest {
    /// No JSON object.
    Body(String),
    /// A field with a value that is not allowed.
    Field {
        /// The field.
        param: &'static str,
        /// What was found and what is allowed.
        problem: String,
    },
    /// A model that is not served.
    UnknownModel(String),
}

/// What an engine serves, as far as a request has to know.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The model.
    pub model: &'a str,
    /// The LoRA adapters on it.
    pub loras: &'a [String],
    /// What makes token ids of text.
    pub vocabulary: &'a Vocabulary,
    /// The most tokens that a prompt and its completion may have together.
    pub capacity_tokens: usize,
}

// === impl CompletionRequest ===

impl CompletionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// When it cannot be run, with the cause.
    pub fn parse(api: Api, bytes: &[u8], served: Served<'_>) -> Result<CompletionRequest, InvalidRequest> {
        let Served { vocabulary, capacity_tokens, .. } = served;
        let body = object(bytes)?;
        let lora = served.adapter(&body)?;
        if let Some(n) = present(&body, "n").filter(|n| n.as_u64() != Some(1)) {
            return Err(invalid("n", format!("found {n}, only 1 is supported")));
        }
        let request = CompletionRequest {
            api,
            lora,
            salt: parse_salt(&body)?,
            prompt: match api {
                Api::Completions => parse_prompt(&body, vocabulary)?,
                Api::Chat(api) => conversation(api, bytes, vocabulary)?,
            },
            max_tokens: parse_max_tokens(api, &body)?,
            stream: parse_flag(&body, "stream", false)?,
            include_usage: parse_include_usage(&body)?,
            return_token_ids: parse_flag(&body, "return_token_ids", false)?,
        };
        let asked = request.prompt.len().saturating_add(request.max_tokens);
        if asked > capacity_tokens {
            let problem = format!(
                "the prompt has {} tokens and {} are to be generated, together at most {capacity_tokens} are possible",
                request.prompt.len(),
                request.max_tokens
            );
            return Err(invalid("max_tokens", problem));
        }
        Ok(request)
    }
}

// === impl Served ===

impl Served<'_> {
    /// The adapter that a body names as its model, if it is not the model itself.
    ///
    /// # Errors
    /// When it names something that is not served.
    pub(super) fn adapter(&self, body: &Map<String, Value>) -> Result<Option<String>, InvalidRequest> {
        // vLLM takes a request that names no model for the one it serves.
        match present(body, "model") {
            None => Ok(None),
            Some(Value::String(name)) if name == self.model => Ok(None),
            Some(Value::String(name)) if self.loras.contains(name) => Ok(Some(name.clone())),
            Some(Value::String(name)) => Err(InvalidRequest::UnknownModel(name.clone())),
            Some(other) => Err(wrong_type("model", other, "a string")),
        }
    }
}

/// As in vLLM, a salt is a text that is not empty.
fn parse_salt(body: &Map<String, Value>) -> Result<Option<String>, InvalidRequest> {
    match present(body, "cache_salt") {
        None => Ok(None),
        Some(Value::String(salt)) if !salt.is_empty() => Ok(Some(salt.clone())),
        Some(other) => Err(wrong_type("cache_salt", other, "a string that is not empty")),
    }
}

/// The object that a body must be.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, InvalidRequest> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(InvalidRequest::Body(format!("found {}, an object is needed", kind(&other)))),
        Err(error) => Err(InvalidRequest::Body(error.to_string())),
    }
}

/// The token ids of a conversation.
pub(super) fn conversation(api: ChatApi, body: &[u8], vocabulary: &Vocabulary) -> Result<Vec<u32>, InvalidRequest> {
    let param = if api == ChatApi::Responses { "input" } else { "messages" };
    vocabulary
        .tokenize(&TextPrompt::Chat { api, body: body.to_vec() })
        .map_err(|why| invalid(param, format!("no prompt can be made of it: {why}")))
}

/// The token ids of a text that stands for itself.
pub(super) fn plain(
    body: &Map<String, Value>,
    text: &str,
    vocabulary: &Vocabulary,
) -> Result<Vec<u32>, InvalidRequest> {
    let add_special_tokens = parse_flag(body, "add_special_tokens", true)?;
    vocabulary
        .tokenize(&TextPrompt::Plain { text: text.to_owned(), add_special_tokens })
        .map_err(|why| invalid("prompt", why))
}

fn parse_prompt(body: &Map<String, Value>, vocabulary: &Vocabulary) -> Result<Vec<u32>, InvalidRequest> {
    const ALLOWED: &str = "a string or an array of token ids";
    let prompt = match present(body, "prompt") {
        None => return Err(invalid("prompt", format!("missing, {ALLOWED} is needed"))),
        Some(Value::String(text)) => plain(body, text, vocabulary)?,
        Some(Value::Array(ids)) => ids.iter().enumerate().map(token_id).collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong_type("prompt", other, ALLOWED)),
    };
    if prompt.is_empty() {
        return Err(invalid("prompt", "empty, at least one token is needed".to_owned()));
    }
    Ok(prompt)
}

fn token_id((index, value): (usize, &Value)) -> Result<u32, InvalidRequest> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
        let found = if value.is_number() { value.to_string() } else { kind(value).to_owned() };
        invalid("prompt", format!("element {index} is {found}, a token id from 0 to {} is needed", u32::MAX))
    })
}

fn parse_max_tokens(api: Api, body: &Map<String, Value>) -> Result<usize, InvalidRequest> {
    let names: &[&'static str] = match api {
        Api::Completions | Api::Chat(ChatApi::Messages) => &["max_tokens"],
        Api::Chat(ChatApi::ChatCompletions) => &["max_completion_tokens", "max_tokens"],
        Api::Chat(ChatApi::Responses) => &["max_output_tokens"],
    };
    let given = names.iter().find_map(|name| present(body, name).map(|value| (*name, value)));
    let Some((name, value)) = given else { return Ok(DEFAULT_MAX_TOKENS) };
    let max_tokens = value.as_u64().and_then(|tokens| usize::try_from(tokens).ok()).filter(|tokens| *tokens > 0);
    max_tokens.ok_or_else(|| invalid(name, format!("found {value}, a whole number from 1 is needed")))
}

fn parse_include_usage(body: &Map<String, Value>) -> Result<bool, InvalidRequest> {
    match present(body, "stream_options") {
        None => Ok(false),
        Some(Value::Object(options)) => parse_flag(options, "include_usage", false),
        Some(other) => Err(wrong_type("stream_options", other, "an object")),
    }
}

fn parse_flag(object: &Map<String, Value>, name: &'static str, default: bool) -> Result<bool, InvalidRequest> {
    match present(object, name) {
        None => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong_type(name, other, "true or false")),
    }
}

pub(super) fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn wrong_type(param: &'static str, found: &Value, allowed: &str) -> InvalidRequest {
    invalid(param, format!("found {}, {allowed} is needed", kind(found)))
}

pub(super) fn invalid(param: &'static str, problem: String) -> InvalidRequest {
    InvalidRequest::Field { param, problem }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

// === impl InvalidRequest ===

impl std::fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidRequest::Body(problem) => write!(f, "body: {problem}"),
            InvalidRequest::Field { param, problem } => write!(f, "{param}: {problem}"),
            InvalidRequest::UnknownModel(name) => write!(f, "The model `{name}` does not exist."),
        }
    }
}

impl std::error::Error for InvalidRequest {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_bytes(body: &[u8]) -> Result<CompletionRequest, InvalidRequest> {
        let (loras, vocabulary) = (["sql".to_owned()], Vocabulary::bytes());
        let served = Served { model: "m", loras: &loras, vocabulary: &vocabulary, capacity_tokens: 1_000 };
        CompletionRequest::parse(Api::Completions, body, served)
    }

    fn parse(body: Value) -> Result<CompletionRequest, InvalidRequest> {
        parse_bytes(body.to_string().as_bytes())
    }

    #[test]
    fn both_prompt_forms_and_the_defaults() {
        let request = parse(json!({ "model": "m", "prompt": "ab", "temperature": 0.5 })).unwrap();
        let expected = CompletionRequest {
            api: Api::Completions,
            lora: None,
            salt: None,
            prompt: vec![97, 98],
            max_tokens: 16,
            stream: false,
            include_usage: false,
            return_token_ids: false,
        };
        assert_eq!(request, expected);
        let body = json!({
            "prompt": [1, 4_294_967_295_u32], "max_tokens": 3, "stream": true, "return_token_ids": true,
            "stream_options": { "include_usage": true },
        });
        let expected = CompletionRequest {
            api: Api::Completions,
            lora: None,
            salt: None,
            prompt: vec![1, u32::MAX],
            max_tokens: 3,
            stream: true,
            include_usage: true,
            return_token_ids: true,
        };
        assert_eq!(parse(body).unwrap(), expected);
    }

    #[test]
    fn an_adapter_is_named_in_place_of_the_model() {
        assert_eq!(parse(json!({ "model": "sql", "prompt": "a" })).unwrap().lora.as_deref(), Some("sql"));
    }

    #[test]
    fn a_fault_names_the_field() {
        let faults = [
            (json!({}), "prompt: missing"),
            (json!({ "prompt": "" }), "prompt: empty"),
            (json!({ "prompt": ["a"] }), "prompt: element 0 is a string"),
            (json!({ "prompt": [1, [2]] }), "prompt: element 1 is an array"),
            (json!({ "prompt": [-1] }), "prompt: element 0 is -1"),
            (json!({ "prompt": 5 }), "prompt: found a number"),
            (json!({ "prompt": "a", "max_tokens": 0 }), "max_tokens: found 0"),
            (json!({ "prompt": "a", "max_tokens": 1_000 }), "max_tokens: the prompt has 1 tokens"),
            (json!({ "prompt": "a", "stream": "yes" }), "stream: found a string"),
            (json!({ "prompt": "a", "stream_options": true }), "stream_options: found a boolean"),
            (json!({ "prompt": "a", "n": 2 }), "n: found 2"),
            (json!({ "prompt": "a", "model": 1 }), "model: found a number"),
            (json!({ "prompt": "a", "model": "x" }), "The model `x` does not exist."),
            (json!([]), "body: found an array"),
        ];
        for (body, expected) in faults {
            let fault = parse(body.clone()).unwrap_err().to_string();
            assert!(fault.starts_with(expected), "{body}: {fault}");
        }
        assert!(matches!(parse_bytes(b"{"), Err(InvalidRequest::Body(_))));
    }
}
