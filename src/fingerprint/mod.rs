//! Token ids to a block chain.
//!
//! In: token ids and a block size in tokens. Out: one [`PrefixHash`] for every full block, each covering everything
//! from the start of the prompt to the end of its block. A partial tail is dropped. Nothing else is mixed in: not the
//! model, the tenant, the adapter or the block size.
//!
//! The format is the one of the public `inferencecache.v1alpha1` contract, which takes it from SMG's event tree:
//! XXH3-64 with seed 1337, over the block's ids as u32 little-endian for the content hash, and over the previous prefix
//! hash and the content hash, both u64 little-endian, for the prefix hash. The first block's prefix hash is its content
//! hash. On the wire a hash is 8 bytes, big-endian.

mod mix;

use std::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of both hashing steps.
const SEED: u64 = 1337;

/// Hash of one block's tokens alone, wherever the block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentHash(pub u64);

/// Hash of everything up to and including a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixHash(pub u64);

/// Tokens in a full block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSize(NonZeroU32);

/// A block size outside 1 to [`BlockSize::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBlockSize(pub u64);

/// The content hash of one block of token ids.
pub fn content_hash(block: &[u32]) -> ContentHash {
    let mut hasher = Block::default();
    ContentHash(hasher.hash(block))
}

/// The prefix hashes of the full blocks of `token_ids`, in order.
///
/// `parent` is the prefix hash of the block before the first one, where these tokens continue a longer prompt.
pub fn prefix_hashes(
    token_ids: &[u32],
    block_size: BlockSize,
    parent: Option<PrefixHash>,
) -> impl Iterator<Item = PrefixHash> {
    let mut hasher = Block::default();
    let mut previous = parent;
    token_ids.chunks_exact(block_size.tokens()).map(move |block| {
        let content = ContentHash(hasher.hash(block));
        let prefix = match previous {
            None => PrefixHash(content.0),
            Some(parent) => parent.extended_by(content),
        };
        previous = Some(prefix);
        prefix
    })
}

// === impl PrefixHash ===

impl PrefixHash {
    /// The prefix hash one block further on.
    pub fn extended_by(self, content: ContentHash) -> PrefixHash {
        PrefixHash(mix::hash_of_pair(self.0, content.0, SEED))
    }

    /// The wire form: 8 bytes, big-endian.
    pub fn to_wire(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

// === impl BlockSize ===

impl BlockSize {
    /// The largest block size accepted.
    pub const MAX: u32 = 65_536;
    /// What vLLM and the contract's server use unless told otherwise.
    pub const DEFAULT: BlockSize = BlockSize(NonZeroU32::MIN.saturating_add(15));

    /// A block size in tokens.
    ///
    /// # Errors
    /// When `tokens` is 0 or above [`BlockSize::MAX`].
    pub fn try_new(tokens: u64) -> Result<BlockSize, InvalidBlockSize> {
        u32::try_from(tokens)
            .ok()
            .filter(|tokens| *tokens <= Self::MAX)
            .and_then(NonZeroU32::new)
            .map(BlockSize)
            .ok_or(InvalidBlockSize(tokens))
    }

    /// Tokens in a block.
    pub fn tokens(self) -> usize {
        self.0.get() as usize
    }
}

impl std::fmt::Display for InvalidBlockSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block_size is {}, allowed are 1 to {} tokens", self.0, BlockSize::MAX)
    }
}

impl std::error::Error for InvalidBlockSize {}

/// One block's bytes, kept between blocks so that a chain allocates once.
#[derive(Default)]
struct Block(Vec<u8>);

// === impl Block ===

impl Block {
    fn hash(&mut self, block: &[u32]) -> u64 {
        if let Some(hash) = mix::hash(block, SEED) {
            return hash;
        }
        self.0.resize(size_of_val(block), 0);
        for (bytes, id) in self.0.as_chunks_mut().0.iter_mut().zip(block) {
            *bytes = id.to_le_bytes();
        }
        xxh3_64_with_seed(&self.0, SEED)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_is_hashed_as_the_library_does_it(ids in prop::collection::vec(any::<u32>(), 0..70), seed in any::<u64>()) {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let expected = mix::IDS.contains(&ids.len()).then(|| xxh3_64_with_seed(&bytes, seed));
            prop_assert_eq!(mix::hash(&ids, seed), expected);
            prop_assert_eq!(content_hash(&ids).0, xxh3_64_with_seed(&bytes, SEED));
        }

        #[test]
        fn a_hash_is_extended_as_the_library_does_it(first in any::<u64>(), last in any::<u64>(), seed in any::<u64>()) {
            let bytes = [first.to_le_bytes(), last.to_le_bytes()].concat();
            prop_assert_eq!(mix::hash_of_pair(first, last, seed), xxh3_64_with_seed(&bytes, seed));
        }
    }

    fn block_size(tokens: u64) -> BlockSize {
        BlockSize::try_new(tokens).unwrap()
    }

    #[test]
    fn first_block_without_parent_is_its_content_hash() {
        let ids: Vec<u32> = (1..=16).collect();
        let chain: Vec<_> = prefix_hashes(&ids, BlockSize::DEFAULT, None).collect();
        assert_eq!(chain, [PrefixHash(16_863_443_419_780_771_464)]);
        assert_eq!(content_hash(&ids), ContentHash(16_863_443_419_780_771_464));
    }

    #[test]
    fn a_chain_split_in_two_continues_from_its_parent() {
        let ids: Vec<u32> = (0..64).collect();
        let whole: Vec<_> = prefix_hashes(&ids, block_size(16), None).collect();
        let head: Vec<_> = prefix_hashes(&ids[..32], block_size(16), None).collect();
        let tail: Vec<_> = prefix_hashes(&ids[32..], block_size(16), Some(head[1])).collect();
        assert_eq!(whole, [head, tail].concat());
    }

    #[test]
    fn a_partial_tail_is_dropped() {
        let ids: Vec<u32> = (0..10).collect();
        assert_eq!(prefix_hashes(&ids, block_size(16), None).count(), 0);
    }

    #[test]
    fn block_sizes_out_of_range_are_refused() {
        assert_eq!(BlockSize::try_new(0), Err(InvalidBlockSize(0)));
        assert_eq!(BlockSize::try_new(65_537), Err(InvalidBlockSize(65_537)));
        assert_eq!(BlockSize::DEFAULT.tokens(), 16);
    }
}
