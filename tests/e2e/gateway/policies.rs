//! What Envoy Gateway's policies do to a proxy's configuration, as far as the samples use them. What is not understood here is
//! refused.

use json_patch::Patch;
use jsonpath_rust::JsonPath;
use serde_json::Map;

use super::*;

const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// The documents of a YAML file.
pub fn documents(text: &str) -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    documents.collect()
}

/// The one of a kind.
pub fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = documents.iter().filter(|document| document["kind"] == kind).collect();
    let [one] = found[..] else { panic!("{} of {kind}", found.len()) };
    one
}

/// The one of a kind in a file.
pub fn documents_of(text: &str, kind: &str) -> Value {
    of_kind(&documents(text), kind).clone()
}

/// Takes fields out of a message: what is left at the end was not understood.
struct Taken(Map<String, Value>);

impl Taken {
    fn new(message: &Value) -> Taken {
        Taken(message.as_object().unwrap().clone())
    }

    fn take(&mut self, field: &str) -> Value {
        self.0.remove(field).unwrap_or_else(|| panic!("{field}"))
    }

    fn end(self) {
        assert!(self.0.is_empty(), "not understood: {:?}", self.0);
    }
}

/// A quantity such as `16Mi`, in bytes.
fn bytes(quantity: &Value) -> u64 {
    quantity.as_str().unwrap().strip_suffix("Mi").unwrap().parse::<u64>().unwrap() << 20
}

fn manager(xds: &mut Xds) -> &mut Value {
    &mut xds.listeners[0]["default_filter_chain"]["filters"][0]["typed_config"]
}

/// ClientTrafficPolicy: buffers, windows, headers that are removed before a route is chosen.
pub fn client_traffic(xds: &mut Xds, spec: &Value) {
    let mut spec = Taken::new(spec);
    assert_eq!(spec.take("targetRefs")[0]["name"], "llm");
    let mut connection = Taken::new(&spec.take("connection"));
    xds.listeners[0]["per_connection_buffer_limit_bytes"] = bytes(&connection.take("bufferLimit")).into();
    connection.end();
    let mut http2 = Taken::new(&spec.take("http2"));
    let options = &mut manager(xds)["http2_protocol_options"];
    options["initial_stream_window_size"] = bytes(&http2.take("initialStreamWindowSize")).into();
    options["initial_connection_window_size"] = bytes(&http2.take("initialConnectionWindowSize")).into();
    http2.end();
    let mut headers = Taken::new(&spec.take("headers"));
    let mut early = Taken::new(&headers.take("earlyRequestHeaders"));
    let removed = early.take("remove");
    let mutations: Vec<Value> = removed.as_array().unwrap().iter().map(|name| json!({ "remove": name })).collect();
    manager(xds)["early_header_mutation_extensions"] = json!([{
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": mutations,
        },
    }]);
    early.end();
    headers.end();
    spec.end();
}

/// BackendTrafficPolicy: retries, circuit breakers, timeouts, outlier detection.
pub fn backend_traffic(xds: &mut Xds, spec: &Value) {
    let mut spec = Taken::new(spec);
    assert_eq!(spec.take("targetRefs")[0]["name"], "vllm");
    let mut retry = Taken::new(&spec.take("retry"));
    let triggers = retry.take("retryOn")["triggers"].clone();
    let triggers: Vec<&str> = triggers.as_array().unwrap().iter().map(|trigger| trigger.as_str().unwrap()).collect();
    let back_off = retry.take("perRetry")["backOff"].clone();
    xds.route_configs[0]["virtual_hosts"][0]["routes"][0]["route"]["retry_policy"] = json!({
        "retry_on": triggers.join(","),
        "num_retries": retry.take("numRetries"),
        "retry_back_off": {
            "base_interval": milliseconds(&back_off["baseInterval"]),
            "max_interval": milliseconds(&back_off["maxInterval"]),
        },
        "host_selection_retry_max_attempts": "5",
        "retry_host_predicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            },
        }],
    });
    retry.end();
    let cluster = &mut xds.clusters[0];
    let mut breaker = Taken::new(&spec.take("circuitBreaker"));
    cluster["circuit_breakers"] = json!({ "thresholds": [{
        "max_connections": breaker.take("maxConnections"),
        "max_pending_requests": breaker.take("maxPendingRequests"),
        "max_requests": breaker.take("maxParallelRequests"),
        "max_retries": breaker.take("maxParallelRetries"),
    }] });
    breaker.end();
    let mut timeout = Taken::new(&spec.take("timeout"));
    cluster["connect_timeout"] = timeout.take("tcp")["connectTimeout"].clone();
    xds.route_configs[0]["virtual_hosts"][0]["routes"][0]["route"]["timeout"] =
        timeout.take("http")["requestTimeout"].clone();
    timeout.end();
    let mut passive = Taken::new(&spec.take("healthCheck")["passive"]);
    xds.clusters[0]["outlier_detection"] = json!({
        "consecutive_gateway_failure": passive.take("consecutiveGatewayErrors"),
        "enforcing_consecutive_gateway_failure": 100,
        "consecutive_5xx": passive.take("consecutive5XxErrors"),
        "interval": passive.take("interval"),
        "base_ejection_time": passive.take("baseEjectionTime"),
        "max_ejection_percent": passive.take("maxEjectionPercent"),
    });
    passive.end();
    spec.end();
}

