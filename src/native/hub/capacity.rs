//! How many blocks of followed replicas are kept, and which go where there are more.
//!
//! In: what a replica holds. Out: the blocks to give up, which filters are told are removed. Those unseen for longest go,
//! where a block counts as seen when one that goes on from it is; of one prompt the end goes first, so that no hole is left.
//! The replica may hold them still: later events that go on from them are skipped as of an unknown parent, and removals of
//! them say nothing new. Errors stay on the side of too little.
//!
//! What counts is what takes memory: engine keys, of which a block has at least one and can have many, and the keys of which
//! it is not known for certain what they stand for. The latter go first, all that a replica has.
//!
//! It is looked at every [`INTERVAL`], so for that long there can be more. An eighth of the bound goes at once: finding the
//! blocks looks at all that the replica holds. It does so a part at a time, and lets everything else go on in between: what
//! changes meanwhile is seen or is not, and what is given up is still there or is not.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::followed::ReplicaIndex;
use super::metrics::Metrics;
use super::replica_cache::HeldBlock;
use super::sharded::SHARDS;
use super::state::HubState;
use crate::fingerprint::PrefixHash;
use crate::observation::ScopeSlot;

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(100);
/// It is logged once in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How many engine keys there may be, and so how many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Of one replica.
    pub replica_blocks: usize,
    /// Of all of them.
    pub blocks: usize,
}

/// Why blocks were given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The replica holds more than one may.
    Replica,
    /// All of them hold more than they may, and this one most.
    Total,
}

/// A replica of which blocks must go.
#[derive(Debug)]
pub struct Excess {
    /// Its number.
    pub index: ReplicaIndex,
    /// Its id.
    pub id: String,
    /// How many engine keys.
    pub keys: usize,
    /// Why.
    pub bound: Bound,
}

/// How much was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// Blocks.
    pub blocks: usize,
    /// Engine keys: theirs, and such that might stand for several.
    pub keys: usize,
}

/// Blocks by scope.
pub type Places = HashSet<(ScopeSlot, PrefixHash)>;

// === impl Bound ===

impl Bound {
    /// Its name, as the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Bound::Replica => "max_replica_blocks",
            Bound::Total => "max_blocks",
        }
    }
}

// === impl Capacity ===

impl Capacity {
    /// How many keys of a replica must go that has `held`.
    pub fn excess_of_replica(self, held: usize) -> usize {
        excess(held, self.replica_blocks)
    }

    /// How many keys must go where there are `all`, from the replica that has most: `most` at most.
    pub fn excess_of_all(self, all: usize, most: usize) -> usize {
        excess(all, self.blocks).min(most)
    }
}

fn excess(held: usize, bound: usize) -> usize {
    if held > bound { held - (bound - bound / 8) } else { 0 }
}

/// Keeps `state` to this, until `stop`.
pub async fn run(state: Arc<HubState>, capacity: Capacity, metrics: Arc<Metrics>, stop: CancellationToken) {
    let mut told: Option<Instant> = None;
    let mut since_told = GivenUp::default();
    while stop.run_until_cancelled(sleep(INTERVAL)).await.is_some() {
        while let Some(excess) = state.excess(capacity) {
            let Some(given_up) = stop.run_until_cancelled(give_up(&state, &excess)).await else { return };
            metrics.given_up(&excess.id, excess.bound, given_up);
            since_told += given_up;
            if told.is_none_or(|told| told.elapsed() >= LOG_INTERVAL) {
                let (replica, limit) = (&excess.id, excess.bound.as_str());
                let GivenUp { blocks, keys } = since_told;
                warn!(replica, limit, blocks, keys, "more blocks are held than are kept: the oldest are given up");
                (told, since_told) = (Some(Instant::now()), GivenUp::default());
            }
            if given_up == GivenUp::default() {
                // It has gone meanwhile, or holds other blocks: it is looked at again.
                break;
            }
        }
    }
}

/// Has a replica give up what is too much.
async fn give_up(state: &HubState, excess: &Excess) -> GivenUp {
    let mut given_up = GivenUp { blocks: 0, keys: state.give_up_doubts(excess.index) };
    let count = excess.keys.saturating_sub(given_up.keys);
    if count == 0 {
        return given_up;
    }
    let mut held = Vec::new();
    for part in 0..SHARDS {
        held.append(&mut state.held_in(excess.index, part));
        yield_now().await;
    }
    let Ok(places) = spawn_blocking(move || first_to_go(held.into_iter(), count)).await else { return given_up };
    for part in 0..SHARDS {
        given_up += state.give_up(excess.index, part, &places);
        yield_now().await;
    }
    given_up
}

