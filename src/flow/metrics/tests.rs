use std::collections::BTreeSet;

use super::*;
use crate::flow::sim::SimHost;
use crate::routing::reason::{Detail, ReasonCode};

const EVICTED: [Evicted; 4] = [Evicted::Cap, Evicted::Quota, Evicted::Ttl, Evicted::Memory];
const REFUSALS: [Refusal; 5] =
    [Refusal::Full, Refusal::Memory, Refusal::TooManyScopes, Refusal::TooManyReplicas, Refusal::FutureTime];

/// The labels and values in a name, as the sample's `stats_tags` cut them out.
fn labels(name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = name;
    while let Some((_, after)) = rest.split_once('.') {
        let (label, after) = after.split_once(".=").unwrap();
        let (value, after) = after.split_once(".;").unwrap();
        found.push((label.to_owned(), value.to_owned()));
        rest = after;
    }
    found
}

#[test]
fn every_label_has_a_tag_in_the_sample() {
    let sample = include_str!("../../../envoy/envoy.yaml");
    let names = [
        lookup_calls("m", ReasonCode::NoHint.as_str(), false),
        lookup_latency("m"),
        predicted_tokens("m"),
        cached_tokens("m"),
        usage_compared("m", "fewer"),
        prediction_failures("m"),
        prompt_tokens_mismatch("m"),
        no_hint(Detail::Cold.as_str()),
        affinity_hint(Detail::Miss.as_str()),
        hint_followed("first"),
        blocks_refused(Refusal::Full),
        known_undercount(Undercount::Gap),
        evictions(Eviction::Lru, Evicted::Ttl).into(),
    ];
    for name in names {
        let labels = labels(&name);
        assert!(!labels.is_empty(), "{name}");
        for (label, value) in labels {
            let tag = format!(r"tag_name: {label}, regex: '(\.{label}\.=(");
            assert!(sample.contains(&tag), "{name}: no {tag}");
            assert!(!value.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_model_cannot_end_its_label() {
    let name = lookup_calls("a.;b", ReasonCode::PrefixMatch.as_str(), true);
    let expected = [("model", "a..b"), ("reason_code", "PREFIX_MATCH"), ("hint_used", "true")];
    let expected = expected.map(|(label, value)| (label.to_owned(), value.to_owned()));
    assert_eq!(labels(&name), expected);
}

#[test]
fn evictions_count_by_algorithm_and_reason() {
    let host = SimHost::default();
    let mut total = 0;
    for algorithm in [Eviction::Lru, Eviction::Lfu] {
        for (pairs, reason) in (0..).zip(EVICTED) {
            count_evictions(&host, algorithm, reason, pairs);
            total += pairs;
        }
    }
    let counts = host.0.counts.borrow();
    assert_eq!(counts.get("warmroute_evictions_total.algorithm.=lfu.;.reason.=memory.;"), Some(&3));
    assert_eq!(counts.get("warmroute_evictions_total.algorithm.=lru.;.reason.=quota.;"), Some(&1));
    assert_eq!((counts.len(), counts.values().sum()), (6, total), "nothing evicted is nothing counted: {counts:?}");
}

#[test]
fn what_is_refused_is_known_to_be_missing_unless_it_was_taken_after_all() {
    let host = SimHost::default();
    for (blocks, refusal) in (0..).zip(REFUSALS) {
        count_refused(&host, refusal, blocks);
    }
    let counts = host.0.counts.borrow();
    let of = |metric: &str, label: &str| {
        let name = move |value: &str| format!("{metric}.{label}.={value}.;");
        REFUSALS.map(|refusal| counts.get(&name(refusal.as_str())).copied())
    };
    assert_eq!(of("warmroute_blocks_refused_total", "kind"), [None, Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(of("warmroute_known_undercount_total", "reason"), [None, Some(1), Some(2), Some(3), None]);
}

#[test]
fn values_of_a_label_differ() {
    let undercounts = REFUSALS.map(Undercount::Refused).into_iter().chain([Undercount::CreditsLost, Undercount::Gap]);
    let reasons: Vec<&str> = undercounts.map(Undercount::as_str).collect();
    assert_eq!(reasons.iter().collect::<BTreeSet<_>>().len(), reasons.len());
    assert_eq!(EVICTED.map(Evicted::as_str).iter().collect::<BTreeSet<_>>().len(), EVICTED.len());
}
