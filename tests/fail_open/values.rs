//! Whatever a hub or a client calls things, it can neither add a header nor begin a line of the log.

use hyper::header::HeaderValue;
use hyper::{Method, Request};
use serde_json::json;
use warmroute::native::load::client::Answer;
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::{Stack, eventually};
use warmroute::wire::v1::fact::Kind as Fact;

use crate::echo::{Echoes, seen};
use crate::pool::*;
use crate::scripted_hub::{complete, replica_up, scope, scope_of, stored};
use crate::world::{COMES_BACK, UNSERVED, ask_for, has_no_trap};

/// What each name tries to get in.
const INJECTED: &str = "x-injected";

/// Names that break out of a line, a header, a label or a terminal.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "r\r\nx-injected: 1",
        "r\nx-injected: 1",
        "r\rx-injected: 1",
        "r\0x-injected: 1",
        "r\u{1b}[2Jx-injected",
        "r\u{7f}\u{85}\u{2028}x-injected",
        "caf\u{e9} \u{1F600}",
        ".;.reason_code.=x-injected.;",
        " \t ",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("x".repeat(512));
    names.push("\u{1}".repeat(512));
    names
}

/// For each name a tenant with a replica that is called so, and for each a scope.
fn named_so(addresses: &[String]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for (at, name) in names().iter().enumerate() {
        let (number, tenant) = (at as u32 + 1, format!("tenant-{at}"));
        facts.push(scope(number, &tenant));
        facts.push(replica_up(2 * number, name, &addresses[at % addresses.len()], &tenant));
        facts.extend([stored(2 * number, number, &tokens(number, 160)), complete(2 * number)]);
        facts.push(replica_up(2 * number + 1, "other", &addresses[(at + 1) % addresses.len()], &tenant));
        facts.push(complete(2 * number + 1));
        facts.push(scope_of(1_000 + number, name, MODEL, ""));
    }
    // A replica whose address is more than that.
    for (at, more) in ["\r\nx-injected: 1", ",6.6.6.6:1", " ", "\0", "/x", "#\u{e9}"].iter().enumerate() {
        let (number, tenant) = (at as u32 + 500, format!("address-{at}"));
        facts.push(scope(number, &tenant));
        facts.push(replica_up(2 * number, "r", &format!("{}{more}", addresses[0]), &tenant));
        facts.extend([stored(2 * number, number, &tokens(number, 160)), complete(2 * number)]);
        facts.push(replica_up(2 * number + 1, "other", &addresses[1], &tenant));
        facts.push(complete(2 * number + 1));
    }
    facts
}

/// No header more, neither at the engine nor at the client, and each of one line.
fn injects_nothing(answer: &Answer) {
    assert!(!answer.headers.contains_key(INJECTED), "{:?}", answer.headers);
    let entry = seen(answer);
    assert_eq!(header_values(&entry, INJECTED), Vec::<String>::new(), "{entry}");
    for pair in entry["headers"].as_array().unwrap() {
        let value = pair[1].as_str().unwrap();
        let is_visible = |character: char| matches!(character, ' '..='~' | '\t');
        assert!(value.chars().all(is_visible) || pair[0] == "x-tenant", "{pair}");
    }
}

/// Every line of the log is Envoy's: begun by it, and without characters that a terminal obeys.
fn log_is_envoys(stack: &Stack) {
    let log = stack.envoy.log_text();
    for line in log.lines() {
        assert!(!line.trim_start().starts_with(INJECTED), "{line}");
        assert!(!line.chars().any(|character| character.is_control() && character != '\t'), "{line:?}");
    }
}

async fn start() -> Echoes {
    let echoes = Echoes::start(&[0, 1, 2], named_so, |_| {}).await;
    let is_known = eventually(COMES_BACK, async || {
        let mut known = true;
        for _ in 0..10 {
            let head = ask_for("tenant-0", &tokens(1, 160));
            known &= send(&echoes.stack, head, "/known", "").await.header("x-inferencecache-matched-tokens") == "160";
        }
        known
    });
    assert!(is_known.await, "{}", echoes.stack.envoy.log_tail());
    echoes
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_a_hub_gives() {
    let echoes = start().await;
    for (at, name) in names().iter().enumerate() {
        let head = ask_for(&format!("tenant-{at}"), &tokens(at as u32 + 1, 160));
        let answer = send(&echoes.stack, head, "/named", "").await;
        assert_eq!(answer.status, 200, "{name:.50?}");
        injects_nothing(&answer);
        // It goes there by its address, whatever it is called.
        assert_eq!(answer.header("x-inferencecache-reason-code"), "PREFIX_MATCH", "{name:.50?}");
        assert_eq!(engine_of(&answer), at % 3, "{name:.50?}");
    }
    for at in 0..6 {
        let head = ask_for(&format!("address-{at}"), &tokens(at + 500, 160));
        let answer = send(&echoes.stack, head, "/addressed", "").await;
        injects_nothing(&answer);
        assert_eq!(answer.header("x-inferencecache-detail"), "no_address", "{at}");
        assert_eq!(header_values(&seen(&answer), "x-gateway-destination-endpoint"), Vec::<String>::new());
    }
    // The log names the tenants that are known.
    let unknown = send(&echoes.stack, ask_for("nobody", &tokens(1, 160)), "/unknown", "").await;
    assert_eq!(unknown.header("x-inferencecache-reason-code"), "UNKNOWN_TENANT");
    let told = eventually(COMES_BACK, async || echoes.stack.envoy.log_text().contains("nothing is known of tenant"));
    assert!(told.await, "{}", echoes.stack.envoy.log_tail());
    log_is_envoys(&echoes.stack);
    has_no_trap(&echoes.stack);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_a_client_gives() {
    let echoes = start().await;
    for name in names() {
        // As model, adapter and prompt of a body, where every character can be.
        for sent in [
            json!({ "model": name, "prompt": tokens(1, 160) }),
            json!({ "model": MODEL, "adapter_id": name, "prompt": tokens(1, 160) }),
            json!({ "model": MODEL, "prompt": name, "user": name, (&name[..]): name }),
        ] {
            let head = Request::builder()
                .method(Method::POST)
                .header("x-tenant", "tenant-0")
                .header("content-type", "application/json");
            let answer = send(&echoes.stack, head, UNSERVED, sent.to_string()).await;
            assert_eq!(answer.status, 200, "{name:.50?}");
            injects_nothing(&answer);
        }
        // As tenant and model in headers, as far as HTTP lets it.
        let Ok(value) = HeaderValue::from_bytes(name.as_bytes()) else { continue };
        let model = ask_for("tenant-0", &tokens(1, 160));
        let tenant = Request::builder().method(Method::POST).header("x-tenant", value.clone());
        for head in [model.header("x-inferencecache-adapter-id", value.clone()), tenant.header("x-y", "z")] {
            let answer = send(&echoes.stack, head, "/named", "").await;
            assert_eq!(answer.status, 200, "{name:.50?}");
            assert!(!answer.headers.contains_key(INJECTED));
        }
    }
    let metrics = echoes.stack.client.get(&echoes.stack.admin_url("/stats/prometheus")).await.unwrap().text();
    assert!(!metrics.contains(INJECTED), "nothing that a client names becomes a label");
    log_is_envoys(&echoes.stack);
    has_no_trap(&echoes.stack);
}
