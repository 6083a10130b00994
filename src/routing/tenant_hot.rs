//! `TENANT_HOT`: where nobody holds the key asked for, the replicas that lately served their model and tenant from cache.
//!
//! For single keys only: a chain that misses its first block has nothing in common with what is cached. A replica is warm
//! if its statistics are younger than `tenant_hot_max_age_ms`, its hit rate is at least `tenant_hot_min_hit_rate`, and it
//! holds something in the scope. The score is hit rate x recency x pressure x SLO bias; no floor applies.

use std::sync::Arc;

use super::decision::{Question, RankedReplica};
use super::prefix_match::sort;
use super::score::{finite, freshness, pressure_factor, slo_bias};
use crate::index::dictionary::Replica;
use crate::observation::{ReplicaSlot, Tier};

/// The warm replicas, best first; `None` if there is none, or the request has a chain.
pub fn find(question: &Question) -> Option<Vec<RankedReplica>> {
    if !question.is_exact() {
        return None;
    }
    let serving = question.index.serving(question.scope);
    let mut ranked: Vec<RankedReplica> = serving.filter_map(|(slot, replica)| warm(question, slot, replica)).collect();
    sort(&mut ranked);
    (!ranked.is_empty()).then_some(ranked)
}

fn warm(question: &Question, slot: ReplicaSlot, replica: &Replica) -> Option<RankedReplica> {
    let Question { ranking, policy, now_ms, .. } = *question;
    let stats = replica.stats.as_ref()?;
    let is_young = now_ms.saturating_sub(stats.reported_ms) < ranking.tenant_hot_max_age_ms;
    if !is_young || stats.hit_rate < ranking.tenant_hot_min_hit_rate {
        return None;
    }
    let recency = freshness(now_ms, stats.reported_ms, ranking.tenant_hot_max_age_ms);
    let score = stats.hit_rate
        * recency
        * pressure_factor(ranking, Some(stats), now_ms, policy.eviction_ttl_ms)
        * slo_bias(ranking, question.slo_ttft_ms, recency);
    Some(RankedReplica {
        replica: slot,
        replica_id: Arc::clone(&replica.replica_id),
        address: Arc::clone(&replica.address),
        score: finite(score),
        matched_tokens: 0,
        matched_blocks: 0,
        hit_probability: stats.hit_rate.clamp(0.0, 1.0),
        tier: Tier::Unspecified,
        data_parallel_rank: replica.data_parallel_rank,
    })
}
