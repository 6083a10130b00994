//! `envoy/istio/`: what each file there makes of a configuration as istiod has it, run on Envoy.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use warmroute::native::load::envoy_config::Addresses;
use warmroute::native::load::programs::Programs;
use warmroute::native::load::stack::Stack;

use crate::pool::*;
use crate::samples::{Folder, as_it_is, reads_bodies, shows_a_match};

mod patches;
mod semantics;

use patches::{Configuration, Context, EnvoyFilter};

const MANAGER: &str = "envoy.filters.network.http_connection_manager";
const POOL: &str = "outbound|8000||vllm.llm.svc.cluster.local";
const INGRESS: &str = include_str!("istio/ingress.yaml");
const SIDECAR: &str = include_str!("istio/sidecar.yaml");
const INGRESS_FILTER: &str = include_str!("../../envoy/istio/ingress-gateway.yaml");
const SIDECAR_FILTER: &str = include_str!("../../envoy/istio/sidecar.yaml");
const HEADERS_ONLY_FILTER: &str = include_str!("../../envoy/istio/headers-only.yaml");
const WASM_PLUGIN: &str = include_str!("../../envoy/istio/wasmplugin.yaml");
const STATS_TAGS: &str = include_str!("../../envoy/istio/stats-tags.yaml");

/// A proxy as the control plane configures it.
#[derive(Clone, Deserialize)]
struct Proxy {
    bootstrap: Value,
    /// What it would have by RDS.
    route_configs: BTreeMap<String, Value>,
    contexts: BTreeMap<Context, Configuration>,
}

// === impl Proxy ===

impl Proxy {
    fn parse(text: &str) -> Proxy {
        serde_norway::from_str(text).unwrap()
    }

    /// Applies an EnvoyFilter; says which of its patches did not have an effect exactly once.
    fn patch(&mut self, filter: &str) -> Vec<usize> {
        let filter = EnvoyFilter::parse(filter);
        for (context, configuration) in &mut self.contexts {
            filter.apply(*context, configuration);
        }
        let patches = filter.spec.config_patches.iter().enumerate();
        patches.filter(|(_, patch)| patch.applied.get() != 1).map(|(place, _)| place).collect()
    }

    /// The bootstrap with everything in it that would come by xDS, on this machine: the pool's endpoints are the engines, one
    /// listener is reached at Envoy's address without redirection, the others are out of the way.
    fn on_this_machine(&self, listener: &str, folder: &Path, addresses: &Addresses) -> Value {
        let all = |pick: fn(&Configuration) -> &Vec<Value>| self.contexts.values().flat_map(pick).cloned();
        let extensions: Vec<Value> = all(|configuration| &configuration.extensions).collect();
        let mut discovered = json!({ "version_info": "1", "resources": extensions });
        for resource in discovered["resources"].as_array_mut().unwrap() {
            resource["@type"] = json!("type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig");
        }
        each_object(&mut discovered, &mut |object| self.localize(object, folder, addresses));
        std::fs::write(folder.join("extensions.yaml"), discovered.to_string()).unwrap();

        let mut config = self.bootstrap.clone();
        config["admin"]["address"] = address(addresses.admin);
        let listeners: Vec<Value> = all(|configuration| &configuration.listeners).collect();
        let clusters: Vec<Value> = all(|configuration| &configuration.clusters).collect();
        config["static_resources"] = json!({ "listeners": listeners, "clusters": clusters });
        for found in config["static_resources"]["listeners"].as_array_mut().unwrap() {
            let is_tried = found["name"] == *listener;
            found["address"] = address(if is_tried { addresses.envoy } else { ([127, 0, 0, 1], 0).into() });
            if is_tried {
                found.as_object_mut().unwrap().remove("bind_to_port");
            }
        }
        each_object(&mut config, &mut |object| self.localize(object, folder, addresses));
        config
    }

