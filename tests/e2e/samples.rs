//! Every sample of Envoy's configuration in `envoy/`, run: a prompt that one engine holds is matched there.

use std::time::Duration;

use warmroute::native::load::stack::eventually;

use crate::pool::*;

/// The samples that run as they are, with addresses and module replaced.
const SAMPLES: [(&str, &str); 3] = [
    ("envoy.yaml", include_str!("../../envoy/envoy.yaml")),
    ("headers-only.yaml", include_str!("../../envoy/headers-only.yaml")),
    ("per-route.yaml", include_str!("../../envoy/per-route.yaml")),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_shows_a_match() {
    for (name, sample) in SAMPLES {
        let stack = stack(|options| options.sample = sample).await;
        let prompt = tokens(1, 160);
        warm(&stack, 1, &prompt).await;
        // No engine computes this: it is a path that they do not know, on a route that the filter is on.
        let mut known = 0;
        let matched = eventually(Duration::from_secs(20), async || {
            let answer = send(&stack, probe_head(&prompt), "/v1/probe", "").await;
            let is_match = answer.header("x-inferencecache-reason-code") == "PREFIX_MATCH";
            // By every worker.
            known = if is_match { known + 1 } else { 0 };
            known > 30
        })
        .await;
        assert!(matched, "{name}: {:?}", decided(&send(&stack, probe_head(&prompt), "/v1/probe", "").await));
        let head = probe_head(&prompt).header("content-type", "application/json");
        let answer = send(&stack, head, "/v1/completions", body(&prompt)).await;
        assert_eq!((answer.status.as_u16(), engine_of(&answer)), (200, 1), "{name}");
        let found = ["x-inferencecache-replica-id", "x-inferencecache-matched-tokens"].map(|name| answer.header(name));
        assert_eq!(found, ["engine-1", "160"], "{name}");
        let elsewhere = send(&stack, probe_head(&prompt), "/elsewhere", "").await;
        let code = elsewhere.header("x-inferencecache-reason-code");
        assert_eq!(code, if name == "per-route.yaml" { "" } else { "PREFIX_MATCH" }, "{name}");
    }
}

#[test]
fn no_sample_is_left_out() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy");
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    names.sort();
    assert_eq!(names, SAMPLES.map(|(name, _)| name));
}
