//! What a publisher of observations knows: the hub's side of the public `inferencecache.v1alpha1` contract.
//!
//! In: what producers [report](message) over that contract, and observations of engines that the publisher follows
//! itself. Out: an [`Index`] to answer lookups from, and every change to it as an [`Observation`], in order, for whoever
//! carries them on: an index that applies them holds what this one does. Time comes in as an argument, in ms.
//!
//! A replica is either followed or reported. What is reported is bounded here, as the contract says: by age, by a cap on
//! all of it, and by a quota of each tenant. What is followed is bounded by the engines, and counts for neither.
//! What no replica can mean is left out, and [counted by reason](Dropped): see [`DropReason`].

mod address;
mod changes;
mod counts;
mod dropped;
mod entries;
mod event;
mod evict;
mod follow;
pub mod message;
mod models;
mod pieces;
mod policies;
mod report;
mod reported;
mod scopes;
mod sweep;
mod track;

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use crate::index::Index;
use crate::observation::{Member, Observation, ScopeSlot};
use crate::routing::policy::Policies;

pub use counts::{CacheState, Counts, ReplicaState};
pub use dropped::{DropReason, Dropped};
use entries::Entries;
pub use evict::Evictions;
use message::ReportedStats;

/// The publisher writes no pages.
const PAGES: u32 = 1;

/// What bounds a [`Publisher`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherLimits {
    /// The most reported (block, replica) pairs, those of the reserved tenant not counted; 0 is no limit.
    pub max_entries: u64,
    /// The most distinct blocks of a tenant; without an entry there is no limit, 0 admits nothing.
    pub quotas: BTreeMap<String, u64>,
    /// A report from further in the future than this is left out, in ms.
    pub future_tolerance_ms: u64,
    /// The most members that are reported at a time.
    pub max_members: usize,
    /// The most scopes of a time that reports can make, and the most that followed replicas can.
    pub max_scopes: usize,
}

/// What a publisher knows.
#[derive(Debug)]
pub struct Publisher {
    limits: PublisherLimits,
    policies: Policies,
    index: Index,
    /// The number of the last change, as the index counts them.
    sequence: u64,
    /// Changes that nobody has taken yet.
    changes: Vec<Observation>,
    last_replica: u32,
    last_scope: u32,
    /// The scopes that reports made.
    reported_scopes: HashSet<ScopeSlot>,
    /// Replicas of which ranks are followed, each as a replica of its own, and those ranks.
    ranks: HashMap<Member, BTreeSet<u32>>,
    /// What keeps scopes although the index holds nothing in them.
    expired: scopes::Expired,
    /// Members that producers report.
    members: HashMap<Member, Reported>,
    /// Members that were cleared since the last sweep: they may well live, and give way to others.
    cleared: BTreeSet<Member>,
    /// Where members are reached, as far as it was said.
    addresses: HashMap<Member, String>,
    /// What producers reported, in the orders in which it goes.
    entries: Entries,
    dropped: Dropped,
    evictions: Evictions,
}

/// A member that producers report.
#[derive(Debug)]
struct Reported {
    replica: entries::ReplicaName,
    stats: Option<StatsRecord>,
}

/// The last statistics of a member.
#[derive(Clone, Copy, Debug)]
struct StatsRecord {
    stats: ReportedStats,
    /// When the member was last said to live, Unix time in ms.
    last_seen_ms: u64,
}

// === impl PublisherLimits ===

impl Default for PublisherLimits {
    /// The contract's: 1,000,000 entries, no quotas. Beyond it: a minute into the future, 65,536 members and scopes.
    fn default() -> PublisherLimits {
        PublisherLimits {
            max_entries: 1_000_000,
            quotas: BTreeMap::new(),
            future_tolerance_ms: 60_000,
            max_members: 65_536,
            max_scopes: 65_536,
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// Knows nothing yet; every tenant has the contract's default policy.
    pub fn new(limits: PublisherLimits) -> Publisher {
        let entries = Entries::new(&limits.quotas);
        Publisher {
            limits,
            policies: Policies::default(),
            index: Index::new(PAGES),
            sequence: 0,
            changes: Vec::new(),
            last_replica: 0,
            last_scope: 0,
            reported_scopes: HashSet::new(),
            ranks: HashMap::new(),
            expired: scopes::Expired::default(),
            members: HashMap::new(),
            cleared: BTreeSet::new(),
            addresses: HashMap::new(),
            entries,
            dropped: Dropped::default(),
            evictions: Evictions::default(),
        }
    }

    /// Who holds what.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The tenants' policies.
    pub fn policies(&self) -> &Policies {
        &self.policies
    }

    /// What bounds it.
    pub fn limits(&self) -> &PublisherLimits {
        &self.limits
    }

    /// The changes since they were last taken, in order.
    pub fn take_changes(&mut self) -> Vec<Observation> {
        std::mem::take(&mut self.changes)
    }

    /// What was left out so far.
    pub fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    /// What went so far to make room, or by age.
    pub fn evictions(&self) -> &Evictions {
        &self.evictions
    }

    /// Makes a change.
    fn commit(&mut self, observation: Observation) {
        self.sequence += 1;
        self.index.apply(self.sequence, observation.clone());
        changes::push(&mut self.changes, observation);
    }
}

#[cfg(test)]
mod tests;
