//! What the hub knows, and the numbered history of how it came to know it.
//!
//! In: announcements, engine events and loads, replica by replica. Out: [`Snapshot`]s and, through the [`Ring`], the
//! changes after any recent position; together they are one consistent history, since both are made under one lock. The
//! epoch names this history: it is new with every start of the hub. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::config::ReplicaConfig;
use super::replica_cache::{Change, ReplicaCache, Tally};
use super::ring::{Numbered, Passed, Ring};
use super::snapshot::{MAX_BLOCKS, ReplicaSnapshot, Snapshot};
use crate::fingerprint::PrefixHash;
use crate::native::engine::KvEvent;
use crate::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, StoredBlock, Tier,
};

/// The most scopes: every adapter an engine names makes one, and none is ever given up.
pub const MAX_SCOPES: usize = 4_096;
/// An unchanged load is reported again after this long, in ms.
pub const STATS_REPEAT_MS: u64 = 5_000;

/// A replica, by its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaIndex(pub usize);

/// The hub's state, shared by all its tasks.
#[derive(Debug)]
pub struct HubState {
    epoch: u64,
    inner: Mutex<Inner>,
    sequence: watch::Sender<u64>,
}

/// One replica as operators see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaView {
    /// Its id.
    pub id: String,
    /// Where Envoy reaches it; `None` until its name was resolved.
    pub address: Option<String>,
    /// Whether all that it holds is known.
    pub complete: bool,
    /// Blocks held.
    pub blocks: usize,
    /// Its load, if it was reported.
    pub stats: Option<ReplicaStats>,
}

#[derive(Debug)]
struct Inner {
    ring: Ring,
    scopes: Vec<Scope>,
    scope_slots: HashMap<Scope, ScopeSlot>,
    replicas: Vec<Replica>,
    next_replica: u32,
}

#[derive(Debug)]
struct Replica {
    id: String,
    /// The scope of the base model.
    base: Scope,
    cache: ReplicaCache,
    announced: Option<Announced>,
    stats: Option<ReplicaStats>,
}

#[derive(Debug)]
struct Announced {
    slot: ReplicaSlot,
    address: String,
    complete: bool,
}

// === impl HubState ===

impl HubState {
    /// An empty state. `epoch` must not be 0 and not repeat.
    pub fn new(epoch: u64, replicas: &[ReplicaConfig], resume_buffer_bytes: usize) -> HubState {
        let inner = Inner {
            ring: Ring::new(resume_buffer_bytes),
            scopes: Vec::new(),
            scope_slots: HashMap::new(),
            replicas: replicas.iter().map(Replica::new).collect(),
            next_replica: 1,
        };
        HubState { epoch, inner: Mutex::new(inner), sequence: watch::Sender::new(0) }
    }

