//! CachePolicies that the hub publishes: they take effect while Envoy runs on, survive the hub, and only good ones count.

use std::path::{Path, PathBuf};

use serde_json::json;
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

/// The directory that the hub reads, removed in the end.
struct Directory(PathBuf);

// === impl Directory ===

impl Directory {
    fn new() -> Directory {
        let number = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let path = std::env::temp_dir().join(format!("warmroute-policies-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn stack_with(directory: &Path) -> Stack {
    let path = directory.display().to_string();
    let stack = stack(|options| {
        options.edit_hub = Some(Box::new(move |config, _| {
            config["policies"] = serde_norway::to_value(json!({ "directory": path, "poll_ms": 50 })).unwrap();
        }));
    })
    .await;
    for engine in 0..3 {
        warm(&stack, engine, &tokens(engine as u32, 160)).await;
        credited(&stack, &tokens(engine as u32, 160), 160).await;
    }
    stack
}

/// The code and detail that a prompt of token ids nobody holds comes to.
async fn unheld(stack: &Stack) -> (String, String) {
    let head = hyper::Request::builder().method(hyper::Method::POST).header("content-type", "application/json");
    // Too long for the engines, so that none of them learns it.
    let decided = decided(&send(stack, head, "/v1/completions", body(&tokens(90, 20_000))).await);
    (decided.reason, decided.detail)
}

async fn comes_to(stack: &Stack, reason: &str, detail: &str) {
    let expected = (reason.to_owned(), detail.to_owned());
    let mut last = None;
    let came = eventually(SOON * 5, async || {
        last = Some(unheld(stack).await);
        last.as_ref() == Some(&expected)
    });
    assert!(came.await, "expected {expected:?}, last {last:?}\n{}", stack.hub.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_takes_effect_and_goes_while_envoy_runs_on() {
    let directory = Directory::new();
    let stack = stack_with(&directory.0).await;
    let envoy = stack.envoy.pid();
    comes_to(&stack, "NO_HINT", "miss").await;
    std::fs::write(directory.file("default.yaml"), "affinityRouting: Enabled\n").unwrap();
    comes_to(&stack, "AFFINITY_HINT", "miss").await;
    // A manifest for the tenant itself goes before what is for tenants without one.
    let manifest = "apiVersion: inferencecache.io/v1alpha1\nkind: CachePolicy\nmetadata: {name: p, namespace: default}\n\
                    spec: {strategy: {requireChain: true}}\n";
    std::fs::write(directory.file("tenants.yaml"), manifest).unwrap();
    comes_to(&stack, "POLICY_REQUIRES_CHAIN", "").await;
    std::fs::remove_file(directory.file("tenants.yaml")).unwrap();
    comes_to(&stack, "AFFINITY_HINT", "miss").await;
    std::fs::remove_file(directory.file("default.yaml")).unwrap();
    comes_to(&stack, "NO_HINT", "miss").await;
    assert_eq!(stack.envoy.pid(), envoy, "Envoy was not restarted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_wrong_changes_nothing_and_is_told() {
    let directory = Directory::new();
    let file = directory.file("default.yaml");
    std::fs::write(&file, "affinityRouting: Enabled\n").unwrap();
    let stack = stack_with(&directory.0).await;
    comes_to(&stack, "AFFINITY_HINT", "miss").await;
    std::fs::write(&file, "affinityRouting: Disabled\nminimumMatchedTokens: -1\n").unwrap();
    let told = eventually(SOON * 5, async || {
        let log = stack.hub.log_text();
        log.contains("default.yaml") && log.contains("minimumMatchedTokens is -1, allowed")
    });
    assert!(told.await, "{}", stack.hub.log_tail());
    for _ in 0..20 {
        assert_eq!(unheld(&stack).await.0, "AFFINITY_HINT", "the last good one stays");
    }
    std::fs::write(&file, "affinityRouting: Disabled\n").unwrap();
    comes_to(&stack, "NO_HINT", "miss").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_survives_the_hub() {
    let directory = Directory::new();
    std::fs::write(directory.file("default.yaml"), "strategy: {requireChain: true}\n").unwrap();
    let mut stack = stack_with(&directory.0).await;
    comes_to(&stack, "POLICY_REQUIRES_CHAIN", "").await;
    let opened = async |stack: &Stack| stack.metrics().await.unwrap().sum("warmroute_stream_opened_total", &[]);
    let before = opened(&stack).await;
    stack.hub.kill().await.unwrap();
    for _ in 0..20 {
        assert_eq!(unheld(&stack).await.0, "POLICY_REQUIRES_CHAIN", "while the hub is away");
    }
    stack.hub.start().unwrap();
    let again = eventually(SOON * 10, async || {
        assert_eq!(unheld(&stack).await.0, "POLICY_REQUIRES_CHAIN", "while the hub comes back");
        opened(&stack).await > before
    });
    assert!(again.await, "{}", stack.hub.log_tail());
    for _ in 0..40 {
        assert_eq!(unheld(&stack).await.0, "POLICY_REQUIRES_CHAIN", "and once it is back");
        tokio::time::sleep(SOON / 20).await;
    }
}
