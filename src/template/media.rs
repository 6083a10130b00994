//! How much of a prompt is known when the conversation has an image, a sound or a film.
//!
//! The engine replaces it by tokens that depend on the model and the file, so only the text in front of it is of use.
//! Where that ends is found by rendering variants: with a mark in front of the part, and without the part. What all have
//! in common is the same whatever stands in that place. A template that tells early on whether an image will follow has
//! little in common, and that much is used.

use minijinja::Value;

use super::RenderError;
use super::chat::{Chat, Media, entries, field};

/// A text that no conversation has: a private-use character.
const MARK: &str = "\u{10fffd}";

/// The same conversation with something else in the place of the part.
pub(super) fn variants(chat: &Chat, media: Media) -> Result<Vec<Chat>, RenderError> {
    let misplaced = || RenderError::refused("there is no message or part at the place of the media");
    let message = chat.messages.get(media.message).ok_or_else(misplaced)?;
    let content = field(message, "content").ok_or_else(misplaced)?;
    let contents = match content.as_str() {
        Some(text) => vec![Value::from(format!("{MARK}{text}"))],
        None => {
            let parts: Vec<Value> = content.try_iter()?.collect();
            let (before, rest) = parts.split_at_checked(media.part).ok_or_else(misplaced)?;
            let after = rest.get(1..).ok_or_else(misplaced)?;
            let mark = Value::from_pairs([("type", "text"), ("text", MARK)]);
            let marked = before.iter().chain([&mark]).chain(rest).cloned().collect();
            vec![marked, before.iter().chain(after).cloned().collect()]
        }
    };
    let with = |content| {
        let mut chat = chat.clone();
        if let Some(message) = chat.messages.get_mut(media.message) {
            *message = Value::from_pairs(entries(message).chain([(Value::from("content"), content)]));
        }
        chat
    };
    Ok(contents.into_iter().map(with).collect())
}

/// The part of a text that another one begins with as well.
pub(super) fn common<'a>(text: &'a str, other: &str) -> &'a str {
    let same = text.bytes().zip(other.bytes()).take_while(|(left, right)| left == right).count();
    let end = (0..=same).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}
