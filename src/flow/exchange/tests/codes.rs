//! What each reason code does to the request, the metrics and the log, and which policy decides.

use super::*;
use crate::observation::{ReplicaStats, Scope, Stored};
use crate::routing::policy::Strategy;

const MINUTE_NS: u64 = 60_000_000_000;
/// Chain hints as the contract has them: affinity on.
const AFFINITY: &str = r#", "policy": {}"#;

fn later(vm: &Vm, passed_ns: u64) {
    let elapsed_ns = &vm.proxy.0.elapsed_ns;
    elapsed_ns.set(elapsed_ns.get() + passed_ns);
}

/// Reason code, detail and destination of a request that its headers decide.
fn sent(vm: &mut Vm, request: &Request) -> (String, Option<String>, Option<String>) {
    vm.send(request);
    (request.header(names::REASON_CODE).unwrap(), request.detail(), request.header(names::DESTINATION_ENDPOINT))
}

/// The same of one that its body decides.
fn sent_body(vm: &mut Vm, body: &str) -> (String, Option<String>, Option<String>) {
    let request = vm.posted(body);
    let mut exchange = vm.hold(&request);
    assert_eq!(exchange.on_request_body(&request, vm.router(), body.len(), true), Next::Continue);
    (request.header(names::REASON_CODE).unwrap(), request.detail(), request.header(names::DESTINATION_ENDPOINT))
}

fn code(code: &str) -> (String, Option<String>, Option<String>) {
    (code.to_owned(), None, None)
}

fn no_hint(detail: &str) -> (String, Option<String>, Option<String>) {
    ("NO_HINT".to_owned(), Some(detail.to_owned()), None)
}

fn counted(vm: &Vm, metric: &str) -> u64 {
    vm.proxy.0.counts.borrow().get(metric).copied().unwrap_or(0)
}

fn warnings(vm: &Vm, code: &str) -> Vec<String> {
    let logged = vm.proxy.0.logged.borrow();
    logged.iter().filter(|line| line.starts_with(&format!("{code}: "))).cloned().collect()
}

/// A request for a chain that nobody holds, of this tenant, model and hash scheme.
fn unheld(vm: &Vm, model: &str, scheme: &str) -> Request {
    vm.request(&[
        (names::BLOCK_HASHES, "00000000000000ff00000000000000fe"),
        (names::BLOCK_SIZE, "64"),
        (names::MODEL_ID, model),
        (names::HASH_SCHEME, scheme),
    ])
}

fn stats(replica: u32, hit_rate: f32) -> Observation {
    let stats = ReplicaStats { pressure: 0.0, hit_rate, reported_ms: START_NS / 1_000_000 };
    Observation::Stats { replica: ReplicaSlot(replica), stats }
}

#[test]
fn an_affinity_hint_names_its_replica_and_what_it_stands_in_for() {
    let mut vm = Vm::knowing(AFFINITY, &THREE);
    let request = unheld(&vm, "m", "vllm");
    let (reason, detail, destination) = sent(&mut vm, &request);
    assert_eq!((reason.as_str(), detail.as_deref()), ("AFFINITY_HINT", Some("miss")));
    let replica = request.header(names::REPLICA_ID).unwrap();
    let (_, address, _) = THREE.iter().find(|(replica_id, ..)| *replica_id == replica).unwrap();
    assert_eq!(destination.as_deref(), Some(*address), "the one that was picked");
    assert_eq!(request.header(names::MATCHED_TOKENS).as_deref(), Some("0"));
    assert_eq!(counted(&vm, "warmroute_affinity_hint_total.detail.=miss.;"), 1);
    assert_eq!(counted(&vm, "warmroute_no_hint_total.detail.=miss.;"), 0);
    let calls = "inferencecache_lookup_route_calls_total.model.=m.;.reason_code.=AFFINITY_HINT.;.hint_used.=true.;";
    assert_eq!(counted(&vm, calls), 1);
    // What all three hold distinguishes none of them.
    let shared = vm.explicit(1);
    let (reason, detail, _) = sent(&mut vm, &shared);
    assert_eq!((reason.as_str(), detail.as_deref()), ("AFFINITY_HINT", Some("below_matched_tokens")));
    let mut off = Vm::knowing("", &THREE);
    let request = unheld(&off, "m", "vllm");
    assert_eq!(sent(&mut off, &request), no_hint("miss"));
}

