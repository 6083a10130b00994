//! A run: keys that follow each other in some chain, and who holds which of them.
//!
//! Keys are added at the end only. A block that nobody holds any more leaves the run at its ends; one in the middle stays
//! as a gap, findable and held by nobody, until there are so many that the run is [squeezed](Run::squeeze).

use std::ops::Range;

use crate::index::runs::chain::Chain;
use crate::index::runs::key::{KeyRef, Keys};
use crate::index::runs::stretch::Stretch;
use crate::index::runs::table::OFFSET_BITS;
use crate::observation::ScopeSlot;

/// Longest run; a longer chain is several.
pub(super) const MAX_BLOCKS: usize = 1 << OFFSET_BITS;
/// A run with fewer gaps is not worth squeezing.
const FEW_GAPS: usize = 32;
/// Room for so few stretches is not worth giving back.
const FEW_STRETCHES: usize = 4;

/// Keys in order, and who holds which of them.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub scope: ScopeSlot,
    /// Blocks before this offset have left.
    pub head: u32,
    /// Blocks from `head` on that nobody holds.
    pub gaps: u32,
    /// Bytes that it was last known to point to.
    pub weighed: u32,
    /// The keys are prefix hashes, each made from the one before it.
    pub chained: bool,
    /// Nothing is known of how the keys follow each other.
    pub loose: bool,
    pub keys: Keys,
    /// The last of the keys, if it is a hash, so that a request that goes on beyond the run reads no other.
    last: u64,
    /// Sorted by holder, then offset.
    pub stretches: Vec<Stretch>,
}

/// A set of offsets within a run.
pub(super) struct Offsets([u64; MAX_BLOCKS / 64]);

// === impl Run ===

impl Run {
    pub fn new(scope: ScopeSlot, chained: bool, keys: Keys) -> Run {
        Run { scope, head: 0, gaps: 0, weighed: 0, loose: false, chained, keys, last: 0, stretches: Vec::new() }
    }

    /// What a freed number stands for.
    pub fn vacant() -> Run {
        Run::new(ScopeSlot(0), false, Keys::Hashes(Vec::new()))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The offsets that can be found.
    #[inline]
    pub fn found(&self) -> Range<usize> {
        self.head as usize..self.len()
    }

    /// How many keys from offset `at` on are those of `chain` from `from` on; 0 if not even the first is.
    ///
    /// Where both sides are prefix hashes, made from the one before, equal hashes have equal ones before them: then the
    /// last one is enough, or a search for the last that is equal.
    #[inline]
    pub fn common(&self, at: usize, chain: &impl Chain, from: usize) -> usize {
        let longest = self.len().saturating_sub(at).min(chain.len() - from);
        if !self.chained || !chain.is_proven() {
            return self.keys.common(at, chain, from, longest);
        }
        let equal = |blocks: usize| chain.key(from + blocks - 1).is_some_and(|key| self.is(at + blocks - 1, key));
        if longest > 0 && equal(longest) {
            return longest;
        }
        // Equal up to `equal_up_to`, different from `different_from` on.
        let (mut equal_up_to, mut different_from) = (0, longest);
        // Where another request left the run, a stretch ends, and this one is likely to leave it there too.
        for stretch in &self.stretches {
            let until = stretch.until().saturating_sub(at);
            if equal_up_to < until && until < different_from {
                if equal(until) {
                    equal_up_to = until;
                } else {
                    different_from = until;
                }
            }
        }
        if equal_up_to == 0 && (longest == 0 || !equal(1)) {
            return 0;
        }
        equal_up_to = equal_up_to.max(1);
        let mut ahead = 1;
        while equal_up_to + ahead < different_from {
            if !equal(equal_up_to + ahead) {
                different_from = equal_up_to + ahead;
                break;
            }
            equal_up_to += ahead;
            ahead *= 2;
        }
        while different_from - equal_up_to > 1 {
            let middle = equal_up_to + (different_from - equal_up_to) / 2;
            if equal(middle) {
                equal_up_to = middle;
            } else {
                different_from = middle;
            }
        }
        equal_up_to
    }

    /// Adds a key that suits at the end. Makes room for `coming` keys, of which it is the first.
    pub fn push(&mut self, key: KeyRef<'_>, coming: usize) {
        self.keys.push(key, coming);
        self.note_last();
    }

    /// Drops the keys from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
        self.note_last();
    }

