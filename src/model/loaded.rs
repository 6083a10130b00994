//! One model, ready to make token ids.

use super::package::Package;
use crate::request::{ChatApi, TextPrompt, TokenizeError, Tokenized};
use crate::template::{
    Chat, ChatTemplate, InvalidChat, InvalidTemplate, KnownItems, Limits, LocalTime, Prompt, RenderError,
    SpecialTokens, Value,
};
use crate::tokenize::{self, ArtifactError, Extent, Specials, Tokenizer, TokenizerDigest, Workspace};

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
    /// Takes a package over whose bytes are those that its digest was taken of, as [`Assembly`](super::Assembly) sees to:
    /// nothing is hashed again, so this takes no longer than compiling the templates.
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
            tokenizer: Tokenizer::load_checked(package.artifact).map_err(InvalidModel::Tokenizer)?,
        })
    }

    /// Bytes of memory that it takes, but for what the templates compile to, some hundred kilobytes.
    pub fn bytes(&self) -> usize {
        let templates = [&self.template, &self.tool_template].into_iter().flatten();
        templates.fold(self.tokenizer.artifact_bytes(), |bytes, template| bytes.saturating_add(template.source().len()))
    }

    /// Identity of the tokenizer.
    pub fn digest(&self) -> TokenizerDigest {
        self.tokenizer.digest()
    }

    /// The token ids of a prompt, as the engine makes them whose wall clock shows `clock`; of a prompt that is over the
    /// limits, or goes on with something that is not text, those that it certainly begins with.
    ///
    /// # Errors
    /// When they cannot be known, or the limits allow none.
    pub fn tokenize(
        &self,
        prompt: &TextPrompt,
        clock: LocalTime,
        limits: &TextLimits,
        workspace: &mut Workspace,
    ) -> Result<Tokenized, TokenizeError> {
        let rendered;
        let (text, specials) = match prompt {
            TextPrompt::Plain { text, add_special_tokens } => (Extent::Whole(text), specials(*add_special_tokens)),
            TextPrompt::User(text) => {
                rendered = self.render_user(text, clock)?;
                (extent(&rendered), Specials::None)
            }
            TextPrompt::Chat { api, body } => {
                let specials;
                (rendered, specials) = self.render_chat(*api, body, clock, workspace.items())?;
                (extent(&rendered), specials)
            }
        };
        let encoded = self.tokenizer.encode_leading(text, specials, &limits.of_tokenizer(), workspace);
        if encoded.ids.is_empty() && !encoded.complete {
            return Err(TokenizeError::OverBudget);
        }
        Ok(Tokenized { ids: encoded.ids, complete: encoded.complete })
    }

    fn render_user(&self, text: &str, clock: LocalTime) -> Result<Prompt, TokenizeError> {
        let message = Value::from_pairs([("role", "user"), ("content", text)]);
        Ok(self.template()?.render(&Chat::new(vec![message]), clock)?)
    }

    fn render_chat(
        &self,
        api: ChatApi,
        body: &[u8],
        clock: LocalTime,
        known: &mut KnownItems,
    ) -> Result<(Prompt, Specials), TokenizeError> {
        let mut template = self.template()?;
        let mut chat = Chat::read_knowing(api, body, template, known)?;
        if let Some(for_tools) = self.tool_template.as_ref().filter(|_| chat.has_tools()) {
            // Another template may take messages in another form.
            template = for_tools;
            chat = Chat::read_knowing(api, body, template, known)?;
        }
        Ok((template.render(&chat, clock)?, specials(chat.add_special_tokens)))
    }

    fn template(&self) -> Result<&ChatTemplate, TokenizeError> {
        self.template.as_ref().ok_or(TokenizeError::NoTemplate)
    }
}

fn specials(add_special_tokens: bool) -> Specials {
    if add_special_tokens { Specials::Around } else { Specials::None }
}

fn extent(prompt: &Prompt) -> Extent<'_> {
    if prompt.complete { Extent::Whole(&prompt.text) } else { Extent::Beginning(&prompt.text) }
}

// === impl TextLimits ===

impl TextLimits {
    fn of_tokenizer(&self) -> tokenize::Limits {
        tokenize::Limits {
            max_bytes: self.max_prompt_bytes,
            max_tokens: self.max_tokens,
            max_symbols: self.max_symbols,
        }
    }
}

// === impl TokenizeError ===

impl From<InvalidChat> for TokenizeError {
    fn from(error: InvalidChat) -> TokenizeError {
        match error {
            InvalidChat::Json(error) if error.is_too_many() => TokenizeError::OverBudget,
            InvalidChat::Json(_) => TokenizeError::Failed,
            // The body chooses what it is rendered with: an engine may be started to let it.
            InvalidChat::Field { field, .. } if field.starts_with("chat_template") => TokenizeError::UnsupportedKey,
            InvalidChat::Field { .. } => TokenizeError::Failed,
        }
    }
}

impl From<RenderError> for TokenizeError {
    fn from(error: RenderError) -> TokenizeError {
        match error {
            RenderError::Refused(_) => TokenizeError::Failed,
            RenderError::OutOfFuel | RenderError::TooLong => TokenizeError::OverBudget,
        }
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
