//! What is read of the fixtures, and what of it counts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::hub::config::EngineKind;
use warmroute::observation::Tier;

use crate::fixtures::{BLOCK, Replica, cases, read, told};

#[test]
fn every_layout_is_read_field_by_field() {
    for case in cases() {
        for engine in [EngineKind::Auto, case.engine] {
            let batch = read(&case.payload(), engine).unwrap_or_else(|| panic!("{} by {engine:?}", case.name()));
            assert_eq!(batch.faults, [], "{} by {engine:?}", case.name());
            assert_eq!((batch.timestamp, batch.data_parallel_rank), (Some(1_760_000_000.25), case.rank));
            let events: Vec<Value> = batch.events.iter().map(told).collect();
            assert_eq!(events, case.events, "{} by {engine:?}", case.name());
        }
    }
}

#[test]
fn what_counts_is_what_any_request_with_these_tokens_finds() {
    let mut tiers = BTreeSet::new();
    for case in cases() {
        let mut replica = Replica::new();
        replica.apply(&read(&case.payload(), EngineKind::Auto).unwrap());
        let size = BlockSize::try_new(BLOCK).unwrap();
        let credited: BTreeSet<_> = case
            .credited
            .iter()
            .map(|(adapter, tier, prompt)| (adapter.clone(), *tier, prefix_hashes(prompt, size, None).last().unwrap()))
            .collect();
        assert_eq!(replica.held(), credited, "{}", case.name());
        let skipped: BTreeMap<String, u64> =
            replica.tally.skipped.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect();
        assert_eq!(skipped, case.skipped, "{}", case.name());
        tiers.extend(case.credited.iter().map(|(_, tier, _)| *tier));
    }
    assert_eq!(tiers, [Tier::T1, Tier::T2, Tier::T3].map(Tier::number).into());
}

#[test]
fn the_layouts_are_those_of_the_engines_themselves() {
    let compared: BTreeSet<String> = cases().into_iter().flat_map(|case| case.compared_with).collect();
    let of = |engine: &str| compared.iter().filter(|version| version.starts_with(engine)).count();
    assert!(of("vllm") >= 10 && of("sglang") >= 9, "{compared:?}");
}

#[test]
fn a_fleet_of_all_of_them_is_read_side_by_side() {
    // One payload after another into replicas of their own: nothing of one engine is left for the next.
    let mut replicas: BTreeMap<String, (Replica, Replica)> = BTreeMap::new();
    for case in cases().into_iter().rev() {
        let (auto, stated) = replicas.entry(case.name()).or_insert_with(|| (Replica::new(), Replica::new()));
        auto.apply(&read(&case.payload(), EngineKind::Auto).unwrap());
        stated.apply(&read(&case.payload(), case.engine).unwrap());
        assert_eq!(auto.held(), stated.held(), "{}", case.name());
    }
}
