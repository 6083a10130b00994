use super::*;
use crate::observation::Observation;
use crate::request::{ChainBlock, RequestChain};
use crate::routing::decision::RankedReplica;
use crate::routing::policy::{Eviction, Policy};

fn limited(max_entries: u64, quotas: &[(&str, u64)]) -> Publisher {
    let quotas = quotas.iter().map(|(tenant_id, max)| ((*tenant_id).to_owned(), *max)).collect();
    Publisher::new(PublisherLimits { max_entries, quotas, ..PublisherLimits::default() })
}

fn with_policy(tenant_id: &str, policy: Policy) -> Policies {
    Policies { by_tenant: BTreeMap::from([(tenant_id.to_owned(), policy)]), ..Policies::default() }
}

fn lfu() -> Policy {
    Policy { eviction: Eviction::Lfu, ..Policy::default() }
}

/// Reports single letters one after the other, 1 ms apart.
fn report(publisher: &mut Publisher, replica_id: &str, letters: &str, from_ms: u64) {
    for (at, letter) in letters.chars().enumerate() {
        publisher.report(&update(replica_id, vec![entry(&letter.to_string(), 16)]), from_ms + at as u64);
    }
}

fn evicted(publisher: &Publisher) -> Vec<(&'static str, &'static str, u64)> {
    publisher.evictions().entries.iter().map(|((algorithm, reason), count)| (*algorithm, *reason, *count)).collect()
}

#[test]
fn the_cap_takes_what_was_reported_longest_ago() {
    let mut publisher = limited(2, &[]);
    report(&mut publisher, "r", "abc", NOW_MS);
    assert_eq!(letters(&publisher, "r"), "bc");
    report(&mut publisher, "r", "bd", NOW_MS + 10);
    assert_eq!(letters(&publisher, "r"), "bd", "what is reported anew is young");
    assert_eq!(evicted(&publisher), [("lru", "cap", 2)]);
    let removed = publisher.take_changes().into_iter().filter(|change| matches!(change, Observation::Removed { .. }));
    assert_eq!(removed.count(), 2);
}

#[test]
fn the_cap_counts_pairs_and_takes_equals_by_name() {
    let mut publisher = limited(3, &[]);
    for (replica_id, tenant_id, adapter_id) in [("s", "t", ""), ("r", "t", ""), ("r", "t", "a"), ("r", "s", "z")] {
        let prefixes = vec![entry("a", 16)];
        let report = CacheStateUpdate {
            tenant_id: tenant_id.into(),
            adapter_id: adapter_id.into(),
            timestamp_us: 1_700_000_000_000_000,
            ..update(replica_id, prefixes)
        };
        publisher.report(&report, NOW_MS);
    }
    assert!(!publisher.index().knows_tenant("s"), "the tenant first");
    publisher.report(&update("q", vec![entry("a", 16)]), NOW_MS + 1);
    assert_eq!(["q", "r", "s"].map(|replica_id| letters(&publisher, replica_id)), ["a", "", "a"], "then the replica");
    publisher.report(&update("q", vec![entry("b", 16)]), NOW_MS + 1);
    assert_eq!(
        ["q", "r", "s"].map(|replica_id| letters(&publisher, replica_id)),
        ["ab", "", ""],
        "the adapter is later"
    );
}

#[test]
fn hashes_are_ordered_by_their_bytes_whatever_their_width() {
    let mut publisher = limited(3, &[]);
    let hashes = ["b", "aaaaaaaa", "aaaaaaab", "aaaaaaaaa"];
    publisher.report(&update("r", hashes.iter().map(|hash| entry(hash, 16)).collect()), NOW_MS);
    let left = |publisher: &Publisher| {
        hashes.into_iter().filter(|hash| held(publisher.index(), &scope(), hash, "r").is_some()).collect::<Vec<_>>()
    };
    assert_eq!(left(&publisher), ["b", "aaaaaaab", "aaaaaaaaa"], "the one of 8 bytes is the prefix of that of 9");
    publisher.report(&update("r", vec![entry("z", 16)]), NOW_MS + 1);
    assert_eq!(left(&publisher), ["b", "aaaaaaab"]);
}

