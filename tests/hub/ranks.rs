//! Ranks of data parallelism: caches of their own at one address.

use std::num::NonZeroUsize;
use std::time::Duration;

use warmroute::fingerprint::BlockSize;
use warmroute::native::fake::{Engine as FakeEngine, EngineOptions, Timing};
use warmroute::native::hub::{Hub, HubConfig};

use crate::hub_support::{BLOCK, Engine, Framing, Observer, free_port, get, keys_of, removed, stored, tokens};

/// Two ports in a row that are free for now.
fn free_ports() -> u16 {
    loop {
        let first = free_port();
        let next = first.checked_add(1).map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
        if matches!(next, Some(Ok(_))) {
            return first;
        }
    }
}

async fn hub(events: u16, replay: u16, ranks: u32) -> Hub {
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\nevents: {{verify_idle_ms: 300}}\nreplicas: [{{id: r0, \
         address: '127.0.0.1:8000', kv_events: 'tcp://127.0.0.1:{events}', kv_replay: 'tcp://127.0.0.1:{replay}', \
         model: m0, data_parallel_size: {ranks}}}]"
    );
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

#[tokio::test]
async fn each_rank_is_a_replica_at_the_ports_after_the_first() {
    let (events, replay) = (free_ports(), free_ports());
    let mut first = Engine::start_on(events, replay, Some(Framing::Two)).await;
    let mut second = Engine::start_on(events + 1, replay + 1, Some(Framing::Three)).await;
    second.rank = 1;
    second.publish(vec![stored(&[1], None, &tokens(70..74))]).await;
    let hub = hub(events, replay, 2).await;
    let mut observer = Observer::new(&hub).await;
    observer.until("what rank 1 held before", |seen| seen.holds("r0/dp1", &tokens(70..74))).await;
    observer.until("rank 0", |seen| seen.complete.contains("r0/dp0")).await;
    assert_eq!(observer.addresses["r0/dp0"], "127.0.0.1:8000");
    assert_eq!(observer.addresses["r0/dp1"], "127.0.0.1:8000");
    assert_eq!((observer.ranks["r0/dp0"], observer.ranks["r0/dp1"]), (Some(0), Some(1)));
    first.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("a block of rank 0", |seen| seen.holds("r0/dp0", &tokens(0..4))).await;
    assert!(observer.holds("r0/dp1", &tokens(70..74)), "one rank's events are not another's");

    // A batch that states another rank is not credited, and may have said that blocks of this one are gone.
    second.rank = 0;
    second.publish(vec![removed(&[1]), stored(&[2], None, &tokens(0..4))]).await;
    second.rank = 1;
    second.publish(vec![stored(&[3], None, &tokens(74..78))]).await;
    observer.until("the next batch of rank 1", |seen| seen.holds("r0/dp1", &tokens(74..78))).await;
    assert!(!observer.holds("r0/dp1", &tokens(70..74)) && !observer.holds("r0/dp1", &tokens(0..4)));
    let (_, metrics) = get(&hub, "/metrics").await;
    assert!(metrics.contains("skipped_total{replica=\"r0/dp1\",reason=\"other_rank\"} 1"), "{metrics}");
    let (_, state) = get(&hub, "/state").await;
    assert!(state.contains("\"r0/dp0\"") && state.contains("\"data_parallel_rank\":1"), "{state}");
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_with_one_rank_may_state_any() {
    let (events, replay) = (free_port(), free_port());
    let mut engine = Engine::start_on(events, replay, Some(Framing::Two)).await;
    engine.rank = 7;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    let hub = hub(events, replay, 1).await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    assert_eq!(observer.ranks["r0"], None);
    hub.shutdown().await;
}

/// A prompt of 32 tokens.
async fn ask(engine: &FakeEngine, rank: u32, first: u32) {
    let prompt: Vec<u32> = (first..first + 32).collect();
    let body = serde_json::json!({"model": "m0", "prompt": prompt, "max_tokens": 1}).to_string();
    let request = hyper::Request::builder()
        .method("POST")
        .uri(format!("http://{}/v1/completions", engine.address()))
        .header("content-type", "application/json")
        .header("x-data-parallel-rank", rank)
        .body(http_body_util::Full::new(bytes::Bytes::from(body)))
        .unwrap();
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let response = client.request(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.headers()["x-data-parallel-rank"].to_str().unwrap()),
        (200, &*rank.to_string())
    );
}

#[tokio::test]
async fn an_engine_that_loses_doubles_and_skips_batches_and_starts_over_is_followed_rank_by_rank() {
    let (events, replay) = (free_ports(), free_ports());
    let mut options = EngineOptions {
        kv_events: Some(format!("tcp://127.0.0.1:{events}")),
        kv_replay: Some(format!("tcp://127.0.0.1:{replay}")),
        model: "m0".to_owned(),
        data_parallel_size: 2,
        blocks: NonZeroUsize::new(64).unwrap(),
        block_size: BlockSize::try_new(BLOCK as u64).unwrap(),
        timing: Timing { base_ttft_us: 0, prefill_us_per_token: 1, decode_us_per_token: 0 },
        ..EngineOptions::default()
    };
    options.faults.drop_every = 3;
    options.faults.duplicate_every = 2;
    let engine = FakeEngine::start(options).await.unwrap();
    let hub = hub(events, replay, 2).await;
    let mut observer = Observer::new(&hub).await;
    observer.until("both ranks", |seen| seen.complete.len() == 2).await;
    for prompt in 0..8 {
        ask(&engine, prompt % 2, 1_000 * prompt).await;
    }
    let of = |rank: u32| (0..8).filter(move |prompt| prompt % 2 == rank).map(|prompt| prompt * 1_000);
    for rank in [0, 1] {
        let expected = of(rank).flat_map(|first| keys_of(&tokens(first..first + 32))).collect();
        let replica = format!("r0/dp{rank}");
        observer.until("its prompts", |seen| seen.held.get(&replica) == Some(&expected)).await;
    }
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let request = hyper::Request::post(format!("http://{}/debug/restart", engine.address()))
        .body(http_body_util::Full::new(bytes::Bytes::new()))
        .unwrap();
    assert_eq!(client.request(request).await.unwrap().status().as_u16(), 200);
    ask(&engine, 1, 50_000).await;
    let expected = keys_of(&tokens(50_000..50_032));
    observer.until("the new life of rank 1", |seen| seen.held["r0/dp1"] == expected).await;
    observer.until("nothing at rank 0", |seen| seen.held["r0/dp0"].is_empty()).await;
    tokio::time::timeout(Duration::from_secs(10), hub.shutdown()).await.unwrap();
    engine.shutdown().await;
}
