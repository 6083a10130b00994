//! A chat completion body to a conversation, as vLLM makes one.
//!
//! In: the JSON body of `/v1/chat/completions`, and the model's template. Out: what vLLM 0.33 hands to
//! `apply_chat_template`, or an error where vLLM refuses the request or where what it would do cannot be known here.
//! Followed are `entrypoints/openai/chat_completion/protocol.py` (`build_chat_params`), `renderers/params.py`
//! (`merge_kwargs`), `renderers/hf.py` and what [`message`](super::message) and [`tools`](super::tools) name, then
//! transformers 5.24 `apply_chat_template`. So:
//!
//! - `tools`, absent or null, are none; an empty list is refused. `tool_choice` changes nothing.
//! - Of `chat_template_kwargs`, those that are null or `"auto"` are left out. `reasoning_effort` is one more of them, and
//!   sets `enable_thinking` if that is not given. `add_generation_prompt` and `continue_final_message` of the body count,
//!   not those among the arguments; `tools` among the arguments hide those of the body, `documents` stand in for missing
//!   ones.
//! - Where the template does not name the role `developer`, it becomes `system`, and the system messages one, at the start.
//! - A template in the body is refused, as vLLM does unless told otherwise; so are arguments that tell
//!   `apply_chat_template` itself something.
//!
//! Not covered: models that vLLM renders without a template (gpt-oss through Harmony, DeepSeek V3.2 and V4, Kimi K3, Mistral
//! with its own tokenizer), and what an engine is started with: `--default-chat-template-kwargs`,
//! `--chat-template-content-format`, `--exclude-tools-when-tool-choice-none`, a map of reasoning efforts.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, Media, entries, field};
use super::message::{invalid, message};
use super::{ChatTemplate, InvalidChat, parse_json, tools};

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
    pub fn from_body(body: &[u8], template: &ChatTemplate) -> Result<Chat, InvalidChat> {
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
            let (message, media) = message(given, index, template.content_format())?;
            if let (None, Some(part)) = (chat.media, media) {
                chat.media = Some(Media { message: index, part });
            }
            chat.messages.push(message);
        }
        if chat.messages.is_empty() {
            return Err(invalid("messages", "a list of at least one"));
        }
        if !template.knows_developers() {
            chat.make_developers_system()?;
        }
        chat.tools = tools::tools(list(&body, "tools")?)?;
        chat.documents = documents(list(&body, "documents")?)?;
        chat.add_generation_prompt = switch(&body, "add_generation_prompt", true)?;
        chat.continue_final_message = switch(&body, "continue_final_message", false)?;
        chat.take_arguments(&body)?;
        Ok(chat)
    }

    /// Makes developer messages system messages, and all system messages one at the start, unless that is so already.
    fn make_developers_system(&mut self) -> Result<(), InvalidChat> {
        let is_role =
            |message: &Value, wanted: &str| field(message, "role").is_some_and(|role| role.as_str() == Some(wanted));
        if !self.messages.iter().any(|message| is_role(message, "developer")) {
            return Ok(());
        }
        for message in self.messages.iter_mut().filter(|message| is_role(message, "developer")) {
            let kept = entries(message).filter(|(key, _)| key.as_str() != Some("tools"));
            *message = Value::from_pairs(kept.chain([(Value::from("role"), Value::from("system"))]));
        }
        if !self.messages.iter().skip(1).any(|message| is_role(message, "system")) {
            return Ok(());
        }
        if let Some(media) = &mut self.media {
            let (before, rest) = self.messages.split_at(media.message.min(self.messages.len()));
            if rest.first().is_some_and(|message| is_role(message, "system")) {
                return Err(invalid("messages", "without images in system messages where these are merged"));
            }
            media.message = 1 + before.iter().filter(|message| !is_role(message, "system")).count();
        }
        let (system, others): (Vec<Value>, Vec<Value>) =
            self.messages.drain(..).partition(|message| is_role(message, "system"));
        let texts: Vec<String> = system.iter().map(text_of).filter(|text| !text.is_empty()).collect();
        let merged = Value::from_pairs([("role", "system".to_owned()), ("content", texts.join("\n\n"))]);
        self.messages = [merged].into_iter().chain(others).collect();
        Ok(())
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

/// The text of a message: that of its parts, one a line.
fn text_of(message: &Value) -> String {
    let content = field(message, "content").unwrap_or_default();
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let parts = content.try_iter().into_iter().flatten();
    let texts: Vec<String> = parts.filter_map(|part| Some(field(&part, "text")?.as_str()?.to_owned())).collect();
    texts.join("\n")
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
