//! Batches of the gRPC stream `SubscribeKvEvents`. `proto/smg/kv_events.proto` has the fields.
//!
//! In: an encoded `KvEventBatch`. Out: the same [`Batch`] as from an engine's own publisher. Hashes are signed there; their
//! bits are the key. Each block says of itself where it is, how long it is and which adapter it is of: those that agree
//! come as one run, and each run after the first continues the one before it.

use prost::Message;

use super::{Batch, BlockRemoved, BlockStored, EngineKey, EventFault, KvEvent, Missed, Place};

/// Types generated from `smg.grpc.common`.
#[allow(missing_docs, clippy::all)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/smg.grpc.common.rs"));
}

/// What of a batch has to be known before it is applied.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Head {
    #[prost(uint64, tag = "1")]
    sequence_number: u64,
}

/// Bytes that are no `KvEventBatch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedBatch(prost::DecodeError);

/// The batch's number.
///
/// # Errors
/// When it is not a batch.
pub fn sequence(payload: &[u8]) -> Result<u64, MalformedBatch> {
    Ok(Head::decode(payload).map_err(MalformedBatch)?.sequence_number)
}

/// Reads one batch.
///
/// # Errors
/// When it is not one.
pub fn decode(payload: &[u8]) -> Result<Batch, MalformedBatch> {
    let batch = wire::KvEventBatch::decode(payload).map_err(MalformedBatch)?;
    let all = batch.events.len();
    let unknown = batch.events.iter().filter(|event| event.data.is_none()).count();
    Ok(Batch {
        timestamp: Some(batch.timestamp).filter(|timestamp| *timestamp > 0.0),
        data_parallel_rank: batch.dp_rank.map(i64::from),
        events: batch.events.into_iter().flat_map(events).collect(),
        read: (all - unknown) as u64,
        faults: if unknown > 0 { vec![(EventFault::UnknownTag, unknown as u64)] } else { Vec::new() },
    })
}

fn events(event: wire::KvCacheEvent) -> Vec<KvEvent> {
    use wire::kv_cache_event::Data;
    match event.data {
        Some(Data::Stored(stored)) => runs(stored).into_iter().map(KvEvent::BlockStored).collect(),
        Some(Data::Removed(removed)) => vec![KvEvent::BlockRemoved(BlockRemoved {
            block_hashes: removed.block_hashes.into_iter().map(key).collect(),
            place: place(removed.cache_level),
        })],
        Some(Data::Cleared(_)) => vec![KvEvent::AllBlocksCleared],
        None => vec![KvEvent::Missed(Missed::Stores)],
    }
}

/// Blocks that agree in all but their tokens, each run with the block before it.
fn runs(stored: wire::KvBlocksStored) -> Vec<BlockStored> {
    let mut parent = stored.parent_block_hash.map(key);
    let mut runs: Vec<BlockStored> = Vec::new();
    let mut last = None;
    for block in stored.blocks {
        let block_size = u64::try_from(block.block_size).unwrap_or(0);
        let is_full = block.token_ids.len() as u64 == block_size;
        let alike = (block_size, is_full, block.lora_id, block.cache_level);
        if last.replace(alike) != Some(alike) {
            runs.push(BlockStored {
                parent_block_hash: parent.clone(),
                block_size,
                lora_id: block.lora_id,
                place: place(block.cache_level),
                ..BlockStored::default()
            });
        }
        let hash = key(block.block_hash);
        if let Some(run) = runs.last_mut() {
            run.block_hashes.push(hash.clone());
            run.token_ids.extend(block.token_ids);
        }
        parent = Some(hash);
    }
    runs
}

fn key(hash: i64) -> EngineKey {
    EngineKey::Int(hash.cast_unsigned())
}

/// Levels by the names that engines give such storage themselves.
fn place(cache_level: Option<i32>) -> Place {
    let medium = match cache_level {
        None => None,
        Some(0) => Some("GPU".to_owned()),
        Some(1) => Some("CPU".to_owned()),
        Some(_) => Some("STORAGE".to_owned()),
    };
    Place { medium, ..Place::default() }
}

