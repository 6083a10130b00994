//! Every reason code and every detail, once through the filter on a real Envoy, and counted under its own label.
//!
//! The details that nothing here can bring about are named with the reason; the test fails if one of the others is
//! missing, so a new code or detail needs a case.

mod seen;
mod texts;

use std::time::Duration;

use hyper::http::request::Builder;
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmroute::config::RESERVED_TENANT;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::contract::messages::v1alpha1::{CacheStateUpdate, PrefixEntry};
use warmroute::native::load::client::Client;
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::{Stack, StackOptions, eventually};
use warmroute::observation::BlockKey;
use warmroute::request::MAX_TOKENS;

use crate::pool::*;
use seen::{Case, Seen};

/// A path whose bodies the filter reads and no engine does.
const UNSERVED: &str = "/probe/completions";
const SECOND_MODEL: &str = "second";
const THIRD_MODEL: &str = "third";
/// A tenant with the CachePolicy's defaults: affinity is on.
const AFFINITY_TENANT: &str = "affine";

#[tokio::test(flavor = "multi_thread")]
async fn each_code_and_detail_is_said_and_counted() {
    let mut seen = Seen::default();
    of_requests_and_decisions(&mut seen).await;
    of_a_filter_without_configuration(&mut seen).await;
    of_a_worker_that_is_behind(&mut seen).await;
    texts::of_texts(&mut seen).await;
    seen.is_everything();
}

/// Four engines: two of one model, one of that model for another tenant, one of another model; all with adapters.
fn pool(options: &mut StackOptions) {
    options.engines = 4;
    options.workers = 1;
    options.engine.loras = ["sql", "chat", "both"].map(str::to_owned).to_vec();
    options.plugin["tenant"] = json!({ "header": "x-tenant" });
    options.plugin["stale_after_ms"] = json!(4_000);
    options.plugin["paths"] = json!(["/v1/completions", UNSERVED]);
    options.plugin["models"] = json!([
        { "model_id": MODEL, "adapters": ["chat"] },
        { "model_id": SECOND_MODEL },
        { "model_id": THIRD_MODEL },
    ]);
    options.plugin["policies"] = json!({
        AFFINITY_TENANT: {},
        "strict": { "strategy": { "requireChain": true } },
        "exact": { "strategy": { "enableChainMatching": false }, "affinityRouting": "Disabled" },
        "long": { "minimumPrefixTokens": 1_000, "affinityRouting": "Disabled" },
        "hurried": { "lookupTimeoutMs": 1 },
    });
    options.edit_envoy = Some(Box::new(|config, _| {
        let listener = &mut config["static_resources"]["listeners"][0];
        // Leaves `100 Continue` to the engine, so that `expect` reaches the filter.
        listener["filter_chains"][0]["filters"][0]["typed_config"]["proxy_100_continue"] = true.into();
    }));
    options.edit_hub = Some(Box::new(|config, _| {
        config["replicas"][2]["tenant"] = AFFINITY_TENANT.into();
        config["replicas"][3]["model"] = SECOND_MODEL.into();
    }));
}