#[test]
fn a_warm_replica_is_a_hint_for_a_single_key() {
    let mut facts = holding(&THREE);
    facts.push(stats(2, 0.5));
    let mut vm = Vm::told("", facts);
    let request = vm.request(&[
        (names::PREFIX_HASH, "00000000000000ff"),
        (names::PREFIX_TOKEN_COUNT, "64"),
        (names::MODEL_ID, "m"),
    ]);
    let (reason, detail, destination) = sent(&mut vm, &request);
    assert_eq!((reason.as_str(), detail, destination.as_deref()), ("TENANT_HOT", None, Some("10.0.0.2:80")));
    let calls = "inferencecache_lookup_route_calls_total.model.=m.;.reason_code.=TENANT_HOT.;.hint_used.=true.;";
    assert_eq!(counted(&vm, calls), 1);
}

#[test]
fn a_policy_that_requires_chains_refuses_the_rest_whatever_is_known() {
    let required = r#", "policy": {"strategy": {"requireChain": true}}"#;
    let body = r#"{"model": "m", "prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}"#;
    for mut vm in [Vm::knowing(required, &THREE), Vm::new(required)] {
        assert_eq!(sent_body(&mut vm, body), code("POLICY_REQUIRES_CHAIN"));
    }
    let mut vm = Vm::knowing(required, &THREE);
    let request = vm.explicit(8);
    assert_eq!(sent(&mut vm, &request).0, "PREFIX_MATCH");
}

#[test]
fn a_request_that_takes_too_long_is_a_timeout() {
    let limited = r#", "policy": {"lookupTimeoutMs": 50}"#;
    for mut vm in [Vm::knowing(limited, &THREE), Vm::new(limited)] {
        vm.proxy.0.look_ns.set(60_000_000);
        let request = vm.explicit(8);
        assert_eq!(sent(&mut vm, &request), code("TIMEOUT"));
        let calls = "inferencecache_lookup_route_calls_total.model.=m.;.reason_code.=TIMEOUT.;.hint_used.=false.;";
        assert_eq!(counted(&vm, calls), 1);
    }
    let mut unlimited = Vm::knowing("", &THREE);
    let request = unlimited.explicit(8);
    assert_eq!(sent(&mut unlimited, &request).0, "PREFIX_MATCH", "the VM has caught up");
    unlimited.proxy.0.look_ns.set(60_000_000);
    let request = unlimited.explicit(8);
    assert_eq!(sent(&mut unlimited, &request).0, "PREFIX_MATCH");
}

