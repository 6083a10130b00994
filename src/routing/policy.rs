//! What an operator decides: the CachePolicy of a tenant, and the constants of the ranking.
//!
//! Every default is that of the public LookupRoute contract. The settings of [`Ranking`] whose type is an enum change what
//! the contract does, and only where they are set.

use std::collections::BTreeMap;

/// A tenant's policy. Field by field the `spec` of the public `CachePolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `eviction`: which entries go first when the index is full.
    pub eviction: Eviction,
    /// `evictionTTL`: an entry this old no longer counts, in ms.
    pub eviction_ttl_ms: u64,
    /// `minimumPrefixTokens`: a shorter prompt gets no hint; 0 is off.
    pub minimum_prefix_tokens: u32,
    /// `minimumMatchedTokens`: a replica with a shorter run is dropped; 0 is off.
    pub minimum_matched_tokens: u32,
    /// `routingFloorScore`: with a lower best score there is no hint; 0 is off.
    pub routing_floor_score: f32,
    /// `lookupTimeoutMs`: the longest a lookup may take, from the end of its input; 0 is no limit.
    pub lookup_timeout_ms: u32,
    /// `strategy`: what may be looked up, and how.
    pub strategy: Strategy,
    /// `affinityRouting`: whether a request without a better hint goes by a hash of its prompt.
    pub affinity_routing: bool,
}

/// `eviction` of a `CachePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The entry that was reported longest ago goes first.
    #[default]
    Lru,
    /// The entry that was hit least often goes first.
    Lfu,
}

/// `strategy` of a `CachePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// `enableChainMatching`: look up block chains, not only whole prefixes.
    pub enable_chain_matching: bool,
    /// `requireChain`: refuse requests without a block chain.
    pub require_chain: bool,
    /// `enableTenantHot`: name a warm replica where no prefix matches.
    pub enable_tenant_hot: bool,
}

/// The policies of all tenants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// For a tenant without one of its own.
    pub default: Policy,
    /// By tenant. Such a policy is complete in itself: what it leaves out has the CachePolicy default, not the value
    /// that `default` gives it.
    pub by_tenant: BTreeMap<String, Policy>,
}

/// Constants of the score.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// How strongly pressure lowers a score: the factor is `1 - pressure_weight x pressure`, within 0 to 1.
    pub pressure_weight: f32,
    /// A request that asks for less than this time to first token, in ms, is tight.
    pub slo_tight_ttft_ms: u32,
    /// How much freshness counts for a tight request: the factor is `1 + slo_tight_bias x freshness`.
    pub slo_tight_bias: f32,
    /// The least hit rate at which a replica counts as warm.
    pub tenant_hot_min_hit_rate: f32,
    /// Statistics this old, in ms, say nothing of warmth; 0: no replica is ever warm.
    pub tenant_hot_max_age_ms: u64,
    /// How a prompt's hash picks a replica.
    pub affinity_hash: AffinityHash,
    /// What of a prompt is hashed.
    pub affinity_seed: AffinitySeed,
    /// A replica with more pressure than this is not picked by hash, unless all have more.
    pub affinity_skip_pressure_above: Option<f32>,
    /// What a run is compared with to see how much it distinguishes.
    pub distinguishing_denominator: Denominator,
    /// What happens to a prefix that all replicas hold.
    pub shared_prefix: SharedPrefix,
    /// What satisfies `requireChain`.
    pub require_chain: ChainOrigin,
}

/// How a prompt's hash picks one of the replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AffinityHash {
    /// The hash modulo their number, as in the contract: a replica that joins or leaves moves most prompts.
    #[default]
    Modulo,
    /// The replica that hashes highest together with the prompt: of n replicas, one that joins moves 1 prompt in n.
    Rendezvous,
}

/// What of a prompt is hashed to pick a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AffinitySeed {
    /// All of it, as in the contract: a conversation can move with each turn.
    #[default]
    Chain,
    /// Its first block: a conversation stays where it is.
    Head,
}

/// The replicas that a run is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Denominator {
    /// Those that hold something in the scope, as in the contract.
    #[default]
    Holders,
    /// Those that are up, even if they hold nothing yet.
    Serving,
}

/// What happens to a prefix that distinguishes no replica, since all hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedPrefix {
    /// Its score is 0 and the routing floor drops it, as in the contract.
    #[default]
    Floor,
    /// The least pressed of its holders is preferred.
    LeastPressure,
}

