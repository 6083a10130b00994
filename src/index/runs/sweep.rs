//! Going over the runs in steps, to drop what no longer counts.

use crate::index::runs::Runs;
use crate::index::runs::key::KeyRef;
use crate::index::runs::stretch::{HolderId, Stretch};
use crate::observation::{ReplicaSlot, ScopeSlot};

/// What a step of the sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Pairs dropped, without those of replicas that were cleared.
    pub dropped: u64,
    /// The same by scope; a scope may come more than once.
    pub by_scope: Vec<(ScopeSlot, u64)>,
    /// The step reached the last run: the next one begins anew.
    pub complete: bool,
}

// === impl Runs ===

impl Runs {
    /// Goes on for about `budget` runs, stretches and blocks dropped, and drops what replicas hold that were cleared, or that
    /// `keep`, given scope, replica and last-seen, does not want. What is said of a replica is forgotten once it holds nothing
    /// and `known` does not want it.
    pub fn sweep(
        &mut self,
        budget: usize,
        keep: impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool,
        known: impl Fn(ReplicaSlot) -> bool,
    ) -> Swept {
        self.sweep_until(u32::MAX, budget, keep, known)
    }

    /// The same, but no run from number `until` on.
    pub fn sweep_until(
        &mut self,
        until: u32,
        budget: usize,
        mut keep: impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool,
        known: impl Fn(ReplicaSlot) -> bool,
    ) -> Swept {
        let mut swept = Swept::default();
        self.pages.tidy_next(&self.slab);
        let mut left = budget.max(1);
        while left > 0 && self.sweep_next < until.min(self.slab.numbers()) {
            let visited = self.slab.get(self.sweep_next).map_or(0, |run| run.stretches.len());
            let mut blocks = 0;
            if visited > 0 {
                let scope = self.slab.get(self.sweep_next).map_or(ScopeSlot(0), |run| run.scope);
                let dropped;
                (dropped, blocks) = self.sweep_run(self.sweep_next, &mut keep);
                swept.dropped += dropped;
                swept.by_scope.extend((dropped > 0).then_some((scope, dropped)));
            }
            self.sweep_next += 1;
            left = left.saturating_sub(1 + visited + blocks);
        }
        if self.sweep_next >= self.slab.numbers() {
            self.sweep_next = 1;
            self.end_of_sweep(known);
            swept.complete = true;
        }
        swept
    }

    /// Drops what replicas hold that were cleared, beside the sweep and with a place of its own: goes on for about `budget` runs
    /// and blocks. True when nothing of them is left.
    pub fn drop_cleared(&mut self, budget: usize) -> bool {
        let mut left = budget.max(1);
        while left > 0 && self.holders.any_retired() {
            self.drop_next = if self.drop_next < self.slab.numbers() { self.drop_next } else { 1 };
            let (_, blocks) = self.sweep_run(self.drop_next, &mut |_, _, _| true);
            self.drop_next += 1;
            left = left.saturating_sub(1 + blocks);
        }
        !self.holders.any_retired()
    }

    /// The number of the run that the sweep goes on with, and one more than the highest number.
    pub fn sweep_at(&self) -> (u32, u32) {
        (self.sweep_next, self.slab.numbers())
    }

    /// The pairs that the next step of the sweep goes over and that `wanted`, given scope, replica and last-seen, accepts: of
    /// about `budget` runs, stretches and such pairs; and the number of the run after those.
    pub fn next_to_sweep(
        &self,
        budget: usize,
        wanted: impl Fn(ScopeSlot, ReplicaSlot, u64) -> bool,
    ) -> (Vec<(ScopeSlot, KeyRef<'_>, ReplicaSlot)>, u32) {
        let (mut found, mut left, mut number) = (Vec::new(), budget.max(1), self.sweep_next);
        while left > 0 && number < self.slab.numbers() {
            let before = found.len();
            // A number without a run is one of which nothing is left.
            let Some(run) = self.slab.get(number) else {
                (left, number) = (left - 1, number + 1);
                continue;
            };
            for stretch in &run.stretches {
                let last_seen_ms = stretch.last_seen_ms().max(self.holders.reasserted_ms(stretch.holder));
                let Some(replica) = self.holders.replica(stretch.holder) else { continue };
                if wanted(run.scope, replica, last_seen_ms) {
                    let keys = stretch.blocks().filter_map(|at| run.keys.get(at));
                    found.extend(keys.map(|key| (run.scope, key, replica)));
                }
            }
            left = left.saturating_sub(1 + run.stretches.len() + found.len() - before);
            number += 1;
        }
        (found, number)
    }

    /// Returns the pairs dropped without those of replicas that were cleared, and all of them.
    fn sweep_run(&mut self, number: u32, keep: &mut impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool) -> (u64, usize) {
        let Some(run) = self.slab.get_mut(number) else { return (0, 0) };
        let scope = run.scope;
        let (holders, pages) = (&self.holders, &mut self.pages);
        let stays = |stretch: &Stretch, keep: &mut dyn FnMut(ScopeSlot, ReplicaSlot, u64) -> bool| {
            let last_seen_ms = stretch.last_seen_ms().max(holders.reasserted_ms(stretch.holder));
            holders.replica(stretch.holder).is_some_and(|replica| keep(scope, replica, last_seen_ms))
        };
        let mut leaving: Vec<(HolderId, u64)> = Vec::new();
        run.stretches.retain(|stretch| {
            let stays = stays(stretch, keep);
            if !stays {
                leaving.push((stretch.holder, stretch.blocks().len() as u64));
                pages.lose(stretch.page(), stretch.blocks().len());
            }
            stays
        });
        if leaving.is_empty() {
            return (0, 0);
        }
        let everywhere = 0..run.len();
        let (mut dropped, mut all) = (0, 0);
        for (holder, blocks) in leaving {
            all += blocks as usize;
            if self.holders.replica(holder).is_some() {
                dropped += blocks;
            }
            self.holders.lose(scope, holder, blocks);
        }
        self.settle(number, everywhere);
        (dropped, all)
    }

    fn end_of_sweep(&mut self, known: impl Fn(ReplicaSlot) -> bool) {
        self.holders.pass(known);
        self.slab.give_back();
        let (slab, holders) = (&self.slab, &self.holders);
        self.loose.retain(|(scope, holder), number| {
            holders.replica(*holder).is_some()
                && slab.get(*number).is_some_and(|run| run.scope == *scope && run.len() > 0)
        });
    }
}
