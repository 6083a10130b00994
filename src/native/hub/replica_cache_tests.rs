//! Cases, and a seeded comparison with a model that keeps whole prompts instead of hashes.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::native::engine::python_hash::tuple_hash;
use crate::native::engine::{ExtraKeys, Place};

const BASE: ScopeSlot = ScopeSlot(1);

/// Applies events and folds the changes they give, as a subscriber would.
#[derive(Default)]
struct Folded {
    cache: ReplicaCache,
    held: BTreeSet<(ScopeSlot, PrefixHash)>,
    tiers: BTreeMap<(ScopeSlot, PrefixHash), Tier>,
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
                Change::Moved(blocks) => {
                    for (scope, hash, block) in blocks {
                        let before = self.tiers.insert((scope, hash), block.tier());
                        assert!(before.is_some_and(|before| before < block.tier()), "moved nearer, or from nowhere");
                    }
                }
                Change::Stored(stored) => {
                    self.tiers.extend(stored.blocks.iter().map(|(hash, _)| ((stored.scope, *hash), stored.tier)));
                    self.held.extend(stored.blocks.iter().map(|(hash, _)| (stored.scope, *hash)));
                    self.stored.push(stored);
                }
                Change::Removed(scope, hashes) => {
                    for hash in hashes {
                        assert!(self.held.remove(&(scope, hash)), "removed what was not held");
                        self.tiers.remove(&(scope, hash));
                    }
                }
                Change::Cleared => {
                    self.held.clear();
                    self.tiers.clear();
                }
            }
        }
        let own: BTreeSet<_> = self.cache.held().map(|(scope, hash, _)| (scope, hash)).collect();
        assert_eq!(own, self.held, "a subscriber's view differs");
        let own: BTreeMap<_, _> = self.cache.held().map(|(scope, hash, block)| ((scope, hash), block.tier())).collect();
        assert_eq!(own, self.tiers, "a subscriber's view of tiers differs");
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

fn tier_cleared(medium: &str) -> KvEvent {
    KvEvent::TierBlocksCleared(Place { medium: Some(medium.into()), ..Place::default() })
}

