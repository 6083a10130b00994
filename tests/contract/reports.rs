//! ReportCacheState, PublishEvent and GetCacheState: what is taken in, and what producers are told.

use warmroute::native::hub::contract::messages::v1alpha1::cache_event::Type;
use warmroute::native::hub::contract::messages::v1alpha1::{
    Ack, CacheStateUpdate, GetCacheStateRequest, PrefixEntry, ReplicaStats,
};

use crate::client::{Client, connect, hub, look_up, now_us, plain, publish, report, request_for, update};
use crate::hub_support::{self, Engine, Framing, observed, tokens};

fn ack(accepted: bool, reason_code: &str) -> Ack {
    Ack { accepted, reason_code: reason_code.into() }
}

async fn state(client: &mut Client) -> (Vec<ReplicaStats>, i64) {
    let asked = GetCacheStateRequest { model_id: "m".into(), tenant_id: "t".into() };
    let state = client.get_cache_state(asked).await.unwrap().into_inner();
    (state.replicas, state.summary.unwrap().total_prefixes)
}

#[tokio::test]
async fn the_ack_names_what_was_dropped_and_how_often() {
    let hub = hub("reports: {future_tolerance_ms: 1000}").await;
    let mut client = connect(&hub).await;
    let future = CacheStateUpdate { timestamp_us: now_us() + 60_000_000, ..update("a", &[b"p"]) };
    let half_chain = PrefixEntry { block_token_counts: vec![4], ..PrefixEntry::default() };
    let lopsided = CacheStateUpdate { prefixes: vec![half_chain], ..update("a", &[]) };
    let mut negative = update("a", &[b"p"]);
    negative.prefixes[0].token_count = -1;
    let no_scheme = CacheStateUpdate { hash_scheme: String::new(), ..update("a", &[b"p"]) };
    let reserved = CacheStateUpdate { tenant_id: "inferencecache.io/probe".into(), ..update("a", &[b"p"]) };

    let cases = [
        (vec![], ack(true, "")),
        (vec![update("a", &[])], ack(true, "")),
        (vec![update("a", &[b"p", b"q"])], ack(true, "")),
        (vec![update("a", &[b"p", b"", b""]), future.clone()], ack(true, "empty_hash=2,future_timestamp=1")),
        (vec![future], ack(false, "future_timestamp=1")),
        (vec![update("", &[b"p", b"q"])], ack(false, "empty_replica=2")),
        (vec![no_scheme], ack(false, "empty_scheme=1")),
        (vec![lopsided], ack(false, "mismatched_chain=1")),
        (vec![negative], ack(false, "token_count=1")),
        (vec![update("a", &[&[7; 300]])], ack(false, "long_hash=1")),
        (vec![update(&"x".repeat(1_000), &[b"p"])], ack(false, "long_name=1")),
        (vec![reserved], ack(false, "reserved_tenant=1")),
    ];
    for (updates, expected) in cases {
        assert_eq!(report(&mut client, updates.clone()).await, expected, "{updates:?}");
    }
    assert_eq!(state(&mut client).await.1, 2);
    hub.shutdown().await;
}

#[tokio::test]
async fn statistics_count_even_where_the_prefixes_are_dropped() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let stats = ReplicaStats {
        replica_id: "ignored".into(),
        cache_memory_bytes: 7,
        hit_rate: 0.5,
        pressure: f32::NAN,
        client_version: "1".into(),
        t2_hit_tokens: 3,
        t2_query_tokens: 4,
    };
    let said = CacheStateUpdate { hash_scheme: String::new(), stats: Some(stats.clone()), ..update("a", &[b"p"]) };
    assert_eq!(report(&mut client, vec![said]).await, ack(true, "empty_scheme=1"));
    let known = ReplicaStats { replica_id: "a".into(), pressure: 0.0, client_version: String::new(), ..stats };
    assert_eq!(state(&mut client).await, (vec![known], 0));
    hub.shutdown().await;
}

