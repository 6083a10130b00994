//! What goes first when there is too much.
//!
//! An [`Order`] says which (block, replica) pairs go to keep the cap: least hit first where the tenant's policy is LFU, then
//! longest not reported; [`Prefixes`] which blocks of a tenant go, at all replicas, to keep its quota: longest not reported
//! by anyone. Among blocks of one run that are alike, the later one goes first, since it is of no use without those before
//! it; everything else that is alike goes by tenant, model, scheme, adapter, hash and replica, as in the public contract.
//!
//! Blocks are ordered by runs: for each rank the runs in which something is of that rank, or was. So keeping an order is one
//! entry a change, and what it says is checked when it is asked for. Entries that are no longer true stay until they come
//! first: an order that has [grown](Order::len) is to be made anew, which is done in steps. Re-assertions do not count: what
//! was announced longest ago goes first. Where much is of one rank, a part of it at a time is compared.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::index::Index;
use crate::index::runs::{Change, Span};
use crate::observation::{BlockKey, RESERVED_TENANT, ReplicaSlot, Scope, ScopeSlot};

/// Blocks, or stretches of them, that are compared with each other where more are of one rank.
const COMPARED: usize = 1_024;
/// Stretches that are looked at for that, beyond which no further run is.
const LOOKED_AT: usize = 1 << 15;

/// Hits (0 where they do not count), and last-seen in Unix ms.
type Rank = (u32, u64);

/// A pair that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// What the key is relative to.
    pub scope: ScopeSlot,
    /// The block.
    pub key: BlockKey,
    /// The replica's generation.
    pub replica: ReplicaSlot,
}

/// Runs by rank, some of which have nothing of that rank any more: hits 32 bits, last-seen 64, run 32.
#[derive(Clone, Debug, Default)]
struct Ranked(BTreeSet<u128>);

/// The order in which pairs go.
#[derive(Clone, Debug, Default)]
pub struct Order {
    ranked: Ranked,
    /// Runs below this number are in it, but for what has changed since.
    built: u32,
    /// The scopes in which hits count.
    lfu: HashSet<ScopeSlot>,
}

/// The orders in which blocks of the tenants that have a quota go.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    tenants: HashMap<String, Ranked>,
    built: u32,
}

/// A block that might go next: compared as the contract does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    scope: Arc<Scope>,
    hash: Vec<u8>,
    replica_id: Arc<str>,
    replica: ReplicaSlot,
    run: u32,
    at: usize,
    /// What is alike before it, if that is to go after it: ranges of offsets, the last of them at the end.
    earlier: Vec<(usize, usize)>,
}

// === impl Order ===

impl Order {
    /// Goes on with what was there before, for about `budget` runs and stretches; true when all is in it. `is_lfu` says where
    /// hits count.
    pub fn build(&mut self, index: &Index, budget: usize, is_lfu: impl Fn(&Scope) -> bool) -> bool {
        let from = self.built;
        self.built = go_on(index, from, budget, |run| {
            let Some((scope, _)) = index.runs().run(run) else { return 0 };
            let counts = self.counts(index, scope, &is_lfu);
            self.ranked.add_all(run, index.runs().spans(run), |span| rank(counts, span.access_count, span.last_seen_ms))
        });
        self.built >= index.runs().run_numbers()
    }

    /// Takes in what has changed.
    pub fn note(&mut self, index: &Index, changes: &[Change], is_lfu: impl Fn(&Scope) -> bool) {
        for change in changes.iter().filter(|change| !change.left_behind) {
            let Some((scope, _)) = index.runs().run(change.run) else { continue };
            let counts = self.counts(index, scope, &is_lfu);
            self.ranked.add(rank(counts, change.access_count, change.last_seen_ms), change.run);
        }
    }

