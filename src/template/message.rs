//! One message of a chat completion body, as vLLM hands it to a template.
//!
//! Followed is vLLM's `entrypoints/chat_utils.py` (seen at 001eadcf): `_parse_chat_message_content`, which keeps the role,
//! the content, `name`, and what belongs to the role (`tool_calls` and reasoning of an assistant, `tool_call_id` of a tool,
//! `tools` of a developer) and drops every other field; `_postprocess_messages`, which parses the arguments of tool calls;
//! and pydantic's order of a tool call's fields (`id`, `function`, `type`; `arguments` before `name`), which shows where a
//! template writes a whole call. Fields that are none are left out, as transformers 5 does.
//!
//! Content is a list of parts in the format for parts, a text otherwise: the parts' texts, one a line. A tool's content is
//! a text in either, unless it has a part that is not. Parts that are not text, and what becomes of them, are in
//! [`Part`].

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{entries, field};
use super::{ContentFormat, InvalidChat, parse_json};

/// Types of parts that are text, each with the field that has it.
const TEXTS: [(&str, &str); 5] = [
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];

/// Types of parts that are not, each with what vLLM calls it before the template.
const MEDIA: [(&str, &str); 8] = [
    ("image_url", "image"),
    ("input_image", "image"),
    ("image_pil", "image"),
    ("image_embeds", "image"),
    ("audio_url", "audio"),
    ("input_audio", "audio"),
    ("audio_embeds", "audio"),
    ("video_url", "video"),
];

