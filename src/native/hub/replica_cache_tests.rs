//! Cases, and a seeded comparison with a model that keeps whole prompts instead of hashes.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::native::engine::ExtraKeys;

const BASE: ScopeSlot = ScopeSlot(1);

/// Applies events and folds the changes they give, as a subscriber would.
#[derive(Default)]
struct Folded {
    cache: ReplicaCache,
    held: BTreeSet<(ScopeSlot, PrefixHash)>,
    tally: Tally,
    changes: usize,
    stored: Vec<Chained>,
}

impl Folded {
    fn apply(&mut self, event: KvEvent) {
        let mut changes = Vec::new();
        let mut scope_of = |adapter: &str| Some(if adapter.is_empty() { BASE } else { ScopeSlot(2) });
        self.cache.apply(&event, 1, &mut scope_of, &mut changes, &mut self.tally);
        self.changes += changes.len();
        for change in changes {
            match change {
                Change::Stored(stored) => {
                    self.held.extend(stored.blocks.iter().map(|(hash, _)| (stored.scope, *hash)));
                    self.stored.push(stored);
                }
                Change::Removed(scope, hashes) => {
                    for hash in hashes {
                        assert!(self.held.remove(&(scope, hash)), "removed what was not held");
                    }
                }
                Change::Cleared => self.held.clear(),
            }
        }
        let own: BTreeSet<_> = self.cache.held().map(|(scope, hash, _)| (scope, hash)).collect();
        assert_eq!(own, self.held, "a subscriber's view differs");
    }

    fn skipped(&self, reason: SkipReason) -> u64 {
        self.tally.skipped.get(&reason).copied().unwrap_or(0)
    }
}

fn key(number: u64) -> EngineKey {
    EngineKey::Int(number)
}

fn stored(keys: &[u64], parent: Option<u64>, token_ids: &[u32]) -> KvEvent {
    KvEvent::BlockStored(BlockStored {
        block_hashes: keys.iter().copied().map(key).collect(),
        parent_block_hash: parent.map(key),
        token_ids: token_ids.to_vec(),
        block_size: 2,
        ..BlockStored::default()
    })
}

fn removed(keys: &[u64]) -> KvEvent {
    let block_hashes = keys.iter().copied().map(key).collect();
    KvEvent::BlockRemoved(BlockRemoved { block_hashes, ..BlockRemoved::default() })
}

fn prefixes(token_ids: &[u32]) -> Vec<(ScopeSlot, PrefixHash)> {
    prefixes_in(BASE, token_ids)
}

fn prefixes_in(scope: ScopeSlot, token_ids: &[u32]) -> Vec<(ScopeSlot, PrefixHash)> {
    prefix_hashes(token_ids, BlockSize::try_new(2).unwrap(), None).map(|hash| (scope, hash)).collect()
}

#[test]
fn a_chain_in_two_events_is_the_chain_of_the_whole_prompt() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1, 2], None, &[1, 2, 3, 4]));
    folded.apply(stored(&[3], Some(2), &[5, 6]));
    assert_eq!(folded.held, prefixes(&[1, 2, 3, 4, 5, 6]).into_iter().collect());
    let deepest = folded.cache.held().map(|(_, _, block)| block.token_count).max();
    assert_eq!(deepest, Some(6));
}

#[test]
fn each_change_says_where_it_goes_on() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1, 2], None, &[1, 2, 3, 4]));
    folded.apply(stored(&[3], Some(2), &[5, 6]));
    // The last block's key is another one's: what comes before it and after it are two changes.
    folded.apply(stored(&[4, 2], Some(3), &[7, 8, 9, 10]));
    let hashes: Vec<PrefixHash> =
        prefixes(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).into_iter().map(|(_, hash)| hash).collect();
    let chained = |at: std::ops::Range<usize>| {
        let parent = at.start.checked_sub(1).map(|before| hashes[before]);
        Chained { scope: BASE, parent, blocks: at.map(|at| (hashes[at], 2 * (at as u32 + 1))).collect() }
    };
    assert_eq!(folded.stored, [chained(0..2), chained(2..3), chained(3..4), chained(4..5)]);
    assert!(!folded.held.contains(&(BASE, hashes[1])), "the key that was used again gave it up");
}

