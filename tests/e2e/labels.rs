//! Whatever names clients make up, the filter's metrics stay as many as they were, and the log stays readable.

use std::collections::BTreeSet;

use hyper::{Method, Request};
use serde_json::json;
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::Stack;

use crate::pool::*;

const NAMES: u32 = 1_000;

/// The values that the labels which are not a model's may have; of those of requests, [`series`] tells.
const VALUES: [(&str, &[&str]); 5] = [
    (
        "kind",
        &[
            "full",
            "memory",
            "quota",
            "too_many_scopes",
            "future_time",
            "no_room",
            "refused",
            "not_held",
            "other_log",
            "deposed",
            "too_many",
            "unreadable",
        ],
    ),
    ("algorithm", &["lru", "lfu"]),
    ("reason", &["cap", "quota", "ttl", "memory", "full", "too_many_scopes", "credits_lost", "gap"]),
    ("followed", &["first", "other", "none"]),
    ("outcome", &["as_predicted", "fewer", "more", "no_usage"]),
];
/// Labels of requests.
const OF_REQUESTS: [&str; 4] = ["model", "reason_code", "hint_used", "detail"];
/// What Envoy adds to histograms.
const BUCKET: &str = "le";

/// The names and labels of the filter's metrics.
async fn all_series(stack: &Stack) -> BTreeSet<String> {
    let text = stack.client.get(&stack.admin_url("/stats/prometheus")).await.unwrap().text();
    let ours = text.lines().filter(|line| line.starts_with("inferencecache_") || line.starts_with("warmroute_"));
    ours.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned()).collect()
}

/// Those with a label of ours. Others are one each, and come when there is something to say.
async fn series(stack: &Stack) -> BTreeSet<String> {
    let of_ours = |series: &String| labels(series).iter().any(|(label, _)| *label != BUCKET);
    all_series(stack).await.into_iter().filter(of_ours).collect()
}

fn labels(series: &str) -> Vec<(&str, &str)> {
    let within = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    within
        .split(',')
        .filter_map(|label| label.split_once('='))
        .map(|(name, value)| (name, value.trim_matches('"')))
        .collect()
}

/// Requests with a model, a tenant and an adapter that nobody has, in headers and in the body.
async fn made_up(stack: &Stack, number: u32) {
    let (model, tenant, adapter) = (format!("m-{number}"), format!("t-{number}"), format!("a-{number}"));
    let prompt = tokens(1, 64);
    for model in [model.as_str(), MODEL] {
        let head = probe_head_for(model, &prompt).header("x-tenant", &tenant);
        send(stack, head.header("x-inferencecache-adapter-id", &adapter), "/probe", "").await;
        let head = Request::builder().method(Method::POST).header("content-type", "application/json");
        let body = json!({ "model": model, "prompt": prompt, "inference_cache": { "adapter_id": adapter } });
        send(stack, head.header("x-tenant", "default"), "/v1/completions", body.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_made_up_names_are_no_new_series_and_one_warning_each_minute() {
    let stack = stack(|options| {
        options.workers = 1;
        options.plugin["tenant"] = json!({ "header": "x-tenant" });
    })
    .await;
    warm(&stack, 0, &tokens(9, 64)).await;
    let known = warmroute::native::load::stack::eventually(SOON * 5, async || {
        let head = probe_head(&tokens(9, 64)).header("x-tenant", "default");
        decided(&send(&stack, head, "/probe", "").await).matched_tokens == 64
    });
    assert!(known.await);
    let started = std::time::Instant::now();
    // The second time, an engine has what the first one had it compute.
    made_up(&stack, 0).await;
    made_up(&stack, 1).await;
    let before = series(&stack).await;
    assert!(before.iter().any(|series| series.contains("model=\"other\"")), "{before:?}");
    for number in 2..NAMES {
        made_up(&stack, number).await;
    }
    assert_eq!(series(&stack).await, before);
    let all = all_series(&stack).await;
    for series in &all {
        assert!(!series.contains(".="), "a label that no tag takes out: {series}");
        for (label, value) in labels(series) {
            let bounded = VALUES.iter().find(|(name, _)| *name == label).map(|(_, values)| values.contains(&value));
            let known = bounded.unwrap_or(OF_REQUESTS.contains(&label) || label == BUCKET);
            assert!(known, "{label} is {value:?} in {series}");
        }
    }
    for name in ["warmroute_background_step_us", "warmroute_catch_ups_completed_total", "warmroute_shared_pages"] {
        assert!(all.iter().any(|series| series.starts_with(name)), "{name} is not in {all:?}");
    }
    let minutes = started.elapsed().as_secs() / 60;
    let warnings = stack.envoy.log_text().matches("UNKNOWN_TENANT: nothing is known of tenant \"t-").count();
    assert!((1..=1 + minutes as usize).contains(&warnings), "{warnings} in {minutes} whole minutes");
}