    /// What is elsewhere in a mesh, in one message.
    fn localize(&self, message: &mut Map<String, Value>, folder: &Path, addresses: &Addresses) {
        if let Some(rds) = message.remove("rds") {
            message
                .insert("route_config".into(), self.route_configs[rds["route_config_name"].as_str().unwrap()].clone());
        }
        if message.get("type") == Some(&json!("EDS")) {
            let name = message["name"].clone();
            let engines = addresses.engines.iter().filter(|_| name == POOL);
            let endpoints: Vec<Value> =
                engines.map(|engine| json!({ "endpoint": { "address": address(engine.http) } })).collect();
            message.insert("type".into(), json!("STATIC"));
            message.remove("eds_cluster_config");
            let assignment = json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] });
            message.insert("load_assignment".into(), assignment);
        }
        if message.get("name") == Some(&json!("warmroute_hub")) && message.contains_key("load_assignment") {
            message.insert("type".into(), json!("STATIC"));
            let endpoint = &mut message["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
            assert_eq!(endpoint["address"]["socket_address"]["address"], "warmroute-hub.llm.svc.cluster.local");
            endpoint["address"] = address(addresses.hub_grpc);
        }
        if let Some(discovery) = message.get_mut("config_discovery") {
            assert_eq!(discovery["config_source"]["ads"], json!({}));
            let path = folder.join("extensions.yaml").display().to_string();
            discovery["config_source"] =
                json!({ "resource_api_version": "V3", "path_config_source": { "path": path } });
        }
        if message.contains_key("vm_config") {
            localize_plugin(message);
        }
    }

    /// The proxy with the local stack's engines and hub.
    async fn run(self, listener: &'static str, name: &str, arguments: Vec<String>) -> (Stack, Folder) {
        let folder = Folder::new(name);
        let place = folder.0.clone();
        let stack = stack(move |options| {
            options.envoy_arguments = arguments;
            options.edit_envoy = Some(Box::new(move |config, addresses| {
                let whole = self.on_this_machine(listener, &place, addresses);
                *config = serde_norway::to_value(whole).unwrap();
            }));
        })
        .await;
        (stack, folder)
    }

    /// What Envoy says to the configuration.
    fn validated(&self, name: &str) -> Result<(), String> {
        let folder = Folder::new(name);
        let somewhere = || ([127, 0, 0, 1], 0).into();
        let addresses = Addresses {
            envoy: somewhere(),
            plain: somewhere(),
            admin: somewhere(),
            hub_grpc: somewhere(),
            hub_http: somewhere(),
            engines: Vec::new(),
        };
        validated(&self.on_this_machine("", &folder.0, &addresses))
    }
}

/// What Envoy says to a configuration, deprecated fields included.
pub fn validated(config: &Value) -> Result<(), String> {
    let config = config.to_string();
    let output =
        Command::new(programs().envoy).args(["--mode", "validate", "--config-yaml", &config]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && !log.contains("Deprecated field") { Ok(()) } else { Err(log) }
}

/// A plugin's module is the one that is tested, and repeats decisions on responses.
pub fn localize_plugin(plugin: &mut Map<String, Value>) {
    plugin["vm_config"]["code"] = json!({ "local": { "filename": programs().module.display().to_string() } });
    let value = &mut plugin["configuration"]["value"];
    let mut config: Value = serde_json::from_str(value.as_str().unwrap()).unwrap();
    config["output"]["response_headers"] = json!(true);
    *value = config.to_string().into();
}

/// An address as Envoy's configuration has it.
pub fn address(address: std::net::SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// Changes every message in a configuration, those inside first.
pub fn each_object(value: &mut Value, change: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| each_object(value, change)),
        Value::Object(object) => {
            object.values_mut().for_each(|value| each_object(value, change));
            change(object);
        }
        _ => {}
    }
}