#[test]
fn a_block_over_the_cap_on_arrival_goes_at_once() {
    let mut publisher = limited(1, &[]);
    report(&mut publisher, "r", "a", NOW_MS);
    let older = CacheStateUpdate { timestamp_us: 1_000_000, ..update("r", vec![entry("b", 16)]) };
    publisher.report(&older, NOW_MS);
    assert_eq!(letters(&publisher, "r"), "a");
}

#[test]
fn without_a_cap_nothing_goes() {
    let mut publisher = limited(0, &[]);
    report(&mut publisher, "r", "abcdef", NOW_MS);
    assert_eq!(publisher.counts().entries, 6);
}

#[test]
fn lfu_takes_what_was_hit_least_and_lru_does_not_ask() {
    for (policy, expected, label) in [(Policy::default(), "bcd", "lru"), (lfu(), "abc", "lfu")] {
        let mut publisher = limited(3, &[]);
        publisher.set_policies(with_policy("t", policy));
        report(&mut publisher, "r", "abc", NOW_MS);
        for (letter, count) in [("a", 9), ("b", 3), ("c", 5)] {
            assert!(publisher.set_access_count(&scope(), &key(letter), "r", count));
        }
        report(&mut publisher, "r", "d", NOW_MS + 10);
        assert_eq!(letters(&publisher, "r"), expected);
        assert_eq!(evicted(&publisher), [(label, "cap", 1)]);
    }
}

#[test]
fn a_change_of_policy_changes_who_goes() {
    let mut publisher = limited(3, &[]);
    publisher.set_policies(with_policy("t", lfu()));
    report(&mut publisher, "r", "abc", NOW_MS);
    publisher.set_access_count(&scope(), &key("a"), "r", 2);
    publisher.set_policies(Policies::default());
    report(&mut publisher, "r", "d", NOW_MS + 10);
    assert_eq!(letters(&publisher, "r"), "bcd", "by LRU now");
    publisher.set_access_count(&scope(), &key("b"), "r", 2);
    publisher.set_policies(with_policy("t", lfu()));
    report(&mut publisher, "r", "e", NOW_MS + 20);
    assert_eq!(letters(&publisher, "r"), "bde", "the count was kept");
}

#[test]
fn delivered_hits_are_counted_block_by_block_in_lfu_tenants_only() {
    let blocks = ["a", "b", "c"].map(|hash| ChainBlock { key: key(hash), tokens: 16 });
    let request = RequestChain::Chain(blocks.to_vec());
    for (policy, expected) in [(lfu(), [2, 2, 0]), (Policy::default(), [0, 0, 0])] {
        let mut publisher = publisher();
        publisher.set_policies(with_policy("t", policy));
        for replica_id in ["r", "s"] {
            publisher.report(&update(replica_id, vec![chain(&["a", "b", "c"], &[16, 16, 16])]), NOW_MS);
        }
        let (slot, replica) =
            publisher.index().members(&scope()).find(|(_, replica)| &*replica.replica_id == "r").unwrap();
        let delivered = RankedReplica {
            replica: slot,
            replica_id: replica.replica_id.clone(),
            address: replica.address.clone(),
            score: 32.0,
            matched_tokens: 32,
            matched_blocks: 2,
            hit_probability: 1.0,
            tier: Tier::T1,
            data_parallel_rank: None,
        };
        let hint = RankedReplica { matched_blocks: 0, ..delivered.clone() };
        publisher.credit(&scope(), &request, &[delivered.clone(), hint.clone()]);
        publisher.credit(&scope(), &request, std::slice::from_ref(&delivered));
        publisher.report(&update("r", vec![entry("a", 99)]), NOW_MS + 1);
        let counts = ["a", "b", "c"].map(|hash| publisher.access_count(&scope(), &key(hash), "r").unwrap());
        assert_eq!(counts, expected);
        assert_eq!(publisher.access_count(&scope(), &key("a"), "s"), Some(0), "it was not delivered");
        assert_eq!(publisher.access_count(&scope(), &key("z"), "r"), None);
        assert!(!publisher.set_access_count(&scope(), &key("z"), "r", 1));
        let exact = RequestChain::Exact { key: key("c") };
        publisher.credit(&scope(), &exact, &[hint]);
        assert_eq!(publisher.access_count(&scope(), &key("c"), "r"), Some(0));
        publisher.credit(&scope(), &exact, &[RankedReplica { matched_blocks: 1, ..delivered }]);
        assert_eq!(publisher.access_count(&scope(), &key("c"), "r"), Some(expected[0].min(1)));
    }
}

