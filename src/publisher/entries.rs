//! What producers reported, in the orders in which it goes when there is too much.
//!
//! One order over all entries for the cap: least hit first where the tenant's policy is LFU, then longest not reported,
//! then by tenant, model, scheme, adapter, hash and replica. One order over the blocks of each tenant that has a quota:
//! longest not reported by anyone first, then by model, scheme, adapter and hash. The first of each is found without
//! a scan.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::observation::{BlockKey, RESERVED_TENANT, ReplicaSlot, Scope, ScopeSlot};

/// A scope: its names, by which it is ordered, and its number.
#[derive(Clone, Debug)]
pub struct ScopeName {
    pub scope: Arc<Scope>,
    pub slot: ScopeSlot,
}

/// A replica: its id, by which it is ordered, and its number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaName {
    pub replica_id: Arc<str>,
    pub slot: ReplicaSlot,
}

/// A block key, ordered by its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByBytes(pub BlockKey);

/// A block that a replica reported. Ordered as the cap takes them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// How often it was hit; 0 where the tenant's policy is LRU.
    pub count: u32,
    pub last_seen_ms: u64,
    pub scope: ScopeName,
    pub key: ByBytes,
    pub replica: ReplicaName,
}

/// A block that some replica reported. Ordered as a quota takes them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// When a replica last reported it.
    pub newest_ms: u64,
    pub scope: ScopeName,
    pub key: ByBytes,
}

/// What one block at one replica is ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// The entry's hits and age, if there is one.
    pub entry: Option<(u32, u64)>,
    /// When any replica last reported the block.
    pub newest_ms: Option<u64>,
}

/// All of it.
#[derive(Debug)]
pub struct Entries {
    /// The numbers of the replicas that producers report.
    pub reported: HashSet<ReplicaSlot>,
    order: BTreeSet<Entry>,
    /// By tenant.
    quotas: HashMap<String, Quota>,
}

#[derive(Debug)]
struct Quota {
    max: u64,
    prefixes: BTreeSet<Prefix>,
}

// === impl Entries ===

impl Entries {
    /// Nothing yet.
    pub fn new(quotas: &BTreeMap<String, u64>) -> Entries {
        let mut entries = Entries { reported: HashSet::new(), order: BTreeSet::new(), quotas: HashMap::new() };
        entries.set_quotas(quotas);
        entries
    }

    /// Entries that count for the cap.
    pub fn len(&self) -> u64 {
        self.order.len() as u64
    }

    /// All of them, in the cap's order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.order.iter()
    }

    /// Whether the tenant has a quota.
    pub fn has_quota(&self, tenant_id: &str) -> bool {
        self.quotas.contains_key(tenant_id)
    }

    /// The tenants that have one.
    pub fn tenants_with_quota(&self) -> impl Iterator<Item = &str> {
        self.quotas.keys().map(String::as_str)
    }

    /// Replaces the quotas. True if a tenant has one now that had none: what it has reported is to be
    /// [added](Entries::add_prefix).
    pub fn set_quotas(&mut self, quotas: &BTreeMap<String, u64>) -> bool {
        self.quotas.retain(|tenant_id, _| quotas.contains_key(tenant_id));
        let mut is_new = false;
        for (tenant_id, max) in quotas.iter().filter(|(tenant_id, _)| *tenant_id != RESERVED_TENANT) {
            let fresh = || {
                is_new = true;
                Quota { max: *max, prefixes: BTreeSet::new() }
            };
            self.quotas.entry_ref(tenant_id).or_insert_with(fresh).max = *max;
        }
        is_new
    }

    /// Adds a block of a tenant with a quota.
    pub fn add_prefix(&mut self, prefix: Prefix) {
        if let Some(quota) = self.quotas.get_mut(&prefix.scope.scope.tenant_id) {
            quota.prefixes.insert(prefix);
        }
    }

    /// Moves a block at a replica from where it was ordered to where it belongs now.
    pub fn reorder(&mut self, scope: &ScopeName, key: &BlockKey, replica: &ReplicaName, before: Rank, now: Rank) {
        let tenant_id = &scope.scope.tenant_id;
        if before.entry != now.entry && tenant_id != RESERVED_TENANT {
            let entry = |(count, last_seen_ms)| Entry {
                count,
                last_seen_ms,
                scope: scope.clone(),
                key: ByBytes(key.clone()),
                replica: replica.clone(),
            };
            before.entry.map(|rank| self.order.remove(&entry(rank)));
            self.order.extend(now.entry.map(entry));
        }
        if before.newest_ms != now.newest_ms
            && let Some(quota) = self.quotas.get_mut(tenant_id)
        {
            let prefix = |newest_ms| Prefix { newest_ms, scope: scope.clone(), key: ByBytes(key.clone()) };
            before.newest_ms.map(|newest_ms| quota.prefixes.remove(&prefix(newest_ms)));
            quota.prefixes.extend(now.newest_ms.map(prefix));
        }
    }

    /// Orders anew, with other hit counts.
    pub fn recount(&mut self, count: impl Fn(&Entry) -> u32) {
        let entries = std::mem::take(&mut self.order);
        self.order = entries.into_iter().map(|entry| Entry { count: count(&entry), ..entry }).collect();
    }

    /// Takes out the first entry beyond the cap.
    pub fn pop_beyond(&mut self, max_entries: u64) -> Option<Entry> {
        if self.len() > max_entries { self.order.pop_first() } else { None }
    }

    /// Takes out the first block beyond the tenant's quota.
    pub fn pop_beyond_quota(&mut self, tenant_id: &str) -> Option<Prefix> {
        let quota = self.quotas.get_mut(tenant_id)?;
        if quota.prefixes.len() as u64 > quota.max { quota.prefixes.pop_first() } else { None }
    }
}

// === impl ScopeName ===

impl PartialEq for ScopeName {
    fn eq(&self, other: &ScopeName) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScopeName {}

impl PartialOrd for ScopeName {
    fn partial_cmp(&self, other: &ScopeName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScopeName {
    fn cmp(&self, other: &ScopeName) -> Ordering {
        // Most comparisons are within one scope: no need to compare its names.
        if self.slot == other.slot { Ordering::Equal } else { self.scope.cmp(&other.scope) }
    }
}

// === impl ByBytes ===

impl PartialOrd for ByBytes {
    fn partial_cmp(&self, other: &ByBytes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByBytes {
    fn cmp(&self, other: &ByBytes) -> Ordering {
        match (&self.0, &other.0) {
            (BlockKey::Hash64(a), BlockKey::Hash64(b)) => a.cmp(b),
            (BlockKey::Bytes(a), BlockKey::Bytes(b)) => a.cmp(b),
            (BlockKey::Hash64(a), BlockKey::Bytes(b)) => a.to_be_bytes()[..].cmp(b),
            (BlockKey::Bytes(a), BlockKey::Hash64(b)) => (**a).cmp(&b.to_be_bytes()[..]),
        }
    }
}
