//! Bodies reach the engine byte for byte as they were sent.

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Version};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::Stack;
use xxhash_rust::xxh3::xxh3_64;

use crate::pool::*;

/// Bodies that a parser could be tempted to write again in another form.
fn texts() -> Vec<Vec<u8>> {
    let prompt = tokens(1, 4_000);
    vec![
        body(&prompt).into(),
        format!("  {{\n\t\"prompt\" : {prompt:?} ,\r\n \"model\":\"{MODEL}\",\"n\":1.0e0, \"model\":\"{MODEL}\"}} \n")
            .into(),
        json!({ "model": MODEL, "prompt": "caf\u{e9} \u{1F600} \u{0}", "user": "\u{2028}" }).to_string().into(),
        format!(r#"{{"model":"{MODEL}","prompt":"\u00e9\ud83d\ude00","max_tokens":1,"x":[[[{{}}]]]}}"#).into(),
        b"{\"model\": \xff\xfe not json at all".to_vec(),
        vec![b'x'; 3_000_000],
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn as_sent_over_http_1_and_2_of_known_and_unknown_length() {
    for hold_chunked in [false, true] {
        let stack = stack(|options| options.plugin["hold_chunked"] = json!(hold_chunked)).await;
        for http2 in [false, true] {
            for chunked in [false, true] {
                for text in texts() {
                    arrives(&stack, "/v1/completions", text, http2, chunked).await;
                }
            }
        }
    }
}

/// Sends a body in pieces, and looks at what the engine got.
pub async fn arrives(stack: &Stack, path: &str, text: Vec<u8>, http2: bool, chunked: bool) {
    let hash = format!("{:016x}", xxh3_64(&text));
    let length = text.len();
    let version = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let mut head =
        Request::post(format!("{}{path}", stack.envoy_url())).version(version).header(CONTENT_TYPE, "application/json");
    if !chunked {
        head = head.header("content-length", length);
    }
    // Pieces of a size that fits no boundary of anything.
    let pieces: Vec<_> =
        text.chunks(7_777).map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    let request = head.method(Method::POST).body(StreamBody::new(stream::iter(pieces))).unwrap();
    let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
    let response = client.request(request).await.unwrap();
    let what = format!("{length} bytes, http2 {http2}, chunked {chunked}, status {}", response.status());
    let engine = place_of(response.headers()["x-engine-id"].to_str().unwrap());
    response.into_body().collect().await.unwrap();
    let entry = last_seen(stack, engine).await;
    assert_eq!(entry["body_bytes"], length, "{what}");
    assert_eq!(entry["body_xxh3"], hash, "{what}");
    assert_eq!(entry["body_complete"], true, "{what}");
    let lengths = header_values(&entry, "content-length");
    assert_eq!(lengths, if chunked { vec![] } else { vec![length.to_string()] }, "{what}");
}
