//! Which requests are read.

use serde_json::Value;

use super::defaults;
use super::section::{Problems, Section};
use crate::request::names::{self, InputHeaders};

/// Which requests are read, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// The paths whose bodies are read, without query.
    pub paths: Vec<String>,
    /// A larger body is never held.
    pub max_body_bytes: u64,
    /// Whether a body of unknown length is held, up to `max_body_bytes`.
    pub hold_chunked: bool,
    /// The input headers that are read; all of them are removed.
    pub input_headers: InputHeaders,
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

/// An empty list is allowed: then only requests with explicit hashes in their headers are routed.
fn read_paths(root: &mut Section, problems: &mut Problems) -> Vec<String> {
    let Some(paths) = root.texts("paths", problems) else {
        return defaults::PATHS.map(str::to_owned).to_vec();
    };
    for (place, path) in paths.iter().enumerate() {
        if !path.starts_with('/') || path.contains(['?', '#']) {
            let value = Value::String(path.clone());
            problems.note(format!("paths[{place}]"), Some(&value), "a path from its / on, without ? and #");
        }
    }
    paths
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
