//! Which replica holds which block, the slow and obvious way: the oracle of the index of runs.
//!
//! One flat map from (scope, key, replica); every question goes over all replicas and all blocks.

use std::collections::{BTreeMap, BTreeSet};

use warmroute::index::LeadingRun;
use warmroute::observation::{BlockKey, ReplicaSlot, ScopeSlot, Tier};

/// Every report so far, folded.
#[derive(Clone, Debug, Default)]
pub struct HeldBlocks {
    held: BTreeMap<(ScopeSlot, BlockKey, ReplicaSlot), Held>,
    /// When all that a replica holds was known to be held.
    reasserted: BTreeMap<ReplicaSlot, u64>,
}

/// What is known of one block at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub tier: Tier,
    pub token_count: u32,
    pub last_seen_ms: u64,
    pub access_count: u32,
}

// === impl HeldBlocks ===

impl HeldBlocks {
    /// True if the replica did not hold the block.
    pub fn store(
        &mut self,
        scope: ScopeSlot,
        key: &BlockKey,
        replica: ReplicaSlot,
        held: Held,
        access_count: Option<u32>,
    ) -> bool {
        let before = self.held.get(&(scope, key.clone(), replica)).map(|before| before.access_count);
        let access_count = access_count.or(before).unwrap_or(0);
        self.held.insert((scope, key.clone(), replica), Held { access_count, ..held }).is_none()
    }

    pub fn remove(&mut self, scope: ScopeSlot, keys: &[BlockKey], replica: ReplicaSlot) -> u64 {
        keys.iter().map(|key| u64::from(self.held.remove(&(scope, key.clone(), replica)).is_some())).sum()
    }

    /// Takes away what was last seen at `oldest_ms` or before.
    pub fn sweep(&mut self, oldest_ms: u64) {
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(.., replica), held| self.last_seen_ms(*replica, held) > oldest_ms);
        self.held = held;
    }

    /// Distinct blocks in a scope.
    pub fn keys(&self, scope: ScopeSlot) -> u64 {
        let keys: BTreeSet<&BlockKey> =
            self.held.keys().filter(|(within, ..)| *within == scope).map(|(_, key, _)| key).collect();
        keys.len() as u64
    }

    pub fn reassert(&mut self, replica: ReplicaSlot, at_ms: u64) {
        self.reasserted.insert(replica, at_ms);
    }

    /// Takes from a replica all that it holds.
    pub fn clear(&mut self, replica: ReplicaSlot) {
        self.held.retain(|(.., holder), _| *holder != replica);
        self.reasserted.remove(&replica);
    }

    pub fn held(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<Held> {
        let held = self.held.get(&(scope, key.clone(), replica))?;
        Some(Held { last_seen_ms: self.last_seen_ms(replica, held), ..*held })
    }

    fn last_seen_ms(&self, replica: ReplicaSlot, held: &Held) -> u64 {
        held.last_seen_ms.max(self.reasserted.get(&replica).copied().unwrap_or(0))
    }

    pub fn credit(&mut self, scope: ScopeSlot, keys: &[BlockKey], replica: ReplicaSlot) {
        for key in keys {
            if let Some(held) = self.held.get_mut(&(scope, key.clone(), replica)) {
                held.access_count += 1;
            }
        }
    }

    pub fn runs(&self, scope: ScopeSlot, keys: &[BlockKey], tokens: &[u32], oldest_ms: u64) -> Vec<LeadingRun> {
        let runs = self.replicas().into_iter().filter_map(|replica| {
            let held = |key: &BlockKey| self.held(scope, key, replica).filter(|held| held.last_seen_ms > oldest_ms);
            let leading: Vec<(Held, u32)> =
                keys.iter().zip(tokens).map_while(|(key, tokens)| Some((held(key)?, *tokens))).collect();
            Some(LeadingRun {
                replica,
                matched_tokens: leading.iter().map(|(_, tokens)| i64::from(*tokens)).sum(),
                blocks: leading.len(),
                last_seen_ms: leading.iter().map(|(held, _)| held.last_seen_ms).min()?,
                tier: leading.iter().map(|(held, _)| held.tier).max()?,
            })
        });
        runs.collect()
    }

    pub fn exact(&self, scope: ScopeSlot, key: &BlockKey, oldest_ms: u64) -> Vec<LeadingRun> {
        let replicas = self.replicas().into_iter();
        let held = replicas.filter_map(|replica| Some((replica, self.held(scope, key, replica)?)));
        held.filter(|(_, held)| held.last_seen_ms > oldest_ms)
            .map(|(replica, held)| LeadingRun {
                replica,
                matched_tokens: held.token_count.into(),
                blocks: 1,
                last_seen_ms: held.last_seen_ms,
                tier: held.tier,
            })
            .collect()
    }

    fn replicas(&self) -> Vec<ReplicaSlot> {
        let mut replicas: Vec<ReplicaSlot> = self.held.keys().map(|(.., replica)| *replica).collect();
        replicas.sort_unstable();
        replicas.dedup();
        replicas
    }
}
