//! Full state, true as of one sequence, as the observations that rebuild it.
//!
//! In: a copy of what each replica holds. Out: observations in the order a reset has: scopes, then for each replica its
//! announcement, load, blocks and completion. Blocks of followed replicas come in runs: consecutive blocks of one prompt that were last seen
//! together, from the first to the last, since that is how an index stores them best. Pure.

use std::collections::HashMap;

use crate::fingerprint::PrefixHash;
use crate::index::Index;
use crate::native::hub::replica_cache::HeldBlock;
use crate::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StoredBlock, Tier,
};
use crate::publisher::Publisher;
use crate::routing::policy::Policy;

/// The most blocks in one observation: 13 bytes each on the wire, so that several fit a message.
pub const MAX_BLOCKS: usize = 2_048;
/// The most bytes of keys in one observation.
const MAX_KEYS_BYTES: usize = 8 * MAX_BLOCKS;

/// The hub's state as of one sequence.
#[derive(Debug)]
pub struct Snapshot {
    /// The sequence.
    pub sequence: u64,
    /// Every scope.
    pub scopes: Vec<(ScopeSlot, Scope)>,
    /// Every policy.
    pub policies: Vec<Observation>,
    /// Every followed replica that was announced.
    pub replicas: Vec<ReplicaSnapshot>,
    /// What rebuilds the replicas that producers report.
    pub reported: Vec<Observation>,
}

/// One replica's state.
#[derive(Debug)]
pub struct ReplicaSnapshot {
    /// Its number.
    pub slot: ReplicaSlot,
    /// Its id, tenant and model.
    pub member: Member,
    /// Where Envoy reaches it.
    pub address: String,
    /// Its load, if it was reported.
    pub stats: Option<ReplicaStats>,
    /// Whether all that it holds is known.
    pub complete: bool,
    /// The blocks it holds, in no order.
    pub held: Vec<(ScopeSlot, PrefixHash, HeldBlock)>,
}

// === impl ReplicaSnapshot ===

impl ReplicaSnapshot {
    /// The observations that rebuild this replica.
    pub fn into_observations(self) -> impl Iterator<Item = Observation> {
        let replica = self.slot;
        let up = Observation::ReplicaUp { replica, member: self.member, address: self.address };
        let stats = self.stats.map(|stats| Observation::Stats { replica, stats });
        let blocks = runs(self.held).into_iter().flat_map(move |(scope, run)| stored(replica, scope, &run));
        let complete = self.complete.then_some(Observation::ReplicaComplete { replica });
        std::iter::once(up).chain(stats).chain(blocks).chain(complete)
    }
}

/// The observations that rebuild the policies.
pub fn policies(index: &Index) -> Vec<Observation> {
    let policies = index.dictionary().policies();
    let policy = |(tenant_id, policy): (Option<&str>, &Policy)| Observation::Policy {
        tenant_id: tenant_id.map(str::to_owned),
        policy: policy.clone(),
    };
    policies.map(policy).collect()
}

/// The observations that rebuild the replicas that producers report, in pieces that fit a message.
pub fn reported(publisher: &Publisher) -> Vec<Observation> {
    publisher.reported_observations().into_iter().flat_map(in_pieces).collect()
}

/// Splits what is too long for a message.
fn in_pieces(observation: Observation) -> Vec<Observation> {
    let Observation::Stored(Stored { replica, scope, tier, last_seen_ms, blocks, .. }) = observation else {
        return vec![observation];
    };
    let width = blocks.first().map_or(1, |block| block.key.width().max(1));
    let pieces = blocks.chunks((MAX_KEYS_BYTES / width).clamp(1, MAX_BLOCKS));
    pieces
        .map(|blocks| {
            Observation::Stored(Stored {
                replica,
                scope,
                tier,
                last_seen_ms,
                blocks: blocks.to_vec(),
                ..Stored::default()
            })
        })
        .collect()
}

