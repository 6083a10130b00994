//! The replicas' generations, by the index's own numbers.
//!
//! Clearing a replica costs one step: its number is retired, what it held counts for nothing from then on, and the sweep
//! takes it out of the runs. A number is given again once a whole sweep has passed over it.

use hashbrown::HashMap;

use crate::index::runs::stretch::HolderId;
use crate::observation::{ReplicaSlot, ScopeSlot};

/// All holders.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    by_replica: HashMap<ReplicaSlot, HolderId>,
    known: Vec<Holder>,
    free: Vec<HolderId>,
    pairs: u64,
    /// Sweeps that have gone over everything.
    passes: u64,
}

#[derive(Clone, Debug)]
struct Holder {
    replica: ReplicaSlot,
    /// After which sweep it was retired.
    retired: Option<u64>,
    /// Blocks in each scope.
    held: HashMap<ScopeSlot, u64>,
}

// === impl Holders ===

impl Holders {
    /// The number of a replica, a new one if it has none.
    pub fn number(&mut self, replica: ReplicaSlot) -> HolderId {
        if let Some(holder) = self.by_replica.get(&replica) {
            return *holder;
        }
        let new = Holder { replica, retired: None, held: HashMap::new() };
        let holder = match self.free.pop() {
            Some(free) => {
                if let Some(known) = self.known.get_mut(free.0 as usize) {
                    *known = new;
                }
                free
            }
            None => {
                self.known.push(new);
                HolderId(self.known.len() as u32 - 1)
            }
        };
        self.by_replica.insert(replica, holder);
        holder
    }

    /// The number of a replica that has one.
    pub fn get(&self, replica: ReplicaSlot) -> Option<HolderId> {
        self.by_replica.get(&replica).copied()
    }

    /// The replica behind a number that is not retired.
    #[inline]
    pub fn replica(&self, holder: HolderId) -> Option<ReplicaSlot> {
        self.known.get(holder.0 as usize).filter(|known| known.retired.is_none()).map(|known| known.replica)
    }

    /// (Block, replica) pairs that count.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Blocks that each replica holds in a scope.
    pub fn in_scope(&self, scope: ScopeSlot) -> impl Iterator<Item = (ReplicaSlot, u64)> {
        self.known
            .iter()
            .filter(|known| known.retired.is_none())
            .filter_map(move |known| Some((known.replica, *known.held.get(&scope)?)))
    }

    /// Blocks that a replica holds in all scopes.
    pub fn pairs_of(&self, replica: ReplicaSlot) -> u64 {
        let known = self.get(replica).and_then(|holder| self.known.get(holder.0 as usize));
        known.map_or(0, |known| known.held.values().sum())
    }

    /// Counts blocks that a holder has now.
    pub fn gain(&mut self, scope: ScopeSlot, holder: HolderId, blocks: u64) {
        if let Some(known) = self.known.get_mut(holder.0 as usize).filter(|_| blocks > 0) {
            *known.held.entry(scope).or_default() += blocks;
            self.pairs += blocks;
        }
    }

    /// Counts blocks that a holder no longer has; those of a retired one have been discounted.
    pub fn lose(&mut self, scope: ScopeSlot, holder: HolderId, blocks: u64) {
        let Some(known) = self.known.get_mut(holder.0 as usize).filter(|known| known.retired.is_none()) else { return };
        let Some(held) = known.held.get_mut(&scope) else { return };
        *held = held.saturating_sub(blocks);
        if *held == 0 {
            known.held.remove(&scope);
        }
        self.pairs = self.pairs.saturating_sub(blocks);
    }

    /// Retires a replica's number. Returns how many blocks it held.
    pub fn retire(&mut self, replica: ReplicaSlot) -> u64 {
        let Some(holder) = self.by_replica.remove(&replica) else { return 0 };
        let Some(known) = self.known.get_mut(holder.0 as usize) else { return 0 };
        let held = known.held.drain().map(|(_, blocks)| blocks).sum();
        known.retired = Some(self.passes);
        self.pairs = self.pairs.saturating_sub(held);
        held
    }

    /// A sweep has gone over everything: retires those that hold nothing, and frees the numbers that were retired before
    /// the sweep began.
    pub fn pass(&mut self) {
        let idle: Vec<ReplicaSlot> = self
            .by_replica
            .iter()
            .filter(|(_, holder)| self.known.get(holder.0 as usize).is_some_and(|known| known.held.is_empty()))
            .map(|(replica, _)| *replica)
            .collect();
        for replica in idle {
            self.retire(replica);
        }
        self.passes += 1;
        for (number, known) in self.known.iter_mut().enumerate() {
            if known.retired.is_some_and(|retired| retired.saturating_add(1) < self.passes) {
                known.retired = Some(u64::MAX);
                self.free.push(HolderId(number as u32));
            }
        }
    }
}
