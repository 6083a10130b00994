//! What SGLang's events have that vLLM's have not.
//!
//! Arrays up to 0.5.19, with defaults left out at the end up to 0.5.16 and sent as nil after it; maps from 0.5.20. In
//! 0.5.18 and 0.5.19 a salted block has a map where vLLM has the adapter's name. Models with bigram keys send tokens as
//! overlapping pairs. Up to 0.5.5 a page's key is [`tuple_hash`](super::python_hash::tuple_hash) of its tokens, whatever
//! is before it; [`chaining`](super::chaining) tells these. `README.md` has the versions.

use super::BlockStored;
use super::layout::{Dialect, Field, Name};
use super::msgpack::{Cursor, Value};

/// What SGLang writes.
pub const DIALECT: Dialect = Dialect { pairs: true, digests: false, metadata: true };

/// The keys of its maps that vLLM's have not.
pub const NAMES: &[Name] = &[("cache_salt", Field::CacheSalt)];

/// Passes over `[token, the one after it]`. A page of pairs ends in the token that follows the page, so its key depends on
/// more than the page's own tokens: a prompt that goes on with another token does not find it.
pub fn pair(at: &mut Cursor<'_>) -> Option<()> {
    for _ in 0..2 {
        let Value::Unsigned(id) = at.value().ok()? else { return None };
        u32::try_from(id).ok()?;
    }
    Some(())
}

/// Reads `{cache_salt}`; whatever else such a map may say of a block one day, it is not a plain one.
pub fn metadata(at: &mut Cursor<'_>, event: &mut BlockStored) -> Option<()> {
    at.skip().ok()?;
    event.salted = true;
    Some(())
}
