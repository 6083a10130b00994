//! The hub's stream, renumbered into batches for the log.
//!
//! The hub numbers scopes and replicas for one epoch; the log's numbers outlive epochs and are never reused. A replica
//! that is announced or cleared gets a new number: what it held before then ends at once, whatever of it is still in
//! pages. A batch is what one stream message said; the position it reaches becomes true when it is committed.

mod queue;
mod replicas;
mod reset;
mod room;
mod unused;

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};

pub use queue::Batch;
use queue::Queue;
use replicas::{Published, Reached, Replicas};
use reset::Before;
use room::Room;
use unused::UnusedScopes;

use crate::host::StreamToken;
use crate::index::Index;
use crate::index::log::Head;
use crate::observation::{
    Member, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StreamBody, StreamMessage,
};
use crate::wire::MAX_UNACKNOWLEDGED_BYTES;

/// Scopes a log may name at a time: as many as a hub does at its defaults, reported and followed.
const MAX_SCOPES: usize = 131_072;
/// Replicas a log may hold at a time, by tenant and model, and generations of theirs that a newer one is to end.
const MAX_GENERATIONS: usize = 65_536;
/// Tenants with a policy that a log may hold.
const MAX_POLICIES: usize = 4_096;
/// Models whose text can be turned into token ids that a log may hold.
const MAX_MODELS: usize = 256;
/// Bytes that may wait to be committed: what a hub may send ahead of what is acknowledged, whose smallest records take
/// sixteen times the space here.
const MAX_QUEUED_BYTES: usize = 16 * MAX_UNACKNOWLEDGED_BYTES;

/// What came over the stream and is not committed yet.
#[derive(Debug)]
pub struct Ingest {
    /// By the hub's number.
    scopes: HashMap<ScopeSlot, PublishedScope>,
    names: HashMap<Scope, ScopeSlot>,
    /// The scopes in `names` that the hub does not name.
    unused: UnusedScopes,
    replicas: Replicas,
    next_scope: u32,
    next_replica: u32,
    position: Option<Position>,
    /// What there was before the reset that is under way.
    resetting: Option<Before>,
    /// Tenants that the hub has announced a policy for.
    policies: BTreeSet<Option<String>>,
    /// Models that the hub has announced a version of.
    models: BTreeSet<String>,
    /// Generations that a newer one is to replace, and since when, Unix time in ms.
    replaced: HashMap<ReplicaSlot, u64>,
    /// Those that waited too long, or that a reset did not announce again, until the log says that they have ended.
    ending: BTreeSet<ReplicaSlot>,
    /// How long such a generation may go on serving.
    replace_within_ms: u64,
    /// When the state was last known to be the hub's, Unix time in ms.
    confirmed_ms: u64,
    queue: Queue,
    max_pairs: u64,
    /// What is too much goes: the index takes more than `max_pairs`.
    evicts: bool,
    /// The VM has no memory for more.
    out_of_memory: bool,
    refused: Refused,
}

/// When and over which stream a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The stream.
    pub stream: StreamToken,
    /// Unix time in ms.
    pub at_ms: u64,
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
    /// The VM has no memory for more.
    pub memory: u64,
    /// The log names as many scopes as it may, and this is another one.
    pub scopes: u64,
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
    /// More ahead of what was acknowledged than the contract allows.
    TooMuch,
    /// More replicas, their generations that a newer one is to end included, than a log may hold.
    TooManyReplicas,
}

/// What a scope of the hub's is in the log.
#[derive(Debug)]
enum PublishedScope {
    Named(ScopeSlot),
    /// The log had no room for it when it was announced.
    Refused(Scope),
}

// === impl Ingest ===

