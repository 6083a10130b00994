//! The blocks of one replica, by the engine's keys and by prefix.
//!
//! A key names one block; a block can have several keys, and each key's block can be in several storages. How many there are
//! in each tier is counted as they come and go. No I/O.

use super::capacity::Places;
use super::sharded::{ShardKey, Sharded};
use crate::fingerprint::PrefixHash;
use crate::native::engine::EngineKey;
use crate::native::engine::medium::Media;
use crate::observation::{ScopeSlot, Tier};

/// The tiers a block can be held in, the nearest first.
const TIERS: [Tier; 3] = [Tier::T1, Tier::T2, Tier::T3];

/// Blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    by_key: Sharded<EngineKey, Entry>,
    held: Sharded<(ScopeSlot, PrefixHash), HeldBlock>,
    by_tier: ByTier,
}

/// Blocks by the nearest of the [`TIERS`] in which they are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ByTier([usize; 3]);

/// What one key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the hash is relative to.
    pub scope: ScopeSlot,
    /// The block with its whole prefix.
    pub hash: PrefixHash,
    /// Tokens from the start of the prompt to the end of this block.
    pub token_count: u32,
    /// Where the key's block is, at least one.
    pub media: Media,
    /// Whether the key stands for the block without its prefix.
    pub is_unchained: bool,
}

/// A block that the replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block before it; `None` at the start of a prompt.
    pub parent: Option<PrefixHash>,
    /// Tokens from the start of the prompt to the end of this block.
    pub token_count: u32,
    /// When it was last reported, in the hub's own ms.
    pub last_seen_ms: u64,
    /// Engine keys that stand for it.
    names: u32,
    /// Those of them that have it in each of the [`TIERS`].
    keys: [u32; 3],
}

/// What was forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Blocks that are not held any more.
    pub blocks: Vec<(ScopeSlot, PrefixHash)>,
    /// Engine keys.
    pub keys: usize,
    /// Whether any of those stood for its block without the prefix.
    pub were_unchained: bool,
}

/// What is left of a block where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It is held as before.
    Held,
    /// It is held, but farther away.
    Moved(HeldBlock),
    /// It is not held any more.
    Gone,
}

// === impl Blocks ===

impl Blocks {
    /// Blocks held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Engine keys, at least one for each block.
    pub fn keys(&self) -> usize {
        self.by_key.len()
    }

    /// Blocks held in each of the tiers T1, T2 and T3, counted in the nearest.
    pub fn by_tier(&self) -> [usize; 3] {
        self.by_tier.0
    }