#[test]
fn a_storage_that_is_cleared_leaves_what_is_in_others_and_keys_that_are_known() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1, 2, 3], None, &[0, 1, 2, 3, 4, 5]));
    folded.apply(bare("CPU", &[key(1), key(2)]));
    folded.apply(tier_cleared("GPU"));
    assert_eq!(folded.tiers.values().copied().collect::<Vec<_>>(), [Tier::T2; 2]);
    assert_eq!(folded.tally.cleared, 0);
    // What comes back goes on from what is still there.
    folded.apply(stored(&[3], Some(2), &[4, 5]));
    assert_eq!(folded.held.len(), 3);
    folded.apply(tier_cleared("TAPE"));
    assert_eq!((folded.held.len(), folded.skipped(SkipReason::Medium)), (3, 1));
    folded.apply(tier_cleared("cpu"));
    assert_eq!(folded.tiers.values().copied().collect::<Vec<_>>(), [Tier::T1]);
    folded.apply(tier_cleared("GPU"));
    assert!(folded.held.is_empty());
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
        Chained {
            scope: BASE,
            tier: Tier::T1,
            parent,
            blocks: at.map(|at| (hashes[at], 2 * (at as u32 + 1))).collect(),
        }
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
fn a_block_that_is_not_credited_does_not_say_how_long_blocks_are() {
    let mut folded = Folded::default();
    let long: Vec<u32> = (0..4_096).collect();
    folded.apply(KvEvent::BlockStored(BlockStored {
        block_hashes: vec![EngineKey::Int(9)],
        parent_block_hash: Some(EngineKey::Int(8)),
        block_size: 4_096,
        token_ids: long,
        ..BlockStored::default()
    }));
    folded.apply(stored(&[1], None, &[1, 2]));
    assert_eq!(folded.cache.len(), 1);
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

fn place(medium: &str) -> Place {
    Place { medium: Some(medium.into()), ..Place::default() }
}

/// The same event about blocks in another storage.
fn at(medium: &str, event: KvEvent) -> KvEvent {
    match event {
        KvEvent::BlockStored(event) => KvEvent::BlockStored(BlockStored { place: place(medium), ..event }),
        KvEvent::BlockRemoved(event) => KvEvent::BlockRemoved(BlockRemoved { place: place(medium), ..event }),
        other => other,
    }
}

/// Blocks named by their keys alone, as offloaded ones are.
fn bare(medium: &str, keys: &[EngineKey]) -> KvEvent {
    KvEvent::BlockStored(BlockStored { block_hashes: keys.to_vec(), place: place(medium), ..BlockStored::default() })
}

fn tiers(folded: &Folded, token_ids: &[u32]) -> Vec<Option<Tier>> {
    prefixes(token_ids).iter().map(|place| folded.tiers.get(place).copied()).collect()
}

#[test]
fn a_block_is_held_in_the_nearest_of_its_storages() {
    let mut folded = Folded::default();
    let prompt = [1, 2, 3, 4];
    folded.apply(stored(&[1, 2], None, &prompt));
    folded.apply(at("CPU", stored(&[1, 2], None, &prompt)));
    folded.apply(at("DISK", stored(&[1], None, &prompt[..2])));
    assert_eq!(tiers(&folded, &prompt), [Some(Tier::T1); 2]);
    folded.apply(at("GPU", removed(&[2, 1])));
    assert_eq!(tiers(&folded, &prompt), [Some(Tier::T2); 2]);
    folded.apply(at("CPU", removed(&[1])));
    assert_eq!(tiers(&folded, &prompt), [Some(Tier::T2); 2], "one more of that tier");
    folded.apply(at("disk", removed(&[1])));
    assert_eq!(tiers(&folded, &prompt), [None, Some(Tier::T2)]);
    folded.apply(at("GPU", removed(&[2])));
    assert_eq!(folded.skipped(SkipReason::UnknownBlock), 1, "it is not there");
    folded.apply(removed(&[2]));
    assert!(folded.held.is_empty(), "no storage named is every storage");
}

#[test]
fn what_is_on_another_machine_is_far_whatever_stores_it() {
    let mut folded = Folded::default();
    let KvEvent::BlockStored(event) = at("cpu", stored(&[1], None, &[1, 2])) else { panic!() };
    let far = Place { remote: true, ..event.place.clone() };
    folded.apply(stored(&[9], None, &[5, 6]));
    folded.apply(KvEvent::BlockStored(BlockStored { place: far, ..event }));
    assert_eq!(tiers(&folded, &[1, 2]), [Some(Tier::T3)]);
    folded.apply(at("TAPE", stored(&[2], None, &[3, 4])));
    assert_eq!(folded.skipped(SkipReason::Medium), 1);
}

#[test]
fn a_block_named_by_its_key_alone_is_the_one_that_is_known() {
    let mut folded = Folded::default();
    folded.apply(stored(&[1, 2], None, &[1, 2, 3, 4]));
    let mut bytes = [7; 32];
    bytes[24..].copy_from_slice(&2_u64.to_be_bytes());
    folded.apply(bare("CPU", &[key(1), EngineKey::Bytes(bytes.into()), key(5)]));
    assert_eq!(folded.skipped(SkipReason::NoTokens), 1);
    folded.apply(at("GPU", removed(&[2, 1])));
    assert_eq!(tiers(&folded, &[1, 2, 3, 4]), [Some(Tier::T2); 2]);
    // Its place in the prompt is known still.
    folded.apply(stored(&[3], Some(2), &[5, 6]));
    assert!(folded.held.contains(&prefixes(&[1, 2, 3, 4, 5, 6])[2]));
    let block_hashes = vec![EngineKey::Bytes(bytes.into())];
    folded.apply(at("CPU", KvEvent::BlockRemoved(BlockRemoved { block_hashes, ..BlockRemoved::default() })));
    assert_eq!(tiers(&folded, &[1, 2, 3, 4]), [Some(Tier::T2), None]);
    // In the engine's own cache a key without tokens says nothing.
    folded.apply(bare("GPU", &[key(1)]));
    assert_eq!(tiers(&folded, &[1, 2]), [Some(Tier::T2)]);
    assert_eq!(folded.skipped(SkipReason::NoTokens), 2);
}

#[test]
fn a_first_group_without_a_kind_is_given_up_when_there_is_another() {
    let mut folded = Folded::default();
    let grouped = |group_idx, kind: Option<&str>, event: KvEvent| match event {
        KvEvent::BlockStored(mut event) => {
            event.place.group_idx = Some(group_idx);
            event.kv_cache_spec_kind = kind.map(str::to_owned);
            KvEvent::BlockStored(event)
        }
        other => other,
    };
    folded.apply(grouped(0, None, stored(&[1], None, &[1, 2])));
    assert_eq!(folded.cache.len(), 1);
    folded.apply(grouped(1, None, stored(&[1], None, &[1, 2])));
    assert!(folded.held.is_empty());
    folded.apply(grouped(0, None, stored(&[2], None, &[3, 4])));
    assert!(folded.held.is_empty());
    folded.apply(grouped(0, Some("full_attention"), stored(&[3], None, &[5, 6])));
    assert_eq!(folded.cache.len(), 1);
    // Of which group an offloaded block is, is not said.
    folded.apply(bare("CPU", &[key(3)]));
    folded.apply(removed(&[3]));
    assert!(folded.held.is_empty());
    assert_eq!(folded.skipped(SkipReason::Group), 3);
}

#[test]
fn blocks_elsewhere_do_not_tell_the_size_of_a_block() {
    let mut folded = Folded::default();
    folded.apply(at("CPU", stored(&[1], None, &[1, 2])));
    assert_eq!((folded.skipped(SkipReason::BlockSize), folded.cache.block_size()), (1, None));
    folded.apply(stored(&[1], None, &[1, 2]));
    let four = BlockStored { block_hashes: vec![key(5)], token_ids: vec![1, 2, 3, 4], ..BlockStored::default() };
    folded.apply(at("CPU", KvEvent::BlockStored(BlockStored { block_size: 4, ..four })));
    assert_eq!((folded.skipped(SkipReason::BlockSize), folded.cache.len()), (2, 1));
}

/// A page as SGLang up to 0.5.5 announces it: its key is its own tokens' hash.
fn page(before: Option<u64>, token_ids: &[u32]) -> KvEvent {
    stored(&[tuple_hash(token_ids)], before, token_ids)
}

fn start() -> Option<u64> {
    Some(tuple_hash(&[]))
}

#[test]
fn a_page_without_a_parent_starts_no_prompt_where_keys_are_not_chained() {
    let mut folded = Folded::default();
    folded.apply(KvEvent::AllBlocksCleared);
    folded.apply(page(None, &[1, 2]));
    folded.apply(page(Some(tuple_hash(&[1, 2])), &[3, 4]));
    assert!(folded.held.is_empty());
    assert_eq!(folded.skipped(SkipReason::UnprovenRoot), 1);
    assert_eq!(folded.skipped(SkipReason::AmbiguousKey), 1);
    folded.apply(page(start(), &[5, 6]));
    assert_eq!(folded.held, prefixes(&[5, 6]).into_iter().collect());
}

#[test]
fn pages_follow_one_another_once_all_pages_are_known() {
    let prompt = [1, 2, 3, 4];
    let events = [page(start(), &[1, 2]), page(Some(tuple_hash(&[1, 2])), &[3, 4])];
    let mut folded = Folded::default();
    events.iter().for_each(|event| folded.apply(event.clone()));
    assert_eq!(folded.held, prefixes(&prompt[..2]).into_iter().collect(), "the page may be elsewhere too");
    assert_eq!(folded.skipped(SkipReason::AmbiguousKey), 1);
    folded.apply(KvEvent::AllBlocksCleared);
    events.iter().for_each(|event| folded.apply(event.clone()));
    assert_eq!(folded.held, prefixes(&prompt).into_iter().collect());
    // An event that could not be read may have been such a page.
    folded.apply(KvEvent::Missed(Missed::Stores));
    folded.apply(page(Some(tuple_hash(&[3, 4])), &[5, 6]));
    assert_eq!(folded.cache.len(), 2);
    folded.apply(KvEvent::Missed(Missed::Anything));
    assert!(folded.held.is_empty());
}

#[test]
fn a_page_in_two_places_is_in_neither() {
    let mut folded = Folded::default();
    folded.apply(KvEvent::AllBlocksCleared);
    folded.apply(page(start(), &[1, 2]));
    folded.apply(page(start(), &[3, 4]));
    folded.apply(page(Some(tuple_hash(&[1, 2])), &[7, 8]));
    folded.apply(page(Some(tuple_hash(&[7, 8])), &[9, 9]));
    folded.apply(page(Some(tuple_hash(&[3, 4])), &[7, 8]));
    let first = prefixes(&[1, 2, 7, 8, 9, 9]);
    assert!(!folded.held.contains(&first[1]), "its removal could not be told");
    assert!(folded.held.contains(&first[2]), "that one has a key of its own");
    folded.apply(page(Some(tuple_hash(&[7, 8])), &[5, 5]));
    assert_eq!(folded.cache.len(), 3);
    folded.apply(removed(&[tuple_hash(&[7, 8])]));
    folded.apply(page(Some(tuple_hash(&[1, 2])), &[7, 8]));
    assert_eq!(folded.cache.len(), 3, "one may be left of it");
    assert_eq!(folded.skipped(SkipReason::AmbiguousKey), 4);
    folded.apply(KvEvent::AllBlocksCleared);
    folded.apply(page(start(), &[7, 8]));
    assert_eq!(folded.cache.len(), 1);
}

/// The engine as a set of prompts: each key stands for the tokens from the start of a prompt.
#[derive(Default)]
struct Naive {
    prompts: BTreeMap<u64, (ScopeSlot, Vec<u32>)>,
    /// In which storages each key's block is; without those that are in none.
    storages: BTreeMap<u64, BTreeSet<String>>,
    /// Every prompt so far, by its last block's hash.
    by_hash: BTreeMap<PrefixHash, Vec<u32>>,
}

impl Naive {
    fn apply(&mut self, event: &KvEvent) {
        match event {
            KvEvent::AllBlocksCleared | KvEvent::Missed(_) => {
                self.prompts.clear();
                self.storages.clear();
            }
            KvEvent::TierBlocksCleared(place) => {
                let medium = place.medium.clone().unwrap_or_default();
                for storages in self.storages.values_mut() {
                    storages.remove(&medium);
                }
                self.storages.retain(|_, storages| !storages.is_empty());
                self.prompts.retain(|number, _| self.storages.contains_key(number));
            }
            KvEvent::BlockRemoved(event) => {
                for key in &event.block_hashes {
                    let EngineKey::Int(number) = key else { continue };
                    let Some(storages) = self.storages.get_mut(number) else { continue };
                    match &event.place.medium {
                        Some(medium) => storages.remove(medium),
                        None => !std::mem::take(storages).is_empty(),
                    };
                    if storages.is_empty() {
                        self.storages.remove(number);
                        self.prompts.remove(number);
                    }
                }
            }
            KvEvent::BlockStored(event) => {
                let medium = event.place.medium.clone().unwrap_or("GPU".into());
                if event.token_ids.is_empty() {
                    for key in &event.block_hashes {
                        let EngineKey::Int(number) = key else { continue };
                        if let Some(storages) = self.storages.get_mut(number) {
                            storages.insert(medium.clone());
                        }
                    }
                    return;
                }
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
                        let before = self.prompts.insert(*number, (scope, prompt.clone()));
                        if before.is_some_and(|before| before != (scope, prompt.clone())) {
                            self.storages.remove(number);
                        }
                        self.storages.entry(*number).or_default().insert(medium.clone());
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

    /// Each block with the nearest tier that one of its keys has it in.
    fn held(&self) -> BTreeMap<(ScopeSlot, PrefixHash), Tier> {
        let mut held = BTreeMap::new();
        for (number, (scope, prompt)) in &self.prompts {
            let Some(block) = prefixes_in(*scope, prompt).pop() else { continue };
            for medium in &self.storages[number] {
                let tier = match medium.as_str() {
                    "GPU" => Tier::T1,
                    "CPU" | "DISK" => Tier::T2,
                    _ => Tier::T3,
                };
                held.entry(block).and_modify(|known: &mut Tier| *known = tier.min(*known)).or_insert(tier);
            }
        }
        held
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
        match self.below(41) {
            0 => KvEvent::AllBlocksCleared,
            40 => tier_cleared(["GPU", "CPU", "DISK", "STORAGE"][self.below(4) as usize]),
            1..=12 => {
                let keys: Vec<u64> = (0..1 + self.below(3)).map(|_| self.below(24)).collect();
                match self.medium() {
                    Some(medium) => at(medium, removed(&keys)),
                    None => removed(&keys),
                }
            }
            13..=15 => {
                let keys: Vec<EngineKey> = (0..1 + self.below(3)).map(|_| key(self.below(24))).collect();
                bare(["CPU", "DISK", "STORAGE"][self.below(3) as usize], &keys)
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
                match self.medium() {
                    Some(medium) => at(medium, KvEvent::BlockStored(event)),
                    None => KvEvent::BlockStored(event),
                }
            }
        }
    }

    /// Mostly the engine's own cache, which is often not named.
    fn medium(&mut self) -> Option<&'static str> {
        [None, None, None, Some("GPU"), Some("GPU"), Some("CPU"), Some("DISK"), Some("STORAGE")][self.below(8) as usize]
    }
}

#[test]
fn random_events_leave_what_a_model_of_whole_prompts_leaves() {
    for seed in 0..300 {
        let (mut seeded, mut folded, mut naive) = (Seeded(seed), Folded::default(), Naive::default());
        folded.cache = ReplicaCache::new(Some(BlockSize::try_new(2).unwrap()));
        for step in 0..200 {
            let event = seeded.event();
            naive.apply(&event);
            folded.apply(event.clone());
            assert_eq!(folded.tiers, naive.held(), "seed {seed}, step {step}: {event:?}");
            for stored in folded.stored.drain(..) {
                assert!(naive.is_chain(&stored), "seed {seed}, step {step}: {event:?}: {stored:?}");
            }
        }
    }
}

/// A radix tree that names its pages as SGLang up to 0.4.10 does: by their own tokens, under the page before.
#[derive(Default)]
struct Tree {
    /// Every page held, as the prompt up to its end.
    held: BTreeSet<Vec<u32>>,
}

impl Tree {
    fn before(prompt: &[u32]) -> Option<u64> {
        let before = prompt.len() - 2;
        Some(tuple_hash(&prompt[before.saturating_sub(2)..before]))
    }

    fn insert(&mut self, prompt: &[u32]) -> Vec<KvEvent> {
        let ends = (2..=prompt.len()).step_by(2);
        let new: Vec<&[u32]> = ends.map(|end| &prompt[..end]).filter(|page| self.held.insert(page.to_vec())).collect();
        new.into_iter().map(|prompt| page(Tree::before(prompt), &prompt[prompt.len() - 2..])).collect()
    }

    /// A page without one after it.
    fn evict(&mut self, pick: u64) -> Vec<KvEvent> {
        let has_child =
            |prompt: &[u32]| self.held.iter().any(|of| of.len() == prompt.len() + 2 && of.starts_with(prompt));
        let leaves: Vec<Vec<u32>> = self.held.iter().filter(|prompt| !has_child(prompt)).cloned().collect();
        let Some(leaf) = leaves.get(pick as usize % leaves.len().max(1)) else { return Vec::new() };
        self.held.remove(leaf);
        vec![removed(&[tuple_hash(&leaf[leaf.len() - 2..])])]
    }

    /// What a split of the tree does: a page is removed and stored at once.
    fn split(&mut self, pick: u64) -> Vec<KvEvent> {
        let Some(prompt) = self.held.iter().nth(pick as usize % self.held.len().max(1)) else { return Vec::new() };
        let own = &prompt[prompt.len() - 2..];
        vec![removed(&[tuple_hash(own)]), page(Tree::before(prompt), own)]
    }
}

#[test]
fn unchained_pages_are_never_credited_where_they_are_not() {
    let (mut most, mut ambiguous) = (0, 0);
    for seed in 0..200 {
        let (mut seeded, mut folded, mut tree) = (Seeded(seed), Folded::default(), Tree::default());
        // Some are followed from the start, some from somewhere on.
        let joins = seeded.below(3) * 20;
        // The more tokens there are, the rarer a page is found twice.
        let tokens = 2 + seeded.below(6);
        for step in 0..150 {
            let events = match seeded.below(20) {
                0 if seeded.below(3) == 0 => {
                    tree.held.clear();
                    vec![KvEvent::AllBlocksCleared]
                }
                1..=7 => tree.evict(seeded.below(64)),
                8..=9 => tree.split(seeded.below(64)),
                _ => {
                    let pages = 1 + seeded.below(4);
                    let prompt: Vec<u32> = (0..pages * 2).map(|_| seeded.below(tokens) as u32).collect();
                    tree.insert(&prompt)
                }
            };
            if step == 0 && joins == 0 {
                folded.apply(KvEvent::AllBlocksCleared);
            }
            if step < joins {
                continue;
            }
            for event in events {
                folded.apply(event);
            }
            // To keep memory bounded, it can be forgotten at any time which keys are ambiguous.
            if seed % 2 == 1 && step % 37 == 0 {
                folded.cache.forget_doubts();
            }
            let held: BTreeSet<_> = tree.held.iter().filter_map(|prompt| prefixes(prompt).pop()).collect();
            assert!(folded.held.is_subset(&held), "seed {seed}, step {step}");
            most = most.max(folded.held.len());
        }
        ambiguous += folded.skipped(SkipReason::AmbiguousKey);
    }
    assert!(most > 10 && ambiguous > 1_000, "{most} pages credited at most, {ambiguous} ambiguous");
}

#[test]
fn keys_that_may_stand_for_several_prefixes_count_and_are_given_up_when_they_are_too_many() {
    let (mut cache, mut tally) = (ReplicaCache::new(None), Tally::default());
    let mut store = |cache: &mut ReplicaCache, keys: u64| {
        let token_ids: Vec<u32> = (0..keys as u32).collect();
        let mut block_hashes: Vec<EngineKey> = (0..keys).map(|key| EngineKey::Int(key + 5)).collect();
        // One that stands for its tokens alone shows what they all are.
        block_hashes[0] = EngineKey::Int(tuple_hash(&[0]));
        let parent_block_hash = Some(EngineKey::Int(tuple_hash(&[77])));
        let event = BlockStored { block_hashes, token_ids, parent_block_hash, block_size: 1, ..BlockStored::default() };
        cache.apply(&KvEvent::BlockStored(event), 1, &mut |_| Some(ScopeSlot(1)), &mut Vec::new(), &mut tally);
        tally.doubts_given_up
    };
    assert_eq!(store(&mut cache, 100), 0);
    assert_eq!((cache.len(), cache.keys()), (0, 100));
    assert_eq!((cache.forget_doubts(), cache.keys()), (100, 0));
    let most = MAX_AMBIGUOUS as u64;
    assert_eq!((store(&mut cache, most), cache.keys()), (0, MAX_AMBIGUOUS));
    assert_eq!((store(&mut cache, most + 1), cache.keys()), (most + 1, 0));
}