#[tokio::test]
async fn events_take_back_what_was_reported() {
    let hub = hub("").await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("a", &[b"p", b"q"]), update("b", &[b"p"])]).await;
    assert_eq!(publish(&mut client, Type::PrefixEvicted, "a", b"p").await, ack(true, ""));
    let left = look_up(&mut client, request_for(b"p")).await;
    assert_eq!(crate::client::ids(&left), ["b"]);
    assert_eq!(publish(&mut client, Type::PrefixAdded, "a", b"r").await, ack(true, ""), "it says nothing");
    assert_eq!(look_up(&mut client, request_for(b"r")).await.replica_scores.len(), 0);
    assert_eq!(publish(&mut client, Type::AllCleared, "a", b"").await, ack(true, ""));
    assert_eq!(look_up(&mut client, request_for(b"q")).await.replica_scores.len(), 0);
    assert_eq!(state(&mut client).await.1, 1);
    assert_eq!(publish(&mut client, Type::PrefixEvicted, "", b"p").await, ack(false, "empty_replica=1"));
    assert_eq!(publish(&mut client, Type::PrefixEvicted, "b", b"").await, ack(false, "empty_hash=1"));
    hub.shutdown().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_keeps_what_came_before_and_gets_no_ack() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let (updates, receiver) = tokio::sync::mpsc::channel(4);
    let mut other = client.clone();
    let reporting =
        tokio::spawn(
            async move { other.report_cache_state(tokio_stream::wrappers::ReceiverStream::new(receiver)).await },
        );
    updates.send(update("a", &[b"p"])).await.unwrap();
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    while state(&mut client).await.1 == 0 {
        assert!(tokio::time::Instant::now() < until, "an update counts before the stream's end");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    reporting.abort();
    assert!(reporting.await.is_err());
    assert_eq!(state(&mut client).await.1, 1);
    hub.shutdown().await;
}

#[tokio::test]
async fn of_a_replica_that_the_hub_follows_nobody_else_says_anything() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![hub_support::stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    let mut client = connect(&hub).await;
    let claim = CacheStateUpdate { model_id: "m0".into(), tenant_id: "default".into(), ..update("r0", &[b"p"]) };
    assert_eq!(report(&mut client, vec![claim]).await, ack(false, "followed_replica=1"));

    let asked = warmroute::native::hub::contract::messages::v1alpha1::LookupRouteRequest {
        model_id: "m0".into(),
        tenant_id: "default".into(),
        hash_scheme: "vllm".into(),
        token_ids: tokens(0..100),
        ..Default::default()
    };
    hub.set_policies(plain());
    let answer = look_up(&mut client, asked).await;
    assert_eq!(crate::client::ids(&answer), ["r0"], "what engines say is looked up, in the engines' block size");
    assert_eq!(answer.replica_scores[0].matched_tokens, 8);
    hub.shutdown().await;
}

#[tokio::test]
async fn names_are_resolved_beside_the_reports() {
    let hub = hub("reports: {address_template: '{replica_id}:8000'}").await;
    let mut client = connect(&hub).await;
    let begun = std::time::Instant::now();
    let unknown = (0..200).map(|at| update(&format!("no-such-host-{at}.invalid"), &[b"p"]));
    let dropped = update("", &[b"p"]);
    let known = update("localhost", &[b"p"]);
    let ack = report(&mut client, unknown.chain([dropped, known]).collect()).await;
    assert_eq!(ack.reason_code, "empty_replica=1");
    assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    let until = begun + std::time::Duration::from_secs(30);
    loop {
        let (_, text) = hub_support::get(&hub, "/state").await;
        let state: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(state["reported_total"], 201);
        let reported = state["reported"].as_array().unwrap();
        let of = |id: &str| reported.iter().find(|replica| replica["id"] == id).unwrap();
        assert_eq!(of("no-such-host-0.invalid")["address"], "");
        let local = of("localhost");
        if local["address"] != "" {
            assert!(local["address"].as_str().unwrap().ends_with(":8000") && local["blocks"] == 1, "{local}");
            break;
        }
        assert!(std::time::Instant::now() < until, "the address must become known: {local}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    hub.shutdown().await;
}