/// A body that Envoy's own limit would refuse, of 1 MiB or less, is held.
pub async fn holds_large_bodies(stack: &Stack) {
    let body =
        json!({ "model": envoy_model(), "prompt": tokens(1, 160), "max_tokens": 1, "user": "x".repeat(1_500_000) });
    let head = hyper::Request::post("/").header("content-type", "application/json");
    let answer = send(stack, head, "/v1/completions", body.to_string()).await;
    let found = ["x-inferencecache-reason-code", "x-inferencecache-replica-id"].map(|name| answer.header(name));
    assert_eq!((answer.status.as_u16(), found), (200, ["PREFIX_MATCH", "engine-1"]));
}

/// Metrics have labels, by the model among others.
pub async fn has_labelled_metrics(stack: &Stack) {
    let scrape = stack.metrics().await.unwrap();
    let labels = [("model", envoy_model()), ("reason_code", "PREFIX_MATCH"), ("hint_used", "true")];
    assert!(scrape.sum("inferencecache_lookup_route_calls_total", &labels) > 30.0);
}

fn envoy_model() -> &'static str {
    warmroute::native::load::envoy_config::MODEL
}

fn programs() -> Programs {
    Programs::find().unwrap_or_else(|missing| panic!("{missing}"))
}

/// The arguments with which the proxy's agent hands over what `stats-tags.yaml` holds.
fn bootstrap_override() -> Vec<String> {
    let map: Value = serde_norway::from_str(STATS_TAGS).unwrap();
    vec!["--config-yaml".into(), map["data"]["custom_bootstrap.json"].as_str().unwrap().into()]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ingress_gateway_shows_a_match() {
    let mut proxy = Proxy::parse(INGRESS);
    assert_eq!(proxy.patch(INGRESS_FILTER), Vec::<usize>::new());
    let (stack, _folder) = proxy.run("0.0.0.0_80", "istio-ingress", bootstrap_override()).await;
    shows_a_match("ingress-gateway.yaml", &stack, &as_it_is).await;
    reads_bodies("ingress-gateway.yaml", &stack, &as_it_is).await;
    holds_large_bodies(&stack).await;
    has_labelled_metrics(&stack).await;
    // Istio's own tags are still there.
    let scrape = stack.metrics().await.unwrap();
    assert!(scrape.sum("envoy_server_live", &[]) > 0.0);

    // The best of the list is down, and Istio's own retries go on to the next.
    let mut stack = stack;
    stack.hub.kill().await.unwrap();
    stack.engines[1].kill().await.unwrap();
    let head = probe_head(&tokens(1, 160)).header("content-type", "application/json");
    let answer = send(&stack, head, "/v1/completions", body(&tokens(1, 160))).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-inferencecache-replica-id")), (200, "engine-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_shows_a_match() {
    let mut proxy = Proxy::parse(SIDECAR);
    let inbound = proxy.contexts[&Context::SidecarInbound].clone();
    assert_eq!(proxy.patch(SIDECAR_FILTER), Vec::<usize>::new());
    assert_eq!(proxy.contexts[&Context::SidecarInbound], inbound, "what comes in is left alone");
    let (stack, _folder) = proxy.run("0.0.0.0_8000", "istio-sidecar", bootstrap_override()).await;
    shows_a_match("sidecar.yaml", &stack, &as_it_is).await;
    reads_bodies("sidecar.yaml", &stack, &as_it_is).await;
    holds_large_bodies(&stack).await;
    has_labelled_metrics(&stack).await;
}

/// A WasmPlugin as istiod makes it a filter: before Istio's statistics, its configuration as JSON in a StringValue.
fn filter_of_plugin(plugin: &Value) -> Value {
    let spec = &plugin["spec"];
    assert_eq!((&plugin["kind"], &spec["phase"]), (&json!("WasmPlugin"), &json!("STATS")));
    assert!(spec["url"].as_str().unwrap().starts_with("oci://"));
    json!({
        "name": "istio-ingress.warmroute",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "istio-ingress.warmroute",
                "failure_policy": spec["failStrategy"],
                "vm_config": { "runtime": "envoy.wasm.runtime.v8" },
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": spec["pluginConfig"].to_string(),
                },
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_plugin_matches_by_headers() {
    let mut proxy = Proxy::parse(INGRESS);
    let filter = filter_of_plugin(&serde_norway::from_str(WASM_PLUGIN).unwrap());
    let gateway = proxy.contexts.get_mut(&Context::Gateway).unwrap();
    let manager = &mut gateway.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"];
    let filters = manager["http_filters"].as_array_mut().unwrap();
    let stats = filters.iter().position(|filter| filter["name"] == "istio.stats").unwrap();
    filters.insert(stats, filter);
    assert_eq!(proxy.patch(HEADERS_ONLY_FILTER), Vec::<usize>::new());
    let (stack, _folder) = proxy.run("0.0.0.0_80", "istio-plugin", bootstrap_override()).await;
    shows_a_match("wasmplugin.yaml", &stack, &as_it_is).await;
    // A body is not held, and passes.
    let head = hyper::Request::post("/").header("content-type", "application/json");
    let answer = send(&stack, head, "/v1/completions", body(&tokens(1, 160))).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-inferencecache-detail")), (200, "other_path"));
}

#[test]
fn envoy_accepts_the_patched_configurations() {
    for (base, filter) in [(INGRESS, INGRESS_FILTER), (SIDECAR, SIDECAR_FILTER), (INGRESS, HEADERS_ONLY_FILTER)] {
        let mut proxy = Proxy::parse(base);
        proxy.validated("istio-before").unwrap_or_else(|log| panic!("{log}"));
        proxy.patch(filter);
        proxy.validated("istio-after").unwrap_or_else(|log| panic!("{log}"));
    }
}

/// Names and ports that are not those of the mesh leave patches without effect, which the tests above would see.
#[test]
fn patches_that_miss_are_told() {
    let misses = [
        (INGRESS, INGRESS_FILTER, "portNumber: 80\n", "portNumber: 8080\n", vec![1, 2]),
        (INGRESS, INGRESS_FILTER, "vllm.llm.svc.cluster.local", "vllm", vec![3]),
        (
            INGRESS,
            INGRESS_FILTER,
            "subFilter: { name: envoy.filters.http.router }",
            "subFilter: { name: router }",
            vec![2],
        ),
        (INGRESS, INGRESS_FILTER, "context: GATEWAY", "context: SIDECAR_OUTBOUND", vec![0, 1, 2, 3, 4]),
        (SIDECAR, SIDECAR_FILTER, "context: SIDECAR_OUTBOUND", "context: SIDECAR_INBOUND", vec![0, 4]),
    ];
    for (base, filter, right, wrong, expected) in misses {
        assert!(filter.contains(right), "{right}");
        assert_eq!(Proxy::parse(base).patch(&filter.replace(right, wrong)), expected, "{wrong}");
    }
}

/// What Envoy itself does not take.
#[test]
fn mistakes_that_envoy_refuses() {
    let mut late = Proxy::parse(INGRESS);
    late.patch(&INGRESS_FILTER.replace("operation: INSERT_BEFORE", "operation: ADD"));
    let log = late.validated("istio-late").unwrap_err();
    assert!(log.contains("terminal"), "{log}");

    // As with outlier detection and locality failover, or a distribution by locality.
    let mut weighted = Proxy::parse(INGRESS);
    let gateway = weighted.contexts.get_mut(&Context::Gateway).unwrap();
    gateway.clusters[0]["common_lb_config"] = json!({ "locality_weighted_lb_config": {} });
    weighted.patch(INGRESS_FILTER);
    let log = weighted.validated("istio-weighted").unwrap_err();
    assert!(log.contains("load_balancing_policy"), "{log}");
}
