//! Random histories of reports, events, hits, sweeps and settings, against the slow and obvious way to keep them.
//!
//! After each step both must hold the same, and so must an index that follows the publisher's changes.

mod naive;

use std::collections::BTreeSet;

use naive::{Defect, Held, Naive, Place};

use super::*;
use crate::request::RequestChain;
use crate::routing::decision::RankedReplica;
use crate::routing::policy::{Eviction, Policy};

const HISTORIES: u64 = 120;
const STEPS: usize = 60;
const MAX_ENTRIES: u64 = 12;
const HASHES: [&str; 7] = ["a", "b", "c", "d", "eeeeeeee", "eeeeeeef", "eeeeeeeeg"];

#[derive(Clone, Debug)]
enum Step {
    Report(CacheStateUpdate),
    Event(CacheEvent),
    /// A tenant's requests for a block hit it, wherever it is.
    Hit(String, Vec<u8>),
    /// A member is reached elsewhere.
    Move(Member, String),
    Sweep,
    Wait(u64),
    Policies(Policies),
    Quotas(BTreeMap<String, u64>),
}

/// A 64-bit generator (splitmix64, public domain, by Sebastiano Vigna).
struct Random(u64);

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
            12..14 => Step::Hit(self.name(&["t", "u"]), self.name(&HASHES).into()),
            14 => Step::Sweep,
            15 => {
                let replica_id = self.name(&["r", "s", "q"]);
                Step::Move(Member::new("t", "m", replica_id), self.name(&["10.0.0.1:80", "10.0.0.2:80"]))
            }
            16..18 => Step::Wait(self.pick(&[1, 1, 10, 100, 600])),
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
        let block_token_counts = vec![16; length];
        PrefixEntry { prefix_hash, token_count, block_token_counts, block_hashes, tier, adapter_id, before: None }
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
    let mut held = BTreeMap::new();
    for (scope, key, holder) in index.held() {
        let Scope { tenant_id, model_id, hash_scheme, adapter_id } = index.dictionary().scope(scope).unwrap().clone();
        let member = &index.dictionary().complete_replica(holder.replica).unwrap().member;
        assert_eq!((&member.tenant_id, &member.model_id), (&tenant_id, &model_id));
        let mut hash = Vec::new();
        key.write_to(&mut hash);
        let place = (tenant_id, model_id, hash_scheme, adapter_id, hash, member.replica_id.clone());
        let Holder { token_count: tokens, tier, last_seen_ms: seen_ms, access_count: hits, .. } = holder;
        held.insert(place, Held { tokens, tier, seen_ms, hits });
    }
    held
}

/// How much of the step was dropped.
fn take(publisher: &mut Publisher, step: &Step, now_ms: u64) -> u64 {
    match step {
        Step::Report(update) => return publisher.report(update, now_ms).total(),
        Step::Event(event) => assert_eq!(publisher.event(event, now_ms).total(), 0),
        Step::Hit(tenant_id, hash) => {
            let held = holdings(publisher.index());
            let found = held.keys().filter(|place| (&place.0, &place.4) == (tenant_id, hash));
            found.for_each(|place| deliver(publisher, place));
        }
        Step::Move(member, address) => assert!(publisher.set_address(member, address)),
        Step::Sweep => publisher.sweep(now_ms),
        Step::Wait(_) => {}
        Step::Policies(policies) => publisher.set_policies(policies.clone()),
        Step::Quotas(quotas) => publisher.set_quotas(quotas.clone()),
    }
    0
}

/// Counts a hit of one block at one replica.
fn deliver(publisher: &mut Publisher, place: &Place) {
    let (tenant_id, model_id, hash_scheme, adapter_id, hash, replica_id) = place.clone();
    let scope = Scope { tenant_id, model_id, hash_scheme, adapter_id };
    let mut members = publisher.index().members(&scope);
    let (slot, replica) = members.find(|(_, replica)| *replica.replica_id == *replica_id).unwrap();
    let delivered = RankedReplica {
        replica: slot,
        replica_id: replica.replica_id.clone(),
        address: replica.address.clone(),
        score: 1.0,
        matched_tokens: 16,
        matched_blocks: 1,
        hit_probability: 1.0,
        tier: Tier::T1,
        data_parallel_rank: None,
    };
    drop(members);
    let exact = RequestChain::Exact { key: BlockKey::from_bytes(&hash).unwrap() };
    publisher.credit(&scope, &exact, &[delivered]);
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

fn history(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut now_ms = NOW_MS;
    let step = |_| {
        let step = random.step(now_ms);
        if let Step::Wait(ms) = step {
            now_ms += ms;
        }
        step
    };
    (0..STEPS).map(step).collect()
}

fn run(history: &[Step], defect: Option<Defect>) -> Result<(), String> {
    let limits = PublisherLimits { max_entries: MAX_ENTRIES, ..PublisherLimits::default() };
    let mut publisher = Publisher::new(limits);
    let mut naive = Naive { defect, ..Naive::default() };
    let mut subscriber = Subscriber::new();
    let mut now_ms = NOW_MS;
    for step in history {
        if let Step::Wait(ms) = step {
            now_ms += ms;
        }
        let dropped = take(&mut publisher, step, now_ms);
        naive.step(step, now_ms);
        if dropped != naive.dropped_at_once {
            return Err(format!("{step:?}: {dropped} blocks dropped, not {}", naive.dropped_at_once));
        }
        subscriber.follow(&mut publisher);
        if let Some(difference) = differ(&naive, &publisher, &subscriber) {
            return Err(format!("{step:?}: {difference}"));
        }
    }
    Ok(())
}

/// Leaves steps out, in ever smaller pieces, while what is left still fails.
fn shrink(mut history: Vec<Step>, defect: Option<Defect>) -> Vec<Step> {
    let mut size = history.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < history.len() {
            let mut shorter = history.clone();
            shorter.drain(at..(at + size).min(history.len()));
            if run(&shorter, defect).is_err() {
                history = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    history
}

/// The first seed whose history fails, that history shrunk, and what is wrong.
fn first_failure(defect: Option<Defect>) -> Option<(u64, Vec<Step>, String)> {
    let seed = (0..HISTORIES).find(|seed| run(&history(*seed), defect).is_err())?;
    let shrunk = shrink(history(seed), defect);
    let problem = run(&shrunk, defect).unwrap_err();
    Some((seed, shrunk, problem))
}

#[test]
fn a_publisher_keeps_what_the_contract_says() {
    if let Some((seed, shrunk, problem)) = first_failure(None) {
        panic!("seed {seed}: {problem}\nafter {shrunk:#?}");
    }
}

#[test]
fn every_planted_defect_is_found_and_shrinks() {
    for defect in [
        Defect::CapTakesTheNewest,
        Defect::CapIgnoresHits,
        Defect::QuotaGoesByTheOldestHolder,
        Defect::SweepIgnoresTheTenant,
        Defect::ReportForgetsHits,
        Defect::EventStaysInOneScheme,
        Defect::ClearKeepsAdapters,
        Defect::DropsAreSilent,
    ] {
        let (seed, shrunk, _) = first_failure(Some(defect)).unwrap_or_else(|| panic!("{defect:?} passes"));
        assert!(shrunk.len() <= 14, "{defect:?}, seed {seed}, is still {} long", shrunk.len());
    }
}
