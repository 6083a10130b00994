//! The engine's own block keys.
//!
//! As in vLLM: a key is 32 bytes, chained over a block's tokens and its parent's key, and the chain starts from a root
//! drawn at random when the process starts. So two engines, or one engine before and after a restart, never have a
//! key in common, and nobody outside can compute one. Published either whole or as its low 64 bits.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The key of one block and of all blocks before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineKey {
    high: u128,
    low: u128,
}

// === impl EngineKey ===

impl EngineKey {
    /// A chain's root: stands before every first block and is never published.
    ///
    /// `RandomState` is the standard library's source of random keys, good enough for keys that only have to differ.
    pub fn random_root() -> EngineKey {
        let random = RandomState::new();
        let word = |n: u8| u128::from(random.hash_one(n));
        EngineKey { high: (word(0) << 64) | word(1), low: (word(2) << 64) | word(3) }
    }

    /// The root of chains that a LoRA adapter computes: its name goes into every key, so it has none in common with another
    /// adapter or with the model.
    pub fn of_adapter(&self, name: &str) -> EngineKey {
        let mut bytes = self.to_bytes().to_vec();
        bytes.extend_from_slice(name.as_bytes());
        EngineKey { high: xxh3_128_with_seed(&bytes, 2), low: xxh3_128_with_seed(&bytes, 3) }
    }

    /// The key of the block with these tokens after the block with this key.
    pub fn child(&self, block: &[u32]) -> EngineKey {
        let mut bytes = Vec::with_capacity(32 + block.len() * 4);
        bytes.extend_from_slice(&self.to_bytes());
        bytes.extend(block.iter().flat_map(|id| id.to_le_bytes()));
        EngineKey { high: xxh3_128_with_seed(&bytes, 0), low: xxh3_128_with_seed(&bytes, 1) }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_64_is_the_last_8_bytes() {
        let key = EngineKey::random_root().child(&[1, 2, 3]);
        assert_eq!(key.low_64().to_be_bytes(), key.to_bytes()[24..]);
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
    }
}
