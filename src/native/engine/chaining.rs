//! Whether a block's key stands for its whole prefix, and whether no parent means the start of a prompt.
//!
//! Every engine chains its keys but SGLang up to 0.5.5, whose keys are recognized by what they are: the hash of the page's
//! own tokens. There a missing parent says nothing (from 0.5.1 on every node of the tree begins with one), and the start
//! of a prompt, up to 0.4.10, has the hash of no tokens for a parent.

use super::python_hash::tuple_hash;
use super::{BlockStored, EngineKey};

/// What stands before an event's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before<'a> {
    /// Nothing: they start a prompt.
    Nothing,
    /// The block with this key.
    Block(&'a EngineKey),
    /// It is not said.
    NotSaid,
}

/// How an event's keys are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chaining<'a> {
    /// Whether they stand for their block alone.
    pub is_unchained: bool,
    /// What comes before the first block.
    pub before: Before<'a>,
}

// === impl Chaining ===

impl<'a> Chaining<'a> {
    /// Of `event`.
    pub fn of(event: &'a BlockStored) -> Chaining<'a> {
        let is_unchained = is_unchained(event);
        let before = match &event.parent_block_hash {
            None if is_unchained => Before::NotSaid,
            None => Before::Nothing,
            Some(EngineKey::Int(key)) if is_unchained && *key == tuple_hash(&[]) => Before::Nothing,
            Some(key) => Before::Block(key),
        };
        Chaining { is_unchained, before }
    }
}

fn is_unchained(event: &BlockStored) -> bool {
    let Ok(block_size @ 1..) = usize::try_from(event.block_size) else { return false };
    let mut blocks = event.block_hashes.iter().zip(event.token_ids.chunks(block_size));
    blocks.any(|(key, token_ids)| matches!(key, EngineKey::Int(key) if *key == tuple_hash(token_ids)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: i64, parent: Option<i64>, token_ids: &[u32]) -> BlockStored {
        BlockStored {
            block_hashes: vec![EngineKey::Int(key.cast_unsigned())],
            parent_block_hash: parent.map(|key| EngineKey::Int(key.cast_unsigned())),
            token_ids: token_ids.to_vec(),
            block_size: token_ids.len() as u64,
            ..BlockStored::default()
        }
    }

    #[test]
    fn a_page_with_pythons_hash_of_its_tokens_is_not_chained() {
        let tokens = [1, 2, 3, 4];
        let page = 590_899_387_183_067_792;
        let start = event(page, Some(5_740_354_900_026_072_187), &tokens);
        assert_eq!(Chaining::of(&start), Chaining { is_unchained: true, before: Before::Nothing });
        let anywhere = event(page, None, &tokens);
        assert_eq!(Chaining::of(&anywhere), Chaining { is_unchained: true, before: Before::NotSaid });
        let after = event(page, Some(-7), &tokens);
        let before = Before::Block(&EngineKey::Int(7_u64.wrapping_neg()));
        assert_eq!(Chaining::of(&after), Chaining { is_unchained: true, before });
    }

    /// vLLM up to 0.10.0: `hash((hash of the parent, tokens, extra keys))`.
    #[test]
    fn pythons_hash_of_parent_and_tokens_is_chained() {
        let start = event(VLLM_ROOT, None, &[1, 2, 3, 4]);
        assert_eq!(Chaining::of(&start), Chaining { is_unchained: false, before: Before::Nothing });
        let other = event(590_899_387_183_067_792, None, &[1, 2, 3, 5]);
        assert_eq!(Chaining::of(&other).before, Before::Nothing);
    }

    /// `hash((0, (1, 2, 3, 4), 0))`, printed by CPython 3.11.
    const VLLM_ROOT: i64 = 1_698_773_298_988_553_870;
}
