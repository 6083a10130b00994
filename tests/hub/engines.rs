//! Engines of every kind side by side, and one that nobody understands.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rmpv::Value;
use tokio::time::sleep;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::fake::{Engine as FakeEngine, EngineOptions, EventEncoding, Timing};
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::observation::{BlockKey, Tier};

use crate::hub_support::{
    BLOCK, Engine, Framing, Observer, free_port, get, observed, removed, run_binary, stored, tokens,
};

/// Within this an operator is to know.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

fn map(entries: Vec<(&str, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn numbers(values: &[u64]) -> Value {
    values.iter().map(|value| Value::from(*value)).collect::<Vec<_>>().into()
}

fn ids(token_ids: &[u32]) -> Value {
    token_ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>().into()
}

/// `BlockStored` as SGLang 0.5.20 sends it, its keys with a sign.
fn sglang_stored(keys: &[i64], parent: Option<i64>, token_ids: &[u32], salt: Option<&str>) -> Value {
    let keys: Vec<Value> = keys.iter().map(|key| Value::from(*key)).collect();
    let mut entries = vec![
        ("type", "BlockStored".into()),
        ("block_hashes", keys.into()),
        ("parent_block_hash", parent.map_or(Value::Nil, Value::from)),
        ("token_ids", ids(token_ids)),
        ("block_size", (BLOCK as u64).into()),
        ("lora_id", Value::Nil),
        ("medium", "GPU".into()),
    ];
    entries.extend(salt.map(|salt| ("cache_salt", salt.into())));
    map(entries)
}

/// `BlockStored` as TensorRT-LLM sends it, with the digest of an image in place of each token of the last block.
fn tensorrt_llm_stored(keys: &[u64], token_ids: &[u32]) -> Value {
    let mut tokens: Vec<Value> = token_ids.iter().map(|id| Value::from(*id)).collect();
    tokens.extend(vec![Value::from("0a".repeat(32)); BLOCK]);
    let image = map(vec![("type", "mm_key".into()), ("hash", "0a".into()), ("start_offset", 0.into())]);
    let mut images = vec![Value::Array(Vec::new()); keys.len() - 1];
    images.push(Value::Array(vec![image]));
    map(vec![
        ("type", "BlockStored".into()),
        ("block_hashes", numbers(keys)),
        ("parent_block_hash", Value::Nil),
        ("token_ids", tokens.into()),
        ("block_size", (BLOCK as u64).into()),
        ("lora_id", Value::Nil),
        ("medium", "GPU".into()),
        ("lora_name", Value::Nil),
        ("mm_keys", images.into()),
    ])
}

/// Waits until the metric has this value.
async fn until_metric(hub: &Hub, line: &str) {
    let limit = Instant::now() + KNOWN_WITHIN;
    loop {
        let metrics = get(hub, "/metrics").await.1;
        if metrics.lines().any(|of| of == line) {
            return;
        }
        assert!(Instant::now() < limit, "not {line}: {metrics}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn engines_of_every_kind_are_read_side_by_side() {
    let mut vllm = Engine::start(Framing::Two).await;
    let mut sglang = Engine::start(Framing::Two).await;
    let mut tensorrt = Engine::start(Framing::Three).await;
    let (hub, mut observer) = observed(&[&vllm, &sglang, &tensorrt], "").await;
    vllm.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    sglang.publish(vec![sglang_stored(&[-1], None, &tokens(0..4), None)]).await;
    sglang.publish(vec![sglang_stored(&[-2, -3], Some(-1), &tokens(4..12), None)]).await;
    sglang.publish(vec![sglang_stored(&[-4], None, &tokens(50..54), Some("salt"))]).await;
    tensorrt.publish(vec![tensorrt_llm_stored(&[1, 2, 3], &tokens(0..8))]).await;
    observer.until("vLLM's blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    observer.until("SGLang's blocks", |seen| seen.holds("r1", &tokens(0..12))).await;
    observer.until("TensorRT-LLM's blocks", |seen| seen.holds("r2", &tokens(0..8))).await;
    until_metric(&hub, "warmroute_hub_skipped_total{replica=\"r1\",reason=\"salted\"} 1").await;
    until_metric(&hub, "warmroute_hub_skipped_total{replica=\"r2\",reason=\"extra_keys\"} 1").await;
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_changes_its_layout_in_mid_stream_is_followed() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    engine.publish(vec![sglang_stored(&[2], Some(1), &tokens(4..8), None)]).await;
    engine.publish(vec![stored(&[3], Some(2), &tokens(8..12)), removed(&[9])]).await;
    observer.until("all three", |seen| seen.holds("r0", &tokens(0..12))).await;
    assert_eq!(observer.clears, 0);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_block_that_moves_away_is_told_with_its_tier() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    let at = |medium: &str, tag: &str| {
        let mut entries = vec![("type", tag.into()), ("block_hashes", numbers(&[1, 2]))];
        entries.push(("medium", medium.into()));
        map(entries)
    };
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8)), at("CPU", "BlockStored")]).await;
    engine.publish(vec![at("GPU", "BlockRemoved")]).await;
    let keys: Vec<BlockKey> =
        prefix_hashes(&tokens(0..8), BlockSize::try_new(BLOCK as u64).unwrap(), None).map(BlockKey::from).collect();
    let tier_of = |seen: &Observer, key: &BlockKey| {
        let last = seen.stored.iter().rev().find(|stored| stored.blocks.iter().any(|block| block.key == *key));
        last.map(|stored| stored.tier)
    };
    let is_at = |seen: &Observer, tier| keys.iter().all(|key| tier_of(seen, key) == Some(tier));
    observer.until("the second tier", |seen| is_at(seen, Tier::T2)).await;
    assert!(observer.holds("r0", &tokens(0..8)));
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert!(is_at(&late, Tier::T2) && late.holds("r0", &tokens(0..8)));
    engine.publish(vec![at("CPU", "BlockRemoved")]).await;
    observer.until("nothing", |seen| seen.holds("r0", &[])).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_is_not_understood_holds_nothing_and_is_told_of() {
    let mut engine = Engine::start(Framing::Two).await;
    let mut other = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine, &other], "").await;
    for unreadable in [
        Bytes::from_static(b"{\"type\": \"BlockStored\"}"),
        // Batches as ever, but events of a kind that nobody knows.
        encoded(&Value::Array(vec![0.into(), vec![map(vec![("type", "BlocksV2".into())])].into(), 0.into()])),
    ] {
        engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
        other.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
        observer.until("the blocks", |seen| seen.holds("r0", &tokens(0..4)) && seen.holds("r1", &tokens(0..4))).await;
        until_metric(&hub, "warmroute_hub_unreadable{replica=\"r0\"} 0").await;
        let clears = observer.clears;
        engine.publish_payload(unreadable).await;
        observer.until("that it holds nothing", |seen| seen.holds("r0", &[])).await;
        until_metric(&hub, "warmroute_hub_unreadable{replica=\"r0\"} 1").await;
        assert_eq!(observer.clears, clears + 1, "the other one is as it was");
        assert!(observer.holds("r1", &tokens(0..4)));
        until_metric(&hub, "warmroute_hub_unreadable{replica=\"r1\"} 0").await;
    }
    engine.publish(vec![stored(&[2], None, &tokens(20..24))]).await;
    observer.until("what it says then", |seen| seen.holds("r0", &tokens(20..24))).await;
    until_metric(&hub, "warmroute_hub_unreadable{replica=\"r0\"} 0").await;
    hub.shutdown().await;
}

