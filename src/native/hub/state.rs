//! What the hub knows, and the numbered history of how it came to know it.
//!
//! In: what is [followed](super::followed), and what producers report to the [`Publisher`]. Out: [`Snapshot`]s and,
//! through the [`Ring`], the changes after any recent position; together they are one consistent history, since both are
//! made under one lock. The epoch names this history: it is new with every start of the hub. No I/O.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use super::capacity::{Capacity, Excess, GivenUp, Places};
use super::clock::Wall;
use super::config::ReplicaConfig;
use super::followed::{Followed, ReplicaIndex, ReplicaView};
use super::replica_cache::{HeldBlock, Tally};
use super::ring::{Numbered, Passed, Ring};
#[cfg(test)]
use super::sharded::SHARDS;
use super::shelf::{ModelShelf, TextModels};
use super::snapshot::{Snapshot, models, policies, reported};
use crate::fingerprint::{BlockSize, PrefixHash};
use crate::native::engine::{KvEvent, Missed};
use crate::observation::{Member, ReplicaSlot, ReplicaStats, Scope, ScopeSlot};
use crate::publisher::Publisher;

/// The hub's state, shared by all its tasks.
#[derive(Debug)]
pub struct HubState {
    epoch: u64,
    inner: RwLock<Inner>,
    models: ModelShelf,
    /// Whether the models that there are were not all read yet.
    awaits_models: watch::Sender<bool>,
    /// Whether the replicas that there are were not all found yet.
    awaits_replicas: watch::Sender<bool>,
    sequence: watch::Sender<u64>,
    wall: Wall,
    /// Positions before this one are of who was told times by a wall clock that was set since.
    told_anew: watch::Sender<u64>,
}

/// What the numbers stand for, as of a sequence.
#[derive(Debug)]
pub struct Names {
    /// The sequence.
    pub sequence: u64,
    /// Every scope.
    pub scopes: Vec<(ScopeSlot, Scope)>,
    /// Every replica.
    pub members: Vec<(ReplicaSlot, Member)>,
}

/// How much there is of what takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of past changes, as they are on the wire.
    pub resume_buffer_bytes: usize,
    /// Blocks held by followed replicas.
    pub followed_blocks: usize,
    /// (replica, block) pairs in the hub's index.
    pub index_pairs: u64,
    /// Bytes of that index.
    pub index_bytes: u64,
    /// Scopes.
    pub scopes: usize,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    publisher: Publisher,
    followed: Followed,
}

// === impl HubState ===

impl HubState {
    /// A state in which nothing is known and no replica is followed. `epoch` must not be 0 and not repeat.
    pub fn new(epoch: u64, publisher: Publisher, resume_buffer_bytes: usize) -> HubState {
        let inner = Inner { ring: Ring::new(resume_buffer_bytes), publisher, followed: Followed::default() };
        HubState {
            epoch,
            inner: RwLock::new(inner),
            models: ModelShelf::default(),
            awaits_models: watch::Sender::new(false),
            awaits_replicas: watch::Sender::new(false),
            sequence: watch::Sender::new(0),
            wall: Wall::default(),
            told_anew: watch::Sender::new(0),
        }
    }

    /// The lifetime of this history.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The same, whose times others are told by `wall`.
    pub fn with_wall(self, wall: Wall) -> HubState {
        HubState { wall, ..self }
    }

    /// What others call the hub's times.
    pub fn wall(&self) -> &Wall {
        &self.wall
    }

    /// Looks whether the wall clock has jumped, and by how many ms. Where it has, who was told times before is told anew.
    pub fn look_at_wall(&self) -> Option<i64> {
        let jump_ms = self.wall.jump()?;
        self.told_anew.send_replace(self.sequence().saturating_add(1));
        Some(jump_ms)
    }

    /// Follows the first position that nobody has who was told times by a wall clock that was set since.
    pub fn told_anew(&self) -> watch::Receiver<u64> {
        self.told_anew.subscribe()
    }

    /// The models whose text can be turned into token ids, with their contents.
    pub fn models(&self) -> &ModelShelf {
        &self.models
    }

    /// Replaces the models. Their contents are there before they are announced.
    pub fn set_models(&self, models: &TextModels) {
        self.models.replace(models.clone());
        let versions = models.iter().map(|(model_id, model)| (model_id.clone(), model.version)).collect();
        self.change(|publisher| publisher.set_models(&versions));
    }

    /// Says whether the models are still to be read: until they are, no full state is.
    pub fn set_awaits_models(&self, awaits: bool) {
        self.awaits_models.send_replace(awaits);
    }

    /// Says whether the replicas are still to be found: until they are, no full state is, and nothing is complete.
    pub fn set_awaits_replicas(&self, awaits: bool) {
        self.awaits_replicas.send_replace(awaits);
    }

