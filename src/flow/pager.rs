//! Which page of shared data lists the blocks of a report, and what hits the log says that they have.
//!
//! Reports are listed by the same page until it has its share of what the index may hold, so that what is stored one after
//! the other stays together; then comes the next page that is less than half full. A page is rewritten as a whole: its
//! share bounds the time and bytes of that.
//!
//! A block that is stored again moves to another page, and whoever loads that page in an older version, and a newer one
//! of where it was, no longer knows its hits. So where blocks have hits, or may get some, the log says how many.

use std::collections::HashSet;

use crate::index::Index;
use crate::observation::{BlockKey, Observation, ReplicaSlot, Scope, ScopeSlot, Stored};

/// Chooses pages.
#[derive(Debug)]
pub struct Pager {
    page: u16,
    /// Pairs named for the page since it was chosen that may not be in the index yet.
    named: u64,
    /// Pairs that a page may list.
    share: u64,
}

/// What earlier records of a commit take away, where hits are said.
#[derive(Debug, Default)]
struct Taken {
    blocks: HashSet<(ScopeSlot, ReplicaSlot, BlockKey)>,
    replicas: HashSet<ReplicaSlot>,
}

// === impl Pager ===

impl Pager {
    /// For an index of `pages` pages that holds `max_pairs` pairs. A page's share is twice what it would be if all were alike,
    /// so that one that is less than half full is never far.
    pub fn new(pages: u16, max_pairs: u64) -> Pager {
        let share = max_pairs.saturating_mul(2).div_ceil(u64::from(pages.max(1)));
        Pager { page: 0, named: 0, share: share.max(1) }
    }

    /// Names a page in each report of `records`, which are committed next. A report of a scope where `counts_hits`, or that
    /// has hits from when they counted, is told in parts that have the same hits.
    pub fn name_pages(
        &mut self,
        index: &Index,
        records: Vec<Observation>,
        counts_hits: impl Fn(&Scope) -> bool,
    ) -> Vec<Observation> {
        self.named = 0;
        let says_hits = |slot| index.has_hits(slot) || index.dictionary().scope(slot).is_some_and(&counts_hits);
        let mut taken = Taken::default();
        let mut named = Vec::with_capacity(records.len());
        for record in records {
            match record {
                Observation::Stored(stored) => {
                    let stored = self.name_page(index, stored);
                    if says_hits(stored.scope) {
                        by_hits(index, &taken, stored, &mut named);
                    } else {
                        named.push(Observation::Stored(stored));
                    }
                }
                other => {
                    match &other {
                        Observation::Removed { replica, scope, keys } if says_hits(*scope) => {
                            taken.blocks.extend(keys.iter().map(|key| (*scope, *replica, key.clone())));
                        }
                        Observation::Cleared { replica } => {
                            taken.replicas.insert(*replica);
                        }
                        _ => {}
                    }
                    named.push(other);
                }
            }
        }
        named
    }

    fn name_page(&mut self, index: &Index, stored: Stored) -> Stored {
        let blocks = stored.blocks.len() as u64;
        if index.page_pairs(self.page).saturating_add(self.named) >= self.share {
            self.page = next_page(index, self.page, self.share / 2);
            self.named = 0;
        }
        self.named += blocks;
        Stored { page: self.page, ..stored }
    }
}

// === impl Taken ===

impl Taken {
    /// Hits of a block that is stored after what was taken.
    fn hits_left(&self, index: &Index, (scope, replica): (ScopeSlot, ReplicaSlot), key: &BlockKey) -> u32 {
        let is_taken = self.replicas.contains(&replica)
            || !self.blocks.is_empty() && self.blocks.contains(&(scope, replica, key.clone()));
        if is_taken { 0 } else { index.access_count(scope, key, replica).unwrap_or(0) }
    }
}

