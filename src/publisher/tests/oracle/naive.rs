//! What the contract says, the slow and obvious way: one flat map, and a scan for each question.

use super::*;

/// Tenant, model, scheme, adapter, hash, replica: in the order in which equals go.
pub type Place = (String, String, String, String, Vec<u8>, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub tokens: u32,
    pub tier: Tier,
    pub seen_ms: u64,
    pub hits: u32,
}

/// A mistake made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    CapTakesTheNewest,
    CapIgnoresHits,
    QuotaGoesByTheOldestHolder,
    SweepIgnoresTheTenant,
    ReportForgetsHits,
    EventStaysInOneScheme,
    ClearKeepsAdapters,
    DropsAreSilent,
}

/// What was reported and what went, folded.
#[derive(Debug, Default)]
pub struct Naive {
    pub defect: Option<Defect>,
    pub policies: Policies,
    pub quotas: BTreeMap<String, u64>,
    pub held: BTreeMap<Place, Held>,
    /// By tenant, model and replica: hit rate, pressure, and when the replica was last said to live.
    pub stats: BTreeMap<(String, String, String), (f32, f32, u64)>,
    pub evicted: BTreeMap<(&'static str, &'static str), u64>,
    pub over_quota: BTreeMap<String, u64>,
    /// Blocks of the last step that went with it.
    pub dropped_at_once: u64,
}

// === impl Naive ===

impl Naive {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    pub fn step(&mut self, step: &Step, now_ms: u64) {
        self.dropped_at_once = 0;
        match step {
            Step::Report(update) => self.report(update, now_ms),
            Step::Event(event) => self.event(event, now_ms),
            Step::Hit(tenant_id, hash) => {
                if self.policies.for_tenant(tenant_id).eviction == Eviction::Lfu {
                    let found = self.held.iter_mut().filter(|(place, _)| (&place.0, &place.4) == (tenant_id, hash));
                    found.for_each(|(_, held)| held.hits += 1);
                }
            }
            Step::Sweep => self.sweep(now_ms),
            Step::Wait(_) | Step::Move(..) => {}
            Step::Policies(policies) => self.policies = policies.clone(),
            Step::Quotas(quotas) => self.quotas = quotas.clone(),
        }
    }

    fn report(&mut self, update: &CacheStateUpdate, now_ms: u64) {
        let seen_ms = if update.timestamp_us == 0 { now_ms } else { update.timestamp_us as u64 / 1000 };
        let mut offered = Vec::new();
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
                offered.push(place.clone());
                self.held.insert(place, Held { tokens, tier, seen_ms, hits });
            }
        }
        if let Some(stats) = update.stats {
            let member = (update.tenant_id.clone(), update.model_id.clone(), update.replica_id.clone());
            self.stats.insert(member, (stats.hit_rate, stats.pressure, seen_ms));
        }
        self.limit_tenant(&update.tenant_id);
        self.limit_all();
        if !self.has(Defect::DropsAreSilent) {
            self.dropped_at_once = offered.iter().filter(|place| !self.held.contains_key(*place)).count() as u64;
        }
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
