//! Who holds what where there is not room for all of it, the slow and obvious way.
//!
//! The [`Reference`] with hits beside it, and limits: whenever something is beyond them, all there is is put in the
//! contract's order, and the first of it goes.

use std::collections::{BTreeMap, BTreeSet};

use warmroute::observation::{BlockKey, Observation, ReplicaSlot, Scope, ScopeSlot};
use warmroute::routing::policy::{Eviction, Policy};

use crate::reference::{Block, Reference};

/// What bounds it.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// (Block, replica) pairs.
    pub cap: Option<usize>,
    /// Distinct blocks, by tenant.
    pub quotas: BTreeMap<String, usize>,
}

/// How it goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// What goes is the last in the order.
    OtherEnd,
    /// Hits are left out of the order.
    HitsIgnored,
    QuotasIgnored,
    /// What has expired stays.
    ExpiryIgnored,
    RemovalsIgnored,
    ReassertionsIgnored,
}

/// Every observation so far, folded, as far as there is room.
#[derive(Clone, Debug)]
pub struct Bounded {
    pub held: Reference,
    bounds: Bounds,
    /// Of a tenant without one of its own, where none is published.
    default: Policy,
    flaw: Flaw,
    hits: BTreeMap<(ScopeSlot, BlockKey, ReplicaSlot), u32>,
    /// Until when a generation is known to hold still what was reported of it.
    reasserted: BTreeMap<ReplicaSlot, u64>,
    policies: BTreeMap<Option<String>, Policy>,
    /// How much went so far, by cap and by quota.
    pub evicted: (u64, u64),
}

// === impl Bounded ===

impl Bounded {
    pub fn new(bounds: Bounds, default: Policy, flaw: Flaw) -> Bounded {
        Bounded {
            held: Reference::default(),
            bounds,
            default,
            flaw,
            hits: BTreeMap::new(),
            reasserted: BTreeMap::new(),
            policies: BTreeMap::new(),
            evicted: (0, 0),
        }
    }

    pub fn apply(&mut self, observation: &Observation) {
        match observation {
            Observation::Removed { .. } if self.flaw == Flaw::RemovalsIgnored => return,
            Observation::Reasserted { .. } if self.flaw == Flaw::ReassertionsIgnored => return,
            Observation::Reasserted { replica, at_ms } => {
                let last = self.reasserted.entry(*replica).or_default();
                *last = (*at_ms).max(*last);
            }
            Observation::Policy { tenant_id, policy } => {
                self.policies.insert(tenant_id.clone(), policy.clone());
            }
            Observation::PolicyGone { tenant_id } => {
                self.policies.remove(tenant_id);
            }
            other => self.held.apply(other),
        }
        // What does not stay held begins anew.
        let held: BTreeSet<_> =
            self.held.blocks().into_iter().map(|block| (block.scope, block.key, block.replica)).collect();
        self.hits.retain(|entry, _| held.contains(entry));
    }

    /// The policy of a tenant.
    pub fn policy(&self, tenant_id: &str) -> Policy {
        let own = self.policies.get(&Some(tenant_id.to_owned())).or_else(|| self.policies.get(&None));
        own.unwrap_or(&self.default).clone()
    }

    /// Nothing held yet, within the same limits and with what went so far.
    pub fn begin_again(&self) -> Bounded {
        Bounded { evicted: self.evicted, ..Bounded::new(self.bounds.clone(), self.default.clone(), self.flaw) }
    }

    /// A delivered hit of a block, where hits count.
    pub fn hit(&mut self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) {
        *self.hits.entry((scope, key.clone(), replica)).or_default() += 1;
    }

    /// Delivered hits so far.
    pub fn hits(&self, block: &Block) -> u32 {
        self.hits.get(&(block.scope, block.key.clone(), block.replica)).copied().unwrap_or(0)
    }

    /// When a generation was last re-asserted.
    pub fn reasserted_ms(&self, replica: ReplicaSlot) -> Option<u64> {
        self.reasserted.get(&replica).copied()
    }

