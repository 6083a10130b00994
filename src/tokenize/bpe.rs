//! Byte pair encoding of one word: symbols in, token ids out.
//!
//! The pair of neighbours with the lowest rank merges first, the leftmost of equal ones, until no pair merges. Short
//! words scan their ranks; long ones keep a heap and a linked list, so that a word of n symbols costs O(n log n) and
//! at most some fifty bytes a symbol, whatever it holds. Nothing recurses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::format::NO_ID;
use super::tables::{EMPTY_MERGE, RANK_MASK, Tables, merge_entry, merge_slot};

/// Up to here a scan of all ranks is faster than a heap.
const SCAN_MAX_SYMBOLS: usize = 64;
/// Buffers that one long word grew are given back above this many symbols.
const KEEP_SYMBOLS: usize = 1 << 14;
/// Slots of the cache of ranks: 64 KB, where the table of all merges takes megabytes.
const PAIR_SLOTS: usize = 8_192;

/// The symbols of the word at hand, and what merging them needs.
#[derive(Default)]
pub(super) struct Merger {
    ids: Vec<u32>,
    /// Rank of each symbol with its right neighbour.
    ranks: Vec<u32>,
    links: Vec<Link>,
    /// Rank above position: the order of merging.
    queue: BinaryHeap<Reverse<u64>>,
    pairs: Pairs,
}

/// Ranks of pairs looked up before, as in the table of merges; those of pairs that do not merge have all bits set.
#[derive(Default)]
struct Pairs(Vec<u64>);

/// A symbol's neighbours, as positions; `NO_ID` at the ends.
#[derive(Clone, Copy)]
struct Link {
    left: u32,
    right: u32,
}

// === impl Merger ===