    /// The lifetime of this history.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Follows the latest sequence.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.sequence.subscribe()
    }

    /// `replica` is reached at `address` from now on. True if that is a new address: it makes a new generation, which
    /// holds nothing yet.
    pub fn announce(&self, replica: ReplicaIndex, address: &str) -> bool {
        self.change(|inner| inner.announce(replica, address)).unwrap_or(false)
    }

    /// All that `replica` holds has been applied, or can no longer be learned.
    pub fn complete(&self, replica: ReplicaIndex) {
        self.change(|inner| {
            let announced = inner.replicas.get_mut(replica.0)?.announced.as_mut()?;
            if !std::mem::replace(&mut announced.complete, true) {
                let replica = announced.slot;
                inner.ring.push(Observation::ReplicaComplete { replica });
            }
            Some(())
        });
    }

    /// Applies events of `replica`, which must have been announced, as seen at `now_ms`, Unix time in ms.
    pub fn apply(&self, replica: ReplicaIndex, events: &[KvEvent], now_ms: u64) -> Tally {
        self.change(|inner| inner.apply(replica, events, now_ms)).unwrap_or_default()
    }

    /// `replica` is not known to hold anything any more.
    pub fn clear(&self, replica: ReplicaIndex) -> Tally {
        self.apply(replica, &[KvEvent::AllBlocksCleared], 0)
    }

    /// The load of `replica`; published if it differs from the last one or that is [`STATS_REPEAT_MS`] old.
    pub fn stats(&self, replica: ReplicaIndex, stats: ReplicaStats) {
        self.change(|inner| {
            let state = inner.replicas.get_mut(replica.0)?;
            let slot = state.announced.as_ref()?.slot;
            let is_news = state.stats.is_none_or(|last| {
                (last.pressure, last.hit_rate) != (stats.pressure, stats.hit_rate)
                    || stats.reported_ms >= last.reported_ms.saturating_add(STATS_REPEAT_MS)
            });
            if is_news {
                state.stats = Some(stats);
                inner.ring.push(Observation::Stats { replica: slot, stats });
            }
            Some(())
        });
    }

    /// The full state as of its sequence.
    pub fn snapshot(&self) -> Snapshot {
        let inner = self.lock();
        Snapshot {
            sequence: inner.ring.last(),
            scopes: inner.numbered_scopes(),
            replicas: inner.replicas.iter().filter_map(Replica::snapshot).collect(),
        }
    }

    /// The changes after `sequence`; at least one if there is any, then at most `limit_bytes` of encoded facts.
    ///
    /// # Errors
    /// When that position has left the ring, or is yet to come.
    pub fn after(&self, sequence: u64, limit_bytes: usize) -> Result<Vec<Arc<Numbered>>, Passed> {
        self.lock().ring.after(sequence, limit_bytes)
    }

    /// Every scope so far.
    pub fn scopes(&self) -> Vec<(ScopeSlot, Scope)> {
        self.lock().numbered_scopes()
    }

    /// The latest sequence.
    pub fn sequence(&self) -> u64 {
        self.lock().ring.last()
    }

    /// Every replica, in the order of the configuration.
    pub fn view(&self) -> Vec<ReplicaView> {
        self.lock().replicas.iter().map(Replica::view).collect()
    }

    /// Whether of every replica is known all that can be.
    pub fn is_complete(&self) -> bool {
        let is_complete = |replica: &Replica| replica.announced.as_ref().is_some_and(|announced| announced.complete);
        self.lock().replicas.iter().all(is_complete)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> Option<T>) -> Option<T> {
        let mut inner = self.lock();
        let result = change(&mut inner);
        let last = inner.ring.last();
        drop(inner);
        self.sequence.send_if_modified(|sequence| std::mem::replace(sequence, last.max(*sequence)) < last);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    fn announce(&mut self, replica: ReplicaIndex, address: &str) -> Option<bool> {
        let state = self.replicas.get_mut(replica.0)?;
        if state.announced.as_ref().is_some_and(|announced| announced.address == address) {
            return Some(false);
        }
        let slot = ReplicaSlot(self.next_replica);
        self.next_replica = self.next_replica.checked_add(1)?;
        state.announced = Some(Announced { slot, address: address.to_owned(), complete: false });
        state.stats = None;
        // Not a change to publish: the earlier generation ends when this one is complete.
        state.cache.clear(&mut Vec::new(), &mut Tally::default());
        let base = state.base.clone();
        let member = Member::new(&base.tenant_id, &base.model_id, &state.id);
        scope_slot(&mut self.scopes, &mut self.scope_slots, &mut self.ring, base);
        self.ring.push(Observation::ReplicaUp { replica: slot, member, address: address.to_owned() });
        Some(true)
    }

    fn apply(&mut self, replica: ReplicaIndex, events: &[KvEvent], now_ms: u64) -> Option<Tally> {
        let state = self.replicas.get_mut(replica.0)?;
        let slot = state.announced.as_ref()?.slot;
        let mut tally = Tally::default();
        let mut changes = Vec::new();
        for event in events {
            let mut scope_of = |adapter: &str| {
                let scope = Scope { adapter_id: adapter.to_owned(), ..state.base.clone() };
                scope_slot(&mut self.scopes, &mut self.scope_slots, &mut self.ring, scope)
            };
            state.cache.apply(event, now_ms, &mut scope_of, &mut changes, &mut tally);
        }
        for change in changes {
            publish(&mut self.ring, slot, change, now_ms);
        }
        Some(tally)
    }

    fn numbered_scopes(&self) -> Vec<(ScopeSlot, Scope)> {
        let mut scopes: Vec<_> = self.scope_slots.iter().map(|(scope, slot)| (*slot, scope.clone())).collect();
        scopes.sort_unstable();
        scopes
    }
}

