//! The score: matched tokens x freshness x pressure x SLO bias x distinguishing power.
//!
//! Formulas and the order of the float32 products are those of the public LookupRoute contract, so that equal inputs
//! give equal scores.

use super::policy::Ranking;
use crate::observation::ReplicaStats;

/// How much of its time to live an entry has left: 1 when just reported, 0 at `ttl_ms`.
pub fn freshness(now_ms: u64, last_seen_ms: u64, ttl_ms: u64) -> f32 {
    let age_ms = now_ms.saturating_sub(last_seen_ms);
    if age_ms >= ttl_ms {
        return 0.0;
    }
    (1.0 - age_ms as f64 / ttl_ms as f64) as f32
}

/// What load leaves of a score: 1 without load, or with load that was reported longer than `ttl_ms` ago.
pub fn pressure_factor(ranking: &Ranking, stats: Option<&ReplicaStats>, now_ms: u64, ttl_ms: u64) -> f32 {
    (1.0 - ranking.pressure_weight * live_pressure(stats, now_ms, ttl_ms)).clamp(0.0, 1.0)
}

/// The pressure that counts: 0 if it was not reported, or longer than `ttl_ms` ago.
pub fn live_pressure(stats: Option<&ReplicaStats>, now_ms: u64, ttl_ms: u64) -> f32 {
    stats.filter(|stats| now_ms.saturating_sub(stats.reported_ms) < ttl_ms).map_or(0.0, |stats| stats.pressure)
}

/// How much more a fresh run is worth to a request with a tight time to first token.
pub fn slo_bias(ranking: &Ranking, slo_ttft_ms: Option<u32>, freshness: f32) -> f32 {
    match slo_ttft_ms {
        Some(ttft_ms) if ttft_ms > 0 && ttft_ms < ranking.slo_tight_ttft_ms => 1.0 + freshness * ranking.slo_tight_bias,
        _ => 1.0,
    }
}

/// How much a run says about where to go: nothing if all of the `total` replicas have it too.
pub fn distinguishing_power(matching: usize, total: usize) -> f32 {
    if total <= 1 {
        1.0
    } else if matching >= total {
        0.0
    } else {
        (1.0 - matching as f64 / total as f64) as f32
    }
}

/// A score that can be compared and sent: what reports and settings at the end of float32 come to is its greatest number.
pub fn finite(score: f32) -> f32 {
    if score.is_nan() { 0.0 } else { score.clamp(f32::MIN, f32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: u64 = 1_800_000;

    #[test]
    fn freshness_falls_linearly_to_the_ttl() {
        assert_eq!(freshness(1000, 1000, TTL_MS), 1.0);
        assert_eq!(freshness(1000, 2000, TTL_MS), 1.0);
        assert_eq!(freshness(900_000, 0, TTL_MS), 0.5);
        assert_eq!(freshness(TTL_MS, 0, TTL_MS), 0.0);
        assert_eq!(freshness(0, 0, 0), 0.0);
    }

    #[test]
    fn pressure_counts_while_it_is_younger_than_the_ttl() {
        let ranking = Ranking::default();
        let stats = ReplicaStats { pressure: 0.25, hit_rate: 0.0, reported_ms: 0 };
        assert_eq!(pressure_factor(&ranking, None, 0, TTL_MS), 1.0);
        assert_eq!(pressure_factor(&ranking, Some(&stats), TTL_MS - 1, TTL_MS), 0.75);
        assert_eq!(pressure_factor(&ranking, Some(&stats), TTL_MS, TTL_MS), 1.0);
        let heavy = Ranking { pressure_weight: 8.0, ..Ranking::default() };
        assert_eq!(pressure_factor(&heavy, Some(&stats), 0, TTL_MS), 0.0);
    }

    #[test]
    fn only_a_target_below_the_limit_is_tight() {
        let ranking = Ranking::default();
        assert_eq!(slo_bias(&ranking, None, 0.5), 1.0);
        assert_eq!(slo_bias(&ranking, Some(0), 0.5), 1.0);
        assert_eq!(slo_bias(&ranking, Some(200), 0.5), 1.0);
        assert_eq!(slo_bias(&ranking, Some(199), 0.5), 1.5);
    }

    #[test]
    fn what_all_replicas_hold_distinguishes_none() {
        assert_eq!(distinguishing_power(1, 1), 1.0);
        assert_eq!(distinguishing_power(3, 3), 0.0);
        assert_eq!(distinguishing_power(1, 4), 0.75);
    }

    #[test]
    fn a_score_is_a_number() {
        assert_eq!(finite(170.67), 170.67);
        assert_eq!(finite(f32::MAX * 2.0), f32::MAX);
        assert_eq!(finite(f32::INFINITY * 0.0), 0.0);
    }
}
