use std::collections::BTreeMap;

use super::*;
use crate::observation::{Observation, ReplicaSlot, ReplicaStats, ScopeSlot, Stored, StoredBlock};
use crate::routing::policy::Policy;

fn stored(replica: ReplicaSlot, scope: ScopeSlot, hash: &str) -> Observation {
    let blocks = vec![StoredBlock { key: key(hash), token_count: 16 }];
    Observation::Stored(Stored { replica, scope, tier: Tier::T1, last_seen_ms: NOW_MS, blocks, ..Stored::default() })
}

fn member(replica_id: &str) -> Member {
    Member::new("t", "m", replica_id)
}

#[test]
fn numbers_are_given_once_and_never_again() {
    let mut publisher = publisher();
    let first = publisher.scope(&scope()).unwrap();
    assert_eq!(publisher.scope(&scope()), Some(first));
    assert_ne!(publisher.scope(&in_adapter("lora")), Some(first));
    let replica = publisher.replica_up(member("e"), "10.0.0.1:80", None).unwrap();
    assert!(publisher.publish(Observation::ReplicaGone { replica }));
    assert_ne!(publisher.replica_up(member("e"), "10.0.0.1:80", None), Some(replica));
}

#[test]
fn a_followed_replica_counts_for_neither_cap_nor_quota() {
    let quotas = BTreeMap::from([("t".to_owned(), 1)]);
    let mut publisher = Publisher::new(PublisherLimits { max_entries: 1, quotas, ..PublisherLimits::default() });
    let slot = publisher.scope(&scope()).unwrap();
    let replica = publisher.replica_up(member("e"), "10.0.0.1:80", None).unwrap();
    for hash in ["a", "b", "c"] {
        assert!(publisher.publish(stored(replica, slot, hash)));
    }
    assert_eq!(letters(&publisher, "e"), "", "it is still arriving");
    assert!(publisher.publish(Observation::ReplicaComplete { replica }));
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    publisher.report(&update("r", vec![entry("b", 16)]), NOW_MS + 1);
    assert_eq!(["e", "r"].map(|replica_id| letters(&publisher, replica_id)), ["abc", "b"]);
    publisher.sweep(NOW_MS + 1);
    assert_eq!(letters(&publisher, "e"), "abc");
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!(["e", "r"].map(|replica_id| letters(&publisher, replica_id)), ["", "b"], "it ages like any other");
    assert_eq!(publisher.index().members(&scope()).count(), 2, "and stays until it is said to be gone");
}

#[test]
fn what_is_reported_of_a_followed_replica_is_left_out() {
    let mut publisher = publisher();
    let slot = publisher.scope(&scope()).unwrap();
    publisher.report(&update("e", vec![entry("a", 16)]), NOW_MS);
    let replica = publisher.replica_up(member("e"), "10.0.0.1:80", None).unwrap();
    assert_eq!(letters(&publisher, "e"), "", "who follows it knows better than who reported it");
    let stats = Some(ReportedStats::default());
    let report = CacheStateUpdate { stats, ..update("e", vec![entry("b", 16)]) };
    assert_eq!(reasons(&publisher.report(&report, NOW_MS)), [("followed_replica", 2)]);
    publisher.publish(stored(replica, slot, "c"));
    publisher.publish(Observation::ReplicaComplete { replica });
    assert_eq!(reasons(&publisher.report(&report, NOW_MS)), [("followed_replica", 2)]);
    let cleared = event(EventKind::AllCleared, "e", "");
    assert_eq!(reasons(&publisher.event(&cleared, NOW_MS)), [("followed_replica", 1)]);
    let elsewhere = CacheStateUpdate { model_id: "n".into(), ..report.clone() };
    assert_eq!(publisher.report(&elsewhere, NOW_MS).total(), 0, "another member");
    assert_eq!(letters(&publisher, "e"), "c");
    publisher.publish(Observation::ReplicaGone { replica });
    assert_eq!(publisher.report(&report, NOW_MS).total(), 0, "nobody follows it any more");
    assert_eq!(letters(&publisher, "e"), "b");
}

#[test]
fn what_is_reported_of_an_engine_whose_ranks_are_followed_is_left_out() {
    let mut publisher = publisher();
    publisher.report(&update("e", vec![entry("a", 16)]), NOW_MS);
    let ranks =
        [0, 1].map(|rank| publisher.replica_up(member(&format!("e/dp{rank}")), "10.0.0.1:80", Some(rank)).unwrap());
    assert_eq!(letters(&publisher, "e"), "", "who follows its ranks knows better than who reported it");
    let report =
        |publisher: &mut Publisher, id: &str| reasons(&publisher.report(&update(id, vec![entry("b", 16)]), NOW_MS));
    for id in ["e", "e/dp0", "e/dp1"] {
        assert_eq!(report(&mut publisher, id), [("followed_replica", 1)], "{id}");
    }
    assert_eq!(reasons(&publisher.event(&event(EventKind::AllCleared, "e", ""), NOW_MS)), [("followed_replica", 1)]);
    assert_eq!(
        (report(&mut publisher, "e/dp2"), report(&mut publisher, "f")),
        (vec![], vec![]),
        "nobody follows these"
    );
    // Another generation of a rank is the same rank.
    let again = publisher.replica_up(member("e/dp0"), "10.0.0.1:80", Some(0)).unwrap();
    publisher.publish(Observation::ReplicaGone { replica: ranks[1] });
    assert_eq!(report(&mut publisher, "e"), [("followed_replica", 1)], "one rank is left");
    publisher.publish(Observation::ReplicaGone { replica: again });
    assert_eq!(report(&mut publisher, "e"), []);
    assert_eq!(letters(&publisher, "e"), "b");
}