/// The number of `scope`, announced if it is new; `None` if there can be no further one.
fn scope_slot(
    scopes: &mut Vec<Scope>,
    slots: &mut HashMap<Scope, ScopeSlot>,
    ring: &mut Ring,
    scope: Scope,
) -> Option<ScopeSlot> {
    if let Some(slot) = slots.get(&scope) {
        return Some(*slot);
    }
    if scopes.len() >= MAX_SCOPES {
        return None;
    }
    scopes.push(scope.clone());
    let slot = ScopeSlot(u32::try_from(scopes.len()).ok()?);
    slots.insert(scope.clone(), slot);
    ring.push(Observation::Scope { slot, scope });
    Some(slot)
}

/// Publishes a change in pieces that fit a message.
fn publish(ring: &mut Ring, replica: ReplicaSlot, change: Change, now_ms: u64) {
    match change {
        Change::Cleared => ring.push(Observation::Cleared { replica }),
        Change::Removed(scope, hashes) => {
            for hashes in hashes.chunks(MAX_BLOCKS) {
                let keys = hashes.iter().copied().map(BlockKey::from).collect();
                ring.push(Observation::Removed { replica, scope, keys });
            }
        }
        Change::Stored(scope, blocks) => {
            for blocks in blocks.chunks(MAX_BLOCKS) {
                let blocks = blocks.iter().map(stored_block).collect();
                ring.push(Observation::Stored { replica, scope, tier: Tier::T1, last_seen_ms: now_ms, blocks });
            }
        }
    }
}

fn stored_block((hash, token_count): &(PrefixHash, u32)) -> StoredBlock {
    StoredBlock { key: BlockKey::from(*hash), token_count: *token_count }
}

// === impl Replica ===

impl Replica {
    fn new(config: &ReplicaConfig) -> Replica {
        let base = Scope {
            tenant_id: config.tenant.clone(),
            model_id: config.model.clone(),
            hash_scheme: config.hash_scheme.clone(),
            adapter_id: String::new(),
        };
        let cache = ReplicaCache::new(config.block_size);
        Replica { id: config.id.clone(), base, cache, announced: None, stats: None }
    }

    fn snapshot(&self) -> Option<ReplicaSnapshot> {
        let announced = self.announced.as_ref()?;
        Some(ReplicaSnapshot {
            slot: announced.slot,
            member: Member::new(&self.base.tenant_id, &self.base.model_id, &self.id),
            address: announced.address.clone(),
            stats: self.stats,
            complete: announced.complete,
            held: self.cache.held().collect(),
        })
    }

