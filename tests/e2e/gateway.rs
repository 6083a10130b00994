//! `envoy/gateway/`: what each file there makes of a configuration as Envoy Gateway has it, run on Envoy.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use serde_json::{Value, json};
use warmroute::native::load::stack::Stack;

use crate::istio::{address, each_object, has_labelled_metrics, holds_large_bodies, validated};
use crate::pool::*;
use crate::samples::{as_it_is, reads_bodies, shows_a_match};

mod policies;

use policies::*;

const BASE: &str = include_str!("gateway/base.yaml");
const GATEWAY: &str = include_str!("../../envoy/gateway/gateway.yaml");
const PROXY: &str = include_str!("../../envoy/gateway/proxy.yaml");
const PATCHES: &str = include_str!("../../envoy/gateway/patch-policy.yaml");
const EXTENSION: &str = include_str!("../../envoy/gateway/extension-policy.yaml");
const HEADERS_ONLY_PATCHES: &str = include_str!("../../envoy/gateway/headers-only-patch-policy.yaml");

/// A proxy as Envoy Gateway configures it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xds {
    bootstrap: Value,
    listeners: Vec<Value>,
    route_configs: Vec<Value>,
    clusters: Vec<Value>,
}

// === impl Xds ===

impl Xds {
    /// With everything but the filter: gateway, traffic policies, the proxy's bootstrap.
    fn without_filter() -> Xds {
        let mut xds: Xds = serde_norway::from_str(BASE).unwrap();
        let documents = documents(GATEWAY);
        client_traffic(&mut xds, &of_kind(&documents, "ClientTrafficPolicy")["spec"]);
        backend_traffic(&mut xds, &of_kind(&documents, "BackendTrafficPolicy")["spec"]);
        bootstrap(&mut xds, &documents_of(PROXY, "EnvoyProxy")["spec"]);
        xds
    }

