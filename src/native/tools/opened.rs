//! A model's directory, ready to be tried.

use super::{Failure, ModelArguments, say};
use crate::model::{Package, TextLimits};
use crate::native::models::{ModelFiles, ModelOptions, Pieces, VerifiedModel, verified};
use crate::request::{ChatApi, MAX_TOKENS, TextPrompt, TokenizeError, Tokenized};
use crate::template::{Chat, ChatTemplate, Limits, LocalTime, Prompt};
use crate::tokenize::Workspace;

/// No more than memory bounds.
const LIMITS: TextLimits =
    TextLimits { max_prompt_bytes: 64 * 1024 * 1024, max_tokens: MAX_TOKENS, max_symbols: usize::MAX };

/// A model, with what people want to see of it.
pub(super) struct Opened {
    pub(super) model: VerifiedModel,
    pub(super) pieces: Pieces,
    template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
    workspace: Workspace,
    clock: LocalTime,
}

// === impl Opened ===

impl Opened {
    /// Reads the directory, and says what there is to know of it.
    pub(super) fn open(arguments: &ModelArguments) -> Result<Opened, Failure> {
        let directory = &arguments.directory;
        let refused = |reason: String| Failure::Refused(format!("{}: {reason}", directory.display()));
        let files = ModelFiles::read(directory).map_err(|error| refused(error.to_string()))?;
        let options = ModelOptions { force_chat_template: arguments.force_chat_template };
        let model = verified(&files, options).map_err(|error| refused(error.to_string()))?;
        for warning in &model.warnings {
            say(format_args!("{}: {warning}", directory.display()));
        }
        let pieces = Pieces::of(files.tokenizer()).map_err(|error| refused(error.to_string()))?;
        let package = Package::decode(model.bytes.to_vec()).map_err(|error| refused(error.to_string()))?;
        let compile = |source: &Option<String>| {
            let source = source.as_deref();
            let compiled = source
                .map(|source| ChatTemplate::compile(source, &package.special_tokens, Limits::DEFAULT))
                .transpose();
            compiled.map_err(|error| refused(error.to_string()))
        };
        Ok(Opened {
            template: compile(&package.chat_template)?,
            tool_template: compile(&package.tool_chat_template)?,
            model,
            pieces,
            workspace: Workspace::new(0),
            clock: LocalTime { unix_seconds: 0, utc_offset_seconds: 0 },
        })
    }

    /// Sets the engine's clock.
    pub(super) fn set_clock(&mut self, utc_offset_minutes: i32) {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let unix_seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
        self.clock = LocalTime { unix_seconds, utc_offset_seconds: utc_offset_minutes.saturating_mul(60) };
    }

    /// The prompt that a conversation comes to, or why there is none.
    pub(super) fn render(&self, api: ChatApi, body: &[u8]) -> Result<Prompt, String> {
        let mut template = self.template.as_ref().ok_or("the model has no chat template")?;
        let mut chat = Chat::read(api, body, template).map_err(|error| error.to_string())?;
        if let Some(for_tools) = self.tool_template.as_ref().filter(|_| chat.has_tools()) {
            template = for_tools;
            chat = Chat::read(api, body, template).map_err(|error| error.to_string())?;
        }
        template.render(&chat, self.clock).map_err(|error| error.to_string())
    }

    /// The ids of a prompt.
    pub(super) fn ids(&mut self, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        self.model.model.tokenize(prompt, self.clock, &LIMITS, &mut self.workspace)
    }
}
