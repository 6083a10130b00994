//! Why a `tokenizer.json` gives no artifact.

use std::fmt;

/// The file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// It is not JSON, or not of the form of a `tokenizer.json`.
    Json(String),
    /// It asks for something that would give other ids here.
    Unsupported(Unsupported),
    /// It contradicts itself or exceeds a bound.
    Invalid {
        /// Where in the file.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// What is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// A kind of model other than BPE.
    Model(String),
    /// An option of the model that changes the ids.
    ModelOption {
        /// The option's name.
        name: &'static str,
        /// Its value in the file.
        value: String,
    },
    /// A normalizer, by its type, and what about it.
    Normalizer(String),
    /// A pre-tokenizer, by its type, and what about it.
    PreTokenizer(String),
    /// A split pattern that no known family uses.
    SplitPattern(String),
    /// A post-processor, by its type, and what about it.
    PostProcessor(String),
}

// === impl CompileError ===

impl CompileError {
    pub(super) fn invalid(field: &'static str, reason: impl Into<String>) -> CompileError {
        CompileError::Invalid { field, reason: reason.into() }
    }
}

impl From<Unsupported> for CompileError {
    fn from(what: Unsupported) -> CompileError {
        CompileError::Unsupported(what)
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileError::Json(error) => write!(f, "not a tokenizer.json: {error}"),
            CompileError::Unsupported(what) => what.fmt(f),
            CompileError::Invalid { field, reason } => write!(f, "{field}: {reason}"),
        }
    }
}

impl std::error::Error for CompileError {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Model(kind) => write!(f, "model.type is {kind}, supported is BPE"),
            Unsupported::ModelOption { name, value } => write!(f, "model.{name} is {value}, which is not supported"),
            Unsupported::Normalizer(what) => {
                write!(f, "normalizer {what} is not supported; NFC, literal Replace, Prepend and Sequence are")
            }
            Unsupported::PreTokenizer(what) => {
                write!(f, "pre_tokenizer {what} is not supported; known Split patterns with ByteLevel, ByteLevel, ")?;
                write!(f, "Metaspace and none are")
            }
            Unsupported::SplitPattern(pattern) => {
                write!(
                    f,
                    "pre_tokenizer pattern {pattern:?} is not one of GPT-2, cl100k, Qwen, o200k, tekken, DeepSeek"
                )
            }
            Unsupported::PostProcessor(what) => {
                write!(
                    f,
                    "post_processor {what} is not supported; ByteLevel, TemplateProcessing, RobertaProcessing, "
                )?;
                write!(f, "BertProcessing and Sequence are")
            }
        }
    }
}
