//! A request's block chain as the walk reads it.

use crate::index::runs::key::KeyRef;
use crate::observation::BlockKey;
use crate::request::ChainBlock;

/// The blocks of a request, in order.
pub trait Chain {
    /// Number of blocks.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of a block.
    fn key(&self, at: usize) -> Option<KeyRef<'_>>;

    /// Tokens of the blocks from `from` to before `until`.
    fn tokens(&self, from: usize, until: usize) -> i64;

    /// Whether every key is known to be the prefix hash of the prompt up to its block: computed here from token ids, and
    /// not read from a request. Only then does an equal key prove the ones before it.
    fn is_proven(&self) -> bool;

    /// Whether all blocks have the same number of tokens, so that [`Chain::tokens`] costs the same for all lengths.
    fn all_alike(&self) -> bool {
        false
    }

    /// The keys as hashes in a row, if they are kept like that.
    fn hashes(&self) -> Option<&[u64]> {
        None
    }
}

/// Prefix hashes computed from token ids, all blocks of one size.
#[derive(Clone, Copy, Debug)]
pub struct PrefixHashes<'a> {
    /// The hashes.
    pub hashes: &'a [u64],
    /// Tokens in a block.
    pub block_size: u32,
}

/// The blocks of a request as [`RequestChain`](crate::request::RequestChain) has them.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The blocks.
    pub blocks: &'a [ChainBlock],
    /// See [`Chain::is_proven`]. False for keys that a request brought along: they are compared one by one, since a key
    /// that was stored says nothing about what a request puts before it.
    pub proven: bool,
}

/// Keys without tokens, for what does not count them. Nothing is known of what they stand for.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a>(pub &'a [BlockKey]);

// === impl PrefixHashes ===

impl Chain for PrefixHashes<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.hashes.len()
    }

    #[inline]
    fn key(&self, at: usize) -> Option<KeyRef<'_>> {
        self.hashes.get(at).map(|hash| KeyRef::Hash(*hash))
    }

    fn tokens(&self, from: usize, until: usize) -> i64 {
        i64::from(self.block_size).saturating_mul(until.saturating_sub(from) as i64)
    }

    fn is_proven(&self) -> bool {
        true
    }

    fn all_alike(&self) -> bool {
        true
    }

    fn hashes(&self) -> Option<&[u64]> {
        Some(self.hashes)
    }
}

// === impl Blocks ===

impl Chain for Blocks<'_> {
    fn len(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    fn key(&self, at: usize) -> Option<KeyRef<'_>> {
        self.blocks.get(at).map(|block| KeyRef::from(&block.key))
    }

    fn tokens(&self, from: usize, until: usize) -> i64 {
        self.blocks.get(from..until).unwrap_or_default().iter().map(|block| i64::from(block.tokens)).sum()
    }

    fn is_proven(&self) -> bool {
        self.proven
    }
}

// === impl Keys ===

impl Chain for Keys<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&self, at: usize) -> Option<KeyRef<'_>> {
        self.0.get(at).map(KeyRef::from)
    }

    fn tokens(&self, _: usize, _: usize) -> i64 {
        0
    }

    fn is_proven(&self) -> bool {
        false
    }
}
