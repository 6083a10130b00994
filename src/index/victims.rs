//! What goes first when there is too much.
//!
//! An [`Order`] says which (block, replica) pairs go to keep the cap: least hit first where the tenant's policy is LFU, then
//! longest not reported; [`Prefixes`] which blocks of a tenant go, at all replicas, to keep its quota: longest not reported
//! by anyone. Among blocks of one run that are alike, the later one goes first, since it is of no use without those before
//! it; everything else that is alike goes by tenant, model, scheme, adapter, hash and replica, as in the public contract.
//!
//! Blocks are ordered by runs: a bucket for each rank has the runs in which something is of that rank, or was. So an order
//! is as large as the number of stretches, keeping it is a look-up a change, and what it says is checked when it is asked
//! for. It is built in steps. Re-assertions do not count: what was announced longest ago goes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::index::Index;
use crate::index::runs::{Change, Span};
use crate::observation::{BlockKey, RESERVED_TENANT, ReplicaSlot, Scope, ScopeSlot};

/// Runs of one rank that are compared with each other; beyond that, those that came first go first.
const COMPARED: usize = 1_024;

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

/// Runs by rank, some of which have nothing of that rank any more.
#[derive(Clone, Debug, Default)]
struct Buckets(BTreeMap<Rank, Vec<u32>>);

/// The order in which pairs go.
#[derive(Clone, Debug, Default)]
pub struct Order {
    buckets: Buckets,
    /// Runs below this number are in it, but for what has changed since.
    built: u32,
    /// The scopes in which hits count.
    lfu: HashSet<ScopeSlot>,
}

