use super::*;
use crate::observation::{MAX_NAME_BYTES, Stored};
use crate::routing::policy::{Eviction, Policy};

#[test]
fn a_prefix_is_stored_with_what_the_report_says() {
    let mut publisher = publisher();
    let prefixes = vec![PrefixEntry { tier: 2, ..entry("a", 40) }];
    let report = CacheStateUpdate { timestamp_us: 1_699_999_999_000_999, ..update("r", prefixes) };
    assert_eq!(publisher.report(&report, NOW_MS).total(), 0);
    let stored = held(publisher.index(), &scope(), "a", "r").unwrap();
    assert_eq!((stored.token_count, stored.tier, stored.last_seen_ms), (40, Tier::T2, 1_699_999_999_000));
    let changes = publisher.take_changes();
    let [
        Observation::ReplicaUp { replica, member, address, data_parallel_rank: None },
        Observation::ReplicaComplete { replica: complete },
        Observation::Scope { slot, scope: named },
        Observation::Stored(Stored { replica: holder, scope: within, .. }),
    ] = &changes[..]
    else {
        panic!("{changes:?}");
    };
    assert_eq!((member, address.as_str(), complete, holder), (&Member::new("t", "m", "r"), "", replica, replica));
    assert_eq!((named, within), (&scope(), slot));
}

#[test]
fn a_chain_is_stored_block_by_block_with_cumulative_counts() {
    let mut publisher = publisher();
    let report = update(
        "r",
        vec![PrefixEntry { prefix_hash: "w".into(), token_count: 7, ..chain(&["a", "b", "c"], &[16, 8, 4]) }],
    );
    assert_eq!(publisher.report(&report, NOW_MS).total(), 0);
    let counts = ["a", "b", "c", "w"].map(|hash| held(publisher.index(), &scope(), hash, "r").unwrap().token_count);
    assert_eq!(counts, [16, 24, 28, 7]);
    assert_eq!(publisher.counts().total, 4);
}

#[test]
fn a_chain_of_unequal_lengths_is_left_out_with_its_prefix() {
    for entry in [
        PrefixEntry { prefix_hash: "w".into(), token_count: 64, ..chain(&[], &[16, 16]) },
        PrefixEntry { prefix_hash: "w".into(), token_count: 64, ..chain(&["a", "b"], &[16]) },
    ] {
        let mut publisher = publisher();
        assert_eq!(reasons(&publisher.report(&update("r", vec![entry]), NOW_MS)), [("mismatched_chain", 3)]);
        assert_eq!(publisher.counts(), Counts::default());
        assert_eq!(publisher.take_changes(), [], "it makes no scope and no replica");
    }
}

#[test]
fn blocks_that_mean_nothing_are_left_out_and_counted() {
    let long = "x".repeat(257);
    for (entry, expected, stored) in [
        (entry("", 16), ("empty_hash", 1), ""),
        (entry("a", 0), ("token_count", 1), ""),
        (entry("a", -5), ("token_count", 1), ""),
        (entry(&long, 16), ("long_hash", 1), ""),
        (chain(&["a", "b", "c"], &[16, 0, 16]), ("token_count", 2), "a"),
        (chain(&["a", "b", "c"], &[16, -16, 16]), ("token_count", 2), "a"),
        (chain(&["a", "b", "c"], &[i32::MAX, 1, 1]), ("token_count", 2), "a"),
        (chain(&["a", "", "c"], &[16, 16, 16]), ("empty_hash", 2), "a"),
        (chain(&["a", &long, "c"], &[16, 16, 16]), ("long_hash", 2), "a"),
        (PrefixEntry { prefix_hash: "w".into(), ..chain(&["a"], &[16]) }, ("token_count", 1), "a"),
    ] {
        let mut publisher = publisher();
        let report = update("r", vec![entry.clone()]);
        assert_eq!(reasons(&publisher.report(&report, NOW_MS)), [expected], "{entry:?}");
        assert_eq!(letters(&publisher, "r"), stored, "{entry:?}");
        assert_eq!(reasons(publisher.dropped()), [expected]);
    }
}

