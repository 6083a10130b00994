//! What turns a model's text into token ids: tokenizer, chat templates and special tokens, as one package.
//!
//! In: a [`Package`], which the hub makes from a model's files and every VM loads from parts; a request's text; the time.
//! Out: the token ids that the model's engine makes of the same text, or why they cannot be known. It knows no host, reads
//! no clock, and nothing in a package or in a text makes it panic or take more than its [`TextLimits`] allow.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod loaded;
mod models;
mod package;

pub use loaded::{LoadedModel, TextLimits};
pub use models::{Models, Texts};
pub use package::{Assembly, InvalidPackage, MAX_PACKAGE_BYTES, Package};

#[cfg(test)]
mod tests;
