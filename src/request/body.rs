//! What a held body decides.

use std::mem;

use super::fields::{Conversation, Fields};
use super::tokens::Prompt;
use super::{BodyRefusal, ChatApi, HeaderInputs, KnownAdapters, LookupRequest, PromptInput, PromptSource, TextPrompt};
use crate::config::{BodyApi, FilterConfig, ModelConfig};
use crate::routing::reason::Detail;

/// A prompt that keys can be derived from.
struct Source {
    source: PromptSource,
    /// Whether it is the first of several.
    of_several: bool,
}

/// Reads a whole body. A conversation's body becomes part of the request as it is: it is read again when its keys are asked
/// for.
///
/// # Errors
/// With the first of these causes: a fault of the headers; `empty_body`; `malformed_json`; `wrong_type`, `no_model`,
/// `model_not_configured` or `ambiguous_adapter` for the model, which a header overrides; `no_tenant`; `malformed_chain`
/// for explicit keys that are not hex, or a prefix hash of another width. What is wrong with a chain, or with the first
/// prompt that is present, is part of the request: `unsupported_key` for a field that makes the engine's key depend on
/// more than the prompt, `wrong_type`, `no_prompt`, `not_tokenized` for a text that is none, `too_many_tokens`.
pub fn read_body(
    body: Vec<u8>,
    inputs: &HeaderInputs,
    config: &FilterConfig,
    known: &mut dyn KnownAdapters,
) -> Result<LookupRequest, BodyRefusal> {
    let mut model_id = inputs.model_id.clone();
    read(body, &mut model_id, inputs, config, known).map_err(|detail| BodyRefusal { detail, model: model_id })
}

fn read(
    body: Vec<u8>,
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
    let mut fields = Fields::read(&body, inputs.api).map_err(|_| Detail::MalformedJson)?;
    if model_id.is_none() {
        *model_id = mem::take(&mut fields.model).into_option()?;
    }
    let named = model_id.clone().ok_or(Detail::NoModel)?;
    let served = inputs.serving(&named, config, known)?;
    let model = served.model;
    *model_id = Some(model.model_id.clone());
    let parts = mem::take(&mut fields.hints.scope).0?.unwrap_or_default();
    let scope = inputs.scope(served, parts)?;
    let prompt = prompt_input(fields, body, inputs, model)?.cut(config.limits.max_match_tokens);
    Ok(LookupRequest { scope, prompt, block_size: model.block_size, slo_ttft_ms: inputs.slo_ttft_ms })
}

/// The prompt in all the forms that the request gives it in.
fn prompt_input(
    mut fields: Fields,
    body: Vec<u8>,
    inputs: &HeaderInputs,
    model: &ModelConfig,
) -> Result<PromptInput, Detail> {
    let explicit = match &inputs.explicit {
        Some(explicit) => Some(explicit.clone()),
        None => mem::take(&mut fields.hints.explicit).0?,
    };
    let Source { source, of_several } = source(fields, body, inputs.api).unwrap_or_else(Source::refused);
    let prompt = match explicit {
        Some(explicit) => explicit.prompt(model, source)?,
        None => PromptInput { source, ..PromptInput::default() },
    };
    Ok(PromptInput { of_several, ..prompt })
}

/// What keys can be derived from: the first form that is present, those of `inference_cache` before the API's own.
fn source(fields: Fields, body: Vec<u8>, api: BodyApi) -> Result<Source, Detail> {
    if fields.changes_key(api) {
        return Err(Detail::UnsupportedKey);
    }
    let Fields { hints, prompt, input_ids, token_ids, text, conversation, add_special_tokens, .. } = fields;
    if hints.token_ids != Prompt::Absent {
        return Source::of_ids(hints.token_ids);
    }
    if hints.prompt_text != Prompt::Absent {
        return Source::of(hints.prompt_text, |text| Ok(TextPrompt::User(text)));
    }
    let chat = |chat: ChatApi| match conversation {
        Conversation::Absent => Err(Detail::NoPrompt),
        Conversation::WrongType => Err(Detail::WrongType),
        Conversation::Given => Ok(Source::one(PromptSource::Text(TextPrompt::Chat { api: chat, body }))),
    };
    match api {
        BodyApi::TokensIn => Source::of_ids(token_ids),
        BodyApi::Chat(ChatApi::ChatCompletions) if input_ids != Prompt::Absent => Source::of_ids(input_ids),
        BodyApi::Chat(api) => chat(api),
        BodyApi::Completions | BodyApi::Generate => match first_of(prompt, input_ids, text) {
            Prompt::Absent => chat(ChatApi::ChatCompletions),
            prompt => Source::of(prompt, |text| {
                // SGLang's `/generate` has no such field, and adds them.
                let add_special_tokens = api == BodyApi::Generate || add_special_tokens.or(true)?;
                Ok(TextPrompt::Plain { text, add_special_tokens })
            }),
        },
    }
}

/// The prompt that counts: the first that is present, token ids before text.
fn first_of(prompt: Prompt, input_ids: Prompt, text: Prompt) -> Prompt {
    let forms = if prompt.is_text() { [input_ids, prompt, text] } else { [prompt, input_ids, text] };
    forms.into_iter().find(|prompt| *prompt != Prompt::Absent).unwrap_or_default()
}

// === impl Source ===

impl Source {
    fn one(source: PromptSource) -> Source {
        Source { source, of_several: false }
    }

    fn refused(detail: Detail) -> Source {
        Source::one(PromptSource::Refused(detail))
    }

    /// Of a prompt whose text is to be understood as `text` says.
    fn of(prompt: Prompt, text: impl FnOnce(String) -> Result<TextPrompt, Detail>) -> Result<Source, Detail> {
        match prompt {
            Prompt::Tokens(ids) => Ok(Source::one(PromptSource::TokenIds(ids))),
            Prompt::Text(given) => Ok(Source::one(PromptSource::Text(text(given)?))),
            Prompt::FirstOf(first) => Ok(Source { of_several: true, ..Source::of(*first, text)? }),
            Prompt::Absent | Prompt::Empty => Err(Detail::NoPrompt),
            Prompt::NotText => Err(Detail::NotTokenized),
            Prompt::TooMany => Err(Detail::TooManyTokens),
            Prompt::WrongType => Err(Detail::WrongType),
        }
    }

    /// Of a prompt that may not be text.
    fn of_ids(prompt: Prompt) -> Result<Source, Detail> {
        Source::of(prompt, |_| Err(Detail::WrongType))
    }
}
