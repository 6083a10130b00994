//! What a VM's requests delivered, until it is sent to the leader.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use hashbrown::HashMap;

use super::MAX_BATCH_BYTES;
use crate::flow::metrics;
use crate::host::Host;
use crate::index::log::{Credits, Incarnation};
use crate::observation::{BlockKey, Counted, ReplicaCounts, ReplicaSlot, ScopeSlot};
use crate::request::RequestChain;
use crate::routing::decision::RankedReplica;

/// The most that waits to be sent, in bytes as they are sent, about: four ticks' worth.
const MAX_WAITING_BYTES: usize = 4 * MAX_BATCH_BYTES;
/// The most of a part, the smallest that is sent as a whole, in bytes: beside two of them a batch wastes little.
const MAX_PART_BYTES: usize = 4 * 1024;
/// Replicas in one part.
const MAX_PART_REPLICAS: usize = 64;
/// The most bytes of a batch's frame.
const FRAME_BYTES: usize = 32;
/// The most bytes that a part takes beside its keys and replicas.
const PART_BYTES: usize = 32;
/// The most bytes that a replica takes in a part beside its counts.
const REPLICA_BYTES: usize = 16;

/// A delivered answer: who held how much of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    scope: ScopeSlot,
    /// The longest match.
    keys: Vec<BlockKey>,
    /// How many of the keys each replica matched, from the first on.
    replicas: Vec<(ReplicaSlot, usize)>,
}

/// Hits that wait to be sent, equal ones merged.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The life of the log whose numbers the hits are in.
    incarnation: Option<Incarnation>,
    /// How often each hit was delivered since the last batch.
    merged: HashMap<Hit, u32>,
    /// What is cut up to be sent.
    parts: VecDeque<Counted>,
    /// Bytes of both as they are sent, about.
    waiting_bytes: usize,
    lost: Lost,
}

/// Credits lost here since the last report.
#[derive(Debug, Default)]
struct Lost {
    /// Too many waited already.
    no_room: u64,
    /// The log that they were for has ended.
    other_log: u64,
    /// The proxy did not take the batch.
    refused: u64,
}

// === impl Hit ===

impl Hit {
    /// What `delivered` matched of `chain`; none if that is nothing.
    pub fn new(scope: ScopeSlot, chain: &RequestChain, delivered: &[RankedReplica]) -> Option<Hit> {
        let longest = delivered.iter().map(|replica| replica.matched_blocks).max().unwrap_or(0);
        let keys = chain.keys(longest);
        let matched = delivered.iter().filter(|replica| replica.matched_blocks > 0);
        let replicas = matched.map(|replica| (replica.replica, replica.matched_blocks.min(keys.len()))).collect();
        Some(Hit { scope, keys, replicas }).filter(|hit| hit.credits() > 0)
    }

    /// How many blocks at replicas it hits.
    fn credits(&self) -> u64 {
        self.replicas.iter().map(|(_, blocks)| *blocks as u64).sum()
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<BlockKey>()
    }

    fn bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(BlockKey::width).sum();
        let counts: usize = self.replicas.iter().map(|(_, blocks)| REPLICA_BYTES + blocks).sum();
        PART_BYTES + keys + counts
    }

    /// The hit, `times` over, in parts that each fit into a batch: each of a few replicas and of keys of one width.
    fn into_parts(self, times: u32, out: &mut VecDeque<Counted>) {
        let count_bytes = varint_bytes(times);
        for replicas in self.replicas.chunks(MAX_PART_REPLICAS) {
            let longest = replicas.iter().map(|(_, blocks)| *blocks).max().unwrap_or(0);
            let mut from = 0;
            for keys in self.keys.get(..longest).unwrap_or_default().chunk_by(|a, b| a.width() == b.width()) {
                let key_bytes = keys.first().map_or(0, BlockKey::width) + replicas.len() * count_bytes;
                let room = MAX_PART_BYTES - PART_BYTES - MAX_PART_REPLICAS * REPLICA_BYTES;
                for keys in keys.chunks((room / key_bytes.max(1)).max(1)) {
                    out.push_back(part(self.scope, keys, replicas, from, times));
                    from += keys.len();
                }
            }
        }
    }
}

/// A chain's last key tells most chains apart; all of a long one would take longer to hash than to compare.
impl Hash for Hit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.scope, self.keys.len(), self.keys.last(), self.replicas.first()).hash(state);
    }
}

// === impl Outbox ===

