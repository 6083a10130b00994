//! A conversation, as a template sees it.

use minijinja::Value;
use minijinja::value::ValueKind;

/// The names under which reasoning is handed to a template, the standard one first.
pub(super) const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A conversation and the arguments of its template: what `apply_chat_template` gets.
#[derive(Clone, Debug)]
pub struct Chat {
    /// The messages: maps, in the order of the conversation, keys in their own order.
    pub messages: Vec<Value>,
    /// The tools that the model may call. Without any, templates see none, not an undefined name.
    pub tools: Option<Value>,
    /// Documents to draw on; none if there are not any.
    pub documents: Option<Value>,
    /// Further variables of the template, such as `enable_thinking`.
    pub arguments: Vec<(String, Value)>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message, for the model to go on with.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its own tokens to the prompt, such as one at the start, though a template writes it too.
    pub add_special_tokens: bool,
    /// The first part of the conversation that is not text. The prompt is known up to it.
    pub media: Option<Media>,
}

/// The place of an image, a sound or a film.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// The index of its message.
    pub message: usize,
    /// Its index in the message's content. Where the content is a text, it stands before that text.
    pub part: usize,
}

// === impl Chat ===

impl Chat {
    /// A conversation that asks for an answer, without tools.
    #[must_use]
    pub fn new(messages: Vec<Value>) -> Chat {
        Chat {
            messages,
            tools: None,
            documents: None,
            arguments: Vec::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
            media: None,
        }
    }

    /// Whether a model that has a template of its own for tools renders the conversation with that: if it is given tools,
    /// be it an empty list.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// The messages, with reasoning under each of its names, as `transformers` 5 hands them to the template.
    pub(super) fn aliased_messages(&self) -> Value {
        self.messages.iter().map(aliased).collect()
    }
}

/// A message that has reasoning has it as `reasoning_content` too, in place if it is there and else last, and as
/// `thinking`, first unless that is there.
fn aliased(message: &Value) -> Value {
    let Some(reasoning) = REASONING_FIELDS.iter().find_map(|name| field(message, name)) else {
        return message.clone();
    };
    let mut pairs = vec![(Value::from("thinking"), reasoning.clone())];
    pairs.extend(entries(message));
    pairs.push((Value::from("reasoning_content"), reasoning));
    Value::from_pairs(pairs)
}

/// A field that is there and not none.
pub(super) fn field(map: &Value, name: &str) -> Option<Value> {
    if map.kind() != ValueKind::Map {
        return None;
    }
    map.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined())
}

/// The entries of a map in their order; of anything else, none.
pub(super) fn entries(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    let keys = (map.kind() == ValueKind::Map).then(|| map.try_iter().ok()).flatten();
    keys.into_iter().flatten().filter_map(|key| {
        let value = map.get_item(&key).ok()?;
        Some((key, value))
    })
}
