//! LookupRoute: what it answers, and by when.

use std::time::{Duration, Instant};

use prost::Message;
use warmroute::native::hub::contract::messages::v1alpha1::{
    CacheStateUpdate, CacheTier, LookupRouteRequest, LookupRouteResponse, ReplicaStats,
};
use warmroute::routing::policy::{Policies, Policy, Strategy};

use crate::client::{
    Client, chain, chain_update, connect, framed, hub, hub_with_tokenizer, ids, look_up, plain, raw_call, report,
    request, request_for, update,
};

const MODELS: &str = "models: [{model_id: m, block_size: 4}]";

fn of_text(text: &str) -> LookupRouteRequest {
    LookupRouteRequest { prompt_text: text.into(), ..request() }
}

#[tokio::test]
async fn the_longest_leading_run_comes_first_with_its_score() {
    let hub = hub(MODELS).await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    let tokens: Vec<u32> = (0..40).collect();
    report(&mut client, vec![chain_update("long", &tokens), chain_update("short", &tokens[..16])]).await;
    let block_hashes = chain(&tokens);
    let asked = LookupRouteRequest { block_token_counts: vec![4; block_hashes.len()], block_hashes, ..request() };
    let answer = look_up(&mut client, asked).await;
    assert_eq!((answer.reason_code.as_str(), ids(&answer)), ("PREFIX_MATCH", vec!["long", "short"]));
    let long = &answer.replica_scores[0];
    assert_eq!((long.matched_tokens, long.tier()), (40, CacheTier::T1));
    assert!((19.9..=20.0).contains(&long.score), "half of the pool distinguishes: {long:?}");
    assert!(long.estimated_cache_hit_prob > 0.99);
    assert_eq!(answer.replica_scores[1].score, 0.0);
    assert!(answer.lookup_latency_us >= 0 && answer.token_ids.is_empty());

    let by_ids = look_up(&mut client, LookupRouteRequest { token_ids: tokens, ..request() }).await;
    assert_eq!(ids(&by_ids), ["long", "short"], "the configured block size makes the same keys");
    hub.shutdown().await;
}

#[tokio::test]
async fn a_text_is_tokenized_and_its_ids_come_back() {
    let tokens: Vec<u32> = (0..9).collect();
    let hub = hub_with_tokenizer(MODELS, tokens.clone(), Duration::ZERO).await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    report(&mut client, vec![chain_update("a", &tokens)]).await;
    let answer = look_up(&mut client, of_text("hello")).await;
    assert_eq!((answer.reason_code.as_str(), ids(&answer)), ("PREFIX_MATCH", vec!["a"]));
    assert_eq!((answer.token_ids, answer.replica_scores[0].matched_tokens), (tokens, 8));
    let explicit = LookupRouteRequest { prompt_text: "hello".into(), ..request_for(b"p") };
    assert_eq!(look_up(&mut client, explicit).await.token_ids, [0; 0], "explicit hashes come before text");
    hub.shutdown().await;

    let hub = crate::client::hub(MODELS).await;
    let answer = look_up(&mut connect(&hub).await, of_text("hello")).await;
    assert_eq!((answer.reason_code.as_str(), answer.token_ids.len()), ("NO_HINT", 0));
    hub.shutdown().await;
}

#[tokio::test]
async fn the_adapter_comes_back_only_if_the_index_was_asked() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let with_adapter = |request| LookupRouteRequest { adapter_id: "lora".into(), ..request };
    assert_eq!(look_up(&mut client, with_adapter(request_for(b"p"))).await.adapter_id, "lora");
    let malformed = LookupRouteRequest { block_token_counts: vec![1], ..request() };
    assert_eq!(look_up(&mut client, with_adapter(malformed)).await.adapter_id, "");
    let reserved = LookupRouteRequest { tenant_id: "inferencecache.io/probe".into(), ..request_for(b"p") };
    let answer = look_up(&mut client, with_adapter(reserved)).await;
    assert_eq!((answer.reason_code.as_str(), answer.adapter_id.as_str()), ("NO_HINT", ""));
    assert_eq!(answer.lookup_latency_us, 0);
    hub.shutdown().await;
}