/// Whose block chain satisfies `requireChain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainOrigin {
    /// The client's, as in the contract.
    #[default]
    Wire,
    /// The client's, or one derived here from token ids or text.
    Derived,
}

// === impl Policy ===

impl Default for Policy {
    /// The contract's defaults: LRU, 30 min, 64 matched tokens, a score of 0.1, no time limit, affinity routing.
    fn default() -> Policy {
        Policy {
            eviction: Eviction::Lru,
            eviction_ttl_ms: 30 * 60 * 1000,
            minimum_prefix_tokens: 0,
            minimum_matched_tokens: 64,
            routing_floor_score: 0.1,
            lookup_timeout_ms: 0,
            strategy: Strategy::default(),
            affinity_routing: true,
        }
    }
}

// === impl Ranking ===

impl Default for Ranking {
    fn default() -> Ranking {
        Ranking {
            pressure_weight: 1.0,
            slo_tight_ttft_ms: 200,
            slo_tight_bias: 1.0,
            tenant_hot_min_hit_rate: 0.1,
            tenant_hot_max_age_ms: 5 * 60 * 1000,
            affinity_hash: AffinityHash::default(),
            affinity_seed: AffinitySeed::default(),
            affinity_skip_pressure_above: None,
            distinguishing_denominator: Denominator::default(),
            shared_prefix: SharedPrefix::default(),
            require_chain: ChainOrigin::default(),
        }
    }
}

// === impl Strategy ===

impl Default for Strategy {
    /// The contract's defaults: chains are matched and not required, warm replicas are named.
    fn default() -> Strategy {
        Strategy { enable_chain_matching: true, require_chain: false, enable_tenant_hot: true }
    }
}

// === impl Eviction ===

impl Eviction {
    /// `lru` or `lfu`, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Eviction::Lru => "lru",
            Eviction::Lfu => "lfu",
        }
    }
}

// === impl Policies ===

impl Policies {
    /// The policy of this tenant.
    pub fn for_tenant(&self, tenant_id: &str) -> &Policy {
        self.by_tenant.get(tenant_id).unwrap_or(&self.default)
    }

    /// The policy of this tenant where a publisher may have one too: its own of the tenant, else ours of the tenant, else
    /// its default, else ours. A tenant's policy is complete in itself, so nothing is mixed.
    ///
    /// `published` answers what the publisher has for a tenant itself, and for `None` what for those without one.
    pub fn effective<'a>(
        &'a self,
        tenant_id: &str,
        published: impl Fn(Option<&str>) -> Option<&'a Policy>,
    ) -> &'a Policy {
        published(Some(tenant_id))
            .or_else(|| self.by_tenant.get(tenant_id))
            .or_else(|| published(None))
            .unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(minimum_prefix_tokens: u32) -> Policy {
        Policy { minimum_prefix_tokens, ..Policy::default() }
    }

    #[test]
    fn the_publishers_policy_of_a_tenant_goes_before_ours_and_both_before_the_defaults() {
        let ours = Policies { default: marked(1), by_tenant: BTreeMap::from([("a".to_owned(), marked(2))]) };
        let published = |tenants: &[(Option<&str>, u32)]| -> BTreeMap<Option<String>, Policy> {
            tenants.iter().map(|(tenant_id, mark)| (tenant_id.map(str::to_owned), marked(*mark))).collect()
        };
        let nothing = published(&[]);
        let default = published(&[(None, 5)]);
        let own = published(&[(Some("a"), 3), (Some("b"), 4)]);
        let all = published(&[(None, 5), (Some("a"), 3), (Some("b"), 4)]);
        let effective = |tenant_id, published: &BTreeMap<Option<String>, Policy>| {
            let lookup = |tenant_id: Option<&str>| published.get(&tenant_id.map(str::to_owned));
            ours.effective(tenant_id, lookup).minimum_prefix_tokens
        };
        assert_eq!(["a", "b", "c"].map(|tenant_id| effective(tenant_id, &nothing)), [2, 1, 1]);
        assert_eq!(["a", "b", "c"].map(|tenant_id| effective(tenant_id, &default)), [2, 5, 5]);
        assert_eq!(["a", "b", "c"].map(|tenant_id| effective(tenant_id, &own)), [3, 4, 1]);
        assert_eq!(["a", "b", "c"].map(|tenant_id| effective(tenant_id, &all)), [3, 4, 5]);
    }
}
