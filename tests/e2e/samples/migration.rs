//! `envoy/migration.yaml`: with a hint the ORIGINAL_DST cluster dials it, without one the pool answers.

use super::*;

const SAMPLE: &str = include_str!("../../../envoy/migration.yaml");

/// A request with a body that no engine holds.
fn completion() -> Builder {
    hyper::Request::post("/").header("content-type", "application/json")
}

/// How many requests a cluster has got.
async fn requests(stack: &Stack, cluster: &str) -> f64 {
    stack.metrics().await.unwrap().sum("envoy_cluster_upstream_rq_total", &[("envoy_cluster_name", cluster)])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_hint_goes_to_the_pool() {
    let stack = stack(|options| options.sample = SAMPLE).await;
    let answer = send(&stack, completion(), "/v1/completions", body(&tokens(7, 160))).await;
    assert_eq!((answer.status.as_u16(), requests(&stack, "named").await), (200, 0.0));
    shows_a_match("migration.yaml", &stack, &as_it_is).await;
    // A prompt that is held is matched when the route has been chosen long since.
    let before = requests(&stack, "named").await;
    reads_bodies("migration.yaml", &stack, &as_it_is).await;
    assert_eq!(requests(&stack, "named").await, before + 1.0);
    let (named, pool) = (requests(&stack, "named").await, requests(&stack, "engines").await);
    assert!(named > 30.0, "{named} requests were sent where the hint says");

    // A client that names a replica, or a machine elsewhere, gets neither.
    for (forged, seed) in [(stack.addresses.engines[2].http, 8), (stack.addresses.admin, 9)] {
        let head = completion().header("x-gateway-destination-endpoint", forged.to_string());
        let answer = send(&stack, head, "/v1/completions", body(&tokens(seed, 160))).await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!((requests(&stack, "named").await, requests(&stack, "engines").await), (named, pool + 2.0));
}

/// The stated risk: a replica that is down costs the requests that are sent to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_named_replica_that_is_down_costs_the_request() {
    let mut stack = stack(|options| options.sample = SAMPLE).await;
    shows_a_match("migration.yaml", &stack, &as_it_is).await;
    stack.hub.kill().await.unwrap();
    stack.engines[1].kill().await.unwrap();
    let answer = send(&stack, probe_head(&tokens(1, 160)), "/v1/probe", "").await;
    assert_eq!(answer.status, 503);
}
