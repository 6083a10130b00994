//! A history, run over a fleet and over the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use warmroute::config::FilterConfig;
use warmroute::fingerprint::BlockSize;
use warmroute::flow::credits::Hit;
use warmroute::flow::follower::View;
use warmroute::flow::keys::Keys;
use warmroute::flow::metrics;
use warmroute::host::{Cas, Host};
use warmroute::index::{Index, Pair};
use warmroute::observation::{Observation, Stored};
use warmroute::request::{ChainBlock, LookupRequest, NoTokenizer, PromptInput, RequestChain, WireChain};
use warmroute::routing::lookup::{Answer, Lookup, lookup_route};
use warmroute::routing::policy::{Eviction, Policy, Ranking};

use crate::bounded::{Bounded, Bounds, Flaw};
use crate::history::{Fate, History, Said, Step, TOKENS, VMS, key, scope};
use crate::hub::Hub;
use crate::vms::dump::{self, Row};
use crate::vms::fleet::Fleet;
use crate::vms::proxy::Proxy;

/// When the clock starts: Unix time in s.
const START_S: u64 = 1_700_000_000;
/// So long that all of an index is swept in a few ticks.
const TICK_MS: u64 = 10_000;
/// Rounds in which it is swept, from wherever the sweep is.
const SWEEP_ROUNDS: usize = 8;
/// Differences that are told.
const TOLD: usize = 4;

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub by_cap: u64,
    pub by_quota: u64,
    pub hits: u64,
    pub leaders: u64,
    pub fell_off: u64,
    /// Times that a VM was compared whose pages of blocks were loaded as of different log sequences.
    pub pages_of_ages: u64,
    /// Blocks with hits that another page lists than at the last comparison.
    pub moved: u64,
    /// Blocks that a VM and the oracle agreed on.
    pub compared: u64,
}

struct World {
    fleet: Fleet,
    hub: Hub,
    oracle: Bounded,
    now_s: u64,
    seen: Seen,
    /// Which page listed each block with hits at the last comparison.
    pages: BTreeMap<Pair, u16>,
}

/// Runs a history over both.
///
/// # Errors
/// What differs, and when.
pub fn run(history: &History, flaw: Flaw) -> Result<Seen, String> {
    let mut world = World::new(history, flaw);
    world.settle()?;
    for (at, step) in history.steps.iter().enumerate() {
        world.step(step).map_err(|problem| format!("step {at}: {problem}"))?;
    }
    world.step(&Step::Wake).map_err(|problem| format!("at the end: {problem}"))?;
    let proxy = &world.fleet.proxy;
    let (by_cap, by_quota) = world.oracle.evicted;
    let (leaders, fell_off) = (proxy.counted(metrics::LEADER_CHANGES), proxy.counted(metrics::FELL_OFF));
    Ok(Seen { by_cap, by_quota, leaders, fell_off, ..world.seen })
}

// === impl World ===

impl World {
    fn new(history: &History, flaw: Flaw) -> World {
        let mut json = serde_json::json!({
            "hub_cluster": "hub",
            "models": [{ "model_id": "m" }],
            // For so long a generation may wait for its successor to be complete.
            "stale_after_ms": 86_400_000,
            "policy": {
                "evictionTTL": format!("{}s", history.ttl_s),
                "minimumMatchedTokens": 0,
                "routingFloorScore": "0",
                "affinityRouting": "Disabled",
                "strategy": { "enableTenantHot": false },
            },
            "limits": {
                "tick_ms": TICK_MS,
                "catch_up_tick_ms": TICK_MS,
                "lease_ticks": 3,
                "pages": history.pages,
                "log_segments": history.segments,
            },
        });
        let Bounds { cap, quotas } = &history.bounds;
        if let Some(cap) = cap {
            json["limits"]["max_index_entries"] = (*cap).into();
        }
        if !quotas.is_empty() {
            json["quotas"] = serde_json::json!(quotas);
        }
        let config = FilterConfig::from_json(json.to_string().as_bytes()).unwrap();
        let policy = config.policies.default.clone();
        let mut world = World {
            fleet: Fleet::new(Proxy::default(), config, VMS),
            hub: Hub::new(policy.clone()),
            oracle: Bounded::new(history.bounds.clone(), policy, flaw),
            now_s: START_S,
            seen: Seen::default(),
            pages: BTreeMap::new(),
        };
        world.set_clock();
        world
    }

    fn now_ms(&self) -> u64 {
        // Reports are of some earlier part of a second.
        self.now_s * 1_000 + 999
    }

