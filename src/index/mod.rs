//! Who holds what.
//!
//! In: [`Observation`]s with the log sequence they were committed under. Out: for a chain of block keys, the replicas
//! that hold a leading run of it. The index never credits a replica with a block that it was not reported to hold;
//! after a loss it may know less than there is. Blocks are kept in [shards](shard), one for each page of shared data;
//! applying a record that a shard already covers changes nothing there.

pub mod dictionary;
mod live;
pub mod log;
mod names;
pub mod run;
pub mod runs;
pub mod shard;

use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::observation::{
    BlockKey, Counted, Observation, ReplicaCounts, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock,
};
use dictionary::Dictionary;
use live::Live;
use shard::{Change, Holder, Shard};

/// Who holds what, as of a log sequence.
#[derive(Clone, Debug)]
pub struct Index {
    dictionary: Dictionary,
    /// The log sequence the dictionary is true of.
    dictionary_as_of: u64,
    shards: Vec<Shard>,
    /// Blocks of each generation in each scope, expired and ended ones until the sweep.
    holdings: HashMap<ReplicaSlot, HashMap<ScopeSlot, u64>>,
    /// Distinct blocks in each scope, expired and ended ones until the sweep.
    keys: HashMap<ScopeSlot, u64>,
    pairs: u64,
    /// What of the holdings counts: ended generations do not, at once.
    live: Live,
    /// Scopes of blocks that have no name: it has gone, or in a replay is yet to come. Until the last block has gone.
    unnamed: HashSet<ScopeSlot>,
    sweep_next: usize,
}

// === impl Index ===

impl Index {
    /// An empty index of `shards` shards, at least 1.
    pub fn new(shards: u32) -> Index {
        Index {
            dictionary: Dictionary::default(),
            dictionary_as_of: 0,
            shards: vec![Shard::default(); shards.max(1) as usize],
            holdings: HashMap::new(),
            keys: HashMap::new(),
            pairs: 0,
            live: Live::default(),
            unnamed: HashSet::new(),
            sweep_next: 0,
        }
    }

    /// Applies an observation committed under log sequence `sequence`.
    pub fn apply(&mut self, sequence: u64, observation: Observation) {
        match observation {
            Observation::Stored(Stored { replica, scope, tier, last_seen_ms, access_count, blocks, .. }) => {
                let (count, counts_anew) = (access_count.unwrap_or(0), access_count.is_some());
                for StoredBlock { key, token_count } in blocks {
                    let holder = Holder { replica, tier, access_count: count, token_count, last_seen_ms };
                    self.store(sequence, scope, key, holder, counts_anew);
                }
            }
            Observation::Counted(counted) => self.apply_counted(sequence, &counted),
            Observation::Removed { replica, scope, keys } => {
                for key in keys {
                    self.remove(sequence, scope, &key, replica);
                }
            }
            Observation::Cleared { replica } => self.clear(sequence, replica),
            other => {
                if sequence > self.dictionary_as_of {
                    self.announce(&other);
                }
            }
        }
    }

    /// Loads the dictionary from a page that is true of `as_of`.
    pub fn load_dictionary(&mut self, as_of: u64, observations: &[Observation]) {
        self.dictionary = Dictionary::default();
        self.live = Live::default();
        self.unnamed.clear();
        for observation in observations {
            self.announce(observation);
        }
        self.dictionary_as_of = as_of;
    }

