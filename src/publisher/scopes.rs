//! Numbers of scopes: given when one is needed, given up when nothing is held under it, never given again.
//!
//! Whoever follows a replica keeps what the engine holds, under numbers given here, also once it is too old for an index.
//! So a scope stays while such a block does.

use hashbrown::{HashMap, HashSet};

use super::Publisher;
use crate::observation::{BlockKey, Observation, ReplicaSlot, Scope, ScopeSlot, Stored};

/// Blocks that went by age at replicas that are followed, and that these still hold.
#[derive(Debug, Default)]
pub struct Expired(HashMap<ScopeSlot, HashMap<ReplicaSlot, HashSet<BlockKey>>>);

// === impl Publisher ===

impl Publisher {
    /// The number of a scope; none if there are as many as followed replicas may make. However many reports make, there
    /// is room for these. It is good until the next sweep, and for as long as something is held under it.
    pub fn scope(&mut self, scope: &Scope) -> Option<ScopeSlot> {
        let known = self.index.dictionary().scope_slot(scope);
        let followed = self.index.dictionary().scope_count().saturating_sub(self.reported_scopes.len());
        if known.is_some() || followed >= self.limits.max_scopes { known } else { self.add_scope(scope) }
    }

    /// The same for a scope that a report names.
    pub(super) fn reported_scope(&mut self, scope: &Scope) -> Option<ScopeSlot> {
        let known = self.index.dictionary().scope_slot(scope);
        if known.is_some() || self.reported_scopes.len() >= self.limits.max_scopes {
            return known;
        }
        let added = self.add_scope(scope)?;
        self.reported_scopes.insert(added);
        Some(added)
    }

    /// Whether blocks of a followed replica went by age that it still holds.
    pub fn has_expired(&self, replica: ReplicaSlot) -> bool {
        self.expired.any_of(replica)
    }

    /// Whether this block went by age although the followed replica still holds it.
    pub fn is_expired(&self, scope: ScopeSlot, replica: ReplicaSlot, key: &BlockKey) -> bool {
        self.expired.contains(scope, replica, key)
    }

    fn add_scope(&mut self, scope: &Scope) -> Option<ScopeSlot> {
        self.last_scope = self.last_scope.checked_add(1)?;
        let slot = ScopeSlot(self.last_scope);
        self.commit(Observation::Scope { slot, scope: scope.clone() });
        Some(slot)
    }

    /// Makes room for other scopes. One that is needed again gets a new number.
    pub(super) fn sweep_scopes(&mut self) {
        let dictionary = self.index.dictionary();
        self.expired.keep(|replica| dictionary.replica(replica).is_some());
        let scopes = dictionary.scopes().map(|(slot, _)| slot);
        let is_empty = |slot: &ScopeSlot| self.index.keys_of(*slot) == 0 && !self.expired.has(*slot);
        let mut empty: Vec<ScopeSlot> = scopes.filter(is_empty).collect();
        empty.sort_unstable();
        for slot in empty {
            self.reported_scopes.remove(&slot);
            self.commit(Observation::ScopeGone { slot });
        }
    }
}

// === impl Expired ===

impl Expired {
    /// `replica` holds the block, which is too old for the index.
    pub fn add(&mut self, scope: ScopeSlot, replica: ReplicaSlot, key: BlockKey) {
        self.0.entry(scope).or_default().entry(replica).or_default().insert(key);
    }

    /// What `observation` speaks of is in the index again, or no longer held.
    pub fn forget(&mut self, observation: &Observation) {
        match observation {
            Observation::Stored(Stored { replica, scope, blocks, .. }) => {
                self.forget_blocks(*scope, *replica, blocks.iter().map(|block| &block.key));
            }
            Observation::Removed { replica, scope, keys } => self.forget_blocks(*scope, *replica, keys.iter()),
            Observation::Cleared { replica } => self.keep(|other| other != *replica),
            _ => {}
        }
    }

    /// Whether a block of the scope is still held.
    pub fn has(&self, scope: ScopeSlot) -> bool {
        self.0.contains_key(&scope)
    }

    /// Whether the replica still holds a block that is too old for the index.
    pub fn any_of(&self, replica: ReplicaSlot) -> bool {
        self.0.values().flat_map(HashMap::keys).any(|other| *other == replica)
    }

    /// Whether the replica still holds this block, which is too old for the index.
    pub fn contains(&self, scope: ScopeSlot, replica: ReplicaSlot, key: &BlockKey) -> bool {
        let blocks = self.0.get(&scope).and_then(|replicas| replicas.get(&replica));
        blocks.is_some_and(|blocks| blocks.contains(key))
    }

    /// Forgets what replicas held that `keep` refuses.
    pub fn keep(&mut self, keep: impl Fn(ReplicaSlot) -> bool) {
        self.0.retain(|_, replicas| {
            replicas.retain(|replica, _| keep(*replica));
            !replicas.is_empty()
        });
    }

    fn forget_blocks<'a>(&mut self, scope: ScopeSlot, replica: ReplicaSlot, keys: impl Iterator<Item = &'a BlockKey>) {
        let Some(replicas) = self.0.get_mut(&scope) else { return };
        let Some(blocks) = replicas.get_mut(&replica) else { return };
        for key in keys {
            blocks.remove(key);
        }
        if blocks.is_empty() {
            replicas.remove(&replica);
        }
        if replicas.is_empty() {
            self.0.remove(&scope);
        }
    }
}
