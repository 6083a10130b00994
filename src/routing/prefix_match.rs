//! `PREFIX_MATCH`: the replicas that hold a leading run of the prompt, ranked, as far as they clear the floors.
//!
//! The score of a run is matched tokens x freshness x pressure x SLO bias x distinguishing power. A replica with fewer
//! than `minimumMatchedTokens` is dropped after the scores are known; a best score below `routingFloorScore` drops all.

use std::sync::Arc;

use super::decision::{Question, RankedReplica};
use super::policy::{Denominator, SharedPrefix};
use super::reason::Detail;
use super::score::{distinguishing_power, finite, freshness, pressure_factor, slo_bias};
use crate::index::LeadingRun;
use crate::index::dictionary::Replica;

/// The replicas worth trying, best first.
///
/// # Errors
/// When there is none: [`Detail::Miss`] if nobody holds the first block.
pub fn find(question: &Question) -> Result<Vec<RankedReplica>, Detail> {
    let runs = leading_runs(question);
    if runs.is_empty() {
        return Err(Detail::Miss);
    }
    if question.is_short() {
        return Err(Detail::BelowMinimumPrefix);
    }
    let total = replicas_compared(question);
    let by_power = rank(question, &runs, |run| distinguishing_power(matching(question, &runs, run), total));
    match above_floors(question, by_power) {
        Err(Detail::BelowRoutingFloor) if prefers_least_pressed(question, &runs, total) => {
            above_floors(question, rank(question, &runs, |_| 1.0))
        }
        ranked => ranked,
    }
}

/// Whether all of the `total` replicas hold the prompt's beginning, and the least pressed of them is preferred then.
fn prefers_least_pressed(question: &Question, runs: &[LeadingRun], total: usize) -> bool {
    question.ranking.shared_prefix == SharedPrefix::LeastPressure && runs.len() >= total
}

/// The runs of replicas that count, made of blocks that have not expired; at least one token each, or a single key.
fn leading_runs(question: &Question) -> Vec<LeadingRun> {
    let oldest_ms = question.now_ms.saturating_sub(question.policy.eviction_ttl_ms);
    let Some(scope) = question.index.dictionary().scope_slot(question.scope) else { return Vec::new() };
    let mut runs = match &question.foreknown.runs {
        Some(runs) => runs.clone(),
        None => question.index.leading_runs(scope, &question.prompt.chain, oldest_ms),
    };
    runs.retain(|run| run.matched_tokens > 0);
    runs
}

/// How many replicas a run could be found at.
fn replicas_compared(question: &Question) -> usize {
    match question.ranking.distinguishing_denominator {
        Denominator::Holders => question.index.serving(question.scope).count(),
        Denominator::Serving => question.index.members(question.scope).count(),
    }
}

/// How many replicas have at least as much as `run`; for an exact key, how many have it at all.
fn matching(question: &Question, runs: &[LeadingRun], run: &LeadingRun) -> usize {
    if question.is_exact() {
        return runs.len();
    }
    runs.iter().filter(|other| other.matched_tokens >= run.matched_tokens).count()
}

/// Scores every run; the best first, equal scores by replica id.
fn rank(question: &Question, runs: &[LeadingRun], power: impl Fn(&LeadingRun) -> f32) -> Vec<RankedReplica> {
    let known = |run: &LeadingRun| question.index.dictionary().complete_replica(run.replica);
    let mut ranked: Vec<RankedReplica> =
        runs.iter().filter_map(|run| Some(scored(question, run, known(run)?, power(run)))).collect();
    sort(&mut ranked);
    ranked
}

/// Best score first, equal scores by replica id.
pub(super) fn sort(ranked: &mut [RankedReplica]) {
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.replica_id.cmp(&b.replica_id)));
}

fn scored(question: &Question, run: &LeadingRun, replica: &Replica, power: f32) -> RankedReplica {
    let ttl_ms = question.policy.eviction_ttl_ms;
    let freshness = freshness(question.now_ms, run.last_seen_ms, ttl_ms);
    let score = run.matched_tokens as f32
        * freshness
        * pressure_factor(question.ranking, replica.stats.as_ref(), question.now_ms, ttl_ms)
        * slo_bias(question.ranking, question.slo_ttft_ms, freshness)
        * power;
    RankedReplica {
        replica: run.replica,
        replica_id: Arc::clone(&replica.replica_id),
        address: Arc::clone(&replica.address),
        score: finite(score),
        matched_tokens: u32::try_from(run.matched_tokens.min(i32::MAX.into())).unwrap_or(0),
        matched_blocks: run.blocks,
        hit_probability: freshness,
        tier: run.tier,
        data_parallel_rank: replica.data_parallel_rank,
    }
}

/// What clears both floors: the one of each replica first, then that of the best.
fn above_floors(question: &Question, mut ranked: Vec<RankedReplica>) -> Result<Vec<RankedReplica>, Detail> {
    ranked.retain(|replica| replica.matched_tokens >= question.policy.minimum_matched_tokens);
    match ranked.first() {
        None => Err(Detail::BelowMatchedTokens),
        Some(best) if best.score < question.policy.routing_floor_score => Err(Detail::BelowRoutingFloor),
        Some(_) => Ok(ranked),
    }
}