#[test]
fn an_unknown_parent_is_never_a_root() {
    let mut folded = Folded::default();
    folded.apply(stored(&[3], Some(2), &[5, 6]));
    folded.apply(stored(&[4, 5], Some(3), &[7, 8, 9, 10]));
    assert!(folded.held.is_empty());
    assert_eq!(folded.skipped(SkipReason::UnknownParent), 3);
}

#[test]
fn a_parent_that_was_removed_is_unknown() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1], None, &[1, 2]));
    folded.apply(removed(&[1]));
    folded.apply(stored(&[2], Some(1), &[3, 4]));
    assert!(folded.held.is_empty());
    folded.apply(removed(&[2]));
    assert_eq!(folded.skipped(SkipReason::UnknownBlock), 1);
}

#[test]
fn two_keys_of_one_prefix_count_once_until_both_are_gone() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1], None, &[1, 2]));
    folded.apply(stored(&[9], None, &[1, 2]));
    assert_eq!(folded.cache.len(), 1);
    folded.apply(removed(&[1]));
    assert_eq!(folded.cache.len(), 1);
    folded.apply(removed(&[9]));
    assert!(folded.cache.is_empty());
}

#[test]
fn one_key_stored_twice_is_removed_once() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1], None, &[1, 2]));
    folded.apply(stored(&[1], None, &[1, 2]));
    folded.apply(removed(&[1]));
    assert!(folded.cache.is_empty());
}

#[test]
fn a_key_that_comes_again_for_other_tokens_gives_the_earlier_block_up() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1, 1], None, &[1, 2, 3, 4]));
    assert_eq!(folded.held, prefixes(&[1, 2, 3, 4])[1..].iter().copied().collect());
    folded.apply(stored(&[1], None, &[7, 8]));
    assert_eq!(folded.held, prefixes(&[7, 8]).into_iter().collect());
    assert_eq!(folded.skipped(SkipReason::KeyReused), 2);
}

#[test]
fn smaller_blocks_and_their_children_are_partial() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1], None, &[1, 2]));
    let mut partial = BlockStored { block_hashes: vec![key(2)], token_ids: vec![3], ..BlockStored::default() };
    partial.parent_block_hash = Some(key(1));
    partial.block_size = 1;
    folded.apply(KvEvent::BlockStored(partial));
    folded.apply(stored(&[3], Some(2), &[4, 5]));
    assert_eq!(folded.skipped(SkipReason::BlockSize), 1);
    assert_eq!(folded.skipped(SkipReason::UnknownParent), 1);
    assert_eq!(folded.cache.len(), 1);
}

#[test]
fn an_adapter_has_its_own_scope_and_its_blocks_no_parent_outside() {
    let mut folded = Folded::default();
    let mut lora = BlockStored { block_hashes: vec![key(1)], token_ids: vec![1, 2], ..BlockStored::default() };
    lora.block_size = 2;
    lora.lora_name = Some("sql".into());
    folded.apply(KvEvent::BlockStored(lora));
    assert_eq!(folded.held.first().map(|(scope, _)| *scope), Some(ScopeSlot(2)));
    folded.apply(stored(&[2], Some(1), &[3, 4]));
    assert_eq!(folded.skipped(SkipReason::UnknownParent), 1);
}

#[test]
fn blocks_after_one_with_further_keys_are_skipped_with_their_children() {
    let mut folded = Folded::default();
    let KvEvent::BlockStored(mut event) = stored(&[1, 2], None, &[1, 2, 3, 4]) else { panic!() };
    event.extra_keys = vec![ExtraKeys::None, ExtraKeys::Other];
    folded.apply(KvEvent::BlockStored(event));
    folded.apply(stored(&[3], Some(2), &[5, 6]));
    assert_eq!(folded.cache.len(), 1);
    assert_eq!(folded.skipped(SkipReason::ExtraKeys), 1);
    assert_eq!(folded.skipped(SkipReason::UnknownParent), 1);
}

#[test]
fn a_clear_of_nothing_changes_nothing() {
    let mut folded = Folded::default();
    folded.apply(KvEvent::AllBlocksCleared);
    assert_eq!((folded.changes, folded.tally.cleared), (0, 1));
    folded.apply(stored(&[1], None, &[1, 2]));
    folded.apply(KvEvent::AllBlocksCleared);
    assert!(folded.held.is_empty());
}

