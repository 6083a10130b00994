//! What can be wrong with a template, and with a render.

use std::fmt;

use minijinja::ErrorKind;

use super::InvalidJson;

/// A template that cannot be used. The model then has no text prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTemplate {
    reason: String,
}

/// A body that is no conversation which the engine would render. The request then has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidChat {
    /// It is not JSON.
    Json(InvalidJson),
    /// A field has a value that is not allowed, or none.
    Field {
        /// The field, as a path from the body.
        field: String,
        /// What it must be.
        allowed: &'static str,
    },
}

/// A conversation that the template does not turn into a prompt. The request then has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderError {
    /// The template refused the conversation, or used what is not there: the engine refuses such a request too, or the
    /// template relies on something of Python's that is not supported.
    Refused(String),
    /// Rendering took more work or memory than [`Limits::fuel`](super::Limits::fuel) pays for.
    OutOfFuel,
    /// The prompt is longer than [`Limits::output_bytes`](super::Limits::output_bytes).
    TooLong,
}

// === impl InvalidTemplate ===

impl InvalidTemplate {
    pub(super) fn new(reason: impl Into<String>) -> InvalidTemplate {
        InvalidTemplate { reason: reason.into() }
    }
}

impl From<minijinja::Error> for InvalidTemplate {
    fn from(error: minijinja::Error) -> InvalidTemplate {
        InvalidTemplate::new(error.to_string())
    }
}

impl fmt::Display for InvalidTemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "chat template: {}", self.reason)
    }
}

impl std::error::Error for InvalidTemplate {}

// === impl InvalidChat ===

impl fmt::Display for InvalidChat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidChat::Json(error) => write!(formatter, "chat: {error}"),
            InvalidChat::Field { field, allowed } => write!(formatter, "chat: {field} must be {allowed}"),
        }
    }
}

impl std::error::Error for InvalidChat {}

// === impl RenderError ===

impl RenderError {
    pub(super) fn refused(reason: impl Into<String>) -> RenderError {
        RenderError::Refused(reason.into())
    }
}

impl From<minijinja::Error> for RenderError {
    fn from(error: minijinja::Error) -> RenderError {
        match error.kind() {
            ErrorKind::OutOfFuel => RenderError::OutOfFuel,
            _ => RenderError::Refused(error.to_string()),
        }
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenderError::Refused(reason) => write!(formatter, "chat template: {reason}"),
            RenderError::OutOfFuel => write!(formatter, "chat template: the conversation takes too much work"),
            RenderError::TooLong => write!(formatter, "chat template: the prompt is too long"),
        }
    }
}

impl std::error::Error for RenderError {}
