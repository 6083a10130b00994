//! Whatever is asked is answered, in a shape that can be relied on.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use warmroute::routing::reason::ReasonCode;

use crate::arbitrary::{any_report, any_request, report, request};
use crate::cases::Server;
use crate::cases::format::{Config, Policy, Ranker, Strategy as PolicyStrategy, Tokenizer, TokenizerKind};
use crate::cases::messages::{Lookup, Response, TokenIds};
use crate::core::Core;

prop_compose! {
    fn any_policy()(
        numbers in vec(prop_oneof![Just(0_i64), 0..100_i64, any::<i64>()], 4),
        floor in prop_oneof![Just(0.0), 0.0..100.0_f64],
        switches in vec(option::of(any::<bool>()), 4),
        is_lfu in any::<bool>(),
    ) -> Policy {
        Policy {
            namespace: "t".into(),
            eviction: is_lfu.then(|| "lfu".into()),
            eviction_ttl_ms: numbers[0],
            minimum_prefix_tokens: numbers[1],
            minimum_matched_tokens: numbers[2],
            routing_floor_score: Some(floor),
            lookup_timeout_ms: numbers[3],
            strategy: Some(PolicyStrategy {
                enable_chain_matching: switches[0],
                require_chain: switches[1],
                enable_tenant_hot: switches[2],
            }),
            affinity_routing: switches[3],
        }
    }
}

prop_compose! {
    fn any_tokenizer()(kind in 0..3_usize, ids in vec(any::<u32>(), 0..60), delay_ms in 0..9_000_u64, saturated in any::<bool>())
        -> Tokenizer {
        let kind = [TokenizerKind::Fixed, TokenizerKind::Error, TokenizerKind::Unavailable][kind];
        Tokenizer { kind, tokens: TokenIds(ids), delay_ms, timeout_ms: None, saturated }
    }
}

prop_compose! {
    fn any_ranker()(
        weight in any_weight(), bias in any_weight(), hit_rate in 0.0..1.0_f64, ttft_ms in 0..400_i64,
    ) -> Ranker {
        Ranker {
            pressure_weight: Some(weight),
            slo_tight_ttft_ms: Some(ttft_ms),
            slo_tight_bias: Some(bias),
            tenant_hot_min_hit_rate: Some(hit_rate),
            tenant_hot_max_age_ms: None,
        }
    }
}

fn any_weight() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..4.0_f64, Just(f64::from(f32::MAX))]
}

/// A policy, constants and a tokenizer, and now and then a lookup that takes its time.
fn any_config() -> impl Strategy<Value = Config> {
    let delay_ms = prop_oneof![3 => Just(0), 1 => any::<u64>()];
    (option::of(any_policy()), option::of(any_ranker()), option::of(any_tokenizer()), delay_ms).prop_map(
        |(policy, ranker, tokenizer, lookup_delay_ms)| Config {
            policies: policy.into_iter().collect(),
            ranker: ranker.unwrap_or_default(),
            tokenizer,
            lookup_delay_ms,
            ..Config::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_is_answered(
        config in any_config(),
        reports in vec(prop_oneof![any_report(), report()], 0..12),
        advances in vec(any::<i32>(), 12),
        requests in vec(prop_oneof![any_request(), request()], 1..8),
    ) {
        let mut core = Core::new(&config);
        for (report, ms) in reports.iter().zip(advances) {
            core.ingest(report);
            core.advance(i64::from(ms).clamp(-600_000, 600_000));
        }
        for lookup in &requests {
            check(&core.lookup(lookup), lookup, &core)?;
        }
        core.sweep();
        for lookup in &requests {
            check(&core.lookup(lookup), lookup, &core)?;
        }
    }
}

/// A property over requests that all come to the same says little: every reason is among the answers.
#[test]
fn what_is_asked_at_random_comes_to_every_reason() {
    let mut runner = TestRunner::deterministic();
    let asked = (any_config(), vec(prop_oneof![any_report(), report()], 0..12), vec(any_request(), 8));
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..400 {
        let (config, reports, requests) = asked.new_tree(&mut runner).unwrap().current();
        let mut core = Core::new(&config);
        reports.iter().for_each(|report| core.ingest(report));
        requests.iter().for_each(|lookup| *seen.entry(core.lookup(lookup).reason_code).or_default() += 1);
    }
    for reason in ReasonCode::ALL {
        let times = seen.get(reason.as_str()).copied().unwrap_or(0);
        assert!(times >= 5, "{} came {times} times: {seen:?}", reason.as_str());
    }
}

/// The scores go with the reason, are numbers, and stand in order; a match clears the policy's floors.
fn check(response: &Response, lookup: &Lookup, core: &Core) -> Result<(), TestCaseError> {
    let scores = &response.replica_scores;
    prop_assert!(ReasonCode::ALL.iter().any(|reason| reason.as_str() == response.reason_code));
    for score in scores {
        prop_assert!(score.score.is_finite() && score.score >= 0.0, "{score:?}");
        prop_assert!(score.estimated_cache_hit_prob.is_finite(), "{score:?}");
        prop_assert!(score.matched_tokens >= 0 && (0..=3).contains(&score.tier), "{score:?}");
    }
    let in_order = scores.is_sorted_by(|a, b| (b.score, &a.replica_id) < (a.score, &b.replica_id));
    prop_assert!(in_order, "{scores:?}");
    let policy = core.publisher.policies().for_tenant(&lookup.request.tenant_id);
    match response.reason_code.as_str() {
        "PREFIX_MATCH" => {
            prop_assert!(scores[0].score >= policy.routing_floor_score, "{scores:?}");
            let least = i64::from(policy.minimum_matched_tokens.max(1));
            prop_assert!(scores.iter().all(|score| i64::from(score.matched_tokens) >= least), "{scores:?}");
        }
        "TENANT_HOT" => {
            prop_assert!(!scores.is_empty() && scores.iter().all(|score| score.matched_tokens == 0), "{scores:?}");
        }
        "AFFINITY_HINT" => {
            prop_assert_eq!(scores.len(), 1);
            prop_assert_eq!((scores[0].score, scores[0].matched_tokens, scores[0].tier), (0.0, 0, 0));
        }
        _ => prop_assert!(scores.is_empty(), "{scores:?}"),
    }
    Ok(())
}