/// The engine as a set of prompts: each key stands for the tokens from the start of a prompt.
#[derive(Default)]
struct Naive {
    prompts: BTreeMap<u64, (ScopeSlot, Vec<u32>)>,
    /// Every prompt so far, by its last block's hash.
    by_hash: BTreeMap<PrefixHash, Vec<u32>>,
}

impl Naive {
    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::AllBlocksCleared => self.prompts.clear(),
            KvEvent::BlockRemoved(event) => {
                for key in &event.block_hashes {
                    if let EngineKey::Int(number) = key {
                        self.prompts.remove(number);
                    }
                }
            }
            KvEvent::BlockStored(event) => {
                let scope = if event.lora_name.is_some() { ScopeSlot(2) } else { BASE };
                let mut prompt = match &event.parent_block_hash {
                    None => Vec::new(),
                    Some(EngineKey::Int(parent)) => match self.prompts.get(parent) {
                        Some((of, prompt)) if *of == scope => prompt.clone(),
                        _ => return,
                    },
                    Some(EngineKey::Bytes(_)) => return,
                };
                let plain = event.extra_keys.iter().position(|keys| *keys == ExtraKeys::Other).unwrap_or(usize::MAX);
                for (key, block) in event.block_hashes.iter().zip(event.token_ids.chunks(2)).take(plain) {
                    prompt.extend_from_slice(block);
                    if let Some((_, hash)) = prefixes(&prompt).pop() {
                        self.by_hash.insert(hash, prompt.clone());
                    }
                    if let EngineKey::Int(number) = key {
                        self.prompts.insert(*number, (scope, prompt.clone()));
                    }
                }
            }
        }
    }

    /// Whether each block is one after the one before it, and the first one after the parent.
    fn is_chain(&self, chained: &Chained) -> bool {
        let mut before = chained.parent.map_or(Vec::new(), |parent| self.by_hash[&parent].clone());
        chained.blocks.iter().all(|(hash, token_count)| {
            let prompt = &self.by_hash[hash];
            let goes_on = prompt.len() == before.len() + 2 && prompt.starts_with(&before);
            before = prompt.clone();
            goes_on && *token_count as usize == prompt.len()
        })
    }

    fn held(&self) -> BTreeSet<(ScopeSlot, PrefixHash)> {
        self.prompts.values().filter_map(|(scope, prompt)| prefixes_in(*scope, prompt).pop()).collect()
    }
}

/// SplitMix64: the same numbers from the same seed on every machine.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    /// Few keys and few tokens, so that keys are reused, prefixes meet and parents are often unknown.
    fn event(&mut self) -> KvEvent {
        match self.below(40) {
            0 => KvEvent::AllBlocksCleared,
            1..=12 => {
                let keys: Vec<u64> = (0..1 + self.below(3)).map(|_| self.below(24)).collect();
                removed(&keys)
            }
            _ => {
                let blocks = 1 + self.below(4);
                let keys: Vec<u64> = (0..blocks).map(|_| self.below(24)).collect();
                let token_ids: Vec<u32> = (0..blocks * 2).map(|_| self.below(3) as u32).collect();
                let parent = (self.below(3) > 0).then(|| self.below(24));
                let KvEvent::BlockStored(mut event) = stored(&keys, parent, &token_ids) else { panic!() };
                if self.below(4) == 0 {
                    event.lora_name = Some("sql".into());
                }
                if self.below(8) == 0 {
                    let plain = self.below(blocks);
                    let keys_of = |at| if at < plain { ExtraKeys::None } else { ExtraKeys::Other };
                    event.extra_keys = (0..blocks).map(keys_of).collect();
                }
                KvEvent::BlockStored(event)
            }
        }
    }
}

#[test]
fn random_events_leave_what_a_model_of_whole_prompts_leaves() {
    for seed in 0..300 {
        let (mut seeded, mut folded, mut naive) = (Seeded(seed), Folded::default(), Naive::default());
        for step in 0..200 {
            let event = seeded.event();
            naive.apply(&event);
            folded.apply(event.clone());
            assert_eq!(folded.held, naive.held(), "seed {seed}, step {step}: {event:?}");
            for stored in folded.stored.drain(..) {
                assert!(naive.is_chain(&stored), "seed {seed}, step {step}: {event:?}: {stored:?}");
            }
        }
    }
}
