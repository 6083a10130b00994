//! A request goes to the replica that holds its prefix, and only as long as it does.

use std::collections::HashSet;
use std::time::Duration;

use hyper::Method;
use hyper::Request;
use serde_json::json;
use warmroute::native::load::client::Client;
use warmroute::native::load::stack::eventually;

use crate::pool::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_of_a_conversation_goes_where_the_last_one_went() {
    for encoding in ["array", "map"] {
        let stack = stack(|options| options.engine.event_encoding = encoding.into()).await;
        let mut prompt = tokens(1, 100);
        let first = complete(&stack, &prompt, 20).await;
        assert_eq!(first.header("x-inferencecache-reason-code"), "NO_HINT");
        let server = first.header("x-engine-id").to_owned();
        assert_eq!(first.text.len(), 20);
        prompt.extend(first.text.bytes().map(u32::from));
        prompt.extend(tokens(2, 50));
        // 120 tokens of prompt and answer make 7 whole blocks, 112 tokens, whether or not the last token is cached.
        assert_eq!(credited(&stack, &prompt, 112).await, server);
        let mut last_turn = 112;
        for turn in 2..6 {
            let held = whole_blocks(prompt.len());
            let answer = complete(&stack, &prompt, 1).await;
            assert_eq!(answer.header("x-inferencecache-reason-code"), "PREFIX_MATCH", "turn {turn}");
            assert_eq!(answer.header("x-inferencecache-replica-id"), server, "turn {turn}");
            assert_eq!(answer.header("x-engine-id"), server, "turn {turn}");
            let matched: u64 = answer.header("x-inferencecache-matched-tokens").parse().unwrap();
            assert!(answer.cached_tokens >= matched, "turn {turn}: {} of {matched} cached", answer.cached_tokens);
            assert_eq!(matched, last_turn, "turn {turn}");
            last_turn = held as u64;
            prompt.extend(tokens(10 + turn, 39));
            credited(&stack, &prompt, held).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_every_replica_holds_is_no_hint_and_is_spread() {
    let stack = stack(|_| ()).await;
    let shared = tokens(1, 160);
    for engine in 0..3 {
        warm(&stack, engine, &shared).await;
    }
    let own = tokens(2, 160);
    warm(&stack, 0, &own).await;
    credited(&stack, &own, 160).await;
    let spread = eventually(SOON, async || probe(&stack, &shared).await.detail == "below_routing_floor").await;
    assert!(spread, "{:?}", probe(&stack, &shared).await);
    let mut engines = HashSet::new();
    for _ in 0..6 {
        let answer = complete(&stack, &shared, 1).await;
        assert_eq!(answer.header("x-inferencecache-reason-code"), "NO_HINT");
        engines.insert(answer.header("x-engine-id").to_owned());
    }
    assert_eq!(engines.len(), 3, "{engines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_evicts_or_clears_is_no_longer_credited() {
    // Room for 32 blocks of 16 tokens.
    let stack = stack(|options| options.engine.blocks = 32).await;
    let prompt = tokens(1, 320);
    warm(&stack, 1, &prompt).await;
    assert_eq!(credited(&stack, &prompt, 320).await, "engine-1");
    // The engine makes room for another prompt: at least 8 of the first one's 20 blocks have to go.
    warm(&stack, 1, &tokens(2, 320)).await;
    let evicted = eventually(SOON, async || probe(&stack, &prompt).await.matched_tokens <= 192).await;
    assert!(evicted, "{:?}", probe(&stack, &prompt).await);
    assert_eq!(credited(&stack, &tokens(2, 320), 320).await, "engine-1");
    assert_eq!(stack.reset_prefix_cache(1).await.unwrap().status, 200);
    forgotten(&stack, &tokens(2, 320), SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_restarted_in_place_is_not_credited_with_what_it_held() {
    for encoding in ["array", "map"] {
        let mut stack = stack(|options| options.engine.event_encoding = encoding.into()).await;
        let prompt = tokens(1, 160);
        warm(&stack, 2, &prompt).await;
        assert_eq!(credited(&stack, &prompt, 160).await, "engine-2");
        stack.engines[2].restart().await.unwrap();
        stack.engine_ready(2).await.unwrap();
        forgotten(&stack, &prompt, Duration::from_secs(2)).await;
        // It starts over from there.
        warm(&stack, 2, &prompt).await;
        assert_eq!(credited(&stack, &prompt, 160).await, "engine-2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_has_the_best_first_and_the_second_takes_over() {
    let mut stack = stack(|_| ()).await;
    let prompt = tokens(1, 320);
    warm(&stack, 1, &prompt).await;
    warm(&stack, 2, &prompt[..160]).await;
    assert_eq!(credited(&stack, &prompt, 320).await, "engine-1");
    let mut list = String::new();
    let both = eventually(SOON, async || {
        let answer = send(&stack, probe_head(&prompt), "/probe", "").await;
        let entry = last_seen(&stack, engine_of(&answer)).await;
        list = header_values(&entry, "x-gateway-destination-endpoint").join(" ");
        list.contains(',')
    })
    .await;
    let expected = [1, 2].map(|place: usize| stack.addresses.engines[place].http.to_string()).join(",");
    assert!(both, "{list}");
    assert_eq!(list, expected);
    // The hub is paused, so that the hint stays what it is.
    stack.hub.stop().unwrap();
    stack.engines[1].kill().await.unwrap();
    let answer = complete(&stack, &prompt, 1).await;
    assert_eq!(answer.header("x-inferencecache-replica-id"), "engine-1");
    assert_eq!(answer.header("x-engine-id"), "engine-2");
    let metrics = stack.metrics().await.unwrap();
    assert_eq!(metrics.sum("warmroute_hint_followed_total", &[("followed", "other")]), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_at_once_survive_a_dead_replica() {
    let mut stack = stack(|_| ()).await;
    let prompt = tokens(1, 320);
    warm(&stack, 1, &prompt).await;
    assert_eq!(credited(&stack, &prompt, 320).await, "engine-1");
    // A worker that none of the requests before came to has yet to read the log.
    let all_know = eventually(SOON * 10, async || {
        let requests = (0..32).map(|_| send(&stack, probe_head(&prompt), "/probe", ""));
        futures::future::join_all(requests).await.iter().all(|answer| decided(answer).replica == "engine-1")
    });
    assert!(all_know.await, "{}", stack.envoy.log_tail());
    // The hub is paused, so that every request is sent to the dead one first.
    stack.hub.stop().unwrap();
    stack.engines[1].kill().await.unwrap();
    for _ in 0..4 {
        let requests = (0..32).map(|_| send(&stack, probe_head(&prompt), "/probe", ""));
        for answer in futures::future::join_all(requests).await {
            assert_eq!(answer.status, 404, "answered by an engine");
            assert_eq!(decided(&answer).replica, "engine-1");
            assert_ne!(engine_of(&answer), 1);
        }
    }
    let metrics = stack.metrics().await.unwrap();
    assert_eq!(metrics.sum("envoy_cluster_upstream_rq_retry_overflow", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_workers_give_the_same_answer() {
    let stack = stack(|options| options.workers = 2).await;
    let prompt = tokens(1, 320);
    warm(&stack, 1, &prompt).await;
    warm(&stack, 2, &prompt[..160]).await;
    credited(&stack, &prompt, 320).await;
    let connections = async |worker: usize| {
        let metrics = stack.client.get(&stack.admin_url("/stats?filter=worker_")).await.unwrap().text();
        let line = format!("worker_{worker}.downstream_cx_total: ");
        let counts =
            metrics.lines().filter_map(|text| text.split_once(&line)).map(|(_, count)| count.parse::<u64>().unwrap());
        counts.sum::<u64>()
    };
    // The kernel spreads connections as it likes: open new ones until both workers have had several.
    let mut answers = HashSet::new();
    for _ in 0..400 {
        let client = Client::default();
        let url = format!("{}/probe", stack.envoy_url());
        let answer = client.request(&url, probe_head(&prompt), "".into()).await.unwrap();
        answers.insert(format!("{:?}", decided(&answer)));
        if connections(0).await >= 5 && connections(1).await >= 5 {
            break;
        }
    }
    assert!(connections(0).await >= 5 && connections(1).await >= 5);
    // A worker's first request may come before its index is there.
    let settled = probe(&stack, &prompt).await;
    assert_eq!((settled.replica.as_str(), settled.matched_tokens), ("engine-1", 320));
    answers.retain(|answer| !answer.contains("catching_up"));
    assert_eq!(answers, HashSet::from([format!("{settled:?}")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_hint_is_counted() {
    let stack = stack(|_| ()).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    let followed =
        async |label| stack.metrics().await.unwrap().sum("warmroute_hint_followed_total", &[("followed", label)]);
    let before = followed("first").await;
    assert!(before >= 1.0, "the probe's hint was followed too");
    for _ in 0..3 {
        complete(&stack, &prompt, 1).await;
    }
    assert_eq!(followed("first").await, before + 3.0);
    assert_eq!(followed("none").await + followed("other").await, 0.0);
    let metrics = stack.client.get(&stack.admin_url("/stats/prometheus")).await.unwrap().text();
    let exact =
        r#"inferencecache_lookup_route_calls_total{model="llama-3.1-8b",reason_code="PREFIX_MATCH",hint_used="true"} "#;
    assert!(metrics.lines().any(|line| line.starts_with(exact)), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_by_addresses_that_envoy_does_not_know_are_told_once() {
    let stack = stack(|options| {
        options.edit_hub = Some(Box::new(|config, _| {
            for replica in config["replicas"].as_sequence_mut().unwrap() {
                // The same engine for the hub, but not literally what Envoy's cluster says.
                let address = replica["address"].as_str().unwrap().replace("127.0.0.1", "127.0.0.2");
                replica["metrics"] = format!("http://{}/metrics", address.replace("127.0.0.2", "127.0.0.1")).into();
                replica["address"] = address.into();
            }
        }));
    })
    .await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    // Each worker has its own count; 20 unfollowed hints in one of them are enough.
    for _ in 0..60 {
        probe(&stack, &prompt).await;
    }
    let warnings = stack.envoy.log_text().matches("no hint was ever followed").count();
    assert!((1..=2).contains(&warnings), "one a worker, not {warnings}");
    let metrics = stack.metrics().await.unwrap();
    assert!(metrics.sum("warmroute_hint_followed_total", &[("followed", "none")]) >= 60.0);
    assert_eq!(metrics.sum("warmroute_hint_followed_total", &[("followed", "first")]), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_and_the_engine_see_the_decision() {
    let stack = stack(|_| ()).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    let head = Request::builder().method(Method::POST).header("content-type", "application/json");
    let answer =
        send(&stack, head, "/v1/completions", json!({"model": "llama-3.1-8b", "prompt": prompt}).to_string()).await;
    assert_eq!(engine_of(&answer), 1);
    let entry = last_seen(&stack, 1).await;
    let address = stack.addresses.engines[1].http.to_string();
    for (name, value) in [
        ("x-gateway-destination-endpoint", address.as_str()),
        ("x-inferencecache-reason-code", "PREFIX_MATCH"),
        ("x-inferencecache-replica-id", "engine-1"),
        ("x-inferencecache-matched-tokens", "160"),
    ] {
        assert_eq!(header_values(&entry, name), [value], "{name}");
    }
    assert!(header_values(&entry, "x-inferencecache-detail").is_empty());
    let line =
        format!("/v1/completions 200 - to={address} reason=PREFIX_MATCH detail=- replica=engine-1 matched_tokens=160");
    let logged = eventually(Duration::from_secs(15), async || stack.envoy.log_text().contains(&line)).await;
    assert!(logged, "{}", stack.envoy.log_text());
}
