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
    /// Pairs of retired ones that the sweep has not come to, in each scope.
    retired: HashMap<ScopeSlot, u64>,
    /// Who began or ceased to hold something in a scope, until it is taken.
    turns: Vec<Turn>,
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
    standing: Standing,
}

/// A replica that began to hold something in a scope, or no longer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// The scope.
    pub scope: ScopeSlot,
    /// It holds something there now.
    pub holds: bool,
}

/// What is said of all that a replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It counts in matches.
    pub counts: bool,
    /// All of it was known to be held at this time, Unix ms.
    pub reasserted_ms: u64,
}

// === impl Holders ===

impl Holders {
    /// The number of a replica, a new one if it has none.
    pub fn number(&mut self, replica: ReplicaSlot) -> HolderId {
        if let Some(holder) = self.by_replica.get(&replica) {
            return *holder;
        }
        let new = Holder { replica, retired: None, held: HashMap::new(), standing: Standing::default() };
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

    /// The replicas that have a number, in no order.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaSlot> {
        self.by_replica.keys().copied()
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

    /// A replica that counts, and when all that it holds was known to be held.
    #[inline]
    pub fn counting(&self, holder: HolderId) -> Option<(ReplicaSlot, u64)> {
        let known = self.known.get(holder.0 as usize)?;
        let counts = known.retired.is_none() && known.standing.counts;
        counts.then_some((known.replica, known.standing.reasserted_ms))
    }

    /// When all that a holder has was known to be held.
    #[inline]
    pub fn reasserted_ms(&self, holder: HolderId) -> u64 {
        self.known.get(holder.0 as usize).map_or(0, |known| known.standing.reasserted_ms)
    }

    /// What is said of all that a holder has.
    pub fn standing(&self, holder: HolderId) -> Standing {
        self.known.get(holder.0 as usize).map_or_else(Standing::default, |known| known.standing)
    }

    /// Says what is to be said of all that a replica holds.
    pub fn set_standing(&mut self, replica: ReplicaSlot, standing: Standing) {
        let holder = self.number(replica);
        if let Some(known) = self.known.get_mut(holder.0 as usize) {
            known.standing = standing;
        }
    }

    /// Who began or ceased to hold something in a scope since the last call.
    pub fn take_turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns)
    }

    /// How many replicas hold something.
    pub fn holding(&self) -> usize {
        self.known.iter().filter(|known| known.retired.is_none() && !known.held.is_empty()).count()
    }

    /// The scopes that a replica holds something in, in no order.
    pub fn scopes_of(&self, replica: ReplicaSlot) -> impl Iterator<Item = ScopeSlot> {
        let known = self.get(replica).and_then(|holder| self.known.get(holder.0 as usize));
        known.into_iter().flat_map(|known| known.held.keys().copied())
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
            let held = known.held.entry(scope).or_default();
            if *held == 0 {
                self.turns.push(Turn { replica: known.replica, scope, holds: true });
            }
            *held += blocks;
            self.pairs += blocks;
        }
    }

    /// Blocks that retired holders had in a scope and that are still in runs.
    pub fn retired_in(&self, scope: ScopeSlot) -> u64 {
        self.retired.get(&scope).copied().unwrap_or(0)
    }

    /// Whether there are any.
    pub fn any_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Counts blocks that a holder no longer has; those of a retired one have been discounted.
    pub fn lose(&mut self, scope: ScopeSlot, holder: HolderId, blocks: u64) {
        let Some(known) = self.known.get_mut(holder.0 as usize) else { return };
        if known.retired.is_some() {
            if let Some(retired) = self.retired.get_mut(&scope) {
                *retired = retired.saturating_sub(blocks);
                if *retired == 0 {
                    self.retired.remove(&scope);
                }
            }
            return;
        }
        let Some(held) = known.held.get_mut(&scope) else { return };
        *held = held.saturating_sub(blocks);
        if *held == 0 {
            known.held.remove(&scope);
            self.turns.push(Turn { replica: known.replica, scope, holds: false });
        }
        self.pairs = self.pairs.saturating_sub(blocks);
    }

    /// Retires a replica's number. Returns how many blocks it held.
    pub fn retire(&mut self, replica: ReplicaSlot) -> u64 {
        let Some(holder) = self.by_replica.remove(&replica) else { return 0 };
        let Some(known) = self.known.get_mut(holder.0 as usize) else { return 0 };
        let turns = known.held.keys().map(|scope| Turn { replica, scope: *scope, holds: false });
        self.turns.extend(turns);
        let mut held = 0;
        for (scope, blocks) in known.held.drain() {
            held += blocks;
            *self.retired.entry(scope).or_default() += blocks;
        }
        known.retired = Some(self.passes);
        self.pairs = self.pairs.saturating_sub(held);
        held
    }

    /// A sweep has gone over everything: retires those that hold nothing and that `keep` does not want, and frees the numbers
    /// that were retired before the sweep began.
    pub fn pass(&mut self, keep: impl Fn(ReplicaSlot) -> bool) {
        let idle: Vec<ReplicaSlot> = self
            .by_replica
            .iter()
            .filter(|(_, holder)| self.known.get(holder.0 as usize).is_some_and(|known| known.held.is_empty()))
            .filter(|(replica, _)| !keep(**replica))
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

// === impl Standing ===

impl Default for Standing {
    fn default() -> Standing {
        Standing { counts: true, reasserted_ms: 0 }
    }
}
