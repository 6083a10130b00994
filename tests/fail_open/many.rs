//! Ten thousand requests at once, all of them held by the filter at the same time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::Frame;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use warmroute::native::fake::request_log::digest;
use warmroute::native::load::client::Answer;
use warmroute::native::load::prometheus::Scrape;
use warmroute::native::load::stack::eventually;

use crate::pool::*;
use crate::world::{HELD_TOKENS, TENANTS, Tenant, UNSERVED, World};

/// Requests at a time.
const REQUESTS: usize = 10_000;
const CONNECTIONS: usize = 50;
/// From the moment that all are let go to the last answer: what two cores that everything shares need for so many.
const ALL_WITHIN: Duration = Duration::from_secs(60);
/// What Envoy keeps for so many requests at a time, in MiB: 64 KiB each. Its allocator gives it back late.
const GROWTH_MIB: u64 = 640;

/// What a request may send over HTTP/2: any pieces, or an error, which resets the stream.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A connection.
pub async fn http2(address: SocketAddr) -> SendRequest<Body> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The answer to a request, read to its end.
pub async fn answer(sender: &mut SendRequest<Body>, request: Request<Body>) -> Result<Answer, hyper::Error> {
    sender.ready().await?;
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

/// Has Envoy speak HTTP/2 to the engines, so that so many requests need no connection each.
fn engines_over_http2(config: &mut serde_norway::Value) {
    let options = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            // An engine takes 200 streams a connection.
            "explicit_http_config": { "http2_protocol_options": { "max_concurrent_streams": 100 } },
        },
    });
    config["static_resources"]["clusters"][0]["typed_extension_protocol_options"] =
        serde_norway::to_value(options).unwrap();
    config["static_resources"]["clusters"][0]["connect_timeout"] = "30s".into();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_at_once() {
    let world = World::start(|options| {
        options.edit_envoy = Some(Box::new(|config, _| engines_over_http2(config)));
    })
    .await;
    let (gate, _) = watch::channel(false);
    let mut answers = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let sender = http2(world.stack.addresses.envoy).await;
        for _ in 0..REQUESTS / CONNECTIONS {
            let tenant = &TENANTS[connection % TENANTS.len()];
            answers.spawn(held_back(sender.clone(), tenant, gate.subscribe()));
        }
    }
    let mut active = 0.0;
    let all_held = eventually(ALL_WITHIN, async || {
        let metrics = world.stack.metrics().await.unwrap();
        active = metrics.sum("envoy_http_downstream_rq_active", &[("envoy_http_conn_manager_prefix", "llm")]);
        active >= REQUESTS as f64
    });
    assert!(all_held.await, "{active} requests are held");
    // Each has sent all but the last byte: none has been let go.
    let before = world.stack.metrics().await.unwrap();
    let started = Instant::now();
    gate.send_replace(true);
    let mut hinted = 0;
    while let Some(result) = answers.join_next().await {
        hinted += usize::from(result.unwrap());
    }
    let took = started.elapsed();
    eprintln!("{REQUESTS} requests in {took:?}");
    assert!(took < ALL_WITHIN, "{took:?}");
    let metrics = world.stack.metrics().await.unwrap();
    let since = |name: &str| (of_engines(&metrics, name) - of_engines(&before, name)) as usize;
    // An engine may refuse a stream before it has looked at it; Envoy then tries the next one, which is not in the list.
    let retried = since("envoy_cluster_upstream_rq_retry");
    assert_eq!(since("envoy_cluster_upstream_rq_total"), REQUESTS + retried, "each goes out once");
    assert!(hinted + retried >= REQUESTS, "{hinted} where they are held, {retried} retried");
    world.envoy_is_as_before(GROWTH_MIB).await;
}

fn of_engines(metrics: &Scrape, name: &str) -> f64 {
    metrics.sum(name, &[("envoy_cluster_name", "engines")])
}

/// Sends a request whose last byte comes when the gate opens. Whether it went where its prompt is held.
async fn held_back(mut sender: SendRequest<Body>, tenant: &'static Tenant, gate: watch::Receiver<bool>) -> bool {
    let text = body(&tenant.held());
    let (first, last) = text.split_at(text.len() - 1);
    let parts = [first, last].map(|part| Bytes::copy_from_slice(part.as_bytes()));
    let pieces = stream::unfold((parts.into_iter(), gate), async |(mut parts, mut gate)| {
        let part = parts.next()?;
        if parts.len() == 0 {
            gate.wait_for(|open| *open).await.unwrap();
        }
        Some((Ok(Frame::data(part)), (parts, gate)))
    });
    let request = Request::post(format!("http://envoy{UNSERVED}"))
        .header("x-tenant", tenant.id)
        .header(CONTENT_TYPE, "application/json")
        .header(CONTENT_LENGTH, text.len())
        .body(StreamBody::new(Box::pin(pieces)).boxed_unsync())
        .unwrap();
    let answer = answer(&mut sender, request).await.unwrap();
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert_eq!(answer.header("x-received-xxh3"), digest(text.as_bytes()));
    assert_eq!(answer.header("x-sent-xxh3"), digest(&answer.body));
    assert_eq!(answer.header("x-inferencecache-matched-tokens"), HELD_TOKENS.to_string());
    answer.header("x-engine-id") == tenant.holder
}
