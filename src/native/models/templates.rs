//! A model's chat templates and special tokens, from the files that have them.

use super::InvalidModelFiles;
use super::files::{
    CHAT_TEMPLATE, MORE_TEMPLATES, ModelFiles, PROCESSOR_TEMPLATE, SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG,
};
use crate::template::{ChatTemplate, Limits, SpecialTokens, TokenizerConfig};

/// The templates that engines take by themselves.
#[derive(Debug)]
pub(super) struct Templates {
    pub(super) template: Option<Named>,
    pub(super) tool_template: Option<Named>,
    pub(super) special: SpecialTokens,
}

/// A template and where it stands.
#[derive(Debug)]
pub(super) struct Named {
    file: String,
    pub(super) source: String,
}

/// Reads them.
pub(super) fn read(files: &ModelFiles) -> Result<Templates, InvalidModelFiles> {
    let config = parsed(TOKENIZER_CONFIG, files.tokenizer_config.as_deref())?;
    let in_config = |source| Named { file: TOKENIZER_CONFIG.to_owned(), source };
    let mut templates = Templates {
        template: config.template.map(in_config),
        tool_template: config.tool_template.map(in_config),
        special: config.special,
    };
    templates.take_map(files)?;
    templates.take_processor(files)?;
    templates.take_files(files)?;
    Ok(templates)
}

fn parsed(file: &str, json: Option<&[u8]>) -> Result<TokenizerConfig, InvalidModelFiles> {
    let Some(json) = json else { return Ok(TokenizerConfig::default()) };
    TokenizerConfig::parse(json).map_err(|error| {
        // The parser speaks of tokenizer_config.json, whose form the other files have.
        let reason = error.to_string();
        let reason = reason.trim_start_matches("chat template: ").trim_start_matches("tokenizer_config.json: ");
        InvalidModelFiles::new(file, reason)
    })
}

fn text(file: &str, bytes: &[u8]) -> Result<Named, InvalidModelFiles> {
    let source =
        std::str::from_utf8(bytes).map_err(|error| InvalidModelFiles::new(file, format!("not UTF-8: {error}")))?;
    // Python reads text with its line ends made one.
    let source =
        if source.contains('\r') { source.replace("\r\n", "\n").replace('\r', "\n") } else { source.to_owned() };
    Ok(Named { file: file.to_owned(), source })
}

// === impl Templates ===

impl Templates {
    /// Models without `added_tokens_decoder` are from before it was there, when the map came last.
    fn take_map(&mut self, files: &ModelFiles) -> Result<(), InvalidModelFiles> {
        let config: serde_json::Value =
            files.tokenizer_config.as_deref().and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
        if config.get("added_tokens_decoder").is_some() {
            return Ok(());
        }
        let map = parsed(SPECIAL_TOKENS_MAP, files.special_tokens_map.as_deref())?.special;
        let kept = self.special.iter().filter(|(name, _)| map.get(name).is_none());
        let owned = |(name, text): (&str, &str)| (name.to_owned(), text.to_owned());
        self.special = kept.chain(map.iter()).map(owned).collect();
        Ok(())
    }

    /// vLLM asks the processor first, unless there are tools.
    fn take_processor(&mut self, files: &ModelFiles) -> Result<(), InvalidModelFiles> {
        let processor = parsed(PROCESSOR_TEMPLATE, files.processor_template.as_deref())?;
        let Some(source) = processor.template else { return Ok(()) };
        let without_tools = self.template.replace(Named { file: PROCESSOR_TEMPLATE.to_owned(), source });
        self.tool_template = self.tool_template.take().or(without_tools);
        Ok(())
    }

    /// Files take the place of all that is said elsewhere.
    fn take_files(&mut self, files: &ModelFiles) -> Result<(), InvalidModelFiles> {
        if files.chat_template.is_none() && files.more_templates.is_empty() {
            return Ok(());
        }
        let named = |name: &str| {
            let template = files.more_templates.get(name);
            template.map(|bytes| text(&format!("{MORE_TEMPLATES}/{name}.jinja"), bytes)).transpose()
        };
        self.tool_template = named("tool_use")?;
        self.template = match named("default")? {
            Some(template) => Some(template),
            None => files.chat_template.as_deref().map(|bytes| text(CHAT_TEMPLATE, bytes)).transpose()?,
        };
        Ok(())
    }

    /// Whether they compile.
    pub(super) fn check(&self) -> Result<(), InvalidModelFiles> {
        for Named { file, source } in self.template.iter().chain(&self.tool_template) {
            ChatTemplate::compile(source, &self.special, Limits::DEFAULT)
                .map_err(|error| InvalidModelFiles::new(file, error.to_string()))?;
        }
        Ok(())
    }
}