/// The blocks to give up so that at least `count` engine keys go.
pub fn first_to_go(held: impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)>, count: usize) -> Places {
    let mut blocks: Vec<_> = held.collect();
    // Later blocks first, so that what goes on from a block is done before it.
    blocks.sort_unstable_by_key(|(.., block)| std::cmp::Reverse(block.token_count));
    let mut seen: HashMap<(ScopeSlot, PrefixHash), u64> = HashMap::with_capacity(blocks.len());
    let mut order: Vec<(u64, std::cmp::Reverse<u32>, ScopeSlot, PrefixHash, usize)> = Vec::with_capacity(blocks.len());
    for (scope, hash, block) in blocks {
        let own = seen.get(&(scope, hash)).copied().unwrap_or(0).max(block.last_seen_ms);
        if let Some(parent) = block.parent {
            let of_parent = seen.entry((scope, parent)).or_default();
            *of_parent = own.max(*of_parent);
        }
        order.push((own, std::cmp::Reverse(block.token_count), scope, hash, block.names()));
    }
    // Each has at least one key, so that there are no more blocks than keys to go.
    let most = count.min(order.len());
    if most < order.len() {
        order.select_nth_unstable(most);
    }
    order.truncate(most);
    order.sort_unstable();
    let first = order.into_iter().scan(0, |keys, (_, _, scope, hash, names)| {
        let before = *keys;
        *keys += names;
        (before < count).then_some((scope, hash))
    });
    first.collect()
}

// === impl GivenUp ===