async fn of_requests_and_decisions(seen: &mut Seen) {
    let stack = stack(pool).await;
    heard(&stack, MODEL, UNSERVED).await;
    let whole = body(&tokens(1, 160));
    seen.expect(&stack, vec![Case::new("nothing is known", of("default"), whole, ("NO_HINT", "cold"))]).await;
    seen.expect(&stack, requests()).await;
    seen.expect(&stack, refused_by_policy()).await;
    for (reason, detail, answer) in [
        ("NO_HINT", "unknown_length", chunked(&stack).await),
        ("NO_HINT", "expect_continue", waiting_to_be_told(&stack).await),
        ("NO_HINT", "upgrade", upgrading(&stack).await),
    ] {
        assert!(answer.contains(&format!("x-inferencecache-detail: {detail}\r\n")), "{answer}");
        seen.note(&stack, reason, detail).await;
    }
    learn(&stack).await;
    seen.expect(&stack, decisions()).await;
    let several = json!({ "model": MODEL, "prompt": [tokens(21, 160), tokens(31, 160)], "max_tokens": 1 }).to_string();
    let first = ("PREFIX_MATCH", "first_of_several");
    seen.expect(&stack, vec![Case::new("the first of several prompts", of("default"), several, first)]).await;
    a_warm_replica(seen, &stack).await;
    adapters(seen, &stack).await;
    a_replica_without_an_address(seen, &stack).await;
    let log = stack.envoy.log_text();
    for (code, known) in [
        ("UNKNOWN_TENANT: nothing is known of tenant \"nobody\"", format!("; known tenants: \"{AFFINITY_TENANT}\", ")),
        ("UNKNOWN_MODEL: nothing is known of model \"", format!(" for tenant \"default\"; known models: \"{MODEL}\"")),
        ("UNKNOWN_HASH_SCHEME: nothing is known under hash scheme \"sglang\"", "known hash schemes: \"vllm\"".into()),
    ] {
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(code)).collect();
        assert_eq!(warnings.len(), 1, "{code}: {warnings:?}");
        assert!(warnings[0].contains(&known), "{known}: {warnings:?}");
    }
    stack.hub.stop().unwrap();
    let prompt = tokens(1, 160);
    let stale = eventually(SOON * 10, async || {
        decided(&send(&stack, of("default"), "/v1/completions", body(&prompt)).await).detail == "stale"
    });
    assert!(stale.await, "the index is not confirmed any more");
    seen.note(&stack, "NO_HINT", "stale").await;
    stack.hub.resume().unwrap();
}

