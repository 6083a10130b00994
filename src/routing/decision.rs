//! Why a request goes where it goes.
//!
//! In: a request, the index, the tenant's policy, the time. Out: the replicas worth trying, best first, and the reason.
//! The steps are those of the public LookupRoute contract, in its order: the prompt's length, the leading runs, the
//! scores, the floor for each replica, the floor for the best one.

use std::rc::Rc;

use super::policy::{Policy, Ranking};
use super::reason::{Detail, ReasonCode};
use super::score::{distinguishing_power, freshness, pressure_factor, slo_bias};
use crate::index::Index;
use crate::index::run::LeadingRun;
use crate::observation::Tier;
use crate::request::{LookupRequest, RequestChain};

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
    /// The replica's id.
    pub replica_id: Rc<str>,
    /// `ip:port` as Envoy knows it.
    pub address: Rc<str>,
    /// The product of the five factors.
    pub score: f32,
    /// Tokens of the leading run it holds.
    pub matched_tokens: u32,
    /// How much of its time to live the run has left, 0 to 1.
    pub freshness: f32,
    /// The coldest tier of the run.
    pub tier: Tier,
}

/// Decides where `request` should go at `now_ms` (Unix time).
pub fn decide(index: &Index, request: &LookupRequest, policy: &Policy, ranking: &Ranking, now_ms: u64) -> Decision {
    if request.effective_tokens < policy.minimum_prefix_tokens {
        return Decision::no_hint(Detail::BelowMinimumPrefix);
    }
    let oldest_ms = now_ms.saturating_sub(policy.eviction_ttl_ms);
    let scope = index.dictionary().scope_slot(&request.scope);
    let runs = scope.map(|scope| index.leading_runs(scope, &request.chain, oldest_ms)).unwrap_or_default();
    if runs.is_empty() {
        return Decision::no_hint(if index.pairs() == 0 { Detail::Cold } else { Detail::Miss });
    }
    let mut ranked = rank(index, request, &runs, policy, ranking, now_ms);
    ranked.retain(|replica| replica.matched_tokens >= policy.minimum_matched_tokens);
    let Some(best) = ranked.first() else {
        return Decision::no_hint(Detail::BelowMatchedTokens);
    };
    if best.score < policy.routing_floor_score {
        return Decision::no_hint(Detail::BelowRoutingFloor);
    }
    Decision { reason: ReasonCode::PrefixMatch, detail: Detail::None, ranked }
}

/// Scores every run; the best first, equal scores by replica id.
fn rank(
    index: &Index,
    request: &LookupRequest,
    runs: &[LeadingRun],
    policy: &Policy,
    ranking: &Ranking,
    now_ms: u64,
) -> Vec<RankedReplica> {
    let total = index.serving_replicas(&request.scope);
    let ttl_ms = policy.eviction_ttl_ms;
    let mut ranked: Vec<RankedReplica> = runs
        .iter()
        .filter(|run| run.matched_tokens > 0)
        .filter_map(|run| {
            let replica = index.dictionary().complete_replica(run.replica)?;
            let freshness = freshness(now_ms, run.last_seen_ms, ttl_ms);
            let score = run.matched_tokens as f32
                * freshness
                * pressure_factor(ranking, replica.stats.as_ref(), now_ms, ttl_ms)
                * slo_bias(ranking, request.slo_ttft_ms, freshness)
                * distinguishing_power(matching(&request.chain, runs, run), total);
            Some(RankedReplica {
                replica_id: Rc::clone(&replica.replica_id),
                address: Rc::clone(&replica.address),
                score,
                matched_tokens: run.matched_tokens,
                freshness,
                tier: run.tier,
            })
        })
        .collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.replica_id.cmp(&b.replica_id)));
    ranked
}

/// How many replicas have at least as much as `run`; for an exact key, how many have it at all.
fn matching(chain: &RequestChain, runs: &[LeadingRun], run: &LeadingRun) -> usize {
    match chain {
        RequestChain::Exact { .. } => runs.len(),
        RequestChain::Chain(_) => runs.iter().filter(|other| other.matched_tokens >= run.matched_tokens).count(),
    }
}

// === impl Decision ===

