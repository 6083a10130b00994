//! Taking out what replicas no longer hold.

use std::ops::Range;

use crate::index::runs::key::KeyRef;
use crate::index::runs::run::key_at;
use crate::index::runs::stretch::{HolderId, cut};
use crate::index::runs::table::Place;
use crate::index::runs::{Runs, recount};
use crate::observation::{ReplicaSlot, ScopeSlot};

/// Blocks of one run that are yet to be taken from the holder.
struct Leaving {
    run: u32,
    blocks: Range<usize>,
}

// === impl Runs ===

impl Runs {
    /// As of log sequence `sequence` the replica no longer holds these blocks. Returns how many of them it held.
    pub fn remove<'k>(
        &mut self,
        sequence: u64,
        scope: ScopeSlot,
        replica: ReplicaSlot,
        keys: impl IntoIterator<Item = KeyRef<'k>>,
    ) -> u64 {
        let Some(holder) = self.holders.get(replica) else { return 0 };
        let mut leaving = Leaving { run: self.removed_last.run, blocks: self.removed_last.at..self.removed_last.at };
        let mut removed = 0;
        for key in keys {
            if self.goes_on(&mut leaving, scope, key) {
                continue;
            }
            removed += self.leave(sequence, holder, &leaving);
            leaving.blocks = 0..0;
            if let Some(place) = self.find(scope, key) {
                leaving = Leaving { run: place.run, blocks: place.at..place.at + 1 };
            }
        }
        removed += self.leave(sequence, holder, &leaving);
        self.removed_last = Place { run: leaving.run, at: leaving.blocks.start };
        self.holders.lose(scope, holder, removed);
        removed
    }

    /// The replica holds nothing any more. Returns how many blocks it held. What it held counts for nothing at once; the
    /// memory comes back with the sweep.
    pub fn clear(&mut self, replica: ReplicaSlot) -> u64 {
        self.holders.retire(replica)
    }

    /// As of log sequence `sequence` the replica holds nothing, at once in every count. Goes over everything. Returns how many
    /// blocks it held.
    pub fn remove_all(&mut self, sequence: u64, replica: ReplicaSlot) -> u64 {
        let Some(holder) = self.holders.get(replica).filter(|_| self.holders.pairs_of(replica) > 0) else { return 0 };
        let mut removed = 0;
        for number in 1..self.slab.numbers() {
            let Some(run) = self.slab.get_mut(number) else { continue };
            let (scope, everywhere) = (run.scope, 0..run.len());
            let had = cut(&mut run.stretches, holder, everywhere.clone(), (&mut self.pages, sequence)) as u64;
            if had > 0 {
                self.settle(number, everywhere);
                self.holders.lose(scope, holder, had);
                removed += had;
            }
        }
        removed
    }

    /// Engines evict a chain from its end, block after block: the next key is often a neighbour.
    fn goes_on(&mut self, leaving: &mut Leaving, scope: ScopeSlot, key: KeyRef<'_>) -> bool {
        let Some(run) = self.slab.get(leaving.run).filter(|run| run.scope == scope) else { return false };
        let Range { start, end } = leaving.blocks;
        if start > run.found().start && run.keys.is(start - 1, key) {
            leaving.blocks.start -= 1;
            // Where a call brings many, they are touched when they leave together.
            if start == end {
                self.places.touch_before(run, start - 1);
            }
            true
        } else if run.found().contains(&end) && run.keys.is(end, key) {
            leaving.blocks.end += 1;
            true
        } else {
            false
        }
    }

    fn leave(&mut self, sequence: u64, holder: HolderId, leaving: &Leaving) -> u64 {
        if leaving.blocks.is_empty() {
            return 0;
        }
        let Some(run) = self.slab.get_mut(leaving.run) else { return 0 };
        let had = cut(&mut run.stretches, holder, leaving.blocks.clone(), (&mut self.pages, sequence));
        if had > 0 {
            self.settle(leaving.run, leaving.blocks.clone());
        }
        had as u64
    }

    /// Lets blocks that nobody holds any more leave a run, after holders have lost some of `lost`.
    pub(super) fn settle(&mut self, number: u32, lost: Range<usize>) {
        let Some(run) = self.slab.get_mut(number) else { return };
        let (scope, before) = (run.scope, run.held_blocks());
        if run.stretches.is_empty() {
            recount(&mut self.keys, scope, before, 0);
            return self.free(number);
        }
        run.give_back_stretches();
        let found = run.found();
        if lost.start <= found.start || found.end <= lost.end {
            let first = run.stretches.iter().map(|stretch| stretch.from()).min().unwrap_or(found.start);
            let last = run.stretches.iter().map(|stretch| stretch.until()).max().unwrap_or(found.end);
            self.places.remove_all(number, run, found.start..first);
            self.places.remove_all(number, run, last..found.end);
            run.head = first as u32;
            run.truncate(last);
        }
        let inside = run.found().start < lost.end && lost.start < run.found().end;
        if run.gaps > 0 || (inside && !run.stretches.iter().any(|stretch| covers(stretch.blocks(), &lost))) {
            run.gaps = (run.found().len() - run.held().len()) as u32;
        }
        let after = run.held_blocks();
        let sparse = run.is_sparse();
        recount(&mut self.keys, scope, before, after);
        if let Some(journal) = &mut self.journal {
            journal.note_loss(number, &run.stretches, &lost);
        }
        if sparse {
            self.squeeze(number);
        }
        self.slab.weigh(number);
    }

    /// Leaves the gaps of a run out; the blocks after them move.
    fn squeeze(&mut self, number: u32) {
        let Some(run) = self.slab.get_mut(number) else { return };
        let held = run.held();
        self.places.remove_all(number, run, run.found());
        run.squeeze(&held);
        for at in run.found() {
            self.places.insert(key_at(run, at).hash(run.scope), Place { run: number, at });
        }
    }

    fn free(&mut self, number: u32) {
        let Some(run) = self.slab.take(number) else { return };
        self.places.remove_all(number, &run, run.found());
    }
}

fn covers(blocks: Range<usize>, others: &Range<usize>) -> bool {
    blocks.start <= others.start && others.end <= blocks.end
}
