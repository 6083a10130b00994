//! Ids of texts seen before, by hash.
//!
//! A chat prompt grows at its end: the text between two special tokens of an earlier turn comes again unchanged in each
//! later request. Cutting at the start of a special token is exact (see [`Match::exact_cut`](super::added::Match)), so
//! the ids of such a unit are the same wherever it stands.
//!
//! An entry is found by an XXH3-128 of the unit, seeded with and combined with the tokenizer's digest, and by the unit's
//! length; the text itself is not kept. Memory is bounded in bytes: entries live in two generations, the older of which
//! is dropped when the younger is full, and a hit moves an entry to the younger.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::artifact::TokenizerDigest;

/// Shorter texts are encoded faster than they are looked up.
const MIN_UNIT_BYTES: usize = 48;
/// What an entry takes beside its ids, in bytes: slot, allocation, table load.
const ENTRY_BYTES: usize = 80;
/// One entry takes at most this part of a generation.
const LARGEST_SHARE: usize = 4;

/// A bounded memory of encoded units, for any number of tokenizers.
pub(super) struct Memo {
    young: Generation,
    old: Generation,
    max_bytes: usize,
    generation_bytes: usize,
}

/// Stands for a unit of text under a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnitKey {
    hash: u128,
    bytes: usize,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<UnitKey, Box<[u32]>>,
    bytes: usize,
}

// === impl Memo ===

impl Memo {
    /// A memo of at most `max_bytes`; of 0 bytes it remembers nothing.
    pub(super) fn new(max_bytes: usize) -> Memo {
        let (young, old) = (Generation::default(), Generation::default());
        Memo { young, old, max_bytes, generation_bytes: max_bytes / 2 }
    }

    /// The bound.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The key of a unit, or `None` if units of its length are not remembered.
    pub(super) fn key(&self, digest: TokenizerDigest, unit: &str) -> Option<UnitKey> {
        if self.generation_bytes == 0 || unit.len() < MIN_UNIT_BYTES {
            return None;
        }
        let hash = xxh3_128_with_seed(unit.as_bytes(), digest.0 as u64) ^ digest.0;
        Some(UnitKey { hash, bytes: unit.len() })
    }

    /// The ids remembered.
    pub(super) fn get(&mut self, key: UnitKey) -> Option<&[u32]> {
        if let Some(ids) = self.old.remove(key) {
            self.insert(key, ids);
        }
        self.young.entries.get(&key).map(AsRef::as_ref)
    }

    /// Remembers ids, unless they are too many.
    pub(super) fn remember(&mut self, key: UnitKey, ids: &[u32]) {
        if size(ids) <= self.generation_bytes / LARGEST_SHARE {
            self.insert(key, ids.into());
        }
    }

    /// Bytes held, as far as they are counted.
    pub(super) fn bytes(&self) -> usize {
        self.young.bytes + self.old.bytes
    }

    fn insert(&mut self, key: UnitKey, ids: Box<[u32]>) {
        if self.young.bytes + size(&ids) > self.generation_bytes {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, ids);
    }
}

// === impl Generation ===

impl Generation {
    fn insert(&mut self, key: UnitKey, ids: Box<[u32]>) {
        self.bytes += size(&ids);
        if let Some(before) = self.entries.insert(key, ids) {
            self.bytes -= size(&before);
        }
    }

    fn remove(&mut self, key: UnitKey) -> Option<Box<[u32]>> {
        let ids = self.entries.remove(&key)?;
        self.bytes -= size(&ids);
        Some(ids)
    }
}

fn size(ids: &[u32]) -> usize {
    ENTRY_BYTES + size_of_val(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: TokenizerDigest = TokenizerDigest(7);

    fn unit(number: usize) -> String {
        format!("<|start|>user: this is turn {number} of a conversation that goes on<|end|>")
    }

    #[test]
    fn what_was_remembered_comes_back_under_the_same_tokenizer_only() {
        let mut memo = Memo::new(10_000);
        let key = memo.key(DIGEST, &unit(1)).unwrap();
        memo.remember(key, &[1, 2, 3]);
        assert_eq!(memo.get(key), Some(&[1, 2, 3][..]));
        let other = memo.key(TokenizerDigest(8), &unit(1)).unwrap();
        assert_eq!(memo.get(other), None);
        assert_eq!(memo.key(DIGEST, "short"), None);
        assert_eq!(Memo::new(0).key(DIGEST, &unit(1)), None);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut memo = Memo::new(20_000);
        let hot = memo.key(DIGEST, &unit(0)).unwrap();
        memo.remember(hot, &[9; 30]);
        for number in 1..2_000 {
            let key = memo.key(DIGEST, &unit(number)).unwrap();
            memo.remember(key, &vec![1; number % 100]);
            assert!(memo.bytes() <= 20_000);
            assert!(memo.get(hot).is_some(), "after {number}");
        }
        assert_eq!(memo.get(memo.key(DIGEST, &unit(1)).unwrap()), None);
        let counted = memo.bytes();
        let large = memo.key(DIGEST, &unit(5_000)).unwrap();
        memo.remember(large, &[0; 1_000]);
        assert_eq!(memo.get(large), None);
        assert_eq!(memo.bytes(), counted);
    }
}
