//! An engine with several ranks of data parallelism: each prompt goes to the rank that has it.

use hyper::{Method, Request};
use serde_json::json;
use serde_norway::Value as Yaml;
use warmroute::native::fake::{Engine, EngineOptions, Timing};
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::ports::free_address;
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

const RANK: &str = "x-data-parallel-rank";

/// Two ports in a row that are free for now.
fn free_ports() -> u16 {
    let mut first = free_address().unwrap().port();
    loop {
        // Both are given out, so that nobody else gets the second.
        let second = free_address().unwrap().port();
        if second.checked_sub(1) == Some(first) {
            return first;
        }
        first = second;
    }
}

/// A stack whose only engine has two ranks.
async fn two_ranks(names_ranks: bool) -> (Stack, Engine) {
    let (events, replay) = (free_ports(), free_ports());
    let endpoints = [events, replay].map(|port| format!("tcp://127.0.0.1:{port}"));
    let [kv_events, kv_replay] = endpoints.clone();
    let stack = stack(|options| {
        options.engines = 1;
        options.with_engines = false;
        options.plugin["output"]["data_parallel_rank_header"] = json!(names_ranks);
        options.edit_hub = Some(Box::new(move |config, _| {
            let [kv_events, kv_replay] = endpoints;
            config["replicas"][0]["kv_events"] = Yaml::from(kv_events);
            config["replicas"][0]["kv_replay"] = Yaml::from(kv_replay);
            config["replicas"][0]["data_parallel_size"] = Yaml::from(2);
        }));
    })
    .await;
    let options = EngineOptions {
        id: "engine-0".to_owned(),
        listen: stack.addresses.engines[0].http,
        model: MODEL.to_owned(),
        kv_events: Some(kv_events),
        kv_replay: Some(kv_replay),
        data_parallel_size: 2,
        timing: Timing { base_ttft_us: 0, prefill_us_per_token: 1, decode_us_per_token: 0 },
        ..EngineOptions::default()
    };
    let engine = Engine::start(options).await.unwrap();
    (stack, engine)
}

fn head() -> hyper::http::request::Builder {
    Request::builder().method(Method::POST).header("content-type", "application/json")
}

/// What the engine saw of the header in the request that came last.
fn ranks_seen(engine: &Engine) -> Vec<String> {
    let requests = engine.requests().requests;
    let entry = requests.into_iter().rev().find(|entry| entry.path != "/metrics").unwrap();
    entry.headers.into_iter().filter(|(name, _)| name == RANK).map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_to_the_rank_that_has_it() {
    let (stack, engine) = two_ranks(true).await;
    for rank in [0, 1] {
        let prompt = tokens(rank, 160);
        let url = format!("{}/v1/completions", stack.engine_url(0));
        let warmed = stack.client.request(&url, head().header(RANK, rank), body(&prompt).into()).await.unwrap();
        assert_eq!(warmed.status, 200);
        let replica = format!("engine-0/dp{rank}");
        let known = eventually(10 * SOON, async || probe(&stack, &prompt).await.replica == replica).await;
        assert!(known, "{:?}", probe(&stack, &prompt).await);
    }
    for rank in [1, 0, 1] {
        // A client's own wish is not heard.
        let answer = send(&stack, head().header(RANK, "7"), "/v1/completions", body(&tokens(rank, 160))).await;
        assert_eq!((answer.status.as_u16(), decided(&answer).reason.as_str()), (200, "PREFIX_MATCH"));
        assert_eq!(ranks_seen(&engine), [rank.to_string()]);
    }
    let answer = send(&stack, head().header(RANK, "7"), "/v1/completions", body(&tokens(9, 160))).await;
    assert_eq!((answer.status, decided(&answer).matched_tokens), (hyper::StatusCode::OK, 0));
    assert!(ranks_seen(&engine).iter().all(|rank| rank != "7"));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unless_told_to_the_filter_leaves_ranks_to_the_engine_and_the_client() {
    let (stack, engine) = two_ranks(false).await;
    let answer = send(&stack, head(), "/v1/completions", body(&tokens(1, 160))).await;
    assert_eq!(answer.status, 200);
    assert!(ranks_seen(&engine).is_empty());
    let answer = send(&stack, head().header(RANK, "1"), "/v1/completions", body(&tokens(2, 160))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(ranks_seen(&engine), ["1"]);
    engine.shutdown().await;
}
