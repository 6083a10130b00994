//! Random histories of reports, events, hits, sweeps and settings, against the slow and obvious way to keep them.
//!
//! After each step both must hold the same, and so must an index that follows the publisher's changes.

use std::collections::BTreeSet;

use super::*;
use crate::observation::Observation;
use crate::routing::policy::{Eviction, Policy};

const HISTORIES: u64 = 120;
const STEPS: usize = 60;
const MAX_ENTRIES: u64 = 12;
const HASHES: [&str; 7] = ["a", "b", "c", "d", "eeeeeeee", "eeeeeeef", "eeeeeeeeg"];

/// Tenant, model, scheme, adapter, hash, replica: in the order in which equals go.
type Place = (String, String, String, String, Vec<u8>, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    tokens: u32,
    tier: Tier,
    seen_ms: u64,
    hits: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Report(CacheStateUpdate),
    Event(CacheEvent),
    Hit(Place),
    Sweep,
    Wait(u64),
    Policies(Policies),
    Quotas(BTreeMap<String, u64>),
}

/// A mistake made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    CapTakesTheNewest,
    CapIgnoresHits,
    QuotaGoesByTheOldestHolder,
    SweepIgnoresTheTenant,
    ReportForgetsHits,
    EventStaysInOneScheme,
    ClearKeepsAdapters,
}

/// What the contract says, with a scan for each question.
#[derive(Debug, Default)]
struct Naive {
    defect: Option<Defect>,
    policies: Policies,
    quotas: BTreeMap<String, u64>,
    held: BTreeMap<Place, Held>,
    /// By tenant, model and replica: hit rate, pressure, and when the replica was last said to live.
    stats: BTreeMap<(String, String, String), (f32, f32, u64)>,
    evicted: BTreeMap<(&'static str, &'static str), u64>,
    over_quota: BTreeMap<String, u64>,
}

/// A 64-bit generator (splitmix64, public domain, by Sebastiano Vigna).
struct Random(u64);

// === impl Naive ===

impl Naive {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn step(&mut self, step: &Step, now_ms: u64) {
        match step {
            Step::Report(update) => self.report(update, now_ms),
            Step::Event(event) => self.event(event, now_ms),
            Step::Hit(place) => {
                if let Some(held) = self.held.get_mut(place)
                    && self.policies.for_tenant(&place.0).eviction == Eviction::Lfu
                {
                    held.hits += 1;
                }
            }
            Step::Sweep => self.sweep(now_ms),
            Step::Wait(_) => {}
            Step::Policies(policies) => self.policies = policies.clone(),
            Step::Quotas(quotas) => self.quotas = quotas.clone(),
        }
    }

    fn report(&mut self, update: &CacheStateUpdate, now_ms: u64) {
        let seen_ms = if update.timestamp_us == 0 { now_ms } else { update.timestamp_us as u64 / 1000 };
        for entry in &update.prefixes {
            let adapter = if entry.adapter_id.is_empty() { &update.adapter_id } else { &entry.adapter_id };
            let mut total = 0;
            let mut blocks: Vec<(Vec<u8>, u32)> = Vec::new();
            for (hash, tokens) in entry.block_hashes.iter().zip(&entry.block_token_counts) {
                total += *tokens as u32;
                blocks.push((hash.clone(), total));
            }
            if !entry.prefix_hash.is_empty() {
                blocks.push((entry.prefix_hash.clone(), entry.token_count as u32));
            }
            for (hash, tokens) in blocks {
                let CacheStateUpdate { tenant_id, model_id, hash_scheme, replica_id, .. } = update.clone();
                let place = (tenant_id, model_id, hash_scheme, adapter.clone(), hash, replica_id);
                let kept = self.held.get(&place).map_or(0, |held| held.hits);
                let hits = if self.has(Defect::ReportForgetsHits) { 0 } else { kept };
                let tier = if entry.tier == 2 { Tier::T2 } else { Tier::T1 };
                self.held.insert(place, Held { tokens, tier, seen_ms, hits });
            }
        }
        if let Some(stats) = update.stats {
            let member = (update.tenant_id.clone(), update.model_id.clone(), update.replica_id.clone());
            self.stats.insert(member, (stats.hit_rate, stats.pressure, seen_ms));
        }
        self.limit_tenant(&update.tenant_id);
        self.limit_all();
    }

