//! What a held body decides.

use std::mem;

use super::explicit::Explicit;
use super::fields::Fields;
use super::tokens::Prompt;
use super::{BodyRefusal, HeaderInputs, KnownAdapters, LookupRequest, PromptInput, PromptSource};
use crate::config::{FilterConfig, ModelConfig};
use crate::routing::reason::Detail;

/// Reads a whole body.
///
/// # Errors
/// With the first of these causes: a fault of the headers; `empty_body`; `malformed_json`; `wrong_type`, `no_model` or
/// `model_not_configured` or `ambiguous_adapter` for the model, which a header overrides; `no_tenant`; `malformed_chain` for explicit keys that
/// are not hex, or a prefix hash of another width. What is wrong with a chain, or with the first prompt that is present,
/// is part of the request: `unsupported_key` for a field that makes the engine's key depend on more than token ids,
/// `wrong_type`, `no_prompt`, `no_tokenizer`, `too_many_tokens`.
pub fn read_body(
    body: &[u8],
    inputs: &HeaderInputs,
    config: &FilterConfig,
    known: &mut dyn KnownAdapters,
) -> Result<LookupRequest, BodyRefusal> {
    let mut model_id = inputs.model_id.clone();
    read(body, &mut model_id, inputs, config, known).map_err(|detail| BodyRefusal { detail, model: model_id })
}

fn read(
    body: &[u8],
    model_id: &mut Option<String>,
    inputs: &HeaderInputs,
    config: &FilterConfig,
    known: &mut dyn KnownAdapters,
) -> Result<LookupRequest, Detail> {
    if let Some(fault) = inputs.fault {
        return Err(fault);
    }
    if body.is_empty() {
        return Err(Detail::EmptyBody);
    }
    let mut fields = Fields::read(body).map_err(|_| Detail::MalformedJson)?;
    if model_id.is_none() {
        *model_id = mem::take(&mut fields.model).into_option()?;
    }
    let named = model_id.clone().ok_or(Detail::NoModel)?;
    let served = inputs.serving(&named, config, known)?;
    let model = served.model;
    *model_id = Some(model.model_id.clone());
    let parts = mem::take(&mut fields.hints.scope).0?.unwrap_or_default();
    let scope = inputs.scope(served, parts)?;
    let prompt = prompt_input(fields, inputs.explicit.as_ref(), model)?;
    Ok(LookupRequest { scope, prompt, block_size: model.block_size, slo_ttft_ms: inputs.slo_ttft_ms })
}

/// The prompt in all the forms that the request gives it in.
fn prompt_input(
    mut fields: Fields,
    from_headers: Option<&Explicit>,
    model: &ModelConfig,
) -> Result<PromptInput, Detail> {
    let explicit = match from_headers {
        Some(explicit) => Some(explicit.clone()),
        None => mem::take(&mut fields.hints.explicit).0?,
    };
    let source = source(fields);
    match explicit {
        Some(explicit) => explicit.prompt(model, source),
        None => Ok(PromptInput { source, ..PromptInput::default() }),
    }
}

/// What keys can be derived from.
fn source(fields: Fields) -> PromptSource {
    if fields.changes_key() {
        return PromptSource::Refused(Detail::UnsupportedKey);
    }
    match prompt(fields) {
        Prompt::Tokens(ids) => PromptSource::TokenIds(ids),
        Prompt::Text => PromptSource::Refused(Detail::NoTokenizer),
        Prompt::Absent | Prompt::Empty => PromptSource::Refused(Detail::NoPrompt),
        Prompt::TooMany => PromptSource::Refused(Detail::TooManyTokens),
        Prompt::WrongType => PromptSource::Refused(Detail::WrongType),
    }
}

/// The input that counts: the first that is present, token ids before text.
fn prompt(fields: Fields) -> Prompt {
    let text_prompt = matches!(fields.prompt, Prompt::Text);
    let tokens = [fields.hints.token_ids, if text_prompt { Prompt::Absent } else { fields.prompt }, fields.input_ids];
    let text = [if text_prompt { Prompt::Text } else { Prompt::Absent }, fields.text, fields.messages];
    tokens.into_iter().chain(text).find(|prompt| *prompt != Prompt::Absent).unwrap_or_default()
}