impl Ingest {
    /// Goes on where the log ends: `index` is the state as of `head`. The index takes at most `max_pairs` pairs; a
    /// generation whose successor is not complete after `replace_within_ms` ends without it.
    pub fn new(head: &Head, index: &Index, max_pairs: u64, replace_within_ms: u64) -> Ingest {
        let dictionary = index.dictionary();
        let names: HashMap<Scope, ScopeSlot> = dictionary.scopes().map(|(slot, scope)| (scope.clone(), slot)).collect();
        let named: HashSet<ScopeSlot> = dictionary.published_scopes().map(|(_, slot)| slot).collect();
        let mut unused = UnusedScopes::default();
        names.values().filter(|slot| !named.contains(*slot)).for_each(|slot| unused.add(*slot, 0));
        let mut ingest = Ingest {
            scopes: HashMap::new(),
            names,
            unused,
            replicas: Replicas::default(),
            next_scope: head.next_scope,
            next_replica: head.next_replica,
            position: None,
            resetting: None,
            policies: dictionary.policies().map(|(tenant_id, _)| tenant_id.map(str::to_owned)).collect(),
            models: dictionary.models().map(|(model_id, _)| model_id.to_owned()).collect(),
            replaced: older_generations(index).map(|replica| (replica, head.heard_ms)).collect(),
            ending: BTreeSet::new(),
            replace_within_ms,
            confirmed_ms: head.heard_ms,
            queue: Queue::default(),
            max_pairs,
            evicts: false,
            out_of_memory: false,
            refused: Refused::default(),
        };
        if head.hub_epoch != 0 {
            ingest.position = Some(Position { epoch: head.hub_epoch, sequence: head.hub_sequence });
            ingest.scopes = dictionary
                .published_scopes()
                .map(|(published, slot)| (published, PublishedScope::Named(slot)))
                .collect();
            ingest.replicas = Replicas::of(index);
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
        self.queue.bytes()
    }

    /// Forgets the position: the next subscription starts from nothing.
    pub fn start_over(&mut self) {
        self.position = None;
    }

    /// Generations of `index` that are about to end, in order: by a newer one, or with the reset that is under way, which
    /// announces each of them again or ends it.
    pub fn superseded(&mut self, index: &Index) -> Vec<ReplicaSlot> {
        self.ending.retain(|replica| index.dictionary().replica(*replica).is_some());
        let mut superseded: Vec<ReplicaSlot> = self.replaced.keys().chain(&self.ending).copied().collect();
        if let Some(before) = &self.resetting {
            superseded.extend(before.generations.keys().copied());
            // The hub may tell of a generation and of the one that is to replace it.
            let current: HashSet<ReplicaSlot> = self.replicas.current().collect();
            superseded.retain(|replica| !current.contains(replica));
        }
        superseded.sort_unstable();
        superseded.dedup();
        superseded
    }

    /// Whether the index takes more than it may hold, since what is too much then goes.
    pub fn evicts(&mut self, evicts: bool) {
        self.evicts = evicts;
    }

    /// Whether the VM has no memory for more: then nothing is taken in.
    pub fn set_out_of_memory(&mut self, out_of_memory: bool) {
        self.out_of_memory = out_of_memory;
    }

    /// Takes what was refused since the last call.
    pub fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    /// Whether there is a next batch, without records.
    pub fn next_is_empty(&self) -> bool {
        self.queue.next_is_empty()
    }

    /// Takes batches of together at most `max_bytes`, but at least one, for one commit; a part of a package comes alone.
    pub fn take_batch(&mut self, max_bytes: usize) -> Option<Batch> {
        self.queue.take(max_bytes)
    }

    /// Queues what a message says. `index` is the leader's.
    ///
    /// # Errors
    /// When the message breaks the stream's contract.
    pub fn accept(&mut self, message: StreamMessage, index: &Index, heard: Heard) -> Result<(), Violation> {
        if self.queue.bytes() > MAX_QUEUED_BYTES {
            return Err(Violation::TooMuch);
        }
        let here = Position { epoch: message.epoch, sequence: message.sequence };
        let before = self.position.filter(|_| self.resetting.is_none());
        let mut records = match message.body {
            // It says nothing of the hub's changes, but is acknowledged in its turn.
            StreamBody::ModelPart(part) => {
                self.queue.put_part(part, message.number, heard);
                return Ok(());
            }
            StreamBody::Reset => {
                self.begin_reset(index);
                Vec::new()
            }
            StreamBody::Chunk(observations) => {
                if self.resetting.is_none() {
                    return Err(Violation::OutOfPlace);
                }
                self.renumber_all(observations, index, heard.at_ms)?
            }
            StreamBody::ResetComplete => {
                let before = self.resetting.take().ok_or(Violation::OutOfPlace)?;
                self.position = Some(here);
                self.find_unused_scopes();
                self.end_what_is_not_announced_again(before)
            }
            StreamBody::Resumed => {
                self.expect_position(here.epoch, here.sequence)?;
                Vec::new()
            }
            StreamBody::Delta { first_sequence, observations } => {
                self.expect_position(here.epoch, first_sequence.saturating_sub(1))?;
                let records = self.renumber_all(observations, index, heard.at_ms)?;
                self.position = Some(here);
                records
            }
            StreamBody::Heartbeat => {
                // Whoever missed something learns it from the next heartbeat at the latest.
                if self.resetting.is_none() {
                    self.expect_position(here.epoch, here.sequence)?;
                }
                Vec::new()
            }
        };
        if self.position.is_some() {
            self.confirmed_ms = heard.at_ms;
        }
        self.end_what_waits_too_long(heard.at_ms, &mut records);
        self.end_unused_scopes(index, &mut records);
        let after = self.position.filter(|_| self.resetting.is_none());
        self.queue.put(records, (before, after), message.number, heard);
        Ok(())
    }

    fn expect_position(&self, epoch: u64, sequence: u64) -> Result<(), Violation> {
        let position = self.position.filter(|_| self.resetting.is_none()).ok_or(Violation::Gap)?;
        if position.epoch != epoch {
            return Err(Violation::Epoch);
        }
        if position.sequence == sequence { Ok(()) } else { Err(Violation::Gap) }
    }

    fn renumber_all(
        &mut self,
        observations: Vec<Observation>,
        index: &Index,
        now_ms: u64,
    ) -> Result<Vec<Observation>, Violation> {
        let mut records = Vec::with_capacity(observations.len());
        let first_new_scope = self.next_scope;
        let mut room = self.room(index);
        for observation in observations {
            if let Err(violation) = self.renumber(observation, (index, now_ms), &mut room, &mut records) {
                // The log will not hear of the scopes that this message named.
                self.names.retain(|_, slot| slot.0 < first_new_scope);
                return Err(violation);
            }
        }
        Ok(records)
    }

    fn renumber(
        &mut self,
        observation: Observation,
        (index, now_ms): (&Index, u64),
        room: &mut Room,
        out: &mut Vec<Observation>,
    ) -> Result<(), Violation> {
        match observation {
            Observation::Scope { slot: published, scope } => self.scope(published, scope, out),
            Observation::ScopeGone { slot } => self.scope_gone(slot),
            Observation::ReplicaUp { replica: published, member, address, data_parallel_rank } => {
                if self.replicas.len() + self.replaced.len() + self.ending.len() >= MAX_GENERATIONS {
                    return Err(Violation::TooManyReplicas);
                }
                let reached = Reached { address, data_parallel_rank };
                let (_, ended) = self.replica_up(published, member, reached, None, now_ms, out);
                room.add(ended.iter().map(|slot| index.pairs_of(*slot)).fold(0, u64::saturating_add));
            }
            Observation::ReplicaComplete { replica } => {
                out.push(Observation::ReplicaComplete { replica: self.known(replica)?.slot });
            }
            Observation::ReplicaGone { replica } => {
                let published = self.replicas.remove(replica).ok_or(Violation::UnknownNumber)?;
                out.push(Observation::ReplicaGone { replica: published.slot });
            }
            Observation::Cleared { replica: published } => {
                let Published { slot, member, reached, stats, superseded } =
                    self.replicas.remove(published).ok_or(Violation::UnknownNumber)?;
                if !superseded {
                    room.add(index.pairs_of(slot));
                }
                let (replica, _) = self.replica_up(published, member, reached, stats, now_ms, out);
                out.push(Observation::ReplicaComplete { replica });
            }
            Observation::Stats { replica, stats } => {
                let published = self.replicas.get_mut(replica).ok_or(Violation::UnknownNumber)?;
                published.stats = Some(stats);
                out.push(Observation::Stats { replica: published.slot, stats });
            }
            Observation::Removed { replica, scope, keys } => {
                let replica = self.known(replica)?.slot;
                if let Some(scope) = self.known_scope(scope, out)? {
                    out.push(Observation::Removed { replica, scope, keys });
                }
            }
            Observation::Stored(stored) => self.stored(stored, (index, now_ms), room, out)?,
            Observation::Policy { tenant_id, policy } => {
                if self.policies.len() < MAX_POLICIES || self.policies.contains(&tenant_id) {
                    self.policies.insert(tenant_id.clone());
                    out.push(Observation::Policy { tenant_id, policy });
                }
            }
            Observation::PolicyGone { tenant_id } => {
                self.policies.remove(&tenant_id);
                out.push(Observation::PolicyGone { tenant_id });
            }
            Observation::Model { model_id, version } => {
                if self.models.len() < MAX_MODELS || self.models.contains(&model_id) {
                    self.models.insert(model_id.clone());
                    out.push(Observation::Model { model_id, version });
                }
            }
            Observation::ModelGone { model_id } => {
                self.models.remove(&model_id);
                out.push(Observation::ModelGone { model_id });
            }
            Observation::Reasserted { replica, at_ms } => {
                let at_ms = at_ms.min(now_ms);
                out.push(Observation::Reasserted { replica: self.known(replica)?.slot, at_ms });
            }
            // The log's own; a hub has no use for them.
            Observation::Counted(_) | Observation::PublishedScope { .. } | Observation::PublishedReplica { .. } => {}
        }
        Ok(())
    }

    fn stored(
        &mut self,
        mut stored: Stored,
        (index, now_ms): (&Index, u64),
        room: &mut Room,
        out: &mut Vec<Observation>,
    ) -> Result<(), Violation> {
        let replica = self.known(stored.replica)?.slot;
        let Some(scope) = self.known_scope(stored.scope, out)? else {
            self.refused.scopes += stored.blocks.len() as u64;
            return Ok(());
        };
        if self.out_of_memory {
            self.refused.memory += stored.blocks.len() as u64;
            return Ok(());
        }
        let taken = self.take_room(room, stored.blocks.len() as u64, index, out) as usize;
        self.refused.full += (stored.blocks.len() - taken) as u64;
        self.refused.future += if stored.last_seen_ms > now_ms { taken as u64 } else { 0 };
        stored.blocks.truncate(taken);
        if taken > 0 {
            let last_seen_ms = stored.last_seen_ms.min(now_ms);
            // What only the log and its pages say is not the hub's to say.
            let stored = Stored { replica, scope, last_seen_ms, page: 0, access_count: None, ..stored };
            out.push(Observation::Stored(stored));
        }
        Ok(())
    }

    fn scope(&mut self, published: ScopeSlot, scope: Scope, out: &mut Vec<Observation>) {
        let slot = match self.names.get(&scope) {
            Some(slot) => *slot,
            None if self.names.len() >= MAX_SCOPES => {
                self.scopes.insert(published, PublishedScope::Refused(scope));
                return;
            }
            None => {
                let slot = ScopeSlot(self.next_scope);
                self.next_scope = self.next_scope.wrapping_add(1);
                self.names.insert(scope.clone(), slot);
                out.push(Observation::Scope { slot, scope });
                slot
            }
        };
        self.unused.remove(slot);
        self.scopes.insert(published, PublishedScope::Named(slot));
        out.push(Observation::PublishedScope { slot, published });
    }

    /// A generation begins; its number, and those of the generations that it supersedes.
    fn replica_up(
        &mut self,
        published: ReplicaSlot,
        member: Member,
        reached: Reached,
        stats: Option<ReplicaStats>,
        now_ms: u64,
        out: &mut Vec<Observation>,
    ) -> (ReplicaSlot, Vec<ReplicaSlot>) {
        let replica = ReplicaSlot(self.next_replica);
        self.next_replica = self.next_replica.wrapping_add(1);
        let Reached { address, data_parallel_rank } = reached.clone();
        out.push(Observation::ReplicaUp { replica, member: member.clone(), address, data_parallel_rank });
        out.push(Observation::PublishedReplica { replica, published });
        out.extend(stats.map(|stats| Observation::Stats { replica, stats }));
        let before =
            self.replicas.announce(published, Published { slot: replica, member, reached, stats, superseded: false });
        out.extend(before.displaced.map(|replica| Observation::ReplicaGone { replica }));
        before.superseded.iter().for_each(|older| {
            self.replaced.entry(*older).or_insert(now_ms);
        });
        (replica, before.superseded)
    }

    fn known(&self, replica: ReplicaSlot) -> Result<&Published, Violation> {
        self.replicas.get(replica).ok_or(Violation::UnknownNumber)
    }

    /// The log's number of a scope; none if there is still no room for it.
    fn known_scope(
        &mut self,
        published: ScopeSlot,
        out: &mut Vec<Observation>,
    ) -> Result<Option<ScopeSlot>, Violation> {
        if let PublishedScope::Refused(scope) = self.scopes.get(&published).ok_or(Violation::UnknownNumber)?
            && self.names.len() < MAX_SCOPES
        {
            let scope = scope.clone();
            self.scope(published, scope, out);
        }
        match self.scopes.get(&published) {
            Some(PublishedScope::Named(slot)) => Ok(Some(*slot)),
            _ => Ok(None),
        }
    }
}

// === impl Violation ===

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Violation::Gap => "a delta does not continue where the last message ended",
            Violation::Epoch => "the epoch changed in the middle of a stream",
            Violation::UnknownNumber => "a scope or replica number was not announced",
            Violation::OutOfPlace => "a part of a reset came outside a reset",
            Violation::TooMuch => "it sends more than it may ahead of what is acknowledged",
            Violation::TooManyReplicas => "it names more than 65536 replicas",
        })
    }
}

impl std::error::Error for Violation {}

/// Generations that are followed by a newer one of the same replica.
fn older_generations(index: &Index) -> impl Iterator<Item = ReplicaSlot> {
    let mut newest: HashMap<&Member, ReplicaSlot> = HashMap::new();
    for (slot, replica) in index.dictionary().replicas() {
        let newest = newest.entry(&replica.member).or_insert(slot);
        *newest = slot.max(*newest);
    }
    index
        .dictionary()
        .replicas()
        .filter(move |(slot, replica)| newest.get(&replica.member).is_some_and(|newest| newest > slot))
        .map(|(slot, _)| slot)
}

#[cfg(test)]
mod tests;
