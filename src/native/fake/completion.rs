//! `/v1/completions`: what is read from the body, and the replies' shapes.
//!
//! In: a body. Out: a [`CompletionRequest`], or a fault that names the field. Read are `prompt` (a string, or an array
//! of token ids), `model`, `max_tokens`, `n` (only 1), `stream`, `stream_options.include_usage` and
//! `return_token_ids`; null counts as absent; all other fields are accepted and have no effect. Replies have the shapes of
//! vLLM's OpenAI server.

use serde_json::{Map, Value, json};

use super::tokens;

/// vLLM's default for `max_tokens` on this path.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A request that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionRequest {
    /// The LoRA adapter that is to compute it; none for the model itself.
    pub lora: Option<String>,
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

/// What all parts of one reply share.
#[derive(Clone, Debug)]
pub struct Reply {
    /// `cmpl-` and a number.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model.
    pub model: String,
}

/// The counts of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones that came from the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
}

// === impl CompletionRequest ===

impl CompletionRequest {
    /// Reads a body sent to an engine that serves `model` and the adapters `loras` on it, and has room for
    /// `capacity_tokens`.
    ///
    /// # Errors
    /// When it cannot be run, with the cause.
    pub fn parse(
        body: &[u8],
        model: &str,
        loras: &[String],
        capacity_tokens: usize,
    ) -> Result<CompletionRequest, InvalidRequest> {
        let body: Value = serde_json::from_slice(body).map_err(|error| InvalidRequest::Body(error.to_string()))?;
        let Value::Object(body) = body else {
            return Err(InvalidRequest::Body(format!("found {}, an object is needed", kind(&body))));
        };
        // vLLM takes a request that names no model for the one it serves.
        let lora = match present(&body, "model") {
            None => None,
            Some(Value::String(name)) if name == model => None,
            Some(Value::String(name)) if loras.contains(name) => Some(name.clone()),
            Some(Value::String(name)) => return Err(InvalidRequest::UnknownModel(name.clone())),
            Some(other) => return Err(wrong_type("model", other, "a string")),
        };
        if let Some(n) = present(&body, "n").filter(|n| n.as_u64() != Some(1)) {
            return Err(invalid("n", format!("found {n}, only 1 is supported")));
        }
        let request = CompletionRequest {
            lora,
            prompt: parse_prompt(&body)?,
            max_tokens: parse_max_tokens(&body)?,
            stream: parse_flag(&body, "stream")?,
            include_usage: parse_include_usage(&body)?,
            return_token_ids: parse_flag(&body, "return_token_ids")?,
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

fn parse_prompt(body: &Map<String, Value>) -> Result<Vec<u32>, InvalidRequest> {
    const ALLOWED: &str = "a string or an array of token ids";
    let prompt = match present(body, "prompt") {
        None => return Err(invalid("prompt", format!("missing, {ALLOWED} is needed"))),
        Some(Value::String(text)) => tokens::tokenize(text),
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

fn parse_max_tokens(body: &Map<String, Value>) -> Result<usize, InvalidRequest> {
    let Some(value) = present(body, "max_tokens") else { return Ok(DEFAULT_MAX_TOKENS) };
    let max_tokens = value.as_u64().and_then(|tokens| usize::try_from(tokens).ok()).filter(|tokens| *tokens > 0);
    max_tokens.ok_or_else(|| invalid("max_tokens", format!("found {value}, a whole number from 1 is needed")))
}

fn parse_include_usage(body: &Map<String, Value>) -> Result<bool, InvalidRequest> {
    match present(body, "stream_options") {
        None => Ok(false),
        Some(Value::Object(options)) => parse_flag(options, "include_usage"),
        Some(other) => Err(wrong_type("stream_options", other, "an object")),
    }
}

fn parse_flag(object: &Map<String, Value>, name: &'static str) -> Result<bool, InvalidRequest> {
    match present(object, name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err(wrong_type(name, other, "true or false")),
    }
}

fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn wrong_type(param: &'static str, found: &Value, allowed: &str) -> InvalidRequest {
    invalid(param, format!("found {}, {allowed} is needed", kind(found)))
}

fn invalid(param: &'static str, problem: String) -> InvalidRequest {
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

// === impl Reply ===

impl Reply {
    /// The whole reply of a request that is not streamed.
    pub fn whole(&self, request: &CompletionRequest, token_ids: &[u32], usage: Usage) -> Value {
        let mut choice = choice(token_ids, true);
        if request.return_token_ids {
            set(&mut choice, "prompt_token_ids", json!(request.prompt));
            set(&mut choice, "token_ids", json!(token_ids));
        }
        self.object(json!([choice]), Some(usage))
    }

    /// The chunk with one token of a stream. The first one also has the prompt's ids, when ids are asked for.
    pub fn chunk(&self, request: &CompletionRequest, token_id: u32, first: bool, last: bool) -> Value {
        let mut choice = choice(&[token_id], last);
        if request.return_token_ids {
            if first {
                set(&mut choice, "prompt_token_ids", json!(request.prompt));
            }
            set(&mut choice, "token_ids", json!([token_id]));
        }
        self.object(json!([choice]), None)
    }

    /// The chunk with the usage alone.
    pub fn usage_chunk(&self, usage: Usage) -> Value {
        self.object(json!([]), Some(usage))
    }

    fn object(&self, choices: Value, usage: Option<Usage>) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            set(&mut object, "usage", usage.to_json());
        }
        object
    }
}

fn choice(token_ids: &[u32], last: bool) -> Value {
    json!({
        "index": 0,
        "text": tokens::detokenize(token_ids),
        "logprobs": null,
        "finish_reason": last.then_some("length"),
        "stop_reason": null,
    })
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), value);
    }
}

// === impl Usage ===

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
        })
    }
}

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
    use super::*;

    fn parse(body: Value) -> Result<CompletionRequest, InvalidRequest> {
        CompletionRequest::parse(body.to_string().as_bytes(), "m", &["sql".to_owned()], 1_000)
    }

    #[test]
    fn both_prompt_forms_and_the_defaults() {
        let request = parse(json!({ "model": "m", "prompt": "ab", "temperature": 0.5 })).unwrap();
        let expected = CompletionRequest {
            lora: None,
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
            lora: None,
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
        assert!(matches!(CompletionRequest::parse(b"{", "m", &[], 9), Err(InvalidRequest::Body(_))));
    }
}
