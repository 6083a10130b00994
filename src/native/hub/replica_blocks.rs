//! The blocks of one replica, by the engine's keys and by prefix.
//!
//! A key names one block; a block can have several keys, and each key's block can be in several storages. No I/O.

use std::collections::HashMap;

use super::capacity::Places;
use crate::fingerprint::PrefixHash;
use crate::native::engine::EngineKey;
use crate::native::engine::medium::Media;
use crate::observation::{ScopeSlot, Tier};

/// The tiers a block can be held in, the nearest first.
const TIERS: [Tier; 3] = [Tier::T1, Tier::T2, Tier::T3];

/// Blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    by_key: HashMap<EngineKey, Entry>,
    held: HashMap<(ScopeSlot, PrefixHash), HeldBlock>,
}

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
    /// When it was last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// Engine keys that stand for it, in each of the [`TIERS`].
    keys: [u32; 3],
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

    /// The blocks held, in no order.
    pub fn held(&self) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.held.iter().map(|((scope, hash), block)| (*scope, *hash, *block))
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
        let before =
            self.named(key).filter(|before| before.is_same_block(&entry)).map_or(Media::default(), |entry| entry.media);
        let media = before.with(entry.media);
        self.by_key.insert(key.clone(), Entry { media, ..entry });
        let held = self.held.entry((entry.scope, entry.hash)).or_insert(HeldBlock {
            parent,
            token_count: entry.token_count,
            last_seen_ms: now_ms,
            keys: [0; 3],
        });
        held.count(before, media);
        held.last_seen_ms = held.last_seen_ms.max(now_ms);
        held.tier()
    }

    /// The block of `key`, in whatever form that came before, is in `media` too. `None` if there is no such block.
    pub fn add(&mut self, key: &EngineKey, media: Media, now_ms: u64) -> Option<(Entry, HeldBlock)> {
        let key = if self.by_key.contains_key(key) { key.clone() } else { short(key)? };
        let entry = self.by_key.get_mut(&key)?;
        let held = self.held.get_mut(&(entry.scope, entry.hash))?;
        let media = entry.media.with(media);
        held.count(entry.media, media);
        held.last_seen_ms = held.last_seen_ms.max(now_ms);
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

    /// Forgets these blocks, with all their keys. Whether any of those stood for its block without the prefix.
    pub fn forget_all(&mut self, places: &Places) -> bool {
        let mut were_unchained = false;
        self.held.retain(|place, _| !places.contains(place));
        self.by_key.retain(|_, entry| {
            let goes = places.contains(&(entry.scope, entry.hash));
            were_unchained |= goes && entry.is_unchained;
            !goes
        });
        were_unchained
    }

    /// The block that had a key with the media of `entry` has it without those in `taken`.
    pub fn release(&mut self, entry: Entry, taken: Media, now_ms: u64) -> Left {
        let place = (entry.scope, entry.hash);
        let Some(held) = self.held.get_mut(&place) else { return Left::Held };
        let before = held.tier();
        held.count(entry.media, entry.media.without(taken));
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

// === impl HeldBlock ===

impl HeldBlock {
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