    /// At most `max` pairs that go first, in order, of replicas that `counts` accepts, without those of the reserved tenant,
    /// which never count. All of them must go then.
    pub fn next(&mut self, index: &Index, max: usize, counts: impl Fn(ReplicaSlot) -> bool) -> Vec<Victim> {
        let mut victims = Vec::new();
        while victims.len() < max
            && let Some(rank) = self.ranked.first()
        {
            let lfu = &self.lfu;
            let of_rank = |scope: ScopeSlot, span: &Span| {
                rank == self::rank(lfu.contains(&scope), span.access_count, span.last_seen_ms)
            };
            let mut heap = BinaryHeap::new();
            let (mut runs, mut looked_at) = (Vec::new(), 0);
            for run in self.ranked.runs(rank) {
                runs.push(run);
                let Some((scope, follows)) = index.runs().run(run) else { continue };
                let spans = index.runs().spans(run).inspect(|_| looked_at += 1);
                let spans: Vec<Span> = spans.filter(|span| of_rank(scope, span) && counts(span.replica)).collect();
                for alike in spans.chunk_by(|one, next| one.replica == next.replica) {
                    let replica = alike.first().map(|span| span.replica);
                    let alike = alike.iter().map(|span| span.from..span.until);
                    heap.extend(candidates(index, (scope, run, follows), alike, replica).into_iter().map(Reverse));
                }
                if heap.len() >= COMPARED || looked_at >= LOOKED_AT {
                    break;
                }
            }
            let left = take_in_order(index, heap, |candidate| {
                let wanted = victims.len() < max;
                victims.extend(candidate.victim(index).filter(|_| wanted));
                wanted
            });
            self.ranked.drop(rank, runs.into_iter().filter(|run| !left.contains(run)));
        }
        victims
    }

    /// How many entries there are, those that are no longer true included.
    pub fn len(&self) -> usize {
        self.ranked.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn counts(&mut self, index: &Index, slot: ScopeSlot, is_lfu: &impl Fn(&Scope) -> bool) -> bool {
        let counts = index.dictionary().scope(slot).is_some_and(is_lfu);
        if counts {
            self.lfu.insert(slot);
        }
        counts
    }
}

// === impl Prefixes ===

impl Prefixes {
    /// For these tenants; nothing is in it yet.
    pub fn new<'a>(tenants: impl Iterator<Item = &'a String>) -> Prefixes {
        Prefixes { tenants: tenants.map(|tenant_id| (tenant_id.clone(), Ranked::default())).collect(), built: 0 }
    }

    /// As [`Order::build`].
    pub fn build(&mut self, index: &Index, budget: usize) -> bool {
        if self.tenants.is_empty() {
            return true;
        }
        let from = self.built;
        self.built = go_on(index, from, budget, |run| {
            let Some(ranked) = self.ranked_of(index, run) else { return 0 };
            ranked.add_all(run, index.runs().spans(run), |span| (0, span.last_seen_ms))
        });
        self.built >= index.runs().run_numbers()
    }

    /// Takes in what has changed.
    pub fn note(&mut self, index: &Index, changes: &[Change]) {
        for change in changes {
            if let Some(ranked) = self.ranked_of(index, change.run) {
                ranked.add((0, change.last_seen_ms), change.run);
            }
        }
    }

    /// Blocks of a tenant that go first, in order, each with all its holders: at most `blocks` of them, and no more once
    /// there are `pairs` victims. All of them must go then.
    pub fn next(&mut self, index: &Index, tenant_id: &str, blocks: usize, pairs: usize) -> Vec<Victim> {
        let Some(ranked) = self.tenants.get_mut(tenant_id) else { return Vec::new() };
        let (mut victims, mut gone) = (Vec::new(), 0);
        while gone < blocks
            && victims.len() < pairs
            && let Some(rank) = ranked.first()
        {
            let mut heap = BinaryHeap::new();
            let (mut runs, mut looked_at) = (Vec::new(), 0);
            for run in ranked.runs(rank) {
                runs.push(run);
                let Some((scope, follows)) = index.runs().run(run) else { continue };
                let alike = newest_at(index, run, rank.1, &mut looked_at);
                heap.extend(candidates(index, (scope, run, follows), alike.into_iter(), None).into_iter().map(Reverse));
                if heap.len() >= COMPARED || looked_at >= LOOKED_AT {
                    break;
                }
            }
            let left = take_in_order(index, heap, |candidate| {
                let wanted = gone < blocks && victims.len() < pairs;
                if let Some(Victim { scope, key, .. }) = candidate.victim(index).filter(|_| wanted) {
                    let holders = index.runs().holders_at(candidate.run, candidate.at);
                    victims.extend(holders.map(|replica| Victim { scope, key: key.clone(), replica }));
                    gone += 1;
                }
                wanted
            });
            ranked.drop(rank, runs.into_iter().filter(|run| !left.contains(run)));
        }
        victims
    }