    fn note_last(&mut self) {
        self.last = match self.len().checked_sub(1).and_then(|last| self.keys.get(last)) {
            Some(KeyRef::Hash(hash)) => hash,
            _ => 0,
        };
    }

    #[inline]
    fn is(&self, at: usize, key: KeyRef<'_>) -> bool {
        match (&self.keys, key) {
            (Keys::Hashes(hashes), KeyRef::Hash(hash)) if at + 1 == hashes.len() => self.last == hash,
            _ => self.keys.is(at, key),
        }
    }

    /// How many blocks somebody holds.
    pub fn held_blocks(&self) -> u64 {
        (self.found().len() as u64).saturating_sub(self.gaps.into())
    }

    /// The offsets that somebody holds.
    pub fn held(&self) -> Offsets {
        let mut held = Offsets([0; MAX_BLOCKS / 64]);
        self.stretches.iter().for_each(|stretch| held.add(stretch.blocks()));
        held
    }

    /// Whether so much is gaps that squeezing pays.
    pub fn is_sparse(&self) -> bool {
        let gone = (self.head + self.gaps) as usize;
        gone > FEW_GAPS && gone * 2 > self.len()
    }

    /// Leaves out all but what is `held`. The neighbours of a gap no longer follow each other, so the run's keys then prove
    /// nothing of each other.
    pub fn squeeze(&mut self, held: &Offsets) {
        self.keys.keep(|at| held.contains(at));
        self.note_last();
        for stretch in &mut self.stretches {
            *stretch = stretch.moved_to(held.rank(stretch.from()));
        }
        self.stretches.shrink_to_fit();
        self.chained &= self.gaps == 0;
        self.gaps = 0;
        self.head = 0;
    }

    /// Gives memory back once most of what was asked for stretches is unused.
    pub fn give_back_stretches(&mut self) {
        if self.stretches.capacity() > 2 * self.stretches.len() + FEW_STRETCHES {
            self.stretches.shrink_to(self.stretches.len());
        }
    }

    /// Bytes asked of the allocator beside the run itself.
    pub fn heap_bytes(&self) -> usize {
        let keys = match &self.keys {
            Keys::Hashes(hashes) => hashes.capacity() * size_of::<u64>(),
            // Of one width, nearly always.
            Keys::Wide(keys) => {
                keys.capacity() * size_of::<Box<[u8]>>() + keys.len() * keys.last().map_or(0, |key| key.len())
            }
        };
        keys + self.stretches.capacity() * size_of::<Stretch>()
    }
}

/// The key at an offset, for those that must have one.
pub(super) fn key_at(run: &Run, at: usize) -> KeyRef<'_> {
    run.keys.get(at).unwrap_or(KeyRef::Hash(0))
}

// === impl Offsets ===

impl Offsets {
    fn add(&mut self, offsets: Range<usize>) {
        let (first, last) = (offsets.start / 64, offsets.end.div_ceil(64));
        for (number, word) in self.0.iter_mut().enumerate().take(last).skip(first) {
            let from = offsets.start.saturating_sub(number * 64).min(64);
            let until = offsets.end.saturating_sub(number * 64).min(64);
            *word |= ones(until) & !ones(from);
        }
    }

    pub fn contains(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// How many are below `at`.
    pub fn rank(&self, at: usize) -> usize {
        let whole: u32 = self.0.iter().take(at / 64).map(|word| word.count_ones()).sum();
        let part = self.0.get(at / 64).map_or(0, |word| (word & ones(at % 64)).count_ones());
        (whole + part) as usize
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The lowest `count` bits, at most 64.
fn ones(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}
