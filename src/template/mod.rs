//! Chat templates: a conversation to the prompt text that an engine makes of it.
//!
//! In: a template's source as the model ships it, special tokens, and a conversation; time and time zone are arguments.
//! Out: the text that `transformers` 5.24 renders with Jinja2 3.1.6, byte for byte, or an error. An error means that the
//! request has no key: nothing here guesses. This module never reads a clock, a file or the network, and never panics;
//! work, memory, output and recursion are bounded whatever the template and the conversation ([`Limits`]).
//!
//! The template itself writes the start token, so the engine adds none when it tokenizes the text, unless the conversation
//! says so ([`Chat::add_special_tokens`]). Bodies are those of OpenAI's chat completions and responses and of Anthropic's
//! messages, as vLLM reads them ([`Chat::read`]).

mod anthropic;
#[cfg(test)]
mod api_tests;
mod body;
mod chat;
mod compiled;
mod content_format;
mod continuation;
mod draft;
mod dumps;
mod environment;
mod error;
mod json;
mod known;
mod media;
mod message;
mod methods;
mod operands;
mod python;
mod responses;
mod source;
#[cfg(test)]
mod tests;
mod time;
mod tokenizer_config;
mod tools;
mod tree;

pub use chat::{Chat, Media};
pub use compiled::{ChatTemplate, Limits, Prompt, SpecialTokens};
pub use content_format::ContentFormat;
pub use error::{InvalidChat, InvalidTemplate, RenderError};
pub use json::{InvalidJson, parse_json};
pub use known::KnownItems;
pub use time::LocalTime;
pub use tokenizer_config::TokenizerConfig;

pub use minijinja::Value;
