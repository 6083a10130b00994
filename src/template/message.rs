//! One message of a chat completion body, as vLLM hands it to a template.
//!
//! Followed is vLLM 0.33, `renderers/chat_utils/chat_message.py`. `parse_chat_message_content` keeps the role, the content,
//! `name`, and what belongs to the role (`tool_calls` and reasoning of an assistant, `tool_call_id` of a tool, `tools` of a
//! developer) and drops every other field. `_postprocess_messages` parses the arguments of tool calls; whatever is no
//! object becomes an empty one. A tool call's fields have the order that pydantic gives them (`id`, `function`, `type`;
//! `arguments` before `name`), which shows where a template writes a whole call. Fields that are none are left out, as
//! transformers 5 does.
//!
//! Content is a list of parts in the format for parts, a text otherwise: the parts' texts, one a line, empty ones left
//! out. In the format for parts a tool's content is a text as well, empty ones counted, unless it has a part that is not. A system message loses the line by which
//! Claude Code marks each request.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{entries, field};
use super::json::parse_json_of;
use super::{ContentFormat, InvalidChat};

/// Types of parts that are text, each with the field that has it.
const TEXTS: [(&str, &str); 5] = [
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];

/// Types of parts that are not, each with what vLLM calls it before the template; in the order in which vLLM looks for
/// them in a part that has no type.
const MEDIA: [(&str, &str); 9] = [
    ("image_url", "image"),
    ("image_pil", "image"),
    ("image_embeds", "image"),
    ("audio_embeds", "audio"),
    ("video_embeds", "video"),
    ("audio_url", "audio"),
    ("input_audio", "audio"),
    ("video_url", "video"),
    ("input_image", "image"),
];

/// The fields of a part that vLLM knows. A template for parts gets the others as they are.
const KNOWN_FIELDS: [&str; 18] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
    "video_embeds",
    "video_url",
];

/// How the line begins that a system message loses.
pub(super) const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// Where a message comes from, which shows in the order of a called function's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A body with messages, whose fields pydantic orders.
    Body,
    /// Items of `/v1/responses`, of which vLLM makes messages itself.
    Items,
}