/// One part of a message's content.
enum Part {
    Text(String),
    /// Passed on for the template to expand: `{"type": "tool_reference", "name": …}`, or the name.
    ToolReference(String),
    /// An image, a sound or a film. A template for parts gets its kind; otherwise vLLM puts a placeholder of the model's
    /// own in front of the message's text.
    Media(&'static str),
}

/// The message, and where its first part is that is not text: a position in the content as the template gets it.
pub(super) fn message(
    given: &Value,
    index: usize,
    format: ContentFormat,
) -> Result<(Value, Option<usize>), InvalidChat> {
    let role = field(given, "role").filter(|role| role.kind() == ValueKind::String);
    let role = role.ok_or_else(|| in_message(index, "role", "a string"))?;
    let parts = parts(given, index)?;
    let media = parts.iter().position(|part| matches!(part, Part::Media(_)));
    let mut fields = vec![("role", role.clone()), ("content", content(&parts, &role, format))];
    match role.as_str() {
        Some("assistant") => {
            fields.extend(tool_calls(given, index)?.map(|calls| ("tool_calls", calls)));
            if let Some(reasoning) = field(given, "reasoning").or_else(|| field(given, "reasoning_content")) {
                fields.extend([("reasoning", reasoning.clone()), ("reasoning_content", reasoning)]);
            }
        }
        Some("tool") => fields.extend(field(given, "tool_call_id").map(|id| ("tool_call_id", id))),
        _ => {}
    }
    for name in ["name", "task"] {
        fields.extend(field(given, name).filter(|text| text.kind() == ValueKind::String).map(|text| (name, text)));
    }
    if role.as_str() == Some("developer") {
        fields.extend(field(given, "tools").map(|tools| ("tools", tools)));
    }
    Ok((Value::from_pairs(fields), media))
}

/// An error about a field of the body.
pub(super) fn invalid(field: &str, allowed: &'static str) -> InvalidChat {
    InvalidChat::Field { field: field.to_owned(), allowed }
}

fn in_message(index: usize, field: &str, allowed: &'static str) -> InvalidChat {
    InvalidChat::Field { field: format!("messages[{index}].{field}"), allowed }
}

fn parts(given: &Value, index: usize) -> Result<Vec<Part>, InvalidChat> {
    let Some(content) = field(given, "content") else { return Ok(Vec::new()) };
    if let Some(text) = content.as_str() {
        return Ok(vec![Part::Text(text.to_owned())]);
    }
    let malformed = || in_message(index, "content", "a string or a list of parts");
    if content.kind() != ValueKind::Seq {
        return Err(malformed());
    }
    let mut parts = Vec::new();
    for given in content.try_iter().map_err(|_| malformed())? {
        parts.extend(Part::of(&given, index)?);
    }
    Ok(parts)
}

fn content(parts: &[Part], role: &Value, format: ContentFormat) -> Value {
    let all_text = parts.iter().all(|part| matches!(part, Part::Text(_)));
    if format == ContentFormat::Text || (role.as_str() == Some("tool") && all_text) {
        let texts: Vec<&str> = parts.iter().filter_map(Part::text).collect();
        return Value::from(texts.join("\n"));
    }
    parts.iter().map(Part::to_value).collect()
}

/// The tool calls; nothing if there are none.
fn tool_calls(given: &Value, index: usize) -> Result<Option<Value>, InvalidChat> {
    let Some(calls) = field(given, "tool_calls") else { return Ok(None) };
    let malformed = || in_message(index, "tool_calls", "a list of objects with a function");
    if calls.kind() != ValueKind::Seq {
        return Err(malformed());
    }
    let mut ordered = Vec::new();
    for call in calls.try_iter().map_err(|_| malformed())? {
        let function = field(&call, "function").filter(|function| function.kind() == ValueKind::Map);
        let function = with_arguments(&function.ok_or_else(malformed)?);
        ordered.push(first(&["id", "function", "type"], &call, [("function", function)]));
    }
    Ok((!ordered.is_empty()).then(|| Value::from(ordered)))
}

/// Arguments that are text are parsed; whatever is no JSON becomes an empty object.
fn with_arguments(function: &Value) -> Value {
    let empty = || Value::from_pairs::<_, Value, Value>([]);
    let arguments = match field(function, "arguments") {
        Some(arguments) => match (arguments.as_str(), arguments.kind()) {
            (Some(text), _) => parse_json(text.as_bytes()).unwrap_or_else(|_| empty()),
            (None, ValueKind::Map | ValueKind::Seq) => arguments,
            (None, _) => empty(),
        },
        None => empty(),
    };
    first(&["arguments", "name"], function, [("arguments", arguments)])
}

/// The map with some fields first, some of them with other values.
pub(super) fn first<const N: usize>(names: &[&str], map: &Value, replaced: [(&str, Value); N]) -> Value {
    let value = |name: &str| {
        let new = replaced.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        new.or_else(|| map.get_attr(name).ok().filter(|value| !value.is_undefined()))
    };
    let leading = names.iter().filter_map(|name| Some((Value::from(*name), value(name)?)));
    let trailing = entries(map).filter(|(key, _)| key.as_str().is_none_or(|key| !names.contains(&key)));
    Value::from_pairs(leading.chain(trailing))
}

// === impl Part ===

impl Part {
    /// Reads a part; nothing if vLLM passes over it, as it does over texts that are null.
    fn of(given: &Value, index: usize) -> Result<Option<Part>, InvalidChat> {
        if let Some(text) = given.as_str() {
            return Ok(Some(Part::Text(text.to_owned())));
        }
        let malformed = |allowed| in_message(index, "content", allowed);
        let kind = field(given, "type");
        let named = field(given, "uuid").is_some();
        let Some(kind) = kind.as_ref().filter(|_| !named) else {
            // A part without a type, or with a name of its own, is told from its fields.
            let media = MEDIA.iter().find(|(name, _)| given.get_attr(name).is_ok_and(|value| !value.is_undefined()));
            return media
                .map(|(_, modality)| Some(Part::Media(modality)))
                .ok_or_else(|| malformed("parts that have a type"));
        };
        let kind = kind.as_str().ok_or_else(|| malformed("parts whose type is a string"))?;
        if let Some((_, name)) = TEXTS.iter().find(|(known, _)| *known == kind) {
            return match field(given, name) {
                Some(text) => match text.as_str() {
                    Some(text) => Ok(Some(Part::Text(text.to_owned()))),
                    None => Err(malformed("parts whose text is a string")),
                },
                None if matches!(kind, "text" | "refusal") => Ok(None),
                None => Err(malformed("parts whose text is a string")),
            };
        }
        if kind == "tool_reference" {
            let name = field(given, "name").and_then(|name| Some(name.as_str()?.to_owned()));
            return name.map(|name| Some(Part::ToolReference(name))).ok_or_else(|| malformed("references with a name"));
        }
        let media = MEDIA.iter().find(|(known, _)| *known == kind);
        media.map(|(_, modality)| Some(Part::Media(modality))).ok_or_else(|| malformed("parts of a type that is known"))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Part::Text(text) | Part::ToolReference(text) => Some(text),
            Part::Media(_) => None,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Part::Text(text) => Value::from_pairs([("type", "text"), ("text", text)]),
            Part::ToolReference(name) => Value::from_pairs([("type", "tool_reference"), ("name", name)]),
            Part::Media(modality) => Value::from_pairs([("type", *modality)]),
        }
    }
}