    /// The blocks held, in no order.
    pub fn held(&self) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.held.iter().map(|((scope, hash), block)| (*scope, *hash, *block))
    }

    /// Those in one of the [`SHARDS`](super::sharded::SHARDS) parts.
    pub fn held_in(&self, part: usize) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.held.part(part).map(|((scope, hash), block)| (*scope, *hash, *block))
    }

    /// Whether none is in any other place.
    pub fn are_only_in(&self, media: Media) -> bool {
        self.by_key.iter().all(|(_, entry)| entry.media.without(media).is_empty())
    }

    /// The keys of those that are there, in no order.
    pub fn keys_in(&self, media: Media) -> Vec<EngineKey> {
        let there = self.by_key.iter().filter(|(_, entry)| entry.media.intersects(media));
        there.map(|(key, _)| key.clone()).collect()
    }

    /// What `key` stands for, in exactly this form.
    pub fn named(&self, key: &EngineKey) -> Option<Entry> {
        self.by_key.get(key).copied()
    }

    /// What `key` stands for, in whatever form it came before.
    pub fn find(&self, key: &EngineKey) -> Option<Entry> {
        self.by_key.get(key).or_else(|| self.by_key.get(&short(key)?)).copied()
    }

    /// `entry`, which comes after `parent`, has been stored under `key`. The tier in which it is held now.
    pub fn store(&mut self, key: &EngineKey, entry: Entry, parent: Option<PrefixHash>, now_ms: u64) -> Tier {
        let named = self.named(key).filter(|before| before.is_same_block(&entry));
        let before = named.map_or(Media::default(), |entry| entry.media);
        let media = before.with(entry.media);
        self.by_key.insert(key.clone(), Entry { media, ..entry });
        let place = (entry.scope, entry.hash);
        if !self.held.contains_key(&place) {
            let (token_count, last_seen_ms) = (entry.token_count, now_ms);
            self.held.insert(place, HeldBlock { parent, token_count, last_seen_ms, names: 0, keys: [0; 3] });
        }
        let Some(held) = self.held.get_mut(&place) else { return Tier::Unspecified };
        let tier = held.tier();
        held.names = held.names.saturating_add(u32::from(named.is_none()));
        held.count(before, media);
        held.last_seen_ms = held.last_seen_ms.max(now_ms);
        self.by_tier.count(tier, held.tier());
        held.tier()
    }

    /// The block of `key`, in whatever form that came before, is in `media` too. `None` if there is no such block.
    pub fn add(&mut self, key: &EngineKey, media: Media, now_ms: u64) -> Option<(Entry, HeldBlock)> {
        let key = if self.by_key.contains_key(key) { key.clone() } else { short(key)? };
        let entry = self.by_key.get_mut(&key)?;
        let held = self.held.get_mut(&(entry.scope, entry.hash))?;
        let media = entry.media.with(media);
        let tier = held.tier();
        held.count(entry.media, media);
        held.last_seen_ms = held.last_seen_ms.max(now_ms);
        self.by_tier.count(tier, held.tier());
        entry.media = media;
        Some((*entry, *held))
    }

    /// Takes `media` from what `key` stands for: the block, and those of them that it was in. `None` if there is nothing
    /// to take. The block is to be [released](Blocks::release).
    pub fn take(&mut self, key: &EngineKey, media: Media) -> Option<(Entry, Media)> {
        let key = if self.by_key.contains_key(key) { key.clone() } else { short(key)? };
        let entry = self.by_key.get_mut(&key)?;
        let left = entry.media.without(media);
        let taken = entry.media.without(left);
        if taken.is_empty() {
            return None;
        }
        let before = *entry;
        entry.media = left;
        if left.is_empty() {
            self.by_key.remove(&key);
        }
        Some((before, taken))
    }

    /// Forgets `key`; its block is to be [released](Blocks::release).
    pub fn forget(&mut self, key: &EngineKey) -> Option<Entry> {
        self.by_key.remove(key)
    }

    /// Forgets those keys in one of the [`SHARDS`](super::sharded::SHARDS) parts that stand for one of these blocks. After all
    /// parts the blocks are gone.
    pub fn forget_in(&mut self, part: usize, places: &Places) -> Forgotten {
        let entries = self.by_key.take_from(part, |entry| places.contains(&(entry.scope, entry.hash)));
        let mut forgotten = Forgotten { keys: entries.len(), ..Forgotten::default() };
        for entry in entries {
            forgotten.were_unchained |= entry.is_unchained;
            if self.release(entry, entry.media, 0) == Left::Gone {
                forgotten.blocks.push((entry.scope, entry.hash));
            }
        }
        forgotten
    }

    /// The block that had a key with the media of `entry` has it without those in `taken`.
    pub fn release(&mut self, entry: Entry, taken: Media, now_ms: u64) -> Left {
        let place = (entry.scope, entry.hash);
        let Some(held) = self.held.get_mut(&place) else { return Left::Held };
        let before = held.tier();
        let left = entry.media.without(taken);
        held.count(entry.media, left);
        held.names = held.names.saturating_sub(u32::from(left.is_empty()));
        self.by_tier.count(before, held.tier());
        match held.tier() {
            Tier::Unspecified => {
                self.held.remove(&place);
                Left::Gone
            }
            tier if tier == before => Left::Held,
            _ => {
                held.last_seen_ms = held.last_seen_ms.max(now_ms);
                Left::Moved(*held)
            }
        }
    }
}

/// The integer that vLLM makes of a key of 32 bytes: events of offloaded blocks have had the bytes where all others had
/// the integer.
fn short(key: &EngineKey) -> Option<EngineKey> {
    let EngineKey::Bytes(bytes) = key else { return None };
    let low = bytes.get(24..32).filter(|_| bytes.len() == 32)?;
    Some(EngineKey::Int(u64::from_be_bytes(low.try_into().ok()?)))
}

// === impl Entry ===

impl Entry {
    /// Whether both are the same block.
    pub fn is_same_block(&self, other: &Entry) -> bool {
        (self.scope, self.hash) == (other.scope, other.hash)
    }
}

// === impl ByTier ===

