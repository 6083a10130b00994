//! Hits of a tenant whose policy is LFU come from the workers to the leader.

use serde_json::json;
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

async fn counted(stack: &Stack, metric: &str) -> f64 {
    stack.metrics().await.unwrap().sum(metric, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_hits_reach_the_leader_block_by_block() {
    let stack = stack(|options| options.plugin["policy"] = json!({ "eviction": "LFU" })).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    // Every worker has seen the leader's head change, and what the requests so far hit is counted.
    let mut last = -1.0;
    let settled = eventually(SOON * 10, async || {
        tokio::time::sleep(SOON * 2).await;
        let before = std::mem::replace(&mut last, counted(&stack, "warmroute_lfu_credits_total").await);
        before == last
    });
    assert!(settled.await, "{}", stack.envoy.log_tail());
    for _ in 0..40 {
        assert_eq!(probe(&stack, &prompt).await.matched_tokens, 160);
    }
    // Ten blocks each, at one replica.
    let expected = last + 40.0 * 10.0;
    let reached = eventually(SOON * 5, async || counted(&stack, "warmroute_lfu_credits_total").await >= expected).await;
    let credits = counted(&stack, "warmroute_lfu_credits_total").await;
    assert!(reached && credits == expected, "{credits} of {expected}\n{}", stack.envoy.log_tail());
    for metric in ["warmroute_lfu_credits_lost_total", "warmroute_lfu_batches_dropped_total"] {
        assert_eq!(counted(&stack, metric).await, 0.0, "{metric}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_of_other_tenants_are_not_counted() {
    let stack = stack(|_| {}).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    for _ in 0..10 {
        assert_eq!(probe(&stack, &prompt).await.matched_tokens, 160);
    }
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(counted(&stack, "warmroute_lfu_credits_total").await, 0.0);
}
