//! The replicas that the hub follows itself, and what their engines' events amount to.
//!
//! In: announcements, engine events and loads, replica by replica. Out: what a [`Publisher`] is to be told, under the
//! numbers that it gives. No I/O, no clock.

use std::collections::BTreeMap;

use super::capacity::{Bound, Capacity, Excess, GivenUp, Places};
use super::config::ReplicaConfig;
use super::replica_blocks::Forgotten;
use super::replica_cache::{Chained, Change, HeldBlock, ReplicaCache, Tally};
use super::snapshot::{MAX_BLOCKS, ReplicaSnapshot, in_runs};
use crate::fingerprint::{BlockSize, PrefixHash};
use crate::native::engine::KvEvent;
use crate::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StoredBlock,
};
use crate::publisher::Publisher;

/// An unchanged load is reported again after this long, in ms.
pub const STATS_REPEAT_MS: u64 = 5_000;

/// A replica that is followed, by a number that no other one gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaIndex(pub usize);

/// One followed replica as operators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaView {
    /// Its number here.
    pub index: ReplicaIndex,
    /// Its id.
    pub id: String,
    /// Its rank, where it is one of several.
    pub data_parallel_rank: Option<u32>,
    /// Where Envoy reaches it; `None` until its name was resolved.
    pub address: Option<String>,
    /// Whether all that it holds is known.
    pub complete: bool,
    /// Blocks held.
    pub blocks: usize,
    /// The same in T1, T2 and T3, each counted in the nearest.
    pub by_tier: [usize; 3],
    /// Its load, if it was reported.
    pub stats: Option<ReplicaStats>,
}

/// Every replica that is followed, in the order in which that began.
#[derive(Debug, Default)]
pub struct Followed {
    replicas: BTreeMap<ReplicaIndex, Replica>,
    next: usize,
}

#[derive(Debug)]
struct Replica {
    id: String,
    /// The rank, where the replica has several, each of which is one here.
    rank: Option<u32>,
    /// Whether it was found out what there is to know of it, if only that it is not there.
    is_settled: bool,
    /// The scope of the base model.
    base: Scope,
    cache: ReplicaCache,
    announced: Option<Announced>,
    stats: Option<ReplicaStats>,
}

#[derive(Debug)]
struct Announced {
    slot: ReplicaSlot,
    address: String,
    complete: bool,
    /// When it was last said that it still holds what it held, in the hub's own ms.
    reasserted_ms: Option<u64>,
}

// === impl Followed ===

impl Followed {
    /// Follows a replica, or a rank of it, of which nothing is known yet.
    pub fn follow(&mut self, config: &ReplicaConfig, rank: Option<u32>) -> ReplicaIndex {
        let index = ReplicaIndex(self.next);
        self.next += 1;
        self.replicas.insert(index, Replica::new(config, rank));
        index
    }

    /// `replica` is gone and not followed any more.
    pub fn unfollow(&mut self, replica: ReplicaIndex, publisher: &mut Publisher) -> Option<()> {
        self.gone(replica, publisher);
        self.replicas.remove(&replica).map(|_| ())
    }

    /// `replica` is not there any more: filters forget it. It can be announced again, as a new generation. None if it was
    /// not there.
    pub fn gone(&mut self, replica: ReplicaIndex, publisher: &mut Publisher) -> Option<()> {
        let state = self.replicas.get_mut(&replica)?;
        let announced = state.announced.take()?;
        publisher.publish(Observation::ReplicaGone { replica: announced.slot });
        state.stats = None;
        state.is_settled = true;
        state.cache.clear(&mut Vec::new(), &mut Tally::default());
        Some(())
    }

    /// `replica` is reached at `address` from now on. True if that is a new address: it makes a new generation, which
    /// holds nothing yet.
    pub fn announce(&mut self, replica: ReplicaIndex, address: &str, publisher: &mut Publisher) -> Option<bool> {
        let state = self.replicas.get_mut(&replica)?;
        if state.announced.as_ref().is_some_and(|announced| announced.address == address) {
            return Some(false);
        }
        publisher.scope(&state.base);
        let slot = publisher.replica_up(state.member(), address, state.rank)?;
        state.announced = Some(Announced { slot, address: address.to_owned(), complete: false, reasserted_ms: None });
        state.is_settled = false;
        state.stats = None;
        // Not a change to publish: the earlier generation ends when this one is complete.
        state.cache.clear(&mut Vec::new(), &mut Tally::default());
        Some(true)
    }

    /// `replica` is built anew: what is applied from now on is of a new generation, which counts once it is complete. Until
    /// then the one before it does. None if it was not complete.
    pub fn renew(&mut self, replica: ReplicaIndex, publisher: &mut Publisher) -> Option<()> {
        let state = self.replicas.get_mut(&replica)?;
        let address = state.announced.as_ref().filter(|announced| announced.complete)?.address.clone();
        let slot = publisher.replica_up(state.member(), &address, state.rank)?;
        state.announced = Some(Announced { slot, address, complete: false, reasserted_ms: None });
        if let Some(stats) = state.stats {
            publisher.publish(Observation::Stats { replica: slot, stats });
        }
        state.cache.clear(&mut Vec::new(), &mut Tally::default());
        Some(())
    }

