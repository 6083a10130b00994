//! What changed since somebody last asked: for whoever keeps an order of what is held.

use std::ops::Range;

use crate::index::runs::Runs;
use crate::index::runs::stretch::{HolderId, Stretch, of_holder};
use crate::observation::{BlockKey, ReplicaSlot, ScopeSlot};

/// Blocks of a run that some replica holds since then, or that were hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The run's number.
    pub run: u32,
    /// Delivered hits.
    pub access_count: u32,
    /// When the blocks were last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// Nothing changed for this replica: another one lost some of the blocks, or has them from an earlier time now.
    pub left_behind: bool,
}

/// Consecutive blocks of a run that a replica holds in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// Delivered hits.
    pub access_count: u32,
    /// When the blocks were last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// The offset of the first.
    pub from: usize,
    /// The offset after the last.
    pub until: usize,
}

/// The changes since the last look, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal(Vec<Change>);

// === impl Journal ===

impl Journal {
    /// Something was said of what a holder has of these blocks of a run.
    pub fn note(&mut self, run: u32, stretches: &[Stretch], holder: HolderId, blocks: &Range<usize>) {
        let of_holder = stretches.get(of_holder(stretches, holder)).unwrap_or_default();
        let touched = of_holder.iter().filter(|stretch| stretch.from() < blocks.end && blocks.start < stretch.until());
        for stretch in touched {
            self.push(run, stretch, false);
        }
    }

    /// Some replica no longer has these blocks of a run, or from an earlier time; others may be the newest holders now.
    pub fn note_loss(&mut self, run: u32, stretches: &[Stretch], blocks: &Range<usize>) {
        for stretch in stretches.iter().filter(|left| left.from() < blocks.end && blocks.start < left.until()) {
            self.push(run, stretch, true);
        }
    }

    fn push(&mut self, run: u32, stretch: &Stretch, left_behind: bool) {
        let (access_count, last_seen_ms) = (stretch.access_count, stretch.last_seen_ms());
        let change = Change { run, access_count, last_seen_ms, left_behind };
        if self.0.last() != Some(&change) {
            self.0.push(change);
        }
    }
}

// === impl Runs ===

impl Runs {
    /// Keeps note of changes from now on, or no longer.
    pub fn keep_journal(&mut self, keep: bool) {
        self.journal = keep.then(Journal::default);
    }

    /// Whether changes are noted.
    pub fn keeps_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// The changes since the last call.
    pub fn take_journal(&mut self) -> Vec<Change> {
        self.journal.as_mut().map(|journal| std::mem::take(&mut journal.0)).unwrap_or_default()
    }

    /// One more than the highest number of a run; the lowest is 1.
    pub fn run_numbers(&self) -> u32 {
        self.slab.numbers()
    }

    /// What a run's keys are relative to, and whether they are known to follow each other; nothing if there is no such run.
    pub fn run(&self, run: u32) -> Option<(ScopeSlot, bool)> {
        self.slab.get(run).filter(|run| !run.stretches.is_empty()).map(|run| (run.scope, !run.loose))
    }

    /// What replicas hold of a run, without those that were cleared.
    pub fn spans(&self, run: u32) -> impl Iterator<Item = Span> {
        let run = self.slab.get(run);
        run.into_iter().flat_map(|run| &run.stretches).filter_map(|stretch| {
            Some(Span {
                replica: self.holders.replica(stretch.holder)?,
                access_count: stretch.access_count,
                last_seen_ms: stretch.last_seen_ms(),
                from: stretch.from(),
                until: stretch.until(),
            })
        })
    }

    /// The replicas that hold the block at an offset of a run, without those that were cleared.
    pub fn holders_at(&self, run: u32, at: usize) -> impl Iterator<Item = ReplicaSlot> {
        let run = self.slab.get(run);
        let covering = run.into_iter().flat_map(|run| &run.stretches).filter(move |stretch| stretch.covers(at));
        covering.filter_map(|stretch| self.holders.replica(stretch.holder))
    }

    /// The key at an offset of a run.
    pub fn run_key(&self, run: u32, at: usize) -> Option<BlockKey> {
        self.slab.get(run)?.keys.get(at).map(|key| key.to_key())
    }
}