    /// Loads a shard from a page that is true of `as_of`, in place of what it holds.
    pub fn load_shard(&mut self, shard: usize, as_of: u64, observations: Vec<Observation>) {
        let mut dropped = Vec::new();
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.retain(|_, _| false, |scope, replica, change| dropped.push((scope, replica, change)));
            shard.as_of = 0;
        }
        for (scope, replica, change) in dropped {
            self.forget(scope, replica, change);
        }
        for observation in observations {
            self.apply(as_of, observation);
        }
        if let Some(shard) = self.shards.get_mut(shard) {
            shard.as_of = as_of;
        }
    }

    /// Observations that rebuild the dictionary.
    pub fn dictionary_observations(&self) -> Vec<Observation> {
        self.dictionary.to_observations()
    }

    /// Observations that rebuild a shard, generations that have ended left out.
    pub fn shard_observations(&self, shard: usize) -> Vec<Observation> {
        self.shards
            .get(shard)
            .map(|shard| shard.to_observations(|holder| self.dictionary.replica(holder.replica).is_some()))
            .unwrap_or_default()
    }

    /// Observations that rebuild what the generations that `wanted` accepts hold.
    pub fn observations_of(&self, wanted: impl Fn(ReplicaSlot) -> bool) -> Vec<Observation> {
        let wanted = |holder: &Holder| wanted(holder.replica) && self.dictionary.replica(holder.replica).is_some();
        let uncounted = |observation| match observation {
            Observation::Stored(stored) => Observation::Stored(Stored { access_count: None, ..stored }),
            other => other,
        };
        self.shards.iter().flat_map(|shard| shard.to_observations(wanted)).map(uncounted).collect()
    }

    /// The oldest log sequence that some part of this index was loaded at.
    pub fn oldest_as_of(&self) -> u64 {
        self.shards.iter().map(|shard| shard.as_of).fold(self.dictionary_as_of, u64::min)
    }

    /// The log sequence that the dictionary and then each shard was loaded at.
    pub fn loaded_as_of(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.dictionary_as_of).chain(self.shards.iter().map(|shard| shard.as_of))
    }

    /// The log sequence that page `number` was loaded at: 0 is the dictionary, then come the shards.
    pub fn page_as_of(&self, number: u32) -> Option<u64> {
        match number.checked_sub(1) {
            None => Some(self.dictionary_as_of),
            Some(shard) => self.shards.get(shard as usize).map(|shard| shard.as_of),
        }
    }

    /// Scopes and replicas.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Number of (block, replica) pairs, those not yet swept included.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Blocks that a generation holds, expired ones until the sweep.
    pub fn pairs_of(&self, replica: ReplicaSlot) -> u64 {
        self.holdings.get(&replica).map_or(0, |scopes| scopes.values().sum())
    }

    /// Distinct blocks that are held in a scope; expired and ended ones count until the sweep.
    pub fn keys_of(&self, scope: ScopeSlot) -> u64 {
        self.keys.get(&scope).copied().unwrap_or(0)
    }

    /// The scopes that a generation holds something in, in order.
    pub fn scopes_of(&self, replica: ReplicaSlot) -> Vec<ScopeSlot> {
        let mut scopes: Vec<ScopeSlot> =
            self.holdings.get(&replica).into_iter().flat_map(HashMap::keys).copied().collect();
        scopes.sort_unstable();
        scopes
    }

    /// The blocks that a generation holds. Walks the whole index.
    pub fn blocks_of(&self, replica: ReplicaSlot) -> Vec<(ScopeSlot, BlockKey)> {
        if !self.holdings.contains_key(&replica) {
            return Vec::new();
        }
        let pairs = self.shards.iter().flat_map(|shard| shard.pairs(|_, holder| holder.replica == replica));
        pairs.map(|(scope, key, _)| (scope, key.clone())).collect()
    }

    /// The blocks in a shard that a generation holds, by scope and key.
    pub fn blocks_in(&self, shard: usize, replica: ReplicaSlot) -> Vec<(ScopeSlot, BlockKey)> {
        let shard = self.shards.get(shard).filter(|_| self.holdings.contains_key(&replica));
        let pairs = shard.into_iter().flat_map(|shard| shard.pairs(|_, holder| holder.replica == replica));
        let mut blocks: Vec<(ScopeSlot, BlockKey)> = pairs.map(|(scope, key, _)| (scope, key.clone())).collect();
        blocks.sort_unstable();
        blocks
    }

    /// A block's holders, sorted by replica; ended generations until the sweep.
    pub fn holders(&self, scope: ScopeSlot, key: &BlockKey) -> &[Holder] {
        self.shards.get(self.shard_of(scope, key)).map_or(&[], |shard| shard.holders(scope, key))
    }

    /// What a generation holds of a block; one that has ended until the sweep.
    pub fn holder(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<&Holder> {
        self.shards.get(self.shard_of(scope, key))?.holder(scope, key, replica)
    }

    /// Sets the access count of a block at a generation from what it is.
    pub fn count_hits(
        &mut self,
        scope: ScopeSlot,
        key: &BlockKey,
        replica: ReplicaSlot,
        count: impl FnOnce(u32) -> u32,
    ) {
        let at = self.shard_of(scope, key);
        if let Some(holder) = self.shards.get_mut(at).and_then(|shard| shard.holder_mut(scope, key, replica)) {
            holder.access_count = count(holder.access_count);
        }
    }

    /// The access counts of blocks after `by` more hits: for each replica, of as many of `keys` as it says, from the first on;
    /// 0 for a block that it does not hold. None if none of them is held.
    pub fn counted(
        &self,
        scope: ScopeSlot,
        keys: &[BlockKey],
        hits: &[(ReplicaSlot, usize)],
        by: u32,
    ) -> Option<Counted> {
        let count =
            |key, replica| self.holder(scope, key, replica).map_or(0, |holder| holder.access_count.saturating_add(by));
        let replicas: Vec<ReplicaCounts> = hits
            .iter()
            .map(|(replica, blocks)| ReplicaCounts {
                replica: *replica,
                counts: keys.iter().take(*blocks).map(|key| count(key, *replica)).collect(),
            })
            .filter(|counted| counted.counts.iter().any(|count| *count > 0))
            .collect();
        (!replicas.is_empty()).then(|| Counted { scope, keys: keys.to_vec(), replicas })
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The pairs in the shard that is [swept next](Index::sweep_next) that `expired` says are too old for their scope;
    /// without those of generations that have ended.
    pub fn expired_next(&self, expired: impl Fn(&Scope, u64) -> bool) -> Vec<(ScopeSlot, BlockKey, ReplicaSlot)> {
        let wanted = |slot, holder: &Holder| {
            self.dictionary.replica(holder.replica).is_some()
                && self.dictionary.scope(slot).is_some_and(|scope| expired(scope, holder.last_seen_ms))
        };
        let shard = self.shards.get(self.sweep_next % self.shards.len().max(1));
        let pairs = shard.into_iter().flat_map(|shard| shard.pairs(wanted));
        let mut expired: Vec<_> = pairs.map(|(scope, key, holder)| (scope, key.clone(), holder.replica)).collect();
        expired.sort_unstable_by(|(scope, key, replica), (next_scope, next_key, next_replica)| {
            (replica, scope, key).cmp(&(next_replica, next_scope, next_key))
        });
        expired
    }

    /// Whether the last sweep was that of the last shard.
    pub fn is_swept(&self) -> bool {
        self.sweep_next >= self.shards.len()
    }

    /// Sweeps the next shard: drops what has ended, and blocks that `expired` says are too old for their scope.
    ///
    /// Call it only when every record up to the log's end is applied: before, a generation may not be known yet.
    pub fn sweep_next(&mut self, expired: impl Fn(&Dictionary, &Scope, u64) -> bool) {
        let at = self.sweep_next % self.shards.len().max(1);
        self.sweep_next = at + 1;
        let Some(shard) = self.shards.get_mut(at) else { return };
        let dictionary = &self.dictionary;
        let mut dropped = Vec::new();
        shard.retain(
            |slot, holder| {
                dictionary.replica(holder.replica).is_some()
                    && dictionary.scope(slot).is_some_and(|scope| !expired(dictionary, scope, holder.last_seen_ms))
            },
            |slot, replica, change| dropped.push((slot, replica, change)),
        );
        for (slot, replica, change) in dropped {
            self.forget(slot, replica, change);
        }
    }

    /// Drops what a generation held that has ended, without waiting for the sweep. Walks the whole index.
    pub fn sweep_ended(&mut self, replica: ReplicaSlot) {
        if self.dictionary.replica(replica).is_none() {
            self.clear(u64::MAX, replica);
        }
    }

    fn shard_of(&self, scope: ScopeSlot, key: &BlockKey) -> usize {
        let hash = match key {
            // Spread once more: explicit keys need not be well mixed.
            BlockKey::Hash64(hash) => (hash ^ u64::from(scope.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            BlockKey::Bytes(bytes) => xxh3_64(bytes),
        };
        (hash >> 32) as usize % self.shards.len().max(1)
    }

    fn shard_at(&mut self, sequence: u64, scope: ScopeSlot, key: &BlockKey) -> Option<&mut Shard> {
        let at = self.shard_of(scope, key);
        self.shards.get_mut(at).filter(|shard| sequence > shard.as_of)
    }

    fn apply_counted(&mut self, sequence: u64, Counted { scope, keys, replicas }: &Counted) {
        for ReplicaCounts { replica, counts } in replicas {
            for (key, count) in keys.iter().zip(counts) {
                let shard = self.shard_at(sequence, *scope, key);
                if let Some(holder) = shard.and_then(|shard| shard.holder_mut(*scope, key, *replica)) {
                    holder.access_count = *count;
                }
            }
        }
    }

    fn store(&mut self, sequence: u64, scope: ScopeSlot, key: BlockKey, holder: Holder, counts_anew: bool) {
        let Some(shard) = self.shard_at(sequence, scope, &key) else { return };
        let change = shard.store(scope, key, holder, counts_anew);
        if change == Change::None {
            return;
        }
        self.pairs += 1;
        if change == Change::Block {
            *self.keys.entry(scope).or_default() += 1;
        }
        let held = self.holdings.entry(holder.replica).or_default().entry(scope).or_default();
        *held += 1;
        if *held == 1 && self.dictionary.complete_replica(holder.replica).is_some() {
            self.count(scope, holder.replica);
        }
    }

    fn remove(&mut self, sequence: u64, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) {
        let change = self.shard_at(sequence, scope, key).map(|shard| shard.remove(scope, key, replica));
        self.forget(scope, replica, change.unwrap_or(Change::None));
    }

    fn clear(&mut self, sequence: u64, replica: ReplicaSlot) {
        if !self.holdings.contains_key(&replica) {
            return;
        }
        let mut dropped = Vec::new();
        for shard in self.shards.iter_mut().filter(|shard| sequence > shard.as_of) {
            shard.retain(|_, holder| holder.replica != replica, |scope, _, change| dropped.push((scope, change)));
        }
        for (scope, change) in dropped {
            self.forget(scope, replica, change);
        }
    }

    /// Takes a pair that is gone out of the counts.
    fn forget(&mut self, scope: ScopeSlot, replica: ReplicaSlot, change: Change) {
        if change == Change::None {
            return;
        }
        self.pairs = self.pairs.saturating_sub(1);
        if change == Change::Block && take_one(&mut self.keys, scope) {
            self.unnamed.remove(&scope);
        }
        let Some(scopes) = self.holdings.get_mut(&replica) else { return };
        if take_one(scopes, scope) && self.dictionary.complete_replica(replica).is_some() {
            self.discount(scope, replica);
        }
        if self.holdings.get(&replica).is_some_and(HashMap::is_empty) {
            self.holdings.remove(&replica);
        }
    }
}

/// True if that was the last one.
fn take_one<Key: Eq + std::hash::Hash>(counts: &mut HashMap<Key, u64>, key: Key) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    *count = count.saturating_sub(1);
    let is_last = *count == 0;
    if is_last {
        counts.remove(&key);
    }
    is_last
}

#[cfg(test)]
mod tests;
