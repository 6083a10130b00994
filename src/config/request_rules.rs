//! Which requests are read.

use serde_json::Value;

use super::defaults;
use super::section::{Problems, Section};
use crate::request::ChatApi;
use crate::request::names::{self, InputHeaders};

/// Which requests are read, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// The paths whose bodies are read.
    pub paths: Vec<PathRule>,
    /// A larger body is never held.
    pub max_body_bytes: u64,
    /// Whether a body of unknown length is held, up to `max_body_bytes`.
    pub hold_chunked: bool,
    /// The input headers that are read; all of them are removed.
    pub input_headers: InputHeaders,
}

/// A path whose bodies are read, and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// The path, without query.
    pub path: String,
    /// What its bodies are.
    pub api: BodyApi,
}

/// What the fields of a body mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyApi {
    /// OpenAI's `/v1/completions`, and whatever else has a `prompt`.
    #[default]
    Completions,
    /// A body with a conversation.
    Chat(ChatApi),
    /// `/generate` of SGLang and vLLM: `text`, `prompt`, or token ids.
    Generate,
    /// vLLM's `/inference/v1/generate`: token ids.
    TokensIn,
}

// === impl RequestRules ===

impl RequestRules {
    pub(super) fn read(root: &mut Section, problems: &mut Problems) -> RequestRules {
        RequestRules {
            paths: read_paths(root, problems),
            max_body_bytes: root.integer(
                "max_body_bytes",
                defaults::MAX_BODY_BYTES_RANGE,
                defaults::MAX_BODY_BYTES,
                problems,
            ),
            hold_chunked: root.boolean("hold_chunked", defaults::HOLD_CHUNKED, problems),
            input_headers: read_input_headers(root, problems),
        }
    }
}

/// An empty list is allowed: then only requests with explicit hashes in their headers are routed. What a path's bodies
/// are is told by its end, unless the path is written as an object of `path` and `api`.
fn read_paths(root: &mut Section, problems: &mut Problems) -> Vec<PathRule> {
    let listed = match root.take("paths") {
        None => return defaults::PATHS.map(PathRule::of).to_vec(),
        Some(Value::Array(listed)) => listed,
        Some(value) => {
            problems.note("paths", Some(value), "a list of paths");
            return Vec::new();
        }
    };
    listed.iter().enumerate().filter_map(|(place, value)| read_path(place, value, problems)).collect()
}

fn read_path(place: usize, value: &Value, problems: &mut Problems) -> Option<PathRule> {
    let at = format!("paths[{place}]");
    let rule = match value {
        Value::String(path) => PathRule::of(path),
        Value::Object(_) => {
            let mut section = Section::at(at.clone(), Some(value), problems);
            let path = section.required_text("path", problems);
            let api = section.choice("api", &BodyApi::NAMED, PathRule::of(&path).api, problems);
            section.finish(problems);
            PathRule { path, api }
        }
        _ => {
            problems.note(at, Some(value), "a path, or an object of path and api");
            return None;
        }
    };
    if !rule.path.starts_with('/') || rule.path.contains(['?', '#']) {
        problems.note(at, Some(value), "a path from its / on, without ? and #");
        return None;
    }
    Some(rule)
}

// === impl PathRule ===

impl PathRule {
    /// A path whose end tells what its bodies are.
    pub fn of(path: &str) -> PathRule {
        let api = BodyApi::ENDS.iter().find(|(end, _)| path.ends_with(end)).map_or(BodyApi::default(), |(_, api)| *api);
        PathRule { path: path.to_owned(), api }
    }
}

// === impl BodyApi ===

impl BodyApi {
    /// The values of `api`.
    const NAMED: [(&str, BodyApi); 6] = [
        ("completions", BodyApi::Completions),
        ("chat", BodyApi::Chat(ChatApi::ChatCompletions)),
        ("responses", BodyApi::Chat(ChatApi::Responses)),
        ("messages", BodyApi::Chat(ChatApi::Messages)),
        ("generate", BodyApi::Generate),
        ("tokens_in", BodyApi::TokensIn),
    ];

    /// What paths end in; the first that fits counts.
    const ENDS: [(&str, BodyApi); 6] = [
        ("/chat/completions", BodyApi::Chat(ChatApi::ChatCompletions)),
        ("/completions", BodyApi::Completions),
        ("/responses", BodyApi::Chat(ChatApi::Responses)),
        ("/messages", BodyApi::Chat(ChatApi::Messages)),
        ("/inference/v1/generate", BodyApi::TokensIn),
        ("/generate", BodyApi::Generate),
    ];
}

/// `true` (the default) reads all, `false` none, a list those it names.
fn read_input_headers(root: &mut Section, problems: &mut Problems) -> InputHeaders {
    let allowed = || format!("true, false, or a list of {}", names::INPUT.join(", "));
    match root.take("input_headers") {
        None | Some(Value::Bool(true)) => InputHeaders::all(),
        Some(Value::Bool(false)) => InputHeaders::none(),
        Some(Value::Array(values)) => {
            let mut enabled = InputHeaders::none();
            for (place, value) in values.iter().enumerate() {
                if !value.as_str().is_some_and(|name| enabled.enable(name)) {
                    let allowed = format!("one of {}", names::INPUT.join(", "));
                    problems.note(format!("input_headers[{place}]"), Some(value), allowed);
                }
            }
            enabled
        }
        Some(value) => {
            problems.note("input_headers", Some(value), allowed());
            InputHeaders::none()
        }
    }
}
