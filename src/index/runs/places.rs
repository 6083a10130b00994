//! Where each block is.
//!
//! A walk enters nearly every run at its first block. Those few are kept in a table of their own as well, small enough to
//! stay in cache: without it the look-up in the large one is most of what a walk costs.

use std::ops::Range;

use crate::index::runs::run::{Run, key_at};
use crate::index::runs::table::{Place, Table};

/// Blocks that are touched before the entry of the first of them is changed. Together: memory is then waited for once,
/// where one touch among other writes holds those up.
const AHEAD: usize = 32;

/// The places of all blocks, by hash.
#[derive(Clone, Debug)]
pub(super) struct Places {
    all: Table,
    /// Those at offset 0.
    first: Table,
}

// === impl Places ===

impl Places {
    pub fn new() -> Places {
        Places { all: Table::new(), first: Table::new() }
    }

    /// Places that may be that of the block with this hash.
    #[inline]
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Place> {
        self.all.candidates(hash)
    }

    /// The same, where a first block is likely; it may come twice.
    #[inline]
    pub fn likely_first(&self, hash: u64) -> impl Iterator<Item = Place> {
        self.first.candidates(hash).chain(self.all.candidates(hash))
    }

    /// Has the place where the block with this hash would be in cache when it is looked for a little later.
    #[inline]
    pub fn touch(&mut self, hash: u64) {
        self.all.touch(hash);
    }

    pub fn insert(&mut self, hash: u64, place: Place) {
        self.all.insert(hash, place);
        if place.at == 0 {
            self.first.insert(hash, place);
        }
    }

    /// Takes blocks of a run out.
    pub fn remove_all(&mut self, number: u32, run: &Run, blocks: Range<usize>) {
        for first in blocks.clone().step_by(AHEAD) {
            let batch = first..blocks.end.min(first + AHEAD);
            if batch.len() > 1 {
                self.touch_all(run, batch.clone());
            }
            for at in batch {
                self.remove(key_at(run, at).hash(run.scope), Place { run: number, at });
            }
        }
    }

    /// To be called as a run is taken apart from its end, a block at a time: touches the blocks before `at`, a batch now
    /// and then.
    #[inline]
    pub fn touch_before(&mut self, run: &Run, at: usize) {
        if at.is_multiple_of(AHEAD) {
            self.touch_all(run, run.found().start.max(at.saturating_sub(AHEAD))..at);
        }
    }

    fn touch_all(&mut self, run: &Run, blocks: Range<usize>) {
        blocks.for_each(|at| self.touch(key_at(run, at).hash(run.scope)));
    }

    fn remove(&mut self, hash: u64, place: Place) {
        self.all.remove(hash, place);
        if place.at == 0 {
            self.first.remove(hash, place);
        }
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        self.all.bytes() + self.first.bytes()
    }
}