    /// All that `replica` holds has been applied, or can no longer be learned.
    pub fn complete(&mut self, replica: ReplicaIndex, publisher: &mut Publisher) -> Option<()> {
        let state = self.replicas.get_mut(&replica)?;
        state.is_settled = true;
        let announced = state.announced.as_mut()?;
        if !std::mem::replace(&mut announced.complete, true) {
            publisher.publish(Observation::ReplicaComplete { replica: announced.slot });
        }
        Some(())
    }

    /// Applies events of `replica`, which must have been announced, as seen at `now_ms`, in the hub's own ms.
    pub fn apply(
        &mut self,
        replica: ReplicaIndex,
        events: &[KvEvent],
        now_ms: u64,
        publisher: &mut Publisher,
    ) -> Option<Tally> {
        let state = self.replicas.get_mut(&replica)?;
        let slot = state.announced.as_ref()?.slot;
        let mut tally = Tally::default();
        let mut changes = Vec::new();
        for event in events {
            let mut scope_of =
                |adapter: &str| publisher.scope(&Scope { adapter_id: adapter.to_owned(), ..state.base.clone() });
            state.cache.apply(event, now_ms, &mut scope_of, &mut changes, &mut tally);
        }
        for change in changes {
            publish(publisher, slot, change, now_ms);
        }
        Some(tally)
    }

    /// `replica` still holds all that it was reported to hold, as was known at `at_ms`, in the hub's own ms. What has become too
    /// old meanwhile is published again.
    pub fn reassert(&mut self, replica: ReplicaIndex, at_ms: u64, publisher: &mut Publisher) -> Option<()> {
        let state = self.replicas.get_mut(&replica)?;
        let announced = state.announced.as_mut()?;
        let slot = announced.slot;
        announced.reasserted_ms = announced.reasserted_ms.max(Some(at_ms));
        publisher.publish(Observation::Reasserted { replica: slot, at_ms });
        if publisher.has_expired(slot) {
            let is_expired = |(scope, hash, _): &(ScopeSlot, PrefixHash, HeldBlock)| {
                publisher.is_expired(*scope, slot, &BlockKey::from(*hash))
            };
            let mut expired: Vec<_> = state.cache.held().filter(is_expired).collect();
            expired.iter_mut().for_each(|(_, _, block)| block.last_seen_ms = at_ms);
            for observation in in_runs(slot, expired) {
                publisher.publish(observation);
            }
        }
        Some(())
    }

    /// The load of `replica`; published if it differs from the last one or that is [`STATS_REPEAT_MS`] old.
    pub fn stats(&mut self, replica: ReplicaIndex, stats: ReplicaStats, publisher: &mut Publisher) -> Option<()> {
        let state = self.replicas.get_mut(&replica)?;
        let slot = state.announced.as_ref()?.slot;
        let is_news = state.stats.is_none_or(|last| {
            (last.pressure, last.hit_rate) != (stats.pressure, stats.hit_rate)
                || stats.reported_ms >= last.reported_ms.saturating_add(STATS_REPEAT_MS)
        });
        if is_news {
            state.stats = Some(stats);
            publisher.publish(Observation::Stats { replica: slot, stats });
        }
        Some(())
    }

    /// A replica of which blocks must go: one that has more engine keys than it may, else the one that has most, if all of them
    /// have more than they may.
    pub fn excess(&self, capacity: Capacity) -> Option<Excess> {
        let kept = || self.replicas.iter().map(|(index, replica)| (*index, replica.cache.keys()));
        let of_one = kept().map(|(index, kept)| (index, capacity.excess_of_replica(kept), Bound::Replica));
        let all = kept().map(|(_, kept)| kept).sum();
        let most = kept().max_by_key(|(_, kept)| *kept);
        let of_all = most.map(|(index, most)| (index, capacity.excess_of_all(all, most), Bound::Total));
        let (index, keys, bound) = of_one.chain(of_all).find(|(_, keys, _)| *keys > 0)?;
        let replica = self.replicas.get(&index)?;
        Some(Excess { index, id: replica.id.clone(), keys, bound })
    }

    /// The blocks that `replica` holds in one of the [`SHARDS`](super::sharded::SHARDS) parts.
    pub fn held_in(&self, replica: ReplicaIndex, part: usize) -> Vec<(ScopeSlot, PrefixHash, HeldBlock)> {
        let replica = self.replicas.get(&replica);
        replica.map(|replica| replica.cache.held_in(part).collect()).unwrap_or_default()
    }

    /// Gives up what `replica` knows these blocks by in one of the [`SHARDS`](super::sharded::SHARDS) parts; how much that is.
    pub fn give_up(
        &mut self,
        replica: ReplicaIndex,
        part: usize,
        places: &Places,
        publisher: &mut Publisher,
    ) -> Option<GivenUp> {
        let state = self.replicas.get_mut(&replica)?;
        let slot = state.announced.as_ref()?.slot;
        let Forgotten { blocks, keys, .. } = state.cache.forget_in(part, places);
        let given_up = GivenUp { blocks: blocks.len(), keys };
        let mut by_scope: BTreeMap<ScopeSlot, Vec<PrefixHash>> = BTreeMap::new();
        for (scope, hash) in blocks {
            by_scope.entry(scope).or_default().push(hash);
        }
        for (scope, hashes) in by_scope {
            publish(publisher, slot, Change::Removed(scope, hashes), 0);
        }
        Some(given_up)
    }