    fn event(&mut self, event: &CacheEvent, now_ms: u64) {
        let of_member =
            |place: &Place| (&place.0, &place.1, &place.5) == (&event.tenant_id, &event.model_id, &event.replica_id);
        let defect = self.defect;
        let member = (event.tenant_id.clone(), event.model_id.clone(), event.replica_id.clone());
        match event.kind {
            EventKind::PrefixEvicted => self.held.retain(|place, _| {
                let is_concerned = of_member(place)
                    && place.4 == event.prefix_hash
                    && (event.adapter_id.is_empty() || place.3 == event.adapter_id)
                    && (defect != Some(Defect::EventStaysInOneScheme) || place.2 == "vllm");
                !is_concerned
            }),
            EventKind::AllCleared => {
                let kept = |place: &Place| defect == Some(Defect::ClearKeepsAdapters) && !place.3.is_empty();
                self.held.retain(|place, _| !of_member(place) || kept(place));
                self.stats.remove(&member);
            }
            EventKind::ReplicaUpdated => {
                self.stats.entry(member).and_modify(|(.., seen_ms)| *seen_ms = now_ms);
            }
            EventKind::PrefixAdded | EventKind::Unspecified => {}
        }
    }

    fn sweep(&mut self, now_ms: u64) {
        let Naive { defect, policies, held, stats, evicted, .. } = self;
        let is_old = |tenant_id: &str, seen_ms: u64| {
            let tenant_id = if *defect == Some(Defect::SweepIgnoresTheTenant) { "" } else { tenant_id };
            now_ms.saturating_sub(seen_ms) >= policies.for_tenant(tenant_id).eviction_ttl_ms
        };
        held.retain(|place, held| {
            let is_old = is_old(&place.0, held.seen_ms);
            if is_old {
                *evicted.entry((algorithm(policies, &place.0), "ttl")).or_default() += 1;
            }
            !is_old
        });
        stats.retain(|member, (.., seen_ms)| !is_old(&member.0, *seen_ms));
        for tenant_id in self.quotas.keys().cloned().collect::<Vec<_>>() {
            self.limit_tenant(&tenant_id);
        }
        self.limit_all();
    }

    fn limit_tenant(&mut self, tenant_id: &str) {
        let Some(max) = self.quotas.get(tenant_id).copied() else { return };
        loop {
            let mut ages: BTreeMap<(&str, &str, &str, &[u8]), u64> = BTreeMap::new();
            for ((tenant, model, scheme, adapter, hash, _), held) in &self.held {
                if tenant == tenant_id {
                    let age = ages.entry((model, scheme, adapter, hash)).or_insert(held.seen_ms);
                    *age = if self.has(Defect::QuotaGoesByTheOldestHolder) {
                        held.seen_ms.min(*age)
                    } else {
                        held.seen_ms.max(*age)
                    };
                }
            }
            if ages.len() as u64 <= max {
                return;
            }
            let (_, victim) = ages.iter().map(|(prefix, age)| (*age, *prefix)).min().unwrap();
            let victim = (victim.0.to_owned(), victim.1.to_owned(), victim.2.to_owned(), victim.3.to_vec());
            self.held.retain(|(tenant, model, scheme, adapter, hash, _), _| {
                tenant != tenant_id || (&victim.0, &victim.1, &victim.2, &victim.3) != (model, scheme, adapter, hash)
            });
            *self.over_quota.entry(tenant_id.to_owned()).or_default() += 1;
        }
    }

    fn limit_all(&mut self) {
        while self.held.len() as u64 > MAX_ENTRIES {
            let hits = |place: &Place, held: &Held| match self.policies.for_tenant(&place.0).eviction {
                Eviction::Lfu if !self.has(Defect::CapIgnoresHits) => held.hits,
                _ => 0,
            };
            let mut order: Vec<(u32, u64, Place)> =
                self.held.iter().map(|(place, held)| (hits(place, held), held.seen_ms, place.clone())).collect();
            order.sort();
            let victim = if self.has(Defect::CapTakesTheNewest) { order.pop() } else { order.into_iter().next() };
            let (_, _, place) = victim.unwrap();
            self.held.remove(&place);
            *self.evicted.entry((algorithm(&self.policies, &place.0), "cap")).or_default() += 1;
        }
    }
}

fn algorithm(policies: &Policies, tenant_id: &str) -> &'static str {
    match policies.for_tenant(tenant_id).eviction {
        Eviction::Lru => "lru",
        Eviction::Lfu => "lfu",
    }
}

// === Histories ===