#[test]
fn the_time_of_a_request_begins_where_its_input_ends() {
    let mut vm = Vm::knowing(r#", "stale_after_ms": 60000, "policy": {"lookupTimeoutMs": 50}"#, &THREE);
    let body = format!(
        r#"{{"model": "m", "inference_cache": {{"block_size": 16, "block_hashes": "{}"}}}}"#,
        (1..=8).map(|key| format!("{key:016x}")).collect::<String>()
    );
    for (look_ns, reason) in [(0, "PREFIX_MATCH"), (60_000_000, "TIMEOUT")] {
        let request = vm.posted(&body);
        let mut exchange = vm.hold(&request);
        // However slowly the client sends.
        later(&vm, 10_000_000_000);
        vm.proxy.0.look_ns.set(look_ns);
        assert_eq!(exchange.on_request_body(&request, vm.router(), body.len(), true), Next::Continue);
        assert_eq!(request.header(names::REASON_CODE).as_deref(), Some(reason));
    }
}

#[test]
fn a_fault_of_the_request_is_named_whatever_the_state_of_the_index() {
    let short = r#"{"model": "m", "prompt": [1,2,3]}"#;
    let whole = r#"{"model": "m", "prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}"#;
    let mut cold = Vm::new("");
    let mut stale = Vm::knowing("", &THREE);
    later(&stale, 2_200_000_000);
    for (vm, state) in [(&mut cold, "cold"), (&mut stale, "stale")] {
        assert_eq!(sent_body(vm, short), no_hint("short_prompt"));
        assert_eq!(sent_body(vm, whole), no_hint(state));
    }
}

#[test]
fn a_stale_index_that_is_served_says_only_who_holds_what() {
    let serve = r#", "policy": {}, "when_stale": "serve", "models": [{"model_id": "m"}, {"model_id": "n"}]"#;
    let mut vm = Vm::knowing(serve, &THREE);
    let miss = unheld(&vm, "m", "vllm");
    assert_eq!(sent(&mut vm, &miss).0, "AFFINITY_HINT");
    let unknown = unheld(&vm, "n", "vllm");
    assert_eq!(sent(&mut vm, &unknown), code("UNKNOWN_MODEL"));
    later(&vm, MINUTE_NS);
    let held = vm.explicit(8);
    assert_eq!(sent(&mut vm, &held).0, "PREFIX_MATCH");
    let miss = unheld(&vm, "m", "vllm");
    assert_eq!(sent(&mut vm, &miss), no_hint("miss"));
    for (model, scheme) in [("n", "vllm"), ("m", "sglang")] {
        let unknown = unheld(&vm, model, scheme);
        assert_eq!(sent(&mut vm, &unknown), no_hint("stale"), "{model} {scheme}");
    }
    assert_eq!(warnings(&vm, "UNKNOWN_MODEL").len(), 1, "the one from before");
    assert!(warnings(&vm, "UNKNOWN_HASH_SCHEME").is_empty());
}

#[test]
fn what_is_not_known_at_all_is_told_with_what_is_once_a_minute() {
    let more = r#", "stale_after_ms": 86400000, "tenant": {"header": "x-tenant"},
        "models": [{"model_id": "m"}, {"model_id": "n"}]"#;
    let mut vm = Vm::knowing(more, &THREE);
    let cases = [
        ("acme", "m", "vllm", "UNKNOWN_TENANT", "nothing is known of tenant \"acme\"; known tenants: \"default\"; "),
        (
            "default",
            "n",
            "vllm",
            "UNKNOWN_MODEL",
            "nothing is known of model \"n\" for tenant \"default\"; known models: \"m\"; ",
        ),
        (
            "default",
            "m",
            "sglang",
            "UNKNOWN_HASH_SCHEME",
            "nothing is known under hash scheme \"sglang\" of model \"m\" for tenant \"default\"; known hash schemes: \
             \"vllm\"; ",
        ),
    ];
    for minute in 1..=3 {
        for (tenant, model, scheme, reason, text) in cases {
            for _ in 0..5 {
                let request = unheld(&vm, model, scheme);
                request.set_request_header("x-tenant", tenant);
                assert_eq!(sent(&mut vm, &request), code(reason));
                later(&vm, 1_000_000_000);
            }
            let told = warnings(&vm, reason);
            assert_eq!(told.len(), minute, "{told:?}");
            assert!(told[0].starts_with(&format!("{reason}: {text}")) && told[0].contains("the hub's"), "{told:?}");
        }
        later(&vm, MINUTE_NS);
    }
}

#[test]
fn what_is_still_arriving_is_not_unknown() {
    let more = r#", "tenant": {"header": "x-tenant"}, "models": [{"model_id": "m"}, {"model_id": "n"}]"#;
    let mut facts = holding(&THREE);
    for (slot, tenant, model) in [(11, "acme", "m"), (12, "default", "n")] {
        let member = Member::new(tenant, model, "new");
        facts.push(Observation::ReplicaUp {
            replica: ReplicaSlot(slot),
            member,
            address: "10.0.0.9:80".into(),
            data_parallel_rank: None,
        });
    }
    let mut vm = Vm::told(more, facts);
    for (tenant, model, expected) in [
        ("acme", "m", no_hint("miss")),
        ("acme", "n", no_hint("miss")),
        ("default", "n", no_hint("miss")),
        ("nobody", "m", code("UNKNOWN_TENANT")),
    ] {
        let request = unheld(&vm, model, "vllm");
        request.set_request_header("x-tenant", tenant);
        assert_eq!(sent(&mut vm, &request), expected, "{tenant} {model}");
    }
}

#[test]
fn what_a_client_asked_for_cannot_break_the_log() {
    let mut facts = Vec::new();
    for slot in 1..=12 {
        let replica = ReplicaSlot(slot);
        let tenant = format!("t{slot:02}\n{}", "x".repeat(100));
        let scope = Scope { tenant_id: tenant.clone(), ..scope() };
        facts.push(Observation::Scope { slot: ScopeSlot(slot), scope });
        facts.push(Observation::ReplicaUp {
            replica,
            member: Member::new(tenant, "m", "a"),
            address: String::new(),
            data_parallel_rank: None,
        });
        let blocks = vec![StoredBlock { key: BlockKey::Hash64(1), token_count: 16 }];
        let last_seen_ms = START_NS / 1_000_000;
        facts.push(Observation::Stored(Stored {
            replica,
            scope: ScopeSlot(slot),
            tier: Tier::T1,
            last_seen_ms,
            blocks,
            ..Stored::default()
        }));
        facts.push(Observation::ReplicaComplete { replica });
    }
    let mut vm = Vm::told(r#", "tenant": {"header": "x-tenant"}"#, facts);
    let request = unheld(&vm, "m", "vllm");
    request.set_request_header("x-tenant", &format!("\u{1b}[2J\n\"é{}", "é".repeat(10_000)));
    assert_eq!(sent(&mut vm, &request), code("UNKNOWN_TENANT"));
    let told = warnings(&vm, "UNKNOWN_TENANT");
    assert_eq!(told.len(), 1);
    assert!(told[0].contains(r#"tenant "\u{1b}[2J\n\"é"#) && told[0].contains(r#""t08\nxxx"#), "{}", told[0]);
    assert!(!told[0].contains("t09") && told[0].contains(" and 4 more; "), "{}", told[0]);
    assert!(told[0].chars().all(|letter| !letter.is_control()) && told[0].len() < 1_500, "{}", told[0].len());
}

#[test]
fn the_hubs_policy_of_a_tenant_comes_first_and_its_default_before_ours() {
    let requires = |tenant_id: Option<&str>, require_chain| Observation::Policy {
        tenant_id: tenant_id.map(str::to_owned),
        policy: Policy {
            strategy: Strategy { require_chain, ..Strategy::default() },
            affinity_routing: false,
            ..Policy::default()
        },
    };
    let ours = r#", "tenant": {"header": "x-tenant"}, "policy": {"lookupTimeoutMs": 1},
        "policies": {"own": {"lookupTimeoutMs": 1}, "both": {"lookupTimeoutMs": 1}}"#;
    let published = [requires(Some("both"), true), requires(Some("theirs"), true), requires(None, false)];
    // The time limit tells our policies, the requirement those of the hub's tenants.
    for (policies, expected) in [
        (&published[..0], ["TIMEOUT", "TIMEOUT", "TIMEOUT", "TIMEOUT"]),
        (&published[..2], ["POLICY_REQUIRES_CHAIN", "POLICY_REQUIRES_CHAIN", "TIMEOUT", "TIMEOUT"]),
        (&published[..], ["POLICY_REQUIRES_CHAIN", "POLICY_REQUIRES_CHAIN", "TIMEOUT", "UNKNOWN_TENANT"]),
    ] {
        let mut facts = holding(&THREE);
        facts.extend(policies.iter().cloned());
        let mut vm = Vm::told(ours, facts);
        let warm_up = vm.explicit(8);
        vm.send(&warm_up);
        vm.proxy.0.look_ns.set(2_000_000);
        // Without a chain: a requirement is refused before the time is looked at again, but not before the first look.
        for (tenant, reason) in ["both", "theirs", "own", "neither"].into_iter().zip(expected) {
            let request = vm.request(&[
                (names::PREFIX_HASH, "00000000000000ff"),
                (names::PREFIX_TOKEN_COUNT, "64"),
                (names::MODEL_ID, "m"),
                ("x-tenant", tenant),
            ]);
            assert_eq!(sent(&mut vm, &request).0, reason, "{tenant} with {} published", policies.len());
        }
    }
}

#[test]
fn an_adapter_counts_under_its_model_and_one_of_two_models_is_not_guessed() {
    let more = r#", "models": [{"model_id": "m", "adapters": ["listed"]}, {"model_id": "n"}]"#;
    let mut facts = holding(&THREE);
    let reported = [("m", "sql", 11), ("m", "both", 12), ("n", "both", 13), ("gpt", "alien", 14)];
    for (model_id, adapter_id, slot) in reported {
        let scope = Scope { model_id: model_id.into(), adapter_id: adapter_id.into(), ..scope() };
        facts.push(Observation::Scope { slot: ScopeSlot(slot), scope });
        let blocks = vec![StoredBlock { key: BlockKey::Hash64(1), token_count: 64 }];
        let (replica, last_seen_ms) = (ReplicaSlot(1), START_NS / 1_000_000);
        facts.push(Observation::Stored(Stored {
            replica,
            scope: ScopeSlot(slot),
            tier: Tier::T1,
            last_seen_ms,
            blocks,
            ..Stored::default()
        }));
    }
    let mut vm = Vm::told(more, facts);
    let ask = |vm: &mut Vm, name: &str| {
        let hashes = [(names::BLOCK_HASHES, "0000000000000001"), (names::BLOCK_SIZE, "64"), (names::MODEL_ID, name)];
        let request = vm.request(&hashes);
        let (reason, detail, _) = sent(vm, &request);
        (reason, detail.unwrap_or_default())
    };
    let answer = |reason: &str, detail: &str| (reason.to_owned(), detail.to_owned());
    assert_eq!(ask(&mut vm, "sql"), answer("PREFIX_MATCH", ""), "what the engine holds under the adapter");
    assert_eq!(ask(&mut vm, "listed"), answer("NO_HINT", "miss"));
    assert_eq!(ask(&mut vm, "both"), answer("NO_HINT", "ambiguous_adapter"));
    assert_eq!(ask(&mut vm, "alien"), answer("NO_HINT", "model_not_configured"));
    let calls = |model: &str| {
        let counts = vm.proxy.0.counts.borrow();
        let of_model = format!("inferencecache_lookup_route_calls_total.model.={model}.;");
        counts.iter().filter(|(name, _)| name.starts_with(&of_model)).map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!((calls("m"), calls("other")), (2, 2), "{:?}", vm.proxy.0.counts);
}

#[test]
fn an_adapter_in_the_body_is_looked_up_while_the_vm_is_still_catching_up() {
    let mut facts = holding(&THREE);
    facts.push(Observation::Scope { slot: ScopeSlot(9), scope: Scope { adapter_id: "sql".into(), ..scope() } });
    facts.push(Observation::Stored(Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(9),
        tier: Tier::T1,
        last_seen_ms: START_NS / 1_000_000,
        blocks: vec![StoredBlock { key: BlockKey::Hash64(1), token_count: 64 }],
        ..Stored::default()
    }));
    let leader = Vm::told("", facts);
    let mut late = Vm {
        proxy: leader.proxy.clone(),
        config: leader.config.clone(),
        node: Node::new("exchange"),
        notices: Notices::default(),
    };
    let body = r#"{"model": "sql", "inference_cache": {"block_hashes": ["0000000000000001"], "block_size": 64}}"#;
    assert_eq!(sent_body(&mut late, body).0, "PREFIX_MATCH", "the first request of this VM");
}

#[test]
fn no_name_from_a_client_becomes_a_metric() {
    let more = r#", "stale_after_ms": 86400000, "tenant": {"header": "x-tenant"}"#;
    let mut vm = Vm::knowing(more, &THREE);
    let ask = |vm: &mut Vm, round: u32| {
        let (model, tenant) = (format!("model-{round}"), format!("tenant-{round}"));
        let adapter = format!("adapter-{round}");
        let names = [(names::BLOCK_HASHES, "00000000000000ff"), (names::ADAPTER_ID, &adapter), ("x-tenant", &tenant)];
        for model in [model.as_str(), "m"] {
            let request = vm.request(&names);
            request.set_request_header(names::MODEL_ID, model);
            vm.send(&request);
        }
        let body = vm.posted(&format!(r#"{{"model": "{model}", "inference_cache": {{"adapter_id": "{adapter}"}}}}"#));
        let mut exchange = vm.hold(&body);
        exchange.on_request_body(&body, vm.router(), body.body.len(), true);
    };
    ask(&mut vm, 0);
    let before: Vec<String> = vm.proxy.0.counts.borrow().keys().cloned().collect();
    (1..1_000).for_each(|round| ask(&mut vm, round));
    let after: Vec<String> = vm.proxy.0.counts.borrow().keys().cloned().collect();
    assert_eq!(before, after);
    assert_eq!(warnings(&vm, "UNKNOWN_TENANT").len(), 1);
}
