//! The shared log as a [`Server`]: a hub that takes in what is reported, a leader that commits it, and two followers that
//! are asked.
//!
//! The hub keeps no limits: no cap, no quotas, no expiry. Those are the leader's, as the plugin's configuration has them;
//! policies come over the stream. What followers deliver is credited by one of them, by turns. Both must say the same.

use std::collections::{BTreeMap, BTreeSet};

use warmroute::config::FilterConfig;
use warmroute::flow::credits::Hit;
use warmroute::flow::follower::View;
use warmroute::flow::metrics::{self, Evicted};
use warmroute::index::Index;
use warmroute::observation::{BlockKey, Member, Observation, RESERVED_TENANT, ReplicaSlot, Scope, Tier};
use warmroute::publisher::Publisher;
use warmroute::request::RequestChain;
use warmroute::routing::decision::RankedReplica;
use warmroute::routing::lookup::Answer;
use warmroute::routing::policy::Eviction;
use warmroute::routing::reason::ReasonCode;

use crate::cases::Server;
use crate::cases::format::{self, Case, Config, Step, Tenant};
use crate::cases::messages::{CacheState, Counts, Entry, Event, Float, Lookup, Response, Update};
use crate::cases::replay::{Mismatch, Outcome, replay};
use crate::cases::settings;
use crate::core::{Core, is_reserved, response, scope_of, unanswered};
use crate::vms::dump;
use crate::vms::fleet::{Fleet, QUIET_ROUNDS};
use crate::vms::proxy::Proxy;

/// How often the hub is heard while time passes: a longer leap is a clock that was set.
const HEARD_EVERY_MS: i64 = 30_000;
/// Which VM is what. The leader is never asked, so that it is the one that leads.
const LEADER: usize = 0;
/// Follows the log step by step.
const STEADY: usize = 1;
/// Follows it only when it is looked up in, so that it often finds that the ring has moved on.
const LATE: usize = 2;
/// So few that a case passes the ring's end.
const SEGMENTS: u64 = 4;
const PAGES: u64 = 64;
/// Stands for no limit.
const MOST_ENTRIES: u64 = 16_000_000;
/// Ticks in which every page's share of an index is swept.
const SWEEP_TICKS: usize = 300;

/// What of a case is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    CountLowered,
    QuotasChange,
    ShareOutOfRange,
    TenantEvictions,
}

/// What is put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    None,
    /// The leader has no limits.
    LimitsIgnored,
    /// What followers deliver is never credited.
    CreditsLost,
}

/// The log, set up for one case.
struct Log {
    /// The hub, and the clock.
    hub: Core,
    fleet: Fleet,
    defect: Defect,
    lookups: usize,
    /// Something is on its way that no step has waited for.
    unsettled: bool,
    /// The followers whose hits no step has waited for.
    hit: BTreeSet<usize>,
    /// The hub has not swept since the case did.
    sweep_due: bool,
    problems: Vec<String>,
}

/// Why the case cannot be replayed through the log.
pub fn inexpressible(case: &Case) -> Option<LeftOut> {
    case.steps.iter().find_map(|step| match step {
        Step::Policies { tenants: Some(_), .. } => Some(LeftOut::QuotasChange),
        Step::Ingest(Update { stats: Some(stats), .. }) => {
            let is_beyond = |share: Float| share.0.is_finite() && !(0.0..=1.0).contains(&share.0);
            [stats.pressure, stats.hit_rate].into_iter().any(is_beyond).then_some(LeftOut::ShareOutOfRange)
        }
        _ => None,
    })
}

/// Takes out of the case what cannot be said or asked through the log, and says why.
pub fn leave_out(case: &mut Case) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    if let Some(lowers) = case.steps.iter().position(|step| lowers_a_count(step, &case.steps)) {
        case.steps.truncate(lowers);
        left_out.push(LeftOut::CountLowered);
    }
    for step in &mut case.steps {
        if let Step::Counts { expect } = step
            && !std::mem::take(&mut expect.tenant_evictions).is_empty()
        {
            left_out.push(LeftOut::TenantEvictions);
        }
    }
    left_out
}

