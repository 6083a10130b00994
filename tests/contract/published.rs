//! What producers report reaches the filters like everything else.

use std::collections::BTreeSet;

use warmroute::native::hub::contract::messages::v1alpha1::cache_event::Type;
use warmroute::native::hub::contract::messages::v1alpha1::{CacheStateUpdate, ReplicaStats};
use warmroute::observation::{BlockKey, Subscription};
use warmroute::routing::policy::{Policies, Policy};

use crate::client::{chain_update, connect, hub, publish, report, update};
use crate::hub_support::{self, Engine, Framing, Observer, observed, tokens};

fn keys(hashes: &[&[u8]]) -> BTreeSet<BlockKey> {
    hashes.iter().map(|hash| BlockKey::from_bytes(hash).unwrap()).collect()
}

#[tokio::test]
async fn reports_and_events_reach_a_subscriber_as_they_come() {
    let hub = hub("reports: {addresses: {a: '10.0.0.7:8000'}}").await;
    let mut observer = Observer::new(&hub).await;
    let mut client = connect(&hub).await;
    let stats = ReplicaStats { hit_rate: 0.5, pressure: 0.25, ..ReplicaStats::default() };
    report(&mut client, vec![CacheStateUpdate { stats: Some(stats), ..update("a", &[b"p", b"12345678"]) }]).await;
    observer.until("two prefixes", |seen| seen.held.get("a") == Some(&keys(&[b"p", b"12345678"]))).await;
    observer.until("the load", |seen| seen.stats.contains_key("a")).await;
    assert!(observer.complete.contains("a"), "it counts at once");
    assert_eq!(observer.addresses["a"], "10.0.0.7:8000");
    assert_eq!((observer.stats["a"].hit_rate, observer.stats["a"].pressure), (0.5, 0.25));
    let (_, state) = hub_support::get(&hub, "/state").await;
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let expected = serde_json::json!([{"id": "a", "tenant": "t", "model": "m", "address": "10.0.0.7:8000", "blocks": 2,
                                       "pressure": 0.25, "hit_rate": 0.5}]);
    assert_eq!((&state["reported"], &state["replicas"]), (&expected, &serde_json::json!([])));
    publish(&mut client, Type::PrefixEvicted, "a", b"p").await;
    observer.until("the eviction", |seen| seen.held.get("a") == Some(&keys(&[b"12345678"]))).await;
    publish(&mut client, Type::AllCleared, "a", b"").await;
    observer.until("the clear", |seen| seen.held.get("a") == Some(&keys(&[]))).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_reset_has_what_was_reported_and_a_resume_what_was_missed() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let many: Vec<u32> = (0..40_000).collect();
    let wide: Vec<Vec<u8>> = (0..1_000_u32).map(|number| number.to_le_bytes().repeat(64)).collect();
    let wide: Vec<&[u8]> = wide.iter().map(Vec::as_slice).collect();
    report(&mut client, vec![chain_update("127.0.0.1:8000", &many), update("b", &wide), update("b", &[b"p"])]).await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert!(observer.holds("127.0.0.1:8000", &many), "{} blocks", observer.held["127.0.0.1:8000"].len());
    assert_eq!(observer.held["b"], keys(&[&wide[..], &[b"p"]].concat()));
    assert_eq!(observer.complete.len(), 2);
    let addresses = (observer.addresses["127.0.0.1:8000"].as_str(), observer.addresses["b"].as_str());
    assert_eq!(addresses, ("127.0.0.1:8000", ""), "the id is the address; of the other nothing is known");

    let position = Subscription { epoch: observer.epoch, sequence: observer.sequence, ..Subscription::default() };
    drop(observer);
    let elsewhere = CacheStateUpdate { hash_scheme: "another".into(), ..update("c", &[b"missed"]) };
    report(&mut client, vec![elsewhere]).await;
    let mut resumed = Observer::subscribe(&hub, position.clone()).await;
    resumed.sequence = position.sequence;
    resumed.until("what was missed", |seen| seen.held.get("c") == Some(&keys(&[b"missed"]))).await;
    assert_eq!(resumed.kinds[..2], ["resumed", "delta"]);
    assert_eq!(resumed.held.len(), 1, "and nothing else");
    hub.shutdown().await;
}

#[tokio::test]
async fn policies_reach_a_subscriber_live_and_in_a_reset() {
    let hub = hub("").await;
    let mut live = Observer::new(&hub).await;
    live.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let own = Policy { minimum_matched_tokens: 7, ..Policy::default() };
    let policies = Policies { by_tenant: [("t".to_owned(), own.clone())].into(), ..Policies::default() };
    hub.set_policies(policies);
    let expected = Some(&own);
    live.until("the policy", |seen| seen.policies.get(&Some("t".to_owned())) == expected).await;
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(late.policies, [(Some("t".to_owned()), own)].into());
    hub.set_policies(Policies::default());
    live.until("its end", |seen| seen.policies.is_empty()).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn policies_come_from_a_directory_before_the_first_lookup_and_whenever_they_change() {
    let directory = std::env::temp_dir().join(format!("warmroute-policies-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("t.yaml"), "minimumMatchedTokens: 5\n").unwrap();
    let hub = hub(&format!("policies: {{directory: '{}', poll_ms: 50}}", directory.display())).await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let tokens_of =
        |seen: &Observer| seen.policies.get(&Some("t".to_owned())).map(|policy| policy.minimum_matched_tokens);
    assert_eq!(tokens_of(&observer), Some(5));
    std::fs::write(directory.join("t.yaml"), "minimumMatchedTokens: 6\n").unwrap();
    observer.until("the change", |seen| tokens_of(seen) == Some(6)).await;
    std::fs::write(directory.join("t.yaml"), "minimumMatchedTokens: -6\n").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(tokens_of(&late), Some(6), "the last good one stays");
    hub.shutdown().await;
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn reported_and_followed_replicas_are_told_side_by_side() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "reports: {address_template: 'localhost:9000'}").await;
    engine.publish(vec![hub_support::stored(&[1, 2], None, &tokens(0..8))]).await;
    let mut client = connect(&hub).await;
    let beside = CacheStateUpdate { model_id: "m0".into(), tenant_id: "default".into(), ..update("other", &[b"p"]) };
    report(&mut client, vec![beside]).await;
    observer.until("both", |seen| seen.holds("r0", &tokens(0..8)) && seen.held.contains_key("other")).await;
    observer.until("its address", |seen| !seen.addresses["other"].is_empty() && seen.held.contains_key("other")).await;
    assert_eq!(observer.held["other"], keys(&[b"p"]));
    assert!(["127.0.0.1:9000", "[::1]:9000"].contains(&observer.addresses["other"].as_str()));
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert!(late.holds("r0", &tokens(0..8)) && late.held["other"] == keys(&[b"p"]));
    hub.shutdown().await;
}
