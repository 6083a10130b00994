//! The prompt that a body gives, read the slow way: the whole body as a `serde_json::Value`, then field by field. What the
//! filter reads in one pass must be the same, for bodies of every API in every state of decay.

use serde_json::{Map, Value};
use warmroute::request::{ChatApi, NoAdapters, PromptSource, TextPrompt, read_body};
use warmroute::routing::reason::Detail;

use crate::fuzz::{SplitMix, mutated};
use crate::{PATHS, bodies, config, inputs};

/// A source, and whether it is the first of several.
type Found = (PromptSource, bool);

#[test]
fn mutated_bodies_of_every_api_agree_with_a_naive_reading() {
    let config = config(&Map::new());
    let inputs = PATHS.map(inputs);
    let seeds: Vec<Vec<u8>> = bodies().filter(|body| body.len() < 4_000).collect();
    let mut random = SplitMix(2_026);
    let mut seen = [0; 4];
    for _ in 0..60_000 {
        let place = random.below(PATHS.len());
        let seed = &seeds[random.below(seeds.len())];
        let body = if random.below(4) == 0 { seed.clone() } else { mutated(seed, &mut random) };
        let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&body) else { continue };
        let is_plain = fields.get("model").and_then(Value::as_str) == Some("llama");
        if !is_plain || fields.get("inference_cache").is_some_and(|hints| !hints.is_null()) {
            continue;
        }
        let request = read_body(body.clone(), &inputs[place], &config, &mut NoAdapters).unwrap();
        let found = (request.prompt.source, request.prompt.of_several);
        let expected = source(PATHS[place], &fields, &body);
        seen[match &expected {
            Ok((PromptSource::TokenIds(_), _)) => 0,
            Ok((PromptSource::Text(TextPrompt::Chat { .. }), _)) => 1,
            Ok(_) => 2,
            Err(_) => 3,
        }] += 1;
        let expected = expected.unwrap_or_else(|detail| (refused(detail), false));
        assert_eq!(found, expected, "{}: {}", PATHS[place], String::from_utf8_lossy(&body));
    }
    assert!(seen.iter().all(|count| *count > 300), "{seen:?}");
}

fn refused(detail: &str) -> PromptSource {
    PromptSource::Refused(Detail::ALL.into_iter().find(|known| known.as_str() == detail).unwrap())
}

fn source(path: &str, fields: &Map<String, Value>, body: &[u8]) -> Result<Found, &'static str> {
    let get = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let is_empty = |value: &Value| [Value::from(""), Value::Array(vec![]), Value::Object(Map::new())].contains(value);
    let is_set = |name: &str| get(name).is_some_and(|value| !is_empty(value));
    let mut changes_key: Vec<&str> = "cache_salt prompt_embeds truncate_prompt_tokens prompt_logprobs mm_processor_kwargs \
        suffix extra_key lora_path input_embeds positional_embed_overrides image_data video_data audio_data session_params"
        .split_whitespace()
        .collect();
    let is_chat = !["/v1/completions", "/generate", "/inference/v1/generate"].contains(&path);
    match path {
        "/v1/responses" => changes_key.extend(
            "previous_response_id previous_response previous_input_messages conversation prompt".split_whitespace(),
        ),
        "/inference/v1/generate" => changes_key.push("features"),
        _ => {}
    }
    let echoes = get("echo") == Some(&Value::Bool(true)) && (is_chat || is_set("logprobs"));
    let truncates = path == "/v1/responses" && fields.get("truncation").is_some_and(|it| it != "disabled");
    if echoes || truncates || changes_key.into_iter().any(is_set) {
        return Err("unsupported_key");
    }
    let special = get("add_special_tokens").map_or(Ok(None), |value| value.as_bool().map(Some).ok_or("wrong_type"));
    let chat = |name: &str, api, allows_text: bool| match get(name) {
        None => Err("no_prompt"),
        Some(value) if !(value.is_array() || allows_text && value.is_string()) => Err("wrong_type"),
        Some(_) => Ok((PromptSource::Text(TextPrompt::Chat { api, body: body.to_vec() }), false)),
    };
    let ids_alone = |name: &str| match get(name) {
        Some(value) => ids(value),
        None => Err("no_prompt"),
    };
    match path {
        "/inference/v1/generate" => ids_alone("token_ids"),
        "/v1/chat/completions" if get("input_ids").is_some() => ids_alone("input_ids"),
        "/v1/chat/completions" => chat("messages", ChatApi::ChatCompletions, false),
        "/v1/messages" => chat("messages", ChatApi::Messages, false),
        "/v1/responses" => chat("input", ChatApi::Responses, true),
        _ => {
            let plain = |value: &Value| {
                let (text, of_several) = text(value).ok_or("wrong_type")?;
                if text.is_empty() {
                    return Err("no_prompt");
                }
                let add_special_tokens = path == "/generate" || special?.unwrap_or(true);
                Ok((PromptSource::Text(TextPrompt::Plain { text, add_special_tokens }), of_several))
            };
            // An empty text is no text to come after token ids.
            let prompt = fields.get("prompt");
            let is_text = |value: &Value| text(value).is_some_and(|(text, _)| !text.is_empty());
            match (prompt, get("input_ids"), get("text")) {
                (Some(prompt), None, _) if is_text(prompt) => plain(prompt),
                (Some(prompt), Some(input_ids), _) if is_text(prompt) => ids(input_ids),
                (Some(prompt), _, _) => ids_or_empty(prompt),
                (None, Some(input_ids), _) => ids(input_ids),
                (None, None, Some(text)) if is_text(text) => plain(text),
                (None, None, Some(text)) => ids_or_empty(text),
                (None, None, None) => chat("messages", ChatApi::ChatCompletions, false),
            }
        }
    }
}

/// A text, or the first of a list that begins with one.
fn text(value: &Value) -> Option<(String, bool)> {
    match value {
        Value::String(text) => Some((text.clone(), false)),
        Value::Array(list) => Some((list.first()?.as_str()?.to_owned(), list.len() > 1)),
        _ => None,
    }
}

/// As [`ids`], where an empty text is an empty prompt.
fn ids_or_empty(value: &Value) -> Result<Found, &'static str> {
    if text(value).is_some() { Err("no_prompt") } else { ids(value) }
}

/// Token ids, or the first of a list of them.
fn ids(value: &Value) -> Result<Found, &'static str> {
    let list = value.as_array().ok_or(if value == "" { "no_prompt" } else { "wrong_type" })?;
    let (list, of_several) = match list.first() {
        Some(Value::Array(first)) => (first, list.len() > 1),
        Some(Value::String(text)) if text.is_empty() => return Err("no_prompt"),
        _ => (list, false),
    };
    if list.is_empty() {
        return Err("no_prompt");
    }
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let ids: Option<Vec<u32>> = list.iter().map(id).collect();
    Ok((PromptSource::TokenIds(ids.ok_or("wrong_type")?), of_several))
}
