//! What of a request's answer is credited, where hits count.

use super::*;
use crate::observation::ReplicaStats;
use crate::routing::policy::Eviction;

const LFU: &str = r#", "policy": {"affinityRouting": "Disabled", "eviction": "LFU"}"#;

/// What the leader, which is this VM, has counted once its ticks have passed.
fn credits(vm: &mut Vm) -> u64 {
    (0..25).for_each(|_| vm.tick());
    assert!(vm.proxy.0.counts.borrow().keys().all(|name| !name.contains("lost")));
    vm.proxy.0.counts.borrow().get(metrics::CREDITS).copied().unwrap_or(0)
}

/// How often each of the first blocks was hit at a replica.
fn counts(vm: &mut Vm, replica_id: &str, blocks: u64) -> Vec<u32> {
    let View::Index(index) = vm.node.ask(&vm.proxy, 5_000_000).view else { panic!("nothing is known") };
    let slot = index.dictionary().scope_slot(&scope()).unwrap();
    let (replica, _) =
        index.dictionary().replicas().find(|(_, replica)| &*replica.member.replica_id == replica_id).unwrap();
    let key = BlockKey::Hash64;
    (1..=blocks).map(|block| index.holder(slot, &key(block), replica).unwrap().access_count).collect()
}

fn reason(vm: &mut Vm, request: &Request) -> String {
    vm.send(request);
    request.header(names::REASON_CODE).unwrap()
}

#[test]
fn every_replica_that_clears_the_floors_is_credited_however_few_are_named() {
    let mut vm = Vm::knowing(&format!(r#"{LFU}, "output": {{"max_endpoints": 1}}, "stale_after_ms": 60000"#), &THREE);
    for _ in 0..2 {
        let request = vm.explicit(8);
        assert_eq!(reason(&mut vm, &request), "PREFIX_MATCH");
    }
    assert_eq!(credits(&mut vm), 2 * (8 + 6), "c has too little");
    assert_eq!(counts(&mut vm, "a", 8), [2; 8]);
    assert_eq!(counts(&mut vm, "b", 6), [2; 6]);
    assert_eq!(counts(&mut vm, "c", 1), [0]);
    let single = vm.request(&[
        (names::PREFIX_HASH, "0000000000000005"),
        (names::PREFIX_TOKEN_COUNT, "80"),
        (names::MODEL_ID, "m"),
    ]);
    assert_eq!(reason(&mut vm, &single), "PREFIX_MATCH");
    assert_eq!(credits(&mut vm), 2 * (8 + 6) + 2, "a single key is a single block");
    assert_eq!(counts(&mut vm, "a", 8), [2, 2, 2, 2, 3, 2, 2, 2]);
}

#[test]
fn what_cannot_be_sent_to_is_not_credited() {
    let mut vm = Vm::knowing(LFU, &[("a", "", 8), ("b", "10.0.0.2:80", 6), ("c", "10.0.0.3:80", 1)]);
    let request = vm.explicit(8);
    assert_eq!(reason(&mut vm, &request), "PREFIX_MATCH");
    assert_eq!(credits(&mut vm), 6);
    let mut vm = Vm::knowing(LFU, &[("a", "", 8), ("b", "10.0.0.2:80", 1)]);
    let request = vm.explicit(8);
    assert_eq!(reason(&mut vm, &request), "NO_HINT");
    assert_eq!(credits(&mut vm), 0);
}

#[test]
fn the_policy_that_counts_decides_whether_hits_do() {
    let published = |eviction| Observation::Policy {
        tenant_id: Some("default".into()),
        policy: Policy { eviction, affinity_routing: false, ..Policy::default() },
    };
    for (ours, theirs, expected) in
        [("", None, 0), (LFU, None, 14), ("", Some(Eviction::Lfu), 14), (LFU, Some(Eviction::Lru), 0)]
    {
        let mut facts = holding(&THREE);
        facts.extend(theirs.map(published));
        let mut vm = Vm::told(ours, facts);
        let request = vm.explicit(8);
        assert_eq!(reason(&mut vm, &request), "PREFIX_MATCH");
        assert_eq!(credits(&mut vm), expected, "{ours} {theirs:?}");
    }
}

#[test]
fn an_answer_that_is_no_match_credits_nothing() {
    let with = |more: &str| format!(r#", "policy": {{"eviction": "LFU", {more}}}"#);
    let (on, off) = (r#""affinityRouting": "Enabled""#, r#""affinityRouting": "Disabled""#);
    let explicit: &[(&str, &str)] = &[];
    let single = [(names::PREFIX_HASH, "00000000000000ff"), (names::PREFIX_TOKEN_COUNT, "64"), (names::MODEL_ID, "m")];
    let floor = format!(r#"{off}, "routingFloorScore": "9999""#);
    let few = format!(r#"{off}, "minimumMatchedTokens": 1000"#);
    let short = format!(r#"{off}, "minimumPrefixTokens": 1000"#);
    let limited = format!(r#"{off}, "lookupTimeoutMs": 50"#);
    for (policy, headers, look_ns, expected) in [
        (on, &single[..], 0, "TENANT_HOT"),
        (&floor, explicit, 0, "NO_HINT"),
        (&few, explicit, 0, "NO_HINT"),
        (&format!(r#"{on}, "minimumMatchedTokens": 1000"#), explicit, 0, "AFFINITY_HINT"),
        (&short, explicit, 0, "NO_HINT"),
        (&limited, explicit, 60_000_000, "TIMEOUT"),
    ] {
        let mut facts = holding(&THREE);
        let stats = ReplicaStats { pressure: 0.0, hit_rate: 0.5, reported_ms: START_NS / 1_000_000 };
        facts.push(Observation::Stats { replica: ReplicaSlot(2), stats });
        let mut vm = Vm::told(&with(policy), facts);
        let warm_up = vm.request(&[]);
        vm.send(&warm_up);
        vm.proxy.0.look_ns.set(look_ns);
        let request = if headers.is_empty() { vm.explicit(8) } else { vm.request(headers) };
        assert_eq!(reason(&mut vm, &request), expected);
        vm.proxy.0.look_ns.set(0);
        assert_eq!(credits(&mut vm), 0, "{expected}: {policy}");
    }
}