impl std::fmt::Display for MalformedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a KvEventBatch: {}", self.0)
    }
}

impl std::error::Error for MalformedBatch {}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::kv_cache_event::Data;

    fn block(block_hash: i64, token_ids: &[u32], cache_level: Option<i32>) -> wire::KvBlock {
        wire::KvBlock { block_hash, token_ids: token_ids.to_vec(), block_size: 2, lora_id: None, cache_level }
    }

    fn batch(data: Vec<Option<Data>>) -> Vec<u8> {
        let events = data.into_iter().map(|data| wire::KvCacheEvent { event_id: 1, data }).collect();
        wire::KvEventBatch { sequence_number: 7, timestamp: 2.5, events, dp_rank: Some(3) }.encode_to_vec()
    }

    #[test]
    fn blocks_come_in_runs_that_continue_each_other() {
        let blocks = vec![
            block(-1, &[1, 2], None),
            block(5, &[3, 4], None),
            block(6, &[5, 6], Some(1)),
            block(i64::MIN, &[7], Some(1)),
        ];
        let stored = wire::KvBlocksStored { blocks, parent_block_hash: Some(-9) };
        let payload = batch(vec![Some(Data::Stored(stored))]);
        assert_eq!(sequence(&payload), Ok(7));
        let batch = decode(&payload).unwrap();
        assert_eq!((batch.timestamp, batch.data_parallel_rank), (Some(2.5), Some(3)));
        let runs: Vec<BlockStored> = batch
            .events
            .into_iter()
            .map(|event| match event {
                KvEvent::BlockStored(run) => run,
                other => panic!("{other:?}"),
            })
            .collect();
        let parents: Vec<_> = runs.iter().map(|run| run.parent_block_hash.clone().unwrap()).collect();
        assert_eq!(parents, [EngineKey::Int(-9_i64 as u64), EngineKey::Int(5), EngineKey::Int(6)]);
        assert_eq!(runs[0].block_hashes, [EngineKey::Int(u64::MAX), EngineKey::Int(5)]);
        assert_eq!((runs[0].token_ids.as_slice(), runs[2].token_ids.as_slice()), (&[1, 2, 3, 4][..], &[7][..]));
        assert_eq!(runs[1].place.medium.as_deref(), Some("CPU"));
        assert_eq!(runs[2].block_hashes, [EngineKey::Int(1 << 63)]);
    }

    #[test]
    fn removals_clears_and_events_of_the_future_are_told_apart() {
        let removed = wire::KvBlocksRemoved { block_hashes: vec![-1], cache_level: Some(2) };
        let cleared = wire::KvCacheCleared {};
        let payload = batch(vec![Some(Data::Removed(removed)), Some(Data::Cleared(cleared)), None]);
        let place = Place { medium: Some("STORAGE".into()), ..Place::default() };
        let removed = BlockRemoved { block_hashes: vec![EngineKey::Int(u64::MAX)], place };
        assert_eq!(
            decode(&payload).unwrap().events,
            [KvEvent::BlockRemoved(removed), KvEvent::AllBlocksCleared, KvEvent::Missed(Missed::Stores)]
        );
        let batch = decode(&payload).unwrap();
        assert_eq!((batch.read, batch.faults), (2, vec![(EventFault::UnknownTag, 1)]));
    }

    #[test]
    fn whatever_the_bytes_they_are_read_or_refused() {
        let stored = wire::KvBlocksStored { blocks: vec![block(1, &[1, 2], None)], parent_block_hash: None };
        let payload = batch(vec![Some(Data::Stored(stored))]);
        for length in 0..payload.len() {
            let _ = (sequence(&payload[..length]), decode(&payload[..length]));
        }
        for at in 0..payload.len() {
            let mut flipped = payload.clone();
            flipped[at] ^= 0x80;
            let _ = (sequence(&flipped), decode(&flipped));
        }
        assert!(decode(&[0xFF; 3]).is_err());
    }
}