/// Whether the step sets an entry's count below what one of `steps` sets it to.
fn lowers_a_count(step: &Step, steps: &[Step]) -> bool {
    let Step::SetAccessCount { entry, count } = step else { return false };
    let name = |entry: &Entry| format!("{entry:?}");
    steps.iter().take_while(|other| !std::ptr::eq(*other, step)).any(|other| match other {
        Step::SetAccessCount { entry: earlier, count: before } => name(earlier) == name(entry) && before > count,
        _ => false,
    })
}

/// Replays the case through the log, and says how often a follower had to load pages since the ring had moved on.
pub fn replayed(case: &Case, defect: Defect) -> (Outcome, u64) {
    match Log::new(&case.config, defect) {
        Ok(mut log) => {
            let mut outcome = replay(case, &mut log);
            let problems = log.problems.into_iter().flat_map(|problem| Outcome::failed(problem).mismatches);
            outcome.mismatches.extend(problems.collect::<Vec<Mismatch>>());
            (outcome, log.fleet.proxy.counted(metrics::FELL_OFF))
        }
        Err(error) => (Outcome::failed(error), 0),
    }
}

// === impl LeftOut ===

impl LeftOut {
    pub fn as_str(self) -> &'static str {
        match self {
            LeftOut::CountLowered => "the rest of a case lowers a count of hits, which hits only raise",
            LeftOut::QuotasChange => "a case changes quotas, which are configuration: another one has a log of its own",
            LeftOut::TenantEvictions => "a step asks how much went of one tenant, which no VM counts",
            LeftOut::ShareOutOfRange => "a case reports a share below 0 or above 1, which the stream does not carry",
        }
    }
}

// === impl Log ===

impl Log {
    fn new(config: &Config, defect: Defect) -> Result<Log, String> {
        let plugin = plugin_config(config, defect)?;
        let unlimited = Config { max_entries: Some(0), tenants: Vec::new(), ..config.clone() };
        let hub = Core::new(&unlimited);
        let proxy = Proxy::at(hub.now_ms);
        let fleet = Fleet::new(proxy, plugin, 3);
        let mut log = Log {
            hub,
            fleet,
            defect,
            lookups: 0,
            unsettled: true,
            hit: BTreeSet::new(),
            sweep_due: false,
            problems: Vec::new(),
        };
        log.settle();
        // From the first request on a VM serves, and looks after its index.
        for vm in [STEADY, LATE] {
            let _ = log.fleet.ask(vm);
        }
        Ok(log)
    }

    /// Publishes what the hub has to say, and waits until every VM that follows has heard it.
    fn settle(&mut self) {
        let changes = self.hub.publisher.take_changes();
        if !changes.is_empty() {
            self.fleet.hub.publish(&self.fleet.proxy, changes);
            self.unsettled = true;
        }
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let Log { hub, fleet, problems, .. } = self;
        let state = || state(&hub.publisher);
        let hit = std::mem::take(&mut self.hit);
        // What expires is swept by ticks, and is to stay until the case's own sweep.
        [STEADY, LATE].into_iter().for_each(|vm| fleet.stall(vm, !hit.contains(&vm)));
        if !hit.is_empty() {
            fleet.collect_hits(&state);
        }
        let settled = fleet.settle(&state, QUIET_ROUNDS);
        [STEADY, LATE].into_iter().for_each(|vm| fleet.stall(vm, false));
        let _ = fleet.ask(STEADY);
        problems.extend(settled.err());
    }

    /// What a follower answers.
    fn answer(&mut self, vm: usize, lookup: &Lookup) -> Result<Answer, String> {
        let config = self.fleet.config().clone();
        let known = self.fleet.ask(vm);
        if known.is_stale(config.freshness.stale_after_ms, self.hub.now_ms) {
            return Err(format!("VM {vm} has not heard of the hub"));
        }
        let View::Index(index) = known.view else { return Err(format!("VM {vm} has not caught up")) };
        let published = |tenant_id: Option<&str>| index.dictionary().policy(tenant_id);
        let policy = config.policies.effective(&lookup.request.tenant_id, published);
        let answer = self.hub.answer(index, policy, lookup);
        let counts = policy.eviction == Eviction::Lfu && answer.decision.reason == ReasonCode::PrefixMatch;
        let slot = index.dictionary().scope_slot(&self.hub.request(&lookup.request).scope);
        if let (true, Some(slot), Some(chain)) = (counts && self.credits() == vm, slot, &answer.chain)
            && let Some(hit) = Hit::new(slot, chain, &answer.decision.ranked)
        {
            self.delivered(vm, hit);
        }
        Ok(answer)
    }

