//! vLLM's events: the layout that the other engines have taken over.
//!
//! Positional arrays up to 0.23, maps tagged by `type` from 0.24; `README.md` has what came with which version. Hashes
//! are integers, signed up to 0.10.0, or bytes, and both can be in one batch.

use super::ExtraKeys;
use super::layout::{Dialect, Field, Name};
use super::msgpack::{Cursor, Value};

/// What vLLM writes.
pub const DIALECT: Dialect = Dialect { pairs: false, digests: false, metadata: false };

/// The `locality` of blocks on the engine's machine.
pub const LOCAL: &str = "LOCAL";

/// The fields of `BlockStored` after its tag; what follows them is not needed.
pub const STORED: &[Field] = &[
    Field::BlockHashes,
    Field::ParentBlockHash,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::GroupIdx,
    Field::KvCacheSpecKind,
];

/// The fields of `BlockRemoved` after its tag.
pub const REMOVED: &[Field] = &[Field::BlockHashes, Field::Medium, Field::GroupIdx];

/// The field of `TierBlocksCleared` after its tag.
pub const TIER_CLEARED: &[Field] = &[Field::Medium];

/// The keys of all in maps.
pub const NAMES: &[Name] = &[
    ("block_hashes", Field::BlockHashes),
    ("parent_block_hash", Field::ParentBlockHash),
    ("token_ids", Field::TokenIds),
    ("block_size", Field::BlockSize),
    ("lora_id", Field::LoraId),
    ("medium", Field::Medium),
    ("lora_name", Field::LoraName),
    ("extra_keys", Field::ExtraKeys),
    ("group_idx", Field::GroupIdx),
    ("kv_cache_spec_kind", Field::KvCacheSpecKind),
    ("locality", Field::Locality),
    ("lookahead_token_ids", Field::LookaheadTokenIds),
];

/// What one block's key depends on: nothing, or a tuple of the adapter's name, images, a salt and digests of embeddings,
/// as bare values that do not say which they are. Images are an identifier up to 0.18.1, then a pair with an offset.
pub fn extra_keys(value: Value<'_>, at: &mut Cursor<'_>) -> Option<ExtraKeys> {
    let items = match value {
        Value::Nil => return Some(ExtraKeys::None),
        Value::List(items) => items,
        // Not a tuple, but something: its own items, if it has any, follow.
        Value::Map(pairs) => {
            for _ in 0..pairs.saturating_mul(2) {
                at.skip().ok()?;
            }
            return Some(ExtraKeys::Other);
        }
        _ => return Some(ExtraKeys::Other),
    };
    let first = *at;
    for _ in 0..items {
        at.skip().ok()?;
    }
    let mut first = first;
    Some(match items {
        0 => ExtraKeys::None,
        1 => match first.value().ok()? {
            Value::Text(text) => {
                std::str::from_utf8(text).map_or(ExtraKeys::Other, |text| ExtraKeys::Text(text.to_owned()))
            }
            _ => ExtraKeys::Other,
        },
        _ => ExtraKeys::Other,
    })
}
