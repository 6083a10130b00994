//! The hub's stream, renumbered into batches for the log.
//!
//! The hub numbers scopes and replicas for one epoch; the log's numbers outlive epochs and are never reused. A replica
//! that is announced or cleared gets a new number: what it held before then ends at once, whatever of it is still in
//! pages. A batch is what one stream message said; the position it reaches becomes true when it is committed.

mod names;
mod queue;
mod replicas;
mod reset;
mod room;
mod unused;

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};

use names::{MAX_SCOPES, ScopeNames, are_short, is_short_member, member_bytes, scope_bytes};
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

/// Generations of replicas that a log may hold at a time, those included that a newer one or a reset is to end.
const MAX_GENERATIONS: usize = 65_536;
/// Bytes of the names and addresses of all that the hub names.
const MAX_REPLICA_BYTES: usize = 8 * 1024 * 1024;
/// Numbers that may stand for scopes, and for replicas, that there is no room for: then the stream is given up.
const MAX_REFUSED: usize = 4 * MAX_SCOPES;
/// Bytes of the names of scopes that wait for room; the hub has to announce others again.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
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
    names: ScopeNames,
    /// Bytes of scopes' names that wait for room in `names`.
    waiting_bytes: usize,
    /// The scopes in `names` that the hub does not name.
    unused: UnusedScopes,
    replicas: Replicas,
    /// The hub's numbers of replicas that the log has no room for, or whose names are too long.
    ignored: HashSet<ReplicaSlot>,
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
    /// The log names as many replicas as it may, and this is another one.
    pub replicas: u64,
    /// The block has a time ahead of this clock: taken, with the time now.
    pub future: u64,
    /// Not blocks, but scopes, replicas, policies and models that there was no room for, or whose names are too long.
    pub names: u64,
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
    /// More numbers of scopes or replicas than there is room to remember that there is no room for them.
    TooManyNumbers,
}

/// What a scope of the hub's is in the log.
#[derive(Debug)]
enum PublishedScope {
    Named(ScopeSlot),
    /// The log had no room for it when it was announced. Without a name it is too long, or there was no room for that either.
    Refused(Option<Scope>),
}

// === impl Ingest ===

