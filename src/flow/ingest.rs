//! The hub's stream, renumbered into batches for the log.
//!
//! The hub numbers scopes and replicas for one epoch; the log's numbers outlive epochs and are never reused. A replica
//! that is announced or cleared gets a new number: what it held before then ends at once, whatever of it is still in
//! pages. A batch is what one stream message said; the position it reaches becomes true when it is committed.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

use crate::index::Index;
use crate::index::log::Head;
use crate::observation::{Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, StreamBody, StreamMessage};

/// Scopes a log may name in its life.
const MAX_SCOPES: usize = 65_536;
/// Bytes that a record takes beside its keys, about.
const RECORD_BYTES: usize = 48;
/// Bytes that a block takes, about.
const BLOCK_BYTES: usize = 12;

/// What came over the stream and is not committed yet.
#[derive(Debug)]
pub struct Ingest {
    scopes: HashMap<ScopeSlot, ScopeSlot>,
    names: HashMap<Scope, ScopeSlot>,
    replicas: HashMap<ReplicaSlot, Published>,
    next_scope: u32,
    next_replica: u32,
    position: Option<Position>,
    /// Generations from before the reset that is under way, with their replicas' ids.
    resetting: Option<HashMap<ReplicaSlot, String>>,
    batches: VecDeque<Batch>,
    queued_bytes: usize,
    queued_pairs: u64,
    max_pairs: u64,
    refused: Refused,
}

/// What one stream message said, in the log's numbers.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records.
    pub records: Vec<Observation>,
    /// The hub's position once they are committed; none while a reset is under way.
    pub position: Option<Position>,
    /// The message to acknowledge then.
    pub number: u64,
}

/// A position in the hub's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The hub's lifetime.
    pub epoch: u64,
    /// The last sequence.
    pub sequence: u64,
}

/// Blocks that were not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// The index is full.
    pub full: u64,
    /// The block has a time ahead of this clock: taken, with the time now.
    pub future: u64,
}

/// The hub broke the stream's contract: subscribe again from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A delta that does not continue where the last message ended, or comes before any state.
    Gap,
    /// Another epoch in the middle of a stream.
    Epoch,
    /// A number that was not announced.
    UnknownNumber,
    /// A chunk or its end outside a reset.
    OutOfPlace,
    /// More scopes than a log may name.
    TooManyScopes,
}

/// A replica of the hub's, and the log's number for its present generation.
#[derive(Debug)]
struct Published {
    slot: ReplicaSlot,
    replica_id: String,
    address: String,
    stats: Option<ReplicaStats>,
}

// === impl Ingest ===

impl Ingest {
    /// Goes on where the log ends: `index` is the state as of `head`. The index takes at most `max_pairs` pairs.
    pub fn new(head: &Head, index: &Index, max_pairs: u64) -> Ingest {
        let dictionary = index.dictionary();
        let names = dictionary.scopes().map(|(slot, scope)| (scope.clone(), slot)).collect();
        let mut ingest = Ingest {
            scopes: HashMap::new(),
            names,
            replicas: HashMap::new(),
            next_scope: head.next_scope,
            next_replica: head.next_replica,
            position: None,
            resetting: None,
            batches: VecDeque::new(),
            queued_bytes: 0,
            queued_pairs: 0,
            max_pairs,
            refused: Refused::default(),
        };
        if head.hub_epoch != 0 {
            ingest.position = Some(Position { epoch: head.hub_epoch, sequence: head.hub_sequence });
            ingest.scopes = dictionary.published_scopes().collect();
            ingest.replicas = dictionary
                .published_replicas()
                .filter_map(|(published, slot)| Some((published, Published::of(slot, index)?)))
                .collect();
        }
        ingest
    }

    /// Where to go on: what is committed or queued.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// The next numbers to give, for the head.
    pub fn next_numbers(&self) -> (u32, u32) {
        (self.next_replica, self.next_scope)
    }

    /// Bytes waiting to be committed, about.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Forgets the position: the next subscription starts from nothing.
    pub fn start_over(&mut self) {
        self.position = None;
    }

    /// Takes what was refused since the last call.
    pub fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    /// Takes batches of together at most `max_bytes`, but at least one, for one commit.
    pub fn take_batch(&mut self, max_bytes: usize) -> Option<Batch> {
        let mut taken = self.batches.pop_front()?;
        let mut bytes = bytes_of(&taken.records);
        while let Some(next) = self.batches.front() {
            bytes += bytes_of(&next.records);
            if bytes > max_bytes {
                break;
            }
            let Some(next) = self.batches.pop_front() else { break };
            taken.records.extend(next.records);
            taken.position = next.position;
            taken.number = next.number;
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes_of(&taken.records));
        self.queued_pairs = self.queued_pairs.saturating_sub(pairs_of(&taken.records));
        Some(taken)
    }