#[test]
fn a_whole_report_can_mean_nothing() {
    let stats = Some(ReportedStats { hit_rate: 0.5, ..ReportedStats::default() });
    let good = CacheStateUpdate { stats, ..update("r", vec![entry("a", 16), chain(&["b", "c"], &[16, 16])]) };
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    let ahead_us = |ms: u64| i64::try_from((NOW_MS + ms) * 1000).unwrap();
    for (report, expected) in [
        (CacheStateUpdate { replica_id: String::new(), ..good.clone() }, vec![("empty_replica", 4)]),
        (CacheStateUpdate { tenant_id: RESERVED_TENANT.into(), ..good.clone() }, vec![("reserved_tenant", 4)]),
        (CacheStateUpdate { model_id: long.clone(), ..good.clone() }, vec![("long_name", 4)]),
        (CacheStateUpdate { timestamp_us: ahead_us(60_001), ..good.clone() }, vec![("future_timestamp", 4)]),
        (CacheStateUpdate { timestamp_us: ahead_us(60_000), ..good.clone() }, vec![]),
        (CacheStateUpdate { hash_scheme: String::new(), ..good.clone() }, vec![("empty_scheme", 3)]),
        (CacheStateUpdate { adapter_id: long.clone(), ..good.clone() }, vec![("long_name", 3)]),
        (CacheStateUpdate { tenant_id: String::new(), model_id: String::new(), ..good.clone() }, vec![]),
    ] {
        let mut publisher = publisher();
        assert_eq!(reasons(&publisher.report(&report, NOW_MS)), expected, "{report:?}");
        assert_eq!(publisher.counts().total, if expected.is_empty() { 3 } else { 0 }, "{report:?}");
        let kept_stats = expected.is_empty() || expected[0].1 == 3;
        let state = publisher.cache_state(&report.tenant_id, &report.model_id);
        assert_eq!(state.replicas.len(), usize::from(kept_stats), "{report:?}");
    }
}

#[test]
fn an_entry_is_of_its_own_adapter_or_else_the_reports() {
    let mut publisher = publisher();
    let own = PrefixEntry { adapter_id: "sql".into(), ..entry("a", 16) };
    let report = CacheStateUpdate { adapter_id: "chat".into(), ..update("r", vec![own, entry("b", 16)]) };
    publisher.report(&report, NOW_MS);
    publisher.report(&update("r", vec![entry("c", 16)]), NOW_MS);
    for (hash, adapter_id) in [("a", "sql"), ("b", "chat"), ("c", "")] {
        let holding =
            ["sql", "chat", ""].into_iter().filter(|id| held(publisher.index(), &in_adapter(id), hash, "r").is_some());
        assert_eq!(holding.collect::<Vec<_>>(), [adapter_id]);
    }
    assert_eq!(publisher.index().dictionary().models_of_adapter("t", "sql").collect::<Vec<_>>(), ["m"]);
}

#[test]
fn tiers_and_times_are_those_of_the_contract() {
    for (number, tier) in
        [(0, Tier::T1), (1, Tier::T1), (2, Tier::T2), (3, Tier::T3), (4, Tier::Unspecified), (-1, Tier::Unspecified)]
    {
        let mut publisher = publisher();
        publisher.report(&update("r", vec![PrefixEntry { tier: number, ..entry("a", 16) }]), NOW_MS);
        assert_eq!(held(publisher.index(), &scope(), "a", "r").unwrap().tier, tier, "{number}");
    }
    for (timestamp_us, expected_ms) in [(0, NOW_MS), (1_999, 1), (999, 0), (-7, 0), (i64::MIN, 0)] {
        let mut publisher = publisher();
        let report = CacheStateUpdate { timestamp_us, ..update("r", vec![entry("a", 16)]) };
        assert_eq!(publisher.report(&report, NOW_MS).total(), 0);
        assert_eq!(held(publisher.index(), &scope(), "a", "r").unwrap().last_seen_ms, expected_ms, "{timestamp_us}");
    }
}

#[test]
fn the_last_report_of_a_block_counts_even_if_it_is_older() {
    let mut publisher = publisher();
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    let older = CacheStateUpdate { timestamp_us: 5_000, ..update("r", vec![entry("a", 8), entry("a", 9)]) };
    publisher.report(&older, NOW_MS);
    let stored = held(publisher.index(), &scope(), "a", "r").unwrap();
    assert_eq!((stored.token_count, stored.last_seen_ms), (9, 5));
    let mut subscriber = Subscriber::new();
    subscriber.follow(&mut publisher);
    assert_eq!(held(&subscriber.0, &scope(), "a", "r").unwrap().token_count, 9);
}