    /// Gives up the keys of `replica` that may stand for more than one prefix; how many they are.
    pub fn give_up_doubts(&mut self, replica: ReplicaIndex) -> Option<usize> {
        Some(self.replicas.get_mut(&replica)?.cache.forget_doubts())
    }

    /// Every replica that was announced, without what it holds.
    pub fn outlines(&self) -> impl Iterator<Item = (ReplicaIndex, ReplicaSnapshot)> {
        self.replicas.iter().filter_map(|(index, replica)| Some((*index, replica.outline()?)))
    }

    /// The generation of `replica` that there is.
    pub fn slot(&self, replica: ReplicaIndex) -> Option<ReplicaSlot> {
        Some(self.replicas.get(&replica)?.announced.as_ref()?.slot)
    }

    /// Every replica, in the order in which they came.
    pub fn view(&self) -> Vec<ReplicaView> {
        self.replicas.iter().map(|(index, replica)| replica.view(*index)).collect()
    }

    /// Whether of every replica is known all that can be.
    pub fn is_complete(&self) -> bool {
        self.replicas.values().all(|replica| replica.is_settled)
    }

    /// Tokens in a block of the first replica that serves this model under this hash scheme, or else under any.
    pub fn block_size(&self, model_id: &str, hash_scheme: &str) -> Option<BlockSize> {
        let of_model = || self.replicas.values().filter(|replica| replica.base.model_id == model_id);
        let same_scheme = of_model().filter(|replica| replica.base.hash_scheme == hash_scheme);
        same_scheme.chain(of_model()).find_map(|replica| replica.cache.block_size())
    }
}

/// Publishes a change in pieces that fit a message.
fn publish(publisher: &mut Publisher, replica: ReplicaSlot, change: Change, now_ms: u64) {
    match change {
        Change::Cleared => {
            publisher.publish(Observation::Cleared { replica });
        }
        Change::Removed(scope, hashes) => {
            for hashes in hashes.chunks(MAX_BLOCKS) {
                let keys = hashes.iter().copied().map(BlockKey::from).collect();
                publisher.publish(Observation::Removed { replica, scope, keys });
            }
        }
        Change::Moved(blocks) => {
            for observation in in_runs(replica, blocks) {
                publisher.publish(observation);
            }
        }
        Change::Stored(Chained { scope, tier, parent, blocks }) => {
            let mut parent = parent.map(BlockKey::from);
            for blocks in blocks.chunks(MAX_BLOCKS) {
                let blocks: Vec<StoredBlock> = blocks.iter().map(stored_block).collect();
                let end = blocks.last().map(|block| block.key.clone());
                publisher.publish(Observation::Stored(Stored {
                    replica,
                    scope,
                    tier,
                    last_seen_ms: now_ms,
                    parent: std::mem::replace(&mut parent, end),
                    chained: true,
                    blocks,
                    ..Stored::default()
                }));
            }
        }
    }
}

fn stored_block((hash, token_count): &(PrefixHash, u32)) -> StoredBlock {
    StoredBlock { key: BlockKey::from(*hash), token_count: *token_count }
}

// === impl Replica ===

impl Replica {
    fn new(config: &ReplicaConfig, rank: Option<u32>) -> Replica {
        let base = Scope {
            tenant_id: config.tenant.clone(),
            model_id: config.model.clone(),
            hash_scheme: config.hash_scheme.clone(),
            adapter_id: String::new(),
        };
        let cache = ReplicaCache::new(config.block_size).with_adapter_names(config.adapter_names.clone());
        let id = config.member_id(rank);
        Replica { id, rank, is_settled: false, base, cache, announced: None, stats: None }
    }

    fn member(&self) -> Member {
        Member::new(&self.base.tenant_id, &self.base.model_id, &self.id)
    }

    fn outline(&self) -> Option<ReplicaSnapshot> {
        let announced = self.announced.as_ref()?;
        Some(ReplicaSnapshot {
            slot: announced.slot,
            member: self.member(),
            address: announced.address.clone(),
            data_parallel_rank: self.rank,
            stats: self.stats,
            complete: announced.complete,
            reasserted_ms: announced.reasserted_ms,
            held: Vec::new(),
        })
    }

    fn view(&self, index: ReplicaIndex) -> ReplicaView {
        ReplicaView {
            index,
            id: self.id.clone(),
            data_parallel_rank: self.rank,
            address: self.announced.as_ref().map(|announced| announced.address.clone()),
            complete: self.announced.as_ref().is_some_and(|announced| announced.complete),
            blocks: self.cache.len(),
            by_tier: self.cache.by_tier(),
            stats: self.stats,
        }
    }
}
