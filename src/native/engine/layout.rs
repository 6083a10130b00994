//! The fields of events, by position and by name, and how each is read.
//!
//! What is common to all engines. Their own files say where their fields are, and read what only they have.

use super::msgpack::{Cursor, Value};
use super::{BlockRemoved, BlockStored, EngineKey, ExtraKeys, Place, sglang, tensorrt_llm, vllm};

/// A field that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Keys of the blocks.
    BlockHashes,
    /// Key of the block before them.
    ParentBlockHash,
    /// Their tokens.
    TokenIds,
    /// Tokens in a block.
    BlockSize,
    /// The adapter's number.
    LoraId,
    /// Where they are.
    Medium,
    /// The adapter's name, or a map with a salt.
    LoraName,
    /// For each block what its key depends on.
    ExtraKeys,
    /// The group of a hybrid cache.
    GroupIdx,
    /// The kind of attention.
    KvCacheSpecKind,
    /// Whether they are on this machine.
    Locality,
    /// Tokens after each block that its key depends on.
    LookaheadTokenIds,
    /// A salt in the keys.
    CacheSalt,
    /// For each block the images in it.
    MmKeys,
}

/// What one engine may write that another one does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Tokens as overlapping pairs.
    pub pairs: bool,
    /// Digests of images among the tokens.
    pub digests: bool,
    /// A map with a salt in place of the adapter's name.
    pub metadata: bool,
}

/// The name of a field.
pub type Name = (&'static str, Field);

// === impl Field ===

impl Field {
    /// The field with this name, in whatever engine. Names mean the same in all of them, and none that a block's key
    /// depends on may go unseen because the engine was taken for another one.
    pub fn named(name: &[u8]) -> Option<Field> {
        let names = vllm::NAMES.iter().chain(sglang::NAMES).chain(tensorrt_llm::NAMES);
        names.into_iter().find(|(of, _)| of.as_bytes() == name).map(|(_, field)| *field)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let mut names = vllm::NAMES.iter().chain(sglang::NAMES).chain(tensorrt_llm::NAMES);
        names.find(|(_, field)| *field == self).map_or("", |(name, _)| name)
    }
}

/// Reads a field of a stored event; `None` if it is of the wrong type.
pub fn stored_field(field: Field, at: &mut Cursor<'_>, event: &mut BlockStored, dialect: &Dialect) -> Option<()> {
    match field {
        Field::BlockHashes => event.block_hashes = list(at, key)?,
        Field::ParentBlockHash => event.parent_block_hash = optional(at, key)?,
        Field::TokenIds => token_ids(at, event, dialect)?,
        Field::BlockSize => event.block_size = optional(at, unsigned)?.unwrap_or(0),
        Field::LoraId => event.lora_id = optional(at, signed)?,
        Field::LoraName => match at.clone().value().ok()? {
            Value::Map(_) if dialect.metadata => sglang::metadata(at, event)?,
            _ => event.lora_name = optional(at, text)?,
        },
        Field::ExtraKeys => tell_apart(event, list(at, |value, at| vllm::extra_keys(value, at))?),
        Field::MmKeys => tell_apart(event, list(at, tensorrt_llm::mm_keys)?),
        Field::KvCacheSpecKind => event.kv_cache_spec_kind = optional(at, text)?,
        Field::CacheSalt => event.salted |= !is_blank(at)?,
        Field::LookaheadTokenIds => event.looks_ahead |= !is_blank(at)?,
        Field::Medium | Field::GroupIdx | Field::Locality => place_field(field, at, &mut event.place)?,
    }
    Some(())
}

/// Reads a field of a removed event; `None` if it is of the wrong type.
pub fn removed_field(field: Field, at: &mut Cursor<'_>, event: &mut BlockRemoved) -> Option<()> {
    match field {
        Field::BlockHashes => event.block_hashes = list(at, key)?,
        Field::Medium | Field::GroupIdx | Field::Locality => place_field(field, at, &mut event.place)?,
        _ => at.skip().ok()?,
    }
    Some(())
}

fn place_field(field: Field, at: &mut Cursor<'_>, place: &mut Place) -> Option<()> {
    match field {
        Field::Medium => place.medium = optional(at, text)?,
        Field::GroupIdx => place.group_idx = optional(at, unsigned)?,
        _ => place.remote = optional(at, |value, at| Some(text(value, at)? != vllm::LOCAL))?.unwrap_or(false),
    }
    Some(())
}

fn token_ids(at: &mut Cursor<'_>, event: &mut BlockStored, dialect: &Dialect) -> Option<()> {
    let items = match at.value().ok()? {
        Value::Nil => 0,
        Value::List(items) => items,
        _ => return None,
    };
    event.token_ids = Vec::with_capacity(at.capacity(items));
    for _ in 0..items {
        if event.further_tokens == 0
            && let Some(id) = at.next_id()
        {
            event.token_ids.push(id);
            continue;
        }
        match at.value().ok()? {
            Value::Unsigned(id) => {
                let id = u32::try_from(id).ok()?;
                match event.further_tokens {
                    0 => event.token_ids.push(id),
                    _ => event.further_tokens += 1,
                }
            }
            Value::Text(_) if dialect.digests => event.further_tokens += 1,
            Value::List(2) if dialect.pairs => {
                sglang::pair(at)?;
                event.further_tokens += 1;
                event.looks_ahead = true;
            }
            _ => return None,
        }
    }
    Some(())
}

/// Adds what else the blocks' keys depend on to what is known of it.
fn tell_apart(event: &mut BlockStored, more: Vec<ExtraKeys>) {
    if event.extra_keys.is_empty() {
        event.extra_keys = more;
    } else if !more.is_empty() {
        let same_length = event.extra_keys.len() == more.len();
        for (at, known) in event.extra_keys.iter_mut().enumerate() {
            if !same_length || more.get(at) != Some(&ExtraKeys::None) {
                *known = ExtraKeys::Other;
            }
        }
    }
}

/// The value, read unless it is nil.
pub fn optional<'a, T>(
    at: &mut Cursor<'a>,
    read: impl Fn(Value<'a>, &mut Cursor<'a>) -> Option<T>,
) -> Option<Option<T>> {
    match at.value().ok()? {
        Value::Nil => Some(None),
        value => read(value, at).map(Some),
    }
}

