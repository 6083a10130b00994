//! A producer in Python that knows nothing but the public contract: what it reports and takes back shows in the filter's
//! answers. Skipped, with a line that says so, where its packages cannot be had.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::Stack;

use crate::pool::*;

const TOKEN: &str = "producer-token-0123456789";
/// The exit code of a producer that cannot run.
const CANNOT: i32 = 77;

/// What it wrote; an error if the hub refused, none if it cannot run.
fn produce(
    stack: &Stack,
    what: &str,
    replica: usize,
    prompt: &[u32],
    token: &[&str],
) -> Option<Result<String, String>> {
    let hashes = prefix_hashes(prompt, BlockSize::DEFAULT, None).map(|hash| format!("{:016x}", hash.0));
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/producer/producer.py"))
        .args([&stack.addresses.hub_grpc.to_string(), what])
        .args(["--replica", &stack.addresses.engines[replica].http.to_string()])
        .args(["--tenant", "default", "--model", MODEL, "--scheme", "vllm"])
        .args(token)
        .arg("--hash")
        .args(hashes)
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(CANNOT) => output,
        other => {
            let reason = other.map_or_else(|error| error.to_string(), |output| text(&output.stderr));
            eprintln!("skipped: the producer in Python cannot run: {}", reason.trim());
            return None;
        }
    };
    Some(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_producer_reports_is_hinted_and_what_it_evicts_is_not() {
    let file = std::env::temp_dir().join(format!("warmroute-producer-{}", std::process::id()));
    std::fs::write(&file, TOKEN).unwrap();
    let tokens_file = file.display().to_string();
    let stack = stack(|options| {
        options.plugin["hub_token"] = TOKEN.into();
        options.edit_hub = Some(Box::new(move |config, _| {
            let tokens = json!([{ "file": tokens_file, "allow": ["producers", "observers"] }]);
            // It follows none of the engines: all that is known is reported.
            config["replicas"] = serde_norway::to_value(json!([])).unwrap();
            config["reports"] = serde_norway::to_value(json!({})).unwrap();
            config["security"] = serde_norway::to_value(json!({ "tokens": tokens })).unwrap();
        }));
    })
    .await;
    let (prompt, other) = (tokens(1, 160), tokens(2, 160));
    let token = ["--token", TOKEN];
    let Some(refused) = produce(&stack, "report", 1, &prompt, &[]) else { return };
    assert!(refused.is_err_and(|error| error.contains("UNAUTHENTICATED")), "without a token");
    // Where all hold the same, that is no reason to prefer one: another replica holds something else.
    for (replica, prompt) in [(1, &prompt), (2, &other)] {
        assert_eq!(produce(&stack, "report", replica, prompt, &token), Some(Ok("accepted=True\n".to_owned())));
    }
    let replica = stack.addresses.engines[1].http.to_string();
    assert_eq!(credited(&stack, &prompt, 160).await, replica);
    let hinted = complete(&stack, &prompt, 1).await;
    assert_eq!(hinted.header("x-inferencecache-reason-code"), "PREFIX_MATCH");
    assert_eq!(hinted.header("x-engine-id"), "engine-1");

    let evicted = produce(&stack, "evict", 1, &prompt, &token).unwrap().unwrap();
    assert_eq!(evicted, "accepted=True\n".repeat(10), "block by block");
    forgotten(&stack, &prompt, SOON * 5).await;
    let after = complete(&stack, &prompt, 1).await;
    assert_eq!(after.header("x-inferencecache-reason-code"), "NO_HINT");
    assert_eq!(credited(&stack, &other, 160).await, stack.addresses.engines[2].http.to_string());
    let _ = std::fs::remove_file(file);
}
