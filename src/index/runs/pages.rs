//! Which stretches each page of shared data lists.
//!
//! A page is a share of the (block, replica) pairs, whichever runs they are in: the leader names a page with each report, so
//! that what a page lists depends on the log alone and not on how runs came about in this VM or another. A page also
//! says which log sequence it was loaded at: an older record then changes nothing of what it lists.

use crate::index::runs::slab::Slab;
use crate::index::runs::stretch::PAGE_BITS;

/// The most pages.
pub const MAX_PAGES: u32 = 1 << PAGE_BITS;
/// A list that is shorter is not gone over.
const SHORT: usize = 64;

/// All pages.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    all: Vec<Page>,
    /// The page whose list is looked at next.
    tidy_next: u16,
    /// Room in all lists, as asked of the allocator.
    listed: usize,
}

#[derive(Clone, Debug, Default)]
struct Page {
    /// The log sequence it was loaded at.
    as_of: u64,
    pairs: u64,
    /// Numbers of runs with stretches in it; some more than once, some without any more.
    runs: Vec<u32>,
    /// The list is gone over when it is this long.
    tidy_at: usize,
}

// === impl Pages ===

impl Pages {
    pub fn new(pages: u32) -> Pages {
        let page = Page { tidy_at: SHORT, ..Page::default() };
        Pages { all: vec![page; pages.clamp(1, MAX_PAGES) as usize], tidy_next: 0, listed: 0 }
    }

    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }

    /// Pairs in a page, those of replicas that were cleared until the sweep.
    pub fn pairs(&self, page: u16) -> u64 {
        self.get(page).map_or(0, |page| page.pairs)
    }

    /// The log sequence that a page was loaded at; 0 if it was not loaded.
    #[inline]
    pub fn as_of(&self, page: u16) -> u64 {
        self.get(page).map_or(0, |page| page.as_of)
    }

    /// Whether a page says what is true at `sequence` or later.
    #[inline]
    pub fn is_as_of(&self, page: u16, sequence: u64) -> bool {
        self.get(page).is_some_and(|page| page.as_of >= sequence)
    }

    pub fn set_as_of(&mut self, page: u16, as_of: u64) {
        if let Some(page) = self.all.get_mut(usize::from(page)) {
            page.as_of = as_of;
        }
    }

    pub fn gain(&mut self, page: u16, pairs: usize) {
        if let Some(page) = self.all.get_mut(usize::from(page)) {
            page.pairs += pairs as u64;
        }
    }

    pub fn lose(&mut self, page: u16, pairs: usize) {
        if let Some(page) = self.all.get_mut(usize::from(page)) {
            page.pairs = page.pairs.saturating_sub(pairs as u64);
        }
    }

    /// A run has a stretch in a page.
    pub fn list(&mut self, page: u16, run: u32, slab: &Slab) {
        let Some(listed) = self.all.get_mut(usize::from(page)) else { return };
        if listed.runs.last() == Some(&run) {
            return;
        }
        let before = listed.runs.capacity();
        listed.runs.push(run);
        if listed.runs.len() >= listed.tidy_at {
            listed.tidy(page, slab);
        }
        self.listed = self.listed + listed.runs.capacity() - before;
    }

    /// Gives memory back of the next page whose list is longer than what is in it can need.
    pub fn tidy_next(&mut self, slab: &Slab) {
        let Pages { all, tidy_next, listed: room } = self;
        let page = usize::from(*tidy_next);
        *tidy_next = if page + 1 < all.len() { *tidy_next + 1 } else { 0 };
        if let Some(listed) = all.get_mut(page)
            && listed.runs.len() > SHORT
            && listed.runs.len() as u64 > 2 * listed.pairs
        {
            let before = listed.runs.capacity();
            listed.tidy(page as u16, slab);
            *room = *room + listed.runs.capacity() - before;
        }
    }

    /// The runs with stretches in a page, in order, each once.
    pub fn runs(&self, page: u16, slab: &Slab) -> Vec<u32> {
        let mut runs = self.get(page).map_or_else(Vec::new, |page| page.runs.clone());
        runs.sort_unstable();
        runs.dedup();
        runs.retain(|run| has_stretch(slab, *run, page));
        runs
    }

    /// A page lists nothing any more.
    pub fn forget_runs(&mut self, page: u16) {
        if let Some(page) = self.all.get_mut(usize::from(page)) {
            self.listed -= page.runs.capacity();
            page.runs = Vec::new();
            page.tidy_at = SHORT;
        }
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        self.listed * size_of::<u32>() + self.all.capacity() * size_of::<Page>()
    }

    #[inline]
    fn get(&self, page: u16) -> Option<&Page> {
        self.all.get(usize::from(page))
    }
}

// === impl Page ===

impl Page {
    /// Leaves out of the list what is in it twice, and runs that have nothing in this page, number `page`, any more.
    fn tidy(&mut self, page: u16, slab: &Slab) {
        self.runs.sort_unstable();
        self.runs.dedup();
        self.runs.retain(|run| has_stretch(slab, *run, page));
        self.tidy_at = SHORT.max(self.runs.len() * 2);
        self.runs.shrink_to(self.tidy_at);
    }
}

fn has_stretch(slab: &Slab, run: u32, page: u16) -> bool {
    slab.get(run).is_some_and(|run| run.stretches.iter().any(|stretch| stretch.page() == page))
}