// === impl Random ===

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    fn name(&mut self, choices: &[&str]) -> String {
        self.pick(choices).to_owned()
    }

    fn step(&mut self, now_ms: u64) -> Step {
        match self.below(20) {
            0..9 => Step::Report(self.update(now_ms)),
            9..12 => Step::Event(self.event()),
            12..14 => Step::Hit((
                self.name(&["t", "u"]),
                self.name(&["m", "m", "n"]),
                self.name(&["vllm", "vllm", "sglang"]),
                self.name(&["", "", "lora"]),
                self.name(&HASHES).into(),
                self.name(&["r", "s", "q"]),
            )),
            14 => Step::Sweep,
            15..18 => Step::Wait(self.pick(&[1, 1, 10, 100, 600])),
            18 => Step::Policies(self.policies()),
            _ => {
                let tenants = ["t", "u"].map(|tenant_id| (tenant_id.to_owned(), self.below(6) as u64));
                Step::Quotas(tenants.into_iter().filter(|_| self.below(2) == 0).collect())
            }
        }
    }

    fn update(&mut self, now_ms: u64) -> CacheStateUpdate {
        let stats = |random: &mut Random| ReportedStats {
            hit_rate: random.pick(&[0.0, 0.5]),
            pressure: random.pick(&[0.0, 1.0]),
            ..ReportedStats::default()
        };
        CacheStateUpdate {
            replica_id: self.name(&["r", "s", "q"]),
            model_id: self.name(&["m", "m", "n"]),
            tenant_id: self.name(&["t", "u"]),
            hash_scheme: self.name(&["vllm", "vllm", "sglang"]),
            timestamp_us: self.pick(&[0, 0, 0, (now_ms as i64 - 50) * 1000]),
            prefixes: (0..self.below(4)).map(|_| self.entry()).collect(),
            stats: if self.below(3) == 0 { Some(stats(self)) } else { None },
            adapter_id: self.name(&["", "", "", "lora"]),
        }
    }

    fn entry(&mut self) -> PrefixEntry {
        let prefix_hash: Vec<u8> = self.name(&HASHES).into();
        let tier = self.pick(&[0, 0, 2]);
        let (token_count, adapter_id) = (self.pick(&[16, 32]), self.name(&["", "", "", "lora"]));
        let length = if self.below(3) == 0 { 1 + self.below(3) } else { 0 };
        let block_hashes: Vec<Vec<u8>> = (0..length).map(|_| self.name(&HASHES).into()).collect();
        let prefix_hash = if length > 0 && self.below(2) == 0 { Vec::new() } else { prefix_hash };
        PrefixEntry { prefix_hash, token_count, block_token_counts: vec![16; length], block_hashes, tier, adapter_id }
    }

    fn event(&mut self) -> CacheEvent {
        use EventKind::{AllCleared, PrefixAdded, PrefixEvicted, ReplicaUpdated};
        CacheEvent {
            kind: self.pick(&[PrefixEvicted, PrefixEvicted, PrefixEvicted, AllCleared, ReplicaUpdated, PrefixAdded]),
            replica_id: self.name(&["r", "s", "q"]),
            model_id: self.name(&["m", "m", "n"]),
            tenant_id: self.name(&["t", "u"]),
            prefix_hash: self.name(&HASHES).into(),
            timestamp_us: 0,
            adapter_id: self.name(&["", "", "lora"]),
        }
    }

    fn policies(&mut self) -> Policies {
        let policy = |random: &mut Random| Policy {
            eviction: random.pick(&[Eviction::Lru, Eviction::Lfu]),
            eviction_ttl_ms: random.pick(&[500, 1_500]),
            ..Policy::default()
        };
        let default = policy(self);
        let own = (self.below(2) == 0).then(|| (String::from("t"), policy(self)));
        Policies { default, by_tenant: own.into_iter().collect() }
    }
}

// === Both ===

/// What an index holds; nothing in it may be of a generation that has ended.
fn holdings(index: &Index) -> BTreeMap<Place, Held> {
    let facts = (0..index.shards()).flat_map(|shard| index.shard_observations(shard));
    let mut held = BTreeMap::new();
    for fact in facts {
        let Observation::Stored { replica, scope, tier, last_seen_ms: seen_ms, blocks } = fact else { continue };
        let Scope { tenant_id, model_id, hash_scheme, adapter_id } = index.dictionary().scope(scope).unwrap().clone();
        let member = &index.dictionary().complete_replica(replica).unwrap().member;
        assert_eq!((&member.tenant_id, &member.model_id), (&tenant_id, &model_id));
        let scope_place = (tenant_id, model_id, hash_scheme, adapter_id);
        for block in blocks {
            let hits = index.holder(scope, &block.key, replica).unwrap().access_count;
            let mut hash = Vec::new();
            block.key.write_to(&mut hash);
            let (tenant_id, model_id, hash_scheme, adapter_id) = scope_place.clone();
            let place = (tenant_id, model_id, hash_scheme, adapter_id, hash, member.replica_id.clone());
            held.insert(place, Held { tokens: block.token_count, tier, seen_ms, hits });
        }
    }
    held
}

