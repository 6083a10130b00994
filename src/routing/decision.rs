//! Why a request goes where it goes.
//!
//! In: a request's keys, the index, the tenant's policy, the time. Out: the replicas worth trying, best first, and the
//! reason. In the order of the public LookupRoute contract:
//!
//! 1. `PREFIX_MATCH`: replicas hold a leading run of the prompt that clears the policy's floors;
//! 2. `TENANT_HOT`: nobody holds a prefix that was asked for by a single key, but a replica is warm;
//! 3. `UNKNOWN_*`: nobody holds it, since nothing is known of its tenant, model or hash scheme at all;
//! 4. `AFFINITY_HINT`: whatever else went wrong, equal prompts may as well meet on one replica;
//! 5. `NO_HINT`.
//!
//! A rank of data parallelism is a replica like any other, with the address of its engine: it has a cache of its own. So
//! what it holds and its pressure are its own; affinity hashes over ranks, so that an engine with several gets as many
//! shares of the prompts as it has caches; and a block that each rank of one engine holds tells replicas apart as little as
//! one that as many engines hold. Whoever sends a request names each address once, with the best rank there.

use std::sync::Arc;

use super::policy::{Policy, Ranking};
use super::reason::{Detail, ReasonCode};
use super::{affinity, prefix_match, tenant_hot, unknown};
use crate::index::{Index, LeadingRun};
use crate::observation::{ReplicaSlot, Scope, Tier};
use crate::request::{RequestChain, Resolved};

/// Where a request should go, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The contract's code.
    pub reason: ReasonCode,
    /// What stands behind it.
    pub detail: Detail,
    /// Replicas worth trying, best first; empty without a hint.
    pub ranked: Vec<RankedReplica>,
}

/// A replica with what spoke for it.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedReplica {
    /// Its generation.
    pub replica: ReplicaSlot,
    /// The replica's id.
    pub replica_id: Arc<str>,
    /// `ip:port` as Envoy knows it; empty if it is not known.
    pub address: Arc<str>,
    /// The rank of data parallelism that it is, where the engine at the address has several.
    pub data_parallel_rank: Option<u32>,
    /// The product of the factors; 0 for an affinity hint.
    pub score: f32,
    /// Tokens of the leading run it holds; 0 without a match.
    pub matched_tokens: u32,
    /// Blocks of that run.
    pub matched_blocks: usize,
    /// The contract's `estimated_cache_hit_prob`: the run's freshness, or a warm replica's hit rate; 0 to 1.
    pub hit_probability: f32,
    /// The coldest tier of the run.
    pub tier: Tier,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who holds what.
    pub index: &'a Index,
    /// What the keys are relative to.
    pub scope: &'a Scope,
    /// The keys, and the tokens they cover.
    pub prompt: &'a Resolved,
    /// The request's block chain, if it sent one, is well-formed.
    pub well_formed: bool,
    /// The time to first token that the client asks for, in ms.
    pub slo_ttft_ms: Option<u32>,
    /// The tenant's policy.
    pub policy: &'a Policy,
    /// The constants of the score.
    pub ranking: &'a Ranking,
    /// Unix time in ms.
    pub now_ms: u64,
    /// What of it is known already.
    pub foreknown: &'a Foreknown,
}

/// What was worked out of a long prompt before the question, so that the index is not held for as long as that takes.
#[derive(Clone, Debug, Default)]
pub struct Foreknown {
    /// The leading runs.
    pub runs: Option<Vec<LeadingRun>>,
    /// The prompt's hash for affinity, `None` within if there is nothing to hash.
    pub prompt_hash: Option<Option<u64>>,
}

/// Decides where a request should go.
pub fn decide(question: &Question) -> Decision {
    let scope = question.scope;
    if scope.tenant_id.is_empty() || scope.model_id.is_empty() || scope.hash_scheme.is_empty() {
        return Decision::no_hint(Detail::Miss);
    }
    let detail = match prefix_match::find(question) {
        Ok(ranked) => return Decision { reason: ReasonCode::PrefixMatch, detail: question.remark(), ranked },
        Err(detail) => detail,
    };
    if detail == Detail::Miss {
        match tenant_hot::find(question) {
            Some(ranked) if question.wants_tenant_hot() => {
                return Decision { reason: ReasonCode::TenantHot, detail: question.remark(), ranked };
            }
            Some(_) => {}
            None => {
                if let Some(reason) = unknown::classify(question.index, scope) {
                    return Decision { reason, detail: Detail::None, ranked: Vec::new() };
                }
            }
        }
    }
    let detail = if question.index.is_empty() { Detail::Cold } else { detail };
    match affinity::pick(question) {
        Some(picked) => Decision { reason: ReasonCode::AffinityHint, detail, ranked: vec![picked] },
        None => Decision::no_hint(detail),
    }
}

// === impl Question ===

impl Question<'_> {
    /// Whether the prompt is shorter than the policy's `minimumPrefixTokens`.
    pub fn is_short(&self) -> bool {
        self.prompt.effective_tokens < i64::from(self.policy.minimum_prefix_tokens)
    }

    /// Whether the request asks for a single key.
    pub fn is_exact(&self) -> bool {
        matches!(self.prompt.chain, RequestChain::Exact { .. })
    }

    /// What there is to say of a prompt that has been matched.
    fn remark(&self) -> Detail {
        if self.prompt.first_of_several { Detail::FirstOfSeveral } else { Detail::None }
    }

    fn wants_tenant_hot(&self) -> bool {
        self.policy.strategy.enable_tenant_hot && !self.is_short()
    }
}

// === impl Decision ===

impl Decision {
    /// No hint, for this reason: the request goes where Envoy would have sent it.
    pub fn no_hint(detail: Detail) -> Decision {
        Decision { reason: ReasonCode::NoHint, detail, ranked: Vec::new() }
    }

    /// No hint, for a reason that has a code of its own.
    pub fn refused(reason: ReasonCode) -> Decision {
        Decision { reason, detail: Detail::None, ranked: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
