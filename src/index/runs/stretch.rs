//! A stretch: consecutive blocks of a run that one holder has in the same way.
//!
//! A run keeps its stretches sorted by holder, then by offset; those of one holder do not overlap. Two that follow each
//! other and say the same are one. A stretch is 24 bytes, however many blocks it covers:
//!
//! ```text
//! holder u32 | access count u32 | token count of the first block u32 | last seen, low 32 bits
//! from 11 bits, until 12, page low 9 | last seen, high 10 bits, page high 6 | step 14 bits, tier 2
//! ```

use std::ops::Range;

use crate::index::runs::pages::Pages;
use crate::index::runs::table::OFFSET_BITS;
use crate::observation::Tier;

/// Longest step of token counts within a stretch; a block after a longer one starts another stretch.
const MAX_STEP: u32 = (1 << 14) - 1;
/// A time is kept in 42 bits: good until the year 2109. A later one is taken for that.
const MAX_MS: u64 = (1 << 42) - 1;
const UNTIL_BITS: u32 = OFFSET_BITS + 1;
const PAGE_LOW_BITS: u32 = u32::BITS - OFFSET_BITS - UNTIL_BITS;
const SEEN_HIGH_BITS: u32 = 10;
/// Bits of a page's number.
pub(super) const PAGE_BITS: u32 = PAGE_LOW_BITS + 16 - SEEN_HIGH_BITS;

/// A generation of a replica, by the index's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HolderId(pub u32);

/// What a holder has of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub holder: HolderId,
    /// Delivered hits.
    pub access_count: u32,
    /// Token count of the first block.
    first_count: u32,
    last_seen_low: u32,
    /// Where it begins and ends, and the lower bits of the page.
    span_and_page: u32,
    /// The upper bits of last-seen and of the page.
    high: u16,
    /// Tokens from a block to the next, and the tier's number in the two high bits.
    step_and_tier: u16,
}

/// What all blocks of a stretch have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub holder: HolderId,
    pub tier: Tier,
    pub last_seen_ms: u64,
    /// Delivered hits; nothing leaves them as they were, 0 for a block not held before.
    pub access_count: Option<u32>,
    /// The page that lists the blocks.
    pub page: u16,
}

/// Token counts of consecutive blocks: `first`, `first + step`, …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub first: u32,
    pub step: u32,
}

// === impl Stretch ===

impl Stretch {
    pub fn new(terms: &Terms, blocks: Range<usize>, counts: Counts) -> Stretch {
        let last_seen_ms = terms.last_seen_ms.min(MAX_MS);
        let page = u32::from(terms.page);
        let stretch = Stretch {
            holder: terms.holder,
            access_count: terms.access_count.unwrap_or(0),
            first_count: counts.first,
            last_seen_low: last_seen_ms as u32,
            span_and_page: page & ((1 << PAGE_LOW_BITS) - 1),
            high: (last_seen_ms >> 32) as u16 | ((page >> PAGE_LOW_BITS) << SEEN_HIGH_BITS) as u16,
            step_and_tier: counts.step.min(MAX_STEP) as u16 | u16::from(terms.tier.number()) << 14,
        };
        stretch.spanning(blocks)
    }

    #[inline]
    pub fn from(&self) -> usize {
        (self.span_and_page >> (UNTIL_BITS + PAGE_LOW_BITS)) as usize
    }

    #[inline]
    pub fn until(&self) -> usize {
        (self.span_and_page >> PAGE_LOW_BITS) as usize & ((1 << UNTIL_BITS) - 1)
    }

    /// The page that lists it.
    #[inline]
    pub fn page(&self) -> u16 {
        let low = self.span_and_page & ((1 << PAGE_LOW_BITS) - 1);
        (self.high >> SEEN_HIGH_BITS) << PAGE_LOW_BITS | low as u16
    }

    /// The same of other blocks.
    fn spanning(self, blocks: Range<usize>) -> Stretch {
        let page_low = self.span_and_page & ((1 << PAGE_LOW_BITS) - 1);
        let span = (blocks.start as u32) << UNTIL_BITS | blocks.end as u32;
        Stretch { span_and_page: span << PAGE_LOW_BITS | page_low, ..self }
    }

    #[inline]
    pub fn blocks(&self) -> Range<usize> {
        self.from()..self.until()
    }

    #[inline]
    pub fn covers(&self, at: usize) -> bool {
        self.from() <= at && at < self.until()
    }

    #[inline]
    pub fn last_seen_ms(&self) -> u64 {
        u64::from(self.high & ((1 << SEEN_HIGH_BITS) - 1)) << 32 | u64::from(self.last_seen_low)
    }

