//! What a held body decides.

use std::mem;

use super::explicit::Explicit;
use super::fields::Fields;
use super::tokens::Prompt;
use super::{BodyRefusal, ChainBlock, HeaderInputs, LookupRequest, RequestChain};
use crate::config::{FilterConfig, ModelConfig};
use crate::fingerprint::prefix_hashes;
use crate::observation::BlockKey;
use crate::routing::reason::Detail;

/// Reads a whole body.
///
/// # Errors
/// With the first of these causes: a fault of the headers; `empty_body`; `malformed_json`; `wrong_type`, `no_model` or
/// `model_not_configured` for the model, which a header overrides; `no_tenant`; `malformed_chain` for explicit keys; and
/// without those `unsupported_key` for a field that makes the engine's key depend on more than token ids; then what
/// is wrong with the first prompt that is present: `wrong_type`, `no_prompt`, `no_tokenizer`, `too_many_tokens`,
/// `short_prompt`.
pub fn read_body(body: &[u8], inputs: &HeaderInputs, config: &FilterConfig) -> Result<LookupRequest, BodyRefusal> {
    let mut model_id = inputs.model_id.clone();
    read(body, &mut model_id, inputs, config).map_err(|detail| BodyRefusal { detail, model: model_id })
}

fn read(
    body: &[u8],
    model_id: &mut Option<String>,
    inputs: &HeaderInputs,
    config: &FilterConfig,
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
    let model = model_id.as_ref().ok_or(Detail::NoModel)?;
    let model = config.models.get(model).ok_or(Detail::ModelNotConfigured)?;
    let parts = mem::take(&mut fields.hints.scope).0?.unwrap_or_default();
    let scope = inputs.scope(model, parts)?;
    let (chain, effective_tokens) = chain(fields, inputs.explicit.as_ref(), model)?;
    Ok(LookupRequest { scope, chain, effective_tokens, slo_ttft_ms: inputs.slo_ttft_ms })
}

/// The chain and the tokens that it covers.
fn chain(
    mut fields: Fields,
    from_headers: Option<&Explicit>,
    model: &ModelConfig,
) -> Result<(RequestChain, u32), Detail> {
    if let Some(explicit) = from_headers {
        return explicit.chain(model);
    }
    if let Some(explicit) = mem::take(&mut fields.hints.explicit).0? {
        return explicit.chain(model);
    }
    if fields.changes_key() {
        return Err(Detail::UnsupportedKey);
    }
    match prompt(fields) {
        Prompt::Tokens(ids) => fingerprinted(&ids, model),
        Prompt::Text => Err(Detail::NoTokenizer),
        Prompt::Absent | Prompt::Empty => Err(Detail::NoPrompt),
        Prompt::TooMany => Err(Detail::TooManyTokens),
        Prompt::WrongType => Err(Detail::WrongType),
    }
}

/// The input that counts: the first that is present, token ids before text.
fn prompt(fields: Fields) -> Prompt {
    let text_prompt = matches!(fields.prompt, Prompt::Text);
    let tokens = [fields.hints.token_ids, if text_prompt { Prompt::Absent } else { fields.prompt }, fields.input_ids];
    let text = [if text_prompt { Prompt::Text } else { Prompt::Absent }, fields.text, fields.messages];
    tokens.into_iter().chain(text).find(|prompt| *prompt != Prompt::Absent).unwrap_or_default()
}

/// The chain of the full blocks of `ids`.
fn fingerprinted(ids: &[u32], model: &ModelConfig) -> Result<(RequestChain, u32), Detail> {
    let tokens = u32::try_from(model.block_size.tokens()).map_err(|_| Detail::ShortPrompt)?;
    let keys = prefix_hashes(ids, model.block_size, None).map(BlockKey::from);
    let blocks: Vec<ChainBlock> = keys.map(|key| ChainBlock { key, tokens }).collect();
    if blocks.is_empty() {
        return Err(Detail::ShortPrompt);
    }
    let covered = blocks.len().saturating_mul(model.block_size.tokens());
    Ok((RequestChain::Chain(blocks), u32::try_from(covered).map_err(|_| Detail::TooManyTokens)?))
}