/// The items of a list; nil has none.
pub fn list<'a, T>(at: &mut Cursor<'a>, read: impl Fn(Value<'a>, &mut Cursor<'a>) -> Option<T>) -> Option<Vec<T>> {
    let items = match at.value().ok()? {
        Value::Nil => 0,
        Value::List(items) => items,
        _ => return None,
    };
    let mut list = Vec::with_capacity(at.capacity(items));
    for _ in 0..items {
        let item = at.value().ok()?;
        list.push(read(item, at)?);
    }
    Some(list)
}

/// The longest key of bytes: engines' own have 32.
const MAX_KEY_BYTES: usize = 64;

/// An integer, signed or not, or a few bytes.
fn key(value: Value<'_>, _: &mut Cursor<'_>) -> Option<EngineKey> {
    match value {
        Value::Unsigned(number) => Some(EngineKey::Int(number)),
        Value::Negative(number) => Some(EngineKey::Int(number.cast_unsigned())),
        Value::Bytes(bytes) if bytes.len() <= MAX_KEY_BYTES => Some(EngineKey::Bytes(bytes.into())),
        _ => None,
    }
}

fn unsigned(value: Value<'_>, _: &mut Cursor<'_>) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(number),
        _ => None,
    }
}

fn signed(value: Value<'_>, _: &mut Cursor<'_>) -> Option<i64> {
    match value {
        Value::Unsigned(number) => i64::try_from(number).ok(),
        Value::Negative(number) => Some(number),
        _ => None,
    }
}

fn text(value: Value<'_>, _: &mut Cursor<'_>) -> Option<String> {
    match value {
        Value::Text(text) => std::str::from_utf8(text).ok().map(str::to_owned),
        _ => None,
    }
}

/// Whether the next value is nil, an empty text, or lists of nothing but these.
pub fn is_blank(at: &mut Cursor<'_>) -> Option<bool> {
    let mut values = at.take().ok()?;
    while !values.is_at_end() {
        match values.value().ok()? {
            Value::Nil | Value::List(_) | Value::Text([]) => {}
            _ => return Some(false),
        }
    }
    Some(true)
}