/// `5ms` as protobuf's JSON has it.
fn milliseconds(duration: &Value) -> String {
    let milliseconds: f64 = duration.as_str().unwrap().strip_suffix("ms").unwrap().parse().unwrap();
    format!("{}s", milliseconds / 1000.0)
}

/// EnvoyProxy's bootstrap, merged into the default one, which has nothing of the same names.
pub fn bootstrap(xds: &mut Xds, spec: &Value) {
    assert_eq!(spec["bootstrap"]["type"], "Merge");
    let merged: Map<String, Value> = serde_norway::from_str(spec["bootstrap"]["value"].as_str().unwrap()).unwrap();
    for (field, value) in merged {
        assert!(xds.bootstrap.get(&field).is_none(), "{field}");
        xds.bootstrap[field] = value;
    }
}

/// EnvoyExtensionPolicy: a filter that is off, and on again on the routes that the policy is for.
pub fn extension(xds: &mut Xds, policy: &Value) {
    let mut spec = Taken::new(&policy["spec"]);
    assert_eq!(
        spec.take("targetRefs"),
        json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "vllm" }])
    );
    let wasm = spec.take("wasm");
    spec.end();
    let mut wasm = Taken::new(&wasm[0]);
    assert_eq!(wasm.take("code")["type"], "Image");
    let id = format!("envoyextensionpolicy/{}/{}/wasm/0", "llm", policy["metadata"]["name"].as_str().unwrap());
    let name = format!("envoy.filters.http.wasm/{id}");
    let filter = json!({
        "name": name,
        "disabled": true,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": wasm.take("name"),
                "fail_open": wasm.take("failOpen"),
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": wasm.take("config").to_string(),
                },
                "vm_config": { "vm_id": id, "runtime": "envoy.wasm.runtime.v8" },
            },
        },
    });
    wasm.end();
    manager(xds)["http_filters"].as_array_mut().unwrap().insert(0, filter);
    let on = json!({ "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {} });
    xds.route_configs[0]["virtual_hosts"][0]["routes"][0]["typed_per_filter_config"] = json!({ name: on });
}

/// EnvoyPatchPolicy: JSON patches of resources by type and name; where there is a `jsonPath`, at everything that it finds, and
/// `path` behind that. A path of nothing adds a resource.
///
/// # Errors
/// For a resource that is not there, a path that finds nothing, and a patch that cannot be applied.
pub fn apply_patches(xds: &mut Xds, spec: &Value) -> Result<(), String> {
    assert_eq!(spec["type"], "JSONPatch");
    for patch in spec["jsonPatches"].as_array().unwrap() {
        let (resources, kind) = match patch["type"].as_str().unwrap() {
            LISTENER => (&mut xds.listeners, "listener"),
            CLUSTER => (&mut xds.clusters, "cluster"),
            other => panic!("{other}"),
        };
        let mut operation = Taken::new(&patch["operation"]);
        let path = operation.take("path").as_str().unwrap().to_owned();
        let finds = operation.0.remove("jsonPath");
        if path.is_empty() && finds.is_none() {
            assert_eq!(operation.take("op"), "add");
            let resource = operation.take("value");
            assert_eq!(resource["name"], patch["name"]);
            resources.push(resource);
            continue;
        }
        let mut named = resources.iter_mut().filter(|resource| resource["name"] == patch["name"]);
        let resource = named.next().ok_or_else(|| format!("no {kind} {}", patch["name"]))?;
        let places = match &finds {
            None => vec![String::new()],
            Some(finds) => found(resource, finds.as_str().unwrap())?,
        };
        for place in places {
            let mut one = operation.0.clone();
            one.insert("path".into(), format!("{place}{path}").into());
            let one: Patch = serde_json::from_value(json!([one])).map_err(|error| error.to_string())?;
            json_patch::patch(resource, &one).map_err(|error| format!("cannot be applied: {error}"))?;
        }
    }
    Ok(())
}

/// The JSON pointers to everything that a JSONPath finds.
fn found(resource: &Value, path: &str) -> Result<Vec<String>, String> {
    let paths = resource.query_only_path(path).map_err(|error| error.to_string())?;
    if paths.is_empty() {
        return Err(format!("nothing is at {path}"));
    }
    Ok(paths.iter().map(|path| pointer(path)).collect())
}

/// `$['a'][0]` as `/a/0`.
fn pointer(path: &str) -> String {
    let steps = path.trim_start_matches('$').split(']').filter(|step| !step.is_empty());
    steps.map(|step| format!("/{}", step.trim_start_matches('[').trim_matches('\''))).collect()
}

#[test]
fn a_path_is_found_and_a_patch_put_there() {
    let filters = json!([{ "name": "a" }, { "name": "envoy.filters.http.router" }]);
    let mut xds: Xds = serde_norway::from_str(BASE).unwrap();
    manager(&mut xds)["http_filters"] = filters;
    let router = found(&xds.listeners[0], "$..http_filters[?(@.name==\"envoy.filters.http.router\")]").unwrap();
    assert_eq!(router, ["/default_filter_chain/filters/0/typed_config/http_filters/1"]);
    let names = |xds: &mut Xds| -> Vec<Value> {
        manager(xds)["http_filters"].as_array().unwrap().iter().map(|filter| filter["name"].clone()).collect()
    };
    apply_patches(&mut xds, &documents_of(PATCHES, "EnvoyPatchPolicy")["spec"]).unwrap();
    assert_eq!(names(&mut xds), ["a", "warmroute", "envoy.filters.http.router"]);
}
