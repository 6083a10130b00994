//! Full state, true as of one sequence, as the observations that rebuild it.
//!
//! In: a copy of what each replica holds. Out: observations in the order a reset has: scopes, policies, models, then for each replica its
//! announcement, load, blocks, last re-assertion and completion. Blocks of followed replicas come in runs: consecutive
//! blocks of one prompt that were last seen together in one tier, from the first to the last, and none before the one that it goes on
//! from, if that is held; that is how an index stores them best. Pure.

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
    /// Every model whose text can be turned into token ids.
    pub models: Vec<Observation>,
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
    /// Its rank, where it is one of several at the address.
    pub data_parallel_rank: Option<u32>,
    /// Its load, if it was reported.
    pub stats: Option<ReplicaStats>,
    /// Whether all that it holds is known.
    pub complete: bool,
    /// When it was last known to hold still what it held, in the hub's own ms, if that was said.
    pub reasserted_ms: Option<u64>,
    /// The blocks it holds, in no order.
    pub held: Vec<(ScopeSlot, PrefixHash, HeldBlock)>,
}

// === impl ReplicaSnapshot ===

impl ReplicaSnapshot {
    /// The observations that rebuild this replica.
    pub fn into_observations(self) -> impl Iterator<Item = Observation> {
        let replica = self.slot;
        let up = Observation::ReplicaUp {
            replica,
            member: self.member,
            address: self.address,
            data_parallel_rank: self.data_parallel_rank,
        };
        let stats = self.stats.map(|stats| Observation::Stats { replica, stats });
        let reasserted = self.reasserted_ms.map(|at_ms| Observation::Reasserted { replica, at_ms });
        let complete = self.complete.then_some(Observation::ReplicaComplete { replica });
        std::iter::once(up).chain(stats).chain(in_runs(replica, self.held)).chain(reasserted).chain(complete)
    }
}