    fn set_clock(&mut self) {
        self.fleet.proxy.set_clock(self.now_ms());
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Say(said, fate) => self.say(said, *fate),
            Step::Wait(seconds) => {
                self.now_s += seconds;
                self.set_clock();
                self.fleet.hub.heartbeat(&self.fleet.proxy);
                self.settle()
            }
            Step::Hit { vm, chain, blocks } => self.hit(*vm, *chain, *blocks),
            Step::Stall(vm) => {
                if (0..VMS).any(|other| other != *vm && self.fleet.runs(other)) {
                    self.fleet.stall(*vm, true);
                }
                self.settle()
            }
            Step::Wake => {
                (0..VMS).for_each(|vm| self.fleet.stall(vm, false));
                self.settle()?;
                (0..VMS).try_for_each(|vm| self.check(vm))
            }
            Step::Spoil(page) => {
                let keys = Keys::new(&self.fleet.config().domain());
                let page = page % u64::from(self.fleet.config().limits.pages);
                // Somebody must lead who has read it.
                self.settle()?;
                self.fleet.proxy.shared_set(&keys.page(page as u32 + 1), b"spoilt", Cas(0));
                self.settle()
            }
            Step::Replace(vm) => {
                self.fleet.replace(*vm);
                self.settle()
            }
            Step::RestartHub => self.restart_hub(),
            Step::Check(vm) => self.check(*vm),
        }
    }

    /// Goes on until nothing more happens and every VM that runs has swept; the oracle does the same.
    fn settle(&mut self) -> Result<(), String> {
        let World { fleet, hub, .. } = self;
        fleet.settle(&|| hub.state(), SWEEP_ROUNDS)?;
        self.oracle.settle(self.now_ms());
        Ok(())
    }

    fn say(&mut self, said: &Said, fate: Fate) -> Result<(), String> {
        let observations = self.hub.say(said, self.now_s);
        if !observations.is_empty() {
            observations.iter().for_each(|observation| self.oracle.apply(observation));
            self.fleet.hub.publish(&self.fleet.proxy, observations);
        }
        self.meet(fate);
        self.settle()
    }

    /// Lets the leader go so far, and no further.
    fn meet(&mut self, fate: Fate) {
        let (Fate::Ends(steps) | Fate::Stalls(steps)) = fate else { return };
        let Some(leader) = self.fleet.leader() else { return };
        if (0..VMS).all(|vm| vm == leader || !self.fleet.runs(vm)) {
            return;
        }
        for step in 0..steps {
            match step % 2 {
                0 => self.fleet.deliver(leader, 1),
                _ => self.fleet.tick(leader),
            }
        }
        match fate {
            Fate::Ends(_) => self.fleet.replace(leader),
            _ => self.fleet.stall(leader, true),
        }
    }

    /// All is told again, in as many pieces as it takes; hits are forgotten with the generations that had them.
    fn restart_hub(&mut self) -> Result<(), String> {
        self.hub.restart(self.now_ms());
        let mut fresh = self.oracle.begin_again();
        self.hub.state().iter().for_each(|observation| fresh.apply(observation));
        self.oracle = fresh;
        self.fleet.restart_hub();
        // A stream that broke is opened again after a while.
        self.now_s += 4;
        self.set_clock();
        self.settle()
    }

    /// Asks a VM that runs, and counts what it delivers on both sides.
    fn hit(&mut self, vm: usize, chain: usize, blocks: u64) -> Result<(), String> {
        if !self.fleet.runs(vm) {
            return Ok(());
        }
        let (scope, now_ms) = (scope(chain), self.now_ms());
        let block = |block| ChainBlock { key: key(chain, block), tokens: TOKENS as i32 };
        let asked: Vec<ChainBlock> = (1..=blocks).map(block).collect();
        let policy = self.oracle.policy(&scope.tenant_id);
        if policy.eviction == Eviction::Lfu
            && let Some(slot) = self.hub.scope(chain)
        {
            // What has expired is gone.
            for (replica, run) in self.oracle.held.runs(slot, &RequestChain::Chain(asked.clone()), 0) {
                for block in asked.iter().take(run.tokens as usize / TOKENS as usize) {
                    self.oracle.hit(slot, &block.key, replica);
                    self.seen.hits += 1;
                }
            }
        }
        let request = LookupRequest {
            scope,
            prompt: PromptInput { chain: WireChain::Chain(asked), ..PromptInput::default() },
            block_size: BlockSize::DEFAULT,
            slo_ttft_ms: None,
        };
        let config = self.fleet.config().clone();
        let View::Index(index) = self.fleet.ask(vm).view else { return Err(format!("VM {vm} has not caught up")) };
        let published = |tenant_id: Option<&str>| index.dictionary().policy(tenant_id);
        let followed = config.policies.effective(&request.scope.tenant_id, published);
        if *followed != policy {
            return Err(format!("VM {vm} has another policy: {followed:?}, not {policy:?}"));
        }
        let Answer { decision, chain, .. } = answer(index, &policy, &request, now_ms);
        if policy.eviction == Eviction::Lfu
            && let (Some(slot), Some(chain)) = (index.dictionary().scope_slot(&request.scope), chain)
            && let Some(hit) = Hit::new(slot, &chain, &decision.ranked)
        {
            self.fleet.delivered(vm, hit);
            let (fleet, hub) = (&mut self.fleet, &self.hub);
            fleet.collect_hits(&|| hub.state());
        }
        self.settle()
    }

    /// A VM that runs must hold what the oracle holds.
    fn check(&mut self, vm: usize) -> Result<(), String> {
        if !self.fleet.runs(vm) {
            return Ok(());
        }
        let expected = self.expected();
        let View::Index(index) = self.fleet.ask(vm).view else { return Err(format!("VM {vm} has not caught up")) };
        // What has expired does not count, swept or not.
        let (oracle, now_ms) = (&self.oracle, self.now_s * 1_000 + 999);
        let ttl_ms = |row: &Row| oracle.policy(&row.scope.tenant_id).eviction_ttl_ms;
        let mut found = dump::rows(index);
        found.retain(|row| now_ms - row.last_seen_ms < ttl_ms(row));
        let extra: Vec<&Row> = found.iter().filter(|row| !expected.contains(row)).take(TOLD).collect();
        let missing: Vec<&Row> = expected.iter().filter(|row| !found.contains(row)).take(TOLD).collect();
        if extra.is_empty() && missing.is_empty() && found.len() == expected.len() {
            self.seen.compared += found.len() as u64;
            let ages: BTreeSet<u64> = index.loaded_as_of().skip(1).filter(|as_of| *as_of > 0).collect();
            self.seen.pages_of_ages += u64::from(ages.len() > 1);
            let pages = pages_of_hits(index);
            let moved = pages.iter().filter(|(pair, page)| self.pages.get(*pair).is_some_and(|before| before != *page));
            self.seen.moved += moved.count() as u64;
            self.pages = pages;
            return Ok(());
        }
        Err(format!(
            "VM {vm} has {} blocks, not {}: beside {missing:#?} it has {extra:#?}",
            found.len(),
            expected.len()
        ))
    }

    fn expected(&self) -> Vec<Row> {
        let held = &self.oracle.held;
        let rows = held.blocks().into_iter().filter_map(|block| {
            let (member, complete) = held.generation(block.replica)?;
            complete.then(|| Row {
                scope: held.scope(block.scope).unwrap().clone(),
                access_count: self.oracle.hits(&block),
                last_seen_ms: self.oracle.last_seen_ms(&block),
                key: block.key,
                replica_id: member.replica_id.clone(),
                tier: block.tier,
                token_count: block.token_count,
            })
        });
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_unstable();
        rows
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.by_cap += other.by_cap;
        self.by_quota += other.by_quota;
        self.hits += other.hits;
        self.leaders += other.leaders;
        self.fell_off += other.fell_off;
        self.pages_of_ages += other.pages_of_ages;
        self.moved += other.moved;
        self.compared += other.compared;
    }
}

/// Which page lists each block that has hits.
fn pages_of_hits(index: &Index) -> BTreeMap<Pair, u16> {
    let listed = |page| index.page_observations(page).into_iter().map(move |record| (page, record));
    let mut pages = BTreeMap::new();
    for (page, record) in (0..index.pages()).flat_map(listed) {
        let Observation::Stored(Stored { scope, replica, access_count: Some(1..), blocks, .. }) = record else {
            continue;
        };
        pages.extend(blocks.into_iter().map(|block| ((scope, block.key, replica), page)));
    }
    pages
}

fn answer(index: &Index, policy: &Policy, request: &LookupRequest, now_ms: u64) -> Answer {
    let ranking = Ranking::default();
    let lookup = Lookup { index, policy, ranking: &ranking, tokenizer: &NoTokenizer, now_ms, is_late: &|| false };
    lookup_route(&lookup, request)
}