fn encoded(value: &Value) -> Bytes {
    let mut payload = Vec::new();
    rmpv::encode::write_value(&mut payload, value).unwrap();
    payload.into()
}

#[tokio::test]
async fn what_is_not_understood_is_said_once_with_replica_and_cause() {
    let mut engine = Engine::start(Framing::Two).await;
    let (grpc, http) = (free_port(), free_port());
    let child = run_binary(&format!(
        "listen: {{grpc: '127.0.0.1:{grpc}', http: '127.0.0.1:{http}'}}\n\
         replicas: [{{id: strange, address: '127.0.0.1:1', kv_events: 'tcp://127.0.0.1:{}', \
         kv_replay: 'tcp://127.0.0.1:{}', model: m}}]",
        engine.events_port, engine.replay_port
    ));
    // What was published before the hub came is replayed to it.
    for at in 0..5_u64 {
        engine.publish(vec![sglang_stored(&[-1 - at as i64], None, &tokens(0..4), Some("salt"))]).await;
    }
    for _ in 0..5 {
        engine.publish_payload(Bytes::from_static(b"no batch")).await;
    }
    let limit = Instant::now() + KNOWN_WITHIN;
    while !metrics(http).await.contains("reason=\"malformed_batch\"} 5") {
        assert!(Instant::now() < limit, "not read: {}", metrics(http).await);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    let lines_with = |what: &str| lines.lines().filter(|line| line.contains(what) && line.contains("strange")).count();
    assert_eq!(lines_with("its events cannot be read"), 1, "{lines}");
    assert_eq!(lines_with("not credited: keys depend on a salt (salted 1)"), 1, "{lines}");
    assert_eq!(lines_with("(malformed_batch 1)"), 1, "{lines}");
}

/// The metrics of a hub in a process of its own; nothing while it starts.
async fn metrics(port: u16) -> String {
    exchange(port, "GET /metrics HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n").await
}

/// What is answered, if anything is.
async fn exchange(port: u16, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else { return String::new() };
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let _ = stream.read_to_end(&mut answer).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A fake engine that takes no time, and a hub that follows it.
async fn followed(options: EngineOptions) -> (FakeEngine, Hub, Observer) {
    let any = || Some("tcp://127.0.0.1:0".to_owned());
    let engine = FakeEngine::start(EngineOptions {
        kv_events: any(),
        kv_replay: any(),
        block_size: BlockSize::try_new(BLOCK as u64).unwrap(),
        timing: Timing { base_ttft_us: 0, prefill_us_per_token: 0, decode_us_per_token: 0 },
        ..options
    });
    let engine = engine.await.unwrap();
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\n\
         replicas: [{{id: r0, address: '{}', kv_events: '{}', kv_replay: '{}', model: m, adapter_names: {{1: sql}}}}]",
        engine.address(),
        engine.kv_events().unwrap(),
        engine.kv_replay().unwrap()
    );
    let hub = Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap();
    let observer = Observer::new(&hub).await;
    (engine, hub, observer)
}

/// Has the engine compute a prompt.
async fn complete(engine: &FakeEngine, token_ids: &[u32], more: &str) {
    let body = format!("{{\"prompt\": {token_ids:?}, \"max_tokens\": 1{more}}}");
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(engine.address().port(), &request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn an_engine_of_each_layout_is_followed() {
    for event_encoding in EventEncoding::ALL {
        let (engine, hub, mut observer) = followed(EngineOptions { event_encoding, ..EngineOptions::default() }).await;
        complete(&engine, &tokens(0..8), "").await;
        complete(&engine, &tokens(0..12), "").await;
        if event_encoding == EventEncoding::Sglang055 {
            // Of this one no block has a place in a prompt.
            until_metric(&hub, "warmroute_hub_skipped_total{replica=\"r0\",reason=\"unproven_root\"} 2").await;
            assert!(observer.stored.is_empty());
        } else {
            observer.until("the blocks", |seen| seen.holds("r0", &tokens(0..12))).await;
            assert_eq!(observer.clears, 0, "{event_encoding:?}");
        }
        hub.shutdown().await;
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn salted_blocks_are_counted_and_no_others_credited() {
    use EventEncoding::{Array, Map, Sglang0518, Sglang0522};
    for (event_encoding, reason) in
        [(Array, "extra_keys"), (Map, "extra_keys"), (Sglang0518, "salted"), (Sglang0522, "salted")]
    {
        let (engine, hub, mut observer) = followed(EngineOptions { event_encoding, ..EngineOptions::default() }).await;
        complete(&engine, &tokens(0..8), ", \"cache_salt\": \"mine\"").await;
        complete(&engine, &tokens(50..54), "").await;
        observer.until("the block without a salt", |seen| seen.holds("r0", &tokens(50..54))).await;
        until_metric(&hub, &format!("warmroute_hub_skipped_total{{replica=\"r0\",reason=\"{reason}\"}} 2")).await;
        hub.shutdown().await;
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn an_adapter_without_a_name_has_the_configured_one() {
    for event_encoding in [EventEncoding::Vllm09, EventEncoding::TensorrtLlm, EventEncoding::Map] {
        let options = EngineOptions { event_encoding, lora: vec!["sql".into()], ..EngineOptions::default() };
        let (engine, hub, mut observer) = followed(options).await;
        complete(&engine, &tokens(0..8), ", \"model\": \"sql\"").await;
        observer.until("the adapter's blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
        let scope = observer.stored[0].scope;
        complete(&engine, &tokens(0..8), "").await;
        observer.until("the model's blocks", |seen| seen.stored.iter().any(|stored| stored.scope != scope)).await;
        hub.shutdown().await;
        engine.shutdown().await;
    }
}

#[tokio::test]
async fn an_engine_that_is_upgraded_under_way_is_followed() {
    let options = EngineOptions {
        event_encoding: EventEncoding::Array,
        switch_encoding: Some(EventEncoding::Sglang0522),
        switch_encoding_at: Some(1),
        ..EngineOptions::default()
    };
    let (engine, hub, mut observer) = followed(options).await;
    complete(&engine, &tokens(0..8), "").await;
    observer.until("the first blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    complete(&engine, &tokens(50..58), "").await;
    observer.until("the blocks in the other layout", |seen| seen.held["r0"].len() == 4).await;
    assert_eq!(observer.clears, 0);
    hub.shutdown().await;
    engine.shutdown().await;
}
