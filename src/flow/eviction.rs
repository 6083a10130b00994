//! The leader's eviction: what goes to keep the cap, the tenants' quotas and the bound of memory.
//!
//! Only the leader decides, and what goes reaches the other VMs as records of the log. The orders in which things go are
//! built in steps as soon as a bound comes near, and kept from then on; until they are complete, an index that is full
//! takes nothing more.

use std::collections::BTreeMap;

use super::follower::Follower;
use super::keys::Keys;
use super::lease::{Deposed, Lease};
use super::metrics::{self, Evicted};
use crate::config::FilterConfig;
use crate::host::Host;
use crate::index::Index;
use crate::index::log::Head;
use crate::index::victims::{Order, Prefixes, Victim};
use crate::observation::{Observation, RESERVED_TENANT, ReplicaSlot, Scope, ScopeSlot};
use crate::routing::policy::{Eviction, Policy};

/// Pairs, or blocks with all their holders, that go with one commit.
const AT_ONCE: usize = 1_024;
/// Runs and stretches that are ordered between two looks at the clock.
const BUILD_STEP: usize = 256;

/// What keeps the index within its bounds.
#[derive(Debug, Default)]
pub struct Evictor {
    orders: Option<Orders>,
}

#[derive(Debug)]
struct Orders {
    order: Order,
    prefixes: Prefixes,
    built: bool,
}

/// How far beyond its bounds an index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Excess {
    pairs: u64,
    memory: bool,
}

// === impl Evictor ===

impl Evictor {
    /// Whether what is too much can go, so that more can be taken in at the cap.
    pub fn is_ready(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.built)
    }

    /// Takes note of records that were committed.
    pub fn committed(&mut self, records: &[Observation]) {
        let policies =
            |record: &Observation| matches!(record, Observation::Policy { .. } | Observation::PolicyGone { .. });
        // What hits count for may be different now: the orders are made anew.
        if records.iter().any(policies) {
            self.orders = None;
        }
    }

    /// Goes on with the orders, and commits what has to go, until `until_ns`. For the cap neither pairs of generations that
    /// `superseded` names count, which are about to end, nor those of the reserved tenant.
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
        let Some(index) = follower.index_mut_of(lease.head()) else { return Ok(()) };
        if !self.is_needed(index, config) {
            index.stop_journal();
            self.orders = None;
            return Ok(());
        }
        let changes = index.take_journal();
        let index = &*index;
        let is_lfu = |scope: &Scope| policy(index, config, scope).eviction == Eviction::Lfu;
        let orders = self.orders.get_or_insert_with(|| Orders::new(config));
        orders.order.note(index, &changes, is_lfu);
        orders.prefixes.note(index, &changes);
        while !orders.built {
            let all = orders.order.build(index, BUILD_STEP, is_lfu) & orders.prefixes.build(index, BUILD_STEP);
            orders.built = all;
            if host.now_ns() >= until_ns {
                break;
            }
        }
        if !orders.built {
            return Ok(());
        }
        orders.make_certain(host, lease, follower, config, until_ns);
        for tenant_id in config.quotas.keys() {
            orders.keep_quota(host, keys, lease, follower, (config, tenant_id), until_ns)?;
        }
        orders.keep_cap(host, keys, lease, follower, (config, superseded), until_ns)
    }

    /// The orders cost memory and time: they are kept only from three quarters of a bound on.
    fn is_needed(&self, index: &Index, config: &FilterConfig) -> bool {
        let near = |bound: usize| bound as u64 / 4 * 3;
        let relieved = |bound: usize| bound as u64 / 2;
        let bytes = || index.size().bytes;
        let limits = &config.limits;
        let (pairs, memory) = match self.orders {
            None => (near(limits.max_index_entries), near(limits.max_index_bytes)),
            Some(_) => (relieved(limits.max_index_entries), relieved(limits.max_index_bytes)),
        };
        !config.quotas.is_empty() || index.pairs() > pairs || bytes() > memory
    }
}

// === impl Orders ===

impl Orders {
    fn new(config: &FilterConfig) -> Orders {
        Orders { order: Order::default(), prefixes: Prefixes::new(config.quotas.keys()), built: false }
    }

    /// Finds out how much a tenant has that seems to have too much, ended generations left out.
    fn make_certain(
        &mut self,
        host: &impl Host,
        lease: &Lease,
        follower: &mut Follower,
        config: &FilterConfig,
        until_ns: u64,
    ) {
        let Some(index) = follower.index_mut_of(lease.head()) else { return };
        let is_uncertain = |index: &Index| {
            config.quotas.iter().any(|(tenant_id, quota)| {
                let most = blocks_of(index, tenant_id, Index::keys_of);
                most > *quota && blocks_of(index, tenant_id, Index::keys_at_least) < most
            })
        };
        while is_uncertain(index) && !index.drop_ended(BUILD_STEP) && host.now_ns() < until_ns {}
        self.catch_up(follower, lease.head(), config);
    }

