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
        self.pages.len()
    }

    /// The log sequence that a page was loaded at; 0 if it was not loaded.
    pub fn page_as_of(&self, page: u16) -> u64 {
        self.pages.as_of(page)
    }

    /// Pairs that a page lists, those of replicas that were cleared until the sweep.
    pub fn page_pairs(&self, page: u16) -> u64 {
        self.pages.pairs(page)
    }

    /// What a page lists, in the order of each run.
    pub fn page(&self, page: u16) -> impl Iterator<Item = HeldRun<'_>> {
        let runs = self.pages.runs(page, &self.slab).into_iter().filter_map(|number| self.slab.get(number));
        runs.flat_map(move |run| self.held(run, move |stretch| stretch.page() == page))
    }

    /// All that is held by replicas that `wanted` accepts, in the order of each run.
    pub fn held_by(&self, wanted: impl Fn(ReplicaSlot) -> bool + Copy) -> impl Iterator<Item = HeldRun<'_>> {
        let runs = (1..self.slab.numbers()).filter_map(|number| self.slab.get(number));
        runs.flat_map(move |run| {
            self.held(run, move |stretch| self.holders.replica(stretch.holder).is_some_and(wanted))
        })
    }

    /// Blocks that a replica holds in runs with numbers from `from` on, about `budget` runs, stretches and blocks; and the
    /// number to go on from, if there may be more. Some may come again unless they are removed meanwhile.
    pub fn blocks_from(
        &self,
        from: u32,
        budget: usize,
        replica: ReplicaSlot,
    ) -> (Vec<(ScopeSlot, KeyRef<'_>)>, Option<u32>) {
        let Some(holder) = self.holders.get(replica) else { return (Vec::new(), None) };
        let (mut held, mut left) = (Vec::new(), budget.max(1));
        for number in from.max(1)..self.slab.numbers() {
            if let Some(run) = self.slab.get(number) {
                let stretches = run.stretches.iter().filter(|stretch| stretch.holder == holder);
                let keys = stretches.flat_map(|stretch| stretch.blocks()).filter_map(|at| run.keys.get(at));
                for key in keys {
                    if left == 0 {
                        return (held, Some(number));
                    }
                    held.push((run.scope, key));
                    left -= 1;
                }
                left = left.saturating_sub(run.stretches.len());
            }
            left = left.saturating_sub(1);
            if left == 0 {
                return (held, Some(number + 1));
            }
        }
        (held, None)
    }

    /// Begins to load a page, true of log sequence `as_of`: what it listed is gone, and what it lists is to be stored with that
    /// sequence before [`Runs::loaded_page`].
    pub fn load_page(&mut self, page: u16) {
        for number in self.pages.runs(page, &self.slab) {
            let Some(run) = self.slab.get_mut(number) else { continue };
            let (scope, everywhere) = (run.scope, 0..run.len());
            let mut leaving = Vec::new();
            run.stretches.retain(|stretch| {
                let stays = stretch.page() != page;
                if !stays {
                    leaving.push((stretch.holder, stretch.blocks().len()));
                }
                stays
            });
            for (holder, blocks) in leaving {
                self.pages.lose(page, blocks);
                self.holders.lose(scope, holder, blocks as u64);
            }
            self.settle(number, everywhere);
        }
        self.pages.forget_runs(page);
        self.pages.set_as_of(page, 0);
    }

    /// All that a page lists, true of `as_of`, is stored.
    pub fn loaded_page(&mut self, page: u16, as_of: u64) {
        self.pages.set_as_of(page, as_of);
    }

    fn held<'a>(&'a self, run: &'a Run, wanted: impl Fn(&Stretch) -> bool) -> Vec<HeldRun<'a>> {
        let held = run
            .stretches
            .iter()
            .filter(|stretch| wanted(stretch))
            .filter_map(|stretch| Some(HeldRun { replica: self.holders.replica(stretch.holder)?, run, stretch }));
        let mut held: Vec<HeldRun<'_>> = held.collect();
        // In the order of the chain, so that the run grows at its end when it is stored again.
        held.sort_by_key(|held| held.stretch.from());
        held
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

    /// The page that lists the blocks.
    pub fn page(&self) -> u16 {
        self.stretch.page()
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
