//! What the tests share: a stack, prompts, and ways to ask what the filter would say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use serde_json::{Value, json};
use serde_norway::Value as Yaml;
use warmroute::config::FilterConfig;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::load::client::{Answer, Client, Completion, Prompt};
use warmroute::native::load::envoy_config::{self, MODEL};
use warmroute::native::load::programs::Programs;
use warmroute::native::load::stack::{Stack, StackOptions, eventually};

/// How long a change may take from an engine to every worker, by the issue's own limit for removals.
pub const SOON: Duration = Duration::from_secs(1);

/// What the filter decided, as the response headers have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub reason: String,
    pub detail: String,
    pub replica: String,
    pub matched_tokens: usize,
}

/// A stack whose filter repeats its decision in response headers.
pub async fn stack(change: impl FnOnce(&mut StackOptions)) -> Stack {
    let mut options = StackOptions::new(Programs::find().unwrap_or_else(|missing| panic!("{missing}")));
    options.plugin = json!({ "output": { "response_headers": true } });
    change(&mut options);
    Stack::start(options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The module of `tests/support/fault_module.rs`.
pub fn fault_module() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/fault_module.wasm");
    assert!(path.exists(), "run `make wasm-faults` first");
    path
}

/// `count` token ids that no other `seed` begins with.
pub fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|place| 1_000 + seed * 100_000 + place).collect()
}

/// Whole blocks of 16 tokens, in tokens.
pub fn whole_blocks(tokens: usize) -> usize {
    tokens / 16 * 16
}

/// A request body for a prompt of token ids.
pub fn body(prompt: &[u32]) -> String {
    body_for(MODEL, prompt)
}

/// The same for another model, or an adapter.
pub fn body_for(model: &str, prompt: &[u32]) -> String {
    json!({ "model": model, "prompt": prompt, "max_tokens": 1 }).to_string()
}

/// Completes a prompt through Envoy.
pub async fn complete(stack: &Stack, prompt: &[u32], max_tokens: u32) -> Completion {
    let prompt = Prompt::TokenIds(prompt.to_vec());
    let completion = stack.client.complete(&stack.envoy_url(), MODEL, &prompt, max_tokens).await.unwrap();
    assert_eq!(completion.status, 200);
    completion
}

/// Has one engine compute a prompt, past Envoy.
pub async fn warm(stack: &Stack, engine: usize, prompt: &[u32]) {
    warm_adapter(stack, engine, MODEL, prompt).await;
}

/// The same on an adapter that the engine has.
pub async fn warm_adapter(stack: &Stack, engine: usize, adapter: &str, prompt: &[u32]) {
    let url = stack.engine_url(engine);
    let prompt = Prompt::TokenIds(prompt.to_vec());
    assert_eq!(stack.client.complete(&url, adapter, &prompt, 1).await.unwrap().status, 200);
}

/// What the filter would say to a prompt. No engine computes it: the path is one that they do not know.
pub async fn probe(stack: &Stack, prompt: &[u32]) -> Decided {
    let answer = send(stack, probe_head(prompt), "/probe", "").await;
    assert_eq!(answer.status, 404, "an engine answered");
    decided(&answer)
}

/// A request that carries a prompt's block hashes and model in its headers.
pub fn probe_head(prompt: &[u32]) -> hyper::http::request::Builder {
    probe_head_for(MODEL, prompt)
}

/// The same for another model, or an adapter.
pub fn probe_head_for(model: &str, prompt: &[u32]) -> hyper::http::request::Builder {
    let hashes: String =
        prefix_hashes(prompt, BlockSize::DEFAULT, None).map(|hash| format!("{:016x}", hash.0)).collect();
    Request::builder()
        .method(Method::POST)
        .header("x-inferencecache-model-id", model)
        .header("x-inferencecache-block-hashes", hashes)
        .header("x-inferencecache-block-size", "16")
}

/// Sends a request through Envoy.
pub async fn send(stack: &Stack, head: hyper::http::request::Builder, path: &str, body: impl Into<Bytes>) -> Answer {
    stack.client.request(&format!("{}{path}", stack.envoy_url()), head, body.into()).await.unwrap()
}

/// Waits until so many requests in a row, each over a connection of its own, are answered as `is_so` says: a connection is one
/// worker's, whichever the kernel picks. `request` makes the head and the body of each, by its place in the row.
pub async fn every_worker(
    stack: &Stack,
    path: &str,
    (in_a_row, within): (usize, Duration),
    request: impl Fn(usize) -> (hyper::http::request::Builder, String),
    is_so: impl Fn(&Decided) -> bool,
) {
    let url = format!("{}{path}", stack.envoy_url());
    let all = eventually(within, async || {
        for turn in 0..in_a_row {
            let (head, body) = request(turn);
            if !is_so(&decided(&Client::default().request(&url, head, body.into()).await.unwrap())) {
                return false;
            }
        }
        true
    });
    assert!(all.await, "{}", stack.envoy.log_tail());
}