/// The observations for a run of blocks, each of at most [`MAX_BLOCKS`] last seen together.
fn stored(replica: ReplicaSlot, scope: ScopeSlot, run: &[(PrefixHash, HeldBlock)]) -> Vec<Observation> {
    run.chunk_by(|(_, one), (_, next)| one.last_seen_ms == next.last_seen_ms)
        .flat_map(|together| together.chunks(MAX_BLOCKS))
        .map(|blocks| {
            Observation::Stored(Stored {
                replica,
                scope,
                tier: Tier::T1,
                last_seen_ms: blocks.first().map_or(0, |(_, block)| block.last_seen_ms),
                blocks: blocks
                    .iter()
                    .map(|(hash, block)| StoredBlock { key: BlockKey::from(*hash), token_count: block.token_count })
                    .collect(),
                ..Stored::default()
            })
        })
        .collect()
}

/// Splits blocks into chains: from the deepest block that is left, back to the start or to a block of another chain.
fn runs(mut held: Vec<(ScopeSlot, PrefixHash, HeldBlock)>) -> Vec<(ScopeSlot, Vec<(PrefixHash, HeldBlock)>)> {
    held.sort_unstable_by_key(|(scope, hash, block)| (*scope, std::cmp::Reverse(block.token_count), *hash));
    let mut left: HashMap<(ScopeSlot, PrefixHash), HeldBlock> =
        held.iter().map(|(scope, hash, block)| ((*scope, *hash), *block)).collect();
    let mut runs = Vec::new();
    for (scope, deepest, _) in held {
        let mut run = Vec::new();
        let mut next = Some(deepest);
        while let Some(hash) = next
            && let Some(block) = left.remove(&(scope, hash))
        {
            run.push((hash, block));
            next = block.parent;
        }
        if !run.is_empty() {
            run.reverse();
            runs.push((scope, run));
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::engine::{BlockStored, EngineKey, KvEvent};
    use crate::native::hub::replica_cache::{ReplicaCache, Tally};

    const SCOPE: ScopeSlot = ScopeSlot(1);

    fn store(cache: &mut ReplicaCache, keys: std::ops::Range<u64>, parent: Option<u64>, now_ms: u64) {
        let event = KvEvent::BlockStored(BlockStored {
            token_ids: keys.clone().map(|key| key as u32).collect(),
            block_hashes: keys.map(EngineKey::Int).collect(),
            parent_block_hash: parent.map(EngineKey::Int),
            block_size: 1,
            ..BlockStored::default()
        });
        cache.apply(&event, now_ms, &mut |_| Some(SCOPE), &mut Vec::new(), &mut Tally::default());
    }

    fn snapshot(cache: &ReplicaCache) -> Vec<Observation> {
        let replica = ReplicaSnapshot {
            slot: ReplicaSlot(4),
            member: Member::new("t", "m", "a"),
            address: "127.0.0.1:8000".into(),
            stats: Some(ReplicaStats::default()),
            complete: true,
            held: cache.held().collect(),
        };
        replica.into_observations().collect()
    }

    fn token_counts(observations: &[Observation]) -> Vec<Vec<u32>> {
        let counts = |observation: &Observation| match observation {
            Observation::Stored(Stored { blocks, .. }) => Some(blocks.iter().map(|block| block.token_count).collect()),
            _ => None,
        };
        observations.iter().filter_map(counts).collect()
    }

    #[test]
    fn blocks_come_in_runs_split_where_prompts_part_and_times_differ() {
        let mut cache = ReplicaCache::default();
        store(&mut cache, 0..4, None, 10);
        store(&mut cache, 4..6, Some(3), 20);
        store(&mut cache, 90..91, Some(1), 20);
        let observations = snapshot(&cache);
        assert!(matches!(observations[0], Observation::ReplicaUp { .. }));
        assert!(matches!(observations[1], Observation::Stats { .. }));
        assert_eq!(token_counts(&observations), [vec![1, 2, 3, 4], vec![5, 6], vec![3]]);
        assert!(matches!(observations.last(), Some(Observation::ReplicaComplete { .. })));
    }

    #[test]
    fn long_runs_are_cut() {
        let mut cache = ReplicaCache::default();
        store(&mut cache, 0..5_000, None, 10);
        let lengths: Vec<usize> = token_counts(&snapshot(&cache)).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2_048, 2_048, 904]);
    }
}