    /// The bootstrap with everything in it that would come by xDS, on this machine.
    fn on_this_machine(&self, envoy: Value, admin: Value, hub: Value, engines: &[Value]) -> Value {
        let mut config = self.bootstrap.clone();
        config["static_resources"] = json!({ "listeners": self.listeners, "clusters": self.clusters });
        config["static_resources"]["listeners"][0]["address"] = envoy;
        config["admin"]["address"] = admin;
        each_object(&mut config, &mut |message| {
            if let Some(rds) = message.remove("rds") {
                let mut routes = self.route_configs.iter();
                let found = routes.find(|routes| routes["name"] == rds["route_config_name"]).unwrap();
                message.insert("route_config".into(), found.clone());
            }
            if message.get("type") == Some(&json!("EDS")) {
                let endpoints: Vec<Value> =
                    engines.iter().map(|engine| json!({ "endpoint": { "address": engine } })).collect();
                message.insert("type".into(), json!("STATIC"));
                message.remove("eds_cluster_config");
                let endpoints = json!([{ "lb_endpoints": endpoints, "load_balancing_weight": 1 }]);
                let assignment = json!({ "cluster_name": message["name"], "endpoints": endpoints });
                message.insert("load_assignment".into(), assignment);
            }
            if message.get("name") == Some(&json!("warmroute_hub")) {
                message.insert("type".into(), json!("STATIC"));
                let endpoint = &mut message["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
                assert_eq!(endpoint["address"]["socket_address"]["address"], "warmroute-hub.llm.svc.cluster.local");
                endpoint["address"] = hub.clone();
            }
            if message.contains_key("vm_config") {
                crate::istio::localize_plugin(message);
            }
        });
        config
    }

    async fn run(self) -> Stack {
        stack(move |options| {
            options.edit_envoy = Some(Box::new(move |config, addresses| {
                let engines: Vec<Value> = addresses.engines.iter().map(|engine| address(engine.http)).collect();
                let [envoy, admin, hub] = [addresses.envoy, addresses.admin, addresses.hub_grpc].map(address);
                *config = serde_norway::to_value(self.on_this_machine(envoy, admin, hub, &engines)).unwrap();
            }));
        })
        .await
    }

    fn validated(&self) -> Result<(), String> {
        let nowhere = || address(([127, 0, 0, 1], 0).into());
        validated(&self.on_this_machine(nowhere(), nowhere(), nowhere(), &[]))
    }
}

/// A prompt that engine 1 may hold, in a body of so many bytes or a little more.
fn long_body(bytes: usize) -> String {
    json!({ "model": "llama-3.1-8b", "prompt": tokens(1, 160), "max_tokens": 1, "user": "x".repeat(bytes) }).to_string()
}

/// The status and the reason for a body that is sent over HTTP/2; none where the stream is reset.
async fn over_http2(stack: &Stack, body: String) -> Option<(u16, String)> {
    let stream = tokio::net::TcpStream::connect(stack.addresses.envoy).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let head = hyper::Request::post(format!("{}/v1/completions", stack.envoy_url()));
    let request = head.header("content-type", "application/json").body(Full::new(Bytes::from(body))).unwrap();
    let answer = sender.send_request(request).await.ok()?;
    let reason = answer.headers().get("x-inferencecache-reason-code").map(|value| value.to_str().unwrap().to_owned());
    let status = answer.status().as_u16();
    let _ = answer.into_body().collect().await;
    Some((status, reason.unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_shows_a_match() {
    let mut xds = Xds::without_filter();
    apply_patches(&mut xds, &documents_of(PATCHES, "EnvoyPatchPolicy")["spec"]).unwrap();
    let stack = xds.run().await;
    shows_a_match("patch-policy.yaml", &stack, &as_it_is).await;
    reads_bodies("patch-policy.yaml", &stack, &as_it_is).await;
    holds_large_bodies(&stack).await;
    has_labelled_metrics(&stack).await;
    assert_eq!(over_http2(&stack, long_body(500_000)).await, Some((200, "PREFIX_MATCH".to_owned())));
}

/// Envoy Gateway's own limits of 32 KiB, and of 64 KiB for an HTTP/2 stream, which ClientTrafficPolicy raises.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_raised_limit_a_long_prompt_is_refused() {
    let mut xds: Xds = serde_norway::from_str(BASE).unwrap();
    apply_patches(&mut xds, &documents_of(PATCHES, "EnvoyPatchPolicy")["spec"]).unwrap();
    let stack = xds.run().await;
    for (bytes, status) in [(16_000, 200), (40_000, 413)] {
        let head = hyper::Request::post("/").header("content-type", "application/json");
        let answer = send(&stack, head, "/v1/completions", long_body(bytes)).await;
        assert_eq!(answer.status.as_u16(), status, "{bytes} bytes");
    }
    // Of HTTP/2 the limit is the stream's window, and the stream may be reset before the answer is read.
    let statuses = [over_http2(&stack, long_body(16_000)).await, over_http2(&stack, long_body(200_000)).await];
    let [short, long] = statuses.map(|answer| answer.map(|(status, _)| status));
    assert_eq!(short, Some(200));
    assert!([None, Some(413)].contains(&long), "{long:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_policy_matches_by_headers() {
    let mut xds = Xds::without_filter();
    extension(&mut xds, &documents_of(EXTENSION, "EnvoyExtensionPolicy"));
    apply_patches(&mut xds, &documents_of(HEADERS_ONLY_PATCHES, "EnvoyPatchPolicy")["spec"]).unwrap();
    let stack = xds.run().await;
    shows_a_match("extension-policy.yaml", &stack, &as_it_is).await;
    // A body is not held, and passes.
    let head = hyper::Request::post("/").header("content-type", "application/json");
    let answer = send(&stack, head, "/v1/completions", body(&tokens(1, 160))).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-inferencecache-detail")), (200, "other_path"));
}

#[test]
fn envoy_accepts_the_patched_configurations() {
    Xds::without_filter().validated().unwrap_or_else(|log| panic!("{log}"));
    for patches in [PATCHES, HEADERS_ONLY_PATCHES] {
        let mut xds = Xds::without_filter();
        apply_patches(&mut xds, &documents_of(patches, "EnvoyPatchPolicy")["spec"]).unwrap();
        xds.validated().unwrap_or_else(|log| panic!("{log}"));
    }
}

/// Later releases write the pool's policy into `load_balancing_policy`: the patches replace it.
#[test]
fn a_cluster_that_has_a_policy_already_is_patched_too() {
    let mut xds = Xds::without_filter();
    let cluster = xds.clusters[0].as_object_mut().unwrap();
    cluster.remove("lb_policy");
    let policy = json!({ "policies": [{ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
            "locality_lb_config": { "locality_weighted_lb_config": {} },
        },
    } }] });
    cluster.insert("load_balancing_policy".into(), policy);
    cluster.insert("common_lb_config".into(), json!({}));
    apply_patches(&mut xds, &documents_of(PATCHES, "EnvoyPatchPolicy")["spec"]).unwrap();
    assert!(xds.clusters[0]["load_balancing_policy"].to_string().contains("OverrideHost"));
    xds.validated().unwrap_or_else(|log| panic!("{log}"));
}

#[test]
fn mistakes_are_told() {
    let wrong_names = [
        ("name: llm/llm/http", "name: llm/http", "no listener"),
        ("name: httproute/llm/vllm/rule/0", "name: httproute/llm/vllm/rule/1", "no cluster"),
        ("envoy.filters.http.router", "envoy.router", "nothing is at"),
        ("path: /load_balancing_policy", "path: /load_balancing/policy", "cannot be applied"),
    ];
    for (right, wrong, expected) in wrong_names {
        assert!(PATCHES.contains(right), "{right}");
        let patches = PATCHES.replace(right, wrong);
        let error = apply_patches(&mut Xds::without_filter(), &documents_of(&patches, "EnvoyPatchPolicy")["spec"]);
        assert!(error.clone().is_err_and(|error| error.contains(expected)), "{wrong}: {error:?}");
    }
    // Behind the router: Envoy refuses that.
    let mut late = Xds::without_filter();
    let patches =
        PATCHES.replace("[?(@.name==\"envoy.filters.http.router\")]\n        path: \"\"", "\n        path: /-");
    apply_patches(&mut late, &documents_of(&patches, "EnvoyPatchPolicy")["spec"]).unwrap();
    assert!(late.validated().is_err_and(|log| log.contains("terminal")));
    // Without the patch of its other half.
    let mut weighted = Xds::without_filter();
    let patches = PATCHES.replace("path: /common_lb_config, value: {}", "path: /metadata, value: {}");
    apply_patches(&mut weighted, &documents_of(&patches, "EnvoyPatchPolicy")["spec"]).unwrap();
    assert!(weighted.validated().is_err_and(|log| log.contains("load_balancing_policy")));
}