#[tokio::test]
async fn every_other_reason_code_is_given() {
    let hub = hub(MODELS).await;
    let strict = Policy { strategy: Strategy { require_chain: true, ..Strategy::default() }, ..Policy::default() };
    let by_tenant = [("strict".to_owned(), strict)].into();
    hub.set_policies(Policies { by_tenant, ..Policies::default() });
    let mut client = connect(&hub).await;
    let code = |answer: LookupRouteResponse| answer.reason_code;
    let of = |tenant: &str, model: &str, scheme: &str| LookupRouteRequest {
        tenant_id: tenant.into(),
        model_id: model.into(),
        hash_scheme: scheme.into(),
        ..request_for(b"nobody's")
    };
    assert_eq!(code(look_up(&mut client, of("t", "m", "s")).await), "NO_HINT", "a cold start");
    let stats = Some(ReplicaStats { hit_rate: 0.8, ..ReplicaStats::default() });
    let mut warm = update("warm", &[b"p"]);
    warm.stats = stats;
    report(&mut client, vec![warm]).await;
    assert_eq!(code(look_up(&mut client, of("t", "m", "s")).await), "TENANT_HOT");
    assert_eq!(code(look_up(&mut client, of("u", "m", "s")).await), "UNKNOWN_TENANT");
    assert_eq!(code(look_up(&mut client, of("t", "n", "s")).await), "UNKNOWN_MODEL");
    assert_eq!(code(look_up(&mut client, of("t", "m", "r")).await), "UNKNOWN_HASH_SCHEME");
    assert_eq!(code(look_up(&mut client, of("strict", "m", "s")).await), "POLICY_REQUIRES_CHAIN");
    let chain = LookupRouteRequest { token_ids: (0..8).collect(), ..request() };
    assert_eq!(code(look_up(&mut client, chain).await), "AFFINITY_HINT");
    hub.shutdown().await;
}

