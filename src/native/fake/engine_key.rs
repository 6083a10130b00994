//! The engine's own block keys.
//!
//! As in vLLM: a key is 32 bytes, chained over a block's tokens and its parent's key, and the chain starts from a root
//! drawn at random when the process starts. So two engines, or one engine before and after a restart, never have a
//! key in common, and nobody outside can compute one. Published whole, as its low or its high 64 bits, or, as by engines
//! whose keys are not chained, as the hash of the block's own tokens.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::native::engine::python_hash::tuple_hash;

/// The key of one block and of all blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineKey {
    high: u128,
    low: u128,
    /// Of the block's own tokens, as SGLang up to 0.5.5 names it.
    page: u64,
}

// === impl EngineKey ===

impl EngineKey {
    /// A chain's root: stands before every first block and is never published.
    ///
    /// `RandomState` is the standard library's source of random keys, good enough for keys that only have to differ.
    pub fn random_root() -> EngineKey {
        let random = RandomState::new();
        let word = |n: u8| u128::from(random.hash_one(n));
        EngineKey { high: (word(0) << 64) | word(1), low: (word(2) << 64) | word(3), page: tuple_hash(&[]) }
    }

    /// The root of chains that a LoRA adapter computes: its name goes into every key, so it has none in common with another
    /// adapter or with the model.
    pub fn of_adapter(&self, name: &str) -> EngineKey {
        self.of_namespace(name, 2)
    }

    /// The root of chains of requests with this salt, which have none in common with others.
    pub fn of_salt(&self, salt: &str) -> EngineKey {
        self.of_namespace(salt, 4)
    }

    fn of_namespace(&self, name: &str, seed: u64) -> EngineKey {
        let mut bytes = self.to_bytes().to_vec();
        bytes.extend_from_slice(name.as_bytes());
        let (high, low) = (xxh3_128_with_seed(&bytes, seed), xxh3_128_with_seed(&bytes, seed + 1));
        EngineKey { high, low, page: self.page }
    }

    /// The key of the block with these tokens after the block with this key.
    pub fn child(&self, block: &[u32]) -> EngineKey {
        let mut bytes = Vec::with_capacity(32 + block.len() * 4);
        bytes.extend_from_slice(&self.to_bytes());
        bytes.extend(block.iter().flat_map(|id| id.to_le_bytes()));
        EngineKey { high: xxh3_128_with_seed(&bytes, 0), low: xxh3_128_with_seed(&bytes, 1), page: tuple_hash(block) }
    }

    /// The 32 bytes.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let (high, low) = bytes.split_at_mut(16);
        high.copy_from_slice(&self.high.to_be_bytes());
        low.copy_from_slice(&self.low.to_be_bytes());
        bytes
    }

    /// The low 64 bits: the last 8 of the 32 bytes, read big-endian.
    pub fn low_64(self) -> u64 {
        (self.low & u128::from(u64::MAX)) as u64
    }

    /// The first 8 of the 32 bytes, read big-endian with a sign.
    pub fn high_64(self) -> i64 {
        (self.high >> 64) as u64 as i64
    }

    /// Python's hash of the block's own tokens; of none for a root.
    pub fn page_hash(self) -> i64 {
        self.page.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_key_is_the_last_or_the_first_8_bytes() {
        let key = EngineKey::random_root().child(&[1, 2, 3]);
        assert_eq!(key.low_64().to_be_bytes(), key.to_bytes()[24..]);
        assert_eq!(key.high_64().to_be_bytes(), key.to_bytes()[..8]);
    }

    #[test]
    fn keys_depend_on_root_parent_and_tokens() {
        let (a, b) = (EngineKey::random_root(), EngineKey::random_root());
        assert_ne!(a, b);
        assert_ne!(a.child(&[1]), b.child(&[1]));
        assert_ne!(a.child(&[1]), a.child(&[2]));
        assert_ne!(a.child(&[1]), a.child(&[1]).child(&[1]));
        assert_eq!(a.child(&[1]), a.child(&[1]));
        assert_ne!(a.of_adapter("x").child(&[1]), a.child(&[1]));
        assert_ne!(a.of_adapter("x").child(&[1]), a.of_adapter("y").child(&[1]));
        assert_ne!(a.of_adapter("x").child(&[1]), a.of_salt("x").child(&[1]));
        assert_eq!(a.child(&[1]).page_hash(), b.child(&[7]).child(&[1]).page_hash());
    }
}
