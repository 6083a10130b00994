//! Models whose conversations engines do not render with a chat template, although the model may ship one.
//!
//! vLLM 0.33 renders gpt-oss with Harmony, DeepSeek V3.2 and V4 and Kimi K3 with code of their own, and Mistral's models with
//! their own tokenizer where `tekken.json` is there. A key made with the template would never match, so such a model has
//! none, unless `force_chat_template` says that its engine was told to use it.

use serde::Deserialize;

use super::InvalidModelFiles;
use super::files::{CONFIG, ModelFiles};
use super::source::TokenizerSource;

/// Tokens that only Harmony's vocabulary has.
const HARMONY_TOKENS: [&str; 3] = ["<|channel|>", "<|call|>", "<|return|>"];

#[derive(Debug, Default, Deserialize)]
struct Config {
    model_type: Option<String>,
}

/// Why engines do not render this model's conversations with its template; none if they do.
pub(super) fn reason(files: &ModelFiles, source: &TokenizerSource) -> Result<Option<String>, InvalidModelFiles> {
    let config: Option<Config> = files.config.as_deref().map(serde_json::from_slice).transpose().map_err(|error| {
        let reason = if error.is_data() { format!("model_type: {error}") } else { format!("not JSON: {error}") };
        InvalidModelFiles::new(CONFIG, reason)
    })?;
    let config = config.unwrap_or_default();
    let has_token = |wanted: &&str| source.added_tokens.iter().any(|token| token.content == *wanted);
    let how = match config.model_type.as_deref() {
        Some("gpt_oss") => "with Harmony",
        Some("deepseek_v32" | "deepseek_v4" | "kimi_k3") => "with code of their own",
        _ if HARMONY_TOKENS.iter().all(has_token) => "with Harmony",
        _ if files.has_tekken => "with Mistral's own tokenizer (tekken.json)",
        _ => return Ok(None),
    };
    let model_type =
        config.model_type.map_or_else(|| "this model".to_owned(), |model_type| format!("model_type {model_type}"));
    Ok(Some(format!("{model_type}: engines render its conversations {how}, not with a chat template")))
}
