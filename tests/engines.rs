//! Batches in every layout that an engine has had: what is read of them, and what of it counts.
//!
//! `engines/golden.json` has the batches, made by `engines/generate.py` with the engines' own encoder and, for the versions
//! that it names, found to be the same bytes as the engines' own classes make.
#![cfg(feature = "native")]

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use warmroute::fingerprint::{BlockSize, PrefixHash, prefix_hashes};
use warmroute::native::engine::{Batch, BlockStored, Dialect, EngineKey, ExtraKeys, KvEvent, Place, decode};
use warmroute::native::hub::config::EngineKind;
use warmroute::native::hub::replica_cache::{ReplicaCache, Tally};
use warmroute::observation::{ScopeSlot, Tier};

/// Tokens in a block of the fixtures.
const BLOCK: u64 = 4;
const ENGINES: [EngineKind; 4] = [EngineKind::Auto, EngineKind::Vllm, EngineKind::Sglang, EngineKind::TensorrtLlm];

#[derive(Deserialize)]
struct Case {
    engine: EngineKind,
    versions: String,
    case: String,
    compared_with: Vec<String>,
    payload: String,
    rank: Option<u64>,
    events: Vec<Value>,
    /// Adapter, tier, and the prompt up to the block's end.
    credited: Vec<(String, u8, Vec<u32>)>,
    skipped: BTreeMap<String, u64>,
}

impl Case {
    fn name(&self) -> String {
        format!("{:?} {}, {}", self.engine, self.versions, self.case)
    }

    fn payload(&self) -> Vec<u8> {
        let digits = self.payload.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = serde_json::from_str(include_str!("engines/golden.json")).unwrap();
    assert!(cases.len() > 150);
    cases
}

fn key(key: &EngineKey) -> Value {
    match key {
        EngineKey::Int(number) => json!({"int": number.to_string()}),
        EngineKey::Bytes(bytes) => {
            json!({"bytes": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()})
        }
    }
}

fn told(event: &KvEvent) -> Value {
    let common = |tag: &str, keys: &[EngineKey], place: &Place| {
        json!({
            "type": tag,
            "block_hashes": keys.iter().map(key).collect::<Vec<_>>(),
            "medium": place.medium,
            "group_idx": place.group_idx,
            "remote": place.remote,
        })
    };
    match event {
        KvEvent::AllBlocksCleared => json!({"type": "AllBlocksCleared"}),
        KvEvent::BlockRemoved(event) => common("BlockRemoved", &event.block_hashes, &event.place),
        KvEvent::BlockStored(event) => {
            let mut told = common("BlockStored", &event.block_hashes, &event.place);
            let Value::Object(stored) = stored(event) else { panic!() };
            told.as_object_mut().unwrap().extend(stored);
            told
        }
        KvEvent::Missed(missed) => panic!("{missed:?}"),
    }
}

fn stored(event: &BlockStored) -> Value {
    let extra_keys = event.extra_keys.iter().map(|keys| match keys {
        ExtraKeys::None => Value::Null,
        ExtraKeys::Text(text) => json!({"text": text}),
        ExtraKeys::Other => "other".into(),
    });
    json!({
        "parent_block_hash": event.parent_block_hash.as_ref().map(key),
        "token_ids": event.token_ids,
        "further_tokens": event.further_tokens,
        "block_size": event.block_size,
        "lora_id": event.lora_id,
        "lora_name": event.lora_name,
        "kv_cache_spec_kind": event.kv_cache_spec_kind,
        "extra_keys": extra_keys.collect::<Vec<_>>(),
        "salted": event.salted,
        "looks_ahead": event.looks_ahead,
    })
}

/// A replica that has been sent events.
struct Replica {
    cache: ReplicaCache,
    tally: Tally,
    adapters: Vec<String>,
}

impl Replica {
    fn new() -> Replica {
        let cache = ReplicaCache::new(None).with_adapter_names([(7, "math".to_owned())].into());
        Replica { cache, tally: Tally::default(), adapters: Vec::new() }
    }

    fn apply(&mut self, batch: &Batch) {
        let Replica { cache, tally, adapters } = self;
        let mut scope_of = |adapter: &str| {
            let at = adapters.iter().position(|known| known == adapter).unwrap_or_else(|| {
                adapters.push(adapter.to_owned());
                adapters.len() - 1
            });
            Some(ScopeSlot(at as u32))
        };
        for event in &batch.events {
            cache.apply(event, 1, &mut scope_of, &mut Vec::new(), tally);
        }
    }