    /// Whether the replicas are still to be found.
    pub fn awaits_replicas(&self) -> bool {
        *self.awaits_replicas.borrow()
    }

    /// Waits until the replicas are found.
    pub async fn replicas_found(&self) {
        // The sender is here: that it is gone cannot be.
        let _ = self.awaits_replicas.subscribe().wait_for(|awaits| !awaits).await;
    }

    /// Waits until the models are read, and before that the replicas found, whose models they are.
    pub async fn models_read(&self) {
        self.replicas_found().await;
        let _ = self.awaits_models.subscribe().wait_for(|awaits| !awaits).await;
    }

    /// Follows the latest sequence.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.sequence.subscribe()
    }

    /// Follows a replica, or a rank of it, of which nothing is known yet.
    pub fn follow(&self, config: &ReplicaConfig, rank: Option<u32>) -> ReplicaIndex {
        self.change_both(|followed, _| followed.follow(config, rank))
    }

    /// `replica` is gone and not followed any more.
    pub fn unfollow(&self, replica: ReplicaIndex) {
        self.change_both(|followed, publisher| followed.unfollow(replica, publisher));
    }

    /// `replica` is not there any more: filters forget it. It can be announced again. False if it was not there.
    pub fn gone(&self, replica: ReplicaIndex) -> bool {
        self.change_both(|followed, publisher| followed.gone(replica, publisher)).is_some()
    }

    /// `replica` is reached at `address` from now on. True if that is a new address: it makes a new generation, which
    /// holds nothing yet.
    pub fn announce(&self, replica: ReplicaIndex, address: &str) -> bool {
        self.change_both(|followed, publisher| followed.announce(replica, address, publisher)).unwrap_or(false)
    }

    /// `replica` is built anew: what is applied from now on counts once it is complete.
    pub fn renew(&self, replica: ReplicaIndex) {
        self.change_both(|followed, publisher| followed.renew(replica, publisher));
    }

    /// All that `replica` holds has been applied, or can no longer be learned.
    pub fn complete(&self, replica: ReplicaIndex) {
        self.change_both(|followed, publisher| followed.complete(replica, publisher));
    }

    /// Applies events of `replica`, which must have been announced, as seen at `now_ms`, in the hub's own ms.
    pub fn apply(&self, replica: ReplicaIndex, events: &[KvEvent], now_ms: u64) -> Tally {
        self.change_both(|followed, publisher| followed.apply(replica, events, now_ms, publisher)).unwrap_or_default()
    }

    /// `replica` is not known to hold anything any more.
    pub fn clear(&self, replica: ReplicaIndex) -> Tally {
        self.apply(replica, &[KvEvent::Missed(Missed::Anything)], 0)
    }

    /// `replica` still holds all that it was reported to hold, as was known at `at_ms`, in the hub's own ms.
    pub fn reassert(&self, replica: ReplicaIndex, at_ms: u64) {
        self.change_both(|followed, publisher| followed.reassert(replica, at_ms, publisher));
    }

    /// The load of `replica`; published if it is news.
    pub fn stats(&self, replica: ReplicaIndex, stats: ReplicaStats) {
        self.change_both(|followed, publisher| followed.stats(replica, stats, publisher));
    }

    /// Lets `change` change what is published; all that it changes is one step of the history.
    pub fn change<T>(&self, change: impl FnOnce(&mut Publisher) -> T) -> T {
        self.change_both(|_, publisher| change(publisher))
    }

    /// Lets `read` look at what is published, as of one moment.
    pub fn read<T>(&self, read: impl FnOnce(&Publisher) -> T) -> T {
        self.look(|inner| read(&inner.publisher))
    }

    /// The full state as of its sequence, but for what followed replicas hold; and which these are.
    pub fn outline(&self) -> (Snapshot, Vec<ReplicaIndex>) {
        self.look(Inner::outline)
    }

    /// The full state as of its sequence, for tests: nothing else happens meanwhile.
    #[cfg(test)]
    pub fn snapshot(&self) -> Snapshot {
        self.look(|inner| {
            let (mut snapshot, replicas) = inner.outline();
            for (replica, index) in snapshot.replicas.iter_mut().zip(replicas) {
                replica.held = (0..SHARDS).flat_map(|part| inner.followed.held_in(index, part)).collect();
            }
            snapshot
        })
    }

    /// The blocks that the generation `slot` of `replica` holds in one of the [`SHARDS`](super::sharded::SHARDS) parts; none if another one has taken its
    /// place.
    pub fn held_by(
        &self,
        replica: ReplicaIndex,
        slot: ReplicaSlot,
        part: usize,
    ) -> Vec<(ScopeSlot, PrefixHash, HeldBlock)> {
        self.look(|inner| match inner.followed.slot(replica) {
            Some(now) if now == slot => inner.followed.held_in(replica, part),
            _ => Vec::new(),
        })
    }

    /// The changes after `sequence`; at least one if there is any, then at most `limit_bytes` of encoded facts.
    ///
    /// # Errors
    /// When that position has left the ring, or is yet to come.
    pub fn after(&self, sequence: u64, limit_bytes: usize) -> Result<Vec<Arc<Numbered>>, Passed> {
        self.look(|inner| inner.ring.after(sequence, limit_bytes))
    }

    /// Whether `sequence` is in the newer half of the ring.
    pub fn is_recent(&self, sequence: u64) -> bool {
        self.look(|inner| inner.ring.is_recent(sequence))
    }

    /// A followed replica of which blocks must go, if there is one.
    pub fn excess(&self, capacity: Capacity) -> Option<Excess> {
        self.look(|inner| inner.followed.excess(capacity))
    }

    /// The blocks that `replica` holds in one of the [`SHARDS`](super::sharded::SHARDS) parts.
    pub fn held_in(&self, replica: ReplicaIndex, part: usize) -> Vec<(ScopeSlot, PrefixHash, HeldBlock)> {
        self.look(|inner| inner.followed.held_in(replica, part))
    }

    /// Gives up what `replica` knows these blocks by in one of the [`SHARDS`](super::sharded::SHARDS) parts; how much that is.
    pub fn give_up(&self, replica: ReplicaIndex, part: usize, places: &Places) -> GivenUp {
        self.change_both(|followed, publisher| followed.give_up(replica, part, places, publisher)).unwrap_or_default()
    }

    /// Gives up the keys of `replica` that may stand for more than one prefix; how many they are.
    pub fn give_up_doubts(&self, replica: ReplicaIndex) -> usize {
        self.change_both(|followed, _| followed.give_up_doubts(replica)).unwrap_or(0)
    }

    /// Every scope so far.
    pub fn scopes(&self) -> Vec<(ScopeSlot, Scope)> {
        self.look(Inner::scopes)
    }

    /// What the numbers in later changes stand for.
    pub fn names(&self) -> Names {
        self.look(|inner| {
            let replicas = inner.publisher.index().dictionary().replicas();
            let members = replicas.map(|(slot, replica)| (slot, replica.member.clone())).collect();
            Names { sequence: inner.ring.last(), scopes: inner.scopes(), members }
        })
    }

    /// The latest sequence.
    pub fn sequence(&self) -> u64 {
        self.look(|inner| inner.ring.last())
    }

    /// What it takes, in numbers.
    pub fn sizes(&self) -> Sizes {
        self.look(|inner| {
            let index = inner.publisher.index();
            let size = index.size();
            Sizes {
                resume_buffer_bytes: inner.ring.bytes(),
                followed_blocks: inner.followed.view().iter().map(|view| view.blocks).sum(),
                index_pairs: size.pairs,
                index_bytes: size.bytes,
                scopes: index.dictionary().scopes().count(),
            }
        })
    }

    /// Every followed replica, in the order in which they came.
    pub fn view(&self) -> Vec<ReplicaView> {
        self.look(|inner| inner.followed.view())
    }

    /// Whether the replicas are found, and of every followed one is known all that can be.
    pub fn is_complete(&self) -> bool {
        !self.awaits_replicas() && self.look(|inner| inner.followed.is_complete())
    }

    /// Tokens in a block where followed replicas serve this model, at best under this hash scheme.
    pub fn block_size(&self, model_id: &str, hash_scheme: &str) -> Option<BlockSize> {
        self.look(|inner| inner.followed.block_size(model_id, hash_scheme))
    }

    fn change_both<T>(&self, change: impl FnOnce(&mut Followed, &mut Publisher) -> T) -> T {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let Inner { ring, publisher, followed } = &mut *inner;
        let result = change(followed, publisher);
        publisher.take_changes().into_iter().for_each(|observation| ring.push(observation));
        let last = ring.last();
        drop(inner);
        self.sequence.send_if_modified(|sequence| std::mem::replace(sequence, last.max(*sequence)) < last);
        result
    }

    fn look<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Inner ===

impl Inner {
    fn outline(&self) -> (Snapshot, Vec<ReplicaIndex>) {
        let (indexes, replicas) = self.followed.outlines().unzip();
        let snapshot = Snapshot {
            sequence: self.ring.last(),
            scopes: self.scopes(),
            policies: policies(self.publisher.index()),
            models: models(self.publisher.index()),
            replicas,
            reported: reported(&self.publisher),
        };
        (snapshot, indexes)
    }

    fn scopes(&self) -> Vec<(ScopeSlot, Scope)> {
        let scopes = self.publisher.index().dictionary().scopes();
        let mut scopes: Vec<_> = scopes.map(|(slot, scope)| (slot, scope.clone())).collect();
        scopes.sort_unstable();
        scopes
    }
}

#[cfg(test)]
mod tests;