impl std::ops::AddAssign for GivenUp {
    fn add_assign(&mut self, more: GivenUp) {
        self.blocks += more.blocks;
        self.keys += more.keys;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::engine::{BlockRemoved, BlockStored, EngineKey, KvEvent, SkipReason};
    use crate::native::hub::replica_cache::{Change, ReplicaCache, Tally};

    const SCOPE: ScopeSlot = ScopeSlot(1);

    fn apply(cache: &mut ReplicaCache, event: &KvEvent, now_ms: u64) -> (Vec<Change>, Tally) {
        let (mut changes, mut tally) = (Vec::new(), Tally::default());
        cache.apply(event, now_ms, &mut |_| Some(SCOPE), &mut changes, &mut tally);
        (changes, tally)
    }

    fn stored(keys: std::ops::Range<u64>, parent: Option<u64>) -> KvEvent {
        KvEvent::BlockStored(BlockStored {
            token_ids: keys.clone().map(|key| key as u32).collect(),
            block_hashes: keys.map(EngineKey::Int).collect(),
            parent_block_hash: parent.map(EngineKey::Int),
            block_size: 1,
            ..BlockStored::default()
        })
    }

    fn removed(keys: std::ops::Range<u64>) -> KvEvent {
        KvEvent::BlockRemoved(BlockRemoved { block_hashes: keys.map(EngineKey::Int).collect(), ..Default::default() })
    }

    fn forget(cache: &mut ReplicaCache, places: &Places) -> GivenUp {
        (0..SHARDS).fold(GivenUp::default(), |mut all, part| {
            let forgotten = cache.forget_in(part, places);
            all += GivenUp { blocks: forgotten.blocks.len(), keys: forgotten.keys };
            all
        })
    }

    #[test]
    fn engine_keys_count_and_go_with_their_block() {
        let mut cache = ReplicaCache::new(None);
        apply(&mut cache, &stored(0..4, None), 10);
        // The same block by ever more keys.
        for key in 100..150 {
            let event = BlockStored {
                token_ids: vec![0],
                block_hashes: vec![EngineKey::Int(key)],
                block_size: 1,
                ..BlockStored::default()
            };
            apply(&mut cache, &KvEvent::BlockStored(event), 20);
        }
        assert_eq!((cache.len(), cache.keys()), (4, 54));
        let oldest = first_to_go(cache.held(), 3);
        assert_eq!((oldest.len(), forget(&mut cache, &oldest)), (3, GivenUp { blocks: 3, keys: 3 }));
        let all = first_to_go(cache.held(), 2);
        assert_eq!((all.len(), forget(&mut cache, &all)), (1, GivenUp { blocks: 1, keys: 51 }));
        assert_eq!((cache.len(), cache.keys()), (0, 0));
    }

    /// With `WARMROUTE_BLOCKS` of so many, and what it prints: how long a lock is held at most, before and after.
    #[test]
    fn at_one_time_a_small_part_of_what_is_held_is_looked_at() {
        let blocks =
            std::env::var("WARMROUTE_BLOCKS").ok().and_then(|blocks| blocks.parse().ok()).unwrap_or(100_000_u64);
        let mut cache = ReplicaCache::new(None);
        for first in (0..blocks).step_by(1_000) {
            apply(&mut cache, &stored(first..first + 1_000, None), 10);
        }
        let timed = |look: &mut dyn FnMut() -> usize| {
            let begun = std::time::Instant::now();
            (look(), begun.elapsed())
        };
        let (all, whole) = timed(&mut || cache.held().collect::<Vec<_>>().len());
        let parts: Vec<_> =
            (0..SHARDS).map(|part| timed(&mut || cache.held_in(part).collect::<Vec<_>>().len())).collect();
        let (scanned, scan) =
            timed(&mut || cache.held().filter(|(.., block)| block.tier() == crate::observation::Tier::T1).count());
        let (counted, count) = timed(&mut || cache.by_tier()[0]);
        let longest = parts.iter().map(|(_, took)| *took).max().unwrap();
        let ratio = |one: Duration, other: Duration| one.as_secs_f64() / other.as_secs_f64().max(1e-9);
        println!(
            "{all} blocks: {whole:?} for all, {longest:?} for the longest part, {:.0} times less; by tier {scan:?} and \
             {count:?}, {:.0} times less",
            ratio(whole, longest),
            ratio(scan, count)
        );
        assert_eq!((all as u64, scanned, counted), (blocks, all, all));
        let largest = parts.iter().map(|(blocks, _)| *blocks).max().unwrap();
        assert!(largest < all / SHARDS * 3 / 2, "{largest} of {all}");
    }

    #[test]
    fn what_is_too_much_goes_with_an_eighth_on_top() {
        let capacity = Capacity { replica_blocks: 80, blocks: 160 };
        assert_eq!([80, 81, 100].map(|held| capacity.excess_of_replica(held)), [0, 11, 30]);
        assert_eq!(capacity.excess_of_all(161, 60), 21);
        assert_eq!(capacity.excess_of_all(1_000, 60), 60);
        let none = Capacity { replica_blocks: 0, blocks: 0 };
        assert_eq!((none.excess_of_replica(0), none.excess_of_replica(5)), (0, 5));
    }

    #[test]
    fn the_end_of_what_is_unseen_for_longest_goes_first_and_leaves_no_hole() {
        let mut cache = ReplicaCache::new(None);
        apply(&mut cache, &stored(0..4, None), 10);
        apply(&mut cache, &stored(10..14, None), 20);
        // Goes on from the second block of what was seen first: the two before it count as seen.
        apply(&mut cache, &stored(4..6, Some(1)), 30);
        let gone = first_to_go(cache.held(), 2);
        let deep: Vec<u32> = cache
            .held()
            .filter(|(scope, hash, _)| gone.contains(&(*scope, *hash)))
            .map(|(.., block)| block.token_count)
            .collect();
        assert_eq!(deep.iter().sum::<u32>(), 3 + 4, "{deep:?}: the end of the first prompt");
        for count in 0..=10 {
            let gone = first_to_go(cache.held(), count);
            assert_eq!(gone.len(), count.min(10));
            for (scope, hash, block) in cache.held().filter(|(scope, hash, _)| !gone.contains(&(*scope, *hash))) {
                let whole = block.parent.is_none_or(|parent| !gone.contains(&(scope, parent)));
                assert!(whole, "{hash:?} has lost what is before it, of {count}");
            }
        }
    }

    #[test]
    fn events_about_what_was_given_up_credit_nothing() {
        let mut cache = ReplicaCache::new(None);
        apply(&mut cache, &stored(0..8, None), 10);
        let gone = first_to_go(cache.held(), 4);
        forget(&mut cache, &gone);
        assert_eq!(cache.len(), 4);
        let (changes, tally) = apply(&mut cache, &stored(8..10, Some(7)), 11);
        assert_eq!((changes, tally.skipped.get(&SkipReason::UnknownParent)), (Vec::new(), Some(&2)));
        let (changes, tally) = apply(&mut cache, &removed(4..8), 12);
        assert_eq!((changes, tally.removed, tally.skipped.get(&SkipReason::UnknownBlock)), (Vec::new(), 0, Some(&4)));
        // Stored again, they are held again, and removed as ever.
        let (_, tally) = apply(&mut cache, &stored(4..6, Some(3)), 13);
        assert_eq!((tally.stored, cache.len()), (2, 6));
        apply(&mut cache, &removed(0..6), 14);
        assert!(cache.is_empty());
    }
}