impl Outbox {
    /// Takes a hit, found in an index of the log's life `incarnation`, if there is room for it.
    pub fn add(&mut self, incarnation: Incarnation, hit: Hit) {
        self.belongs_to(incarnation);
        let waiting_bytes = self.waiting_bytes + hit.bytes();
        if let Some(times) = self.merged.get_mut(&hit) {
            *times = times.saturating_add(1);
        } else if waiting_bytes <= MAX_WAITING_BYTES {
            self.waiting_bytes = waiting_bytes;
            self.merged.insert(hit, 1);
        } else {
            self.lost.no_room += hit.credits();
        }
    }

    /// Sends one batch, if there is something to send and a queue of that name. What is in the numbers of another life than
    /// the log's present one is dropped.
    pub fn send(&mut self, host: &impl Host, queue: &str, incarnation: Incarnation) {
        self.belongs_to(incarnation);
        if self.is_empty() {
            return;
        }
        let Some(queue) = host.find_queue(queue) else { return };
        let Some(batch) = self.take_batch() else { return };
        let credits = batch.hits.iter().map(credits_of).sum::<u64>();
        if !host.enqueue(queue, &batch.encode()) {
            self.lost.refused += credits;
        }
    }

    /// Takes the parts of a batch, as a leader does that serves requests itself.
    pub fn take_own(&mut self, incarnation: Incarnation) -> Vec<Counted> {
        self.belongs_to(incarnation);
        self.take_batch().map(|batch| batch.hits).unwrap_or_default()
    }

    /// Counts what was lost.
    pub fn report(&mut self, host: &impl Host) {
        let Lost { no_room, other_log, refused } = std::mem::take(&mut self.lost);
        for (lost, kind) in [(no_room, "no_room"), (other_log, "other_log"), (refused, "refused")] {
            if lost > 0 {
                host.count(&metrics::credits_lost(kind), lost);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.merged.is_empty() && self.parts.is_empty()
    }

    /// Drops what is in the numbers of another life.
    fn belongs_to(&mut self, incarnation: Incarnation) {
        if self.incarnation == Some(incarnation) {
            return;
        }
        let merged = self.merged.drain().map(|(hit, times)| hit.credits() * u64::from(times));
        let parts = self.parts.drain(..).map(|part| credits_of(&part));
        self.lost.other_log += merged.chain(parts).sum::<u64>();
        self.waiting_bytes = 0;
        self.incarnation = Some(incarnation);
    }

    fn take_batch(&mut self) -> Option<Credits> {
        let incarnation = self.incarnation?;
        self.merged.drain().for_each(|(hit, times)| hit.into_parts(times, &mut self.parts));
        let mut bytes = FRAME_BYTES;
        let fits = self.parts.iter().take_while(|part| {
            bytes += bytes_of(part);
            bytes <= MAX_BATCH_BYTES
        });
        let taken = fits.count();
        let hits: Vec<Counted> = self.parts.drain(..taken).collect();
        self.waiting_bytes = self.parts.iter().map(bytes_of).sum();
        (!hits.is_empty()).then_some(Credits { incarnation, hits })
    }
}

/// What `times` hits of `keys` add, which come after the first `from` of a chain.
fn part(scope: ScopeSlot, keys: &[BlockKey], replicas: &[(ReplicaSlot, usize)], from: usize, times: u32) -> Counted {
    let matched = replicas.iter().map(|(replica, blocks)| (replica, blocks.saturating_sub(from).min(keys.len())));
    let replicas = matched
        .filter(|(_, blocks)| *blocks > 0)
        .map(|(replica, blocks)| ReplicaCounts { replica: *replica, counts: vec![times; blocks] });
    Counted { scope, keys: keys.to_vec(), replicas: replicas.collect() }
}

/// How many credits a part of a batch stands for.
pub(super) fn credits_of(part: &Counted) -> u64 {
    part.replicas.iter().flat_map(|at| &at.counts).copied().map(u64::from).sum()
}

/// Bytes that a part takes in a batch, at most.
fn bytes_of(part: &Counted) -> usize {
    let keys: usize = part.keys.iter().map(BlockKey::width).sum();
    let of_counts = |counts: &[u32]| counts.iter().copied().map(varint_bytes).sum::<usize>();
    let replicas: usize = part.replicas.iter().map(|at| REPLICA_BYTES + of_counts(&at.counts)).sum();
    PART_BYTES + keys + replicas
}

/// Bytes of a number as protobuf writes it: 7 bits each.
fn varint_bytes(number: u32) -> usize {
    (32 - (number | 1).leading_zeros()).div_ceil(7) as usize
}