#[test]
fn statistics_are_of_one_tenant_and_model_and_never_infinite() {
    let mut publisher = publisher();
    let stats = ReportedStats {
        cache_memory_bytes: 7,
        hit_rate: f32::NAN,
        pressure: f32::INFINITY,
        t2_hit_tokens: 8,
        t2_query_tokens: 9,
    };
    let report = CacheStateUpdate { stats: Some(stats), hash_scheme: String::new(), ..update("r", vec![]) };
    assert_eq!(publisher.report(&report, NOW_MS).total(), 0);
    let state = publisher.cache_state("t", "m");
    let clean = ReportedStats { hit_rate: 0.0, pressure: 0.0, ..stats };
    assert_eq!(state.replicas, [ReplicaState { replica_id: "r".into(), stats: clean }]);
    for (tenant_id, model_id) in [("t", "n"), ("u", "m"), (RESERVED_TENANT, "m")] {
        assert_eq!(publisher.cache_state(tenant_id, model_id), CacheState::default());
    }
    publisher
        .report(&CacheStateUpdate { stats: Some(ReportedStats { pressure: 0.75, ..stats }), ..report }, NOW_MS + 1);
    let (_, replica) = publisher.index().members(&scope()).next().unwrap();
    let stats = replica.stats.unwrap();
    assert_eq!((stats.pressure, stats.hit_rate, stats.reported_ms), (0.75, 0.0, NOW_MS + 1));
}

