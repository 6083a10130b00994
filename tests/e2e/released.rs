//! Requests that carry nothing to look up are sent on untouched, with the cause named.

use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::{Method, Request};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmroute::native::load::stack::eventually;
use xxhash_rust::xxh3::xxh3_64;

use crate::pool::*;

const JSON: &str = "application/json";

fn post() -> hyper::http::request::Builder {
    Request::builder().method(Method::POST).header(CONTENT_TYPE, JSON)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_cause_is_named_and_the_request_passes_untouched() {
    let stack = stack(|options| options.plugin["max_body_bytes"] = json!(5_000)).await;
    let whole = body(&tokens(1, 64));
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let large = body(&tokens(1, 5_000));
    let cases: [(&str, hyper::http::request::Builder, &str, Vec<u8>, &str); 14] = [
        ("GET", Request::builder().method(Method::GET), "/v1/models", vec![], "not_post"),
        ("another path", post(), "/v1/embeddings", whole.clone().into(), "other_path"),
        ("too large", post(), "/v1/completions", large.into(), "body_too_large"),
        ("gzip", post().header(CONTENT_ENCODING, "gzip"), "/v1/completions", gzip.into(), "encoded_body"),
        (
            "a form",
            Request::builder().method(Method::POST).header(CONTENT_TYPE, "application/x-www-form-urlencoded"),
            "/v1/completions",
            b"a=b".into(),
            "not_json",
        ),
        ("truncated", post(), "/v1/completions", whole[..whole.len() / 2].into(), "malformed_json"),
        ("not an object", post(), "/v1/completions", b"[1, 2]".into(), "malformed_json"),
        (
            "a wrong type",
            post(),
            "/v1/completions",
            json!({"model": MODEL_ID, "prompt": 7}).to_string().into(),
            "wrong_type",
        ),
        (
            "negative ids",
            post(),
            "/v1/completions",
            json!({"model": MODEL_ID, "prompt": [1, -2]}).to_string().into(),
            "wrong_type",
        ),
        ("empty", post().header("content-length", "0"), "/v1/completions", vec![], "empty_body"),
        ("no model", post(), "/v1/completions", json!({"prompt": [1]}).to_string().into(), "no_model"),
        (
            "another model",
            post(),
            "/v1/completions",
            json!({"model": "x", "prompt": [1]}).to_string().into(),
            "model_not_configured",
        ),
        (
            "text",
            post(),
            "/v1/completions",
            json!({"model": MODEL_ID, "prompt": "hello"}).to_string().into(),
            "no_tokenizer",
        ),
        ("short", post(), "/v1/completions", body(&tokens(1, 15)).into(), "short_prompt"),
    ];
    // Before the hub is heard, that there is no tokenizer is not known.
    let is_heard = eventually(SOON * 10, async || {
        let text = json!({"model": MODEL_ID, "prompt": "hello"}).to_string();
        decided(&send(&stack, post(), "/v1/completions", text).await).detail == "no_tokenizer"
    });
    assert!(is_heard.await, "{}", stack.envoy.log_tail());
    for (what, head, path, sent, detail) in cases {
        let method = head.method_ref().unwrap().to_string();
        let answer = send(&stack, head, path, sent.clone()).await;
        let decided = decided(&answer);
        assert_eq!((decided.reason.as_str(), decided.detail.as_str()), ("NO_HINT", detail), "{what}");
        assert_eq!(decided.matched_tokens, 0, "{what}");
        let entry = last_seen(&stack, engine_of(&answer)).await;
        assert_eq!((entry["method"].as_str(), entry["path"].as_str()), (Some(method.as_str()), Some(path)), "{what}");
        assert_eq!(entry["body_bytes"], sent.len(), "{what}");
        assert_eq!(entry["body_xxh3"], format!("{:016x}", xxh3_64(&sent)), "{what}");
        assert_eq!(header_values(&entry, "x-inferencecache-detail"), [detail], "{what}");
        assert!(header_values(&entry, "x-gateway-destination-endpoint").is_empty(), "{what}");
    }
    let metrics = stack.metrics().await.unwrap();
    assert_eq!(metrics.sum("warmroute_no_hint_total", &[("detail", "malformed_json")]), 2.0);
    assert_eq!(
        metrics.sum("inferencecache_lookup_route_calls_total", &[("model", "other"), ("hint_used", "true")]),
        0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_is_not_held_unless_configured() {
    for (hold_chunked, detail) in [(false, "unknown_length"), (true, "miss")] {
        let stack = stack(|options| options.plugin["hold_chunked"] = json!(hold_chunked)).await;
        // Something else is known, so that the index is not cold.
        warm(&stack, 0, &tokens(9, 64)).await;
        credited(&stack, &tokens(9, 64), 64).await;
        let text = body(&tokens(1, 64));
        let (first, second) = text.split_at(100);
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\n\
             connection: close\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
            first.len(),
            second.len()
        );
        let answer = raw(&stack, &[&request]).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("x-inferencecache-detail: {detail}\r\n")), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_end_a_held_body() {
    let stack = stack(|options| options.plugin["hold_chunked"] = json!(true)).await;
    let prompt = tokens(1, 64);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 64).await;
    let text = body(&prompt);
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\n\
         connection: close\r\ntrailer: x-checksum\r\n\r\n{:x}\r\n{text}\r\n0\r\nx-checksum: 1\r\n\r\n",
        text.len()
    );
    let answer = raw(&stack, &[&request]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-inferencecache-replica-id: engine-1\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_to_be_told_to_go_on_is_not_held() {
    // With proxy_100_continue Envoy leaves the answer to the engine, and `expect` in the request.
    let stack = stack(|options| {
        options.edit_envoy = Some(Box::new(|config, _| {
            let listener = &mut config["static_resources"]["listeners"][0];
            listener["filter_chains"][0]["filters"][0]["typed_config"]["proxy_100_continue"] = true.into();
        }));
    })
    .await;
    let text = body(&tokens(1, 64));
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: {JSON}\r\n{EXPECT}: 100-continue\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    let told = tokio::time::timeout(SOON * 5, socket.read_exact(&mut start)).await;
    told.expect("the client is told to go on").unwrap();
    assert_eq!(&start, b"HTTP/1.1 100");
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-inferencecache-detail: expect_continue\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_is_not_held() {
    let stack = stack(|_| ()).await;
    let request = "GET /v1/realtime HTTP/1.1\r\nhost: e\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(SOON * 5, socket.read(&mut answer)).await.expect("an answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    // The engine knows no such path; what counts is that it was asked, as an upgrade.
    assert!(answer.contains("x-inferencecache-detail: upgrade\r\n"), "{answer}");
    let place = answer.split("x-engine-id: engine-").nth(1).and_then(|rest| rest[..1].parse().ok()).expect("an engine");
    let entry = last_seen(&stack, place).await;
    assert_eq!(header_values(&entry, "upgrade"), ["websocket"]);
}

/// Sends text over a connection of its own, part by part, and reads to the end.
async fn raw(stack: &warmroute::native::load::stack::Stack, parts: &[&str]) -> String {
    let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
    for part in parts {
        socket.write_all(part.as_bytes()).await.unwrap();
    }
    let mut answer = Vec::new();
    tokio::time::timeout(SOON * 10, socket.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

const MODEL_ID: &str = warmroute::native::load::envoy_config::MODEL;
