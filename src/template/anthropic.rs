//! The body of Anthropic's `/v1/messages` to a conversation, as vLLM makes one.
//!
//! Followed is vLLM 0.33, `entrypoints/anthropic/`: `protocol.py`, and `to_chat_completion_request` of `serving.py`, which
//! makes a chat completion of the body. So:
//!
//! - The texts of `system` are joined with nothing in between; of a list, those that begin like Claude Code's mark are left
//!   out.
//! - Results of tools become messages of their own in front of what else the user says there: their texts one a line, then
//!   a user's message with their images, then the tools that they name. Blocks of other types in them are passed over.
//! - Thinking is the message's reasoning, redacted thinking nothing. Calls keep their place in the message, not among the
//!   texts.
//! - An assistant's message at the end is not gone on with: the beginning of a new one follows.
//! - `thinking` that is disabled asks for no effort; for little, if the template treats no effort like another or refuses it.
//!   Thinking with a budget, and adaptive thinking, change nothing. `output_config.effort` is the effort. `tool_choice`
//!   changes nothing.
//!
//! - Messages of the system among the others stay where they are if the template takes them there, and else become part of
//!   the first one, with nothing in between. vLLM tries that with a plain Jinja2; a template that uses what only
//!   `transformers` gives it (`raise_exception` where it is called, `bos_token` in a sum) counts as one that does not.
//!
//! Both trials are of the template that the body is read with. If a model has one of its own for tools, vLLM looks at both.
//!
//! Other versions: earlier ones pass over `thinking`, and put all messages of the system in front; later ones fold them
//! into their neighbours. Refused is what cannot be told from the body: changes of the tools on the way; calls without an id;
//! results of tools that an assistant gives, other than a text.

use std::sync::OnceLock;

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, field};
use super::draft::{Draft, list};
use super::message::{BILLING_HEADER, invalid};
use super::{ChatTemplate, InvalidChat, LocalTime, tools};
use crate::request::ChatApi;

/// The efforts that a client can ask for.
const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// What has been found out about a template, as vLLM does once when it starts.
#[derive(Debug, Default)]
pub(super) struct Trials {
    effort_of_disabled_thinking: OnceLock<&'static str>,
    merges_system: OnceLock<bool>,
}

/// What a message's blocks come to.
#[derive(Default)]
struct Blocks {
    /// Messages that stand in front of it.
    before: Vec<Value>,
    parts: Vec<Value>,
    reasoning: Option<String>,
    calls: Vec<Value>,
}

// === impl Chat ===

impl Chat {
    /// Reads the body of a request to `/v1/messages`.
    ///
    /// # Errors
    ///
    /// The body is not JSON, or names no conversation that the engine would render.
    pub fn from_messages(body: &[u8], template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        Chat::read(ChatApi::Messages, body, template)
    }

    pub(super) fn of_messages(body: &Value, template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        let given = list(body, "messages")?.ok_or_else(|| invalid("messages", "a list"))?;
        let mut system = system(body)?;
        let mut messages = Vec::new();
        for (index, message) in given.iter().enumerate() {
            if field(message, "role").is_none_or(|role| role.as_str() != Some("system")) {
                push(&mut messages, message, index)?;
                continue;
            }
            let text = inline_system(message, index)?;
            if text.is_empty() {
                continue;
            }
            if merges_system(template)? {
                system.push_str(&text);
            } else {
                messages.push(of_system(&text));
            }
        }
        if !system.is_empty() {
            messages.insert(0, of_system(&system));
        }
        Draft {
            tools: tools::of_messages(list(body, "tools")?)?,
            arguments: field(body, "chat_template_kwargs"),
            reasoning_effort: effort(body, template)?,
            ..Draft::new(messages)
        }
        .into_chat(template)
    }
}

/// How much the model shall think; nothing if the request leaves that open.
fn effort(body: &Value, template: &ChatTemplate) -> Result<Option<String>, InvalidChat> {
    let part = |name: &'static str| match field(body, name) {
        Some(part) if part.kind() != ValueKind::Map => Err(invalid(name, "an object")),
        part => Ok(part),
    };
    let (thinking, output) = (part("thinking")?, part("output_config")?);
    let kind = thinking.map(|thinking| field(&thinking, "type").unwrap_or_default());
    match kind.as_ref().map(Value::as_str) {
        Some(Some("disabled")) => return Ok(Some(effort_of_disabled_thinking(template)?.to_owned())),
        None | Some(Some("enabled" | "adaptive")) => {}
        _ => return Err(invalid("thinking", "of the type \"enabled\", \"disabled\" or \"adaptive\"")),
    }
    let Some(effort) = output.and_then(|output| field(&output, "effort")) else { return Ok(None) };
    let known = effort.as_str().filter(|effort| EFFORTS.contains(effort));
    known
        .map(|effort| Some(effort.to_owned()))
        .ok_or_else(|| invalid("output_config.effort", "an effort that is known"))
}

