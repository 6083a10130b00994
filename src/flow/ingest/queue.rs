//! What was heard and is not committed yet, in pieces that are committed one by one.

use std::collections::VecDeque;

use super::names::{member_bytes, scope_bytes};
use super::{Heard, Position};
use crate::observation::{BlockKey, ModelPart, Observation, Stored};

/// Bytes of a message that are committed together, about.
const PIECE_BYTES: usize = 4 * 1024;
/// Blocks of a record that are.
const PART_BLOCKS: usize = 256;
/// Bytes that a record takes beside its keys, about.
const RECORD_BYTES: usize = 48;
/// Bytes that a policy takes beside, about.
const POLICY_BYTES: usize = 128;
/// Bytes that a block takes beside its key, about.
const BLOCK_BYTES: usize = 4;

/// What one stream message said, in the log's numbers.
#[derive(Debug)]
pub struct Batch {
    /// The records.
    pub records: Vec<Observation>,
    /// A part of a model's package, which is not for the log. Nothing else is in the batch then.
    pub part: Option<ModelPart>,
    /// The hub's position once they are committed; none while a reset is under way.
    pub position: Option<Position>,
    /// The message to acknowledge then; 0 if this is not the end of one.
    pub number: u64,
    /// When and from where it came.
    pub heard: Heard,
}

/// Batches in the order in which they were heard.
#[derive(Debug, Default)]
pub(super) struct Queue {
    batches: VecDeque<Batch>,
    /// Messages in the queue.
    messages: u64,
    /// Messages taken so far, to the end.
    taken: u64,
    bytes: usize,
    pairs: u64,
}

// === impl Batch ===

impl Batch {
    fn bytes(&self) -> usize {
        bytes_of(&self.records) + self.part.as_ref().map_or(0, |part| part.contents.len())
    }
}

// === impl Queue ===

impl Queue {
    /// Queues what a message says, in pieces. The position is that `before` the message until the last of them: who goes
    /// on from there hears all of it again.
    pub(super) fn put(
        &mut self,
        records: Vec<Observation>,
        (before, after): (Option<Position>, Option<Position>),
        number: u64,
        heard: Heard,
    ) {
        let mut pieces = pieces_of(records);
        let last = pieces.pop().unwrap_or_default();
        for records in pieces {
            self.push(Batch { records, part: None, position: before, number: 0, heard });
        }
        self.push(Batch { records: last, part: None, position: after, number, heard });
    }

    /// Queues a part of a model's package.
    pub(super) fn put_part(&mut self, part: ModelPart, number: u64, heard: Heard) {
        self.push(Batch { records: Vec::new(), part: Some(part), position: None, number, heard });
    }

    fn push(&mut self, batch: Batch) {
        self.bytes += batch.bytes();
        self.pairs += pairs_of(&batch.records);
        self.messages += u64::from(batch.number > 0);
        self.batches.push_back(batch);
    }

    /// Takes batches of together at most `max_bytes`, but at least one, as one.
    pub(super) fn take(&mut self, max_bytes: usize) -> Option<Batch> {
        let mut taken = self.pop()?;
        let mut bytes = taken.bytes();
        while let Some(next) = self.batches.front() {
            bytes += next.bytes();
            if bytes > max_bytes || taken.part.is_some() || next.part.is_some() {
                break;
            }
            let Some(next) = self.pop() else { break };
            taken.records.extend(next.records);
            taken.position = next.position;
            if next.number > 0 || taken.number == 0 {
                taken.number = next.number;
                taken.heard = next.heard;
            }
        }
        Some(taken)
    }

    fn pop(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        let is_end = u64::from(batch.number > 0);
        self.taken += is_end;
        self.messages = self.messages.saturating_sub(is_end);
        self.bytes = self.bytes.saturating_sub(batch.bytes());
        self.pairs = self.pairs.saturating_sub(pairs_of(&batch.records));
        Some(batch)
    }

    /// Whether there is a next batch, without records.
    pub(super) fn next_is_empty(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.records.is_empty())
    }

    /// Bytes of all batches, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pairs of all batches.
    pub(super) fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Messages taken so far, to the end.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Messages taken once all that are queued are.
    pub(super) fn taken_in_the_end(&self) -> u64 {
        self.taken + self.messages
    }
}

/// Splits records into pieces of about `PIECE_BYTES`; at least one piece.
fn pieces_of(records: Vec<Observation>) -> Vec<Vec<Observation>> {
    let mut pieces = vec![Vec::new()];
    let mut bytes = 0;
    for record in records {
        for part in parts_of(record) {
            let its_bytes = bytes_of(std::slice::from_ref(&part));
            if bytes > 0 && bytes + its_bytes > PIECE_BYTES {
                pieces.push(Vec::new());
                bytes = 0;
            }
            bytes += its_bytes;
            if let Some(piece) = pieces.last_mut() {
                piece.push(part);
            }
        }
    }
    pieces
}

/// A record of many blocks as several of fewer.
fn parts_of(record: Observation) -> Vec<Observation> {
    match record {
        Observation::Removed { replica, scope, keys } if keys.len() > PART_BLOCKS => {
            keys.chunks(PART_BLOCKS).map(|keys| Observation::Removed { replica, scope, keys: keys.to_vec() }).collect()
        }
        Observation::Stored(stored) if stored.blocks.len() > PART_BLOCKS => stored.in_parts(PART_BLOCKS),
        other => vec![other],
    }
}

/// Pairs that records bring.
pub(super) fn pairs_of(records: &[Observation]) -> u64 {
    records
        .iter()
        .map(|record| match record {
            Observation::Stored(Stored { blocks, .. }) => blocks.len() as u64,
            _ => 0,
        })
        .sum()
}

fn bytes_of(records: &[Observation]) -> usize {
    records
        .iter()
        .map(|record| match record {
            Observation::Stored(Stored { blocks, .. }) => {
                RECORD_BYTES + blocks.iter().map(|block| BLOCK_BYTES + block.key.width()).sum::<usize>()
            }
            Observation::Removed { keys, .. } => RECORD_BYTES + keys.iter().map(BlockKey::width).sum::<usize>(),
            Observation::Scope { scope, .. } => RECORD_BYTES + scope_bytes(scope),
            Observation::ReplicaUp { member, address, .. } => RECORD_BYTES + member_bytes(member, address),
            Observation::Policy { tenant_id, .. } | Observation::PolicyGone { tenant_id } => {
                RECORD_BYTES + POLICY_BYTES + tenant_id.as_ref().map_or(0, String::len)
            }
            Observation::Model { model_id, .. } | Observation::ModelGone { model_id } => RECORD_BYTES + model_id.len(),
            _ => RECORD_BYTES,
        })
        .sum()
}