    #[inline]
    pub fn tier(&self) -> Tier {
        Tier::from_number(u32::from(self.step_and_tier >> 14))
    }

    pub fn token_count(&self, at: usize) -> u32 {
        self.first_count.wrapping_add(self.step().wrapping_mul(at.wrapping_sub(self.from()) as u32))
    }

    /// This stretch, but covering `blocks` only, which it must cover.
    pub fn cut_to(&self, blocks: Range<usize>) -> Stretch {
        Stretch { first_count: self.token_count(blocks.start), ..*self }.spanning(blocks)
    }

    /// This stretch with its first block at `from`.
    pub fn moved_to(&self, from: usize) -> Stretch {
        self.spanning(from..from + self.blocks().len())
    }

    /// Takes in `next` if the two are one.
    pub fn join(&mut self, next: &Stretch) -> bool {
        let alike = (self.holder, self.until(), self.access_count) == (next.holder, next.from(), next.access_count)
            && (self.last_seen_low, self.high) == (next.last_seen_low, next.high)
            && (self.page(), self.tier()) == (next.page(), next.tier());
        if !alike {
            return false;
        }
        let last = self.token_count(self.until().saturating_sub(1));
        let Some(step) = next.first_count.checked_sub(last).filter(|step| *step <= MAX_STEP) else { return false };
        let fits = |stretch: &Stretch| stretch.blocks().len() == 1 || stretch.step() == step;
        if !fits(self) || !fits(next) {
            return false;
        }
        *self = self.spanning(self.from()..next.until());
        self.step_and_tier = step as u16 | self.step_and_tier & !(MAX_STEP as u16);
        true
    }

    fn step(&self) -> u32 {
        u32::from(self.step_and_tier) & MAX_STEP
    }
}

// === impl Counts ===

impl Counts {
    /// Whether `count` is that of the block after `blocks` blocks; the second block decides the step.
    pub fn continue_with(&mut self, blocks: usize, count: u32) -> bool {
        let last = self.first.wrapping_add(self.step.wrapping_mul(blocks.saturating_sub(1) as u32));
        let Some(step) = count.checked_sub(last).filter(|step| *step <= MAX_STEP) else { return false };
        if blocks == 1 {
            self.step = step;
        }
        self.step == step
    }
}

/// The stretches of `holder` among sorted ones.
pub(super) fn of_holder(stretches: &[Stretch], holder: HolderId) -> Range<usize> {
    let from = stretches.partition_point(|stretch| stretch.holder < holder);
    let rest = stretches.get(from..).unwrap_or_default();
    from..from + rest.partition_point(|stretch| stretch.holder == holder)
}

/// Lets the holder of `terms` have `blocks` as of log sequence `sequence`, whatever it had of them before; what a page has
/// of them as of then or later stays. Returns how many it did not have.
pub(super) fn put(
    stretches: &mut Vec<Stretch>,
    terms: &Terms,
    blocks: Range<usize>,
    counts: Counts,
    (pages, sequence): (&mut Pages, u64),
) -> usize {
    let new = Stretch::new(terms, blocks, counts);
    let after = stretches.partition_point(|other| (other.holder, other.from()) < (new.holder, new.from()));
    let next_is_clear = stretches.get(after).is_none_or(|next| next.holder != new.holder || new.until() < next.from());
    let last = after.checked_sub(1).and_then(|at| stretches.get_mut(at));
    let last_is_clear = last.as_ref().is_none_or(|last| last.holder != new.holder || last.until() <= new.from());
    if !next_is_clear || !last_is_clear {
        return overlay(stretches, &new, terms.access_count, (pages, sequence));
    }
    // The usual case: nothing there yet, and at most the stretch before to go on with.
    if !last.is_some_and(|last| last.join(&new)) {
        if stretches.len() == stretches.capacity() {
            stretches.reserve_exact(1 + stretches.len() / 4);
        }
        stretches.insert(after, new);
    }
    pages.gain(new.page(), new.blocks().len());
    new.blocks().len()
}

