//! Ids of texts seen before, by hash.
//!
//! A chat prompt grows at its end: the text between two special tokens of an earlier turn comes again unchanged in each
//! later request. Cutting at the start of a special token is exact (see [`Match::exact_cut`](super::added::Match)), so
//! the ids of such a unit are the same wherever it stands.
//!
//! An entry is found by an XXH3-128 of the unit, seeded with and combined with the tokenizer's digest, and by the unit's
//! length.

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::artifact::TokenizerDigest;
use crate::memo::{Key, Memo};

/// Shorter texts are encoded faster than they are looked up.
const MIN_UNIT_BYTES: usize = 48;

/// A bounded memory of encoded units, for any number of tokenizers.
pub(super) type Units = Memo<Box<[u32]>>;

/// The key of a unit, or `None` if units of its length are not remembered.
pub(super) fn key(units: &Units, digest: TokenizerDigest, unit: &str) -> Option<Key> {
    if !units.is_on() || unit.len() < MIN_UNIT_BYTES {
        return None;
    }
    let hash = xxh3_128_with_seed(unit.as_bytes(), digest.0 as u64) ^ digest.0;
    Some(Key { hash, bytes: unit.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_a_key_of_its_own_under_each_tokenizer() {
        let unit = "<|start|>user: this is a turn of a conversation that goes on<|end|>";
        let [on, off] = [10_000, 0].map(Units::new);
        let (digest, other) = (TokenizerDigest(7), TokenizerDigest(8));
        assert_eq!(key(&on, digest, unit), key(&on, digest, unit));
        assert_ne!(key(&on, digest, unit), key(&on, other, unit));
        assert_eq!(key(&on, digest, "short"), None);
        assert_eq!(key(&off, digest, unit), None);
    }
}