impl Merger {
    /// Begins a word.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        if self.ids.capacity() > KEEP_SYMBOLS {
            *self = Merger { pairs: std::mem::take(&mut self.pairs), ..Merger::default() };
        }
    }

    /// Forgets the ranks of pairs: they were another tokenizer's.
    pub(super) fn forget(&mut self) {
        self.pairs.0.clear();
    }

    /// The next symbol of the word.
    pub(super) fn push(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// The next symbols of the word.
    pub(super) fn extend(&mut self, ids: impl Iterator<Item = u32>) {
        self.ids.extend(ids);
    }

    /// Symbols of the word so far.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Merges what can be merged.
    pub(super) fn merge(&mut self, tables: &Tables<'_>) -> &[u32] {
        if self.ids.len() <= SCAN_MAX_SYMBOLS {
            self.merge_by_scan(tables);
        } else {
            self.merge_by_queue(tables);
        }
        &self.ids
    }

    fn rank_pairs(&mut self, tables: &Tables<'_>) {
        self.ranks.clear();
        let pairs = self.ids.iter().zip(self.ids.iter().skip(1));
        let known = &mut self.pairs;
        self.ranks.extend(pairs.map(|(left, right)| known.rank(*left, *right, tables)));
    }

    fn merge_by_scan(&mut self, tables: &Tables<'_>) {
        self.rank_pairs(tables);
        self.ranks.push(NO_ID);
        self.link();
        while let Some((at, rank)) = lowest(&self.ranks) {
            let Some(id) = tables.merged(rank) else { break };
            self.merge_pair(at as u32, id, tables);
        }
        self.keep_linked();
    }

    fn merge_by_queue(&mut self, tables: &Tables<'_>) {
        self.rank_pairs(tables);
        self.ranks.push(NO_ID);
        self.link();
        let ranked = self.ranks.iter().enumerate().filter(|(_, rank)| **rank != NO_ID);
        let mut first: Vec<_> = std::mem::take(&mut self.queue).into_vec();
        first.clear();
        first.extend(ranked.map(|(at, rank)| Reverse(queued(*rank, at as u32))));
        self.queue = BinaryHeap::from(first);
        while let Some(Reverse(next)) = self.queue.pop() {
            let (rank, at) = ((next >> 32) as u32, next as u32);
            // A pair that has changed since it was queued has another rank by now, or none.
            if self.ranks.get(at as usize) == Some(&rank) {
                let Some(id) = tables.merged(rank) else { continue };
                for at in self.merge_pair(at, id, tables) {
                    self.enqueue(at);
                }
            }
        }
        self.keep_linked();
    }

    fn link(&mut self) {
        let last = self.ids.len().saturating_sub(1) as u32;
        self.links.clear();
        self.links.extend((0..=last).map(|at| Link {
            left: at.checked_sub(1).unwrap_or(NO_ID),
            right: if at < last { at + 1 } else { NO_ID },
        }));
    }

    /// The symbol at `at` takes in its right neighbour. The positions of the pairs that have changed.
    fn merge_pair(&mut self, at: u32, id: u32, tables: &Tables<'_>) -> [u32; 2] {
        let Some(Link { left, right }) = self.links.get(at as usize).copied() else { return [NO_ID; 2] };
        let beyond = self.links.get(right as usize).map_or(NO_ID, |link| link.right);
        if let Some(slot) = self.ids.get_mut(at as usize) {
            *slot = id;
        }
        if let Some(link) = self.links.get_mut(at as usize) {
            link.right = beyond;
        }
        if let Some(link) = self.links.get_mut(beyond as usize) {
            link.left = at;
        }
        if let Some(rank) = self.ranks.get_mut(right as usize) {
            *rank = NO_ID;
        }
        self.rank_pair(at, beyond, tables);
        if left != NO_ID {
            self.rank_pair(left, at, tables);
        }
        [at, left]
    }

    fn rank_pair(&mut self, at: u32, right: u32, tables: &Tables<'_>) {
        let pair = self.ids.get(at as usize).zip(self.ids.get(right as usize));
        let rank = pair.map_or(NO_ID, |(left, right)| self.pairs.rank(*left, *right, tables));
        if let Some(slot) = self.ranks.get_mut(at as usize) {
            *slot = rank;
        }
    }

    fn enqueue(&mut self, at: u32) {
        if let Some(rank) = self.ranks.get(at as usize).filter(|rank| **rank != NO_ID) {
            self.queue.push(Reverse(queued(*rank, at)));
        }
    }

    /// Drops the symbols that others have taken in.
    fn keep_linked(&mut self) {
        let mut at = 0;
        let mut kept = 0;
        while let Some(id) = self.ids.get(at as usize).copied() {
            if let Some(slot) = self.ids.get_mut(kept) {
                *slot = id;
            }
            kept += 1;
            at = self.links.get(at as usize).map_or(NO_ID, |link| link.right);
        }
        self.ids.truncate(kept);
    }
}

// === impl Pairs ===

impl Pairs {
    /// As [`Tables::rank`].
    fn rank(&mut self, left: u32, right: u32, tables: &Tables<'_>) -> u32 {
        if self.0.is_empty() {
            self.0.resize(PAIR_SLOTS, EMPTY_MERGE);
        }
        let wanted = merge_entry(left, right, 0);
        let Some(slot) = self.0.get_mut(merge_slot(left, right, PAIR_SLOTS)) else { return NO_ID };
        if *slot & !RANK_MASK != wanted {
            *slot = wanted | (u64::from(tables.rank(left, right)) & RANK_MASK);
        }
        let rank = *slot & RANK_MASK;
        if rank == RANK_MASK { NO_ID } else { rank as u32 }
    }
}

fn queued(rank: u32, at: u32) -> u64 {
    (u64::from(rank) << 32) | u64::from(at)
}

/// The position and value of the lowest rank, the leftmost of equal ones.
fn lowest(ranks: &[u32]) -> Option<(usize, u32)> {
    // Two passes, each of which looks at several ranks at once.
    let least = ranks.iter().copied().min().filter(|least| *least != NO_ID)?;
    ranks.iter().position(|rank| *rank == least).map(|at| (at, least))
}