#[test]
fn cache_state_lists_replicas_by_id_and_counts_blocks_once() {
    let mut publisher = publisher();
    for replica_id in ["b", "c", "a"] {
        let stats = (replica_id != "c").then(ReportedStats::default);
        publisher.report(&CacheStateUpdate { stats, ..update(replica_id, vec![entry("x", 16)]) }, NOW_MS);
    }
    let state = publisher.cache_state("t", "m");
    assert_eq!(state.replicas.iter().map(|replica| &*replica.replica_id).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(state.total_prefixes, 1);
}

#[test]
fn repeating_splitting_and_reordering_reports_changes_nothing() {
    let entries =
        vec![entry("a", 16), chain(&["b", "c", "d"], &[16, 16, 16]), PrefixEntry { tier: 3, ..entry("e", 80) }];
    let whole = |replica_id| update(replica_id, entries.clone());
    let parts = |replica_id| entries.iter().map(move |entry| update(replica_id, vec![entry.clone()]));
    let state = |reports: Vec<CacheStateUpdate>| {
        let mut publisher = publisher();
        for report in &reports {
            assert_eq!(publisher.report(report, NOW_MS).total(), 0);
        }
        let holding = ["r", "s"].map(|replica_id| {
            let holder = |hash| held(publisher.index(), &scope(), hash, replica_id);
            let holders = ["a", "b", "c", "d", "e"].map(|hash| holder(hash).unwrap());
            holders.map(|holder| (holder.token_count, holder.tier, holder.last_seen_ms))
        });
        (holding, publisher.counts())
    };
    let expected = state(vec![whole("r"), whole("s")]);
    assert_eq!(state(vec![whole("s"), whole("r"), whole("s")]), expected);
    assert_eq!(state(parts("r").chain(parts("s")).collect()), expected);
    assert_eq!(state(parts("s").zip(parts("r")).flat_map(|(s, r)| [s, r]).collect()), expected);
}

#[test]
fn what_is_known_already_is_no_change() {
    let mut publisher = publisher();
    let stats = Some(ReportedStats { hit_rate: 0.5, ..ReportedStats::default() });
    let report = CacheStateUpdate { stats, ..update("r", vec![entry("a", 16), entry("b", 32)]) };
    publisher.report(&report, NOW_MS);
    let kinds = publisher.take_changes();
    assert_eq!(kinds.len(), 5, "a scope, a replica, complete, both blocks, statistics: {kinds:?}");
    publisher.report(&report, NOW_MS);
    assert_eq!(publisher.take_changes(), []);
    publisher.report(&report, NOW_MS + 1);
    assert_eq!(publisher.take_changes().len(), 2, "both blocks and the statistics are newer");
}

#[test]
fn an_evicted_block_goes_in_all_schemes_and_in_the_adapter_named_or_all() {
    let lora = |replica_id| CacheStateUpdate { adapter_id: "lora".into(), ..update(replica_id, vec![entry("a", 16)]) };
    let sglang = CacheStateUpdate { hash_scheme: "sglang".into(), ..update("r", vec![entry("a", 16)]) };
    let mut publisher = publisher();
    let fill = |publisher: &mut Publisher| {
        for report in [
            update("r", vec![entry("a", 16), entry("b", 16)]),
            update("s", vec![entry("a", 16)]),
            lora("r"),
            sglang.clone(),
        ] {
            publisher.report(&report, NOW_MS);
        }
        assert_eq!(publisher.counts().entries, 5);
    };
    fill(&mut publisher);
    let evicted = CacheEvent { adapter_id: "lora".into(), ..event(EventKind::PrefixEvicted, "r", "a") };
    assert_eq!(publisher.event(&evicted, NOW_MS).total(), 0);
    assert_eq!(publisher.counts().entries, 4);
    assert!(held(publisher.index(), &in_adapter("lora"), "a", "r").is_none());
    fill(&mut publisher);
    publisher.event(&event(EventKind::PrefixEvicted, "r", "a"), NOW_MS);
    assert_eq!((letters(&publisher, "r"), letters(&publisher, "s")), ("b".into(), "a".into()));
    assert_eq!(publisher.counts().entries, 2, "that of another scheme and adapter went, too");
    let mut subscriber = Subscriber::new();
    subscriber.follow(&mut publisher);
    assert_eq!(subscriber.0.pairs(), 2);
}

#[test]
fn a_cleared_replica_holds_nothing_for_that_tenant_and_model() {
    let mut publisher = publisher();
    let stats = Some(ReportedStats { hit_rate: 0.9, pressure: 0.9, ..ReportedStats::default() });
    let report = CacheStateUpdate { stats, ..update("r", vec![entry("a", 16)]) };
    let lora = CacheStateUpdate { adapter_id: "lora".into(), ..report.clone() };
    let other = CacheStateUpdate { model_id: "n".into(), ..report.clone() };
    for report in [&report, &lora, &other] {
        publisher.report(report, NOW_MS);
    }
    let mut subscriber = Subscriber::new();
    publisher.event(&event(EventKind::AllCleared, "r", ""), NOW_MS);
    subscriber.follow(&mut publisher);
    for index in [publisher.index(), &subscriber.0] {
        assert_eq!((index.knows_model("t", "m"), index.knows_model("t", "n")), (false, true));
        let (_, replica) = index.members(&scope()).next().expect("it may well be up");
        assert_eq!(replica.stats.unwrap_or_default(), crate::observation::ReplicaStats::default());
    }
    assert_eq!(publisher.cache_state("t", "m"), CacheState::default());
    assert_eq!(publisher.cache_state("t", "n").replicas.len(), 1);
    publisher.event(&event(EventKind::AllCleared, "r", ""), NOW_MS);
    assert_eq!(publisher.take_changes(), [], "nothing is left to clear");
    publisher.sweep(NOW_MS);
    assert_eq!(publisher.index().members(&scope()).count(), 0, "a replica of which nothing is known is gone");
}

#[test]
fn events_that_concern_nothing_change_nothing() {
    let mut publisher = publisher();
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    publisher.take_changes();
    for kind in [EventKind::Unspecified, EventKind::PrefixAdded, EventKind::ReplicaUpdated] {
        assert_eq!(publisher.event(&event(kind, "r", "a"), NOW_MS + 5).total(), 0);
    }
    for replica_id in ["r", "unknown"] {
        assert_eq!(publisher.event(&event(EventKind::PrefixEvicted, replica_id, "z"), NOW_MS).total(), 0);
    }
    assert_eq!(publisher.event(&event(EventKind::AllCleared, "unknown", ""), NOW_MS).total(), 0);
    assert_eq!(publisher.take_changes(), []);
    let reserved = CacheEvent { tenant_id: RESERVED_TENANT.into(), ..event(EventKind::AllCleared, "r", "") };
    assert_eq!(reasons(&publisher.event(&reserved, NOW_MS)), [("reserved_tenant", 1)]);
    assert_eq!(reasons(&publisher.event(&event(EventKind::AllCleared, "", ""), NOW_MS)), [("empty_replica", 1)]);
    assert_eq!(reasons(&publisher.event(&event(EventKind::PrefixEvicted, "r", ""), NOW_MS)), [("empty_hash", 1)]);
    assert_eq!(publisher.dropped().total(), 3);
    assert_eq!(letters(&publisher, "r"), "a");
}

#[test]
fn a_sign_of_life_keeps_statistics_but_makes_them_no_younger() {
    let mut publisher = publisher();
    let stats = Some(ReportedStats { hit_rate: 0.9, ..ReportedStats::default() });
    publisher.report(&CacheStateUpdate { stats, ..update("r", vec![]) }, NOW_MS);
    publisher.event(&event(EventKind::ReplicaUpdated, "r", ""), NOW_MS + TTL_MS - 1);
    publisher.sweep(NOW_MS + 2 * TTL_MS - 2);
    assert_eq!(publisher.cache_state("t", "m").replicas.len(), 1);
    let (_, replica) = publisher.index().members(&scope()).next().unwrap();
    assert_eq!(replica.stats.unwrap().reported_ms, NOW_MS);
    publisher.sweep(NOW_MS + 2 * TTL_MS - 1);
    assert_eq!(publisher.cache_state("t", "m").replicas.len(), 0);
    assert_eq!(publisher.index().members(&scope()).count(), 0);
}

#[test]
fn the_reserved_tenant_is_for_probes_from_within_and_counts_nowhere() {
    let mut publisher = Publisher::new(PublisherLimits { max_entries: 1, ..PublisherLimits::default() });
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    let probe = CacheStateUpdate { tenant_id: RESERVED_TENANT.into(), ..update("probe", vec![entry("p", 16)]) };
    assert_eq!(publisher.report_any_tenant(&probe, NOW_MS + 1).total(), 0);
    let counts = publisher.counts();
    assert_eq!((counts.prefix_keys, counts.entries, counts.total), (2, 2, 1));
    assert_eq!(counts.by_tenant, BTreeMap::from([("t".to_owned(), 1)]));
    assert_eq!(counts.by_model, BTreeMap::from([("m".to_owned(), 1)]));
    assert_eq!(letters(&publisher, "r"), "a", "the cap is not exceeded");
    publisher.sweep(NOW_MS + TTL_MS + 1);
    assert_eq!(publisher.counts(), Counts::default(), "it ages like any other");
}

#[test]
fn members_and_scopes_are_bounded() {
    let limits = PublisherLimits { max_members: 2, max_scopes: 2, ..PublisherLimits::default() };
    let mut publisher = Publisher::new(limits);
    for replica_id in ["r", "s"] {
        assert_eq!(publisher.report(&update(replica_id, vec![entry("a", 16)]), NOW_MS).total(), 0);
    }
    let stats = Some(ReportedStats::default());
    let third = CacheStateUpdate { stats, ..update("third", vec![entry("a", 16), entry("b", 16)]) };
    assert_eq!(reasons(&publisher.report(&third, NOW_MS)), [("too_many_members", 3)]);
    let adapters = ["one", "two"].map(|id| PrefixEntry { adapter_id: id.into(), ..entry("a", 16) });
    assert_eq!(reasons(&publisher.report(&update("r", adapters.to_vec()), NOW_MS)), [("too_many_scopes", 1)]);
    assert!(publisher.scope(&in_adapter("two")).is_some(), "followed replicas have room of their own");
    assert!(publisher.scope(&in_adapter("three")).is_some());
    assert!(publisher.scope(&in_adapter("four")).is_none());
    publisher.event(&event(EventKind::AllCleared, "s", ""), NOW_MS);
    publisher.sweep(NOW_MS);
    assert_eq!(publisher.report(&third, NOW_MS).total(), 0, "one that is gone makes room");
}

#[test]
fn a_reported_replica_has_the_address_that_was_set_before() {
    let mut publisher = publisher();
    assert!(publisher.set_address(&Member::new("t", "m", "r"), "10.0.0.1:80"));
    publisher.report(&update("r", vec![entry("a", 16)]), NOW_MS);
    publisher.report(&update("s", vec![entry("a", 16)]), NOW_MS);
    let addresses = publisher.index().members_of("t", "m").map(|(_, replica)| &*replica.address);
    assert_eq!(addresses.collect::<Vec<_>>(), ["10.0.0.1:80", ""]);
    let mut full = Publisher::new(PublisherLimits { max_members: 1, ..PublisherLimits::default() });
    let set = ["r", "r", "s"].map(|replica_id| full.set_address(&Member::new("t", "m", replica_id), "10.0.0.1:80"));
    assert_eq!(set, [true, true, false]);
    full.sweep(NOW_MS);
    assert!(full.set_address(&Member::new("t", "m", "s"), "10.0.0.1:80"), "an address of nobody makes room");
}

#[test]
fn a_member_that_moves_keeps_what_it_holds() {
    let quotas = BTreeMap::from([("t".to_owned(), 3)]);
    let mut publisher = Publisher::new(PublisherLimits { max_entries: 3, quotas, ..PublisherLimits::default() });
    let default = Policy { eviction: Eviction::Lfu, ..Policy::default() };
    publisher.set_policies(Policies { default, by_tenant: BTreeMap::new() });
    let stats = Some(ReportedStats { pressure: 0.5, ..ReportedStats::default() });
    for (at, hash) in ["a", "b", "c"].into_iter().enumerate() {
        publisher.report(&CacheStateUpdate { stats, ..update("r", vec![entry(hash, 16)]) }, NOW_MS + at as u64);
    }
    publisher.set_access_count(&scope(), &key("a"), "r", 7);
    let mut subscriber = Subscriber::new();
    subscriber.follow(&mut publisher);
    let before = publisher.cache_state("t", "m");
    assert!(publisher.set_address(&Member::new("t", "m", "r"), "10.0.0.2:80"));
    assert!(publisher.set_address(&Member::new("t", "m", "r"), "10.0.0.2:80"));
    assert_eq!(subscriber.follow(&mut publisher), 6, "up, three blocks, statistics, complete: once");
    for index in [publisher.index(), &subscriber.0] {
        let members: Vec<_> = index.members_of("t", "m").map(|(_, replica)| replica).collect();
        let [replica] = &members[..] else { panic!("{members:?}") };
        assert_eq!((&*replica.address, replica.stats.unwrap().pressure), ("10.0.0.2:80", 0.5));
        assert_eq!(held(index, &scope(), "b", "r").unwrap().last_seen_ms, NOW_MS + 1);
        assert!(held(index, &scope(), "a", "r").is_some() && held(index, &scope(), "c", "r").is_some());
    }
    assert_eq!(publisher.cache_state("t", "m"), before);
    assert_eq!(publisher.access_count(&scope(), &key("a"), "r"), Some(7));
    publisher.set_access_count(&scope(), &key("c"), "r", 1);
    publisher.report(&update("r", vec![entry("d", 16)]), NOW_MS + 9);
    assert_eq!(letters(&publisher, "r"), "bcd", "its quota took the oldest");
    publisher.set_quotas(BTreeMap::new());
    publisher.report(&update("r", vec![entry("e", 16)]), NOW_MS + 10);
    assert_eq!(letters(&publisher, "r"), "cde", "the cap took what was hit least and longest ago");
}

#[test]
fn blocks_of_one_report_travel_together_as_far_as_a_message_allows() {
    let mut publisher = publisher();
    let hashes: Vec<Vec<u8>> = (0..5_000_u64).map(|hash| hash.to_be_bytes().to_vec()).collect();
    let long =
        PrefixEntry { block_token_counts: vec![1; hashes.len()], block_hashes: hashes, ..PrefixEntry::default() };
    publisher.report(&update("r", vec![long, entry("wide", 1), entry("w", 1)]), NOW_MS);
    let changes = publisher.take_changes();
    let stored = changes.iter().filter_map(|change| match change {
        Observation::Stored(Stored { blocks, .. }) => {
            let width = blocks[0].key.width();
            assert!(blocks.iter().all(|block| block.key.width() == width), "keys of one width");
            Some(blocks.len())
        }
        _ => None,
    });
    assert_eq!(stored.collect::<Vec<_>>(), [2048, 2048, 904, 1, 1]);
}
