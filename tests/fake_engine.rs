//! The fake engine as its clients see it: over HTTP, and over ZeroMQ with a real SUB and DEALER.
#![cfg(feature = "native")]
#![cfg(test)]

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rmpv::Value as Msgpack;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warmroute::native::fake::{Engine, EngineOptions, EventEncoding, HashForm, StartError, Timing};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const PATIENCE: Duration = Duration::from_secs(5);

fn options() -> EngineOptions {
    EngineOptions {
        id: "engine-a".to_owned(),
        kv_events: Some("tcp://127.0.0.1:0".to_owned()),
        kv_replay: Some("tcp://127.0.0.1:0".to_owned()),
        model: "m".to_owned(),
        timing: Timing { base_ttft_us: 0, prefill_us_per_token: 10, decode_us_per_token: 0 },
        ..EngineOptions::default()
    }
}

async fn start(options: EngineOptions) -> Engine {
    Engine::start(options).await.unwrap()
}

struct Reply {
    status: StatusCode,
    version: Version,
    engine_id: String,
    body: Bytes,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn http_1() -> Client<HttpConnector, Full<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn send(
    client: &Client<HttpConnector, Full<Bytes>>,
    engine: &Engine,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
) -> Reply {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", engine.address()))
        .header("content-type", "application/json")
        .header("x-test", "kept")
        .body(Full::new(body.into()))
        .unwrap();
    let response = client.request(request).await.unwrap();
    Reply {
        status: response.status(),
        version: response.version(),
        engine_id: response.headers()["x-engine-id"].to_str().unwrap().to_owned(),
        body: response.into_body().collect().await.unwrap().to_bytes(),
    }
}

async fn complete(engine: &Engine, body: Value) -> Value {
    let reply = send(&http_1(), engine, Method::POST, "/v1/completions", body.to_string()).await;
    assert_eq!(reply.status, StatusCode::OK, "{:?}", reply.body);
    reply.json()
}

fn cached_tokens(completion: &Value) -> u64 {
    completion["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

async fn reset(engine: &Engine) {
    let reply = send(&http_1(), engine, Method::POST, "/reset_prefix_cache", "").await;
    assert_eq!(reply.status, StatusCode::OK);
}

/// A SUB socket that has seen a first batch, so that none after it is missed; and that batch's sequence.
async fn subscribe(engine: &Engine, topic: &str) -> (SubSocket, u64) {
    let mut socket = SubSocket::new();
    socket.connect(engine.kv_events().unwrap()).await.unwrap();
    socket.subscribe(topic).await.unwrap();
    for _ in 0..100 {
        reset(engine).await;
        if let Ok(message) = tokio::time::timeout(Duration::from_millis(50), socket.recv()).await {
            return (socket, sequence(&message.unwrap().into_vec()[1]));
        }
    }
    panic!("no batch arrived");
}

async fn receive(socket: &mut impl SocketRecv) -> Vec<Bytes> {
    tokio::time::timeout(PATIENCE, socket.recv()).await.expect("a message in time").unwrap().into_vec()
}

async fn dealer(engine: &Engine) -> DealerSocket {
    let mut socket = DealerSocket::new();
    socket.connect(engine.kv_replay().unwrap()).await.unwrap();
    socket
}

async fn ask(socket: &mut DealerSocket, frames: &[&[u8]]) {
    let frames: Vec<_> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
    socket.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
}

/// All replies to a replay from `start`, the end included.
async fn replay(engine: &Engine, start: u64) -> Vec<Vec<Bytes>> {
    let mut socket = dealer(engine).await;
    ask(&mut socket, &[b"", &start.to_be_bytes()]).await;
    let mut replies = Vec::new();
    loop {
        let reply = receive(&mut socket).await;
        let end = reply.contains(&Bytes::from_static(&[0xFF; 8]));
        replies.push(reply);
        if end {
            return replies;
        }
    }
}

fn sequence(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().unwrap())
}

/// The events of a batch whose frame and fields around them are as they should be.
fn events(payload: &Bytes) -> Vec<Msgpack> {
    let mut rest = payload.as_ref();
    let batch = rmpv::decode::read_value(&mut rest).unwrap();
    assert!(rest.is_empty());
    let [Msgpack::F64(ts), Msgpack::Array(events), rank] = batch.as_array().unwrap().as_slice() else {
        panic!("{batch}");
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 60.0..=now).contains(ts), "{ts} is not now");
    assert_eq!(*rank, Msgpack::from(0));
    events.clone()
}

/// Every event still in the replay buffer, in order.
async fn history(engine: &Engine) -> Vec<Msgpack> {
    let replies = replay(engine, 0).await;
    replies.iter().rev().skip(1).rev().flat_map(|reply| events(reply.last().unwrap())).collect()
}

fn ints(values: impl IntoIterator<Item = u64>) -> Msgpack {
    Msgpack::Array(values.into_iter().map(Msgpack::from).collect())
}

/// Three prompts against 4 blocks: two blocks, one more after them, then two that push two out.
async fn store_extend_evict(encoding: EventEncoding, hash_form: HashForm) -> Vec<Msgpack> {
    let blocks = NonZeroUsize::new(4).unwrap();
    let engine = start(EngineOptions { event_encoding: encoding, hash_form, blocks, ..options() }).await;
    complete(&engine, json!({ "prompt": (0..40).collect::<Vec<_>>(), "max_tokens": 1 })).await;
    complete(&engine, json!({ "prompt": (0..48).collect::<Vec<_>>(), "max_tokens": 1 })).await;
    complete(&engine, json!({ "prompt": (100..132).collect::<Vec<_>>(), "max_tokens": 1 })).await;
    reset(&engine).await;
    let history = history(&engine).await;
    engine.shutdown().await;
    history
}

#[tokio::test]
async fn positional_events_field_by_field() {
    let history = store_extend_evict(EventEncoding::Array, HashForm::Int).await;
    let events: Vec<&[Msgpack]> = history.iter().map(|event| event.as_array().unwrap().as_slice()).collect();
    let [first, second, evicted, third, cleared] = events.as_slice() else { panic!("{history:?}") };

    let [a, b] = first[1].as_array().unwrap().as_slice() else { panic!("{first:?}") };
    assert!(a.is_u64() && b.is_u64() && a != b);
    let nil = Msgpack::Nil;
    let stored = |hashes: &[&Msgpack], parent: &Msgpack, tokens: std::ops::Range<u64>| {
        vec![
            "BlockStored".into(),
            Msgpack::Array(hashes.iter().copied().cloned().collect()),
            parent.clone(),
            ints(tokens),
            16.into(),
            Msgpack::Nil,
            "GPU".into(),
            Msgpack::Nil,
            Msgpack::Array(vec![Msgpack::Nil; hashes.len()]),
            0.into(),
            "full_attention".into(),
        ]
    };
    assert_eq!(first.to_vec(), stored(&[a, b], &nil, 0..32));
    let c = &second[1][0];
    assert_eq!(second.to_vec(), stored(&[c], b, 32..48));
    let (d, e) = (&third[1][0], &third[1][1]);
    assert_eq!(third.to_vec(), stored(&[d, e], &nil, 100..132));
    assert_eq!(evicted.to_vec(), ["BlockRemoved".into(), Msgpack::Array(vec![c.clone()]), "GPU".into(), 0.into()]);
    assert_eq!(cleared.to_vec(), ["AllBlocksCleared".into()]);
}

#[tokio::test]
async fn tagged_events_field_by_field() {
    let history = store_extend_evict(EventEncoding::Map, HashForm::Bytes).await;
    let [first, second, evicted, third, cleared] = history.as_slice() else { panic!("{history:?}") };
    let hashes = first["block_hashes"].as_array().unwrap();
    assert!(hashes.iter().all(|hash| hash.as_slice().unwrap().len() == 32));

    let map = |fields: &[(&str, Msgpack)]| {
        Msgpack::Map(fields.iter().map(|(name, value)| (Msgpack::from(*name), value.clone())).collect())
    };
    let stored = |event: &Msgpack, parent: Msgpack, tokens: std::ops::Range<u64>| {
        let blocks = event["block_hashes"].as_array().unwrap().len();
        let expected = map(&[
            ("type", "BlockStored".into()),
            ("block_hashes", event["block_hashes"].clone()),
            ("parent_block_hash", parent),
            ("token_ids", ints(tokens)),
            ("block_size", 16.into()),
            ("lora_id", Msgpack::Nil),
            ("medium", "GPU".into()),
            ("lora_name", Msgpack::Nil),
            ("extra_keys", Msgpack::Array(vec![Msgpack::Nil; blocks])),
            ("group_idx", 0.into()),
            ("kv_cache_spec_kind", "full_attention".into()),
        ]);
        assert_eq!(*event, expected);
    };
    stored(first, Msgpack::Nil, 0..32);
    stored(second, hashes[1].clone(), 32..48);
    stored(third, Msgpack::Nil, 100..132);
    let removed = [
        ("type", "BlockRemoved".into()),
        ("block_hashes", second["block_hashes"].clone()),
        ("medium", "GPU".into()),
        ("group_idx", 0.into()),
    ];
    assert_eq!(*evicted, map(&removed));
    assert_eq!(*cleared, map(&[("type", "AllBlocksCleared".into())]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_batches_are_consecutive_and_the_ones_replayed() {
    let engine = start(EngineOptions { topic: "kv@a@m".to_owned(), ..options() }).await;
    let (mut socket, first) = subscribe(&engine, "kv@").await;
    let requests = (0..30_u32).map(|n| complete(&engine, json!({ "prompt": vec![n; 40], "max_tokens": 30 })));
    futures::future::join_all(requests).await;

    // Each request stores its prompt, then each of the two blocks that 29 computed tokens complete.
    let mut live = Vec::new();
    for expected in first + 1..=first + 90 {
        let frames = receive(&mut socket).await;
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[0], "kv@a@m");
        assert_eq!(sequence(&frames[1]), expected);
        live.push(frames);
    }
    let mut replayed = replay(&engine, first + 1).await;
    let end = replayed.pop().unwrap();
    assert_eq!(end, [Bytes::new(), Bytes::new(), Bytes::from_static(&[0xFF; 8]), Bytes::new()]);
    let live: Vec<_> = live.into_iter().map(|frames| [vec![Bytes::new()], frames].concat()).collect();
    assert_eq!(replayed, live);
    engine.shutdown().await;
}

#[tokio::test]
async fn replay_without_topic_from_a_sequence_and_from_the_ring() {
    let replay_buffer = NonZeroUsize::new(5).unwrap();
    let engine = start(EngineOptions { event_encoding: EventEncoding::Array, replay_buffer, ..options() }).await;
    for _ in 0..8 {
        reset(&engine).await;
    }
    let end = vec![Bytes::new(), Bytes::from_static(&[0xFF; 8]), Bytes::new()];
    for (start, expected) in [(0, 3..8), (3, 3..8), (6, 6..8), (8, 8..8), (u64::MAX, 8..8)] {
        let mut replies = replay(&engine, start).await;
        assert_eq!(replies.pop(), Some(end.clone()));
        assert!(replies.iter().all(|reply| reply.len() == 3 && reply[0].is_empty()));
        let sequences: Vec<_> = replies.iter().map(|reply| sequence(&reply[1])).collect();
        assert_eq!(sequences, expected.collect::<Vec<u64>>(), "from {start}");
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn a_malformed_replay_request_gets_no_reply() {
    let engine = start(options()).await;
    let mut socket = dealer(&engine).await;
    ask(&mut socket, &[b""]).await;
    ask(&mut socket, &[&0_u64.to_be_bytes()]).await;
    ask(&mut socket, &[b"", &0_u64.to_be_bytes(), b""]).await;
    ask(&mut socket, &[b"x", &0_u64.to_be_bytes()]).await;
    let silence = tokio::time::timeout(Duration::from_millis(300), socket.recv()).await;
    assert!(silence.is_err(), "{silence:?}");
    ask(&mut socket, &[b"", &0_u64.to_be_bytes()]).await;
    assert_eq!(receive(&mut socket).await.len(), 4, "the end of the one replay");
    engine.shutdown().await;
}

#[tokio::test]
async fn the_next_turn_finds_prompt_and_generated_tokens_cached() {
    let engine = start(options()).await;
    let prompt = "You are a helpful assistant. ".repeat(4);
    let body = json!({ "model": "m", "prompt": prompt, "max_tokens": 40, "return_token_ids": true });
    let first = complete(&engine, body.clone()).await;
    assert_eq!(first["usage"]["prompt_tokens"], 116);
    assert_eq!(first["usage"]["completion_tokens"], 40);
    assert_eq!(first["usage"]["total_tokens"], 156);
    assert_eq!(cached_tokens(&first), 0);
    let choice = &first["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["prompt_token_ids"].as_array().unwrap().len(), 116);

    // The same prompt as text is cached but for its tail, and gets the same answer.
    let again = complete(&engine, body).await;
    assert_eq!(cached_tokens(&again), 112);
    assert_eq!(again["choices"][0]["text"], choice["text"]);

    // Turn two as token ids: the last of the 40 generated tokens was never computed, 155 were.
    let mut ids = choice["prompt_token_ids"].as_array().unwrap().clone();
    ids.extend(choice["token_ids"].as_array().unwrap().iter().cloned());
    ids.extend((0..20).map(|id| json!(id)));
    let next = complete(&engine, json!({ "prompt": ids, "max_tokens": 1 })).await;
    assert_eq!(cached_tokens(&next), 144);

    // The same as text.
    let text = format!("{prompt}{}", choice["text"].as_str().unwrap());
    assert_eq!(cached_tokens(&complete(&engine, json!({ "prompt": text, "max_tokens": 1 })).await), 144);

    reset(&engine).await;
    assert_eq!(cached_tokens(&complete(&engine, json!({ "prompt": text, "max_tokens": 1 })).await), 0);
    engine.shutdown().await;
}

#[tokio::test]
async fn generated_tokens_are_left_out_when_told_so() {
    let engine = start(EngineOptions { generated_tokens_cached: false, ..options() }).await;
    let first = complete(&engine, json!({ "prompt": vec![7; 32], "max_tokens": 40, "return_token_ids": true })).await;
    let mut ids = vec![json!(7); 32];
    ids.extend(first["choices"][0]["token_ids"].as_array().unwrap().iter().cloned());
    assert_eq!(cached_tokens(&complete(&engine, json!({ "prompt": ids })).await), 32);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_restart_in_place_counts_from_0_with_other_hashes() {
    let mut options = options();
    let body = json!({ "prompt": vec![1; 32], "max_tokens": 1 });
    let mut seen = Vec::new();
    for _ in 0..2 {
        let engine = start(options.clone()).await;
        options.listen = engine.address();
        options.kv_events = engine.kv_events().map(str::to_owned);
        options.kv_replay = engine.kv_replay().map(str::to_owned);
        assert_eq!(cached_tokens(&complete(&engine, body.clone()).await), 0);
        let replies = replay(&engine, 0).await;
        assert_eq!(sequence(&replies[0][2]), 0);
        seen.push(events(&replies[0][3])[0]["block_hashes"].clone());
        engine.shutdown().await;
    }
    let [first, second] = [&seen[0], &seen[1]].map(|hashes| hashes.as_array().unwrap().clone());
    assert!(first.iter().all(|hash| !second.contains(hash)), "{first:?} {second:?}");
}

#[tokio::test]
async fn a_stream_has_a_chunk_per_token_then_usage_then_done() {
    let engine = start(options()).await;
    let body = json!({
        "prompt": "stream this", "max_tokens": 3, "stream": true, "return_token_ids": true,
        "stream_options": { "include_usage": true },
    });
    let reply = send(&http_1(), &engine, Method::POST, "/v1/completions", body.to_string()).await;
    let text = std::str::from_utf8(&reply.body).unwrap();
    let data: Vec<&str> = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()).collect();
    let [chunks @ .., usage, "[DONE]"] = data.as_slice() else { panic!("{text}") };
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let reasons: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons, [&Value::Null, &Value::Null, &json!("length")]);
    assert_eq!(chunks[0]["choices"][0]["prompt_token_ids"].as_array().unwrap().len(), 11);
    assert!(chunks[1]["choices"][0].get("prompt_token_ids").is_none());
    let usage: Value = serde_json::from_str(usage).unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!((&usage["usage"]["completion_tokens"], cached_tokens(&usage)), (&json!(3), 0));

    let whole = complete(&engine, json!({ "prompt": "stream this", "max_tokens": 3 })).await;
    let streamed: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(whole["choices"][0]["text"], streamed);
    engine.shutdown().await;
}

#[tokio::test]
async fn faults_have_the_openai_shape() {
    let engine = start(options()).await;
    let cases = [
        (json!({ "prompt": "a", "model": "other" }), 404, json!("model"), "NotFoundError"),
        (json!({ "prompt": ["a", "b"] }), 400, json!("prompt"), "BadRequestError"),
        (json!({ "prompt": "a", "max_tokens": 100_000 }), 400, json!("max_tokens"), "BadRequestError"),
        (json!(5), 400, Value::Null, "BadRequestError"),
    ];
    for (body, code, param, kind) in cases {
        let reply = send(&http_1(), &engine, Method::POST, "/v1/completions", body.to_string()).await;
        let error = &reply.json()["error"];
        assert_eq!((u64::from(reply.status.as_u16()), &error["code"]), (code, &json!(code)));
        assert_eq!((&error["param"], &error["type"]), (&param, &json!(kind)), "{error}");
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn every_request_is_logged_over_both_http_versions() {
    let engine = start(options()).await;
    let http_2 = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let body = Bytes::from(vec![b'x'; 3 * 1024 * 1024]);
    let unknown = send(&http_1(), &engine, Method::PUT, "/nowhere?a=1", body.clone()).await;
    assert_eq!((unknown.status, unknown.engine_id.as_str()), (StatusCode::NOT_FOUND, "engine-a"));
    assert_eq!(unknown.json(), json!({ "detail": "Not Found" }));
    let wrong_method = send(&http_2, &engine, Method::GET, "/v1/completions", "").await;
    assert_eq!((wrong_method.status, wrong_method.version), (StatusCode::METHOD_NOT_ALLOWED, Version::HTTP_2));
    assert_eq!(send(&http_2, &engine, Method::GET, "/health", "").await.status, StatusCode::OK);

    let log = send(&http_1(), &engine, Method::GET, "/debug/requests", "").await.json();
    assert_eq!(log["total"], 3);
    let [put, get, health] = log["requests"].as_array().unwrap().as_slice() else { panic!("{log}") };
    assert_eq!((&put["method"], &put["path"]), (&json!("PUT"), &json!("/nowhere?a=1")));
    assert_eq!((&put["http_version"], &put["body_bytes"]), (&json!("HTTP/1.1"), &json!(body.len())));
    assert_eq!(put["body_xxh3"], format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&body)));
    assert!(put["headers"].as_array().unwrap().contains(&json!(["x-test", "kept"])));
    assert_eq!((&get["number"], &get["http_version"]), (&json!(2), &json!("HTTP/2.0")));
    assert_eq!((&health["path"], &health["body_complete"]), (&json!("/health"), &json!(true)));
    engine.shutdown().await;
}

#[tokio::test]
async fn a_truncated_body_is_logged_as_such() {
    let engine = start(options()).await;
    let mut stream = tokio::net::TcpStream::connect(engine.address()).await.unwrap();
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{\"pro").await.unwrap();
    stream.shutdown().await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    let log = engine.requests();
    let entry = &log.requests[0];
    assert_eq!((entry.body_bytes, entry.body_complete), (5, false));
    engine.shutdown().await;
}

#[tokio::test]
async fn metrics_and_models() {
    let engine = start(options()).await;
    for _ in 0..2 {
        complete(&engine, json!({ "prompt": vec![1; 40], "max_tokens": 1 })).await;
    }
    let page = send(&http_1(), &engine, Method::GET, "/metrics", "").await;
    let page = std::str::from_utf8(&page.body).unwrap();
    for line in [
        r#"vllm:num_requests_running{engine="0",model_name="m"} 0.0"#,
        r#"vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0"#,
        r#"vllm:prefix_cache_queries_total{engine="0",model_name="m"} 80.0"#,
        r#"vllm:prefix_cache_hits_total{engine="0",model_name="m"} 32.0"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line} not in\n{page}");
    }
    let models = send(&http_1(), &engine, Method::GET, "/v1/models", "").await.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("m"), &json!(65_536)));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_is_reported_and_a_reset_under_it_refused_and_shutdown_is_quick() {
    let timing = Timing { base_ttft_us: 30_000_000, prefill_us_per_token: 0, decode_us_per_token: 0 };
    let engine = start(EngineOptions { timing, ..options() }).await;
    let uri = format!("http://{}/v1/completions", engine.address());
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let request = Request::post(&uri).header("content-type", "application/json");
            let request = request.body(Full::new(Bytes::from(r#"{"prompt":"some prompt"}"#))).unwrap();
            tokio::spawn(async move { http_1().request(request).await.map(|response| response.status()) })
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = send(&http_1(), &engine, Method::GET, "/metrics", "").await;
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        let has = |line: &str| page.lines().any(|found| found.replace(r#"{engine="0",model_name="m"}"#, "") == line);
        if has("vllm:num_requests_running 1.0") && has("vllm:num_requests_waiting 2.0") {
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
    }
    let refused = send(&http_1(), &engine, Method::POST, "/reset_prefix_cache", "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);

    let stop = Instant::now();
    engine.shutdown().await;
    assert!(stop.elapsed() < Duration::from_secs(1), "{:?}", stop.elapsed());
    for client in clients {
        assert_ne!(client.await.unwrap().ok(), Some(StatusCode::OK));
    }
}

#[tokio::test]
async fn a_start_that_cannot_work_names_the_option() {
    let fault = async |options: EngineOptions| Engine::start(options).await.err().expect("a fault").to_string();
    let engine = start(options()).await;
    let taken = EngineOptions { listen: engine.address(), ..options() };
    assert!(fault(taken).await.starts_with("listen is 127.0.0.1:"));
    let taken = EngineOptions { kv_events: engine.kv_events().map(str::to_owned), ..options() };
    assert!(fault(taken).await.starts_with("kv_events is \"tcp://127.0.0.1:"));
    let malformed = EngineOptions { kv_replay: Some("127.0.0.1:1".to_owned()), ..options() };
    assert!(fault(malformed).await.starts_with("kv_replay is \"127.0.0.1:1\""));
    let alone = Engine::start(EngineOptions { kv_events: None, ..options() }).await;
    assert!(matches!(alone.err(), Some(StartError::ReplayWithoutEvents)));
    let id = Engine::start(EngineOptions { id: "a\nb".to_owned(), ..options() }).await;
    assert!(matches!(id.err(), Some(StartError::Id(_))));
    engine.shutdown().await;
}