/// What is decided by the request alone.
fn requests() -> Vec<Case> {
    let whole = || body(&tokens(1, 160));
    let no_hint = |detail| ("NO_HINT", detail);
    let of_type = |kind: &str| Request::builder().method(Method::POST).header("content-type", kind);
    let json = |value: Value| value.to_string();
    let get = Request::builder().method(Method::GET);
    let gzip = of("default").header("content-encoding", "gzip");
    let keys = of("default").header("x-inferencecache-model-id", MODEL);
    let malformed = keys.header("x-inferencecache-block-hashes", "00").header("x-inferencecache-block-size", "16");
    let too_many = format!(r#"{{"model":"{MODEL}","prompt":[1{}]}}"#, ",1".repeat(MAX_TOKENS));
    vec![
        Case::new("GET", get, "", no_hint("not_post")),
        Case::new("another path", of("default"), whole(), no_hint("other_path")).at("/v1/embeddings"),
        Case::new("gRPC", of_type("application/grpc"), "\0\0\0\0\0", no_hint("grpc")),
        Case::new("compressed", gzip, "\x1f", no_hint("encoded_body")),
        Case::new("a form", of_type("application/x-www-form-urlencoded"), "a=b", no_hint("not_json")),
        Case::new("too large", of("default"), vec![b' '; 5_000_000], no_hint("body_too_large")),
        Case::new("empty", of("default").header("content-length", "0"), "", no_hint("empty_body")),
        Case::new("cut off", of("default"), &whole()[..40], no_hint("malformed_json")),
        Case::new("a number", of("default"), json(json!({"model": MODEL, "prompt": 7})), no_hint("wrong_type")),
        Case::new("no model", of("default"), json(json!({"prompt": [1]})), no_hint("no_model")),
        Case::new("alien", of("default"), json(json!({"model": "x", "prompt": [1]})), no_hint("model_not_configured")),
        Case::new("the reserved tenant", of(RESERVED_TENANT), whole(), no_hint("no_tenant")),
        Case::new("no prompt", of("default"), json(json!({"model": MODEL})), no_hint("no_prompt")),
        Case::new("text", of("default"), json(json!({"model": MODEL, "prompt": "hello"})), no_hint("no_tokenizer")),
        Case::new("half a key", malformed, "", no_hint("malformed_chain")).at("/probe"),
        Case::new("a token too many", of("default"), too_many, no_hint("too_many_tokens")),
        Case::new("short", of("default"), body(&tokens(1, 15)), no_hint("short_prompt")),
        Case::new(
            "salted",
            of("default"),
            json(json!({"model": MODEL, "prompt": tokens(1, 160), "cache_salt": "s"})),
            no_hint("unsupported_key"),
        ),
    ]
}

/// What the tenant's policy refuses, whatever is known.
fn refused_by_policy() -> Vec<Case> {
    let million = format!(r#"{{"model":"{MODEL}","prompt":[1{}]}}"#, ",1".repeat(MAX_TOKENS - 1));
    vec![
        Case::new("ids where chains are required", of("strict"), body(&tokens(1, 160)), ("POLICY_REQUIRES_CHAIN", "")),
        Case::new("a chain where none count", chain_of("exact", 160), "", ("NO_HINT", "chains_disabled")).at("/probe"),
        Case::new("below the minimum", chain_of("long", 992), "", ("NO_HINT", "below_minimum_prefix")).at("/probe"),
        Case::new("a million ids in a millisecond", of("hurried"), million, ("TIMEOUT", "")),
    ]
}

/// Lets engines compute what the decisions below are about, and waits until it is known.
async fn learn(stack: &Stack) {
    // Two replicas share a prompt; each of them has one of its own beside it, and one of these is short.
    for engine in [0, 1] {
        warm(stack, engine, &tokens(20, 160)).await;
    }
    warm(stack, 0, &tokens(21, 160)).await;
    warm(stack, 1, &tokens(22, 48)).await;
    warm(stack, 2, &tokens(23, 160)).await;
    warm(stack, 3, &tokens(24, 160)).await;
    for (tenant, model, seed, expected) in [
        ("default", MODEL, 20, "below_routing_floor"),
        ("default", MODEL, 21, ""),
        ("default", MODEL, 22, "below_matched_tokens"),
        (AFFINITY_TENANT, MODEL, 23, ""),
        ("default", SECOND_MODEL, 24, ""),
    ] {
        let count = if seed == 22 { 48 } else { 160 };
        let mut last = None;
        let known = eventually(SOON * 5, async || {
            let head = probe_head_for(model, &tokens(seed, count)).header("x-tenant", tenant);
            last = Some(decided(&send(stack, head, "/probe", "").await));
            last.as_ref().is_some_and(|last| last.detail == expected)
        });
        assert!(known.await, "{seed}: {last:?}, expected {expected:?}");
    }
}

/// What is decided by what is known.
fn decisions() -> Vec<Case> {
    let chain = |seed, count, tenant, model| probe_head_for(model, &tokens(seed, count)).header("x-tenant", tenant);
    let held = |seed, count| chain(seed, count, "default", MODEL);
    let scheme = held(30, 160).header("x-inferencecache-hash-scheme", "sglang");
    let probes = [
        ("held by one", held(21, 160), ("PREFIX_MATCH", "")),
        ("held by both", held(20, 160), ("NO_HINT", "below_routing_floor")),
        ("held in short", held(22, 48), ("NO_HINT", "below_matched_tokens")),
        ("held by nobody", held(30, 160), ("NO_HINT", "miss")),
        ("picked by hash", chain(30, 160, AFFINITY_TENANT, MODEL), ("AFFINITY_HINT", "miss")),
        ("tenant", chain(30, 160, "nobody", MODEL), ("UNKNOWN_TENANT", "")),
        ("tenant, again", chain(31, 160, "nobody", MODEL), ("UNKNOWN_TENANT", "")),
        ("model", chain(30, 160, "default", THIRD_MODEL), ("UNKNOWN_MODEL", "")),
        ("hash scheme", scheme, ("UNKNOWN_HASH_SCHEME", "")),
    ];
    probes.into_iter().map(|(what, head, expected)| Case::new(what, head, "", expected).at("/probe")).collect()
}

/// Statistics make a replica warm; only a single key that nobody holds asks for one.
async fn a_warm_replica(seen: &mut Seen, stack: &Stack) {
    for _ in 0..3 {
        warm(stack, 0, &tokens(21, 160)).await;
    }
    let mut last = None;
    let hot = eventually(SOON * 5, async || {
        let head = of("default").header("x-inferencecache-model-id", MODEL);
        let head = head.header("x-inferencecache-prefix-hash", "00000000000000ff");
        let answer = send(stack, head.header("x-inferencecache-prefix-token-count", "64"), "/probe", "").await;
        last = Some((decided(&answer), engine_of(&answer)));
        last.as_ref().is_some_and(|(decided, _)| decided.reason == "TENANT_HOT")
    });
    assert!(hot.await, "{last:?}");
    let (decided, engine) = last.unwrap();
    assert_eq!((place_of(&decided.replica), decided.matched_tokens), (engine, 0), "the hint was followed");
    seen.note(stack, "TENANT_HOT", "").await;
}

/// An adapter in place of the model: from the configuration, from what an engine reported, and from two models.
async fn adapters(seen: &mut Seen, stack: &Stack) {
    let calls = async || {
        let metrics = stack.metrics().await.unwrap();
        metrics.sum(
            "inferencecache_lookup_route_calls_total",
            &[("model", MODEL), ("reason_code", "PREFIX_MATCH"), ("hint_used", "true")],
        )
    };
    for (engine, adapter) in [(1, "chat"), (0, "sql"), (0, "both"), (3, "both")] {
        warm_adapter(stack, engine, adapter, &tokens(40, 160)).await;
    }
    for (adapter, engine) in [("chat", 1), ("sql", 0)] {
        let before = calls().await;
        let mut last = None;
        let matched = eventually(SOON * 5, async || {
            let answer = send(stack, of("default"), "/v1/completions", body_for(adapter, &tokens(40, 160))).await;
            assert_eq!(answer.status, 200, "the engine serves {adapter}");
            last = Some((decided(&answer), engine_of(&answer)));
            last.as_ref().is_some_and(|(decided, _)| decided.reason == "PREFIX_MATCH")
        });
        assert!(matched.await, "{adapter}: {last:?}");
        let (decided, answered) = last.unwrap();
        assert_eq!((place_of(&decided.replica), answered, decided.matched_tokens), (engine, engine, 160), "{adapter}");
        assert_eq!(calls().await, before + 1.0, "{adapter} counts under its model");
    }
    let ambiguous = eventually(SOON * 5, async || {
        let answer = send(stack, of("default"), "/v1/completions", body_for("both", &tokens(40, 160))).await;
        decided(&answer).detail == "ambiguous_adapter"
    });
    assert!(ambiguous.await, "two models have it");
    seen.note(stack, "NO_HINT", "ambiguous_adapter").await;
}

async fn of_a_filter_without_configuration(seen: &mut Seen) {
    let stack = stack(|options| options.plugin["models"] = json!([])).await;
    let answer = send(&stack, of("default"), "/v1/completions", body(&tokens(1, 160))).await;
    // Without a configuration nothing is repeated on the response; the engine sees it.
    let entry = last_seen(&stack, engine_of(&answer)).await;
    assert_eq!(header_values(&entry, "x-inferencecache-reason-code"), ["NO_HINT"]);
    assert_eq!(header_values(&entry, "x-inferencecache-detail"), ["not_configured"]);
    seen.note(&stack, "NO_HINT", "not_configured").await;
}

/// The first request of a worker that does not lead, with more to read than a millisecond allows: the log is too long to be
/// read from its beginning, so each of the pages has to be looked at.
async fn of_a_worker_that_is_behind(seen: &mut Seen) {
    let stack = stack(|options| {
        options.workers = 4;
        options.engine.prefill_us_per_token = 1;
        options.plugin["limits"] = json!({ "pages": 32_768, "max_request_work_ms": 1 });
    })
    .await;
    let mut seed = 100;
    let is_long = eventually(SOON * 10, async || {
        for _ in 0..10 {
            seed += 1;
            warm(&stack, 1, &tokens(seed, 160)).await;
        }
        stack.metrics().await.unwrap().sum("warmroute_log_sequence", &[]) >= 100.0
    });
    assert!(is_long.await, "{}", stack.envoy.log_tail());
    // The kernel picks the worker of a connection; one of them may lead, and is not behind.
    let mut details = Vec::new();
    for _ in 0..40 {
        let url = format!("{}/probe", stack.envoy_url());
        let answer = Client::default().request(&url, probe_head(&tokens(1, 160)), "".into()).await.unwrap();
        details.push(decided(&answer).detail);
        if details.last().is_some_and(|detail| detail == "catching_up") {
            return seen.note(&stack, "NO_HINT", "catching_up").await;
        }
    }
    panic!("{details:?}");
}

/// A producer may report for a replica that the hub's configuration gives no address.
async fn a_replica_without_an_address(seen: &mut Seen, stack: &Stack) {
    let prompt = tokens(60, 160);
    let block_hashes = prefix_hashes(&prompt, BlockSize::DEFAULT, None).map(BlockKey::from);
    let bytes = |key: BlockKey| {
        let mut bytes = Vec::new();
        key.write_to(&mut bytes);
        bytes.into()
    };
    let prefix = PrefixEntry {
        block_hashes: block_hashes.map(bytes).collect(),
        block_token_counts: vec![16; 10],
        ..PrefixEntry::default()
    };
    let update = CacheStateUpdate {
        replica_id: "nowhere".into(),
        model_id: MODEL.into(),
        tenant_id: "default".into(),
        hash_scheme: "vllm".into(),
        prefixes: vec![prefix],
        ..CacheStateUpdate::default()
    };
    let mut hub = InferenceCacheClient::connect(format!("http://{}", stack.addresses.hub_grpc)).await.unwrap();
    let ack = hub.report_cache_state(futures::stream::iter([update])).await.unwrap().into_inner();
    assert!(ack.accepted, "{ack:?}");
    let mut last = None;
    let named = eventually(SOON * 5, async || {
        let head = probe_head(&prompt).header("x-tenant", "default");
        last = Some(decided(&send(stack, head, "/probe", "").await));
        last.as_ref().is_some_and(|last| last.detail == "no_address")
    });
    assert!(named.await, "{last:?}");
    seen.note(stack, "NO_HINT", "no_address").await;
}

/// The head of a JSON request of a tenant.
fn of(tenant: &str) -> Builder {
    Request::builder().method(Method::POST).header("content-type", "application/json").header("x-tenant", tenant)
}

/// The head of a request of a tenant that has a chain of this length.
fn chain_of(tenant: &str, count: usize) -> Builder {
    probe_head(&tokens(1, count)).header("x-tenant", tenant)
}

async fn chunked(stack: &Stack) -> String {
    let text = body(&tokens(1, 64));
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\nx-tenant: default\r\n\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n",
        text.len()
    );
    raw(stack, &request).await
}

async fn waiting_to_be_told(stack: &Stack) -> String {
    let text = body(&tokens(1, 64));
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\nx-tenant: default\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    raw(stack, &request).await
}

async fn upgrading(stack: &Stack) -> String {
    let request = "GET /v1/realtime HTTP/1.1\r\nhost: e\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    raw(stack, request).await
}

/// Sends text over a connection of its own and reads until the answer's head is there, or a first one and then another.
async fn raw(stack: &Stack, request: &str) -> String {
    let mut socket = TcpStream::connect(stack.addresses.envoy).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = async {
        let mut piece = [0; 4_096];
        loop {
            let count = socket.read(&mut piece).await.unwrap();
            answer.extend_from_slice(&piece[..count]);
            if count == 0 || String::from_utf8_lossy(&answer).contains("x-inferencecache-detail") {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}