    /// When a block was last known to be held. What goes to make room goes by its report alone.
    pub fn last_seen_ms(&self, block: &Block) -> u64 {
        self.reasserted_ms(block.replica).unwrap_or(0).max(block.last_seen_ms)
    }

    /// Takes away what has expired, then what is beyond the limits.
    pub fn settle(&mut self, now_ms: u64) {
        let expired = self.held.blocks().into_iter().filter(|block| self.is_expired(block, now_ms));
        expired.collect::<Vec<_>>().iter().for_each(|block| self.take(block));
        let quotas = if self.flaw == Flaw::QuotasIgnored { BTreeMap::new() } else { self.bounds.quotas.clone() };
        for (tenant_id, max) in quotas {
            while let Some(first) = self.first_beyond_quota(&tenant_id, max) {
                first.iter().for_each(|block| self.take(block));
                self.evicted.1 += 1;
            }
        }
        while let Some(first) = self.first_beyond_cap() {
            self.take(&first);
            self.evicted.0 += 1;
        }
    }

    fn is_expired(&self, block: &Block, now_ms: u64) -> bool {
        let ttl_ms = self.policy(&self.scope(block).tenant_id).eviction_ttl_ms;
        self.flaw != Flaw::ExpiryIgnored && now_ms.saturating_sub(self.last_seen_ms(block)) >= ttl_ms
    }

    /// All holders of the tenant's first block, if it has more blocks than that.
    fn first_beyond_quota(&self, tenant_id: &str, max: usize) -> Option<Vec<Block>> {
        let mut keys: BTreeMap<(ScopeSlot, BlockKey), Vec<Block>> = BTreeMap::new();
        for block in self.held.blocks().into_iter().filter(|block| self.scope(block).tenant_id == tenant_id) {
            keys.entry((block.scope, block.key.clone())).or_default().push(block);
        }
        if keys.len() <= max {
            return None;
        }
        let newest = |holders: &Vec<Block>| holders.iter().map(|block| block.last_seen_ms).max();
        self.first_of(keys.into_values(), |holders| {
            let name = holders.first().map(|block| (self.scope(block), bytes(&block.key)));
            (newest(holders), name)
        })
    }

    /// Whether a newer generation is about to end this one, whose blocks then take no room from that one's.
    fn is_ending(&self, replica: ReplicaSlot) -> bool {
        let member = self.held.generation(replica).map(|(member, _)| member);
        member.is_some_and(|member| self.held.generations(member).last() != Some(&replica))
    }

    fn first_beyond_cap(&self) -> Option<Block> {
        let mut blocks = self.held.blocks();
        blocks.retain(|block| !self.is_ending(block.replica));
        if self.bounds.cap.is_none_or(|cap| blocks.len() <= cap) {
            return None;
        }
        self.first_of(blocks.into_iter(), |block| {
            let scope = self.scope(block);
            let counts = self.policy(&scope.tenant_id).eviction == Eviction::Lfu && self.flaw != Flaw::HitsIgnored;
            let hits = if counts { self.hits(block) } else { 0 };
            let replica_id = self.held.generation(block.replica).map(|(member, _)| member.replica_id.clone());
            (hits, block.last_seen_ms, scope, bytes(&block.key), replica_id)
        })
    }

    fn first_of<T, Order: Ord>(&self, all: impl Iterator<Item = T>, order: impl Fn(&T) -> Order) -> Option<T> {
        match self.flaw {
            Flaw::OtherEnd => all.max_by_key(order),
            _ => all.min_by_key(order),
        }
    }

    fn take(&mut self, block: &Block) {
        let Block { scope, key, replica, .. } = block.clone();
        self.hits.remove(&(scope, key.clone(), replica));
        self.held.apply(&Observation::Removed { replica, scope, keys: vec![key] });
    }

    fn scope(&self, block: &Block) -> Scope {
        self.held.scope(block.scope).cloned().expect("blocks are in scopes that have a name")
    }
}

/// The bytes that keys are ordered by.
fn bytes(key: &BlockKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.write_to(&mut bytes);
    bytes
}