    /// How many entries there are, those that are no longer true included.
    pub fn len(&self) -> usize {
        self.tenants.values().map(|ranked| ranked.0.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn ranked_of(&mut self, index: &Index, run: u32) -> Option<&mut Ranked> {
        let (scope, _) = index.runs().run(run)?;
        self.tenants.get_mut(&index.dictionary().scope(scope)?.tenant_id)
    }
}

/// What of a run is alike, in order: its last block, if the run's blocks follow each other, or each by itself.
fn candidates(
    index: &Index,
    (scope, run, follows): (ScopeSlot, u32, bool),
    alike: impl Iterator<Item = Range<usize>>,
    replica: Option<ReplicaSlot>,
) -> Vec<Candidate> {
    if !follows {
        return alike.flatten().filter_map(|at| Candidate::new(index, scope, (run, at, Vec::new()), replica)).collect();
    }
    let mut earlier: Vec<(usize, usize)> = Vec::new();
    for Range { start, end } in alike {
        match earlier.last_mut().filter(|(_, until)| *until == start) {
            Some((_, until)) => *until = end,
            None => earlier.push((start, end)),
        }
    }
    let Some((from, until)) = earlier.pop() else { return Vec::new() };
    let Some(at) = until.checked_sub(1) else { return Vec::new() };
    earlier.extend((from < at).then_some((from, at)));
    Candidate::new(index, scope, (run, at, earlier), replica).into_iter().collect()
}

/// Offers candidates in order, each with what is to go after it, for as long as `take` wants them; the runs of those that are
/// left.
fn take_in_order(
    index: &Index,
    mut heap: BinaryHeap<Reverse<Candidate>>,
    mut take: impl FnMut(&Candidate) -> bool,
) -> HashSet<u32> {
    let mut left = HashSet::new();
    while let Some(Reverse(candidate)) = heap.pop() {
        if take(&candidate) {
            heap.extend(candidate.before(index).map(Reverse));
        } else {
            left.insert(candidate.run);
        }
    }
    left
}

/// Goes over runs from number `from` on, for about `budget` of them and of what `take` says that it found in each; the number
/// of the next.
fn go_on(index: &Index, from: u32, budget: usize, mut take: impl FnMut(u32) -> usize) -> u32 {
    let (mut run, mut left) = (from, budget);
    while left > 0 && run < index.runs().run_numbers() {
        left = left.saturating_sub(1 + take(run));
        run += 1;
    }
    run
}

/// Where in a run the newest report of a block is of `last_seen_ms`, in order.
fn newest_at(index: &Index, run: u32, last_seen_ms: u64, looked_at: &mut usize) -> Vec<Range<usize>> {
    let (mut of_rank, mut newer) = (Vec::new(), Vec::new());
    for span in index.runs().spans(run) {
        *looked_at += 1;
        match span.last_seen_ms.cmp(&last_seen_ms) {
            Ordering::Equal => of_rank.push(span.from..span.until),
            Ordering::Greater => newer.push(span.from..span.until),
            Ordering::Less => {}
        }
    }
    if of_rank.is_empty() {
        return of_rank;
    }
    of_rank.sort_unstable_by_key(|blocks| blocks.start);
    newer.sort_unstable_by_key(|blocks| blocks.start);
    without(&of_rank, &newer)
}

/// The offsets of `blocks` that are not in `others`, each once; both are sorted by their starts.
fn without(blocks: &[Range<usize>], others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = Vec::new();
    // All before `next` is done.
    let (mut next, mut others) = (0, others.iter().peekable());
    for Range { start, end } in blocks {
        next = next.max(*start);
        while next < *end {
            match others.peek() {
                Some(other) if other.end <= next => drop(others.next()),
                Some(other) if other.start <= next => next = other.end,
                other => {
                    let until = other.map_or(*end, |other| other.start.min(*end));
                    left.push(next..until);
                    next = until;
                }
            }
        }
    }
    left
}

fn rank(counts: bool, access_count: u32, last_seen_ms: u64) -> Rank {
    (if counts { access_count } else { 0 }, last_seen_ms)
}

// === impl Candidate ===

impl Candidate {
    /// A block at a replica, or at all.
    fn new(
        index: &Index,
        scope: ScopeSlot,
        (run, at, earlier): (u32, usize, Vec<(usize, usize)>),
        replica: Option<ReplicaSlot>,
    ) -> Option<Candidate> {
        let scope = Arc::clone(index.dictionary().scope_name(scope)?);
        let replica_id = match replica {
            Some(replica) => Arc::clone(&index.dictionary().replica(replica)?.replica_id),
            None => "".into(),
        };
        let hash = bytes(&index.runs().run_key(run, at)?);
        let counts = scope.tenant_id != RESERVED_TENANT;
        counts.then_some(Candidate { scope, hash, replica_id, replica: replica.unwrap_or_default(), run, at, earlier })
    }

    /// The one that is to go after it.
    fn before(mut self, index: &Index) -> Option<Candidate> {
        let (from, until) = self.earlier.pop()?;
        let at = until.checked_sub(1)?;
        self.earlier.extend((from < at).then_some((from, at)));
        let hash = bytes(&index.runs().run_key(self.run, at)?);
        Some(Candidate { at, hash, ..self })
    }

    fn victim(&self, index: &Index) -> Option<Victim> {
        let (scope, _) = index.runs().run(self.run)?;
        let key = index.runs().run_key(self.run, self.at)?;
        Some(Victim { scope, key, replica: self.replica })
    }
}

fn bytes(key: &BlockKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.width());
    key.write_to(&mut bytes);
    bytes
}

// === impl Ranked ===

impl Ranked {
    fn add(&mut self, rank: Rank, run: u32) {
        self.0.insert(entry(rank, run));
    }

