//! A client can neither choose a replica nor fake a reason.

use hyper::{Method, Request};
use serde_json::{Value, json};
use serde_norway::Value as Yaml;
use warmroute::native::load::envoy_config;
use warmroute::native::load::stack::Stack;
use warmroute::request::names::OUTPUT;

use crate::pool::*;

/// Requests of every kind, each with all output names set to `address`.
fn forged(address: &str) -> Vec<(&'static str, hyper::http::request::Builder, &'static str, Vec<u8>)> {
    let head = |method: Method| {
        let head = Request::builder().method(method).header("content-type", "application/json");
        OUTPUT.iter().fold(head, |head, name| head.header(*name, address).header(*name, "forged"))
    };
    vec![
        ("matched", head(Method::POST), "/v1/completions", body(&tokens(1, 160)).into()),
        ("unmatched", head(Method::POST), "/v1/completions", body(&tokens(2, 160)).into()),
        ("not for an LLM", head(Method::GET), "/health", vec![]),
        ("oversized", head(Method::POST), "/v1/completions", vec![b' '; 100_000]),
        ("malformed", head(Method::POST), "/v1/completions", b"{\"model\": [".into()),
    ]
}

/// A copy of a request's head: builders cannot be cloned.
fn copy(head: &hyper::http::request::Builder) -> hyper::http::request::Builder {
    let mut copy = Request::builder().method(head.method_ref().unwrap());
    *copy.headers_mut().unwrap() = head.headers_ref().unwrap().clone();
    copy
}

/// Where the filter does not run: the forged requests go round all replicas, so the one that the client names gets no
/// more than its share, and no engine sees what the client wrote.
async fn does_not_steer(stack: &Stack, forged_engine: usize) {
    let address = stack.addresses.engines[forged_engine].http.to_string();
    for (what, head, path, sent) in forged(&address) {
        let mut answered = Vec::new();
        for _ in 0..6 {
            let answer = send(stack, copy(&head), path, sent.clone()).await;
            let engine = engine_of(&answer);
            answered.push(engine);
            let entry = last_seen(stack, engine).await;
            for name in OUTPUT {
                assert!(header_values(&entry, name).is_empty(), "{what}: {name} reached the engine");
            }
        }
        let share = answered.iter().filter(|engine| **engine == forged_engine).count();
        assert!(share <= 3, "{what}: {answered:?}, the client asked for engine-{forged_engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_the_filter() {
    is_the_filters_own(stack(|options| options.plugin["max_body_bytes"] = json!(50_000)).await).await;
}

/// The filter alone is enough, where Envoy removes nothing before it.
#[tokio::test(flavor = "multi_thread")]
async fn through_the_filter_where_envoy_removes_nothing() {
    let stack = stack(|options| {
        options.plugin["max_body_bytes"] = json!(50_000);
        options.edit_envoy = Some(Box::new(|config, _| {
            let manager = envoy_config::connection_manager(&mut config["static_resources"]["listeners"][0]).unwrap();
            let removed = manager.as_mapping_mut().unwrap().remove("early_header_mutation_extensions");
            assert!(removed.is_some(), "the sample has it");
        }));
    })
    .await;
    is_the_filters_own(stack).await;
}

/// What the engines see of forged requests is what the filter decided.
async fn is_the_filters_own(stack: Stack) {
    warm(&stack, 1, &tokens(1, 160)).await;
    credited(&stack, &tokens(1, 160), 160).await;
    let address = stack.addresses.engines[2].http.to_string();
    for (what, head, path, sent) in forged(&address) {
        for round in 0..6 {
            // Every round another prompt, so that no hint comes of the test itself.
            let sent = if what == "unmatched" { body(&tokens(10 + round, 160)).into() } else { sent.clone() };
            let answer = send(&stack, copy(&head), path, sent).await;
            let decided = decided(&answer);
            assert_eq!(decided.reason == "PREFIX_MATCH", what == "matched", "{what}: {decided:?}");
            let entry = last_seen(&stack, engine_of(&answer)).await;
            let destination = header_values(&entry, OUTPUT[0]);
            if what == "matched" {
                assert_eq!(engine_of(&answer), 1);
                assert_eq!(destination, [stack.addresses.engines[1].http.to_string()]);
            } else {
                assert!(destination.is_empty(), "{what}: {destination:?}");
            }
            assert_eq!(header_values(&entry, OUTPUT[1]), [decided.reason], "{what}");
            for name in OUTPUT {
                let values = header_values(&entry, name);
                assert!(!values.contains(&"forged".into()) && !values.contains(&address), "{what}: {name} {values:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_route_that_has_the_filter_disabled() {
    let stack = stack(|options| {
        options.edit_envoy = Some(Box::new(|config, _| {
            let manager = envoy_config::connection_manager(&mut config["static_resources"]["listeners"][0]).unwrap();
            let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0];
            route["typed_per_filter_config"] = yaml(json!({
                "warmroute": {
                    "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                    "disabled": true,
                }
            }));
        }));
    })
    .await;
    let answer = send(&stack, probe_head(&tokens(1, 64)), "/probe", "").await;
    assert_eq!(answer.header("x-inferencecache-reason-code"), "", "the filter is disabled");
    does_not_steer(&stack, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_trap() {
    let stack = stack(|options| {
        options.workers = 1;
        options.programs.module = fault_module();
    })
    .await;
    let trap = Request::builder().method(Method::GET).header("x-fault-trap", "1");
    assert_eq!(send(&stack, trap, "/health", "").await.status, 503, "the trap's own request is lost");
    let again = Request::builder().method(Method::GET).header("x-fault-trap", "1");
    assert_eq!(send(&stack, again, "/health", "").await.status, 200, "the filter is bypassed from then on");
    does_not_steer(&stack, 2).await;
}

fn yaml(value: Value) -> Yaml {
    serde_norway::to_value(value).unwrap()
}
