//! What an operator decides: the CachePolicy of a tenant, and the constants of the ranking.

/// A tenant's policy. Field by field the `spec` of the public `CachePolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `evictionTTL`: an entry this old no longer counts, in ms.
    pub eviction_ttl_ms: u64,
    /// `minimumPrefixTokens`: a shorter prompt gets no hint; 0 is off.
    pub minimum_prefix_tokens: u32,
    /// `minimumMatchedTokens`: a replica with a shorter run is dropped; 0 is off.
    pub minimum_matched_tokens: u32,
    /// `routingFloorScore`: with a lower best score there is no hint; 0 is off.
    pub routing_floor_score: f32,
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
}

// === impl Policy ===

impl Default for Policy {
    /// The contract's defaults: 30 min, 64 matched tokens, a score of 0.1.
    fn default() -> Policy {
        Policy {
            eviction_ttl_ms: 30 * 60 * 1000,
            minimum_prefix_tokens: 0,
            minimum_matched_tokens: 64,
            routing_floor_score: 0.1,
        }
    }
}

// === impl Ranking ===

impl Default for Ranking {
    fn default() -> Ranking {
        Ranking { pressure_weight: 1.0, slo_tight_ttft_ms: 200, slo_tight_bias: 1.0 }
    }
}
