//! The leader's eviction: what goes to keep the cap, the tenants' quotas and the bound of memory.
//!
//! Only the leader decides, and what goes reaches the other VMs as records of the log. The orders in which things go are
//! built in steps as soon as a bound comes near, kept from then on, and built anew beside the old ones when they have grown.
//! While more is to go than a step can let go of, [nothing more is taken in](Evictor::is_behind).

use std::collections::{BTreeMap, BTreeSet};

use super::follower::Follower;
use super::keys::Keys;
use super::lease::{Deposed, Lease};
use super::metrics::{self, Evicted};
use crate::config::FilterConfig;
use crate::host::Host;
use crate::index::Index;
use crate::index::dictionary::Dictionary;
use crate::index::runs::Change;
use crate::index::victims::{Order, Prefixes, Victim};
use crate::observation::{Observation, RESERVED_TENANT, ReplicaSlot, Scope, ScopeSlot};
use crate::routing::policy::{Eviction, Policy};

/// Pairs that go with one commit, but for the other holders of a block that goes everywhere.
const AT_ONCE: usize = 512;
/// Runs and stretches that are ordered between two looks at the clock.
const BUILD_STEP: usize = 256;
/// Orders with fewer entries are not built anew.
const FEW_ENTRIES: usize = 1 << 16;
/// Bytes that an entry of an order takes, about.
const ENTRY_BYTES: u64 = 24;

/// What keeps the index within its bounds.
#[derive(Debug, Default)]
pub struct Evictor {
    /// The orders that say what goes, once they are complete.
    complete: Option<Orders>,
    /// Orders that are being built.
    building: Option<Orders>,
    /// More is to go than the last step could let go of.
    behind: bool,
    /// Generations that the orders have left out, since they were about to end.
    left_out: BTreeSet<ReplicaSlot>,
    /// The quota to begin with next time.
    next_quota: usize,
}

#[derive(Debug)]
struct Orders {
    order: Order,
    prefixes: Prefixes,
    /// Entries when they were complete.
    entries: usize,
}

/// How far beyond its bounds an index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    pairs: u64,
    memory: bool,
}

/// Pairs that went, by the algorithm of their tenant's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByAlgorithm {
    lru: u64,
    lfu: u64,
}

/// What a step of eviction is made with.
struct Step<'a, H: Host> {
    host: &'a H,
    keys: &'a Keys,
    lease: &'a mut Lease,
    follower: &'a mut Follower,
    config: &'a FilterConfig,
    /// Generations that are about to end, in order.
    superseded: &'a [ReplicaSlot],
    until_ns: u64,
}

// === impl Evictor ===

impl Evictor {
    /// Whether what is too much can go, so that more can be taken in at the cap.
    pub fn is_ready(&self) -> bool {
        self.complete.is_some()
    }

    /// Whether so much is to go that nothing more should be taken in.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Takes note of records that were committed.
    pub fn committed(&mut self, records: &[Observation]) {
        let policies =
            |record: &Observation| matches!(record, Observation::Policy { .. } | Observation::PolicyGone { .. });
        // What hits count for may be different now: the orders are made anew.
        if records.iter().any(policies) {
            self.complete = None;
            self.building = None;
        }
    }