    /// Queues what a message says. `index` is the leader's, `now_ms` the time.
    ///
    /// # Errors
    /// When the message breaks the stream's contract.
    pub fn accept(&mut self, message: StreamMessage, index: &Index, now_ms: u64) -> Result<(), Violation> {
        let here = Position { epoch: message.epoch, sequence: message.sequence };
        let records = match message.body {
            StreamBody::Reset => {
                self.begin_reset(index);
                Vec::new()
            }
            StreamBody::Chunk(observations) => {
                if self.resetting.is_none() {
                    return Err(Violation::OutOfPlace);
                }
                self.renumber_all(observations, index, now_ms)?
            }
            StreamBody::ResetComplete => {
                let before = self.resetting.take().ok_or(Violation::OutOfPlace)?;
                self.position = Some(here);
                self.not_announced_again(before)
            }
            StreamBody::Resumed => {
                self.expect_position(here.epoch, here.sequence)?;
                Vec::new()
            }
            StreamBody::Delta { first_sequence, observations } => {
                self.expect_position(here.epoch, first_sequence.saturating_sub(1))?;
                let records = self.renumber_all(observations, index, now_ms)?;
                self.position = Some(here);
                records
            }
            StreamBody::Heartbeat => Vec::new(),
        };
        self.queue(records, message.number);
        Ok(())
    }

    fn queue(&mut self, records: Vec<Observation>, number: u64) {
        self.queued_bytes += bytes_of(&records);
        self.queued_pairs += pairs_of(&records);
        let position = self.position.filter(|_| self.resetting.is_none());
        self.batches.push_back(Batch { records, position, number });
    }

    fn expect_position(&self, epoch: u64, sequence: u64) -> Result<(), Violation> {
        let position = self.position.filter(|_| self.resetting.is_none()).ok_or(Violation::Gap)?;
        if position.epoch != epoch {
            return Err(Violation::Epoch);
        }
        if position.sequence == sequence { Ok(()) } else { Err(Violation::Gap) }
    }

    /// A generation whose replica was announced again ends with the new one's completion, which may come later.
    fn not_announced_again(&self, before: HashMap<ReplicaSlot, String>) -> Vec<Observation> {
        let announced: HashSet<&str> = self.replicas.values().map(|published| published.replica_id.as_str()).collect();
        before
            .into_iter()
            .filter(|(_, replica_id)| !announced.contains(replica_id.as_str()))
            .map(|(replica, _)| Observation::ReplicaGone { replica })
            .collect()
    }

    /// What exists now ends when the reset is complete, unless its replica is announced again.
    fn begin_reset(&mut self, index: &Index) {
        let committed = index.dictionary().replicas().map(|(slot, replica)| (slot, replica.replica_id.to_string()));
        let queued = self.replicas.values().map(|published| (published.slot, published.replica_id.clone()));
        let unfinished = self.resetting.take().into_iter().flatten();
        self.resetting = Some(committed.chain(queued).chain(unfinished).collect());
        self.position = None;
        self.scopes.clear();
        self.replicas.clear();
    }

    fn renumber_all(
        &mut self,
        observations: Vec<Observation>,
        index: &Index,
        now_ms: u64,
    ) -> Result<Vec<Observation>, Violation> {
        let mut records = Vec::with_capacity(observations.len());
        // What a reset is about to end does not take room from what replaces it.
        let counted = index.counted_pairs(|replica| !self.resetting.iter().any(|ending| ending.contains_key(&replica)));
        let mut room = self.max_pairs.saturating_sub(counted + self.queued_pairs);
        for observation in observations {
            self.renumber(observation, now_ms, &mut room, &mut records)?;
        }
        Ok(records)
    }

