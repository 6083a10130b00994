//! `AFFINITY_HINT`: without anything better, the replica that requests with this prompt's hash always go to, so that the
//! next one of them finds its prefix there.
//!
//! The seed is, for each block hash, its length as u32 big-endian and its bytes, all concatenated; for a single key the
//! key's bytes. Neither tenant nor model nor adapter is part of it. The hash is the first 8 bytes of the seed's SHA-256,
//! big-endian. By the contract it is taken modulo the number of replicas that hold something in the scope, sorted by id;
//! by [`AffinityHash::Rendezvous`] the replica wins whose id has the greatest XXH3-64 with that hash as its seed.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::decision::{Question, RankedReplica};
use super::policy::{AffinityHash, AffinitySeed};
use super::score::live_pressure;
use crate::index::dictionary::Replica;
use crate::observation::{ReplicaSlot, Tier};
use crate::request::{ChainBlock, RequestChain};

/// Bytes that a hash of 8 bytes takes in the seed, its length included.
const ENTRY: usize = size_of::<u32>() + size_of::<u64>();
/// Hashes put together at a time: 12 pieces of what SHA-256 works on.
const PIECE: usize = 64;

/// The replica that this prompt's hash picks; `None` if the policy does not want it, or there is nothing to hash or nobody
/// to pick.
pub fn pick(question: &Question) -> Option<RankedReplica> {
    if !question.policy.affinity_routing || !question.well_formed {
        return None;
    }
    let hash = match question.foreknown.prompt_hash {
        Some(hash) => hash?,
        None => prompt_hash(&question.prompt.chain, question.ranking.affinity_seed)?,
    };
    let mut candidates: Vec<(ReplicaSlot, &Replica)> = question.index.serving(question.scope).collect();
    skip_pressed(question, &mut candidates);
    candidates.sort_by(|(_, a), (_, b)| a.replica_id.cmp(&b.replica_id));
    let ids = candidates.iter().map(|(_, replica)| &*replica.replica_id);
    let (slot, replica) = candidates.get(place(question.ranking.affinity_hash, hash, ids)?)?;
    Some(RankedReplica {
        replica: *slot,
        replica_id: Arc::clone(&replica.replica_id),
        address: Arc::clone(&replica.address),
        score: 0.0,
        matched_tokens: 0,
        matched_blocks: 0,
        hit_probability: 0.0,
        tier: Tier::Unspecified,
        data_parallel_rank: replica.data_parallel_rank,
    })
}

/// Leaves out replicas above `affinity.skip_pressure_above`, unless all are.
fn skip_pressed(question: &Question, candidates: &mut Vec<(ReplicaSlot, &Replica)>) {
    let Some(limit) = question.ranking.affinity_skip_pressure_above else { return };
    let ttl_ms = question.policy.eviction_ttl_ms;
    let is_calm = |replica: &Replica| live_pressure(replica.stats.as_ref(), question.now_ms, ttl_ms) <= limit;
    if candidates.iter().any(|(_, replica)| is_calm(replica)) {
        candidates.retain(|(_, replica)| is_calm(replica));
    }
}

/// The place of the one picked among `ids`, which are sorted.
fn place<'a>(by: AffinityHash, hash: u64, ids: impl ExactSizeIterator<Item = &'a str>) -> Option<usize> {
    match by {
        AffinityHash::Modulo => usize::try_from(hash.checked_rem(ids.len() as u64)?).ok(),
        AffinityHash::Rendezvous => {
            let weights = ids.map(|id| xxh3_64_with_seed(id.as_bytes(), hash)).enumerate();
            weights.max_by_key(|(_, weight)| *weight).map(|(place, _)| place)
        }
    }
}

/// The hash of a prompt; `None` for a key without bytes.
pub fn prompt_hash(chain: &RequestChain, of: AffinitySeed) -> Option<u64> {
    let mut seed = Sha256::new();
    let counted = match of {
        AffinitySeed::Chain => chain.len(),
        AffinitySeed::Head => 1,
    };
    let is_empty = match chain {
        RequestChain::Exact { key } => {
            let mut bytes = Vec::with_capacity(key.width());
            key.write_to(&mut bytes);
            seed.update(&bytes);
            bytes.is_empty()
        }
        RequestChain::Chain(blocks) => {
            seed.update(entries(blocks.get(..counted).unwrap_or(blocks)));
            blocks.is_empty()
        }
        RequestChain::Prefixes { hashes, .. } => {
            add_hashes(&mut seed, hashes.get(..counted).unwrap_or(hashes));
            hashes.is_empty()
        }
    };
    if is_empty {
        return None;
    }
    seed.finalize().first_chunk::<8>().map(|first| u64::from_be_bytes(*first))
}

/// Keys with their length before each.
fn entries(blocks: &[ChainBlock]) -> Vec<u8> {
    let mut entries =
        Vec::with_capacity(blocks.iter().map(|block| block.key.width().saturating_add(size_of::<u32>())).sum());
    for ChainBlock { key, .. } in blocks {
        entries.extend_from_slice(&u32::try_from(key.width()).unwrap_or(u32::MAX).to_be_bytes());
        key.write_to(&mut entries);
    }
    entries
}

/// Adds hashes with their length before each. A piece of them is put together at a time, of a size that SHA-256 takes in as it
/// stands.
fn add_hashes(seed: &mut Sha256, hashes: &[u64]) {
    let mut piece = [0; PIECE * ENTRY];
    for some in hashes.chunks(PIECE) {
        let (entries, _) = piece.as_chunks_mut::<ENTRY>();
        for (entry, hash) in entries.iter_mut().zip(some) {
            let wide = u128::from(size_of::<u64>() as u64) << u64::BITS | u128::from(*hash);
            entry.copy_from_slice(wide.to_be_bytes().last_chunk::<ENTRY>().unwrap_or(&[0; ENTRY]));
        }
        seed.update(piece.get(..some.len().saturating_mul(ENTRY)).unwrap_or_default());
    }
}
