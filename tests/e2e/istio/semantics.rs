//! The rules by which patches are applied, one by one, and mistakes that have to be noticed.

use serde_json::json;

use super::patches::*;
use super::*;

/// A listener with these HTTP filters.
fn configuration(filters: &[&str]) -> Configuration {
    let filters: Vec<Value> = filters.iter().map(|name| json!({ "name": name })).collect();
    let manager = json!({ "name": MANAGER, "typed_config": { "@type": "hcm", "http_filters": filters } });
    let listener = json!({
        "name": "0.0.0.0_8080",
        "address": { "socket_address": { "address": "0.0.0.0", "port_value": 8080 } },
        "filter_chains": [{ "name": "web", "filters": [manager] }],
    });
    let cluster = json!({ "name": "outbound|8000|v1|vllm.llm.svc.cluster.local", "connect_timeout": "10s" });
    Configuration { listeners: vec![listener], clusters: vec![cluster], ..Configuration::default() }
}

/// What is left of a configuration after one patch, and how often it had an effect.
fn patched(mut configuration: Configuration, patch: Value) -> (Configuration, usize) {
    let document = json!({ "kind": "EnvoyFilter", "spec": { "configPatches": [patch] } });
    let filter = EnvoyFilter::parse(&document.to_string());
    filter.apply(Context::Gateway, &mut configuration);
    (configuration, filter.spec.config_patches[0].applied.get())
}

fn http_filters(configuration: &Configuration) -> Vec<&str> {
    let manager = &configuration.listeners[0]["filter_chains"][0]["filters"][0];
    let filters = manager["typed_config"]["http_filters"].as_array().unwrap();
    filters.iter().map(|filter| filter["name"].as_str().unwrap()).collect()
}

/// A patch of the HTTP filters of one listener.
fn http_patch(operation: &str, beside: Option<&str>) -> Value {
    let mut filter = json!({ "name": MANAGER });
    if let Some(name) = beside {
        filter["subFilter"] = json!({ "name": name });
    }
    json!({
        "applyTo": "HTTP_FILTER",
        "match": { "context": "GATEWAY", "listener": { "portNumber": 8080, "filterChain": { "filter": filter } } },
        "patch": { "operation": operation, "value": { "name": "new" } },
    })
}

#[test]
fn filters_are_inserted_where_istio_inserts_them() {
    let cases = [
        ("ADD", Some("b"), vec!["a", "b", "new"]),
        ("INSERT_FIRST", Some("b"), vec!["new", "a", "b"]),
        ("INSERT_BEFORE", Some("b"), vec!["a", "new", "b"]),
        ("INSERT_BEFORE", None, vec!["new", "a", "b"]),
        ("INSERT_BEFORE", Some("c"), vec!["a", "b"]),
        ("INSERT_AFTER", Some("a"), vec!["a", "new", "b"]),
        ("INSERT_AFTER", Some("b"), vec!["a", "b", "new"]),
        ("INSERT_AFTER", None, vec!["a", "b", "new"]),
    ];
    for (operation, beside, expected) in cases {
        let (configuration, applied) = patched(configuration(&["a", "b"]), http_patch(operation, beside));
        assert_eq!(http_filters(&configuration), expected, "{operation} {beside:?}");
        assert_eq!(applied, expected.len() - 2, "{operation} {beside:?}");
    }
}

#[test]
fn what_does_not_match_is_left_alone() {
    let wrong = [
        ("/match/context", json!("SIDECAR_OUTBOUND")),
        ("/match/listener/portNumber", json!(80)),
        ("/match/listener/name", json!("other")),
        ("/match/listener/filterChain/name", json!("other")),
        ("/match/listener/filterChain/filter/name", json!("envoy.filters.network.tcp_proxy")),
    ];
    for (place, value) in wrong {
        let mut patch = http_patch("INSERT_BEFORE", Some("b"));
        let (parent, field) = place.rsplit_once('/').unwrap();
        patch.pointer_mut(parent).unwrap()[field] = value;
        assert_eq!(patched(configuration(&["a", "b"]), patch), (configuration(&["a", "b"]), 0), "{place}");
    }
}

