//! What one page lists.

use std::ops::Range;

use crate::index::runs::Runs;
use crate::index::runs::key::KeyRef;
use crate::index::runs::run::Run;
use crate::index::runs::stretch::Stretch;
use crate::observation::{ReplicaSlot, ScopeSlot, Tier};

/// Consecutive blocks that a replica holds in the same way.
#[derive(Clone, Copy, Debug)]
pub struct HeldRun<'a> {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    run: &'a Run,
    stretch: &'a Stretch,
}

// === impl Runs ===

impl Runs {
    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.slab.pages()
    }

    /// What a page lists. Storing it all, in this order and with the page's number, rebuilds the page's part of an index.
    pub fn page(&self, page: u32) -> impl Iterator<Item = HeldRun<'_>> {
        let runs = self.slab.of_page(page).iter().filter_map(|number| self.slab.get(*number));
        runs.flat_map(move |run| {
            let held = run.stretches.iter().filter_map(move |stretch| {
                Some(HeldRun { replica: self.holders.replica(stretch.holder)?, run, stretch })
            });
            let mut held: Vec<HeldRun<'_>> = held.collect();
            // In the order of the chain, so that the run grows at its end when it is stored again.
            held.sort_by_key(|held| held.stretch.from());
            held
        })
    }
}

// === impl HeldRun ===

impl HeldRun<'_> {
    /// What the keys are relative to.
    pub fn scope(&self) -> ScopeSlot {
        self.run.scope
    }

    /// Where the replica has the blocks.
    pub fn tier(&self) -> Tier {
        self.stretch.tier()
    }

    /// When it last reported them.
    pub fn last_seen_ms(&self) -> u64 {
        self.stretch.last_seen_ms()
    }

    /// Delivered hits of each block.
    pub fn access_count(&self) -> u32 {
        self.stretch.access_count
    }

    /// The keys are prefix hashes, each made from the one before it.
    pub fn chained(&self) -> bool {
        self.run.chained
    }

    /// The block before the first one, if the run has it.
    pub fn parent(&self) -> Option<KeyRef<'_>> {
        let before = self.stretch.from().checked_sub(1).filter(|at| self.run.found().contains(at))?;
        self.run.keys.get(before)
    }

    /// Keys, and tokens from the start of the prompt to each block's end.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (KeyRef<'_>, u32)> {
        let at: Range<usize> = self.stretch.blocks();
        at.map(|at| (self.run.keys.get(at).unwrap_or(KeyRef::Hash(0)), self.stretch.token_count(at)))
    }
}
