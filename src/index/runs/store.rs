//! Taking in what replicas report to hold.

use std::ops::Range;

use crate::index::runs::key::{KeyRef, Keys};
use crate::index::runs::places::Places;
use crate::index::runs::run::{MAX_BLOCKS, Run};
use crate::index::runs::stretch::{Counts, HolderId, Stretch, Terms, of_holder, put};
use crate::index::runs::table::Place;
use crate::index::runs::{Report, Runs, recount};
use crate::observation::ScopeSlot;

/// A report whose place in a chain is not known, and that is shorter, does not get a run of its own, unless its blocks are
/// known to follow each other.
const SHORT_REPORT: usize = 8;
/// Blocks whose places are read ahead.
const BATCH: usize = 32;

/// What became of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Blocks that the replica did not hold.
    pub new_pairs: u64,
    /// Blocks left out, as there are no more numbers for runs.
    pub refused: u64,
}

/// Blocks of one run that are yet to be entered for the holder.
struct Pending {
    run: u32,
    blocks: Range<usize>,
    counts: Counts,
}

/// The next blocks of a report, with the hashes of their keys.
struct Batch<'k> {
    blocks: [(KeyRef<'k>, u64, u32); BATCH],
    len: usize,
    next: usize,
    touched: bool,
}

// === impl Runs ===

impl Runs {
    /// The replica has these blocks: keys, with tokens from the start of the prompt to the block's end, in the order of
    /// the chain. What was known of them at this replica is replaced.
    pub fn store<'k, Blocks>(&mut self, report: &Report<'_>, blocks: Blocks) -> Stored
    where
        Blocks: IntoIterator<Item = (KeyRef<'k>, u32), IntoIter: ExactSizeIterator>,
    {
        let mut blocks = blocks.into_iter();
        let mut batch = Batch::default();
        let Report { tier, last_seen_ms, access_count, page, sequence, .. } = *report;
        if self.pages.is_as_of(page, sequence) {
            // What became of the blocks is what the page says; what older pages say of them is not true any more.
            self.remove(sequence, report.scope, report.replica, blocks.map(|(key, _)| key));
            return Stored::default();
        }
        let holder = self.holders.number(report.replica);
        let terms = Terms { holder, tier, last_seen_ms, access_count, page };
        let mut before = report.parent.and_then(|parent| self.find(report.scope, parent));
        let mut pending: Option<Pending> = None;
        let mut stored = Stored::default();
        while let Some((key, hash, count)) = batch.next(&mut blocks, report.scope) {
            let known = before.and_then(|before| self.following(before, key));
            if known.is_none() {
                batch.touch(&mut self.places);
            }
            let coming = 1 + batch.left() + blocks.len();
            let place = known.or_else(|| self.place(report, holder, before, (key, hash), coming));
            let Some(place) = place else {
                stored.refused += 1;
                before = None;
                continue;
            };
            before = Some(place);
            if !pending.as_mut().is_some_and(|pending| pending.goes_on(place, count)) {
                stored.new_pairs += self.enter(&terms, sequence, pending.take());
                pending = Some(Pending::new(place, count));
            }
        }
        stored.new_pairs += self.enter(&terms, sequence, pending);
        self.holders.gain(report.scope, holder, stored.new_pairs);
        stored
    }

    /// The place after `before`, if `key` is there.
    #[inline]
    fn following(&self, before: Place, key: KeyRef<'_>) -> Option<Place> {
        let next = Place { at: before.at + 1, ..before };
        self.slab.get(next.run)?.keys.is(next.at, key).then_some(next)
    }

    /// Where `key` is, the block before it being at `before`; makes a place for it if it has none. `coming` blocks follow
    /// in the report, this one included.
    fn place(
        &mut self,
        report: &Report<'_>,
        holder: HolderId,
        before: Option<Place>,
        (key, hash): (KeyRef<'_>, u64),
        coming: usize,
    ) -> Option<Place> {
        if let Some(known) = self.find_hashed(report.scope, key, hash) {
            return Some(known);
        }
        let follows = before.map(|before| Place { at: before.at + 1, ..before });
        let run = match follows.filter(|next| self.takes(report, next, key)) {
            Some(next) => next.run,
            None if before.is_none() && is_loose(report, coming) => self.loose_run(report, holder, key)?,
            None => self.new_run(report, report.chained, key)?,
        };
        let to = self.slab.get_mut(run)?;
        let place = Place { run, at: to.len() };
        to.push(key, coming.min(MAX_BLOCKS - place.at));
        *self.keys.entry(report.scope).or_default() += 1;
        self.places.insert(hash, place);
        Some(place)
    }

    /// Whether a new key can be added to a run at `next`.
    fn takes(&self, report: &Report<'_>, next: &Place, key: KeyRef<'_>) -> bool {
        self.slab.get(next.run).is_some_and(|run| {
            run.len() == next.at && next.at < MAX_BLOCKS && report.chained == run.chained && run.keys.suits(key)
        })
    }

    fn new_run(&mut self, report: &Report<'_>, chained: bool, key: KeyRef<'_>) -> Option<u32> {
        self.slab.add(Run::new(report.scope, chained, Keys::like(key)))
    }

    /// The run for blocks of the holder whose place in a chain is not known. Its keys prove nothing of each other.
    fn loose_run(&mut self, report: &Report<'_>, holder: HolderId, key: KeyRef<'_>) -> Option<u32> {
        let loose = self.loose.get(&(report.scope, holder)).copied().filter(|number| {
            self.slab.get(*number).is_some_and(|run| {
                run.scope == report.scope && !run.chained && (1..MAX_BLOCKS).contains(&run.len()) && run.keys.suits(key)
            })
        });
        if loose.is_some() {
            return loose;
        }
        let new = self.new_run(report, false, key)?;
        if let Some(run) = self.slab.get_mut(new) {
            run.loose = true;
        }
        self.loose.insert((report.scope, holder), new);
        Some(new)
    }

    fn enter(&mut self, terms: &Terms, sequence: u64, pending: Option<Pending>) -> u64 {
        let Some(Pending { run: number, blocks, counts }) = pending else { return 0 };
        let Some(run) = self.slab.get_mut(number) else { return 0 };
        let span = blocks.clone();
        let older = self.journal.is_some() && was_newer(&run.stretches, terms, &span);
        let new = put(&mut run.stretches, terms, blocks, counts, (&mut self.pages, sequence));
        if run.gaps > 0 {
            let before = run.held_blocks();
            run.gaps = (run.found().len() - run.held().len()) as u32;
            let after = run.held_blocks();
            recount(&mut self.keys, run.scope, before, after);
        }
        if let Some(journal) = &mut self.journal {
            journal.note(number, &run.stretches, terms.holder, &span);
            if older {
                journal.note_loss(number, &run.stretches, &span);
            }
        }
        self.pages.list(terms.page, number, &self.slab);
        self.slab.weigh(number);
        new as u64
    }
}

/// Whether the holder has reported some of the blocks later than it does now: others may be the newest holders then.
fn was_newer(stretches: &[Stretch], terms: &Terms, blocks: &Range<usize>) -> bool {
    let of_holder = stretches.get(of_holder(stretches, terms.holder)).unwrap_or_default();
    let mut touched = of_holder.iter().filter(|old| old.from() < blocks.end && blocks.start < old.until());
    touched.any(|old| old.last_seen_ms() > terms.last_seen_ms)
}

/// Whether a report with no block before it, of which `coming` blocks are left, is nothing but single blocks.
fn is_loose(report: &Report<'_>, coming: usize) -> bool {
    coming < if report.chained { 2 } else { SHORT_REPORT }
}

// === impl Batch ===

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch { blocks: [(KeyRef::Hash(0), 0, 0); BATCH], len: 0, next: 0, touched: false }
    }
}