    fn keep_quota(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        (config, tenant_id): (&FilterConfig, &str),
        until_ns: u64,
    ) -> Result<(), Deposed> {
        let quota = config.quotas.get(tenant_id).copied().unwrap_or(u64::MAX);
        while lease.has_room() && host.now_ns() < until_ns {
            let Some(index) = follower.index_of(lease.head()) else { break };
            // What of it only ended generations hold may not be known yet: a tenant never loses what it may keep.
            let excess = blocks_of(index, tenant_id, Index::keys_at_least).saturating_sub(quota);
            let max = usize::try_from(excess).unwrap_or(usize::MAX).min(AT_ONCE);
            let victims = if max > 0 { self.prefixes.next(index, tenant_id, max) } else { Vec::new() };
            if victims.is_empty() {
                break;
            }
            evict(host, keys, lease, follower, (config, Evicted::Quota), victims)?;
            self.catch_up(follower, lease.head(), config);
        }
        Ok(())
    }

    fn keep_cap(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        (config, superseded): (&FilterConfig, &[ReplicaSlot]),
        until_ns: u64,
    ) -> Result<(), Deposed> {
        while lease.has_room() && host.now_ns() < until_ns {
            let Some(index) = follower.index_of(lease.head()) else { break };
            let excess = Excess::of(index, config, superseded);
            let max =
                if excess.memory { AT_ONCE } else { usize::try_from(excess.pairs).unwrap_or(AT_ONCE).min(AT_ONCE) };
            if max == 0 {
                break;
            }
            let counts = |replica: ReplicaSlot| excess.memory || !superseded.contains(&replica);
            let victims = self.order.next(index, max, counts);
            if victims.is_empty() {
                break;
            }
            let reason = if excess.pairs > 0 { Evicted::Cap } else { Evicted::Memory };
            evict(host, keys, lease, follower, (config, reason), victims)?;
            self.catch_up(follower, lease.head(), config);
        }
        Ok(())
    }

    /// Takes in what the last commit changed.
    fn catch_up(&mut self, follower: &mut Follower, head: &Head, config: &FilterConfig) {
        let Some(index) = follower.index_mut_of(head) else { return };
        let changes = index.take_journal();
        let index = &*index;
        self.order.note(index, &changes, |scope| policy(index, config, scope).eviction == Eviction::Lfu);
        self.prefixes.note(index, &changes);
    }
}

// === impl Excess ===

impl Excess {
    fn of(index: &Index, config: &FilterConfig, superseded: &[ReplicaSlot]) -> Excess {
        let reserved = index.dictionary().members_of_tenant(RESERVED_TENANT);
        let reserved = reserved.filter(|replica| !superseded.contains(replica));
        let uncounted = superseded.iter().copied().chain(reserved).map(|replica| index.pairs_of(replica)).sum();
        let counted = index.pairs().saturating_sub(uncounted);
        Excess {
            pairs: counted.saturating_sub(config.limits.max_index_entries as u64),
            memory: index.size().bytes > config.limits.max_index_bytes as u64,
        }
    }
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
    let mut by_algorithm = [(Eviction::Lru, 0), (Eviction::Lfu, 0)];
    if let Some(index) = follower.index_of(lease.head()) {
        for victim in &victims {
            let Some(scope) = index.dictionary().scope(victim.scope) else { continue };
            let algorithm = policy(index, config, scope).eviction;
            by_algorithm.iter_mut().filter(|(counted, _)| *counted == algorithm).for_each(|(_, pairs)| *pairs += 1);
        }
    }
    // What is of one replica and scope goes together: within one commit the order says nothing any more.
    let mut gone: BTreeMap<(ReplicaSlot, ScopeSlot, usize), Vec<_>> = BTreeMap::new();
    for Victim { scope, key, replica } in victims {
        gone.entry((replica, scope, key.width())).or_default().push(key);
    }
    let gone = gone.into_iter().map(|((replica, scope, _), keys)| Observation::Removed { replica, scope, keys });
    lease.commit(host, keys, follower, gone.collect(), |_| {})?;
    by_algorithm.iter().for_each(|(algorithm, pairs)| metrics::count_evictions(host, *algorithm, reason, *pairs));
    Ok(())
}

/// The policy that a scope's blocks are held under.
pub fn policy<'a>(index: &'a Index, config: &'a FilterConfig, scope: &Scope) -> &'a Policy {
    config.policies.effective(&scope.tenant_id, |tenant_id| index.dictionary().policy(tenant_id))
}

/// Distinct blocks that are held for a tenant, as `keys` counts them in a scope.
fn blocks_of(index: &Index, tenant_id: &str, keys: impl Fn(&Index, ScopeSlot) -> u64) -> u64 {
    let scopes = index.dictionary().scopes().filter(|(_, scope)| scope.tenant_id == tenant_id);
    scopes.map(|(slot, _)| keys(index, slot)).sum()
}

#[cfg(test)]
mod tests;
