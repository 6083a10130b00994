use super::*;
use crate::observation::Stored;

fn in_adapters(adapters: &[&str]) -> CacheStateUpdate {
    let entry = |adapter: &&str| PrefixEntry { adapter_id: (*adapter).to_owned(), ..entry("a", 16) };
    update("r", adapters.iter().map(entry).collect())
}

fn scope_numbers(publisher: &Publisher) -> Vec<u32> {
    let mut numbers: Vec<u32> = publisher.index.dictionary().scopes().map(|(slot, _)| slot.0).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_scope_makes_room_once_nothing_is_held_in_it() {
    let mut publisher = Publisher::new(PublisherLimits { max_scopes: 2, ..PublisherLimits::default() });
    let mut subscriber = Subscriber::new();
    assert_eq!(publisher.report(&in_adapters(&["x", "y", "z"]), NOW_MS).of(DropReason::TooManyScopes), 1);
    publisher.report(&in_adapters(&["y"]), NOW_MS + 1);
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!(scope_numbers(&publisher), [2]);
    assert_eq!(publisher.report(&in_adapters(&["x"]), NOW_MS + TTL_MS).total(), 0);
    assert_eq!(scope_numbers(&publisher), [2, 3], "the number of x is a new one");
    subscriber.follow(&mut publisher);
    let numbers = |index: &Index| index.dictionary().scopes().map(|(slot, _)| slot).max();
    assert_eq!(numbers(&subscriber.0), numbers(&publisher.index));
    for round in 2..20 {
        let now_ms = NOW_MS + round * TTL_MS;
        publisher.sweep(now_ms);
        let adapters = [format!("x{round}"), format!("y{round}")];
        let dropped = publisher.report(&in_adapters(&[&adapters[0], &adapters[1]]), now_ms);
        assert_eq!(dropped.total(), 0, "{round}");
    }
    subscriber.follow(&mut publisher);
    assert_eq!(subscriber.0.dictionary().scope_count(), 2);
}

#[test]
fn a_scope_of_a_followed_replica_stays_while_the_replica_holds_what_is_too_old() {
    let mut publisher = publisher();
    let slot = publisher.scope(&scope()).unwrap();
    let replica = publisher.replica_up(Member::new("t", "m", "f"), "10.0.0.1:80", None).unwrap();
    let stored = |keys: &[&str]| {
        Observation::Stored(Stored {
            replica,
            scope: slot,
            tier: Tier::T1,
            last_seen_ms: NOW_MS,
            blocks: keys
                .iter()
                .map(|hash| crate::observation::StoredBlock { key: key(hash), token_count: 16 })
                .collect(),
            ..Stored::default()
        })
    };
    assert!(publisher.publish(stored(&["a", "b"])));
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!((publisher.index.keys_of(slot), scope_numbers(&publisher)), (0, vec![1]));
    let removed = |hash: &str| Observation::Removed { replica, scope: slot, keys: vec![key(hash)] };
    assert!(publisher.publish(removed("a")));
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!(scope_numbers(&publisher), [1], "b is still there");
    assert!(publisher.publish(removed("b")));
    publisher.sweep(NOW_MS + TTL_MS);
    assert!(scope_numbers(&publisher).is_empty());
    for gone in [Observation::Cleared { replica }, Observation::ReplicaGone { replica }] {
        let again = publisher.scope(&scope()).unwrap();
        let mut observation = stored(&["a"]);
        if let Observation::Stored(Stored { scope, .. }) = &mut observation {
            *scope = again;
        }
        assert!(publisher.publish(observation));
        publisher.sweep(NOW_MS + TTL_MS);
        assert_eq!(scope_numbers(&publisher), [again.0]);
        assert!(publisher.publish(gone));
        publisher.sweep(NOW_MS + TTL_MS);
        assert!(scope_numbers(&publisher).is_empty());
    }
}

#[test]
fn what_is_re_asserted_does_not_go_by_age_and_what_went_can_be_published_again() {
    let mut publisher = publisher();
    let slot = publisher.scope(&scope()).unwrap();
    let replica = publisher.replica_up(Member::new("t", "m", "f"), "10.0.0.1:80", None).unwrap();
    let stored = |last_seen_ms| {
        let block = |hash| crate::observation::StoredBlock { key: key(hash), token_count: 16 };
        let blocks = vec![block("a"), block("b")];
        Observation::Stored(Stored { replica, scope: slot, last_seen_ms, blocks, ..Stored::default() })
    };
    let expired = |publisher: &Publisher| {
        let blocks = ["a", "b"].map(|hash| publisher.is_expired(slot, replica, &key(hash)));
        (publisher.has_expired(replica), blocks)
    };
    assert!(publisher.publish(stored(NOW_MS)));
    assert!(publisher.publish(Observation::Reasserted { replica, at_ms: NOW_MS + TTL_MS / 2 }));
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!((publisher.index.pairs(), expired(&publisher)), (2, (false, [false; 2])));
    publisher.sweep(NOW_MS + TTL_MS + TTL_MS / 2);
    assert_eq!((publisher.index.pairs(), expired(&publisher)), (0, (true, [true; 2])));
    // What is gone does not come back with it: whoever knows what is held says so.
    assert!(publisher.publish(Observation::Reasserted { replica, at_ms: NOW_MS + 2 * TTL_MS }));
    assert_eq!((publisher.index.pairs(), expired(&publisher)), (0, (true, [true; 2])));
    let removed = Observation::Removed { replica, scope: slot, keys: vec![key("b")] };
    assert!(publisher.publish(removed));
    assert_eq!(expired(&publisher), (true, [true, false]));
    assert!(publisher.publish(stored(NOW_MS + 2 * TTL_MS)));
    assert_eq!((publisher.index.pairs(), expired(&publisher)), (2, (false, [false; 2])));
}
