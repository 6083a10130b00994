//! Prompts that end inside the last message (`continue_final_message`).
//!
//! As `transformers` does it: a tag is put behind the last message's text, and the rendered prompt is cut at the tag. If
//! the template has stripped the blank at the tag's end, it strips messages, and the cut prompt is stripped as well.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::RenderError;
use super::chat::{Chat, entries, field};
use super::methods::{strip_both, strip_end};

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
const FIELD: &str = "content";

/// A conversation with the tag in it.
pub(super) struct Continuation {
    tagged: Chat,
    /// What is to be continued.
    text: String,
}

// === impl Continuation ===

impl Continuation {
    pub(super) fn of(chat: &Chat, source: &str) -> Result<Continuation, RenderError> {
        if chat.add_generation_prompt {
            return Err(RenderError::refused("continue_final_message and add_generation_prompt exclude each other"));
        }
        if !source.contains(FIELD) {
            return Err(RenderError::refused("the template does not read the content to be continued"));
        }
        let mut tagged = chat.clone();
        let last = tagged.messages.last_mut().ok_or_else(|| RenderError::refused("there is no message to continue"))?;
        let content = field(last, FIELD).ok_or_else(nothing_to_continue)?;
        let (text, content) = match content.kind() {
            ValueKind::String => {
                let text = content.as_str().unwrap_or_default().to_owned();
                let tagged = Value::from(format!("{text}{TAG}"));
                (text, tagged)
            }
            ValueKind::Seq => tag_last_text(&content)?,
            _ => return Err(nothing_to_continue()),
        };
        *last = replaced(last, FIELD, content);
        Ok(Continuation { tagged, text })
    }

    pub(super) fn chat(&self) -> &Chat {
        &self.tagged
    }

    /// The prompt up to the tag.
    pub(super) fn cut(&self, rendered: String) -> Result<String, RenderError> {
        let tag = TAG.trim_end();
        if !rendered.contains(strip_both(&self.text)) {
            return Err(RenderError::refused("the template does not write the message that is to be continued"));
        }
        let Some(at) = rendered.rfind(tag) else {
            return Err(RenderError::refused("the template does not write the end of the message to be continued"));
        };
        let (before, from_tag) = rendered.split_at_checked(at).unwrap_or((&rendered, ""));
        let kept_blank = from_tag.starts_with(TAG);
        Ok(if kept_blank { before } else { strip_end(before) }.to_owned())
    }
}

/// Puts the tag behind the last part that has a text.
fn tag_last_text(content: &Value) -> Result<(String, Value), RenderError> {
    let mut parts: Vec<Value> = content.try_iter()?.collect();
    let last = parts.iter_mut().rev().find_map(|part| {
        let text = field(part, "text")?.as_str()?.to_owned();
        *part = replaced(part, "text", Value::from(format!("{text}{TAG}")));
        Some(text)
    });
    Ok((last.ok_or_else(nothing_to_continue)?, Value::from(parts)))
}

/// A copy of a map with another value under a key that it has.
fn replaced(map: &Value, name: &str, value: Value) -> Value {
    Value::from_pairs(entries(map).chain([(Value::from(name), value)]))
}

fn nothing_to_continue() -> RenderError {
    RenderError::refused("the last message has no text to continue")
}
