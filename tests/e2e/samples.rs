//! Every sample of Envoy's configuration in `envoy/`, run: a prompt that one engine holds is matched there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::http::request::Builder;
use serde_json::json;
use serde_norway::Value as Yaml;
use warmroute::native::load::envoy_config::{self, Addresses};
use warmroute::native::load::programs::Programs;
use warmroute::native::load::stack::{Stack, StackOptions, eventually};

use crate::pool::*;

mod ecds;
mod migration;
mod production;
mod tree;

/// The samples that run as they are, with addresses and module replaced.
const PLAIN: [(&str, &str); 4] = [
    ("envoy.yaml", include_str!("../../envoy/envoy.yaml")),
    ("headers-only.yaml", include_str!("../../envoy/headers-only.yaml")),
    ("migration.yaml", include_str!("../../envoy/migration.yaml")),
    ("per-route.yaml", include_str!("../../envoy/per-route.yaml")),
];
/// The samples that need more beside them, each run in a module of its own.
const WITH_FILES: [&str; 2] = ["ecds.yaml", "production.yaml"];
/// Where samples expect the module, and everything else.
const MODULE: &str = "/etc/envoy/warmroute.wasm";
const FOLDER: &str = "/etc/envoy";
/// How long a change may take on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A folder in the place of `/etc/envoy`. Dropped, it is removed.
pub struct Folder(pub PathBuf);

/// What a request carries besides.
pub type Dress<'a> = &'a dyn Fn(Builder) -> Builder;

// === impl Folder ===

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("warmroute-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    /// A sample that finds its module and its files.
    pub fn placed(&self, sample: &str) -> String {
        let module = Programs::find().unwrap_or_else(|missing| panic!("{missing}")).module;
        assert!(sample.contains(FOLDER), "nothing to be placed");
        sample.replace(MODULE, &module.display().to_string()).replace(FOLDER, &self.0.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Has a stack run this configuration in the place of the usual one, with the addresses that are its own.
pub fn run_instead(options: &mut StackOptions, mut sample: Yaml, hubs: &'static [&'static str]) {
    options.edit_envoy = Some(Box::new(move |config, addresses: &Addresses| {
        envoy_config::set_socket_address(&mut sample["admin"]["address"], addresses.admin).unwrap();
        envoy_config::set_socket_address(&mut sample["static_resources"]["listeners"][0]["address"], addresses.envoy)
            .unwrap();
        let engines: Vec<_> = addresses.engines.iter().map(|engine| engine.http).collect();
        envoy_config::set_endpoints(&mut sample, "engines", &engines).unwrap();
        for hub in hubs {
            envoy_config::set_endpoints(&mut sample, hub, &[addresses.hub_grpc]).unwrap();
        }
        *config = sample;
    }));
}

/// A plugin configuration that has decisions repeated on responses.
pub fn telling(plugin: &Yaml) -> Yaml {
    let mut plugin: serde_json::Value = serde_json::from_str(plugin.as_str().unwrap()).unwrap();
    plugin["output"]["response_headers"] = json!(true);
    plugin.to_string().into()
}

/// A prompt that engine 1 holds is matched there: by headers alone, and by its body.
pub async fn shows_a_match(what: &str, stack: &Stack, dress: Dress<'_>) {
    let prompt = tokens(1, 160);
    warm(stack, 1, &prompt).await;
    // No engine computes this: it is a path that they do not know, on a route that the filter is on.
    let mut known = 0;
    let matched = eventually(LIMIT, async || {
        let answer = send(stack, dress(probe_head(&prompt)), "/v1/probe", "").await;
        let is_match = answer.header("x-inferencecache-reason-code") == "PREFIX_MATCH";
        // By every worker.
        known = if is_match { known + 1 } else { 0 };
        known > 30
    })
    .await;
    let last = send(stack, dress(probe_head(&prompt)), "/v1/probe", "").await;
    assert!(matched, "{what}: {} {:?}", last.status, last.headers);
    let head = dress(probe_head(&prompt)).header("content-type", "application/json");
    let answer = send(stack, head, "/v1/completions", body(&prompt)).await;
    assert_eq!((answer.status.as_u16(), engine_of(&answer)), (200, 1), "{what}");
    let found = ["x-inferencecache-replica-id", "x-inferencecache-matched-tokens"].map(|name| answer.header(name));
    assert_eq!(found, ["engine-1", "160"], "{what}");
}

/// The same by the body alone, which a filter that holds no bodies does not see.
pub async fn reads_bodies(what: &str, stack: &Stack, dress: Dress<'_>) {
    let head = dress(hyper::Request::post("/")).header("content-type", "application/json");
    let answer = send(stack, head, "/v1/completions", body(&tokens(1, 160))).await;
    let found = ["x-inferencecache-reason-code", "x-inferencecache-replica-id"].map(|name| answer.header(name));
    assert_eq!((answer.status.as_u16(), found), (200, ["PREFIX_MATCH", "engine-1"]), "{what}");
}

/// Nothing besides.
pub fn as_it_is(head: Builder) -> Builder {
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_shows_a_match() {
    for (name, sample) in PLAIN {
        let stack = stack(|options| options.sample = sample).await;
        shows_a_match(name, &stack, &as_it_is).await;
        let elsewhere = send(&stack, probe_head(&tokens(1, 160)), "/elsewhere", "").await;
        let code = elsewhere.header("x-inferencecache-reason-code");
        assert_eq!(code, if name == "per-route.yaml" { "" } else { "PREFIX_MATCH" }, "{name}");
        if name != "headers-only.yaml" {
            reads_bodies(name, &stack, &as_it_is).await;
        }
    }
}

#[test]
fn no_sample_is_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy");
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    names.sort();
    let mut known: Vec<&str> = PLAIN.map(|(name, _)| name).into_iter().chain(WITH_FILES).collect();
    known.sort_unstable();
    assert_eq!(names, known);
}
