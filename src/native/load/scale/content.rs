//! What the replicas of a large pool hold: conversations, each of one replica, under system prompts that all share.
//!
//! A prompt is one of [`SYSTEM_PROMPTS`] system prompts and a part of its own, of 30 to 150 blocks. Everything is made
//! from its numbers, so that nothing has to be kept: token ids, the engine's keys, the lengths. Pure.

use crate::fingerprint::{BlockSize, prefix_hashes};
use crate::native::fake::engine_key::EngineKey;
use crate::native::fake::events::KvEvent;

/// Tokens in a block.
pub const BLOCK_TOKENS: usize = 16;
/// System prompts, which every replica holds.
pub const SYSTEM_PROMPTS: u64 = 16;
/// Blocks of a system prompt.
pub const SYSTEM_BLOCKS: usize = 32;
/// The fewest blocks that a conversation has of its own, and the most.
const OWN_BLOCKS: [u64; 2] = [30, 150];
/// Token ids are below this, as in a vocabulary of today.
const VOCABULARY: u64 = 128_000;

/// A conversation, by its replica's place and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The place of the replica that holds it.
    pub replica: usize,
    /// Its number, counted from 0 as the replica came to hold it.
    pub number: u64,
}

// === impl Conversation ===

impl Conversation {
    /// Blocks of its own.
    pub fn own_blocks(&self) -> usize {
        let [fewest, most] = OWN_BLOCKS;
        (fewest + self.random(u64::MAX) % (most - fewest + 1)) as usize
    }

    /// Tokens of the whole prompt, which is full blocks only.
    pub fn tokens(&self) -> usize {
        (SYSTEM_BLOCKS + self.own_blocks()) * BLOCK_TOKENS
    }

    /// The ids of its own part.
    pub fn own_ids(&self) -> Vec<u32> {
        (0..self.own_blocks() * BLOCK_TOKENS).map(|place| token_id(self.random(place as u64))).collect()
    }

    /// The ids of the whole prompt.
    pub fn token_ids(&self) -> Vec<u32> {
        let mut ids = system_ids(self.number);
        ids.extend(self.own_ids());
        ids
    }

    /// The whole prompt's block hashes, as a request's header has them.
    pub fn hashes_header(&self) -> String {
        prefix_hashes(&self.token_ids(), BlockSize::DEFAULT, None).map(|hash| format!("{:016x}", hash.0)).collect()
    }

    fn random(&self, place: u64) -> u64 {
        mixed(mixed(self.replica as u64 + 1) ^ mixed(self.number.wrapping_add(1 << 32)) ^ mixed(place))
    }
}

/// The ids of the system prompt of the conversation with this number.
pub fn system_ids(number: u64) -> Vec<u32> {
    let prompt = number % SYSTEM_PROMPTS;
    let id = |place: usize| token_id(mixed(mixed(prompt) ^ place as u64));
    (0..SYSTEM_BLOCKS * BLOCK_TOKENS).map(id).collect()
}

/// The engine's keys of these blocks after `parent`.
pub fn engine_keys(parent: EngineKey, ids: &[u32]) -> Vec<EngineKey> {
    let chain = ids.chunks_exact(BLOCK_TOKENS).scan(parent, |last, block| {
        *last = last.child(block);
        Some(*last)
    });
    chain.collect()
}

/// What an engine says of these blocks; `parent` is the key before them, none at the start of a prompt.
pub fn stored(keys: Vec<EngineKey>, parent: Option<EngineKey>, token_ids: Vec<u32>) -> KvEvent {
    KvEvent::BlockStored { keys, parent, token_ids, block_size: BLOCK_TOKENS, lora: None, salt: None }
}

/// A number that looks random: the finalizer of SplitMix64.
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn token_id(random: u64) -> u32 {
    (random % VOCABULARY) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn prompts_are_whole_blocks_and_differ_after_their_system_prompt() {
        let all = (0..4).flat_map(|replica| (0..64).map(move |number| Conversation { replica, number }));
        let mut own = HashSet::new();
        for conversation in all {
            let ids = conversation.token_ids();
            assert_eq!(ids.len(), conversation.tokens());
            assert!((30..=150).contains(&conversation.own_blocks()));
            assert!(ids.starts_with(&system_ids(conversation.number)));
            assert!(own.insert(ids[SYSTEM_BLOCKS * BLOCK_TOKENS..][..BLOCK_TOKENS].to_vec()), "{conversation:?}");
        }
    }

    #[test]
    fn keys_are_chained_over_the_parent() {
        let root = EngineKey::random_root();
        let ids = Conversation { replica: 1, number: 2 }.token_ids();
        let keys = engine_keys(root, &ids);
        let rest = engine_keys(keys[SYSTEM_BLOCKS - 1], &ids[SYSTEM_BLOCKS * BLOCK_TOKENS..]);
        assert_eq!(keys[SYSTEM_BLOCKS..], rest);
    }
}
