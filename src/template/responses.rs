//! The body of OpenAI's `/v1/responses` to a conversation, as vLLM makes one.
//!
//! Followed is vLLM 0.33, `entrypoints/openai/responses/`: `protocol.py` (`input_item_parsing`, `build_chat_params`,
//! `build_tok_params`), `utils.py` (`construct_input_messages`, `should_continue_final_message`, `construct_tool_dicts`),
//! with the item types of the `openai` package; and `render_responses` of `renderers/online_renderer.py`. So:
//!
//! - `instructions`, unless they are empty, are a system message in front; an `input` that is a text is a user message.
//! - Items of an assistant are gathered in one message as long as each brings what it does not have yet: its content, its
//!   reasoning, any number of calls. Of an assistant's content and of reasoning, the first part alone counts; of reasoning
//!   the content before the summary.
//! - A call's arguments come after its name, though a chat completion's stand before it.
//! - If the last item is a message or reasoning whose `status` is `in_progress` or `incomplete`, the prompt ends in it.
//! - Functions are shown to the model, those of a namespace as `<namespace>__<name>`, custom tools as functions of one text.
//!   Tools of the server's own are not shown; if there are no others, the template gets an empty list. An empty list of
//!   tools is none. `tool_choice` and `text` change nothing.
//! - Of `chat_template_kwargs`, those that are null or `"auto"` are kept.
//! - The tokenizer adds its own tokens, though the template has written the first one.
//!
//! Refused is what only the engine has (`previous_response_id`, `conversation`, `prompt`, references to items, encrypted
//! reasoning), `truncation` other than `"disabled"`, `previous_input_messages`, and every item that vLLM refuses: refusals at
//! the start of a message, calls of other tools. Versions before 0.33 pass over less and know no custom tools.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, entries, field};
use super::draft::{Draft, list, text};
use super::message::{Origin, invalid};
use super::{ChatTemplate, InvalidChat, tools};
use crate::request::ChatApi;

/// Fields that name something which is not in the body.
const ENGINE_STATE: [&str; 4] = ["previous_response_id", "conversation", "prompt", "previous_input_messages"];

/// A message in the making.
enum Turn {
    /// An assistant's, which further items may add to.
    Assistant(Assistant),
    /// Any other.
    Other(Value),
}

/// An assistant's message.
#[derive(Default)]
struct Assistant {
    content: Option<Value>,
    reasoning: Option<Value>,
    calls: Vec<Value>,
}

/// The messages so far.
struct Turns(Vec<Turn>);

// === impl Chat ===

impl Chat {
    /// Reads the body of a request to `/v1/responses`.
    ///
    /// # Errors
    ///
    /// The body is not JSON, names no conversation that the engine would render, or relies on what the engine keeps.
    pub fn from_responses(body: &[u8], template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        Chat::read(ChatApi::Responses, body, template)
    }

    pub(super) fn of_responses(body: &Value, template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        if let Some(name) = ENGINE_STATE.iter().find(|name| field(body, name).is_some()) {
            return Err(invalid(name, "absent: only the engine has what it names"));
        }
        let truncation = body.get_attr("truncation").unwrap_or_default();
        if !truncation.is_undefined() && truncation.as_str() != Some("disabled") {
            return Err(invalid("truncation", "\"disabled\": where the engine cuts is not known"));
        }
        let mut turns = Turns(Vec::new());
        if let Some(instructions) = text(body, "instructions")?.filter(|instructions| !instructions.is_empty()) {
            turns.0.push(Turn::Other(Value::from_pairs([("role", "system"), ("content", instructions.as_str())])));
        }
        let input = field(body, "input").ok_or_else(|| invalid("input", "a string or a list of items"))?;
        let continues = if input.kind() == ValueKind::String {
            turns.0.push(Turn::Other(Value::from_pairs([("role", Value::from("user")), ("content", input)])));
            false
        } else {
            let items = list(body, "input")?.unwrap_or_default();
            for (index, item) in items.iter().enumerate() {
                turns.take(item, index)?;
            }
            items.last().is_some_and(is_unfinished)
        };
        let reasoning = field(body, "reasoning");
        if reasoning.as_ref().is_some_and(|reasoning| reasoning.kind() != ValueKind::Map) {
            return Err(invalid("reasoning", "an object"));
        }
        Draft {
            origin: Origin::Items,
            tools: tools::of_responses(list(body, "tools")?)?,
            arguments: field(body, "chat_template_kwargs"),
            reasoning_effort: text(&reasoning.unwrap_or_default(), "effort")?,
            add_generation_prompt: !continues,
            continue_final_message: continues,
            add_special_tokens: true,
            ..Draft::new(turns.0.into_iter().map(Turn::into_message).collect())
        }
        .into_chat(template)
    }
}

