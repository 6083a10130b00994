//! One problem of a configuration.

use serde_json::Value;

/// The longest part of a value that an error repeats, in characters.
const SHOWN_CHARS: usize = 80;

/// A field whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field's path, such as `models[2].block_size`; empty for the configuration as a whole.
    pub field: String,
    /// The value found, as JSON, shortened; `absent` if there is none.
    pub value: String,
    /// What would be accepted.
    pub allowed: String,
}

// === impl ConfigError ===

impl ConfigError {
    pub(super) fn new(field: impl Into<String>, value: Option<&Value>, allowed: impl Into<String>) -> ConfigError {
        let value = value.map_or_else(|| "absent".to_owned(), |value| shortened(&value.to_string()));
        ConfigError { field: field.into(), value, allowed: allowed.into() }
    }

    pub(super) fn not_json(error: &serde_json::Error) -> ConfigError {
        ConfigError {
            field: String::new(),
            value: format!("not JSON ({error})"),
            allowed: "a JSON object with the plugin configuration".to_owned(),
        }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let field = if self.field.is_empty() { "configuration" } else { &self.field };
        write!(f, "{field} is {}, allowed: {}", self.value, self.allowed)
    }
}

impl std::error::Error for ConfigError {}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}
