//! The parts of a `tokenizer.json` that decide the ids, as they stand in the file.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;

use super::error::{CompileError, Unsupported};

/// The file.
#[derive(Deserialize)]
pub(super) struct Source {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    pub(super) model: Bpe,
}

/// One added token. Its `id` is not read: the reference counts ids itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct AddedToken {
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// The model.
#[derive(Deserialize)]
pub(super) struct Bpe {
    pub(super) vocab: HashMap<String, u32>,
    pub(super) merges: Vec<Merge>,
    #[serde(default)]
    pub(super) dropout: Option<f64>,
    #[serde(default)]
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: Option<bool>,
    #[serde(default)]
    pub(super) byte_fallback: Option<bool>,
    #[serde(default)]
    pub(super) ignore_merges: Option<bool>,
}

/// One merge: `"a b"` or `["a", "b"]`.
pub(super) struct Merge {
    pub(super) left: String,
    pub(super) right: String,
}

/// Only the model's type and the file's version.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    version: Option<String>,
    model: KindOfModel,
}

#[derive(Deserialize)]
struct KindOfModel {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    merges: Option<IgnoredAny>,
}

// === impl Source ===

impl Source {
    /// Reads a file whose model is BPE.
    pub(super) fn read(json: &[u8]) -> Result<Source, CompileError> {
        let not_json = |error: serde_json::Error| CompileError::Json(error.to_string());
        let Kind { version, model } = serde_json::from_slice(json).map_err(not_json)?;
        if let Some(version) = version.filter(|version| version != "1.0") {
            return Err(CompileError::invalid("version", format!("is {version:?}, allowed is \"1.0\"")));
        }
        match (model.kind.as_deref(), model.merges) {
            (Some("BPE") | None, Some(_)) => {}
            (Some("BPE"), None) => return Err(CompileError::invalid("model", "has no merges")),
            (kind, _) => return Err(Unsupported::Model(kind.unwrap_or("missing").to_owned()).into()),
        }
        serde_json::from_slice(json).map_err(not_json)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a merge, \"a b\" or [\"a\", \"b\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
        match text.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => Ok(Merge { left: left.into(), right: right.into() }),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
        let left = pair.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
        let right = pair.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
        match pair.next_element::<IgnoredAny>()? {
            None => Ok(Merge { left, right }),
            Some(_) => Err(de::Error::invalid_length(3, &self)),
        }
    }
}
