//! Going over the runs in steps, to drop what no longer counts.

use crate::index::runs::Runs;
use crate::index::runs::stretch::{HolderId, Stretch};
use crate::observation::{ReplicaSlot, ScopeSlot};

/// What a step of the sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Pairs dropped, without those of replicas that were cleared.
    pub dropped: u64,
    /// The step reached the last run: the next one begins anew.
    pub complete: bool,
}

// === impl Runs ===

impl Runs {
    /// Goes on for about `budget` runs and stretches, and drops what replicas hold that were cleared, or that `keep`, given
    /// scope, replica and last-seen, does not want.
    pub fn sweep(&mut self, budget: usize, mut keep: impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool) -> Swept {
        let mut swept = Swept::default();
        let mut left = budget.max(1);
        while left > 0 {
            if self.sweep_next >= self.slab.numbers() {
                self.sweep_next = 1;
                self.end_of_sweep();
                swept.complete = true;
                break;
            }
            let visited = self.slab.get(self.sweep_next).map_or(0, |run| run.stretches.len());
            if visited > 0 {
                swept.dropped += self.sweep_run(self.sweep_next, &mut keep);
            }
            self.sweep_next += 1;
            left = left.saturating_sub(1 + visited);
        }
        swept
    }

    /// Goes over everything.
    pub fn retain(&mut self, mut keep: impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool) -> u64 {
        (1..self.slab.numbers()).map(|number| self.sweep_run(number, &mut keep)).sum()
    }

    fn sweep_run(&mut self, number: u32, keep: &mut impl FnMut(ScopeSlot, ReplicaSlot, u64) -> bool) -> u64 {
        let Some(run) = self.slab.get_mut(number) else { return 0 };
        let scope = run.scope;
        let holders = &self.holders;
        let stays = |stretch: &Stretch, keep: &mut dyn FnMut(ScopeSlot, ReplicaSlot, u64) -> bool| {
            holders.replica(stretch.holder).is_some_and(|replica| keep(scope, replica, stretch.last_seen_ms()))
        };
        let mut leaving: Vec<(HolderId, u64)> = Vec::new();
        run.stretches.retain(|stretch| {
            let stays = stays(stretch, keep);
            if !stays {
                leaving.push((stretch.holder, stretch.blocks().len() as u64));
            }
            stays
        });
        if leaving.is_empty() {
            return 0;
        }
        let everywhere = 0..run.len();
        let mut dropped = 0;
        for (holder, blocks) in leaving {
            if self.holders.replica(holder).is_some() {
                dropped += blocks;
            }
            self.holders.lose(scope, holder, blocks);
        }
        self.settle(number, everywhere);
        dropped
    }

    fn end_of_sweep(&mut self) {
        self.holders.pass();
        let (slab, holders) = (&self.slab, &self.holders);
        self.loose.retain(|(scope, holder), number| {
            holders.replica(*holder).is_some()
                && slab.get(*number).is_some_and(|run| run.scope == *scope && run.len() > 0)
        });
    }
}