/// Waits until every worker has the hub's whole state: a text for this model, which has no tokenizer, is then refused as
/// that, and before it as everything is. No engine computes it if `path` is one that they do not know.
pub async fn heard(stack: &Stack, model: &str, path: &str) {
    let request = |_| {
        let head = Request::builder().method(Method::POST).header("content-type", "application/json");
        (head, json!({ "model": model, "prompt": "hello" }).to_string())
    };
    every_worker(stack, path, (8, SOON * 5), request, |decided| decided.detail == "no_tokenizer").await;
}

/// The decision that a response repeats.
pub fn decided(answer: &Answer) -> Decided {
    Decided {
        reason: answer.header("x-inferencecache-reason-code").to_owned(),
        detail: answer.header("x-inferencecache-detail").to_owned(),
        replica: answer.header("x-inferencecache-replica-id").to_owned(),
        matched_tokens: answer.header("x-inferencecache-matched-tokens").parse().unwrap(),
    }
}

/// Waits until the filter credits some replica with `matched_tokens` of a prompt, and says which.
pub async fn credited(stack: &Stack, prompt: &[u32], matched_tokens: usize) -> String {
    let mut last = None;
    let matched = eventually(SOON * 5, async || {
        let decided = probe(stack, prompt).await;
        let matched = decided.matched_tokens == matched_tokens;
        last = Some(decided);
        matched
    })
    .await;
    assert!(matched, "{matched_tokens} tokens were never credited, last: {last:?}");
    last.unwrap().replica
}

/// Waits until every worker credits some replica with `matched_tokens` of a prompt.
pub async fn credited_everywhere(stack: &Stack, prompt: &[u32], matched_tokens: usize) {
    let request = |_| (probe_head(prompt), String::new());
    let is_so = |decided: &Decided| decided.matched_tokens == matched_tokens;
    every_worker(stack, "/probe", (16, SOON * 10), request, is_so).await;
}

/// Waits until nobody is credited with any of a prompt, within `limit`.
pub async fn forgotten(stack: &Stack, prompt: &[u32], limit: Duration) {
    let gone = eventually(limit, async || probe(stack, prompt).await.matched_tokens == 0).await;
    assert!(gone, "still credited after {limit:?}: {:?}", probe(stack, prompt).await);
}

/// The last request that an engine saw, the hub's scrapes apart, as its log has it.
pub async fn last_seen(stack: &Stack, engine: usize) -> Value {
    let answer = stack.client.get(&format!("{}/debug/requests", stack.engine_url(engine))).await.unwrap();
    let log: Value = serde_json::from_slice(&answer.body).unwrap();
    let requests = log["requests"].as_array().unwrap().iter().rev();
    requests.clone().find(|entry| entry["path"] != "/metrics").expect("the engine saw a request").clone()
}

/// The place of the engine that answered, by its own header.
pub fn engine_of(answer: &Answer) -> usize {
    place_of(answer.header("x-engine-id"))
}

/// The place behind a replica id.
pub fn place_of(id: &str) -> usize {
    id.strip_prefix("engine-").unwrap_or_else(|| panic!("{id:?} is no engine")).parse().unwrap()
}

/// The values of a header in a log entry.
pub fn header_values(entry: &Value, name: &str) -> Vec<String> {
    let headers = entry["headers"].as_array().unwrap().iter();
    headers.filter(|pair| pair[0] == name).map(|pair| pair[1].as_str().unwrap().to_owned()).collect()
}

/// Puts the module that misbehaves before ours, in the same vm_id and so in the same shared data.
pub fn add_fault_filter(config: &mut Yaml) {
    let manager = envoy_config::connection_manager(&mut config["static_resources"]["listeners"][0]).unwrap();
    let filters = manager["http_filters"].as_sequence_mut().unwrap();
    let mut fault = filters[0].clone();
    fault["name"] = "fault".into();
    let plugin = &mut fault["typed_config"]["config"];
    plugin["name"] = "fault".into();
    plugin["vm_config"]["code"]["local"]["filename"] = fault_module().display().to_string().into();
    filters.insert(0, fault);
}

/// The name of the index that the filter in this configuration of Envoy asks for.
pub fn domain_of(config: &mut Yaml) -> String {
    let manager = envoy_config::connection_manager(&mut config["static_resources"]["listeners"][0]).unwrap();
    let filter = envoy_config::named(&mut manager["http_filters"], "warmroute").unwrap();
    let json = filter["typed_config"]["config"]["configuration"]["value"].as_str().unwrap();
    FilterConfig::from_json(json.as_bytes()).unwrap().domain()
}