/// The general case of [`put`]: the holder's stretches are laid out anew.
fn overlay(
    stretches: &mut Vec<Stretch>,
    new: &Stretch,
    access_count: Option<u32>,
    (pages, sequence): (&mut Pages, u64),
) -> usize {
    let of_holder = of_holder(stretches, new.holder);
    let olds = stretches.get(of_holder.clone()).unwrap_or_default();
    let mut laid = Vec::with_capacity(olds.len() + 2);
    for old in olds.iter().filter(|old| old.from() < new.from()) {
        add(&mut laid, old.cut_to(old.from()..old.until().min(new.from())));
    }
    let mut next = new.from();
    let mut had = 0;
    for old in olds.iter().filter(|old| old.from() < new.until() && new.from() < old.until()) {
        let both = old.from().max(new.from())..old.until().min(new.until());
        if next < both.start {
            add(&mut laid, new.cut_to(next..both.start));
        }
        next = both.end;
        had += both.len();
        if pages.is_as_of(old.page(), sequence) {
            add(&mut laid, old.cut_to(both));
            continue;
        }
        pages.lose(old.page(), both.len());
        pages.gain(new.page(), both.len());
        let access_count = access_count.unwrap_or(old.access_count);
        add(&mut laid, Stretch { access_count, ..new.cut_to(both) });
    }
    if next < new.until() {
        add(&mut laid, new.cut_to(next..new.until()));
    }
    for old in olds.iter().filter(|old| old.until() > new.until()) {
        add(&mut laid, old.cut_to(old.from().max(new.until())..old.until()));
    }
    stretches.splice(of_holder, laid);
    let gained = new.blocks().len() - had;
    pages.gain(new.page(), gained);
    gained
}

/// Takes `blocks` from `holder` as of log sequence `sequence`; what a page has of them as of then or later stays. Returns how
/// many of them it had.
pub(super) fn cut(
    stretches: &mut Vec<Stretch>,
    holder: HolderId,
    blocks: Range<usize>,
    (pages, sequence): (&mut Pages, u64),
) -> usize {
    let of_holder = of_holder(stretches, holder);
    let olds = stretches.get(of_holder.clone()).unwrap_or_default();
    let first = of_holder.start + olds.partition_point(|old| old.until() <= blocks.start);
    let last = of_holder.start + olds.partition_point(|old| old.from() < blocks.end);
    if first >= last {
        return 0;
    }
    let touched = stretches.get(first..last).unwrap_or_default();
    let mut had = 0;
    let mut stays: [Option<Stretch>; 2] = [None, None];
    if touched.iter().any(|old| pages.is_as_of(old.page(), sequence)) {
        // A replay, with pages of different ages.
        let mut laid = Vec::with_capacity(touched.len() + 2);
        for old in touched {
            had += leave(old, &blocks, (&mut *pages, sequence), &mut |piece| laid.push(piece));
        }
        stretches.splice(first..last, laid);
        return had;
    }
    let mut next = stays.iter_mut();
    for old in touched {
        had += leave(old, &blocks, (&mut *pages, sequence), &mut |piece| {
            if let Some(free) = next.next() {
                *free = Some(piece);
            }
        });
    }
    match (stays, stretches.get_mut(first)) {
        ([Some(stays), None], Some(only)) if last - first == 1 => *only = stays,
        _ => drop(stretches.splice(first..last, stays.into_iter().flatten())),
    }
    had
}

/// What stays of `old` without `blocks`, in order. Returns how many blocks go.
fn leave(
    old: &Stretch,
    blocks: &Range<usize>,
    (pages, sequence): (&mut Pages, u64),
    stays: &mut impl FnMut(Stretch),
) -> usize {
    if pages.is_as_of(old.page(), sequence) {
        stays(*old);
        return 0;
    }
    let (from, until) = (old.from().max(blocks.start), old.until().min(blocks.end));
    pages.lose(old.page(), until - from);
    if old.from() < from {
        stays(old.cut_to(old.from()..from));
    }
    if until < old.until() {
        stays(old.cut_to(until..old.until()));
    }
    until - from
}

/// Sets delivered hits of what `holder` has of `blocks` as of log sequence `sequence`; `count` gives them from what they are.
pub(super) fn count(
    stretches: &mut Vec<Stretch>,
    holder: HolderId,
    blocks: Range<usize>,
    (pages, sequence): (&Pages, u64),
    count: impl Fn(u32) -> u32,
) {
    let of_holder = of_holder(stretches, holder);
    let mut laid = Vec::new();
    for old in stretches.get(of_holder.clone()).unwrap_or_default() {
        let (from, until) = (old.from().max(blocks.start), old.until().min(blocks.end));
        if from >= until || pages.is_as_of(old.page(), sequence) {
            add(&mut laid, *old);
            continue;
        }
        let hit = Stretch { access_count: count(old.access_count), ..old.cut_to(from..until) };
        let pieces = [old.cut_to(old.from()..from), hit, old.cut_to(until..old.until())];
        pieces.into_iter().filter(|piece| !piece.blocks().is_empty()).for_each(|piece| add(&mut laid, piece));
    }
    stretches.splice(of_holder, laid);
}

fn add(laid: &mut Vec<Stretch>, stretch: Stretch) {
    if !laid.last_mut().is_some_and(|last| last.join(&stretch)) {
        laid.push(stretch);
    }
}
