//! Who holds what.
//!
//! In: [`Observation`]s with the log sequence they were committed under. Out: for a chain of block keys, the replicas
//! that hold a leading run of it. The index never credits a replica with a block that it was not reported to hold;
//! after a loss it may know less than there is. Blocks are kept in [shards](shard), one for each page of shared data;
//! applying a record that a shard already covers changes nothing there.

pub mod dictionary;
pub mod log;
pub mod run;
pub mod runs;
pub mod shard;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::observation::{BlockKey, Observation, ReplicaSlot, Scope, ScopeSlot, StoredBlock};
use dictionary::Dictionary;
use shard::{Holder, Shard};

/// Who holds what, as of a log sequence.
#[derive(Clone, Debug)]
pub struct Index {
    dictionary: Dictionary,
    /// The log sequence the dictionary is true of.
    dictionary_as_of: u64,
    shards: Vec<Shard>,
    /// Blocks of each generation in each scope, expired and ended ones until the sweep.
    holdings: HashMap<ScopeSlot, HashMap<ReplicaSlot, u64>>,
    /// The same in all scopes together.
    held: HashMap<ReplicaSlot, u64>,
    pairs: u64,
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
            held: HashMap::new(),
            pairs: 0,
            sweep_next: 0,
        }
    }

    /// Applies an observation committed under log sequence `sequence`.
    pub fn apply(&mut self, sequence: u64, observation: Observation) {
        match observation {
            Observation::Stored { replica, scope, tier, last_seen_ms, blocks } => {
                for StoredBlock { key, token_count } in blocks {
                    self.store(sequence, scope, key, Holder { replica, tier, token_count, last_seen_ms });
                }
            }
            Observation::Removed { replica, scope, keys } => {
                for key in keys {
                    self.remove(sequence, scope, &key, replica);
                }
            }
            Observation::Cleared { replica } => self.clear(sequence, replica),
            other => {
                if sequence > self.dictionary_as_of {
                    self.dictionary.apply(&other);
                }
            }
        }
    }

    /// Loads the dictionary from a page that is true of `as_of`.
    pub fn load_dictionary(&mut self, as_of: u64, observations: &[Observation]) {
        self.dictionary = Dictionary::default();
        observations.iter().for_each(|observation| self.dictionary.apply(observation));
        self.dictionary_as_of = as_of;
    }

    /// Loads a shard, empty so far, from a page that is true of `as_of`.
    pub fn load_shard(&mut self, shard: usize, as_of: u64, observations: Vec<Observation>) {
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

    /// The oldest log sequence that some part of this index was loaded at.
    pub fn oldest_as_of(&self) -> u64 {
        self.shards.iter().map(|shard| shard.as_of).fold(self.dictionary_as_of, u64::min)
    }

    /// The log sequence that the dictionary and then each shard was loaded at.
    pub fn loaded_as_of(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.dictionary_as_of).chain(self.shards.iter().map(|shard| shard.as_of))
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
        self.held.get(&replica).copied().unwrap_or(0)
    }

    /// Replicas that hold at least one block under this scope's tenant, model and hash scheme, whatever the adapter;
    /// expired blocks count until the sweep.
    pub fn serving_replicas(&self, scope: &Scope) -> usize {
        let mut serving: Vec<ReplicaSlot> = self
            .dictionary
            .siblings(scope)
            .iter()
            .filter_map(|sibling| self.holdings.get(sibling))
            .flat_map(|holdings| holdings.keys().copied())
            .filter(|replica| self.dictionary.complete_replica(*replica).is_some())
            .collect();
        serving.sort_unstable();
        serving.dedup();
        serving.len()
    }

    /// Sweeps the next shard: drops what has ended, and blocks that `expired` says are too old for their scope.
    ///
    /// Call it only when every record up to the log's end is applied: before, a generation may not be known yet.
    pub fn sweep_next(&mut self, expired: impl Fn(&Scope, u64) -> bool) {
        let at = self.sweep_next % self.shards.len().max(1);
        self.sweep_next = at + 1;
        let Some(shard) = self.shards.get_mut(at) else { return };
        let dictionary = &self.dictionary;
        let mut dropped = Vec::new();
        shard.retain(
            |slot, holder| {
                dictionary.replica(holder.replica).is_some()
                    && dictionary.scope(slot).is_some_and(|scope| !expired(scope, holder.last_seen_ms))
            },
            |slot, replica| dropped.push((slot, replica)),
        );
        for (slot, replica) in dropped {
            self.forget(slot, replica);
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

    fn holders(&self, scope: ScopeSlot, key: &BlockKey) -> &[Holder] {
        self.shards.get(self.shard_of(scope, key)).map_or(&[], |shard| shard.holders(scope, key))
    }

    fn shard_at(&mut self, sequence: u64, scope: ScopeSlot, key: &BlockKey) -> Option<&mut Shard> {
        let at = self.shard_of(scope, key);
        self.shards.get_mut(at).filter(|shard| sequence > shard.as_of)
    }

    fn store(&mut self, sequence: u64, scope: ScopeSlot, key: BlockKey, holder: Holder) {
        let Some(shard) = self.shard_at(sequence, scope, &key) else { return };
        if shard.store(scope, key, holder) {
            self.pairs += 1;
            *self.holdings.entry(scope).or_default().entry(holder.replica).or_default() += 1;
            *self.held.entry(holder.replica).or_default() += 1;
        }
    }

    fn remove(&mut self, sequence: u64, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) {
        if self.shard_at(sequence, scope, key).is_some_and(|shard| shard.remove(scope, key, replica)) {
            self.forget(scope, replica);
        }
    }

    fn clear(&mut self, sequence: u64, replica: ReplicaSlot) {
        let mut dropped = Vec::new();
        for shard in self.shards.iter_mut().filter(|shard| sequence > shard.as_of) {
            shard.retain(|_, holder| holder.replica != replica, |scope, _| dropped.push(scope));
        }
        for scope in dropped {
            self.forget(scope, replica);
        }
    }

    /// Takes one pair out of the counts.
    fn forget(&mut self, scope: ScopeSlot, replica: ReplicaSlot) {
        self.pairs = self.pairs.saturating_sub(1);
        if let Some(holdings) = self.holdings.get_mut(&scope) {
            take_one(holdings, replica);
        }
        take_one(&mut self.held, replica);
    }
}

fn take_one(counts: &mut HashMap<ReplicaSlot, u64>, replica: ReplicaSlot) {
    if let Some(count) = counts.get_mut(&replica) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&replica);
        }
    }
}

#[cfg(test)]
mod tests;
