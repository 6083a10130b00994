//! A request's conversation in the terms of a chat completion, whatever API it came through.
//!
//! vLLM makes chat messages of each API's body and treats them alike from there on; so does this. In: messages, tools and
//! settings. Out: what `apply_chat_template` gets. See [`body`](super::body) for what is followed.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, Media, entries, field};
use super::json::{MAX_VALUES, parse_body};
use super::known::KnownItems;
use super::message::{Origin, invalid, message};
use super::{ChatTemplate, InvalidChat};

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

/// What a body comes to, before the template is asked how it takes messages.
pub(super) struct Draft {
    /// Messages as a chat completion body has them.
    pub messages: Vec<Value>,
    /// Where the messages come from.
    pub origin: Origin,
    /// Tools as templates see them.
    pub tools: Option<Value>,
    /// Documents as templates see them.
    pub documents: Option<Value>,
    /// The body's `chat_template_kwargs`.
    pub arguments: Option<Value>,
    /// How much the model shall think.
    pub reasoning_effort: Option<String>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its tokens to the prompt.
    pub add_special_tokens: bool,
}

// === impl Draft ===

impl Draft {
    /// A conversation that asks for an answer, without tools.
    pub fn new(messages: Vec<Value>) -> Draft {
        Draft {
            messages,
            origin: Origin::Body,
            tools: None,
            documents: None,
            arguments: None,
            reasoning_effort: None,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
        }
    }

    /// What the template gets.
    pub fn into_chat(self, template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        let mut chat = Chat::new(Vec::new());
        let mut left = MAX_VALUES;
        for (index, given) in self.messages.iter().enumerate() {
            let (message, media) = message(given, index, template.content_format(), self.origin, &mut left)?;
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
        chat.tools = self.tools;
        chat.documents = self.documents;
        chat.add_generation_prompt = self.add_generation_prompt;
        chat.continue_final_message = self.continue_final_message;
        chat.add_special_tokens = self.add_special_tokens;
        chat.take_arguments(self.arguments, self.reasoning_effort.as_deref(), self.origin)?;
        Ok(chat)
    }
}

// === impl Chat ===

impl Chat {
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
            let kept = before.iter().filter(|message| !is_role(message, "system")).count();
            media.message = kept.saturating_add(1);
        }
        let (system, others): (Vec<Value>, Vec<Value>) =
            self.messages.drain(..).partition(|message| is_role(message, "system"));
        let texts: Vec<String> = system.iter().map(text_of).filter(|text| !text.is_empty()).collect();
        let merged = Value::from_pairs([("role", "system".to_owned()), ("content", texts.join("\n\n"))]);
        self.messages = [merged].into_iter().chain(others).collect();
        Ok(())
    }

    fn take_arguments(
        &mut self,
        given: Option<Value>,
        effort: Option<&str>,
        origin: Origin,
    ) -> Result<(), InvalidChat> {
        if given.as_ref().is_some_and(|given| given.kind() != ValueKind::Map) {
            return Err(invalid("chat_template_kwargs", "an object"));
        }
        let given = given.unwrap_or_default();
        for (name, value) in entries(&given) {
            let name = name.as_str().unwrap_or_default();
            if NOT_FOR_TEMPLATES.contains(&name) {
                return Err(invalid("chat_template_kwargs", "arguments of the template alone"));
            }
            let is_set = !is_unset(&value);
            match name {
                "add_generation_prompt" | "continue_final_message" => {}
                "tools" if is_set => self.tools = Some(value),
                "documents" if is_set && self.documents.is_none() => self.documents = Some(value),
                "tools" | "documents" => {}
                // A map has each name once.
                _ if is_set || origin == Origin::Items => self.arguments.push((name.to_owned(), value)),
                _ => {}
            }
        }
        let Some(effort) = effort else { return Ok(()) };
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

/// The body, which must be an object.
pub(super) fn object(body: &[u8], known: &mut KnownItems) -> Result<Value, InvalidChat> {
    let body = parse_body(body, known).map_err(InvalidChat::Json)?;
    if body.kind() == ValueKind::Map { Ok(body) } else { Err(invalid("the body", "an object")) }
}

/// A list, if the field is there and not null.
pub(super) fn list(body: &Value, name: &'static str) -> Result<Option<Vec<Value>>, InvalidChat> {
    let Some(value) = field(body, name) else { return Ok(None) };
    match (value.kind(), value.try_iter()) {
        (ValueKind::Seq, Ok(items)) => Ok(Some(items.collect())),
        _ => Err(invalid(name, "a list")),
    }
}

/// True or false, if the field is there.
pub(super) fn switch(body: &Value, name: &'static str, default: bool) -> Result<bool, InvalidChat> {
    match body.get_attr(name) {
        Ok(value) if value.kind() == ValueKind::Bool => Ok(value.is_true()),
        Ok(value) if !value.is_undefined() => Err(invalid(name, "true or false")),
        _ => Ok(default),
    }
}

/// A text, if the field is there and not null.
pub(super) fn text(body: &Value, name: &'static str) -> Result<Option<String>, InvalidChat> {
    let Some(value) = field(body, name) else { return Ok(None) };
    value.as_str().map(|text| Some(text.to_owned())).ok_or_else(|| invalid(name, "a string"))
}
