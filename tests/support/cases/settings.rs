//! What a case sets up, in the library's words.

use std::collections::BTreeMap;

use warmroute::fingerprint::BlockSize;
use warmroute::routing::policy::{Eviction, Policies, Policy, Ranking, Strategy};

use super::format::{self, Config, Ranker, Tenant};

/// The policies of all tenants; `ttl_ms` where they have no TTL of their own.
pub fn policies(policies: &[format::Policy], ttl_ms: u64) -> Policies {
    let default = Policy { eviction_ttl_ms: ttl_ms, ..Policy::default() };
    let own = policies.iter().map(|policy| (policy.namespace.clone(), resolved(policy, ttl_ms)));
    Policies { default, by_tenant: own.collect() }
}

/// The TTL where a policy has none of its own, in ms.
pub fn ttl_ms(config: &Config) -> u64 {
    config.ttl_ms.unwrap_or(Policy::default().eviction_ttl_ms)
}

/// The block size of chains that the server derives.
pub fn block_size(config: &Config) -> BlockSize {
    config.block_size.and_then(|tokens| BlockSize::try_new(tokens).ok()).unwrap_or(BlockSize::DEFAULT)
}

/// The most distinct keys, by tenant.
pub fn quotas(tenants: &[Tenant]) -> BTreeMap<String, u64> {
    let limited = tenants.iter().filter_map(|tenant| Some((tenant.tenant_id.clone(), tenant.max_index_entries?)));
    limited.map(|(tenant_id, max)| (tenant_id, u64::try_from(max).unwrap_or(0))).collect()
}

fn resolved(policy: &format::Policy, ttl_ms: u64) -> Policy {
    let strategy = policy.strategy.unwrap_or_default();
    let count = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
    Policy {
        eviction: match policy.eviction.as_deref() {
            Some(name) if name.eq_ignore_ascii_case("lfu") => Eviction::Lfu,
            _ => Eviction::Lru,
        },
        eviction_ttl_ms: u64::try_from(policy.eviction_ttl_ms).ok().filter(|ms| *ms > 0).unwrap_or(ttl_ms),
        minimum_prefix_tokens: count(policy.minimum_prefix_tokens),
        minimum_matched_tokens: count(policy.minimum_matched_tokens),
        routing_floor_score: policy.routing_floor_score.map_or(0.1, |floor| (floor as f32).max(0.0)),
        lookup_timeout_ms: count(policy.lookup_timeout_ms),
        strategy: Strategy {
            enable_chain_matching: strategy.enable_chain_matching.unwrap_or(true),
            require_chain: strategy.require_chain.unwrap_or(false),
            enable_tenant_hot: strategy.enable_tenant_hot.unwrap_or(true),
        },
        affinity_routing: policy.affinity_routing.unwrap_or(true),
    }
}

/// The constants of the score.
pub fn ranking(ranker: &Ranker) -> Ranking {
    let default = Ranking::default();
    Ranking {
        pressure_weight: ranker.pressure_weight.map_or(default.pressure_weight, |weight| weight as f32),
        slo_tight_ttft_ms: ranker
            .slo_tight_ttft_ms
            .map_or(default.slo_tight_ttft_ms, |ms| u32::try_from(ms.max(0)).unwrap_or(u32::MAX)),
        slo_tight_bias: ranker.slo_tight_bias.map_or(default.slo_tight_bias, |bias| bias as f32),
        tenant_hot_min_hit_rate: ranker
            .tenant_hot_min_hit_rate
            .map_or(default.tenant_hot_min_hit_rate, |rate| rate as f32),
        tenant_hot_max_age_ms: ranker
            .tenant_hot_max_age_ms
            .map_or(default.tenant_hot_max_age_ms, |ms| u64::try_from(ms).unwrap_or(0)),
        ..default
    }
}
