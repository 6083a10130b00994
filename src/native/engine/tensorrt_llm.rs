//! What TensorRT-LLM's events have that vLLM's have not.
//!
//! Its native publisher sends vLLM's batches: an array of maps tagged by `type`, for the attention group with the largest
//! window alone, full blocks only, the rank always there. Where an image is, `token_ids` has the image's digest as text in
//! place of a number, and `mm_keys` names the images block by block. Its older interface, events pulled from the engine
//! as JSON (`created`, `stored`, `removed`, `updated`), never leaves the process by itself and is not read here.

use super::ExtraKeys;
use super::layout::{Dialect, Field, Name};
use super::msgpack::{Cursor, Value};

/// What TensorRT-LLM writes.
pub const DIALECT: Dialect = Dialect { pairs: false, digests: true, metadata: false };

/// The keys of its maps that vLLM's have not.
pub const NAMES: &[Name] = &[("mm_keys", Field::MmKeys)];

/// The images in one block: a list of maps, empty for a block of text.
pub fn mm_keys(value: Value<'_>, at: &mut Cursor<'_>) -> Option<ExtraKeys> {
    let items = match value {
        Value::Nil => 0,
        Value::List(items) => items,
        _ => return None,
    };
    for _ in 0..items {
        at.skip().ok()?;
    }
    Some(if items == 0 { ExtraKeys::None } else { ExtraKeys::Other })
}
