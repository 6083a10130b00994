//! What engines say of prompts in their responses, which pass as they are.

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

const COMPARED: &str = "warmroute_usage_compared_total";
const FAILURES: &str = "warmroute_prediction_failures_total";

/// A response of an engine that says what it likes.
struct Script {
    name: &'static str,
    head: &'static str,
    body: Vec<u8>,
    /// Bytes in a chunk, if the response is chunked.
    chunk: Option<usize>,
    /// What comes of it where the replica was to have 320 tokens.
    outcome: Option<&'static str>,
}

fn usage(cached: u64) -> String {
    format!(r#"{{"prompt_tokens":330,"total_tokens":331,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#)
}

/// A completion whose text is as long, and does all it can to be taken for usage.
fn completion(bytes: usize, cached: u64) -> Vec<u8> {
    let text = r#"\",\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":9}} \u00e9 "#;
    let text = text.repeat(bytes / text.len());
    format!("{{\"choices\": [{{\"text\": \"{text}\"}}],\r\n \"usage\": {}}}\n", usage(cached)).into()
}

fn stream(chunks: usize, cached: u64) -> Vec<u8> {
    let chunk = r#"data: {"choices":[{"delta":{"content":"data: {\"usage\":{}}"}}],"usage":null}"#;
    let chunks = format!("{chunk}\n\n").repeat(chunks);
    format!("{chunks}data: {{\"choices\":[],\"usage\":{}}}\n\ndata: [DONE]\n\n", usage(cached)).into()
}

fn scripts() -> Vec<Script> {
    const JSON: &str = "200 OK\r\ncontent-type: application/json";
    const EVENTS: &str = "200 OK\r\ncontent-type: text/event-stream; charset=utf-8";
    let script = |name, head, body, chunk, outcome| Script { name, head, body, chunk, outcome };
    vec![
        script("short", JSON, completion(100, 320), None, Some("as_predicted")),
        script("one-block-less", JSON, completion(200_000, 304), None, Some("as_predicted")),
        script("megabytes", JSON, completion(3_000_000, 128), Some(10_000), Some("fewer")),
        script("more", JSON, completion(5_000, 640), Some(100), Some("more")),
        script("stream", EVENTS, stream(300, 0), Some(7), Some("fewer")),
        script("at-once", EVENTS, stream(3_000, 320), Some(1_000_000), Some("as_predicted")),
        script("no-usage", JSON, b" {\"choices\" : []}".to_vec(), None, Some("no_usage")),
        script("no-json", JSON, b"\xff\xfe\x00{\"usage\":{\"\\".repeat(1_000), Some(333), Some("no_usage")),
        script("empty", JSON, Vec::new(), Some(1), Some("no_usage")),
        script(
            "encoded",
            "200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip",
            completion(90, 0),
            None,
            None,
        ),
        script("text", "200 OK\r\ncontent-type: text/plain", completion(90, 0), None, None),
        script("an-error", "400 Bad Request\r\ncontent-type: application/json", completion(90, 0), None, None),
        script("nothing", "204 No Content\r\ncontent-type: application/json", Vec::new(), None, None),
    ]
}

/// Answers every request by the script that its `x-script` names, one a connection.
async fn serve(listener: TcpListener) {
    loop {
        let (connection, _) = listener.accept().await.unwrap();
        tokio::spawn(async move { answer(connection).await });
    }
}

async fn answer(mut connection: TcpStream) -> Option<()> {
    let mut request = Vec::new();
    let head = loop {
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        }
        (connection.read_buf(&mut request).await.ok()? > 0).then_some(())?;
    };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let length: usize = field("content-length")?.parse().ok()?;
    while request.len() < head.len() + 4 + length {
        (connection.read_buf(&mut request).await.ok()? > 0).then_some(())?;
    }
    let script = scripts().into_iter().find(|script| Some(script.name) == field("x-script"))?;
    let framing = match script.chunk {
        Some(_) => "transfer-encoding: chunked".to_owned(),
        None if script.head.starts_with("204") => "x-nothing: 1".to_owned(),
        None => format!("content-length: {}", script.body.len()),
    };
    let head = format!("HTTP/1.1 {}\r\n{framing}\r\nconnection: close\r\n\r\n", script.head);
    connection.write_all(head.as_bytes()).await.ok()?;
    match script.chunk {
        None => connection.write_all(&script.body).await.ok()?,
        Some(size) => {
            for chunk in script.body.chunks(size) {
                let chunk = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
                connection.write_all(&chunk).await.ok()?;
            }
            connection.write_all(b"0\r\n\r\n").await.ok()?;
        }
    }
    connection.shutdown().await.ok()
}

/// A stack in which a replica that is to have 320 tokens of `prompt` answers by script.
async fn scripted(read_usage: bool, prompt: &[u32]) -> Stack {
    let mut stack = stack(|options| {
        options.workers = 1;
        options.plugin["read_usage"] = json!(read_usage);
        options.plugin["when_stale"] = json!("serve");
    })
    .await;
    warm(&stack, 1, prompt).await;
    assert_eq!(credited(&stack, prompt, 320).await, "engine-1");
    // The hub is paused, so that it goes on to have them.
    stack.hub.stop().unwrap();
    stack.engines[1].kill().await.unwrap();
    tokio::spawn(serve(TcpListener::bind(stack.addresses.engines[1].http).await.unwrap()));
    stack
}

