//! One VM leads; when it is no longer able to, another one does, and requests notice nothing.

use std::time::Duration;

use hyper::{Method, Request};
use serde_json::json;
use warmroute::flow::keys::Keys;
use warmroute::native::load::envoy_config;
use warmroute::native::load::listeners::{ListenerFile, serve_from};
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

const TAKEOVER: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_another_plugin_overwrites_moves_the_stream_and_nothing_else() {
    let stack = stack(|options| {
        options.edit_envoy = Some(Box::new(|config, _| add_fault_filter(config)));
    })
    .await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited_everywhere(&stack, &prompt, 160).await;
    let opened = streams_opened(&stack).await;
    let overwrite =
        Request::builder().method(Method::GET).header("x-fault-overwrite", Keys::new(&domain(&stack)).head());
    assert_eq!(send(&stack, overwrite, "/health", "").await.status, 200);
    moves_unnoticed(&stack, &prompt, opened, TAKEOVER).await;
    let metrics = stack.metrics().await.unwrap();
    assert!(metrics.sum("warmroute_leader_changes_total", &[]) >= 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_update_that_removes_the_leaders_plugin_moves_the_stream_and_nothing_else() {
    let (stack, file) = stack_with_listener_file().await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited_everywhere(&stack, &prompt, 160).await;
    let opened = streams_opened(&stack).await;
    // The same domain, another plugin: the old one is removed once it has drained.
    file.update(|listeners| {
        envoy_config::patch_plugin(listeners, &json!({ "output": { "max_endpoints": 2 } })).unwrap();
    })
    .unwrap();
    moves_unnoticed(&stack, &prompt, opened, TAKEOVER * 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_wrong_keeps_the_last_good_one() {
    let (stack, file) = stack_with_listener_file().await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited_everywhere(&stack, &prompt, 160).await;
    file.update(|listeners| {
        envoy_config::patch_plugin(listeners, &json!({ "max_body_bytes": -1 })).unwrap();
    })
    .unwrap();
    let told = eventually(TAKEOVER, async || {
        stack.envoy.log_text().contains("the configuration is refused: max_body_bytes is -1, allowed: ")
    })
    .await;
    assert!(told, "{}", stack.envoy.log_tail());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(probe(&stack, &prompt).await.matched_tokens, 160);
    learns_on(&stack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_valid_configuration_requests_pass() {
    let stack = stack(|options| options.plugin["models"] = json!([])).await;
    let answer = complete(&stack, &tokens(1, 160), 1).await;
    assert_eq!(answer.header("x-engine-id").len(), "engine-0".len());
    let engine = place_of(answer.header("x-engine-id"));
    let entry = last_seen(&stack, engine).await;
    assert_eq!(header_values(&entry, "x-inferencecache-detail"), ["not_configured"]);
    let refused = stack.metrics().await.unwrap().sum("warmroute_config_refused_total", &[]);
    assert!(refused >= 1.0);
    assert!(stack.envoy.log_text().contains("the configuration is refused: models"), "{}", stack.envoy.log_tail());
}

/// A stack whose listeners can be updated; what an update removes is gone after a second.
async fn stack_with_listener_file() -> (Stack, ListenerFile) {
    let file = ListenerFile::default();
    let path = file.path().to_path_buf();
    let stack = stack(|options| {
        options.envoy_arguments = vec!["--drain-time-s".into(), "1".into()];
        options.edit_envoy = Some(Box::new(move |config, _| serve_from(config, &path).unwrap()));
    })
    .await;
    (stack, file)
}

/// Within `limit` another stream is opened; every answer in the meantime is the right one, and news arrive after it.
async fn moves_unnoticed(stack: &Stack, prompt: &[u32], opened: f64, limit: Duration) {
    let moved = eventually(limit, async || {
        let decided = probe(stack, prompt).await;
        assert_eq!((decided.replica.as_str(), decided.matched_tokens), ("engine-1", 160), "{decided:?}");
        streams_opened(stack).await > opened
    })
    .await;
    assert!(moved, "no other stream was opened");
    learns_on(stack).await;
}

/// What an engine caches from now on is known, and what it forgets too.
async fn learns_on(stack: &Stack) {
    let prompt = tokens(7, 96);
    warm(stack, 2, &prompt).await;
    assert_eq!(credited(stack, &prompt, 96).await, "engine-2");
    assert_eq!(stack.reset_prefix_cache(2).await.unwrap().status, 200);
    forgotten(stack, &prompt, SOON).await;
}

async fn streams_opened(stack: &Stack) -> f64 {
    stack.metrics().await.unwrap().sum("warmroute_stream_opened_total", &[])
}

/// The name of the index that the stack's filter asks for.
fn domain(stack: &Stack) -> String {
    let text = std::fs::read_to_string(stack.folder().join("envoy.yaml")).unwrap();
    domain_of(&mut serde_norway::from_str(&text).unwrap())
}
