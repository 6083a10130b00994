//! What a `tokenizer.json` says of itself: its kind, its size, and the text of each id. For people: the ids come from
//! [`crate::tokenize`].

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::InvalidModelFiles;
use super::files::TOKENIZER;

/// The file, as far as it is looked into here.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerSource {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

/// A token that is found in the text before it is split.
#[derive(Debug, Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: Option<u32>,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Value,
    #[serde(default)]
    merges: Vec<IgnoredAny>,
    #[serde(default)]
    byte_fallback: Option<bool>,
}

/// What a `tokenizer.json` has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The kind of tokenizer, in words.
    pub kind: String,
    /// Tokens of the vocabulary, without added ones that are not in it.
    pub vocabulary: usize,
    /// Merges.
    pub merges: usize,
    /// Added tokens.
    pub added_tokens: usize,
}

/// The text of each id.
#[derive(Clone, Debug)]
pub struct Pieces {
    texts: HashMap<u32, String>,
    /// What stands for each byte in the vocabulary, where its tokens are bytes.
    bytes: Option<BTreeMap<char, u8>>,
    added: HashMap<u32, String>,
}

// === impl TokenizerSource ===

impl TokenizerSource {
    pub(super) fn parse(json: &[u8]) -> Result<TokenizerSource, InvalidModelFiles> {
        serde_json::from_slice(json)
            .map_err(|error| InvalidModelFiles::new(TOKENIZER, format!("not JSON of that form: {error}")))
    }

    pub(super) fn outline(&self) -> Outline {
        let kind = self.model.kind.as_deref().unwrap_or("BPE");
        let kind = match (self.is_byte_level(), self.model.byte_fallback) {
            (true, _) => format!("byte-level {kind}"),
            (false, Some(true)) => format!("{kind} over characters with byte fallback"),
            (false, _) => format!("{kind} over characters"),
        };
        Outline {
            kind,
            vocabulary: self.model.vocab.as_object().map_or(0, serde_json::Map::len),
            merges: self.model.merges.len(),
            added_tokens: self.added_tokens.len(),
        }
    }

    /// Whether something of this type is part of the normalizer.
    pub(super) fn normalizes_with(&self, kind: &str) -> bool {
        has_type(&self.normalizer, kind)
    }

    fn is_byte_level(&self) -> bool {
        has_type(&self.pre_tokenizer, "ByteLevel") || has_type(&self.decoder, "ByteLevel")
    }
}

/// Whether a step, or one of its steps, is of this type.
fn has_type(step: &Value, kind: &str) -> bool {
    let is_it = |step: &Value| step.get("type").and_then(Value::as_str) == Some(kind);
    let mut steps = ["pretokenizers", "normalizers", "decoders"]
        .into_iter()
        .filter_map(|name| step.get(name)?.as_array())
        .flatten();
    is_it(step) || steps.any(is_it)
}

// === impl Pieces ===

impl Pieces {
    /// Those of a `tokenizer.json`.
    ///
    /// # Errors
    /// When it is none.
    pub fn of(json: &[u8]) -> Result<Pieces, InvalidModelFiles> {
        let source = TokenizerSource::parse(json)?;
        let vocabulary = source.model.vocab.as_object();
        let ids = vocabulary.into_iter().flatten();
        let texts = ids.filter_map(|(text, id)| Some((u32::try_from(id.as_u64()?).ok()?, text.clone()))).collect();
        let added = source.added_tokens.iter().filter_map(|token| Some((token.id?, token.content.clone()))).collect();
        Ok(Pieces { texts, bytes: source.is_byte_level().then(byte_characters), added })
    }

    /// The added tokens, in the order of their ids.
    pub fn added_tokens(&self) -> Vec<&str> {
        let by_id: BTreeMap<u32, &str> = self.added.iter().map(|(id, text)| (*id, text.as_str())).collect();
        by_id.into_values().collect()
    }

    /// The text that an id stands for; bytes that are no text of their own as `\xNN`.
    pub fn text(&self, id: u32) -> String {
        if let Some(added) = self.added.get(&id) {
            return added.clone();
        }
        match (self.texts.get(&id), &self.bytes) {
            (None, _) => "(no such token)".to_owned(),
            (Some(text), None) => text.clone(),
            (Some(text), Some(bytes)) => {
                let bytes: Vec<u8> = text.chars().filter_map(|character| bytes.get(&character).copied()).collect();
                readable(&bytes)
            }
        }
    }
}

/// Bytes as text.
fn readable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The characters that GPT-2 writes for bytes: printable ones stand for themselves, the others for U+0100 on, in order.
fn byte_characters() -> BTreeMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100_u32;
    let characters = (0..=u8::MAX).filter_map(|byte| {
        if is_printable(byte) {
            return Some((char::from(byte), byte));
        }
        let character = char::from_u32(next)?;
        next += 1;
        Some((character, byte))
    });
    characters.collect()
}