/// Whether the model goes on with this item, the last one.
fn is_unfinished(item: &Value) -> bool {
    let status = field(item, "status");
    matches!(kind_of(item).as_deref(), Some("message" | "reasoning"))
        && matches!(status.as_ref().and_then(Value::as_str), Some("in_progress" | "incomplete"))
}

/// The item's type, which a message need not have; nothing if it is not a string.
fn kind_of(item: &Value) -> Option<String> {
    let kind = item.get_attr("type").ok()?;
    if kind.is_undefined() { Some("message".to_owned()) } else { kind.as_str().map(str::to_owned) }
}

fn in_item(index: usize, name: &str, allowed: &'static str) -> InvalidChat {
    InvalidChat::Field { field: format!("input[{index}].{name}"), allowed }
}

/// A field that must be a string.
fn string(item: &Value, index: usize, name: &str) -> Result<Value, InvalidChat> {
    let value = field(item, name).filter(|value| value.kind() == ValueKind::String);
    value.ok_or_else(|| in_item(index, name, "a string"))
}

/// A list of objects; nothing if it is not there, or null.
fn objects(item: &Value, index: usize, name: &str) -> Result<Vec<Value>, InvalidChat> {
    let Some(value) = field(item, name) else { return Ok(Vec::new()) };
    let malformed = || in_item(index, name, "a list of objects");
    if value.kind() != ValueKind::Seq {
        return Err(malformed());
    }
    let items: Vec<Value> = value.try_iter().map_err(|_| malformed())?.collect();
    if items.iter().all(|item| item.kind() == ValueKind::Map) { Ok(items) } else { Err(malformed()) }
}

// === impl Turns ===

impl Turns {
    fn take(&mut self, item: &Value, index: usize) -> Result<(), InvalidChat> {
        if item.kind() != ValueKind::Map {
            return Err(invalid("input", "a string or a list of items"));
        }
        match kind_of(item).as_deref() {
            Some("message") => self.message(item, index),
            Some("reasoning") => self.reasoning(item, index),
            Some("function_call") => {
                let namespace = match field(item, "namespace") {
                    Some(_) => string(item, index, "namespace")?.to_string(),
                    None => String::new(),
                };
                let name = tools::in_namespace(&namespace, &string(item, index, "name")?);
                self.call(item, index, name, string(item, index, "arguments")?)
            }
            Some("custom_tool_call") => {
                let arguments = Value::from_pairs([(tools::CUSTOM_TOOL_INPUT, string(item, index, "input")?)]);
                self.call(item, index, string(item, index, "name")?, arguments)
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let output = field(item, "output").ok_or_else(|| in_item(index, "output", "a string or a list"))?;
                let fields = [("role", Value::from("tool")), ("content", output)];
                let call = field(item, "call_id").map(|id| ("tool_call_id", id));
                self.0.push(Turn::Other(Value::from_pairs(fields.into_iter().chain(call))));
                Ok(())
            }
            _ => {
                Err(in_item(index, "type", "that of a message, of reasoning, or of a call of a function or its output"))
            }
        }
    }