#[test]
fn a_quota_counts_blocks_once_and_takes_whole_ones_by_their_newest_holder() {
    let mut publisher = limited(0, &[("t", 2)]);
    report(&mut publisher, "r", "a", NOW_MS);
    report(&mut publisher, "r", "b", NOW_MS + 1);
    report(&mut publisher, "s", "a", NOW_MS + 2);
    assert_eq!(publisher.counts().by_tenant["t"], 2);
    report(&mut publisher, "r", "c", NOW_MS + 3);
    assert_eq!(["r", "s"].map(|replica_id| letters(&publisher, replica_id)), ["ac", "a"], "b is the oldest");
    report(&mut publisher, "s", "d", NOW_MS + 4);
    assert_eq!(["r", "s"].map(|replica_id| letters(&publisher, replica_id)), ["c", "d"], "a goes from both");
    assert_eq!(publisher.evictions().over_quota, BTreeMap::from([("t".to_owned(), 2)]));
    assert_eq!(evicted(&publisher), [], "that is no eviction by the cap");
    let other =
        CacheStateUpdate { tenant_id: "u".into(), ..update("r", vec![entry("x", 1), entry("y", 1), entry("z", 1)]) };
    publisher.report(&other, NOW_MS);
    assert_eq!(publisher.counts().by_tenant["u"], 3, "a tenant without a quota");
}

#[test]
fn a_quota_takes_equals_by_scheme_adapter_and_hash() {
    let mut publisher = limited(0, &[("t", 1)]);
    let lora = PrefixEntry { adapter_id: "lora".into(), ..entry("a", 16) };
    publisher.report(&update("r", vec![lora, entry("c", 16), entry("b", 16)]), NOW_MS);
    assert!(held(publisher.index(), &in_adapter("lora"), "a", "r").is_some());
    assert_eq!(publisher.counts().total, 1);
    let removed: Vec<Observation> =
        publisher.take_changes().into_iter().filter(|change| matches!(change, Observation::Removed { .. })).collect();
    let [Observation::Removed { keys, .. }] = &removed[..] else { panic!("{removed:?}") };
    assert_eq!(keys, &[key("b"), key("c")]);
}

#[test]
fn a_quota_of_nothing_admits_nothing() {
    let mut publisher = limited(0, &[("t", 0)]);
    report(&mut publisher, "r", "ab", NOW_MS);
    assert_eq!(publisher.counts(), Counts::default());
    let mut subscriber = Subscriber::new();
    subscriber.follow(&mut publisher);
    assert!(subscriber.0.is_empty());
}

#[test]
fn a_quota_set_later_counts_what_is_there_and_takes_it_at_the_next_report_or_sweep() {
    let quota = |max| BTreeMap::from([("t".to_owned(), max)]);
    let mut publisher = limited(0, &[]);
    report(&mut publisher, "r", "abc", NOW_MS);
    report(&mut publisher, "s", "a", NOW_MS + 10);
    publisher.set_quotas(quota(2));
    assert_eq!(publisher.counts().total, 3);
    publisher.sweep(NOW_MS + 11);
    assert_eq!(["r", "s"].map(|replica_id| letters(&publisher, replica_id)), ["ac", "a"]);
    publisher.set_quotas(quota(1));
    report(&mut publisher, "s", "d", NOW_MS + 12);
    assert_eq!(["r", "s"].map(|replica_id| letters(&publisher, replica_id)), ["", "d"]);
    publisher.set_quotas(BTreeMap::new());
    report(&mut publisher, "r", "efg", NOW_MS + 13);
    assert_eq!(publisher.counts().total, 4);
}

