//! A chat completion body to a conversation, as vLLM makes one.
//!
//! In: the JSON body of `/v1/chat/completions`, and the [content format](ContentFormat) of the model's template. Out: what
//! vLLM hands to `apply_chat_template`, or an error where vLLM refuses the request or where what it would do cannot be
//! known here. Followed are vLLM's `entrypoints/openai/chat_completion/protocol.py` (`build_chat_params`; seen at
//! 002032ee), `renderers/params.py` (`merge_kwargs`; 017638d7) and `entrypoints/chat_utils.py` (001eadcf; see
//! [`message`](super::message) and [`tools`](super::tools)), then transformers 5.24 `apply_chat_template`. So:
//!
//! - `tools`, absent or null, are none; an empty list is refused. `tool_choice` changes nothing.
//! - Of `chat_template_kwargs`, those that are null or `"auto"` are left out. `reasoning_effort` is one more of them, and
//!   sets `enable_thinking` if that is not given. `add_generation_prompt` and `continue_final_message` of the body count,
//!   not those among the arguments; `tools` among the arguments hide those of the body, `documents` stand in for missing
//!   ones.
//! - A template in the body is refused, as vLLM does unless told otherwise; so are arguments that tell
//!   `apply_chat_template` itself something.
//!
//! Not covered: models that vLLM renders without a template (gpt-oss through Harmony, DeepSeek V3.2 and V4, Kimi K3, Mistral
//! with its own tokenizer).

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, Media, entries, field};
use super::message::{invalid, message};
use super::{ContentFormat, InvalidChat, parse_json, tools};

/// Arguments of `apply_chat_template` that do not reach the template.
const NOT_FOR_TEMPLATES: [&str; 12] = [
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
];

// === impl Chat ===

impl Chat {
    /// Reads the body of a chat completion request.
    ///
    /// # Errors
    ///
    /// The body is not JSON, or names no conversation that the engine would render.
    pub fn from_body(body: &[u8], format: ContentFormat) -> Result<Chat, InvalidChat> {
        let body = parse_json(body).map_err(InvalidChat::Json)?;
        if body.kind() != ValueKind::Map {
            return Err(invalid("the body", "an object"));
        }
        if field(&body, "chat_template").is_some() {
            return Err(invalid("chat_template", "absent"));
        }
        let mut chat = Chat::new(Vec::new());
        for (index, given) in list(&body, "messages")?.ok_or_else(|| invalid("messages", "a list"))?.iter().enumerate()
        {
            let (message, media) = message(given, index, format)?;
            if let (None, Some(part)) = (chat.media, media) {
                chat.media = Some(Media { message: index, part });
            }
            chat.messages.push(message);
        }
        if chat.messages.is_empty() {
            return Err(invalid("messages", "a list of at least one"));
        }
        chat.tools = tools::tools(list(&body, "tools")?)?;
        chat.documents = documents(list(&body, "documents")?)?;
        chat.add_generation_prompt = switch(&body, "add_generation_prompt", true)?;
        chat.continue_final_message = switch(&body, "continue_final_message", false)?;
        chat.take_arguments(&body)?;
        Ok(chat)
    }

    fn take_arguments(&mut self, body: &Value) -> Result<(), InvalidChat> {
        let given = field(body, "chat_template_kwargs");
        if given.as_ref().is_some_and(|given| given.kind() != ValueKind::Map) {
            return Err(invalid("chat_template_kwargs", "an object"));
        }
        let given = given.unwrap_or_default();
        for (name, value) in entries(&given) {
            let name = name.as_str().unwrap_or_default();
            if NOT_FOR_TEMPLATES.contains(&name) {
                return Err(invalid("chat_template_kwargs", "arguments of the template alone"));
            }
            if is_unset(&value) {
                continue;
            }
            match name {
                "add_generation_prompt" | "continue_final_message" => {}
                "tools" => self.tools = Some(value),
                "documents" if self.documents.is_some() => {}
                "documents" => self.documents = Some(value),
                _ => self.set_argument(name, value),
            }
        }
        let Some(effort) = field(body, "reasoning_effort") else { return Ok(()) };
        let Some(effort) = effort.as_str() else { return Err(invalid("reasoning_effort", "a string")) };
        if given.get_attr("enable_thinking").is_ok_and(|value| value.is_undefined()) || given.is_undefined() {
            self.set_argument("enable_thinking", Value::from(effort != "none"));
        }
        self.set_argument("reasoning_effort", Value::from(effort));
        Ok(())
    }

    fn set_argument(&mut self, name: &str, value: Value) {
        self.arguments.retain(|(known, _)| known != name);
        self.arguments.push((name.to_owned(), value));
    }
}

/// vLLM's `merge_kwargs` takes these for values that have not been given.
fn is_unset(value: &Value) -> bool {
    value.is_none() || value.as_str() == Some("auto")
}

/// A list, if the field is there and not null.
fn list(body: &Value, name: &'static str) -> Result<Option<Vec<Value>>, InvalidChat> {
    let Some(value) = field(body, name) else { return Ok(None) };
    match (value.kind(), value.try_iter()) {
        (ValueKind::Seq, Ok(items)) => Ok(Some(items.collect())),
        _ => Err(invalid(name, "a list")),
    }
}

fn switch(body: &Value, name: &'static str, default: bool) -> Result<bool, InvalidChat> {
    match body.get_attr(name) {
        Ok(value) if value.kind() == ValueKind::Bool => Ok(value.is_true()),
        Ok(value) if !value.is_undefined() => Err(invalid(name, "true or false")),
        _ => Ok(default),
    }
}

/// Documents are maps of texts.
fn documents(documents: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let Some(documents) = documents else { return Ok(None) };
    let is_document = |document: &Value| {
        document.kind() == ValueKind::Map && entries(document).all(|(_, value)| value.kind() == ValueKind::String)
    };
    if documents.iter().all(is_document) {
        Ok(Some(Value::from(documents)))
    } else {
        Err(invalid("documents", "a list of objects whose values are strings"))
    }
}