impl Decision {
    /// No hint, for this reason: the request goes where Envoy would have sent it.
    pub fn no_hint(detail: Detail) -> Decision {
        Decision { reason: ReasonCode::NoHint, detail, ranked: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{BlockKey, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, StoredBlock};
    use crate::request::ChainBlock;

    const NOW_MS: u64 = 1_700_000_000_000;
    const BLOCK: u32 = 64;

    fn scope() -> Scope {
        Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() }
    }

    /// Replicas `r1`, `r2`, … that hold this many blocks of one chain, reported this long ago.
    fn index(held: &[(u64, u64)]) -> Index {
        let mut index = Index::new(4);
        index.apply(1, Observation::Scope { slot: ScopeSlot(1), scope: scope() });
        for (at, (blocks, age_ms)) in held.iter().enumerate() {
            let replica = ReplicaSlot(at as u32 + 1);
            let replica_id = format!("r{}", replica.0);
            index.apply(1, Observation::ReplicaUp { replica, replica_id, address: format!("10.0.0.{}:80", replica.0) });
            index.apply(1, Observation::ReplicaComplete { replica });
            index.apply(
                1,
                Observation::Stored {
                    replica,
                    scope: ScopeSlot(1),
                    tier: Tier::T1,
                    last_seen_ms: NOW_MS - age_ms,
                    blocks: (1..=*blocks)
                        .map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: key as u32 * BLOCK })
                        .collect(),
                },
            );
        }
        index
    }

    fn request(blocks: u64) -> LookupRequest {
        LookupRequest {
            scope: scope(),
            chain: RequestChain::Chain(
                (1..=blocks).map(|key| ChainBlock { key: BlockKey::Hash64(key), tokens: BLOCK }).collect(),
            ),
            effective_tokens: blocks as u32 * BLOCK,
            slo_ttft_ms: None,
        }
    }

    fn decision(index: &Index, request: &LookupRequest, policy: &Policy) -> Decision {
        decide(index, request, policy, &Ranking::default(), NOW_MS)
    }

    fn scores(decision: &Decision) -> Vec<(&str, u32, f32)> {
        decision.ranked.iter().map(|r| (&*r.replica_id, r.matched_tokens, (r.score * 100.0).round() / 100.0)).collect()
    }

    #[test]
    fn a_longer_run_that_fewer_replicas_share_wins() {
        let index = index(&[(4, 0), (2, 0), (1, 0)]);
        let decision = decision(&index, &request(4), &Policy::default());
        assert_eq!(decision.reason, ReasonCode::PrefixMatch);
        assert_eq!(scores(&decision), [("r1", 256, 170.67), ("r2", 128, 42.67), ("r3", 64, 0.0)]);
    }

    #[test]
    fn age_takes_its_share() {
        let index = index(&[(3, 60_000), (2, 120_000), (1, 240_000)]);
        let decision = decision(&index, &request(5), &Policy::default());
        assert_eq!(scores(&decision), [("r1", 192, 123.73), ("r2", 128, 39.82), ("r3", 64, 0.0)]);
    }

    #[test]
    fn what_every_replica_holds_is_no_hint() {
        let index = index(&[(4, 0), (4, 0)]);
        assert_eq!(decision(&index, &request(4), &Policy::default()), Decision::no_hint(Detail::BelowRoutingFloor));
    }

    #[test]
    fn both_floors_let_equality_pass() {
        let index = index(&[(1, 0)]);
        let at = Policy { minimum_matched_tokens: 64, routing_floor_score: 64.0, ..Policy::default() };
        assert_eq!(decision(&index, &request(1), &at).reason, ReasonCode::PrefixMatch);
        let tokens = Policy { minimum_matched_tokens: 65, ..at.clone() };
        assert_eq!(decision(&index, &request(1), &tokens), Decision::no_hint(Detail::BelowMatchedTokens));
        let score = Policy { routing_floor_score: 64.1, ..at };
        assert_eq!(decision(&index, &request(1), &score), Decision::no_hint(Detail::BelowRoutingFloor));
    }

    #[test]
    fn a_short_prompt_is_not_looked_up() {
        let index = index(&[(4, 0)]);
        let policy = Policy { minimum_prefix_tokens: 257, ..Policy::default() };
        assert_eq!(decision(&index, &request(4), &policy), Decision::no_hint(Detail::BelowMinimumPrefix));
    }

    #[test]
    fn load_and_a_tight_target_change_the_order() {
        let mut index = index(&[(4, 0), (3, 0), (0, 0), (1, 0)]);
        let stats = ReplicaStats { pressure: 0.75, hit_rate: 0.0, reported_ms: NOW_MS };
        index.apply(1, Observation::Stats { replica: ReplicaSlot(1), stats });
        let tight = LookupRequest { slo_ttft_ms: Some(100), ..request(4) };
        let decision = decision(&index, &tight, &Policy::default());
        // Three replicas hold something: 256 x 0.25 x 2 x 2/3, and 192 x 1 x 2 x 1/3.
        assert_eq!(scores(&decision), [("r2", 192, 128.0), ("r1", 256, 85.33), ("r4", 64, 0.0)]);
    }

    #[test]
    fn a_miss_and_a_cold_index_are_told_apart() {
        let index = index(&[(4, 0)]);
        let mut other = request(4);
        other.scope.hash_scheme = "sglang".into();
        assert_eq!(decision(&index, &other, &Policy::default()), Decision::no_hint(Detail::Miss));
        assert_eq!(decision(&Index::new(4), &other, &Policy::default()), Decision::no_hint(Detail::Cold));
    }
}
