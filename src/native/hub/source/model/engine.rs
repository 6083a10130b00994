//! An engine: its cache, and the events that tell of it.

use std::collections::{HashMap, HashSet};

use crate::fingerprint::{BlockSize, PrefixHash, prefix_hashes};
use crate::native::engine::{Batch, BlockRemoved, BlockStored, EngineKey, KvEvent};

/// Blocks that fit.
const CAPACITY: usize = 40;
/// Different tokens, each a block: few, so that the same blocks come and go.
const TOKENS: u64 = 3;

/// A life of an engine, and a message in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub life: u64,
    pub sequence: u64,
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

pub struct Engine {
    random: Random,
    pub life: u64,
    pub next_sequence: u64,
    /// Whether it clears its cache now and then.
    pub clears: bool,
    blocks: Vec<PrefixHash>,
    held: HashSet<PrefixHash>,
    /// When each block was last given up.
    given_up: HashMap<PrefixHash, Moment>,
}

// === impl Random ===

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// True about once in `times`; never for 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

// === impl Engine ===

impl Engine {
    pub fn new(seed: u64) -> Engine {
        Engine {
            random: Random::new(seed ^ 0xE4E4),
            life: 1,
            next_sequence: 0,
            clears: true,
            blocks: Vec::new(),
            held: HashSet::new(),
            given_up: HashMap::new(),
        }
    }

    pub fn holds(&self, hash: PrefixHash) -> bool {
        self.held.contains(&hash)
    }

    pub fn held(&self) -> impl Iterator<Item = PrefixHash> {
        self.held.iter().copied()
    }

    /// When a block that it does not hold was given up.
    pub fn given_up(&self, hash: PrefixHash) -> Option<Moment> {
        self.given_up.get(&hash).copied()
    }

    /// Starts over with nothing.
    pub fn restart(&mut self) {
        self.life += 1;
        self.next_sequence = 0;
        self.give_up_all();
    }

    /// What one step did, with its number.
    pub fn step(&mut self) -> (Moment, Batch) {
        let mut events = Vec::new();
        for _ in 0..=self.random.below(11) {
            let event = match self.random.below(100) {
                0 => self.clear(),
                1..50 => self.evict(),
                _ => self.store(),
            };
            events.extend(event);
        }
        let moment = self.now();
        self.next_sequence += 1;
        (moment, Batch { read: events.len() as u64, events, ..Batch::default() })
    }

    fn now(&self) -> Moment {
        Moment { life: self.life, sequence: self.next_sequence }
    }

    fn store(&mut self) -> Option<KvEvent> {
        let at = self.random.below(self.blocks.len() as u64 + 2) as usize;
        let parent = self.blocks.get(at).copied();
        let (mut hash, mut stored, mut token_ids) = (parent, Vec::new(), Vec::new());
        let block_size = BlockSize::try_new(1).unwrap();
        for _ in 0..=self.random.below(3) {
            let token = self.random.below(TOKENS) as u32;
            let next = prefix_hashes(&[token], block_size, hash).next().unwrap();
            if self.held.contains(&next) || self.held.len() >= CAPACITY {
                break;
            }
            self.held.insert(next);
            self.blocks.push(next);
            stored.push(key(next));
            token_ids.push(token);
            hash = Some(next);
        }
        (!stored.is_empty()).then(|| {
            KvEvent::BlockStored(BlockStored {
                block_hashes: stored,
                parent_block_hash: parent.map(key),
                token_ids,
                block_size: 1,
                ..BlockStored::default()
            })
        })
    }

    fn evict(&mut self) -> Option<KvEvent> {
        if self.blocks.is_empty() {
            return None;
        }
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let hash = self.blocks.swap_remove(at);
        self.held.remove(&hash);
        self.given_up.insert(hash, self.now());
        Some(KvEvent::BlockRemoved(BlockRemoved { block_hashes: vec![key(hash)], ..BlockRemoved::default() }))
    }

    fn clear(&mut self) -> Option<KvEvent> {
        if !self.clears {
            return None;
        }
        self.give_up_all();
        Some(KvEvent::AllBlocksCleared)
    }

    fn give_up_all(&mut self) {
        let now = self.now();
        self.given_up.extend(self.blocks.drain(..).map(|hash| (hash, now)));
        self.held.clear();
    }
}

/// The engine's own key of a block, which is not ours.
fn key(hash: PrefixHash) -> EngineKey {
    EngineKey::Int(hash.0.rotate_left(17))
}