/// `none`, where the template knows what that is; `low` where it refuses it or takes it for another.
fn effort_of_disabled_thinking(template: &ChatTemplate) -> Result<&'static str, InvalidChat> {
    let known = &template.trials.effort_of_disabled_thinking;
    if let Some(effort) = known.get() {
        return Ok(effort);
    }
    let effort = if knows_no_effort(template)? { "none" } else { "low" };
    Ok(known.get_or_init(|| effort))
}

fn knows_no_effort(template: &ChatTemplate) -> Result<bool, InvalidChat> {
    let prompt = |effort: &str| {
        let message = Value::from_pairs([("role", "user"), ("content", "Hi")]);
        let draft = Draft { reasoning_effort: Some(effort.to_owned()), ..Draft::new(vec![message]) };
        let clock = LocalTime { unix_seconds: 0, utc_offset_seconds: 0 };
        Ok(template.render(&draft.into_chat(template)?, clock).ok().map(|prompt| prompt.text))
    };
    let Some(none) = prompt("none")? else { return Ok(false) };
    for effort in EFFORTS {
        if prompt(effort)?.is_some_and(|prompt| prompt == none) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The text of the body's `system`.
fn system(body: &Value) -> Result<String, InvalidChat> {
    let Some(given) = field(body, "system") else { return Ok(String::new()) };
    let text = given.as_str().map(str::to_owned).or_else(|| texts_of_system(&given));
    text.ok_or_else(|| invalid("system", "a string or a list of texts"))
}

/// The text of a message of the system among the others.
fn inline_system(message: &Value, index: usize) -> Result<String, InvalidChat> {
    let content = field(message, "content");
    let text = match content.as_ref().and_then(Value::as_str) {
        Some(text) if text.starts_with(BILLING_HEADER) => Some(String::new()),
        Some(text) => Some(text.to_owned()),
        None => content.as_ref().and_then(texts_of_system),
    };
    text.ok_or_else(|| in_message(index, "content", "a string or a list of texts"))
}

fn of_system(text: &str) -> Value {
    Value::from_pairs([("role", "system"), ("content", text)])
}

/// Whether messages of the system among the others become part of the first one: if the template refuses them there, as
/// vLLM tries it.
fn merges_system(template: &ChatTemplate) -> Result<bool, InvalidChat> {
    let known = &template.trials.merges_system;
    if let Some(merges) = known.get() {
        return Ok(*merges);
    }
    let message = |role| Value::from_pairs([("role", role), ("content", "t")]);
    let messages = ["system", "user", "system", "user"].into_iter().map(message).collect();
    let renders = template.renders_bare(messages).map_err(|_| invalid("messages", "without those of the system"))?;
    Ok(*known.get_or_init(|| !renders))
}

/// The texts of a list of blocks of which none is anything else.
fn texts_of_system(blocks: &Value) -> Option<String> {
    let mut texts = String::new();
    for block in blocks.try_iter().ok().filter(|_| blocks.kind() == ValueKind::Seq)? {
        let (kind, text) = (field(&block, "type")?, field(&block, "text"));
        if kind.as_str() != Some("text") {
            return None;
        }
        let text = text.as_ref().map_or(Some(""), Value::as_str)?;
        if !text.starts_with(BILLING_HEADER) {
            texts.push_str(text);
        }
    }
    Some(texts)
}

fn in_message(index: usize, name: &str, allowed: &'static str) -> InvalidChat {
    InvalidChat::Field { field: format!("messages[{index}].{name}"), allowed }
}

/// Adds the messages that one message of the body comes to.
fn push(messages: &mut Vec<Value>, message: &Value, index: usize) -> Result<(), InvalidChat> {
    let role = field(message, "role").and_then(|role| Some(role.as_str()?.to_owned()));
    let role = role.filter(|role| matches!(role.as_str(), "user" | "assistant"));
    let role = role.ok_or_else(|| in_message(index, "role", "that of a user or an assistant"))?;
    let content = field(message, "content");
    if let Some(text) = content.as_ref().filter(|content| content.kind() == ValueKind::String) {
        messages.push(Value::from_pairs([("role", Value::from(role)), ("content", text.clone())]));
        return Ok(());
    }
    let malformed = || in_message(index, "content", "a string or a list of blocks");
    let given = content.filter(|content| content.kind() == ValueKind::Seq).ok_or_else(malformed)?;
    let mut blocks = Blocks::default();
    for block in given.try_iter().map_err(|_| malformed())? {
        blocks.take(&block, index, &role)?;
    }
    messages.append(&mut blocks.before);
    messages.extend(blocks.into_message(&role));
    Ok(())
}

// === impl Blocks ===

impl Blocks {
    fn take(&mut self, block: &Value, index: usize, role: &str) -> Result<(), InvalidChat> {
        let kind = field(block, "type");
        let malformed = |allowed| in_message(index, "content", allowed);
        let text = |name: &str| match field(block, name) {
            Some(text) if text.kind() != ValueKind::String => Err(malformed("blocks whose texts are strings")),
            text => Ok(text),
        };
        match kind.as_ref().and_then(Value::as_str) {
            Some("text") => {
                let given = text("text")?.filter(Value::is_true);
                self.parts
                    .extend(given.map(|given| Value::from_pairs([("type", Value::from("text")), ("text", given)])));
            }
            Some("image") => self.parts.extend(image(block).ok_or_else(|| malformed("images with a source"))?),
            Some("thinking") => {
                if let Some(thinking) = text("thinking")? {
                    let thoughts = self.reasoning.get_or_insert_default();
                    thoughts.push_str(thinking.as_str().unwrap_or_default());
                }
            }
            Some("redacted_thinking" | "tool_reference") => {}
            Some("tool_use") => {
                let id = text("id")?.filter(Value::is_true).ok_or_else(|| malformed("calls with an id"))?;
                let input = field(block, "input").unwrap_or_else(|| Value::from_pairs::<_, Value, Value>([]));
                if input.kind() != ValueKind::Map {
                    return Err(malformed("calls whose input is an object"));
                }
                let name = text("name")?.unwrap_or_else(|| Value::from(""));
                let function = Value::from_pairs([("name", name), ("arguments", input)]);
                let call = [("id", id), ("type", Value::from("function")), ("function", function)];
                self.calls.push(Value::from_pairs(call));
            }
            Some("tool_result") if role == "user" => {
                let id = text("tool_use_id")?.unwrap_or_else(|| Value::from(""));
                self.take_result(block, &id).ok_or_else(|| malformed("results of a text or a list of blocks"))?;
            }
            Some("tool_result") => {
                let result = text("content")?.unwrap_or_default();
                let result = format!("Tool result: {}", result.as_str().unwrap_or_default());
                self.parts.push(Value::from_pairs([("type", "text"), ("text", result.as_str())]));
            }
            _ => return Err(malformed("blocks of a type that is known")),
        }
        Ok(())
    }

    /// Puts a tool's result in front of the message; nothing if it is malformed.
    fn take_result(&mut self, block: &Value, id: &Value) -> Option<()> {
        let content = field(block, "content").unwrap_or_else(|| Value::from(""));
        let (mut texts, mut images, mut references) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(text) = content.as_str() {
            texts.push(text.to_owned());
        } else {
            for item in content.try_iter().ok().filter(|_| content.kind() == ValueKind::Seq)? {
                if item.kind() != ValueKind::Map {
                    return None;
                }
                let kind = field(&item, "type");
                match kind.as_ref().and_then(Value::as_str) {
                    Some("text") => {
                        let text = item.get_attr("text").ok()?;
                        texts.push(if text.is_undefined() { String::new() } else { text.as_str()?.to_owned() });
                    }
                    Some("image") => images.extend(image(&item)?),
                    Some("tool_reference") => {
                        let name = |name: &str| field(&item, name).filter(Value::is_true);
                        if let Some(name) = name("tool_name").or_else(|| name("name")) {
                            name.as_str()?;
                            let kind = ("type", Value::from("tool_reference"));
                            references.push(Value::from_pairs([kind, ("name", name)]));
                        }
                    }
                    _ => {}
                }
            }
        }
        let of_tool = |content: Value| {
            Value::from_pairs([("role", Value::from("tool")), ("tool_call_id", id.clone()), ("content", content)])
        };
        self.before.push(of_tool(Value::from(texts.join("\n"))));
        if !images.is_empty() {
            self.before.push(Value::from_pairs([("role", Value::from("user")), ("content", Value::from(images))]));
        }
        if !references.is_empty() {
            self.before.push(of_tool(Value::from(references)));
        }
        Some(())
    }

    /// The message itself; a user's only if it says something.
    fn into_message(self, role: &str) -> Option<Value> {
        if role == "user" && self.parts.is_empty() {
            return None;
        }
        let content = match self.parts.as_slice() {
            [] => None,
            [part] if field(part, "text").is_some() => field(part, "text"),
            _ => Some(Value::from(self.parts)),
        };
        let calls = (!self.calls.is_empty()).then(|| Value::from(self.calls));
        let reasoning = self.reasoning.map(Value::from);
        let fields = [("content", content), ("reasoning", reasoning), ("tool_calls", calls)];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Some(Value::from_pairs([("role", Value::from(role))].into_iter().chain(given)))
    }
}

/// The part that an image is, if it has an address; nothing if it is malformed.
fn image(block: &Value) -> Option<Option<Value>> {
    let Some(source) = field(block, "source").filter(Value::is_true) else { return Some(None) };
    if source.kind() != ValueKind::Map {
        return None;
    }
    let is_address = field(&source, "type").is_some_and(|kind| kind.as_str() == Some("url"));
    if is_address && !field(&source, "url").is_some_and(|url| url.is_true()) {
        return Some(None);
    }
    let address = Value::from_pairs([("url", "")]);
    Some(Some(Value::from_pairs([("type", Value::from("image_url")), ("image_url", address)])))
}