impl Ingest {
    /// Goes on where the log ends: `index` is the state as of `head`. The index takes at most `max_pairs` pairs; a
    /// generation whose successor is not complete after `replace_within_ms` ends without it.
    pub fn new(head: &Head, index: &Index, max_pairs: u64, replace_within_ms: u64) -> Ingest {
        let dictionary = index.dictionary();
        let mut names = ScopeNames::default();
        dictionary.scopes().for_each(|(slot, scope)| names.insert(scope.clone(), slot));
        let named: HashSet<ScopeSlot> = dictionary.published_scopes().map(|(_, slot)| slot).collect();
        let mut unused = UnusedScopes::default();
        names.slots().filter(|slot| !named.contains(slot)).for_each(|slot| unused.add(slot, 0));
        let mut ingest = Ingest {
            scopes: HashMap::new(),
            names,
            waiting_bytes: 0,
            unused,
            replicas: Replicas::default(),
            ignored: HashSet::new(),
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
                self.names.forget_from(ScopeSlot(first_new_scope));
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
            Observation::Scope { slot: published, scope } => self.scope(published, scope, out)?,
            Observation::ScopeGone { slot } => self.scope_gone(slot),
            Observation::ReplicaUp { replica: published, member, address, data_parallel_rank } => {
                if !self.takes(&member, &address) {
                    return self.ignore(published, out);
                }
                self.ignored.remove(&published);
                let reached = Reached { address, data_parallel_rank };
                let (_, ended) = self.replica_up(published, member, reached, None, now_ms, out);
                ended.iter().for_each(|slot| room.add(index.pairs_of(*slot)));
            }
            // Of a replica that there is no room for, nothing is taken but its end.
            Observation::ReplicaGone { replica } if self.ignored.remove(&replica) => {}
            Observation::ReplicaComplete { replica }
            | Observation::Cleared { replica }
            | Observation::Stats { replica, .. }
            | Observation::Removed { replica, .. }
            | Observation::Reasserted { replica, .. }
                if self.ignored.contains(&replica) => {}
            Observation::Stored(stored) if self.ignored.contains(&stored.replica) => {
                self.refused.replicas += stored.blocks.len() as u64;
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
                let is_short = are_short(tenant_id.as_deref().as_slice());
                if is_short && self.policies.len() < MAX_POLICIES || self.policies.contains(&tenant_id) {
                    self.policies.insert(tenant_id.clone());
                    out.push(Observation::Policy { tenant_id, policy });
                } else {
                    self.refused.names += 1;
                }
            }
            Observation::PolicyGone { tenant_id } => {
                self.policies.remove(&tenant_id);
                out.push(Observation::PolicyGone { tenant_id });
            }
            Observation::Model { model_id, version } => {
                let is_short = are_short(&[model_id.as_str()]);
                if is_short && self.models.len() < MAX_MODELS || self.models.contains(&model_id) {
                    self.models.insert(model_id.clone());
                    out.push(Observation::Model { model_id, version });
                } else {
                    self.refused.names += 1;
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

    fn scope(&mut self, published: ScopeSlot, scope: Scope, out: &mut Vec<Observation>) -> Result<(), Violation> {
        let slot = match self.names.get(&scope) {
            Some(slot) => slot,
            None if !self.names.has_room_for(scope_bytes(&scope)) || !are_short(&scope.names()) => {
                return self.refuse_scope(published, scope);
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
        self.set_scope(published, PublishedScope::Named(slot));
        out.push(Observation::PublishedScope { slot, published });
        Ok(())
    }

    fn refuse_scope(&mut self, published: ScopeSlot, scope: Scope) -> Result<(), Violation> {
        if self.scopes.len() >= MAX_REFUSED {
            return Err(Violation::TooManyNumbers);
        }
        self.refused.names += 1;
        let waits =
            are_short(&scope.names()) && self.waiting_bytes.saturating_add(scope_bytes(&scope)) <= MAX_WAITING_BYTES;
        self.set_scope(published, PublishedScope::Refused(waits.then_some(scope)));
        Ok(())
    }

    fn set_scope(&mut self, published: ScopeSlot, scope: PublishedScope) {
        self.waiting_bytes = self.waiting_bytes.saturating_add(scope.waiting_bytes());
        if let Some(before) = self.scopes.insert(published, scope) {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(before.waiting_bytes());
        }
    }

    /// Whether there is room for another generation of a replica.
    fn takes(&self, member: &Member, address: &str) -> bool {
        let before = self.resetting.as_ref().map_or(0, |before| before.generations.len());
        let generations = self.replicas.len() + self.replaced.len() + self.ending.len() + before;
        let bytes = self.replicas.bytes().saturating_add(member_bytes(member, address));
        generations < MAX_GENERATIONS && bytes <= MAX_REPLICA_BYTES && is_short_member(member, address)
    }

    /// Takes nothing of what the hub says of this number.
    fn ignore(&mut self, published: ReplicaSlot, out: &mut Vec<Observation>) -> Result<(), Violation> {
        if self.ignored.len() >= MAX_REFUSED {
            return Err(Violation::TooManyNumbers);
        }
        self.refused.names += 1;
        let before = self.replicas.remove(published);
        out.extend(before.map(|before| Observation::ReplicaGone { replica: before.slot }));
        self.ignored.insert(published);
        Ok(())
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
        if let PublishedScope::Refused(Some(scope)) = self.scopes.get(&published).ok_or(Violation::UnknownNumber)?
            && self.names.has_room_for(scope_bytes(scope))
        {
            let scope = scope.clone();
            self.scope(published, scope, out)?;
        }
        match self.scopes.get(&published) {
            Some(PublishedScope::Named(slot)) => Ok(Some(*slot)),
            _ => Ok(None),
        }
    }
}

// === impl PublishedScope ===

impl PublishedScope {
    /// Bytes of the name that waits for room.
    fn waiting_bytes(&self) -> usize {
        match self {
            PublishedScope::Refused(Some(scope)) => scope_bytes(scope),
            PublishedScope::Refused(None) | PublishedScope::Named(_) => 0,
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
            Violation::TooManyNumbers => "it names more scopes or replicas than any hub may",
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
