//! What the filter writes, a client cannot: on every path, with Envoy's own removal before the filter and without.

use hyper::http::request::Builder;
use hyper::{Method, Request};
use serde_json::json;
use serde_norway::Value as Yaml;
use warmroute::native::load::client::Answer;
use warmroute::native::load::envoy_config::connection_manager;
use warmroute::native::load::stack::{StackOptions, eventually};
use warmroute::request::names::OUTPUT;
use warmroute::wire::v1::fact::Kind as Fact;

use crate::echo::{Echoes, LANDED, REDIRECTS, seen};
use crate::pool::*;
use crate::scripted_hub::{complete, replica_up, scope, stored};
use crate::world::{COMES_BACK, ask_for, has_no_trap};

const FORGED: &str = "forged";
/// The engine that the client asks for.
const WANTED: usize = 2;

/// A request with everything that the filter writes, written by the client: each twice, once in another case of letters.
fn forged(head: Builder, address: &str) -> Builder {
    OUTPUT.iter().fold(head, |head, name| head.header(*name, address).header(name.to_uppercase(), FORGED))
}

/// Two engines hold a prompt, the first one more of it.
fn two_holders(addresses: &[String]) -> Vec<Fact> {
    let prompt = tokens(1, 160);
    let mut facts = vec![scope(1, "red")];
    for (replica, held) in [(0_u32, &prompt[..]), (1, &prompt[..96])] {
        let id = format!("engine-{replica}");
        facts.push(replica_up(replica, &id, &addresses[replica as usize], "red"));
        facts.extend([stored(replica, 1, held), complete(replica)]);
    }
    // Somebody must not have it, or it is no reason to prefer anybody.
    facts.extend([replica_up(2, "engine-2", &addresses[2], "red"), complete(2)]);
    facts
}

fn manager(config: &mut Yaml) -> &mut Yaml {
    connection_manager(&mut config["static_resources"]["listeners"][0]).unwrap()
}

fn removes_nothing_before(config: &mut Yaml) {
    let removed = manager(config).as_mapping_mut().unwrap().remove("early_header_mutation_extensions");
    assert!(removed.is_some(), "the sample has it");
}

fn yaml(value: serde_json::Value) -> Yaml {
    serde_norway::to_value(value).unwrap()
}