/// Parts of a report that say the hits of their blocks, each of blocks that have the same.
fn by_hits(index: &Index, taken: &Taken, stored: Stored, out: &mut Vec<Observation>) {
    let at = (stored.scope, stored.replica);
    let hits: Vec<u32> = stored.blocks.iter().map(|block| taken.hits_left(index, at, &block.key)).collect();
    let Stored { blocks, mut parent, .. } = stored;
    let mut blocks = blocks.into_iter();
    for same in hits.chunk_by(|one, next| one == next) {
        let blocks: Vec<_> = blocks.by_ref().take(same.len()).collect();
        let last = blocks.last().map(|block| block.key.clone());
        let access_count = same.first().copied();
        let part = Stored { parent: std::mem::replace(&mut parent, last), access_count, blocks, ..stored };
        out.push(Observation::Stored(part));
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
    use crate::observation::{Counted, Member, ReplicaCounts, StoredBlock};

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
            let records = pager.name_pages(&index, vec![report(blocks)], |_| false);
            assert_eq!(pages_of(&records), expected);
            for record in records {
                sequence += 1;
                index.apply(sequence, record);
            }
        }
        assert_eq!((0..4).map(|page| index.page_pairs(page)).collect::<Vec<_>>(), [1_024, 1, 0, 0]);
        let many: Vec<Observation> = (0..6).map(|at| report(10_000 + at * 512..10_512 + at * 512)).collect();
        let records = pager.name_pages(&index, many, |_| false);
        assert_eq!(pages_of(&records), [(1, 512), (1, 512), (2, 512), (2, 512), (3, 512), (3, 512)]);
    }

    const KEPT: [u64; 4] = [1, 2, 3, 4];

    fn known(pages: u32) -> Index {
        let mut index = Index::new(pages);
        let scope =
            Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "s".into(), adapter_id: String::new() };
        index.apply(1, Observation::Scope { slot: ScopeSlot(1), scope });
        let member = Member::new("t", "m", "a");
        index.apply(
            1,
            Observation::ReplicaUp {
                replica: ReplicaSlot(1),
                member,
                address: String::new(),
                data_parallel_rank: None,
            },
        );
        index.apply(1, Observation::ReplicaComplete { replica: ReplicaSlot(1) });
        index
    }

    fn counted(counts: &[u32]) -> Observation {
        let keys = KEPT.iter().take(counts.len()).map(|key| BlockKey::Hash64(*key)).collect();
        let replicas = vec![ReplicaCounts { replica: ReplicaSlot(1), counts: counts.to_vec() }];
        Observation::Counted(Counted { scope: ScopeSlot(1), keys, replicas })
    }

    fn hits(index: &Index) -> [Option<u32>; 4] {
        KEPT.map(|key| index.access_count(ScopeSlot(1), &BlockKey::Hash64(key), ReplicaSlot(1)))
    }

    /// A pager whose next report goes to this page of two.
    fn at_page(page: u16) -> Pager {
        Pager { page, ..Pager::new(2, 1 << 20) }
    }

    /// Commits batches, each under the next log sequence; and says what a late VM knows that loads page 0 as of the end, page
    /// 1 as of before the last batch, and replays the rest.
    fn late(leader: &mut Index, batches: Vec<(u16, Vec<Observation>)>) -> Index {
        let mut log = Vec::new();
        let mut old = Vec::new();
        let mut sequence = 1;
        for (page, batch) in batches {
            old = leader.page_observations(1);
            sequence += 1;
            log = at_page(page).name_pages(leader, batch, |_| true);
            log.iter().for_each(|record| leader.apply(sequence, record.clone()));
        }
        let mut late = Index::new(2);
        late.load_dictionary(sequence, &leader.dictionary_observations());
        late.load_page(0, sequence, &leader.page_observations(0));
        late.load_page(1, sequence - 1, &old);
        log.into_iter().for_each(|record| late.apply(sequence, record));
        late
    }

    #[test]
    fn a_block_keeps_its_hits_on_its_way_to_another_page() {
        let mut leader = known(2);
        let batches = vec![(0, vec![report(1..4)]), (0, vec![counted(&[5, 5, 3])]), (1, vec![report(1..5)])];
        let late = late(&mut leader, batches);
        assert_eq!(hits(&leader), [Some(5), Some(5), Some(3), Some(0)]);
        assert_eq!(hits(&late), hits(&leader));
        assert_eq!([leader.page_pairs(0), leader.page_pairs(1)], [0, 4]);
    }

    #[test]
    fn a_block_that_is_taken_first_begins_anew_on_the_other_page() {
        let removed = Observation::Removed {
            replica: ReplicaSlot(1),
            scope: ScopeSlot(1),
            keys: [2, 3].map(BlockKey::Hash64).to_vec(),
        };
        for (taken, left) in [
            (removed, [Some(5), Some(0), Some(0), Some(0)]),
            (Observation::Cleared { replica: ReplicaSlot(1) }, [Some(0); 4]),
        ] {
            let mut leader = known(2);
            let batches = vec![
                (0, vec![report(1..4)]),
                (0, vec![counted(&[5, 5, 3])]),
                (1, vec![report(1..4), taken, report(1..5), report(1..5)]),
            ];
            let late = late(&mut leader, batches);
            assert_eq!(hits(&leader), left);
            assert_eq!(hits(&late), left);
        }
    }

    #[test]
    fn a_report_is_told_in_parts_with_the_same_hits_where_hits_are_said() {
        let mut index = known(2);
        let mut sequence = 1;
        let mut commit = |index: &mut Index, record| {
            sequence += 1;
            index.apply(sequence, record);
        };
        let parts = |index: &Index, counts_hits: bool| -> Vec<(Option<u32>, usize, Option<BlockKey>)> {
            let records = at_page(1).name_pages(index, vec![report(1..5)], |_| counts_hits);
            let part = |record| match record {
                Observation::Stored(part) => (part.access_count, part.blocks.len(), part.parent),
                other => panic!("{other:?}"),
            };
            records.into_iter().map(part).collect()
        };
        let after = |key| Some(BlockKey::Hash64(key));
        commit(&mut index, report(1..5));
        assert_eq!(parts(&index, false), [(None, 4, None)], "nobody asks for its hits");
        assert_eq!(parts(&index, true), [(Some(0), 4, None)]);
        commit(&mut index, counted(&[5, 5, 3]));
        let told = [(Some(5), 2, None), (Some(3), 1, after(2)), (Some(0), 1, after(3))];
        assert_eq!(parts(&index, true), told);
        assert_eq!(parts(&index, false), told, "they count again when the policy does");
    }
}