#[test]
fn only_what_is_seen_at_followed_replicas_can_be_published() {
    let mut publisher = publisher();
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    let slot = publisher.scope(&scope()).unwrap();
    let (reported, _) = publisher.index().members(&scope()).next().unwrap();
    let replica = publisher.replica_up(member("e"), "", None).unwrap();
    publisher.take_changes();
    for refused in [
        stored(reported, slot, "b"),
        Observation::ReplicaGone { replica: reported },
        Observation::Reasserted { replica: reported, at_ms: NOW_MS },
        Observation::Reasserted { replica: ReplicaSlot(99), at_ms: NOW_MS },
        stored(ReplicaSlot(99), slot, "b"),
        stored(replica, ScopeSlot(99), "b"),
        Observation::Removed { replica, scope: ScopeSlot(99), keys: vec![key("a")] },
        Observation::Scope { slot, scope: in_adapter("x") },
        Observation::ReplicaUp { replica, member: member("x"), address: String::new(), data_parallel_rank: None },
        Observation::PolicyGone { tenant_id: None },
    ] {
        assert!(!publisher.publish(refused.clone()), "{refused:?}");
    }
    assert_eq!(publisher.take_changes(), []);
    let stats = ReplicaStats { pressure: 0.5, hit_rate: 0.25, reported_ms: NOW_MS };
    for taken in [
        stored(replica, slot, "b"),
        Observation::Reasserted { replica, at_ms: NOW_MS },
        Observation::Removed { replica, scope: slot, keys: vec![key("b")] },
        Observation::Stats { replica, stats },
        Observation::Cleared { replica },
        Observation::ReplicaComplete { replica },
    ] {
        assert!(publisher.publish(taken.clone()), "{taken:?}");
    }
    let state = publisher.cache_state("t", "m");
    let expected = ReportedStats { pressure: 0.5, hit_rate: 0.25, ..ReportedStats::default() };
    assert_eq!(state.replicas, [ReplicaState { replica_id: "e".into(), stats: expected }]);
}

#[test]
fn policies_are_published_where_they_differ() {
    let tenant = |tenant_id: &str| Some(tenant_id.to_owned());
    let policy = |eviction_ttl_ms| Policy { eviction_ttl_ms, ..Policy::default() };
    let policies = |default, own: &[(&str, u64)]| Policies {
        default: policy(default),
        by_tenant: own.iter().map(|(tenant_id, ttl_ms)| ((*tenant_id).to_owned(), policy(*ttl_ms))).collect(),
    };
    let set = |tenant_id, ttl_ms| Observation::Policy { tenant_id, policy: policy(ttl_ms) };
    let mut publisher = publisher();
    publisher.set_policies(policies(TTL_MS, &[]));
    assert_eq!(publisher.take_changes(), [], "the contract's own default goes without saying");
    publisher.set_policies(policies(5, &[("t", 6), ("u", 7)]));
    assert_eq!(publisher.take_changes(), [set(None, 5), set(tenant("t"), 6), set(tenant("u"), 7)]);
    publisher.set_policies(policies(5, &[("t", 8), ("v", 7)]));
    let gone = |tenant_id| Observation::PolicyGone { tenant_id };
    assert_eq!(publisher.take_changes(), [gone(tenant("u")), set(tenant("t"), 8), set(tenant("v"), 7)]);
    publisher.set_policies(policies(TTL_MS, &[("t", 8), ("v", 7)]));
    assert_eq!(publisher.take_changes(), [gone(None)]);
    assert_eq!(publisher.policies().for_tenant("t").eviction_ttl_ms, 8);
}

#[test]
fn a_default_that_is_given_is_published_even_where_it_is_the_contracts_own() {
    let mut publisher = publisher();
    let set = Observation::Policy { tenant_id: None, policy: Policy::default() };
    publisher.set_given_policies(Some(Policy::default()), BTreeMap::new());
    assert_eq!(publisher.take_changes(), [set]);
    publisher.set_given_policies(Some(Policy::default()), BTreeMap::new());
    assert_eq!(publisher.take_changes(), []);
    publisher.set_given_policies(None, BTreeMap::new());
    assert_eq!(publisher.take_changes(), [Observation::PolicyGone { tenant_id: None }]);
}