impl ByTier {
    /// A block was held in the tier `before`, and is in `after`; unspecified is nowhere.
    fn count(&mut self, before: Tier, after: Tier) {
        for (blocks, tier) in self.0.iter_mut().zip(TIERS).filter(|_| before != after) {
            *blocks = blocks.saturating_sub(usize::from(tier == before)) + usize::from(tier == after);
        }
    }
}

// === impl ShardKey ===

impl ShardKey for EngineKey {
    fn spread(&self) -> u64 {
        match self {
            EngineKey::Int(key) => *key,
            // Digests: any bytes will do.
            EngineKey::Bytes(bytes) => bytes.iter().rev().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte)),
        }
    }
}

impl ShardKey for (ScopeSlot, PrefixHash) {
    fn spread(&self) -> u64 {
        self.1.0
    }
}

// === impl HeldBlock ===

impl HeldBlock {
    /// Engine keys that stand for it, at least one.
    pub fn names(&self) -> usize {
        self.names as usize
    }

    /// The nearest tier in which it is; unspecified if it is in none.
    pub fn tier(&self) -> Tier {
        let nearest = self.keys.iter().zip(TIERS).find(|(keys, _)| **keys > 0);
        nearest.map_or(Tier::Unspecified, |(_, tier)| tier)
    }

    /// A key had its block in the tiers of `before` and has it in those of `after`.
    fn count(&mut self, before: Media, after: Media) {
        for (keys, tier) in self.keys.iter_mut().zip(TIERS) {
            match (before.has_tier(tier), after.has_tier(tier)) {
                (false, true) => *keys = keys.saturating_add(1),
                (true, false) => *keys = keys.saturating_sub(1),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::native::engine::{BlockRemoved, BlockStored, KvEvent, Place};
    use crate::native::hub::replica_cache::{ReplicaCache, Tally};
    use crate::native::hub::sharded::SHARDS;

    /// What is counted as blocks come and go, against a look at each of them.
    fn check(cache: &ReplicaCache) {
        let held: Vec<_> = cache.held().collect();
        let by_tier = TIERS.map(|tier| held.iter().filter(|(.., block)| block.tier() == tier).count());
        assert_eq!((cache.by_tier(), cache.len()), (by_tier, held.len()));
        assert_eq!(cache.keys(), held.iter().map(|(.., block)| block.names()).sum::<usize>());
        assert!(held.iter().all(|(.., block)| block.names() > 0));
        assert_eq!((0..SHARDS).map(|part| cache.held_in(part).count()).sum::<usize>(), held.len());
    }

    #[test]
    fn counts_are_those_of_a_look_at_each_block_whatever_happens() {
        let mut state = 3_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut cache = ReplicaCache::new(None);
        let mut most = [0; 3];
        for step in 0..6_000_u64 {
            let media = [None, Some("GPU"), Some("CPU"), Some("FS"), Some("DISK")];
            let medium = media[random(5) as usize].map(str::to_owned);
            let place = Place { medium, ..Place::default() };
            // Several keys for one block, and now and then one key for another block.
            let block = random(60);
            let key = EngineKey::Int(block * 4 + random(4) + u64::from(random(50) == 0));
            let event = match random(10) {
                0..5 => KvEvent::BlockStored(BlockStored {
                    token_ids: vec![block as u32],
                    block_hashes: vec![key],
                    block_size: 1,
                    place,
                    ..BlockStored::default()
                }),
                5 => KvEvent::BlockStored(BlockStored {
                    block_hashes: vec![key],
                    block_size: 1,
                    place,
                    ..BlockStored::default()
                }),
                _ => KvEvent::BlockRemoved(BlockRemoved { block_hashes: vec![key], place }),
            };
            cache.apply(&event, step, &mut |_| Some(ScopeSlot(1)), &mut Vec::new(), &mut Tally::default());
            if random(200) == 0 {
                let places: HashSet<_> = cache.held().take(5).map(|(scope, hash, _)| (scope, hash)).collect();
                for part in 0..SHARDS {
                    cache.forget_in(part, &places);
                    check(&cache);
                }
                assert!(cache.held().all(|(scope, hash, _)| !places.contains(&(scope, hash))));
            }
            check(&cache);
            let now = cache.by_tier();
            most.iter_mut().zip(now).for_each(|(most, now)| *most = (*most).max(now));
        }
        assert!(most.iter().all(|most| *most > 5), "{most:?}");
        cache.clear(&mut Vec::new(), &mut Tally::default());
        check(&cache);
    }
}
