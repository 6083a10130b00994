//! Engines with several ranks at one address.

use super::*;

const ON: &str = r#", "output": {"data_parallel_rank_header": true}"#;

/// Ranks 0 and 1 of an engine, of which rank 1 holds more, and an engine that has no others.
fn ranks() -> Vec<Observation> {
    let mut facts = holding(&[("e/dp0", "10.0.0.1:80", 2), ("e/dp1", "10.0.0.1:80", 8), ("f", "10.0.0.2:80", 5)]);
    for fact in &mut facts {
        if let Observation::ReplicaUp { member, data_parallel_rank, .. } = fact {
            *data_parallel_rank = member.replica_id.split_once("/dp").map(|(_, rank)| rank.parse().unwrap());
        }
    }
    facts
}

fn asked(vm: &mut Vm, blocks: u64) -> Request {
    let request = vm.explicit(blocks);
    request.headers.borrow_mut().push((names::DATA_PARALLEL_RANK.to_owned(), "6".to_owned()));
    vm.send(&request);
    request
}

fn rank(request: &Request) -> Option<String> {
    request.header(names::DATA_PARALLEL_RANK)
}

#[test]
fn the_best_rank_is_named_and_each_address_once() {
    let mut vm = Vm::told(ON, ranks());
    let request = asked(&mut vm, 8);
    assert_eq!(request.header(names::REPLICA_ID).as_deref(), Some("e/dp1"));
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80,10.0.0.2:80"));
    assert_eq!(rank(&request).as_deref(), Some("1"), "not the client's");
    let two = r#", "output": {"data_parallel_rank_header": true, "max_endpoints": 2}"#;
    let request = asked(&mut Vm::told(two, ranks()), 8);
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80,10.0.0.2:80"));
}

#[test]
fn no_rank_is_named_where_there_are_no_others_or_there_is_no_hint() {
    let mut facts = ranks();
    facts.push(Observation::Cleared { replica: ReplicaSlot(1) });
    facts.push(Observation::Cleared { replica: ReplicaSlot(2) });
    let mut vm = Vm::told(ON, facts);
    let request = asked(&mut vm, 8);
    assert_eq!(request.header(names::REPLICA_ID).as_deref(), Some("f"));
    assert_eq!(rank(&request), None, "the client's is removed");
    let request = vm.request(&[(names::DATA_PARALLEL_RANK, "6")]);
    vm.send(&request);
    assert_eq!((request.header(names::DESTINATION_ENDPOINT), rank(&request)), (None, None));
}

#[test]
fn a_rank_stays_what_it_is_when_its_cache_was_cleared() {
    let mut facts = ranks();
    facts.push(Observation::Cleared { replica: ReplicaSlot(2) });
    let again =
        facts.iter().find(|fact| matches!(fact, Observation::Stored(stored) if stored.replica == ReplicaSlot(2)));
    facts.push(again.unwrap().clone());
    let mut vm = Vm::told(ON, facts);
    assert_eq!(rank(&asked(&mut vm, 8)).as_deref(), Some("1"));
}

#[test]
fn where_it_is_off_the_header_is_the_clients_own_affair() {
    let mut vm = Vm::told("", ranks());
    let request = asked(&mut vm, 8);
    assert_eq!(rank(&request).as_deref(), Some("6"));
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80,10.0.0.2:80"));
}