/// Routes before the sample's one: of local replies, of redirects that Envoy follows itself, and one without the filter, to
/// which such a redirect leads.
fn add_routes(config: &mut Yaml) {
    let routes = manager(config)["route_config"]["virtual_hosts"][0]["routes"].as_sequence_mut().unwrap();
    let whole = routes[0].clone();
    let saw: Vec<_> = OUTPUT
        .iter()
        .map(|name| json!({ "header": { "key": format!("x-saw-{name}"), "value": format!("[%REQ({name})%]") } }))
        .collect();
    let direct = |path: &str, action: serde_json::Value| {
        let mut route = json!({ "match": { "path": path }, "response_headers_to_add": saw });
        route.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
        yaml(route)
    };
    let mut redirects = whole.clone();
    redirects["match"] = yaml(json!({ "path": REDIRECTS }));
    redirects["route"]["internal_redirect_policy"] = yaml(json!({}));
    let mut without = whole;
    without["match"] = yaml(json!({ "path": LANDED }));
    without["typed_per_filter_config"] = yaml(json!({
        "warmroute": { "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true },
    }));
    let added = [
        direct("/direct", json!({ "direct_response": { "status": 200 } })),
        direct("/moved", json!({ "redirect": { "path_redirect": "/elsewhere" } })),
        direct("/nowhere", json!({ "route": { "cluster": "empty" } })),
        redirects,
        without,
    ];
    routes.splice(0..0, added);
    let clusters = config["static_resources"]["clusters"].as_sequence_mut().unwrap();
    clusters.push(yaml(json!({ "name": "empty", "connect_timeout": "1s", "type": "STATIC" })));
}

async fn ask(echoes: &Echoes, head: Builder, path: &str, body: String) -> Answer {
    let address = echoes.stack.addresses.engines[WANTED].http.to_string();
    send(&echoes.stack, forged(head, &address), path, body).await
}

/// Neither the client's words nor the address that it asks for.
fn nothing_is_forged(echoes: &Echoes, what: &str, values: &[String]) {
    let address = echoes.stack.addresses.engines[WANTED].http.to_string();
    for value in values {
        assert!(!value.contains(FORGED) && !value.contains(&address), "{what}: {values:?}");
    }
}

/// Both tenants' engines answer but for the one that holds most, in two stacks: with Envoy's own removal, and without.
async fn with_and_without(up: &[usize], change: impl Fn(&mut StackOptions)) -> Vec<Echoes> {
    let mut both = Vec::new();
    for removes in [true, false] {
        let echoes = Echoes::start(up, two_holders, |options| {
            change(options);
            options.edit_envoy = Some(Box::new(move |config, _| {
                add_routes(config);
                if !removes {
                    removes_nothing_before(config);
                }
            }));
        })
        .await;
        let is_known = eventually(COMES_BACK, async || {
            let mut known = true;
            for _ in 0..10 {
                let head = ask_for("red", &tokens(1, 160));
                known &= send(&echoes.stack, head, "/known", "").await.header(OUTPUT[1]) == "PREFIX_MATCH";
            }
            known
        });
        assert!(is_known.await, "{}", echoes.stack.envoy.log_tail());
        both.push(echoes);
    }
    both
}

/// Envoy answers by itself: what it would have sent on says what a client's headers had become by then.
#[tokio::test(flavor = "multi_thread")]
async fn local_replies() {
    for echoes in with_and_without(&[0, 1, 2], |_| {}).await {
        for (path, status) in [("/direct", 200), ("/moved", 301), ("/nowhere", 503)] {
            for prompt in [tokens(1, 160), tokens(9, 160)] {
                let answer = ask(&echoes, ask_for("red", &prompt), path, String::new()).await;
                assert_eq!(answer.status, status, "{path}");
                let saw = OUTPUT.map(|name| answer.header(&format!("x-saw-{name}")).to_owned());
                nothing_is_forged(&echoes, path, &saw);
                assert_eq!(saw[1], format!("[{}]", answer.header(OUTPUT[1])), "{path}: what the filter wrote");
                assert_eq!(answer.headers.get_all(OUTPUT[1]).iter().count(), 1, "{path}");
            }
        }
        has_no_trap(&echoes.stack);
    }
}

/// The engine that holds most is down: the retry goes to the next of the filter's list, and not to the client's.
#[tokio::test(flavor = "multi_thread")]
async fn retries() {
    for echoes in with_and_without(&[1, 2], |_| {}).await {
        let addresses = &echoes.stack.addresses.engines;
        for _ in 0..10 {
            let answer = ask(&echoes, ask_for("red", &tokens(1, 160)), "/retried", String::new()).await;
            assert_eq!((answer.status.as_u16(), engine_of(&answer)), (200, 1));
            let entry = seen(&answer);
            let list = format!("{},{}", addresses[0].http, addresses[1].http);
            assert_eq!(header_values(&entry, OUTPUT[0]), [list]);
            assert_eq!(header_values(&entry, OUTPUT[1]), ["PREFIX_MATCH"]);
            OUTPUT.iter().for_each(|name| nothing_is_forged(&echoes, name, &header_values(&entry, name)));
        }
    }
}

/// Envoy follows a redirect of the engine by itself: the request goes through the filter again, or goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn internal_redirects() {
    for echoes in with_and_without(&[0, 1, 2], |_| {}).await {
        for prompt in [tokens(1, 160), tokens(9, 160)] {
            let answer = ask(&echoes, ask_for("red", &prompt), REDIRECTS, String::new()).await;
            let entry = seen(&answer);
            assert_eq!((answer.status.as_u16(), &entry["path"]), (200, &json!(LANDED)), "the redirect was followed");
            for name in OUTPUT {
                let values = header_values(&entry, name);
                nothing_is_forged(&echoes, name, &values);
                assert!(values.len() <= 1, "{name}: {values:?}");
            }
        }
    }
}

/// Without any valid configuration the filter decides nothing, and removes all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_without_configuration() {
    let echoes = Echoes::start(
        &[0, 1, 2],
        |_| Vec::new(),
        |options| {
            options.plugin["models"] = json!([]);
            options.edit_envoy = Some(Box::new(|config, _| removes_nothing_before(config)));
        },
    )
    .await;
    let json_head = || Request::builder().method(Method::POST).header("content-type", "application/json");
    for (head, path, sent) in [
        (ask_for("red", &tokens(1, 160)), "/probe", String::new()),
        (json_head(), "/v1/completions", body(&tokens(1, 160))),
        (Request::builder(), "/health", String::new()),
    ] {
        let mut answered = Vec::new();
        for _ in 0..6 {
            let answer = ask(&echoes, head_again(&head), path, sent.clone()).await;
            answered.push(engine_of(&answer));
            let entry = seen(&answer);
            assert_eq!(header_values(&entry, OUTPUT[0]), Vec::<String>::new(), "{path}");
            assert_eq!(header_values(&entry, OUTPUT[1]), ["NO_HINT"], "{path}");
            assert_eq!(header_values(&entry, OUTPUT[2]), ["not_configured"], "{path}");
            OUTPUT.iter().for_each(|name| nothing_is_forged(&echoes, name, &header_values(&entry, name)));
        }
        let share = answered.iter().filter(|engine| **engine == WANTED).count();
        assert!(share <= 3, "{path}: {answered:?}, the client asked for engine-{WANTED}");
    }
    has_no_trap(&echoes.stack);
}

/// A copy of a head: builders cannot be cloned.
fn head_again(head: &Builder) -> Builder {
    let mut again = Request::builder().method(head.method_ref().unwrap());
    *again.headers_mut().unwrap() = head.headers_ref().unwrap().clone();
    again
}
