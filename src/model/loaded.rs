//! One model, ready to make token ids.

use super::package::Package;
use crate::request::{TextPrompt, TokenizeError, Tokenized};
use crate::template::{ChatTemplate, InvalidTemplate, Limits, LocalTime, SpecialTokens};
use crate::tokenize::{ArtifactError, Tokenizer, TokenizerDigest, Workspace};

/// How much of a prompt may be made into token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLimits {
    /// Bytes of a rendered prompt that are tokenized.
    pub max_prompt_bytes: usize,
    /// Token ids that are made.
    pub max_tokens: usize,
    /// Symbols that are merged, which bounds the time: see [`crate::tokenize::Limits`].
    pub max_symbols: usize,
}

/// A model, ready to make token ids.
pub struct LoadedModel {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
}

/// Why a package cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidModel {
    /// The tokenizer.
    Tokenizer(ArtifactError),
    /// A chat template.
    Template(InvalidTemplate),
}

// === impl LoadedModel ===

impl LoadedModel {
    /// Takes a package over.
    ///
    /// # Errors
    /// When the tokenizer or a template cannot be used.
    pub fn load(package: Package) -> Result<LoadedModel, InvalidModel> {
        let compile = |source: &Option<String>, special: &SpecialTokens| {
            let source = source.as_deref();
            source.map(|source| ChatTemplate::compile(source, special, Limits::DEFAULT)).transpose()
        };
        Ok(LoadedModel {
            template: compile(&package.chat_template, &package.special_tokens).map_err(InvalidModel::Template)?,
            tool_template: compile(&package.tool_chat_template, &package.special_tokens)
                .map_err(InvalidModel::Template)?,
            tokenizer: Tokenizer::load(package.artifact).map_err(InvalidModel::Tokenizer)?,
        })
    }

    /// Identity of the tokenizer.
    pub fn digest(&self) -> TokenizerDigest {
        self.tokenizer.digest()
    }

    /// The token ids of a prompt, as the engine makes them whose wall clock shows `clock`.
    ///
    /// # Errors
    /// When they cannot be known, or take more than `limits` allow.
    pub fn tokenize(
        &self,
        _prompt: &TextPrompt,
        _clock: LocalTime,
        _limits: &TextLimits,
        _workspace: &mut Workspace,
    ) -> Result<Tokenized, TokenizeError> {
        Err(TokenizeError::Unavailable)
    }
}

impl std::fmt::Display for InvalidModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidModel::Tokenizer(error) => error.fmt(f),
            InvalidModel::Template(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidModel {}