/// The observations that rebuild what a followed replica holds.
pub fn in_runs(
    replica: ReplicaSlot,
    held: Vec<(ScopeSlot, PrefixHash, HeldBlock)>,
) -> impl Iterator<Item = Observation> {
    runs(held).into_iter().flat_map(move |(scope, run)| stored(replica, scope, &run))
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

/// The observations that rebuild what is announced of models.
pub fn models(index: &Index) -> Vec<Observation> {
    let models = index.dictionary().models();
    models.map(|(model_id, version)| Observation::Model { model_id: model_id.to_owned(), version }).collect()
}

/// The observations that rebuild the replicas that producers report, in pieces that fit a message.
pub fn reported(publisher: &Publisher) -> Vec<Observation> {
    let observations = publisher.reported_observations().into_iter();
    observations.flat_map(Observation::into_uniform).flat_map(in_pieces).collect()
}

/// Splits what is too long for a message, its keys being of one width.
fn in_pieces(observation: Observation) -> Vec<Observation> {
    let Observation::Stored(Stored { replica, scope, tier, last_seen_ms, mut parent, chained, blocks, .. }) =
        observation
    else {
        return vec![observation];
    };
    let width = blocks.first().map_or(1, |block| block.key.width().max(1));
    let pieces = blocks.chunks((MAX_KEYS_BYTES / width).clamp(1, MAX_BLOCKS));
    pieces
        .map(|blocks| {
            let end = blocks.last().map(|block| block.key.clone());
            Observation::Stored(Stored {
                replica,
                scope,
                tier,
                last_seen_ms,
                parent: std::mem::replace(&mut parent, end),
                chained,
                blocks: blocks.to_vec(),
                ..Stored::default()
            })
        })
        .collect()
}

/// The observations for a run of blocks, each of at most [`MAX_BLOCKS`] last seen together in one tier.
fn stored(replica: ReplicaSlot, scope: ScopeSlot, run: &[(PrefixHash, HeldBlock)]) -> Vec<Observation> {
    run.chunk_by(|(_, one), (_, next)| (one.last_seen_ms, one.tier()) == (next.last_seen_ms, next.tier()))
        .flat_map(|together| together.chunks(MAX_BLOCKS))
        .map(|blocks| {
            let first = blocks.first().map(|(_, block)| block);
            Observation::Stored(Stored {
                replica,
                scope,
                tier: first.map_or(Tier::Unspecified, HeldBlock::tier),
                last_seen_ms: first.map_or(0, |block| block.last_seen_ms),
                parent: first.and_then(|block| block.parent).map(BlockKey::from),
                chained: true,
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
    use crate::observation::{StreamBody, StreamMessage};
    use crate::publisher::PublisherLimits;
    use crate::publisher::message::{CacheStateUpdate, PrefixEntry};
    use crate::wire;

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
            data_parallel_rank: None,
            stats: Some(ReplicaStats::default()),
            complete: true,
            reasserted_ms: Some(30),
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
        let replica = ReplicaSlot(4);
        let end = [Observation::Reasserted { replica, at_ms: 30 }, Observation::ReplicaComplete { replica }];
        assert!(observations.ends_with(&end));
    }

    #[test]
    fn long_runs_are_cut() {
        let mut cache = ReplicaCache::default();
        store(&mut cache, 0..5_000, None, 10);
        let observations = snapshot(&cache);
        let lengths: Vec<usize> = token_counts(&observations).iter().map(Vec::len).collect();
        assert_eq!(lengths, [2_048, 2_048, 904]);
        check_chains(&cache, &observations);
    }

    /// Every block held is there once; each is said to come after the one that it does come after, which is there before
    /// it if it is held.
    fn check_chains(cache: &ReplicaCache, observations: &[Observation]) {
        let mut left: HashMap<BlockKey, HeldBlock> =
            cache.held().map(|(_, hash, block)| (BlockKey::from(hash), block)).collect();
        for observation in observations {
            let Observation::Stored(Stored { parent, chained, last_seen_ms, blocks, .. }) = observation else {
                continue;
            };
            assert!(*chained);
            let mut before = parent.clone();
            for StoredBlock { key, token_count } in blocks {
                assert!(before.as_ref().is_none_or(|before| !left.contains_key(before)), "{before:?} comes later");
                let held = left.remove(key).unwrap();
                assert_eq!(held.parent.map(BlockKey::from), before);
                assert_eq!((held.token_count, held.last_seen_ms), (*token_count, *last_seen_ms));
                before = Some(key.clone());
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn pieces_say_what_they_go_on_from() {
        let mut cache = ReplicaCache::default();
        store(&mut cache, 0..3, None, 10);
        store(&mut cache, 3..4, Some(2), 20);
        store(&mut cache, 4..5, Some(1), 20);
        let observations = snapshot(&cache);
        check_chains(&cache, &observations);
        let stored = |observation: &Observation| match observation {
            Observation::Stored(stored) => Some((stored.parent.clone(), stored.blocks[0].token_count)),
            _ => None,
        };
        let size = crate::fingerprint::BlockSize::try_new(1).unwrap();
        let hashes: Vec<BlockKey> =
            crate::fingerprint::prefix_hashes(&[0, 1, 2], size, None).map(BlockKey::from).collect();
        let told: Vec<_> = observations.iter().filter_map(stored).collect();
        assert_eq!(told, [(None, 1), (Some(hashes[2].clone()), 4), (Some(hashes[1].clone()), 3)]);
    }

    #[test]
    fn of_a_run_whose_start_is_gone_the_block_before_is_told_all_the_same() {
        let mut cache = ReplicaCache::default();
        store(&mut cache, 0..6, None, 10);
        let block_hashes = [1, 2].map(EngineKey::Int).into();
        let removed = KvEvent::BlockRemoved(crate::native::engine::BlockRemoved { block_hashes, ..Default::default() });
        cache.apply(&removed, 20, &mut |_| Some(SCOPE), &mut Vec::new(), &mut Tally::default());
        let observations = snapshot(&cache);
        assert_eq!(token_counts(&observations), [vec![4, 5, 6], vec![1]]);
        check_chains(&cache, &observations);
    }

    #[test]
    fn whatever_is_held_comes_in_the_order_of_its_chains() {
        for seed in 0..50_u64 {
            let mut cache = ReplicaCache::default();
            for step in 0..40_u64 {
                // Any earlier block, or none, and another one each time.
                let parent = (seed + 1) * (step + 7) * 2_654_435_761 % 97 % (step + 1) * 10;
                let parent = parent.checked_sub(10).map(|first| first + (seed + first / 10) % 4 / (1 + step % 2));
                let first = step * 10;
                store(&mut cache, first..first + 1 + (seed + step) % 4, parent, step / 4);
            }
            assert!(cache.len() > 60, "{} blocks", cache.len());
            check_chains(&cache, &snapshot(&cache));
        }
    }

    #[test]
    fn pieces_of_what_was_reported_go_on_from_one_another() {
        let blocks: Vec<StoredBlock> =
            (1..=5_000).map(|at| StoredBlock { key: BlockKey::Hash64(u64::from(at)), token_count: at }).collect();
        let parent = Some(BlockKey::Bytes(b"before"[..].into()));
        let whole = Stored { scope: SCOPE, last_seen_ms: 7, parent: parent.clone(), blocks, ..Stored::default() };
        let pieces = in_pieces(Observation::Stored(whole.clone()));
        let pieces: Vec<Stored> = pieces
            .into_iter()
            .map(|piece| match piece {
                Observation::Stored(stored) => stored,
                other => panic!("{other:?}"),
            })
            .collect();
        let parents: Vec<_> = pieces.iter().map(|piece| piece.parent.clone()).collect();
        assert_eq!(parents, [parent, Some(BlockKey::Hash64(2_048)), Some(BlockKey::Hash64(4_096))]);
        assert!(pieces.iter().all(|piece| !piece.chained && (piece.scope, piece.last_seen_ms) == (SCOPE, 7)));
        assert_eq!(pieces.into_iter().flat_map(|piece| piece.blocks).collect::<Vec<_>>(), whole.blocks);
    }

    #[test]
    fn what_was_reported_in_keys_of_different_widths_comes_back_from_its_messages() {
        let longest = "x".repeat(256);
        let hashes = ["abcd", "ef", "a", "12345678", "bcd", &longest, "gh", "123456789"];
        let entry = |hash: &&str| PrefixEntry {
            prefix_hash: hash.as_bytes().to_vec(),
            token_count: 16,
            block_hashes: hashes.iter().map(|start| format!("{start}{hash}").into_bytes()).collect(),
            block_token_counts: vec![16; hashes.len()],
            ..PrefixEntry::default()
        };
        let mut publisher = Publisher::new(PublisherLimits::default());
        let report = CacheStateUpdate {
            replica_id: "a".into(),
            model_id: "m".into(),
            tenant_id: "t".into(),
            hash_scheme: "s".into(),
            prefixes: hashes.iter().map(entry).collect(),
            ..CacheStateUpdate::default()
        };
        publisher.report(&report, 1_700_000_000_000);
        let pieces = reported(&publisher);
        let body = StreamBody::Chunk(pieces.clone());
        let message = StreamMessage { number: 1, epoch: 1, sequence: 1, body };
        let message = wire::stream_message_from_proto(wire::stream_message_to_proto(&message)).unwrap();
        assert_eq!(message.body, StreamBody::Chunk(pieces.clone()), "one piece is one fact");

        let mut came = Index::new(4);
        pieces.into_iter().for_each(|piece| came.apply(2, piece));
        let keys = |index: &Index| index.held().into_iter().map(|(_, key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys(&came), keys(publisher.index()));
        assert!(came.pairs() > 40, "{} pairs", came.pairs());
    }
}