    fn view(&self) -> ReplicaView {
        ReplicaView {
            id: self.id.clone(),
            address: self.announced.as_ref().map(|announced| announced.address.clone()),
            complete: self.announced.as_ref().is_some_and(|announced| announced.complete),
            blocks: self.cache.len(),
            stats: self.stats,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::native::engine::{BlockStored, EngineKey};
    use crate::native::hub::config::HubConfig;

    const A: ReplicaIndex = ReplicaIndex(0);

    fn state() -> HubState {
        let yaml = "replicas: [{id: a, address: 'h:1', kv_events: 'tcp://h:2', model: m}]";
        HubState::new(7, &HubConfig::from_yaml(yaml).unwrap().replicas, 1 << 20)
    }

    fn stored(keys: std::ops::Range<u64>) -> KvEvent {
        KvEvent::BlockStored(BlockStored {
            token_ids: keys.clone().map(|key| key as u32).collect(),
            block_hashes: keys.map(EngineKey::Int).collect(),
            block_size: 1,
            ..BlockStored::default()
        })
    }

    fn history(state: &HubState, after: u64) -> Vec<Observation> {
        let changes = state.after(after, usize::MAX).unwrap();
        changes.iter().map(|change| change.observation.clone()).collect()
    }

    fn held(observations: &[Observation]) -> BTreeMap<ReplicaSlot, BTreeSet<BlockKey>> {
        let mut held: BTreeMap<ReplicaSlot, BTreeSet<BlockKey>> = BTreeMap::new();
        for observation in observations {
            match observation {
                Observation::Stored { replica, blocks, .. } => {
                    held.entry(*replica).or_default().extend(blocks.iter().map(|block| block.key.clone()));
                }
                Observation::Removed { replica, keys, .. } => {
                    held.entry(*replica).or_default().retain(|key| !keys.contains(key));
                }
                Observation::Cleared { replica } => {
                    held.remove(replica);
                }
                _ => {}
            }
        }
        held
    }

    #[test]
    fn a_replica_and_its_scope_are_announced_before_they_are_used() {
        let state = state();
        assert_eq!(state.apply(A, &[stored(0..3)], 5), Tally::default(), "not announced");
        state.announce(A, "10.0.0.1:1");
        state.announce(A, "10.0.0.1:1");
        state.apply(A, &[stored(0..3)], 5);
        state.complete(A);
        state.complete(A);
        let kinds: Vec<_> = history(&state, 0).iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 4, "scope, replica up, stored, complete");
        assert!(state.is_complete());
        assert_eq!(*state.watch().borrow(), 4);
    }

    #[test]
    fn a_snapshot_and_the_changes_after_it_are_the_whole_history() {
        let state = state();
        state.announce(A, "10.0.0.1:1");
        state.apply(A, &[stored(0..5_000)], 5);
        let snapshot = state.snapshot();
        let sequence = snapshot.sequence;
        let mut replayed: Vec<_> = snapshot.replicas.into_iter().flat_map(ReplicaSnapshot::into_observations).collect();
        let removed = crate::native::engine::BlockRemoved {
            block_hashes: (10..20).map(EngineKey::Int).collect(),
            ..Default::default()
        };
        state.apply(A, &[KvEvent::BlockRemoved(removed)], 6);
        replayed.extend(history(&state, sequence));
        assert_eq!(held(&replayed), held(&history(&state, 0)));
        assert_eq!(held(&replayed).values().next().map(BTreeSet::len), Some(4_990));
    }

    #[test]
    fn a_new_address_is_a_new_generation_that_holds_nothing() {
        let state = state();
        state.announce(A, "10.0.0.1:1");
        state.apply(A, &[stored(0..3)], 5);
        state.complete(A);
        state.announce(A, "10.0.0.2:1");
        assert_eq!((state.view()[0].blocks, state.view()[0].complete), (0, false));
        let slots: Vec<_> = history(&state, 0)
            .into_iter()
            .filter_map(|observation| match observation {
                Observation::ReplicaUp { replica, .. } => Some(replica.0),
                _ => None,
            })
            .collect();
        assert_eq!(slots, [1, 2]);
    }

    #[test]
    fn an_unchanged_load_is_published_again_only_after_a_while() {
        let state = state();
        state.announce(A, "10.0.0.1:1");
        let start = state.sequence();
        let report = |pressure, reported_ms| {
            state.stats(A, ReplicaStats { pressure, hit_rate: 0.5, reported_ms });
            state.sequence() - start
        };
        assert_eq!(report(0.1, 1_000), 1);
        assert_eq!(report(0.1, 5_999), 1);
        assert_eq!(report(0.1, 6_000), 2);
        assert_eq!(report(0.2, 6_001), 3);
    }
}