    /// The follower whose hits count: both answer, but only one request was made.
    fn credits(&self) -> usize {
        if self.lookups.is_multiple_of(2) { STEADY } else { LATE }
    }

    fn delivered(&mut self, vm: usize, hit: Hit) {
        if self.defect != Defect::CreditsLost {
            self.fleet.delivered(vm, hit);
            self.hit.insert(vm);
            self.unsettled = true;
        }
    }

    fn with_index<T>(&mut self, look: impl FnOnce(&Index) -> T) -> Option<T> {
        self.settle();
        match self.fleet.ask(STEADY).view {
            View::Index(index) => Some(look(index)),
            View::CatchingUp => {
                self.problems.push("a follower has not caught up".into());
                None
            }
        }
    }
}

impl Server for Log {
    fn ingest(&mut self, update: &Update) {
        self.settle();
        self.hub.ingest(update);
        self.settle();
    }

    fn event(&mut self, event: &Event) {
        self.settle();
        self.hub.event(event);
        self.settle();
    }

    fn lookup(&mut self, lookup: &Lookup) -> Response {
        if is_reserved(lookup) {
            return unanswered();
        }
        self.lookups += 1;
        let (one, other) = (self.answer(STEADY, lookup), self.answer(LATE, lookup));
        match (one, other) {
            (Ok(one), Ok(other)) => {
                let [one, other] = [one, other].map(|answer| response(lookup, answer));
                if one != other {
                    self.problems.push(format!("lookup {}: {one:?} and {other:?}", self.lookups));
                }
                one
            }
            (one, other) => {
                self.problems.extend(one.err());
                self.problems.extend(other.err());
                Response::default()
            }
        }
    }

    fn cache_state(&mut self, model_id: &str, tenant_id: &str) -> CacheState {
        if std::mem::take(&mut self.sweep_due) {
            self.hub.sweep();
            self.settle();
        }
        let state = self.hub.cache_state(model_id, tenant_id);
        let held = |index: &Index| {
            let rows = dump::rows(index).into_iter();
            let own = rows.filter(|row| (&*row.scope.tenant_id, &*row.scope.model_id) == (tenant_id, model_id));
            signed(own.map(|row| (row.scope, row.key)).collect::<BTreeSet<_>>().len() as u64)
        };
        CacheState { total_prefixes: self.with_index(held).unwrap_or(-1), ..state }
    }

    fn set_policies(&mut self, policies: &[format::Policy], _: Option<&[Tenant]>) {
        self.settle();
        self.hub.set_policies(policies, None);
        self.settle();
    }

    /// The hub is heard all the while, and nobody ticks: what expires stays until the sweep.
    fn advance(&mut self, ms: i64) {
        self.settle();
        let mut left = ms;
        while left != 0 {
            let passed = left.clamp(-HEARD_EVERY_MS, HEARD_EVERY_MS);
            left -= passed;
            self.hub.advance(passed);
            let Fleet { proxy, hub, .. } = &mut self.fleet;
            proxy.set_clock(self.hub.now_ms);
            hub.heartbeat(proxy);
            self.fleet.deliver(LEADER, usize::MAX);
        }
    }

    fn sweep(&mut self) {
        self.settle();
        for _ in 0..SWEEP_TICKS {
            self.fleet.round(&|| state(&self.hub.publisher));
        }
        self.sweep_due = true;
    }

    fn counts(&mut self) -> Option<Counts> {
        let counts = self.with_index(counts)?;
        Some(Counts { index_evictions: evictions(&self.fleet.proxy), ..counts })
    }

    fn access_count(&mut self, entry: &Entry) -> Option<i64> {
        self.with_index(|index| access_count(index, entry).map_or(-1, i64::from))
    }

    /// As many hits as are missing, whatever the policy is: they count under a policy that goes by them.
    fn set_access_count(&mut self, entry: &Entry, count: i64) {
        let missing = self.with_index(|index| {
            let replica = newest(index, entry)?;
            let scope = index.dictionary().scope_slot(&scope_of(entry))?;
            let missing = count - i64::from(access_count(index, entry)?);
            Some((scope, replica, missing))
        });
        let Some((scope, replica, missing)) = missing.flatten() else { return };
        let chain = RequestChain::Exact { key: BlockKey::of_request(&entry.prefix_hash.0) };
        if let Some(hit) = Hit::new(scope, &chain, &[matched(replica)]) {
            (0..missing).for_each(|_| self.delivered(STEADY, hit.clone()));
        }
    }
}