    /// Adds what of a run there is; how many that is.
    fn add_all(&mut self, run: u32, spans: impl Iterator<Item = Span>, rank: impl Fn(&Span) -> Rank) -> usize {
        spans.inspect(|span| self.add(rank(span), run)).count()
    }

    fn first(&self) -> Option<Rank> {
        self.0.first().map(|entry| ((entry >> 96) as u32, (entry >> 32) as u64))
    }

    /// The runs of a rank.
    fn runs(&self, rank: Rank) -> impl Iterator<Item = u32> {
        self.0.range(entry(rank, 0)..=entry(rank, u32::MAX)).map(|entry| *entry as u32)
    }

    /// These runs have nothing of a rank any more.
    fn drop(&mut self, rank: Rank, runs: impl Iterator<Item = u32>) {
        for run in runs {
            self.0.remove(&entry(rank, run));
        }
    }
}

fn entry((count, last_seen_ms): Rank, run: u32) -> u128 {
    u128::from(count) << 96 | u128::from(last_seen_ms) << 32 | u128::from(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets of up to two ranges below 7, by their starts.
    fn sorted_sets() -> Vec<Vec<Range<usize>>> {
        let ranges: Vec<Range<usize>> = (0..7).flat_map(|start| (start + 1..=7).map(move |end| start..end)).collect();
        let mut sets = vec![Vec::new()];
        for _ in 0..2 {
            let longer = |set: &Vec<Range<usize>>| {
                let last = set.last().map_or(0, |last| last.start);
                let set = set.clone();
                ranges
                    .iter()
                    .filter(move |range| range.start >= last)
                    .map(move |range| [&set[..], std::slice::from_ref(range)].concat())
                    .collect::<Vec<_>>()
            };
            let all: Vec<_> = sets.iter().flat_map(longer).collect();
            sets.extend(all);
        }
        sets
    }

    #[test]
    fn what_is_left_of_ranges_is_what_is_in_them_and_not_in_others() {
        let sets = sorted_sets();
        for blocks in &sets {
            for others in &sets {
                let left = without(blocks, others);
                let offsets: Vec<usize> = left.iter().cloned().flatten().collect();
                let is_in = |ranges: &[Range<usize>], at: &usize| ranges.iter().any(|range| range.contains(at));
                let expected: Vec<usize> = (0..7).filter(|at| is_in(blocks, at) && !is_in(others, at)).collect();
                assert_eq!(offsets, expected, "{blocks:?} without {others:?}");
            }
        }
    }
}
