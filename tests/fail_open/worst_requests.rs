//! Requests that are out to take a worker's time and memory, in Envoy's own VMs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use warmroute::native::fake::request_log::digest;
use warmroute::native::load::client::{Answer, Client};
use warmroute::native::load::stack::{ServedModel, eventually};

use crate::load::BOUND;
use crate::pool::*;
use crate::world::{COMES_BACK, GROWTH_MIB, Vitals};
use crate::worst;

/// What the requests call their model.
const WORST_MODEL: &str = "m";
/// The filter reads bodies under it, and no engine serves it.
const UNSERVED_PREFIX: &str = "/probe";
const PATHS: [&str; 4] = ["/completions", "/chat/completions", "/responses", "/messages"];
/// Tokenizing a short text of each: who still loads the model says so.
const LOADING: [&str; 3] = ["cold", "catching_up", "no_tokenizer"];

/// The model's folder, removed in the end.
struct Models(PathBuf);

// === impl Models ===

impl Models {
    fn new() -> Models {
        let root = std::env::temp_dir().join(format!("warmroute-worst-{}", std::process::id()));
        let (folder, tests) = (root.join(WORST_MODEL), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(tests.join("tokenizers/small/qwen35.json"), folder.join("tokenizer.json")).unwrap();
        std::fs::copy(tests.join("templates/chatml.jinja"), folder.join("chat_template.jinja")).unwrap();
        std::fs::write(folder.join("tokenizer_config.json"), "{}").unwrap();
        Models(root)
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unserved(path: &str) -> String {
    path.replacen("/v1", UNSERVED_PREFIX, 1)
}

fn head(request: &worst::Request) -> (Builder, String) {
    let (mut head, mut path) = (Request::builder().method(Method::POST), String::new());
    for (name, value) in &request.headers {
        match name.as_str() {
            ":path" => path = unserved(std::str::from_utf8(value).unwrap()),
            ":method" | "content-length" => {}
            name => head = head.header(name, &value[..]),
        }
    }
    (head, path)
}

/// The answer, and what it took.
async fn timed(client: &Client, base: &str, request: &worst::Request) -> (Answer, Duration) {
    let (head, path) = head(request);
    let started = Instant::now();
    let answer = client.request(&format!("{base}{path}"), head, Bytes::from(request.body.clone())).await;
    (answer.unwrap_or_else(|failed| panic!("{}: {failed}", request.name)), started.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_takes_a_bounded_time_and_the_engine_gets_all_of_it() {
    let models = Models::new();
    let stack = stack(|options| {
        options.models = vec![ServedModel { id: WORST_MODEL.to_owned(), model_dir: Some(models.0.join(WORST_MODEL)) }];
        options.models_directory = Some(models.0.clone());
        options.plain_listener = true;
        options.plugin["output"] = json!({ "response_headers": true });
        let paths = PATHS.iter().flat_map(|path| [format!("/v1{path}"), format!("{UNSERVED_PREFIX}{path}")]);
        options.plugin["paths"] = paths.collect();
    })
    .await;
    let client = Client::default();
    // Something is held, so that the index is not empty.
    let long = "What is held is what was asked for. ".repeat(20);
    let held = json!({ "model": WORST_MODEL, "prompt": long, "max_tokens": 1 }).to_string();
    client.post_json(&format!("{}/v1/completions", stack.engine_url(0)), held).await.unwrap();
    // A connection is one worker's, and each loads the model when it is asked.
    let is_loaded = eventually(COMES_BACK, async || {
        let mut loaded = true;
        for _ in 0..16 {
            let head = Request::builder().method(Method::POST).header("content-type", "application/json");
            let body = json!({ "model": WORST_MODEL, "messages": [{ "role": "user", "content": "Hi." }] }).to_string();
            let url = format!("{}{UNSERVED_PREFIX}/chat/completions", stack.envoy_url());
            let answer = Client::default().request(&url, head, body.into()).await.unwrap();
            loaded &= !LOADING.contains(&decided(&answer).detail.as_str());
        }
        loaded
    });
    assert!(is_loaded.await, "{}", stack.envoy.log_tail());
    let before = Vitals::of(&stack).await;
    eprintln!("| request | ms | without the filter | decision |\n|---|---|---|---|");
    for request in worst::requests() {
        let (answer, took) = timed(&client, &stack.envoy_url(), &request).await;
        if request.headers.len() > 1_000 {
            assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "Envoy takes 100 headers");
            continue;
        }
        let (_, without) = timed(&client, &stack.plain_url(), &request).await;
        let decision = decided(&answer);
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        eprintln!(
            "| {} | {:.1} | {:.1} | {} {} |",
            request.name,
            ms(took),
            ms(without),
            decision.reason,
            decision.detail
        );
        assert!(!answer.header("x-engine-id").is_empty(), "{}: {}", request.name, answer.status);
        assert_eq!(answer.header("x-received-xxh3"), digest(&request.body), "{}", request.name);
        assert!(!LOADING.contains(&decision.detail.as_str()), "{}: {decision:?}", request.name);
        assert!(took <= BOUND, "{} took {took:?}", request.name);
    }
    Vitals::of(&stack).await.is_as(&before, &stack, GROWTH_MIB);
}
