//! What goes first, in an index without a log. Through the log: `tests/conformance_log.rs` and `tests/log_model.rs`.

use super::*;
use crate::observation::{BlockKey, Member, Stored, StoredBlock, Tier};

const SCOPE: ScopeSlot = ScopeSlot(1);

/// Two replicas, `a` is number 1.
fn index(tenant_id: &str) -> Index {
    let mut index = Index::new(4);
    let scope = Scope {
        tenant_id: tenant_id.into(),
        model_id: "m".into(),
        hash_scheme: "vllm".into(),
        adapter_id: String::new(),
    };
    index.take_journal();
    index.apply(1, Observation::Scope { slot: SCOPE, scope });
    for (number, replica_id) in [(1, "a"), (2, "b")] {
        let (replica, member) = (ReplicaSlot(number), Member::new(tenant_id, "m", replica_id));
        index.apply(
            1,
            Observation::ReplicaUp { replica, member, address: "10.0.0.1:80".into(), data_parallel_rank: None },
        );
        index.apply(1, Observation::ReplicaComplete { replica });
    }
    index
}

fn store(index: &mut Index, replica: u32, keys: &[u64], last_seen_ms: u64, parent: Option<u64>) {
    let blocks = keys.iter().map(|key| StoredBlock { key: BlockKey::Hash64(*key), token_count: 16 }).collect();
    let stored = Stored {
        replica: ReplicaSlot(replica),
        scope: SCOPE,
        tier: Tier::T1,
        last_seen_ms,
        parent: parent.map(BlockKey::Hash64),
        chained: parent.is_some() || keys.len() > 1,
        blocks,
        ..Stored::default()
    };
    index.apply(2, Observation::Stored(stored));
}

fn keys(victims: &[Victim]) -> Vec<(u64, u32)> {
    let key = |victim: &Victim| match victim.key {
        BlockKey::Hash64(key) => (key, victim.replica.0),
        BlockKey::Bytes(_) => panic!("{victim:?}"),
    };
    victims.iter().map(key).collect()
}

fn order(index: &Index, lfu: bool) -> Order {
    let mut order = Order::default();
    while !order.build(index, 1, |_| lfu) {}
    order
}

#[test]
fn the_oldest_goes_first_and_of_a_run_that_is_alike_its_end() {
    let mut index = index("t");
    store(&mut index, 1, &[70, 10, 50, 20, 60, 30, 80, 40], 5, None);
    store(&mut index, 2, &[70], 4, None);
    store(&mut index, 1, &[99], 5, None);
    let victims = order(&index, false).next(&index, 6, |_| true);
    // The run's end is 40, which sorts before 99, and what follows is compared with it in turn.
    assert_eq!(keys(&victims), [(70, 2), (40, 1), (80, 1), (30, 1), (60, 1), (20, 1)]);
    let victims = order(&index, false).next(&index, 100, |replica| replica == ReplicaSlot(2));
    assert_eq!(keys(&victims), [(70, 2)]);
}

#[test]
fn a_run_goes_from_its_end_whatever_hits_it_has_where_they_do_not_count() {
    let mut index = index("t");
    // The end has the largest key.
    store(&mut index, 1, &[10, 20, 30, 90], 5, None);
    (0..2).for_each(|at| index.count_hits(SCOPE, &BlockKey::Hash64(10 + at * 10), ReplicaSlot(1), |hits| hits + 1));
    let victims = order(&index, false).next(&index, 3, |_| true);
    assert_eq!(keys(&victims), [(90, 1), (30, 1), (20, 1)]);
}

#[test]
fn what_is_alike_in_a_run_goes_from_its_end_whatever_is_between() {
    let mut index = index("t");
    store(&mut index, 1, &[10, 20, 30, 40, 90], 5, None);
    store(&mut index, 1, &[30], 7, Some(20));
    let victims = order(&index, false).next(&index, 3, |_| true);
    assert_eq!(keys(&victims), [(90, 1), (40, 1), (20, 1)]);
    let quotas = ["t".to_owned()];
    let mut prefixes = Prefixes::new(quotas.iter());
    while !prefixes.build(&index, 1) {}
    assert_eq!(keys(&prefixes.next(&index, "t", 3, 100)), [(90, 1), (40, 1), (20, 1)]);
}

#[test]
fn what_was_hit_least_goes_first_where_hits_count() {
    let mut index = index("t");
    store(&mut index, 1, &[1], 5, None);
    store(&mut index, 1, &[2], 6, None);
    store(&mut index, 1, &[3], 7, None);
    index.count_hits(SCOPE, &BlockKey::Hash64(1), ReplicaSlot(1), |hits| hits + 2);
    index.count_hits(SCOPE, &BlockKey::Hash64(2), ReplicaSlot(1), |hits| hits + 1);
    assert_eq!(keys(&order(&index, true).next(&index, 3, |_| true)), [(3, 1), (2, 1), (1, 1)]);
    assert_eq!(keys(&order(&index, false).next(&index, 3, |_| true)), [(1, 1), (2, 1), (3, 1)]);
}

#[test]
fn an_order_that_takes_note_of_changes_says_what_one_that_is_made_anew_says() {
    let mut index = index("t");
    let mut kept = order(&index, true);
    for round in 0..200u64 {
        let (replica, from) = (1 + (round % 2) as u32, round * 7 % 60);
        store(&mut index, replica, &(from..from + 1 + round % 12).collect::<Vec<_>>(), 1_000 - round % 90, None);
        index.count_hits(SCOPE, &BlockKey::Hash64(from), ReplicaSlot(replica), |hits| hits + 1);
        let changes = index.take_journal();
        kept.note(&index, &changes, |_| true);
        if round % 5 == 4 {
            let expected = order(&index, true).next(&index, 4, |_| true);
            let victims = kept.next(&index, 4, |_| true);
            assert_eq!(keys(&victims), keys(&expected), "round {round}");
            for Victim { scope, key, replica } in victims {
                index.apply(3, Observation::Removed { replica, scope, keys: vec![key] });
            }
        }
    }
    assert!(index.pairs() > 0);
}