#[test]
fn what_goes_otherwise_leaves_the_orders_too() {
    let mut publisher = limited(2, &[("t", 2)]);
    report(&mut publisher, "r", "ab", NOW_MS);
    publisher.event(&event(EventKind::PrefixEvicted, "r", "a"), NOW_MS);
    report(&mut publisher, "r", "c", NOW_MS + 5);
    assert_eq!(letters(&publisher, "r"), "bc");
    publisher.event(&event(EventKind::AllCleared, "r", ""), NOW_MS);
    report(&mut publisher, "s", "de", NOW_MS + 6);
    assert_eq!(letters(&publisher, "s"), "de");
    assert_eq!((evicted(&publisher), publisher.evictions().over_quota.len()), (vec![], 0));
}

#[test]
fn the_sweep_goes_by_the_tenants_own_age() {
    let short = Policy { eviction_ttl_ms: 1_000, ..lfu() };
    let mut publisher = publisher();
    publisher.set_policies(with_policy("t", short));
    report(&mut publisher, "r", "a", NOW_MS);
    report(&mut publisher, "r", "b", NOW_MS + 1);
    publisher.report(&CacheStateUpdate { tenant_id: "u".into(), ..update("r", vec![entry("a", 16)]) }, NOW_MS);
    publisher.sweep(NOW_MS + 1_000);
    assert_eq!((letters(&publisher, "r"), publisher.counts().by_tenant["u"]), ("b".into(), 1));
    assert_eq!(evicted(&publisher), [("lfu", "ttl", 1)]);
    let mut subscriber = Subscriber::new();
    subscriber.follow(&mut publisher);
    assert_eq!(subscriber.0.pairs(), 2, "who follows learns of it");
    publisher.sweep(NOW_MS + TTL_MS);
    assert_eq!(evicted(&publisher), [("lfu", "ttl", 2), ("lru", "ttl", 1)]);
    subscriber.follow(&mut publisher);
    assert_eq!((subscriber.0.pairs(), subscriber.0.dictionary().replicas().count()), (0, 0));
}

#[test]
fn a_sweep_in_steps_is_a_sweep() {
    let mut publisher = publisher();
    let hashes: Vec<String> = (0..2_000).map(|at| format!("h{at}")).collect();
    publisher.report(&update("r", hashes.iter().map(|hash| entry(hash, 1)).collect()), NOW_MS);
    let mut before = publisher.counts().total;
    while !publisher.sweep_step(NOW_MS + TTL_MS) {
        let left = publisher.counts().total;
        assert!(before - left < 256 + 1_024, "a step takes a part, and ends with a run: {}", before - left);
        before = left;
    }
    assert!(before > 0, "there were several steps");
    assert_eq!(publisher.counts(), Counts::default());
    assert_eq!(publisher.index().dictionary().replicas().count(), 0);
}