/// The plugin's configuration that the case's set-up stands for.
fn plugin_config(config: &Config, defect: Defect) -> Result<FilterConfig, String> {
    let cap = config.max_entries.filter(|cap| *cap > 0 && defect != Defect::LimitsIgnored).unwrap_or(MOST_ENTRIES);
    let mut quotas = settings::quotas(&config.tenants);
    quotas.retain(|_, _| defect != Defect::LimitsIgnored);
    let json = serde_json::json!({
        "hub_cluster": "hub",
        "models": [{ "model_id": "m" }],
        "limits": { "pages": PAGES, "log_segments": SEGMENTS, "max_index_entries": cap },
        "quotas": quotas,
    });
    FilterConfig::from_json(json.to_string().as_bytes()).map_err(|problems| format!("{problems:?}"))
}

/// Observations that rebuild all that a hub knows.
fn state(publisher: &Publisher) -> Vec<Observation> {
    let dictionary = publisher.index().dictionary();
    let scopes = dictionary.scopes().map(|(slot, scope)| Observation::Scope { slot, scope: scope.clone() });
    let policies = dictionary.policies().map(|(tenant_id, policy)| Observation::Policy {
        tenant_id: tenant_id.map(str::to_owned),
        policy: policy.clone(),
    });
    scopes.chain(policies).chain(publisher.reported_observations()).collect()
}

/// What counts, block by block: what a generation that has ended held is forgotten in steps.
fn counts(index: &Index) -> Counts {
    let rows = dump::rows(index);
    let keys: BTreeSet<(&Scope, &BlockKey)> = rows.iter().map(|row| (&row.scope, &row.key)).collect();
    let mut counts = Counts {
        prefix_keys: signed(keys.len() as u64),
        replica_entries: signed(rows.len() as u64),
        ..Counts::default()
    };
    for (scope, _) in keys.iter().filter(|(scope, _)| scope.tenant_id != RESERVED_TENANT) {
        counts.total += 1;
        *counts.by_tenant.entry(scope.tenant_id.clone()).or_default() += 1;
        *counts.by_model.entry(scope.model_id.clone()).or_default() += 1;
    }
    counts
}

/// What the leader took away to make room, or found too old.
fn evictions(proxy: &Proxy) -> BTreeMap<String, i64> {
    let algorithms = [("lru", Eviction::Lru), ("lfu", Eviction::Lfu)];
    let reasons = [("cap", Evicted::Cap), ("ttl", Evicted::Ttl)];
    let pairs = algorithms.iter().flat_map(|algorithm| reasons.iter().map(move |reason| (algorithm, reason)));
    let counted = pairs.map(|((algorithm, eviction), (reason, evicted))| {
        let counted = proxy.counted(&metrics::evictions(*eviction, *evicted));
        (format!("{algorithm}|{reason}"), signed(counted))
    });
    counted.collect()
}

fn access_count(index: &Index, entry: &Entry) -> Option<u32> {
    let scope = index.dictionary().scope_slot(&scope_of(entry))?;
    let key = BlockKey::of_request(&entry.prefix_hash.0);
    Some(index.holder(scope, &key, newest(index, entry)?)?.access_count)
}

/// The generation that counts.
fn newest(index: &Index, entry: &Entry) -> Option<ReplicaSlot> {
    let member = Member::new(&*entry.tenant_id, &*entry.model_id, &*entry.replica_id);
    let dictionary = index.dictionary();
    dictionary.generations(&member).filter(|slot| dictionary.complete_replica(*slot).is_some()).max()
}

/// A replica that matched one block.
fn matched(replica: ReplicaSlot) -> RankedReplica {
    RankedReplica {
        replica,
        replica_id: "".into(),
        address: "".into(),
        score: 0.0,
        matched_tokens: 0,
        matched_blocks: 1,
        hit_probability: 0.0,
        tier: Tier::T1,
        data_parallel_rank: None,
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
