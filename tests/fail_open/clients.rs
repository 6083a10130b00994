//! Clients that send as no client should, or stop half way.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{HeaderMap, Request};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use warmroute::native::fake::request_log::digest;
use warmroute::native::load::client::Answer;
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::{Stack, StackOptions, eventually};

use crate::load::{BOUND, Load};
use crate::many::{Body, answer, http2};
use crate::pool::*;
use crate::world::{COMES_BACK, GROWTH_MIB, HELD_TOKENS, TENANTS, Tenant, UNSERVED, World};

/// A body that comes byte by byte takes as many writes.
const BYTE_BY_BYTE: Duration = Duration::from_secs(20);
/// Requests that are given up, of each way.
const GIVEN_UP: usize = 30;

fn holds_chunked(options: &mut StackOptions) {
    options.plugin["hold_chunked"] = true.into();
}

/// A request's lines up to its body.
fn head(tenant: &Tenant, more: &str) -> String {
    format!(
        "POST {UNSERVED} HTTP/1.1\r\nhost: e\r\nx-tenant: {}\r\ncontent-type: application/json\r\n{more}\r\n",
        tenant.id
    )
}

/// Sends pieces over a connection of its own, each by itself, and reads the answer to its end.
async fn raw(stack: &Stack, pieces: Vec<Vec<u8>>) -> String {
    let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
    socket.set_nodelay(true).unwrap();
    for piece in pieces {
        socket.write_all(&piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = Vec::new();
    timeout(BYTE_BY_BYTE, socket.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    String::from_utf8(answer).unwrap()
}

/// It was matched by its whole body, reached the engine that holds it, and reached it unaltered.
fn is_matched(answer: &str, tenant: &Tenant, sent: &str) {
    for line in [
        format!("x-engine-id: {}", tenant.holder),
        format!("x-inferencecache-matched-tokens: {HELD_TOKENS}"),
        format!("x-received-xxh3: {}", digest(sent.as_bytes())),
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{line}\n{answer}");
    }
}

fn bytes_of(text: &str) -> impl Iterator<Item = Vec<u8>> + '_ {
    text.bytes().map(|byte| vec![byte])
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_byte_by_byte_and_chunked_with_trailers() {
    let world = World::start(holds_chunked).await;
    for tenant in &TENANTS {
        let text = body(&tenant.held());
        let known = head(tenant, &format!("content-length: {}\r\nconnection: close\r\n", text.len()));
        let started = Instant::now();
        let whole = std::iter::once(known.into_bytes()).chain(bytes_of(&text)).collect();
        is_matched(&raw(&world.stack, whole).await, tenant, &text);
        // A chunk for each byte, and trailers behind the last.
        let unknown = head(tenant, "transfer-encoding: chunked\r\ntrailer: x-checksum\r\nconnection: close\r\n");
        let chunks = text.bytes().map(|byte| [b"1\r\n", &[byte][..], b"\r\n"].concat());
        let end = b"0\r\nx-checksum: 1\r\nx-inferencecache-reason-code: forged\r\n\r\n".to_vec();
        let chunked = std::iter::once(unknown.into_bytes()).chain(chunks).chain([end]).collect();
        is_matched(&raw(&world.stack, chunked).await, tenant, &text);
        // The request line and the headers too.
        let head = head(tenant, &format!("content-length: {}\r\nconnection: close\r\n", text.len()));
        let slowly = bytes_of(&head).chain(bytes_of(&text)).collect();
        is_matched(&raw(&world.stack, slowly).await, tenant, &text);
        for (length, trailers) in [(true, false), (false, false), (false, true)] {
            let answer = over_http2(&world.stack, tenant, &text, length, trailers).await;
            assert_eq!(answer.header("x-engine-id"), tenant.holder);
            assert_eq!(answer.header("x-inferencecache-matched-tokens"), HELD_TOKENS.to_string());
            assert_eq!(answer.header("x-received-xxh3"), digest(text.as_bytes()));
        }
        assert!(started.elapsed() < BYTE_BY_BYTE, "{:?}", started.elapsed());
    }
    world.envoy_is_as_before(GROWTH_MIB).await;
}

/// A frame for each byte.
async fn over_http2(stack: &Stack, tenant: &Tenant, text: &str, length: bool, trailers: bool) -> Answer {
    let end = trailers.then(|| Frame::trailers(HeaderMap::from_iter([("x-checksum".parse().unwrap(), 1.into())])));
    let frames: Vec<_> =
        text.bytes().map(|byte| Frame::data(Bytes::from(vec![byte]))).chain(end).map(Ok::<_, std::io::Error>).collect();
    let mut head = Request::post(format!("http://envoy{UNSERVED}"))
        .header("x-tenant", tenant.id)
        .header(CONTENT_TYPE, "application/json");
    if length {
        head = head.header(CONTENT_LENGTH, text.len());
    }
    let request: Request<Body> = head.body(StreamBody::new(stream::iter(frames)).boxed_unsync()).unwrap();
    let mut sender = http2(stack.addresses.envoy).await;
    timeout(BYTE_BY_BYTE, answer(&mut sender, request)).await.expect("an answer").unwrap()
}

/// What becomes of a request that its client gives up.
#[derive(Clone, Copy, Debug)]
enum GivenUp {
    /// Over HTTP/1.1, the connection is closed in the middle of the body.
    Closed,
    /// The same, with a TCP reset.
    Reset,
    /// Over HTTP/2, the stream is reset in the middle of the body.
    StreamReset,
    /// Over HTTP/2, the stream is reset while the engine computes.
    WhileComputed,
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_given_up_half_way() {
    let world = World::start(|options| {
        holds_chunked(options);
        // 0.3 s for a prompt of 15,000 tokens.
        options.engine.prefill_us_per_token = 20;
    })
    .await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    for way in [GivenUp::Closed, GivenUp::Reset, GivenUp::StreamReset, GivenUp::WhileComputed] {
        for number in 0..GIVEN_UP {
            give_up(&world.stack, way, &TENANTS[number % TENANTS.len()]).await;
        }
    }
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    let mut active = -1.0;
    let over = eventually(BOUND, async || {
        let metrics = world.stack.metrics().await.unwrap();
        active = metrics.sum("envoy_http_downstream_rq_active", &[("envoy_http_conn_manager_prefix", "llm")]);
        active == 0.0
    });
    assert!(over.await, "{active} requests are left");
    // What was given up in the middle never left the filter; what was whole did.
    let whole = seen_as_given_up(&world.stack).await;
    assert!(whole.iter().all(|way| way == "WhileComputed"), "{whole:?}");
    world.is_unharmed_besides(&tally, GIVEN_UP as u64).await;
}

async fn give_up(stack: &Stack, way: GivenUp, tenant: &Tenant) {
    let text = json!({ "model": MODEL, "prompt": tenant.held(), "max_tokens": 1 }).to_string();
    let half = &text[..text.len() / 2];
    let name = format!("{way:?}");
    match way {
        GivenUp::Closed | GivenUp::Reset => {
            let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
            let head = head(tenant, &format!("x-given-up: {name}\r\ncontent-length: {}\r\n", text.len()));
            socket.write_all(format!("{head}{half}").as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            if matches!(way, GivenUp::Reset) {
                socket.set_zero_linger().unwrap();
            }
        }
        GivenUp::StreamReset | GivenUp::WhileComputed => {
            let is_whole = matches!(way, GivenUp::WhileComputed);
            // Text, which has no tokenizer here: it is counted apart from all else.
            let long = json!({ "model": MODEL, "prompt": "a".repeat(15_000), "max_tokens": 1 }).to_string();
            let sent = if is_whole { long.clone() } else { half.to_owned() };
            let frames = std::iter::once(Ok(Frame::data(Bytes::from(sent))));
            let broken = (!is_whole).then(|| Err(std::io::Error::other("given up")));
            let frames: Vec<Result<Frame<Bytes>, std::io::Error>> = frames.chain(broken).collect();
            let path = if is_whole { "/v1/completions" } else { UNSERVED };
            let request: Request<Body> = Request::post(format!("http://envoy{path}"))
                .header("x-tenant", tenant.id)
                .header("x-given-up", &name)
                .header(CONTENT_TYPE, "application/json")
                .body(StreamBody::new(stream::iter(frames)).boxed_unsync())
                .unwrap();
            let mut sender = http2(stack.addresses.envoy).await;
            // Dropped before its answer, the stream is reset.
            let answered = timeout(Duration::from_millis(50), answer(&mut sender, request)).await;
            assert!(!matches!(answered, Ok(Ok(_))), "{way:?} was answered");
        }
    }
}

/// How the requests were given up that an engine has seen.
async fn seen_as_given_up(stack: &Stack) -> Vec<String> {
    let mut seen = Vec::new();
    for place in 0..stack.engines.len() {
        let url = format!("{}/debug/requests", stack.engine_url(place));
        let log: serde_json::Value = serde_json::from_slice(&stack.client.get(&url).await.unwrap().body).unwrap();
        for entry in log["requests"].as_array().unwrap() {
            seen.extend(header_values(entry, "x-given-up"));
        }
    }
    seen
}