#[test]
fn clusters_are_told_by_the_parts_of_their_names() {
    let cases = [
        (json!({}), 1),
        (json!({ "service": "vllm.llm.svc.cluster.local", "portNumber": 8000, "subset": "v1" }), 1),
        (json!({ "name": "outbound|8000|v1|vllm.llm.svc.cluster.local", "portNumber": 1 }), 1),
        (json!({ "service": "vllm" }), 0),
        (json!({ "portNumber": 80 }), 0),
        (json!({ "subset": "v2" }), 0),
    ];
    for (cluster, expected) in cases {
        let (_, applied) = patched(
            configuration(&[]),
            json!({
                "applyTo": "CLUSTER",
                "match": { "context": "GATEWAY", "cluster": cluster },
                "patch": { "operation": "MERGE", "value": { "connect_timeout": "1s" } },
            }),
        );
        assert_eq!(applied, expected, "{cluster}");
    }
}

#[test]
fn messages_are_merged_as_protobuf_merges_them() {
    let mut target = json!({
        "scalar": 1,
        "message": { "kept": true, "list": [1] },
        "any": { "@type": "a", "gone": true },
        "typed_extension_protocol_options": { "x": { "gone": 1 }, "y": 2 },
    });
    let patch = json!({
        "scalar": 2,
        "message": { "list": [2], "new": {} },
        "any": { "@type": "a", "instead": true },
        "typed_extension_protocol_options": { "x": { "instead": 1 } },
    });
    merge(&mut target, &patch);
    let expected = json!({
        "scalar": 2,
        "message": { "kept": true, "list": [1, 2], "new": {} },
        "any": { "@type": "a", "instead": true },
        "typed_extension_protocol_options": { "x": { "instead": 1 }, "y": 2 },
    });
    assert_eq!(target, expected);
}

#[test]
fn of_a_named_filter_the_configuration_is_merged() {
    let mut configuration = configuration(&["a"]);
    let manager =
        |configuration: &mut Configuration| configuration.listeners[0]["filter_chains"][0]["filters"][0].take();
    configuration.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]["early_header_mutation_extensions"] =
        json!(["another's"]);
    let patch = json!({
        "applyTo": "NETWORK_FILTER",
        "match": { "context": "GATEWAY", "listener": { "filterChain": { "filter": { "name": MANAGER } } } },
        "patch": { "operation": "MERGE", "value": {
            "typed_config": { "@type": "another", "early_header_mutation_extensions": ["ours"] },
        } },
    });
    let (mut configuration, applied) = patched(configuration, patch);
    let manager = manager(&mut configuration);
    assert_eq!((applied, &manager["name"], &manager["typed_config"]["@type"]), (1, &json!(MANAGER), &json!("hcm")));
    assert_eq!(manager["typed_config"]["early_header_mutation_extensions"], json!(["another's", "ours"]));
    assert_eq!(manager["typed_config"]["http_filters"], json!([{ "name": "a" }]));
}

/// Ports of the two listeners that everything comes through are those of their chains.
#[test]
fn a_virtual_listener_is_matched_by_its_chains() {
    let base = || {
        let mut configuration = configuration(&["a", "b"]);
        configuration.listeners[0]["name"] = json!("virtualInbound");
        configuration.listeners[0]["filter_chains"][0]["filter_chain_match"] = json!({ "destination_port": 8000 });
        configuration
    };
    let mut patch = http_patch("INSERT_BEFORE", Some("b"));
    assert_eq!(patched(base(), patch.clone()).1, 0);
    patch["match"]["listener"]["portNumber"] = json!(8000);
    assert_eq!(http_filters(&patched(base(), patch).0), ["a", "new", "b"]);
    let listener = json!({
        "applyTo": "LISTENER",
        "match": { "context": "GATEWAY", "listener": { "portNumber": 8000 } },
        "patch": { "operation": "MERGE", "value": { "per_connection_buffer_limit_bytes": 1 } },
    });
    assert_eq!(patched(base(), listener), (base(), 0));
}

#[test]
#[should_panic(expected = "unknown field")]
fn what_is_not_understood_is_refused() {
    let mut patch = http_patch("INSERT_BEFORE", Some("b"));
    patch["match"]["routeConfiguration"] = json!({});
    patched(configuration(&[]), patch);
}