#[test]
fn of_a_tenant_with_a_quota_the_block_that_nobody_reported_for_longest_goes_everywhere() {
    let mut index = index("t");
    store(&mut index, 1, &[1], 5, None);
    store(&mut index, 2, &[1], 9, None);
    store(&mut index, 1, &[2], 6, None);
    store(&mut index, 2, &[2], 6, None);
    store(&mut index, 1, &[3], 7, None);
    let mut prefixes = Prefixes::new([String::from("t")].iter());
    while !prefixes.build(&index, 1) {}
    let mut victims = keys(&prefixes.next(&index, "t", 2, 100));
    victims.sort_unstable();
    assert_eq!(victims, [(2, 1), (2, 2), (3, 1)]);
    assert_eq!(keys(&prefixes.next(&index, "u", 2, 100)), []);
}

#[test]
fn a_block_whose_newest_report_is_taken_back_goes_by_the_next_newest() {
    let mut index = index("t");
    store(&mut index, 1, &[1, 2], 5, None);
    store(&mut index, 2, &[1, 2], 9, None);
    store(&mut index, 1, &[50], 7, None);
    let quotas = ["t".to_owned()];
    let mut prefixes = Prefixes::new(quotas.iter());
    while !prefixes.build(&index, 1) {}
    assert_eq!(keys(&prefixes.next(&index, "t", 1, 100)), [(50, 1)]);
    index.apply(3, Observation::Removed { replica: ReplicaSlot(1), scope: SCOPE, keys: vec![BlockKey::Hash64(50)] });
    // The second replica says that it was not seen at 9, but at 4.
    store(&mut index, 2, &[1, 2], 4, None);
    let changes = index.take_journal();
    prefixes.note(&index, &changes);
    let mut victims = keys(&prefixes.next(&index, "t", 1, 100));
    victims.sort_unstable();
    assert_eq!(victims, [(2, 1), (2, 2)]);
}

#[test]
fn nothing_of_the_reserved_tenant_goes() {
    let mut index = index(RESERVED_TENANT);
    store(&mut index, 1, &[1], 5, None);
    assert_eq!(keys(&order(&index, false).next(&index, 9, |_| true)), []);
    assert_eq!(Excess::of(&index, &config(), &[], 0), Excess { pairs: 0, memory: false });
}

fn config() -> FilterConfig {
    let json = br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}], "limits": {"max_index_entries": 1}}"#;
    FilterConfig::from_json(json).unwrap()
}

#[test]
fn what_is_about_to_end_does_not_count_for_the_cap() {
    let mut index = index("t");
    store(&mut index, 1, &[1, 2, 3], 5, None);
    store(&mut index, 2, &[1, 2], 5, None);
    assert_eq!(Excess::of(&index, &config(), &[], 0).pairs, 4);
    assert_eq!(Excess::of(&index, &config(), &[ReplicaSlot(1)], 0).pairs, 1);
}

#[test]
fn what_has_ended_does_not_count_for_the_cap_swept_or_not() {
    let mut index = index("t");
    store(&mut index, 1, &[1], 5, None);
    let member = Member::new("t", "m", "a");
    index.apply(
        3,
        Observation::ReplicaUp {
            replica: ReplicaSlot(3),
            member,
            address: "10.0.0.1:80".into(),
            data_parallel_rank: None,
        },
    );
    store(&mut index, 3, &[1, 2, 3], 5, None);
    assert_eq!(Excess::of(&index, &config(), &[ReplicaSlot(1)], 0).pairs, 2);
    // It never was complete, so that its blocks stay until the sweep.
    index.apply(4, Observation::ReplicaGone { replica: ReplicaSlot(3) });
    assert_eq!((index.pairs(), Excess::of(&index, &config(), &[], 0).pairs), (3, 0));
}

#[test]
fn an_order_of_which_most_is_no_longer_true_is_made_anew() {
    let mut index = index("t");
    let mut orders = Orders::new(&config());
    while !orders.build(&index, &config()) {}
    for at_ms in 0..FEW_ENTRIES as u64 + 10 {
        store(&mut index, 1, &[1, 2], at_ms, None);
        let changes = index.take_journal();
        orders.order.note(&index, &changes, |_| false);
    }
    assert!(orders.has_grown(), "{} entries for one stretch", orders.entries());
    let mut anew = Orders::new(&config());
    while !anew.build(&index, &config()) {}
    assert_eq!((anew.entries(), anew.has_grown()), (1, false));
    assert_eq!(keys(&anew.order.next(&index, 9, |_| true)), keys(&orders.order.next(&index, 9, |_| true)));
}

#[test]
fn much_that_is_alike_goes_a_part_at_a_time() {
    let mut index = index("t");
    for key in 0..5_000 {
        store(&mut index, 1, &[key], 5, None);
    }
    let mut order = order(&index, false);
    let mut gone = 0;
    while index.pairs() > 0 {
        let victims = order.next(&index, 700, |_| true);
        assert!(!victims.is_empty() && victims.len() <= 700);
        gone += victims.len();
        for Victim { scope, key, replica } in victims {
            index.apply(3, Observation::Removed { replica, scope, keys: vec![key] });
        }
    }
    assert_eq!((gone, order.next(&index, 1, |_| true)), (5_000, vec![]));
}