    fn renumber(
        &mut self,
        observation: Observation,
        now_ms: u64,
        room: &mut u64,
        out: &mut Vec<Observation>,
    ) -> Result<(), Violation> {
        match observation {
            Observation::Scope { slot: published, scope } => self.scope(published, scope, out)?,
            Observation::ReplicaUp { replica: published, replica_id, address } => {
                self.replica_up(published, replica_id, address, None, out);
            }
            Observation::ReplicaComplete { replica } => {
                out.push(Observation::ReplicaComplete { replica: self.known(replica)?.slot });
            }
            Observation::ReplicaGone { replica } => {
                let published = self.replicas.remove(&replica).ok_or(Violation::UnknownNumber)?;
                out.push(Observation::ReplicaGone { replica: published.slot });
            }
            Observation::Cleared { replica: published } => {
                let Published { replica_id, address, stats, .. } =
                    self.replicas.remove(&published).ok_or(Violation::UnknownNumber)?;
                let replica = self.replica_up(published, replica_id, address, stats, out);
                out.push(Observation::ReplicaComplete { replica });
            }
            Observation::Stats { replica, stats } => {
                let published = self.replicas.get_mut(&replica).ok_or(Violation::UnknownNumber)?;
                published.stats = Some(stats);
                out.push(Observation::Stats { replica: published.slot, stats });
            }
            Observation::Removed { replica, scope, keys } => {
                let replica = self.known(replica)?.slot;
                out.push(Observation::Removed { replica, scope: self.known_scope(scope)?, keys });
            }
            Observation::Stored { replica, scope, tier, last_seen_ms, mut blocks } => {
                let replica = self.known(replica)?.slot;
                let scope = self.known_scope(scope)?;
                let taken = usize::try_from(*room).unwrap_or(usize::MAX).min(blocks.len());
                self.refused.full += (blocks.len() - taken) as u64;
                self.refused.future += if last_seen_ms > now_ms { taken as u64 } else { 0 };
                blocks.truncate(taken);
                *room -= taken as u64;
                if taken > 0 {
                    let last_seen_ms = last_seen_ms.min(now_ms);
                    out.push(Observation::Stored { replica, scope, tier, last_seen_ms, blocks });
                }
            }
            // The log's own; a hub has no use for them.
            Observation::PublishedScope { .. } | Observation::PublishedReplica { .. } => {}
        }
        Ok(())
    }

    fn scope(&mut self, published: ScopeSlot, scope: Scope, out: &mut Vec<Observation>) -> Result<(), Violation> {
        let slot = match self.names.get(&scope) {
            Some(slot) => *slot,
            None => {
                if self.names.len() >= MAX_SCOPES {
                    return Err(Violation::TooManyScopes);
                }
                let slot = ScopeSlot(self.next_scope);
                self.next_scope = self.next_scope.wrapping_add(1);
                self.names.insert(scope.clone(), slot);
                out.push(Observation::Scope { slot, scope });
                slot
            }
        };
        self.scopes.insert(published, slot);
        out.push(Observation::PublishedScope { slot, published });
        Ok(())
    }

    fn replica_up(
        &mut self,
        published: ReplicaSlot,
        replica_id: String,
        address: String,
        stats: Option<ReplicaStats>,
        out: &mut Vec<Observation>,
    ) -> ReplicaSlot {
        let replica = ReplicaSlot(self.next_replica);
        self.next_replica = self.next_replica.wrapping_add(1);
        out.push(Observation::ReplicaUp { replica, replica_id: replica_id.clone(), address: address.clone() });
        out.push(Observation::PublishedReplica { replica, published });
        out.extend(stats.map(|stats| Observation::Stats { replica, stats }));
        self.replicas.insert(published, Published { slot: replica, replica_id, address, stats });
        replica
    }

    fn known(&self, replica: ReplicaSlot) -> Result<&Published, Violation> {
        self.replicas.get(&replica).ok_or(Violation::UnknownNumber)
    }

    fn known_scope(&self, scope: ScopeSlot) -> Result<ScopeSlot, Violation> {
        self.scopes.get(&scope).copied().ok_or(Violation::UnknownNumber)
    }
}

// === impl Published ===

impl Published {
    fn of(slot: ReplicaSlot, index: &Index) -> Option<Published> {
        let replica = index.dictionary().replica(slot)?;
        Some(Published {
            slot,
            replica_id: replica.replica_id.to_string(),
            address: replica.address.to_string(),
            stats: replica.stats,
        })
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Violation::Gap => "a delta does not continue where the last message ended",
            Violation::Epoch => "the epoch changed in the middle of a stream",
            Violation::UnknownNumber => "a scope or replica number was not announced",
            Violation::OutOfPlace => "a part of a reset came outside a reset",
            Violation::TooManyScopes => "more than 65536 scopes",
        })
    }
}

impl std::error::Error for Violation {}

fn pairs_of(records: &[Observation]) -> u64 {
    records
        .iter()
        .map(|record| match record {
            Observation::Stored { blocks, .. } => blocks.len() as u64,
            _ => 0,
        })
        .sum()
}

fn bytes_of(records: &[Observation]) -> usize {
    records
        .iter()
        .map(|record| match record {
            Observation::Stored { blocks, .. } => RECORD_BYTES + BLOCK_BYTES * blocks.len(),
            Observation::Removed { keys, .. } => RECORD_BYTES + BLOCK_BYTES * keys.len(),
            _ => RECORD_BYTES,
        })
        .sum()
}
