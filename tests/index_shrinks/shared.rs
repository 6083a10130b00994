//! The same through the shared log: a leader that is told, and a follower that reads.

use std::ops::Range;

use warmroute::config::FilterConfig;
use warmroute::flow::follower::View;
use warmroute::observation::{Observation, Scope};

use crate::pool::{ALONE, PER_REPLICA, SHARED, joins, scope, slot};
use crate::vms::dump;
use crate::vms::fleet::{Fleet, QUIET_ROUNDS};
use crate::vms::proxy::Proxy;

const NOW_MS: u64 = 1_700_000_100_000;
const REPLICAS: u32 = 12;
/// So long that all of an index is swept in a few ticks.
const TICK_MS: u64 = 10_000;
/// Rounds in which it is swept, from wherever the sweep is.
const SWEEP_ROUNDS: usize = 8;

/// What both VMs have: pairs, and distinct blocks of each of two tenants.
fn counts(fleet: &mut Fleet) -> [(u64, [u64; 2]); 2] {
    [0, 1].map(|vm| {
        let View::Index(index) = fleet.ask(vm).view else { panic!("VM {vm} has not caught up") };
        let keys = [0, 1].map(|tenant| {
            let Observation::Scope { scope, .. } = scope(tenant) else { panic!("a scope") };
            let is_it = |known: &Scope| *known == scope;
            let slots = index.dictionary().scopes().filter(|(_, known)| is_it(known)).map(|(slot, _)| slot);
            slots.map(|slot| index.keys_of(slot)).sum()
        });
        assert_eq!(dump::rows(index).len() as u64, index.pairs());
        (index.pairs(), keys)
    })
}

fn told(tenant: u32, replicas: Range<u32>) -> Vec<Observation> {
    replicas.flat_map(|replica| joins(tenant, replica)).collect()
}

#[test]
fn a_leader_and_a_follower_give_back_what_a_pool_and_a_tenant_no_longer_hold() {
    let json = serde_json::json!({
        "hub_cluster": "hub",
        "models": [{ "model_id": "m" }],
        "limits": { "tick_ms": TICK_MS, "catch_up_tick_ms": TICK_MS, "lease_ticks": 3, "pages": 16 },
    });
    let config = FilterConfig::from_json(json.to_string().as_bytes()).unwrap();
    let mut fleet = Fleet::new(Proxy::at(NOW_MS), config, 2);
    let start: Vec<Observation> =
        [0, 1].into_iter().flat_map(|tenant| [vec![scope(tenant)], told(tenant, 0..REPLICAS)].concat()).collect();
    let say = |fleet: &mut Fleet, said: Vec<Observation>| {
        if !said.is_empty() {
            fleet.hub.publish(&fleet.proxy, said);
        }
        fleet.settle(&|| start.clone(), QUIET_ROUNDS).unwrap();
        (0..SWEEP_ROUNDS).for_each(|_| fleet.round(&|| start.clone()));
        counts(fleet)
    };
    let of = |replicas: u64| if replicas == 0 { 0 } else { SHARED + replicas * ALONE };
    let both = |one: u64, other: u64| [((one + other) * PER_REPLICA, [of(one), of(other)]); 2];
    let all = u64::from(REPLICAS);
    assert_eq!(say(&mut fleet, Vec::new()), both(all, all));

    let gone = |tenant, replicas: Range<u32>| -> Vec<Observation> {
        replicas.map(|replica| Observation::ReplicaGone { replica: slot(tenant, replica) }).collect()
    };
    assert_eq!(say(&mut fleet, gone(0, 2..REPLICAS)), both(2, all));
    assert_eq!(say(&mut fleet, gone(1, 0..REPLICAS)), both(2, 0));
    assert_eq!(say(&mut fleet, told(0, REPLICAS..2 * REPLICAS - 2)), both(all, 0));
}
