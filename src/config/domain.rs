//! The digest of what decides an index's contents.
//!
//! XXH3-64 (seed 0) over the fields in the order below: a text as its length (u64 little-endian) and its bytes, a list
//! as its length and its items in ascending order without repeats, a number as u64 little-endian. A policy counts with its
//! eviction (0 LRU, 1 LFU) and its TTL in ms: the default's, then the number of tenants, then for each tenant in ascending
//! order its id and its policy. Quotas are the number of tenants, then for each in ascending order its id and its quota.
//! Without an LFU half-life its number is 0. Of several hubs the first in ascending order comes first, the others at the
//! end. `tests/golden/generate.py` has the same in Python.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::xxh3_64;

use super::FilterConfig;
use crate::routing::policy::{Eviction, Policy};

pub(super) fn digest(config: &FilterConfig) -> String {
    let mut bytes = Vec::new();
    let mut hubs: Vec<&String> = config.hubs.clusters.iter().collect();
    hubs.sort();
    let (first, others) = hubs.split_first().map_or(("", &[][..]), |(first, others)| (first.as_str(), others));
    text(&mut bytes, first);
    list(&mut bytes, &config.subscribe.models);
    list(&mut bytes, &config.subscribe.tenants);
    let limits = &config.limits;
    number(&mut bytes, limits.max_index_entries as u64);
    number(&mut bytes, limits.max_index_bytes as u64);
    number(&mut bytes, limits.lfu_half_life_ms.unwrap_or(0));
    number(&mut bytes, u64::from(limits.pages));
    number(&mut bytes, u64::from(limits.log_segments));
    number(&mut bytes, limits.segment_bytes as u64);
    policy(&mut bytes, &config.policies.default);
    number(&mut bytes, config.policies.by_tenant.len() as u64);
    for (tenant_id, own) in &config.policies.by_tenant {
        text(&mut bytes, tenant_id);
        policy(&mut bytes, own);
    }
    number(&mut bytes, config.quotas.len() as u64);
    for (tenant_id, quota) in &config.quotas {
        text(&mut bytes, tenant_id);
        number(&mut bytes, *quota);
    }
    others.iter().for_each(|hub| text(&mut bytes, hub));
    format!("{:016x}", xxh3_64(&bytes))
}

fn policy(bytes: &mut Vec<u8>, policy: &Policy) {
    let eviction = match policy.eviction {
        Eviction::Lru => 0,
        Eviction::Lfu => 1,
    };
    number(bytes, eviction);
    number(bytes, policy.eviction_ttl_ms);
}

fn number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    number(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

fn list(bytes: &mut Vec<u8>, items: &[String]) {
    let items: BTreeSet<&String> = items.iter().collect();
    number(bytes, items.len() as u64);
    for item in items {
        text(bytes, item);
    }
}