/// One part of a message's content.
enum Part {
    /// A text, shared with the body, and fields that vLLM does not know.
    Text(Value, Vec<(Value, Value)>),
    /// Passed on for the template to expand: `{"type": "tool_reference", "name": …}`, or the name.
    ToolReference(String),
    /// An image, a sound or a film. A template for parts gets its kind; otherwise vLLM puts a placeholder of the model's
    /// own in front of the message's text.
    Media(&'static str, Vec<(Value, Value)>),
}

/// The message, and where its first part is that is not text: a position in the content as the template gets it. `left` is
/// how many values the arguments of all messages' calls may still have.
pub(super) fn message(
    given: &Value,
    index: usize,
    format: ContentFormat,
    origin: Origin,
    left: &mut usize,
) -> Result<(Value, Option<usize>), InvalidChat> {
    let role = field(given, "role").filter(|role| role.kind() == ValueKind::String);
    let role = role.ok_or_else(|| in_message(index, "role", "a string"))?;
    let parts = parts(given, index, role.as_str() == Some("system"))?;
    let media = parts.iter().position(|part| matches!(part, Part::Media(..)));
    let mut fields = vec![("role", role.clone()), ("content", content(&parts, &role, format))];
    match role.as_str() {
        Some("assistant") => {
            fields.extend(tool_calls(given, index, origin, left)?.map(|calls| ("tool_calls", calls)));
            if let Some(reasoning) = field(given, "reasoning").or_else(|| field(given, "reasoning_content")) {
                if reasoning.kind() != ValueKind::String {
                    return Err(in_message(index, "reasoning", "a string"));
                }
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

fn parts(given: &Value, index: usize, is_system: bool) -> Result<Vec<Part>, InvalidChat> {
    let Some(content) = field(given, "content") else { return Ok(Vec::new()) };
    let malformed = || in_message(index, "content", "a string or a list of parts");
    let given: Vec<Value> = match content.kind() {
        ValueKind::String => vec![content],
        ValueKind::Seq => content.try_iter().map_err(|_| malformed())?.collect(),
        _ => return Err(malformed()),
    };
    let mut parts = Vec::new();
    for given in given {
        let Some(mut part) = Part::of(&given, index)? else { continue };
        // vLLM looks for the line in strings and in parts of the type `text`, not in those of another that are text too.
        let is_looked_at =
            is_system && (given.as_str().is_some() || field(&given, "type") == Some(Value::from("text")));
        if !is_looked_at || part.strip_billing_header() {
            parts.push(part);
        }
    }
    Ok(parts)
}

fn content(parts: &[Part], role: &Value, format: ContentFormat) -> Value {
    let texts = || parts.iter().filter_map(Part::text);
    if let ([Part::Text(text, _)], ContentFormat::Text) = (parts, format) {
        return text.clone();
    }
    if format == ContentFormat::Text {
        return Value::from(texts().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n"));
    }
    if role.as_str() == Some("tool") && parts.iter().all(|part| matches!(part, Part::Text(..))) {
        return Value::from(texts().collect::<Vec<_>>().join("\n"));
    }
    parts.iter().map(Part::to_value).collect()
}

/// The tool calls; nothing if there are none.
fn tool_calls(given: &Value, index: usize, origin: Origin, left: &mut usize) -> Result<Option<Value>, InvalidChat> {
    let Some(calls) = field(given, "tool_calls") else { return Ok(None) };
    let malformed = || in_message(index, "tool_calls", "a list of objects with a function");
    if calls.kind() != ValueKind::Seq {
        return Err(malformed());
    }
    let mut ordered = Vec::new();
    for call in calls.try_iter().map_err(|_| malformed())? {
        if field(&call, "type").is_some_and(|kind| kind.as_str() != Some("function")) {
            return Err(in_message(index, "tool_calls", "calls of the type \"function\""));
        }
        let function = field(&call, "function").filter(|function| function.kind() == ValueKind::Map);
        let function = with_arguments(&function.ok_or_else(malformed)?, origin, left)
            .map_err(|allowed| in_message(index, "tool_calls", allowed))?;
        ordered.push(first(&["id", "function", "type"], &call, [("function", function)]));
    }
    Ok((!ordered.is_empty()).then(|| Value::from(ordered)))
}

/// Arguments that are text are parsed.
fn with_arguments(function: &Value, origin: Origin, left: &mut usize) -> Result<Value, &'static str> {
    let parsed = match field(function, "arguments") {
        Some(given) => match given.as_str() {
            Some(text) => match parse_json_of(text.as_bytes(), left) {
                Err(error) if error.is_for_python(text) => return Err("calls whose arguments can be read here"),
                parsed => parsed.ok(),
            },
            None => Some(given),
        },
        None => None,
    };
    let arguments = parsed.filter(|parsed| parsed.kind() == ValueKind::Map);
    let arguments = arguments.unwrap_or_else(|| Value::from_pairs::<_, Value, Value>([]));
    let order = match origin {
        Origin::Body => ["arguments", "name"],
        Origin::Items => ["name", "arguments"],
    };
    Ok(first(&order, function, [("arguments", arguments)]))
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
        if given.kind() == ValueKind::String {
            return Ok(Some(Part::Text(given.clone(), Vec::new())));
        }
        let unknown = || {
            let is_unknown = |key: &Value| key.as_str().is_none_or(|key| !KNOWN_FIELDS.contains(&key));
            entries(given).filter(|(key, _)| is_unknown(key)).collect()
        };
        let malformed = |allowed| in_message(index, "content", allowed);
        let kind = field(given, "type");
        let named = field(given, "uuid").is_some();
        let Some(kind) = kind.as_ref().filter(|_| !named) else {
            // A part without a type, or with a name of its own, is told from its fields.
            let media = MEDIA.iter().find(|(name, _)| given.get_attr(name).is_ok_and(|value| !value.is_undefined()));
            return media
                .map(|(_, modality)| Some(Part::Media(modality, unknown())))
                .ok_or_else(|| malformed("parts that have a type"));
        };
        let kind = kind.as_str().ok_or_else(|| malformed("parts whose type is a string"))?;
        if let Some((_, name)) = TEXTS.iter().find(|(known, _)| *known == kind) {
            return match field(given, name) {
                Some(text) if text.kind() == ValueKind::String => Ok(Some(Part::Text(text, unknown()))),
                None if matches!(kind, "text" | "refusal") => Ok(None),
                _ => Err(malformed("parts whose text is a string")),
            };
        }
        if kind == "tool_reference" {
            let name = field(given, "name").and_then(|name| Some(name.as_str()?.to_owned()));
            return name.map(|name| Some(Part::ToolReference(name))).ok_or_else(|| malformed("references with a name"));
        }
        let media = MEDIA.iter().find(|(known, _)| *known == kind);
        media
            .map(|(_, modality)| Some(Part::Media(modality, unknown())))
            .ok_or_else(|| malformed("parts of a type that is known"))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Part::Text(text, _) => text.as_str(),
            Part::ToolReference(name) => Some(name),
            Part::Media(..) => None,
        }
    }

    /// Takes the line off; false if nothing is left of the part.
    fn strip_billing_header(&mut self) -> bool {
        let Part::Text(text, _) = self else { return true };
        let given = text.as_str().unwrap_or_default();
        if !given.starts_with(BILLING_HEADER) {
            return true;
        }
        let rest = given.split_once('\n').map_or("", |(_, rest)| rest);
        let is_left = !rest.is_empty();
        *text = Value::from(rest);
        is_left
    }

    fn to_value(&self) -> Value {
        let pair = |name: &str, value: &str| (Value::from(name), Value::from(value));
        match self {
            Part::Text(text, unknown) => {
                let fields = [pair("type", "text"), (Value::from("text"), text.clone())];
                Value::from_pairs(fields.into_iter().chain(unknown.iter().cloned()))
            }
            Part::ToolReference(name) => Value::from_pairs([pair("type", "tool_reference"), pair("name", name)]),
            Part::Media(modality, unknown) => {
                Value::from_pairs([pair("type", modality)].into_iter().chain(unknown.iter().cloned()))
            }
        }
    }
}