    /// Goes on with the orders, and commits what has to go: one piece of it, and more until `until_ns`. For the cap neither
    /// pairs of generations that `superseded` names count, which are about to end, nor those of the reserved tenant.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn step(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        (config, superseded): (&FilterConfig, &[ReplicaSlot]),
        until_ns: u64,
    ) -> Result<(), Deposed> {
        self.behind = false;
        let mut step = Step { host, keys, lease, follower, config, superseded, until_ns };
        if !self.keep_orders(&mut step) {
            return Ok(());
        }
        // The contract's order. Each lets at least one piece go, however late it is.
        let quotas_go_on = self.keep_quotas(&mut step)?;
        let cap_goes_on = self.keep_cap(&mut step)?;
        self.behind = cap_goes_on || quotas_go_on;
        Ok(())
    }

    /// Takes in what has changed, and builds what has to be built; true when there are complete orders.
    fn keep_orders<H: Host>(&mut self, step: &mut Step<'_, H>) -> bool {
        let Some(index) = step.follower.index_mut_of(step.lease.head()) else { return false };
        if !self.is_needed(index, step.config) {
            index.stop_journal();
            self.complete = None;
            self.building = None;
            return false;
        }
        let changes = index.take_journal();
        let index = &*index;
        self.note(index, step.config, &changes);
        // What is to stay after all counts again, and the orders do not have it any more.
        let stays = |replica: &ReplicaSlot| {
            !is_about_to_end(step.superseded, *replica) && index.dictionary().replica(*replica).is_some()
        };
        if self.left_out.iter().any(stays) {
            self.complete = None;
            self.building = None;
        }
        self.left_out = step.superseded.iter().copied().collect();
        let grown = self.complete.as_ref().is_none_or(Orders::has_grown);
        if grown && self.building.is_none() {
            self.building = Some(Orders::new(step.config));
        }
        while let Some(building) = &mut self.building {
            if building.build(index, step.config) {
                self.complete = self.building.take();
            }
            if step.host.now_ns() >= step.until_ns {
                break;
            }
        }
        self.complete.is_some()
    }

    fn note(&mut self, index: &Index, config: &FilterConfig, changes: &[Change]) {
        for orders in self.complete.iter_mut().chain(&mut self.building) {
            orders.order.note(index, changes, |scope| counts_hits(index.dictionary(), config, scope));
            orders.prefixes.note(index, changes);
        }
    }

    /// The orders cost memory and time: they are kept only from three quarters of a bound on.
    pub fn is_needed(&self, index: &Index, config: &FilterConfig) -> bool {
        let near = |bound: usize| bound as u64 / 4 * 3;
        let relieved = |bound: usize| bound as u64 / 2;
        let limits = &config.limits;
        let (pairs, memory) = match (&self.complete, &self.building) {
            (None, None) => (near(limits.max_index_entries), near(limits.max_index_bytes)),
            _ => (relieved(limits.max_index_entries), relieved(limits.max_index_bytes)),
        };
        !config.quotas.is_empty() || index.pairs() > pairs || index.size().bytes > memory
    }

    /// Finds out how much a tenant has that seems to have too much, ended generations left out, as far as time allows.
    fn make_certain<H: Host>(&mut self, step: &mut Step<'_, H>) {
        let config = step.config;
        let Some(index) = step.follower.index_mut_of(step.lease.head()) else { return };
        let is_uncertain =
            |index: &Index| config.quotas.iter().any(|(tenant_id, quota)| index.may_exceed(tenant_id, *quota));
        while is_uncertain(index) && !index.drop_ended(BUILD_STEP) && step.host.now_ns() < step.until_ns {}
        let changes = index.take_journal();
        self.note(index, config, &changes);
    }

    /// True if time was up before the quotas were kept.
    fn keep_quotas<H: Host>(&mut self, step: &mut Step<'_, H>) -> Result<bool, Deposed> {
        self.make_certain(step);
        let tenants = step.config.quotas.len();
        for _ in 0..tenants {
            let at = self.next_quota % tenants.max(1);
            let Some((tenant_id, quota)) = step.config.quotas.iter().nth(at) else { break };
            // At least one piece goes of each that is looked at.
            loop {
                let Some(index) = step.follower.index_of(step.lease.head()) else { return Ok(false) };
                let before = index.keys_of_tenant(tenant_id);
                let excess = before.saturating_sub(*quota);
                let blocks = usize::try_from(excess).unwrap_or(AT_ONCE).min(AT_ONCE);
                if blocks == 0 {
                    break;
                }
                // What is asked for has to go.
                if !step.lease.has_room() {
                    return Ok(true);
                }
                let Some(orders) = &mut self.complete else { return Ok(false) };
                let victims = orders.prefixes.next(index, tenant_id, blocks, AT_ONCE);
                if victims.is_empty() {
                    break;
                }
                self.evict(step, Evicted::Quota, victims)?;
                if step.is_over() {
                    return Ok(true);
                }
                // Nothing comes of it in a page that others forged to be true of more than the log: it takes no removal until then.
                let after =
                    step.follower.index_of(step.lease.head()).map_or(0, |index| index.keys_of_tenant(tenant_id));
                if after >= before {
                    break;
                }
            }
            self.next_quota = at + 1;
            if step.is_over() {
                // The others have their turn next time; they are not known to have too much.
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// True if time was up before the cap and the bound of memory were kept.
    fn keep_cap<H: Host>(&mut self, step: &mut Step<'_, H>) -> Result<bool, Deposed> {
        loop {
            let Some(index) = step.follower.index_of(step.lease.head()) else { return Ok(false) };
            let Some(orders) = &mut self.complete else { return Ok(false) };
            let excess = Excess::of(index, step.config, step.superseded, orders.entries());
            let pairs = usize::try_from(excess.pairs).unwrap_or(AT_ONCE).min(AT_ONCE);
            let max = if excess.memory { AT_ONCE } else { pairs };
            if max == 0 {
                return Ok(false);
            }
            if !step.lease.has_room() {
                return Ok(true);
            }
            let superseded = step.superseded;
            let counts = |replica: ReplicaSlot| excess.pairs == 0 || !is_about_to_end(superseded, replica);
            let victims = orders.order.next(index, max, counts);
            if victims.is_empty() {
                return Ok(false);
            }
            let reason = if excess.pairs > 0 { Evicted::Cap } else { Evicted::Memory };
            self.evict(step, reason, victims)?;
            if step.is_over() {
                return Ok(true);
            }
        }
    }

    fn evict<H: Host>(&mut self, step: &mut Step<'_, H>, reason: Evicted, victims: Vec<Victim>) -> Result<(), Deposed> {
        let config = step.config;
        evict(step.host, step.keys, step.lease, step.follower, (config, reason), victims)?;
        if let Some(index) = step.follower.index_mut_of(step.lease.head()) {
            let changes = index.take_journal();
            self.note(index, config, &changes);
        }
        Ok(())
    }
}

// === impl Step ===

impl<H: Host> Step<'_, H> {
    fn is_over(&self) -> bool {
        self.host.now_ns() >= self.until_ns
    }
}

// === impl Orders ===

impl Orders {
    fn new(config: &FilterConfig) -> Orders {
        Orders { order: Order::default(), prefixes: Prefixes::new(config.quotas.keys()), entries: 0 }
    }

    /// Goes on; true when they are complete.
    fn build(&mut self, index: &Index, config: &FilterConfig) -> bool {
        let is_lfu = |scope: &Scope| counts_hits(index.dictionary(), config, scope);
        let complete = self.order.build(index, BUILD_STEP, is_lfu) & self.prefixes.build(index, BUILD_STEP);
        self.entries = self.entries();
        complete
    }

    fn entries(&self) -> usize {
        self.order.len() + self.prefixes.len()
    }

    /// Whether most of it may no longer be true.
    fn has_grown(&self) -> bool {
        self.entries() > 2 * self.entries + FEW_ENTRIES
    }
}

// === impl Excess ===

impl Excess {
    /// Of an index with orders of `entries` entries beside it.
    fn of(index: &Index, config: &FilterConfig, superseded: &[ReplicaSlot], entries: usize) -> Excess {
        let cap = config.limits.max_index_entries as u64;
        // Pairs of generations that have ended may be among all; only at the cap it matters which count.
        let counted = if index.pairs() > cap { counted_pairs(index, superseded) } else { index.pairs() };
        let bytes = index.size().bytes + entries as u64 * ENTRY_BYTES;
        Excess {
            pairs: counted.saturating_sub(cap),
            // An index that holds nothing has nothing to give.
            memory: bytes > config.limits.max_index_bytes as u64 && index.pairs() > 0,
        }
    }
}

/// Pairs of generations that have not ended, but for those that are about to, and for those of the reserved tenant.
fn counted_pairs(index: &Index, superseded: &[ReplicaSlot]) -> u64 {
    let replicas = index.dictionary().replicas();
    let counts = replicas
        .filter(|(replica, known)| known.member.tenant_id != RESERVED_TENANT && !is_about_to_end(superseded, *replica));
    counts.map(|(replica, _)| index.pairs_of(replica)).sum()
}

/// Whether `superseded`, which is in order, names the generation.
fn is_about_to_end(superseded: &[ReplicaSlot], replica: ReplicaSlot) -> bool {
    superseded.binary_search(&replica).is_ok()
}

/// Commits that these pairs are gone, and counts them.
fn evict(
    host: &impl Host,
    keys: &Keys,
    lease: &mut Lease,
    follower: &mut Follower,
    (config, reason): (&FilterConfig, Evicted),
    victims: Vec<Victim>,
) -> Result<(), Deposed> {
    let mut gone_by = ByAlgorithm::default();
    if let Some(index) = follower.index_of(lease.head()) {
        for victim in &victims {
            gone_by.add(index.dictionary(), config, victim.scope, 1);
        }
    }
    // What is of one replica and scope goes together: within one commit the order says nothing any more.
    let mut gone: BTreeMap<(ReplicaSlot, ScopeSlot), Vec<_>> = BTreeMap::new();
    for Victim { scope, key, replica } in victims {
        gone.entry((replica, scope)).or_default().push(key);
    }
    let gone = gone.into_iter().map(|((replica, scope), keys)| Observation::Removed { replica, scope, keys });
    lease.commit(host, keys, follower, gone.collect(), |_| {})?;
    gone_by.count(host, reason);
    Ok(())
}

// === impl ByAlgorithm ===

impl ByAlgorithm {
    /// Notes that pairs of a scope went; of one without a name nobody knows the algorithm.
    pub fn add(&mut self, dictionary: &Dictionary, config: &FilterConfig, scope: ScopeSlot, pairs: u64) {
        let Some(scope) = dictionary.scope(scope) else { return };
        match policy(dictionary, config, scope).eviction {
            Eviction::Lru => self.lru += pairs,
            Eviction::Lfu => self.lfu += pairs,
        }
    }

    /// Counts what went for this reason.
    pub fn count(&self, host: &impl Host, reason: Evicted) {
        metrics::count_evictions(host, Eviction::Lru, reason, self.lru);
        metrics::count_evictions(host, Eviction::Lfu, reason, self.lfu);
    }
}

/// The policy that a scope's blocks are held under.
pub fn policy<'a>(dictionary: &'a Dictionary, config: &'a FilterConfig, scope: &Scope) -> &'a Policy {
    config.policies.effective(&scope.tenant_id, |tenant_id| dictionary.policy(tenant_id))
}

/// Whether hits count in a scope.
pub fn counts_hits(dictionary: &Dictionary, config: &FilterConfig, scope: &Scope) -> bool {
    policy(dictionary, config, scope).eviction == Eviction::Lfu
}

#[cfg(test)]
mod tests;