    fn held(&self) -> BTreeSet<(String, u8, PrefixHash)> {
        let held = self.cache.held();
        held.map(|(scope, hash, block)| (self.adapters[scope.0 as usize].clone(), block.tier().number(), hash))
            .collect()
    }
}

fn read(payload: &[u8], engine: EngineKind) -> Option<Batch> {
    decode(payload, &Dialect::of(engine)).ok()
}

#[test]
fn every_layout_is_read_field_by_field() {
    for case in cases() {
        for engine in [EngineKind::Auto, case.engine] {
            let batch = read(&case.payload(), engine).unwrap_or_else(|| panic!("{} by {engine:?}", case.name()));
            assert_eq!(batch.faults, [], "{} by {engine:?}", case.name());
            assert_eq!((batch.timestamp, batch.data_parallel_rank), (Some(1_760_000_000.25), case.rank));
            let events: Vec<Value> = batch.events.iter().map(told).collect();
            assert_eq!(events, case.events, "{} by {engine:?}", case.name());
        }
    }
}

#[test]
fn what_counts_is_what_any_request_with_these_tokens_finds() {
    let mut tiers = BTreeSet::new();
    for case in cases() {
        let mut replica = Replica::new();
        replica.apply(&read(&case.payload(), EngineKind::Auto).unwrap());
        let size = BlockSize::try_new(BLOCK).unwrap();
        let credited: BTreeSet<_> = case
            .credited
            .iter()
            .map(|(adapter, tier, prompt)| (adapter.clone(), *tier, prefix_hashes(prompt, size, None).last().unwrap()))
            .collect();
        assert_eq!(replica.held(), credited, "{}", case.name());
        let skipped: BTreeMap<String, u64> =
            replica.tally.skipped.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect();
        assert_eq!(skipped, case.skipped, "{}", case.name());
        tiers.extend(case.credited.iter().map(|(_, tier, _)| *tier));
    }
    assert_eq!(tiers, [Tier::T1, Tier::T2, Tier::T3].map(Tier::number).into());
}

#[test]
fn the_layouts_are_those_of_the_engines_themselves() {
    let compared: BTreeSet<String> = cases().into_iter().flat_map(|case| case.compared_with).collect();
    let of = |engine: &str| compared.iter().filter(|version| version.starts_with(engine)).count();
    assert!(of("vllm") >= 10 && of("sglang") >= 9, "{compared:?}");
}

#[test]
fn a_fleet_of_all_of_them_is_read_side_by_side() {
    // One payload after another into replicas of their own: nothing of one engine is left for the next.
    let mut replicas: BTreeMap<String, (Replica, Replica)> = BTreeMap::new();
    for case in cases().into_iter().rev() {
        let (auto, stated) = replicas.entry(case.name()).or_insert_with(|| (Replica::new(), Replica::new()));
        auto.apply(&read(&case.payload(), EngineKind::Auto).unwrap());
        stated.apply(&read(&case.payload(), case.engine).unwrap());
        assert_eq!(auto.held(), stated.held(), "{}", case.name());
    }
}

#[test]
fn a_truncated_batch_is_no_batch() {
    for case in cases() {
        let payload = case.payload();
        for end in 0..payload.len() {
            for engine in ENGINES {
                assert!(read(&payload[..end], engine).is_none(), "{} up to {end}", case.name());
            }
        }
    }
}

/// A batch with another byte is another batch: what can be promised is that it is read as such or refused, that every event
/// of it is counted, and that memory stays in proportion.
#[test]
fn a_batch_with_another_byte_is_read_or_counted() {
    let mut outcomes = [0_u64; 3];
    for case in cases().into_iter().step_by(3) {
        let payload = case.payload();
        for at in 0..payload.len() {
            for flip in [0x01, 0x10, 0x80, 0xFF] {
                let mut other = payload.clone();
                other[at] ^= flip;
                match read(&other, EngineKind::Auto) {
                    None => outcomes[0] += 1,
                    Some(batch) => {
                        let unread: u64 = batch.faults.iter().map(|(_, count)| count).sum();
                        outcomes[if unread == 0 { 2 } else { 1 }] += 1;
                        check(&batch, &other);
                    }
                }
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 1_000), "{outcomes:?}");
}

#[test]
fn random_bytes_are_refused_or_counted() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    // Bytes that mean something in MessagePack, to get further than the first one.
    let starts = [0x92, 0x93, 0x83, 0x91, 0xC0, 0xCF, 0xDC, 0xDD, 0xDE, 0xC4, 0xA4, 0x01, 0xCB, 0xD9, 0xFF, 0x00];
    let cases = cases();
    for _ in 0..200_000 {
        let mut payload: Vec<u8> = (0..next() % 40).map(|_| starts[next() % 16] ^ (next() % 3) as u8).collect();
        if next() % 2 == 0 {
            let donor = cases[next() % cases.len()].payload();
            let cut = next() % donor.len();
            payload = [&donor[..cut], &payload, &donor[cut + next() % (donor.len() - cut)..]].concat();
        }
        for engine in ENGINES {
            if let Some(batch) = read(&payload, engine) {
                check(&batch, &payload);
            }
        }
    }
}

/// The batch has no more than its bytes can say, and can be applied.
fn check(batch: &Batch, payload: &[u8]) {
    let mut items = 0;
    for event in &batch.events {
        items += match event {
            KvEvent::BlockStored(event) => event.block_hashes.len() + event.token_ids.len() + event.extra_keys.len(),
            KvEvent::BlockRemoved(event) => event.block_hashes.len(),
            _ => 0,
        };
    }
    assert!(items + batch.events.len() <= payload.len() * 2);
    let mut replica = Replica::new();
    replica.apply(batch);
    let stored: usize = batch
        .events
        .iter()
        .map(|event| match event {
            KvEvent::BlockStored(event) => event.block_hashes.len(),
            _ => 0,
        })
        .sum();
    assert!(replica.cache.len() <= stored);
}
