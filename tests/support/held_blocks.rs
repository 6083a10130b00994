//! Which replica holds which block, the slow and obvious way: the oracle of the index of runs.
//!
//! One flat map from (scope, key, replica); every question goes over all replicas and all blocks.

use std::collections::BTreeMap;

use warmroute::index::run::LeadingRun;
use warmroute::observation::{BlockKey, ReplicaSlot, ScopeSlot, Tier};

/// Every report so far, folded.
#[derive(Clone, Debug, Default)]
pub struct HeldBlocks(BTreeMap<(ScopeSlot, BlockKey, ReplicaSlot), Held>);

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
        let before = self.0.get(&(scope, key.clone(), replica)).map(|before| before.access_count);
        let access_count = access_count.or(before).unwrap_or(0);
        self.0.insert((scope, key.clone(), replica), Held { access_count, ..held }).is_none()
    }

    pub fn remove(&mut self, scope: ScopeSlot, keys: &[BlockKey], replica: ReplicaSlot) -> u64 {
        keys.iter().map(|key| u64::from(self.0.remove(&(scope, key.clone(), replica)).is_some())).sum()
    }

    pub fn retain(&mut self, keep: impl Fn(ScopeSlot, ReplicaSlot, &Held) -> bool) {
        self.0.retain(|(scope, _, replica), held| keep(*scope, *replica, held));
    }

    pub fn held(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<&Held> {
        self.0.get(&(scope, key.clone(), replica))
    }

    pub fn credit(&mut self, scope: ScopeSlot, keys: &[BlockKey], replica: ReplicaSlot) {
        for key in keys {
            if let Some(held) = self.0.get_mut(&(scope, key.clone(), replica)) {
                held.access_count += 1;
            }
        }
    }

    pub fn runs(&self, scope: ScopeSlot, keys: &[BlockKey], tokens: &[u32], oldest_ms: u64) -> Vec<LeadingRun> {
        let runs = self.replicas().into_iter().filter_map(|replica| {
            let held = |key: &BlockKey| self.held(scope, key, replica).filter(|held| held.last_seen_ms > oldest_ms);
            let leading: Vec<(&Held, u32)> =
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
        let mut replicas: Vec<ReplicaSlot> = self.0.keys().map(|(.., replica)| *replica).collect();
        replicas.sort_unstable();
        replicas.dedup();
        replicas
    }
}