    fn message(&mut self, item: &Value, index: usize) -> Result<(), InvalidChat> {
        let role = field(item, "role");
        match role.as_ref().and_then(Value::as_str) {
            Some("assistant") => {
                let content = answer(item, index)?;
                self.add(|assistant| assistant.content.is_none(), |assistant| assistant.content = Some(content));
            }
            Some("user" | "system" | "developer") => self.0.push(Turn::Other(with_detail(item))),
            _ => return Err(in_item(index, "role", "that of a user, an assistant, the system or a developer")),
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &Value, index: usize) -> Result<(), InvalidChat> {
        if field(item, "encrypted_content").is_some_and(|content| content.as_str() != Some("")) {
            return Err(in_item(index, "encrypted_content", "absent: only the engine can read it"));
        }
        if field(item, "summary").is_none() {
            return Err(in_item(index, "summary", "a list of objects"));
        }
        let (content, summary) = (objects(item, index, "content")?, objects(item, index, "summary")?);
        let reasoning = match content.first().or(summary.first()) {
            Some(part) => string(part, index, "text")?,
            None => Value::from(""),
        };
        self.add(|assistant| assistant.reasoning.is_none(), |assistant| assistant.reasoning = Some(reasoning));
        Ok(())
    }

    fn call(&mut self, item: &Value, index: usize, name: Value, arguments: Value) -> Result<(), InvalidChat> {
        let function = Value::from_pairs([("name", name), ("arguments", arguments)]);
        let id = string(item, index, "call_id")?;
        let call = Value::from_pairs([("id", id), ("function", function), ("type", Value::from("function"))]);
        self.add(|_| true, |assistant| assistant.calls.push(call));
        Ok(())
    }

    /// Adds to the last message if it is an assistant's that has room, else to a new one.
    fn add(&mut self, has_room: impl Fn(&Assistant) -> bool, add: impl FnOnce(&mut Assistant)) {
        match self.0.last_mut() {
            Some(Turn::Assistant(assistant)) if has_room(assistant) => add(assistant),
            _ => {
                let mut assistant = Assistant::default();
                add(&mut assistant);
                self.0.push(Turn::Assistant(assistant));
            }
        }
    }
}

/// What an assistant's message says: its text, or the text of its first part.
fn answer(item: &Value, index: usize) -> Result<Value, InvalidChat> {
    let content = field(item, "content");
    if let Some(text) = content.filter(|content| content.kind() == ValueKind::String) {
        return Ok(text);
    }
    let parts = objects(item, index, "content")?;
    let first = parts.first().ok_or_else(|| in_item(index, "content", "a string, or a list of at least one part"))?;
    let kind = field(first, "type");
    match kind.as_ref().and_then(Value::as_str) {
        // An output text is read only where the item says that it is a message.
        Some("output_text") if field(item, "type").is_some() => string(first, index, "text"),
        Some("input_text") => string(first, index, "text"),
        _ => Err(in_item(index, "content", "a string, or parts of which the first is text")),
    }
}

/// The message, its images with the detail that they have unless they say otherwise.
fn with_detail(item: &Value) -> Value {
    let content = field(item, "content").filter(|content| content.kind() == ValueKind::Seq);
    let Some(content) = content else { return item.clone() };
    let detailed = |part: Value| {
        let is_image = field(&part, "type").is_some_and(|kind| kind.as_str() == Some("input_image"));
        let is_bare = part.get_attr("detail").is_ok_and(|detail| detail.is_undefined());
        if !is_image || !is_bare {
            return part;
        }
        Value::from_pairs(entries(&part).chain([(Value::from("detail"), Value::from("auto"))]))
    };
    let content: Value = content.try_iter().into_iter().flatten().map(detailed).collect();
    Value::from_pairs(entries(item).chain([(Value::from("content"), content)]))
}

// === impl Turn ===

impl Turn {
    fn into_message(self) -> Value {
        let Assistant { content, reasoning, calls } = match self {
            Turn::Assistant(assistant) => assistant,
            Turn::Other(message) => return message,
        };
        let calls = (!calls.is_empty()).then(|| Value::from(calls));
        let fields = [("content", content), ("reasoning", reasoning), ("tool_calls", calls)];
        let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Value::from_pairs([("role", Value::from("assistant"))].into_iter().chain(given))
    }
}
