//! The fixtures, and a replica that is sent them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use warmroute::fingerprint::PrefixHash;
use warmroute::native::engine::{Batch, BlockStored, Dialect, EngineKey, ExtraKeys, KvEvent, Place, decode};
use warmroute::native::hub::config::EngineKind;
use warmroute::native::hub::replica_cache::{ReplicaCache, Tally};
use warmroute::observation::ScopeSlot;

/// Tokens in a block of the fixtures.
pub const BLOCK: u64 = 4;
pub const ENGINES: [EngineKind; 4] = [EngineKind::Auto, EngineKind::Vllm, EngineKind::Sglang, EngineKind::TensorrtLlm];

#[derive(Deserialize)]
pub struct Case {
    pub engine: EngineKind,
    pub versions: String,
    pub case: String,
    pub compared_with: Vec<String>,
    pub payload: String,
    pub rank: Option<i64>,
    pub events: Vec<Value>,
    /// Adapter, tier, and the prompt up to the block's end.
    pub credited: Vec<(String, u8, Vec<u32>)>,
    pub skipped: BTreeMap<String, u64>,
}

impl Case {
    pub fn name(&self) -> String {
        format!("{:?} {}, {}", self.engine, self.versions, self.case)
    }

    pub fn payload(&self) -> Vec<u8> {
        let digits = self.payload.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }
}

pub fn cases() -> Vec<Case> {
    let cases: Vec<Case> = serde_json::from_str(include_str!("golden.json")).unwrap();
    assert!(cases.len() > 150);
    cases
}

pub fn key(key: &EngineKey) -> Value {
    match key {
        EngineKey::Int(number) => json!({"int": number.to_string()}),
        EngineKey::Bytes(bytes) => {
            json!({"bytes": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()})
        }
    }
}

pub fn told(event: &KvEvent) -> Value {
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
        KvEvent::TierBlocksCleared(place) => json!({"type": "TierBlocksCleared", "medium": place.medium}),
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

pub fn stored(event: &BlockStored) -> Value {
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
pub struct Replica {
    pub cache: ReplicaCache,
    pub tally: Tally,
    adapters: Vec<String>,
}

impl Replica {
    pub fn new() -> Replica {
        let cache = ReplicaCache::new(None).with_adapter_names([(7, "math".to_owned())].into());
        Replica { cache, tally: Tally::default(), adapters: Vec::new() }
    }

    pub fn apply(&mut self, batch: &Batch) {
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

    pub fn held(&self) -> BTreeSet<(String, u8, PrefixHash)> {
        let held = self.cache.held();
        held.map(|(scope, hash, block)| (self.adapters[scope.0 as usize].clone(), block.tier().number(), hash))
            .collect()
    }
}

pub fn read(payload: &[u8], engine: EngineKind) -> Option<Batch> {
    decode(payload, &Dialect::of(engine)).ok()
}