impl<'k> Batch<'k> {
    /// The next block with its hash, the batch being filled again when it is used up.
    #[inline]
    fn next(
        &mut self,
        blocks: &mut impl Iterator<Item = (KeyRef<'k>, u32)>,
        scope: ScopeSlot,
    ) -> Option<(KeyRef<'k>, u64, u32)> {
        if self.next == self.len {
            (self.len, self.next, self.touched) = (0, 0, false);
            for (slot, (key, count)) in self.blocks.iter_mut().zip(blocks) {
                *slot = (key, key.hash(scope), count);
                self.len += 1;
            }
        }
        let next = self.blocks.get(self.next).filter(|_| self.next < self.len)?;
        self.next += 1;
        Some(*next)
    }

    fn left(&self) -> usize {
        self.len - self.next
    }

    /// Has the places of what is left in cache soon. Only once a batch.
    #[inline]
    fn touch(&mut self, places: &mut Places) {
        if !self.touched {
            self.touched = true;
            let left = self.blocks.get(self.next..self.len).unwrap_or_default();
            left.iter().for_each(|(_, hash, _)| places.touch(*hash));
        }
    }
}

// === impl Pending ===

impl Pending {
    fn new(place: Place, count: u32) -> Pending {
        Pending { run: place.run, blocks: place.at..place.at + 1, counts: Counts { first: count, step: 0 } }
    }

    fn goes_on(&mut self, place: Place, count: u32) -> bool {
        let next = place.run == self.run && place.at == self.blocks.end;
        if !next || !self.counts.continue_with(self.blocks.len(), count) {
            return false;
        }
        self.blocks.end += 1;
        true
    }
}