/// The body of the response to `prompt` that the script makes.
async fn body_of(stack: &Stack, prompt: &[u32], script: &str, http2: bool) -> Bytes {
    let request = Request::post(format!("{}/v1/completions", stack.envoy_url()))
        .header("content-type", "application/json")
        .header("x-script", script)
        .body(Full::new(Bytes::from(body(prompt))))
        .unwrap();
    let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
    let response = client.request(request).await.unwrap();
    assert_eq!(response.headers()["x-inferencecache-matched-tokens"], "320", "{script}");
    response.into_body().collect().await.unwrap().to_bytes()
}

async fn outcomes(stack: &Stack) -> BTreeMap<&'static str, f64> {
    let metrics = stack.metrics().await.unwrap();
    let count = |outcome| (outcome, metrics.sum(COMPARED, &[("model", MODEL), ("outcome", outcome)]));
    ["as_predicted", "fewer", "more", "no_usage"].map(count).into_iter().filter(|(_, count)| *count > 0.0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_pass_byte_for_byte_whatever_is_in_them_and_whether_they_are_read_or_not() {
    let prompt = tokens(1, 330);
    for read_usage in [true, false] {
        let stack = scripted(read_usage, &prompt).await;
        let mut expected = BTreeMap::new();
        for http2 in [false, true] {
            for script in scripts() {
                let received = body_of(&stack, &prompt, script.name, http2).await;
                assert!(received == script.body, "{}, {} bytes of {}", script.name, received.len(), script.body.len());
                if let Some(outcome) = script.outcome.filter(|_| read_usage) {
                    *expected.entry(outcome).or_insert(0.0) += 1.0;
                }
            }
        }
        assert_eq!(outcomes(&stack).await, expected, "read_usage {read_usage}");
        let metrics = stack.metrics().await.unwrap();
        let failures = expected.get("fewer").copied().unwrap_or_default();
        assert_eq!(metrics.sum(FAILURES, &[("model", MODEL)]), failures);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_less_than_it_should_is_told_of_once() {
    let prompt = tokens(1, 330);
    let stack = scripted(true, &prompt).await;
    let warnings = || stack.envoy.log_text().matches("keep failing").count();
    for _ in 0..10 {
        body_of(&stack, &prompt, "stream", false).await;
        body_of(&stack, &prompt, "short", false).await;
    }
    assert_eq!(warnings(), 0, "half of twenty");
    for _ in 0..60 {
        body_of(&stack, &prompt, "stream", false).await;
    }
    let told = eventually(SOON * 5, async || warnings() == 1).await;
    assert!(told, "{} warnings", warnings());
    let text = stack.envoy.log_text();
    assert!(text.contains("the last of them 0 where 320 were predicted"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_true_engines_had_is_what_was_predicted() {
    let stack = stack(|options| options.workers = 1).await;
    let mut prompt = tokens(1, 100);
    let mut before = outcomes(&stack).await;
    for turn in 1..6 {
        let completion = complete(&stack, &prompt, 1).await;
        assert_eq!(completion.header("x-inferencecache-reason-code") == "PREFIX_MATCH", turn > 1, "turn {turn}");
        let after = outcomes(&stack).await;
        // Before the first turn nothing was known at all.
        if turn > 1 {
            *before.entry("as_predicted").or_insert(0.0) += 1.0;
        }
        assert_eq!(after, before, "turn {turn}");
        prompt.extend(tokens(10 + turn, 39));
        credited(&stack, &prompt, whole_blocks(prompt.len() - 39)).await;
        // Probes are answered 404, and by no engine's count.
        assert_eq!(outcomes(&stack).await, before);
    }
    // Envoy tells histograms once in a while.
    let counted = eventually(SOON * 15, async || {
        let metrics = stack.metrics().await.unwrap();
        let count = |name: &str| metrics.sum(&format!("{name}_count"), &[("model", MODEL)]);
        count("warmroute_predicted_tokens") == 4.0 && count("warmroute_cached_tokens") == 4.0
    });
    assert!(counted.await, "{}", stack.envoy.log_tail());
    let metrics = stack.metrics().await.unwrap();
    let sum = |name: &str| metrics.sum(&format!("{name}_sum"), &[("model", MODEL)]);
    assert_eq!(sum("warmroute_predicted_tokens"), sum("warmroute_cached_tokens"));
    assert_eq!(metrics.sum(FAILURES, &[]), 0.0);
    assert!(!stack.envoy.log_text().contains("keep failing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_block_size_is_told_of() {
    let stack = stack(|options| {
        options.workers = 1;
        options.plugin["models"] = json!([{ "model_id": MODEL, "block_size": 32 }]);
    })
    .await;
    let prompt = tokens(1, 330);
    for engine in 0..3 {
        warm(&stack, engine, &prompt).await;
    }
    // Its blocks are known by now, under keys that are not asked for.
    let known =
        eventually(SOON * 5, async || complete(&stack, &prompt, 1).await.header("x-inferencecache-detail") == "miss");
    assert!(known.await);
    for _ in 0..20 {
        let completion = complete(&stack, &prompt, 1).await;
        assert_eq!(completion.header("x-inferencecache-matched-tokens"), "0");
        assert_eq!(completion.cached_tokens, 320);
    }
    let metrics = stack.metrics().await.unwrap();
    assert!(metrics.sum(COMPARED, &[("model", MODEL), ("outcome", "more")]) >= 20.0);
    assert!(metrics.sum(FAILURES, &[("model", MODEL)]) >= 20.0);
    let told = eventually(SOON * 5, async || stack.envoy.log_text().contains("had some although none were")).await;
    assert!(told, "{}", stack.envoy.log_text());
}