#[tokio::test]
async fn a_slow_tokenizer_is_not_waited_for_beyond_the_callers_deadline() {
    let hub = hub_with_tokenizer(MODELS, vec![1; 8], Duration::from_millis(600)).await;
    let started = Instant::now();
    let asked = framed(&of_text("slow").encode_to_vec());
    let (status, answer) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", asked, Some("200m")).await;
    let answer = answer.unwrap();
    assert_eq!((status.as_str(), answer.reason_code.as_str(), answer.token_ids.len()), ("0", "TIMEOUT", 0));
    assert!(answer.lookup_latency_us < 200_000, "{answer:?} is of use to nobody");
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    let mut client = connect(&hub).await;
    let unhurried = look_up(&mut client, of_text("slow")).await;
    assert_eq!(unhurried.reason_code, "NO_HINT", "five seconds are enough");
    assert_eq!(unhurried.token_ids.len(), 8);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_deadline_that_is_far_or_unreadable_changes_nothing() {
    let hub = hub("").await;
    let asked = framed(&request_for(b"p").encode_to_vec());
    for grpc_timeout in [None, Some("10S"), Some("99999999H"), Some("no number")] {
        let (status, answer) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", asked.clone(), grpc_timeout).await;
        assert_eq!((status.as_str(), answer.unwrap().reason_code.as_str()), ("0", "NO_HINT"), "{grpc_timeout:?}");
    }
    hub.shutdown().await;
}

#[tokio::test]
async fn the_policys_budget_bounds_a_lookup_of_text() {
    let hub = hub_with_tokenizer(MODELS, vec![1; 8], Duration::from_millis(500)).await;
    let hasty = Policy { lookup_timeout_ms: 50, ..Policy::default() };
    hub.set_policies(Policies { default: hasty, ..Policies::default() });
    let mut client = connect(&hub).await;
    let started = Instant::now();
    let answer = look_up(&mut client, of_text("slow")).await;
    assert_eq!(answer.reason_code, "TIMEOUT");
    assert!(answer.lookup_latency_us >= 50_000);
    assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    assert_eq!(look_up(&mut client, request_for(b"p")).await.reason_code, "NO_HINT", "keys are looked up in time");
    hub.shutdown().await;
}

#[tokio::test]
async fn a_text_beyond_the_sixty_fourth_at_once_gets_no_hint_at_once() {
    let hub = hub_with_tokenizer(MODELS, vec![1; 8], Duration::from_millis(800)).await;
    let client = connect(&hub).await;
    let ask = |mut client: Client| async move { look_up(&mut client, of_text("slow")).await };
    let under_way: Vec<_> = (0..64).map(|_| tokio::spawn(ask(client.clone()))).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    let refused = ask(client.clone()).await;
    assert_eq!((refused.reason_code.as_str(), refused.token_ids.len()), ("NO_HINT", 0));
    assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
    for answer in under_way {
        assert_eq!(answer.await.unwrap().token_ids.len(), 8);
    }
    assert_eq!(ask(client).await.token_ids.len(), 8, "the slots are free again");
    hub.shutdown().await;
}

#[tokio::test]
async fn what_is_hit_outlives_what_is_not_where_the_policy_is_lfu() {
    for (eviction, survivor) in
        [(warmroute::routing::policy::Eviction::Lfu, b"hit"), (warmroute::routing::policy::Eviction::Lru, b"new")]
    {
        let hub = hub("reports: {max_entries: 2}").await;
        let mut policies = plain();
        policies.default.eviction = eviction;
        hub.set_policies(policies);
        let mut client = connect(&hub).await;
        let at = |hash: &[u8], seconds_ago: i64| {
            let mut update = update("a", &[hash]);
            update.timestamp_us = crate::client::now_us() - seconds_ago * 1_000_000;
            update
        };
        report(&mut client, vec![at(b"hit", 30), at(b"new", 20)]).await;
        assert_eq!(look_up(&mut client, request_for(b"hit")).await.reason_code, "PREFIX_MATCH");
        report(&mut client, vec![at(b"one more", 10)]).await;
        assert_eq!(look_up(&mut client, request_for(survivor)).await.reason_code, "PREFIX_MATCH", "{eviction:?}");
        hub.shutdown().await;
    }
}

#[tokio::test]
async fn an_adapter_can_be_named_as_the_model() {
    let hub = hub("models: [{model_id: m, block_size: 4, adapters: {sql: lora-1}}]").await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    let of = |model_id: &str, adapter_id: &str| CacheStateUpdate {
        model_id: model_id.into(),
        adapter_id: adapter_id.into(),
        ..update("a", &[b"p"])
    };
    report(&mut client, vec![of("m", "lora-1"), of("m", "chat"), of("m", "both"), of("n", "both")]).await;
    let asked = |model_id: &str, adapter_id: &str| LookupRouteRequest {
        model_id: model_id.into(),
        adapter_id: adapter_id.into(),
        ..request_for(b"p")
    };
    for (model_id, adapter_id, code, resolved) in [
        ("sql", "", "PREFIX_MATCH", "lora-1"),
        ("chat", "", "PREFIX_MATCH", "chat"),
        ("m", "chat", "PREFIX_MATCH", "chat"),
        ("m", "", "UNKNOWN_HASH_SCHEME", ""),
        ("both", "", "UNKNOWN_MODEL", ""),
        ("sql", "chat", "UNKNOWN_MODEL", "chat"),
        ("lora-1", "sql", "UNKNOWN_MODEL", "sql"),
    ] {
        let answer = look_up(&mut client, asked(model_id, adapter_id)).await;
        let said = (answer.reason_code.as_str(), answer.adapter_id.as_str());
        if model_id == "m" && adapter_id.is_empty() {
            assert!(answer.replica_scores.is_empty() && answer.adapter_id.is_empty(), "the base model: {answer:?}");
        } else {
            assert_eq!(said, (code, resolved), "{model_id} {adapter_id}");
        }
    }
    // For another tenant it is nothing, and a model of that name comes first.
    let other = LookupRouteRequest { tenant_id: "u".into(), ..asked("chat", "") };
    assert_eq!(look_up(&mut client, other).await.adapter_id, "");
    report(&mut client, vec![of("chat", "")]).await;
    let answer = look_up(&mut client, asked("chat", "")).await;
    assert_eq!((answer.reason_code.as_str(), answer.adapter_id.as_str()), ("PREFIX_MATCH", ""));
    hub.shutdown().await;
}