/// The orders in which blocks of the tenants that have a quota go.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    tenants: HashMap<String, Buckets>,
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
        let mut left = budget;
        while left > 0 && self.built < index.runs().run_numbers() {
            let run = self.built;
            self.built += 1;
            left = left.saturating_sub(1);
            let Some((scope, _)) = index.runs().run(run) else { continue };
            let counts = self.counts(index, scope, &is_lfu);
            for span in index.runs().spans(run) {
                self.buckets.add(rank(counts, span.access_count, span.last_seen_ms), run);
                left = left.saturating_sub(1);
            }
        }
        self.is_built(index)
    }

    /// Whether all is in it.
    pub fn is_built(&self, index: &Index) -> bool {
        self.built >= index.runs().run_numbers()
    }

    /// Takes in what has changed.
    pub fn note(&mut self, index: &Index, changes: &[Change], is_lfu: impl Fn(&Scope) -> bool) {
        for change in changes.iter().filter(|change| !change.left_behind) {
            let Some((scope, _)) = index.runs().run(change.run) else { continue };
            let counts = self.counts(index, scope, &is_lfu);
            self.buckets.add(rank(counts, change.access_count, change.last_seen_ms), change.run);
        }
    }

    /// At most `max` pairs that go first, in order, of replicas that `counts` accepts, without those of the reserved tenant,
    /// which never count. All of them must go then.
    pub fn next(&mut self, index: &Index, max: usize, counts: impl Fn(ReplicaSlot) -> bool) -> Vec<Victim> {
        let mut victims = Vec::new();
        while victims.len() < max {
            let Some((rank, runs)) = self.buckets.first(COMPARED) else { break };
            let lfu = &self.lfu;
            let of_rank = |scope: ScopeSlot, span: &Span| {
                rank == self::rank(lfu.contains(&scope), span.access_count, span.last_seen_ms)
            };
            let mut heap = BinaryHeap::new();
            for run in &runs {
                let Some((scope, follows)) = index.runs().run(*run) else { continue };
                let of_rank = index.runs().spans(*run).filter(|span| of_rank(scope, span) && counts(span.replica));
                let spans: Vec<Span> = of_rank.collect();
                for alike in spans.chunk_by(|one, next| one.replica == next.replica) {
                    let replica = alike.first().map(|span| span.replica);
                    let alike = alike.iter().map(|span| span.from..span.until);
                    heap.extend(candidates(index, (scope, *run, follows), alike, replica).into_iter().map(Reverse));
                }
            }
            let left = go(index, heap, max, &mut victims, |_, candidate, out| out.push(candidate.victim(index)));
            self.buckets.drop_first(&runs, left);
        }
        victims.into_iter().flatten().collect()
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
        Prefixes { tenants: tenants.map(|tenant_id| (tenant_id.clone(), Buckets::default())).collect(), built: 0 }
    }

    /// As [`Order::build`].
    pub fn build(&mut self, index: &Index, budget: usize) -> bool {
        let mut left = if self.tenants.is_empty() { 0 } else { budget };
        while left > 0 && self.built < index.runs().run_numbers() {
            let run = self.built;
            self.built += 1;
            left = left.saturating_sub(1);
            let Some(buckets) = self.buckets_of(index, run) else { continue };
            for span in index.runs().spans(run) {
                buckets.add((0, span.last_seen_ms), run);
                left = left.saturating_sub(1);
            }
        }
        self.tenants.is_empty() || self.built >= index.runs().run_numbers()
    }

    /// Takes in what has changed.
    pub fn note(&mut self, index: &Index, changes: &[Change]) {
        for change in changes {
            if let Some(buckets) = self.buckets_of(index, change.run) {
                buckets.add((0, change.last_seen_ms), change.run);
            }
        }
    }

    /// At most `max` blocks of a tenant that go first, in order, each with all its holders. All of them must go then.
    pub fn next(&mut self, index: &Index, tenant_id: &str, max: usize) -> Vec<Victim> {
        let Some(buckets) = self.tenants.get_mut(tenant_id) else { return Vec::new() };
        let mut victims = Vec::new();
        while victims.len() < max {
            let Some(((_, last_seen_ms), runs)) = buckets.first(COMPARED) else { break };
            let mut heap = BinaryHeap::new();
            for run in &runs {
                let Some((scope, follows)) = index.runs().run(*run) else { continue };
                let spans: Vec<Span> = index.runs().spans(*run).collect();
                let newest = |at: usize| {
                    let covering = spans.iter().filter(|span| span.from <= at && at < span.until);
                    covering.map(|span| span.last_seen_ms).max() == Some(last_seen_ms)
                };
                let ends = spans.iter().map(|span| span.until).max().unwrap_or(0);
                let alike = (0..ends).filter(|at| newest(*at)).map(|at| at..at + 1);
                heap.extend(candidates(index, (scope, *run, follows), alike, None).into_iter().map(Reverse));
            }
            let left = go(index, heap, max, &mut victims, |index, candidate, out| {
                let Some(key) = index.runs().run_key(candidate.run, candidate.at) else { return };
                let Some((scope, _)) = index.runs().run(candidate.run) else { return };
                let holders = index.holders(scope, &key);
                out.push(holders.map(|holder| Victim { scope, key: key.clone(), replica: holder.replica }).collect());
            });
            buckets.drop_first(&runs, left);
        }
        victims.into_iter().flatten().collect()
    }

    fn buckets_of(&mut self, index: &Index, run: u32) -> Option<&mut Buckets> {
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

/// Lets candidates go in order until there are `max` victims; the runs of those that are left.
fn go(
    index: &Index,
    mut heap: BinaryHeap<Reverse<Candidate>>,
    max: usize,
    victims: &mut Vec<Vec<Victim>>,
    mut take: impl FnMut(&Index, &Candidate, &mut Vec<Vec<Victim>>),
) -> HashSet<u32> {
    while victims.len() < max {
        let Some(Reverse(candidate)) = heap.pop() else { break };
        take(index, &candidate, victims);
        heap.extend(candidate.before(index).map(Reverse));
    }
    heap.into_iter().map(|Reverse(candidate)| candidate.run).collect()
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

    fn victim(&self, index: &Index) -> Vec<Victim> {
        let scope = index.runs().run(self.run).map(|(scope, _)| scope);
        let key = index.runs().run_key(self.run, self.at);
        let victim = |(scope, key)| Victim { scope, key, replica: self.replica };
        scope.zip(key).map(victim).into_iter().collect()
    }
}

fn bytes(key: &BlockKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.width());
    key.write_to(&mut bytes);
    bytes
}

// === impl Buckets ===

impl Buckets {
    fn add(&mut self, rank: Rank, run: u32) {
        let runs = self.0.entry(rank).or_default();
        if runs.last() != Some(&run) {
            runs.push(run);
        }
    }

    /// The first rank with at most `max` of its runs.
    fn first(&self, max: usize) -> Option<(Rank, Vec<u32>)> {
        let (rank, runs) = self.0.first_key_value()?;
        let mut runs: Vec<u32> = runs.iter().take(max).copied().collect();
        runs.sort_unstable();
        runs.dedup();
        Some((*rank, runs))
    }

    /// Takes these runs out of the first rank, but for those that are `left`.
    fn drop_first(&mut self, runs: &[u32], left: HashSet<u32>) {
        let Some(mut first) = self.0.first_entry() else { return };
        let gone: HashSet<u32> = runs.iter().copied().filter(|run| !left.contains(run)).collect();
        first.get_mut().retain(|run| !gone.contains(run));
        if first.get().is_empty() {
            first.remove();
        }
    }
}