#[test]
fn what_goes_with_the_report_that_brought_it_is_dropped_and_what_was_there_is_evicted() {
    let letters = |hashes: &[&str]| update("r", hashes.iter().map(|hash| entry(hash, 16)).collect());
    let mut nothing = limited(0, &[("t", 0)]);
    assert_eq!(reasons(&nothing.report(&letters(&["a", "b", "c"]), NOW_MS)), [("over_quota", 3)]);
    assert_eq!(nothing.dropped().total(), 3);
    let mut publisher = limited(4, &[("t", 3)]);
    assert_eq!(publisher.report(&letters(&["a", "b"]), NOW_MS).total(), 0);
    assert_eq!(publisher.report(&letters(&["c", "d"]), NOW_MS + 1).total(), 0, "a was there before");
    let older = CacheStateUpdate { timestamp_us: 5_000, ..letters(&["e", "e"]) };
    assert_eq!(reasons(&publisher.report(&older, NOW_MS + 2)), [("over_quota", 2)], "e, offered twice");
    let elsewhere = CacheStateUpdate { tenant_id: "u".into(), timestamp_us: 4_000, ..letters(&["x", "y"]) };
    assert_eq!(reasons(&publisher.report(&elsewhere, NOW_MS + 3)), [("over_cap", 1)]);
    let other = CacheStateUpdate { timestamp_us: 3_000, ..update("s", vec![entry("c", 16)]) };
    assert_eq!(reasons(&publisher.report(&other, NOW_MS + 4)), [("over_cap", 1)], "at this replica alone");
}

#[test]
fn a_member_that_was_cleared_gives_way_at_once() {
    let limits = PublisherLimits { max_members: 1, ..PublisherLimits::default() };
    let mut publisher = Publisher::new(limits);
    let report = |replica_id: &str| update(replica_id, vec![entry("a", 16)]);
    assert!(publisher.set_address(&Member::new("t", "m", "r"), "10.0.0.1:80"));
    publisher.report(&report("r"), NOW_MS);
    publisher.event(&event(EventKind::AllCleared, "r", ""), NOW_MS);
    assert_eq!(publisher.index().members_of("t", "m").count(), 1, "it may well live");
    assert!(publisher.set_address(&Member::new("t", "m", "s"), "10.0.0.2:80"));
    assert_eq!(publisher.report(&report("s"), NOW_MS).total(), 0);
    let members: Vec<_> = publisher.index().members_of("t", "m").map(|(_, member)| &*member.replica_id).collect();
    assert_eq!(members, ["s"]);
    publisher.event(&event(EventKind::AllCleared, "s", ""), NOW_MS);
    publisher.report(&report("s"), NOW_MS);
    assert_eq!(reasons(&publisher.report(&report("r"), NOW_MS)), [("too_many_members", 1)], "s is back");
}

#[test]
fn a_member_can_be_cleared_in_steps() {
    let mut publisher = limited(0, &[("t", 10_000)]);
    let mut subscriber = Subscriber::new();
    let names: Vec<String> = (0..1_000).map(|at| format!("{at}")).collect();
    let blocks = || names.iter().map(|name| entry(name, 16)).collect();
    publisher.report(&update("r", blocks()), NOW_MS);
    publisher.report(&update("s", blocks()), NOW_MS);
    let cleared = event(EventKind::AllCleared, "r", "");
    let ahead = CacheEvent { timestamp_us: i64::MAX, ..cleared.clone() };
    assert_eq!(publisher.cleared_by(&ahead, NOW_MS), None);
    assert_eq!(publisher.cleared_by(&event(EventKind::PrefixEvicted, "r", "1"), NOW_MS), None);
    let member = publisher.cleared_by(&cleared, NOW_MS).unwrap();
    let mut from = Some(0);
    let mut before = publisher.counts().entries;
    while let Some(next) = from {
        from = publisher.clear_step(&member, next);
        let left = publisher.counts().entries;
        assert!(before - left <= 256, "a step takes a part");
        before = left;
    }
    assert_eq!(publisher.counts().entries, 1_000);
    subscriber.follow(&mut publisher);
    assert_eq!(publisher.event(&cleared, NOW_MS).total(), 0);
    assert_eq!(publisher.take_changes(), [], "nothing is left to do");
    assert_eq!(subscriber.0.pairs(), 1_000);
    assert!(held(&subscriber.0, &scope(), "7", "r").is_none() && held(&subscriber.0, &scope(), "7", "s").is_some());
    assert_eq!(publisher.clear_step(&Member::new("t", "m", "nobody"), 0), None);
}
