//! Which page of shared data lists the blocks of a report.
//!
//! Reports are listed by the same page until it has its share of what the index may hold, so that what is stored one after
//! the other stays together; then comes the next page that is less than half full. A page is rewritten as a whole: its
//! share bounds the time and bytes of that.

use crate::index::Index;
use crate::observation::{Observation, Stored};

/// A page that holds fewer pairs is not worth changing for another.
const FEW_PAIRS: u64 = 256;

/// Chooses pages.
#[derive(Debug)]
pub struct Pager {
    page: u16,
    /// Pairs named for the page since it was chosen that may not be in the index yet.
    named: u64,
    /// Pairs that a page may list.
    share: u64,
}

// === impl Pager ===

impl Pager {
    /// For an index of `pages` pages that holds `max_pairs` pairs. A page's share is twice what it would be if all were alike,
    /// so that one that is less than half full is never far.
    pub fn new(pages: u16, max_pairs: u64) -> Pager {
        let share = max_pairs.saturating_mul(2).div_ceil(u64::from(pages.max(1)));
        Pager { page: 0, named: 0, share: share.max(FEW_PAIRS) }
    }

    /// Names a page in each report of `records`, which are committed next.
    pub fn name_pages(&mut self, index: &Index, records: Vec<Observation>) -> Vec<Observation> {
        self.named = 0;
        let mut named = Vec::with_capacity(records.len());
        for record in records {
            match record {
                Observation::Stored(stored) => self.name_page(index, stored, &mut named),
                other => named.push(other),
            }
        }
        named
    }

    fn name_page(&mut self, index: &Index, stored: Stored, out: &mut Vec<Observation>) {
        let blocks = stored.blocks.len() as u64;
        if index.page_pairs(self.page).saturating_add(self.named) >= self.share {
            self.page = next_page(index, self.page, self.share / 2);
            self.named = 0;
        }
        self.named += blocks;
        out.push(Observation::Stored(Stored { page: self.page, ..stored }));
    }
}

/// The next page after `page` that lists at most `pairs`; where there is none, the one that lists least.
fn next_page(index: &Index, page: u16, pairs: u64) -> u16 {
    let pages = index.pages().max(1);
    let after = (1..=pages).map(|step| ((u32::from(page) + u32::from(step)) % u32::from(pages)) as u16);
    let least = || (0..pages).min_by_key(|page| index.page_pairs(*page)).unwrap_or(0);
    after.into_iter().find(|page| index.page_pairs(*page) <= pairs).unwrap_or_else(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{BlockKey, ReplicaSlot, ScopeSlot, StoredBlock};

    fn report(blocks: std::ops::Range<u64>) -> Observation {
        Observation::Stored(Stored {
            replica: ReplicaSlot(1),
            scope: ScopeSlot(1),
            last_seen_ms: 1,
            chained: true,
            blocks: blocks.map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: 1 }).collect(),
            ..Stored::default()
        })
    }

    fn pages_of(records: &[Observation]) -> Vec<(u16, usize)> {
        let page = |record: &Observation| match record {
            Observation::Stored(stored) => (stored.page, stored.blocks.len()),
            _ => panic!("{record:?}"),
        };
        records.iter().map(page).collect()
    }

    #[test]
    fn a_page_is_filled_to_its_share_and_then_comes_one_that_is_not_half_full() {
        let mut index = Index::new(4);
        let mut pager = Pager::new(4, 2_048);
        let mut sequence = 0;
        for (blocks, expected) in [(0..512, vec![(0, 512)]), (512..1_024, vec![(0, 512)]), (2_000..2_001, vec![(1, 1)])]
        {
            let records = pager.name_pages(&index, vec![report(blocks)]);
            assert_eq!(pages_of(&records), expected);
            for record in records {
                sequence += 1;
                index.apply(sequence, record);
            }
        }
        assert_eq!((0..4).map(|page| index.page_pairs(page)).collect::<Vec<_>>(), [1_024, 1, 0, 0]);
        let many: Vec<Observation> = (0..6).map(|at| report(10_000 + at * 512..10_512 + at * 512)).collect();
        let records = pager.name_pages(&index, many);
        assert_eq!(pages_of(&records), [(1, 512), (1, 512), (2, 512), (2, 512), (3, 512), (3, 512)]);
    }
}