fn take(publisher: &mut Publisher, step: &Step, now_ms: u64) {
    match step {
        Step::Report(update) => assert_eq!(publisher.report(update, now_ms).total(), 0),
        Step::Event(event) => assert_eq!(publisher.event(event, now_ms).total(), 0),
        Step::Hit((tenant_id, model_id, hash_scheme, adapter_id, hash, replica_id)) => {
            let scope = Scope {
                tenant_id: tenant_id.clone(),
                model_id: model_id.clone(),
                hash_scheme: hash_scheme.clone(),
                adapter_id: adapter_id.clone(),
            };
            let key = BlockKey::from_bytes(hash).unwrap();
            let found = publisher.index().members(&scope).find(|(_, replica)| &*replica.replica_id == replica_id);
            let Some((slot, replica)) = found else { return };
            let delivered = crate::routing::decision::RankedReplica {
                replica: slot,
                replica_id: replica.replica_id.clone(),
                address: replica.address.clone(),
                score: 1.0,
                matched_tokens: 16,
                matched_blocks: 1,
                hit_probability: 1.0,
                tier: Tier::T1,
            };
            publisher.credit(&scope, &crate::request::RequestChain::Exact { key }, &[delivered]);
        }
        Step::Sweep => publisher.sweep(now_ms),
        Step::Wait(_) => {}
        Step::Policies(policies) => publisher.set_policies(policies.clone()),
        Step::Quotas(quotas) => publisher.set_quotas(quotas.clone()),
    }
}

/// Where they differ, if they do.
fn differ(naive: &Naive, publisher: &Publisher, subscriber: &Subscriber) -> Option<String> {
    let held = holdings(publisher.index());
    if held != naive.held {
        return Some(format!("{held:#?}\nnot {:#?}", naive.held));
    }
    let followed = holdings(&subscriber.0);
    let without_hits = |held: &BTreeMap<Place, Held>| -> BTreeMap<Place, Held> {
        held.iter().map(|(place, held)| (place.clone(), Held { hits: 0, ..*held })).collect()
    };
    if without_hits(&followed) != without_hits(&held) {
        return Some(format!("the subscriber has {followed:#?}\nnot {held:#?}"));
    }
    let prefixes: BTreeSet<_> = held.keys().map(|(t, m, s, a, h, _)| (t, m, s, a, h)).collect();
    let counts = publisher.counts();
    if (counts.prefix_keys, counts.entries) != (prefixes.len() as u64, held.len() as u64) {
        return Some(format!("{counts:?}, not {} and {}", prefixes.len(), held.len()));
    }
    let evictions = Evictions { entries: naive.evicted.clone(), over_quota: naive.over_quota.clone() };
    if *publisher.evictions() != evictions {
        return Some(format!("{:?}, not {evictions:?}", publisher.evictions()));
    }
    for (tenant_id, model_id) in [("t", "m"), ("t", "n"), ("u", "m"), ("u", "n")] {
        let found = publisher.cache_state(tenant_id, model_id).replicas;
        let found =
            found.into_iter().map(|replica| (replica.replica_id, replica.stats.hit_rate, replica.stats.pressure));
        let of_model = naive.stats.iter().filter(|((t, m, _), _)| (&**t, &**m) == (tenant_id, model_id));
        let expected =
            of_model.map(|((.., replica_id), (hit_rate, pressure, _))| (replica_id.clone(), *hit_rate, *pressure));
        if !found.eq(expected) {
            return Some(format!("statistics of {tenant_id} {model_id}"));
        }
    }
    None
}

fn run(seed: u64, defect: Option<Defect>) -> Result<(), String> {
    let limits = PublisherLimits { max_entries: MAX_ENTRIES, ..PublisherLimits::default() };
    let mut publisher = Publisher::new(limits);
    let mut naive = Naive { defect, ..Naive::default() };
    let mut subscriber = Subscriber::new();
    let mut random = Random(seed);
    let mut now_ms = NOW_MS;
    for at in 0..STEPS {
        let step = random.step(now_ms);
        if let Step::Wait(ms) = step {
            now_ms += ms;
        }
        take(&mut publisher, &step, now_ms);
        naive.step(&step, now_ms);
        subscriber.follow(&mut publisher);
        if let Some(difference) = differ(&naive, &publisher, &subscriber) {
            return Err(format!("seed {seed}, step {at}, {step:?}: {difference}"));
        }
    }
    Ok(())
}

#[test]
fn a_publisher_keeps_what_the_contract_says() {
    for seed in 0..HISTORIES {
        run(seed, None).unwrap();
    }
}

#[test]
fn every_planted_defect_is_found() {
    for defect in [
        Defect::CapTakesTheNewest,
        Defect::CapIgnoresHits,
        Defect::QuotaGoesByTheOldestHolder,
        Defect::SweepIgnoresTheTenant,
        Defect::ReportForgetsHits,
        Defect::EventStaysInOneScheme,
        Defect::ClearKeepsAdapters,
    ] {
        assert!((0..HISTORIES).any(|seed| run(seed, Some(defect)).is_err()), "{defect:?} passes");
    }
}
