//! What is reported, however it is cut, and what is found of it.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::arbitrary::{Happening, REPLICAS, history, report, request};
use crate::cases::Server;
use crate::cases::format::{Config, Policy, Tenant};
use crate::cases::messages::{Bytes, Lookup, Prefix, Response, Update};
use crate::core::Core;
use crate::oracle::Oracle;

const TTL_MS: u64 = 600_000;

/// Every match is shown, and nothing else stands in for one.
fn all_matches(tenant_id: &str) -> Policy {
    Policy {
        namespace: tenant_id.to_owned(),
        routing_floor_score: Some(0.0),
        affinity_routing: Some(false),
        ..Policy::default()
    }
}

fn config() -> Config {
    Config { ttl_ms: Some(TTL_MS), policies: vec![all_matches("t"), all_matches("u")], ..Config::default() }
}

fn matched(response: &Response) -> BTreeMap<String, i64> {
    if response.reason_code != "PREFIX_MATCH" {
        return BTreeMap::new();
    }
    response.replica_scores.iter().map(|score| (score.replica_id.clone(), score.matched_tokens.into())).collect()
}

fn happens(core: &mut Core, happening: &Happening) {
    match happening {
        Happening::Report(update) => core.ingest(update),
        Happening::Event(event) => core.event(event),
        Happening::Advance(ms) => core.advance(*ms),
        Happening::Sweep => core.sweep(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_matches_is_what_was_reported(history in history(24), requests in vec(request(), 1..8)) {
        let (mut core, mut oracle) = (Core::new(&config()), Oracle::new(TTL_MS as i64));
        for happening in &history {
            happens(&mut core, happening);
            oracle.happens(happening);
        }
        for lookup in &requests {
            prop_assert_eq!(matched(&core.lookup(lookup)), oracle.matched(&lookup.request), "{:?}", lookup.request);
        }
    }

    #[test]
    fn what_had_to_make_room_is_missed_and_nothing_is_credited_for_it(
        history in history(24), requests in vec(request(), 1..8), max_entries in 1..12_u64, quota in 0..6_i64,
    ) {
        let tenants = vec![Tenant { tenant_id: "t".into(), max_index_entries: Some(quota) }];
        let config = Config { max_entries: Some(max_entries), tenants, ..config() };
        let (mut core, mut oracle) = (Core::new(&config), Oracle::new(TTL_MS as i64));
        for happening in &history {
            happens(&mut core, happening);
            oracle.happens(happening);
        }
        for lookup in &requests {
            let most = oracle.matched(&lookup.request);
            for (replica_id, tokens) in matched(&core.lookup(lookup)) {
                prop_assert!(Some(&tokens) <= most.get(&replica_id), "{replica_id} {tokens} {most:?}");
            }
        }
    }

    #[test]
    fn neither_order_nor_cut_of_reports_changes_an_answer(
        reports in vec(report(), 0..12),
        order in Just(REPLICAS.to_vec()).prop_shuffle(),
        cuts in vec(0..4_usize, 12),
        requests in vec(request(), 1..6),
    ) {
        let whole = answers(reports.iter().cloned(), &requests);
        let by_replica = |id: &&str| reports.iter().filter(|report| report.replica_id == **id).cloned().collect::<Vec<_>>();
        prop_assert_eq!(&whole, &answers(order.iter().flat_map(by_replica), &requests), "replicas in order {:?}", order);
        let twice = reports.iter().flat_map(|report| [report.clone(), report.clone()]);
        prop_assert_eq!(&whole, &answers(twice, &requests), "each report twice");
        let halves = reports.iter().zip(&cuts).flat_map(|(report, at)| cut(report, *at));
        prop_assert_eq!(&whole, &answers(halves, &requests), "each report in two");
        let blocks = reports.iter().map(block_by_block);
        prop_assert_eq!(&whole, &answers(blocks, &requests), "each chain block by block");
    }
}

/// The test can fail: an oracle that does not see events, or time, disagrees with the core often enough to be caught.
#[test]
fn an_oracle_that_misses_something_disagrees() {
    let is_event = |happening: &Happening| matches!(happening, Happening::Event(_));
    let is_time = |happening: &Happening| matches!(happening, Happening::Advance(_));
    let is_report = |happening: &Happening| matches!(happening, Happening::Report(_));
    let never = |_: &Happening| false;
    assert_eq!(disagreements(never), 0);
    for misses in [is_event, is_time, is_report] {
        assert!(disagreements(misses) >= 5, "{} disagreements", disagreements(misses));
    }
}

/// How many of some histories come to a disagreement with an oracle that does not see what `misses` says.
fn disagreements(misses: impl Fn(&Happening) -> bool) -> usize {
    let mut runner = TestRunner::deterministic();
    let strategy = (history(32), vec(request(), 8));
    let disagrees = |(history, requests): (Vec<Happening>, Vec<Lookup>)| {
        let (mut core, mut oracle) = (Core::new(&config()), Oracle::new(TTL_MS as i64));
        for happening in &history {
            happens(&mut core, happening);
            if !misses(happening) {
                oracle.happens(happening);
            }
        }
        requests.iter().any(|lookup| matched(&core.lookup(lookup)) != oracle.matched(&lookup.request))
    };
    (0..200).filter(|_| disagrees(strategy.new_tree(&mut runner).unwrap().current())).count()
}

/// What is answered after these reports, both with every match shown and by the contract's defaults.
fn answers(reports: impl Iterator<Item = Update>, requests: &[Lookup]) -> Vec<Response> {
    let mut core = Core::new(&config());
    reports.for_each(|report| core.ingest(&report));
    let shown: Vec<Response> = requests.iter().map(|lookup| core.lookup(lookup)).collect();
    core.set_policies(&[], None);
    shown.into_iter().chain(requests.iter().map(|lookup| core.lookup(lookup))).collect()
}

/// A report as two: the entries before `at`, then the others with the statistics.
fn cut(report: &Update, at: usize) -> [Update; 2] {
    let (before, after) = report.prefixes.split_at(at.min(report.prefixes.len()));
    [
        Update { prefixes: before.to_vec(), stats: None, ..report.clone() },
        Update { prefixes: after.to_vec(), ..report.clone() },
    ]
}

/// A report whose well-formed chains are entries of one block each.
fn block_by_block(report: &Update) -> Update {
    Update { prefixes: report.prefixes.iter().flat_map(split_chain).collect(), ..report.clone() }
}

fn split_chain(prefix: &Prefix) -> Vec<Prefix> {
    let Prefix { block_hashes, block_token_counts, .. } = prefix;
    let is_sound = |(hash, count): (&Bytes, &i32)| !hash.0.is_empty() && *count >= 1;
    if block_hashes.is_empty()
        || block_hashes.len() != block_token_counts.len()
        || !block_hashes.iter().zip(block_token_counts).all(is_sound)
    {
        return vec![prefix.clone()];
    }
    let mut tokens = 0;
    let whole = Prefix { block_hashes: Vec::new(), block_token_counts: Vec::new(), ..prefix.clone() };
    let blocks = block_hashes.iter().zip(block_token_counts).map(|(hash, count)| {
        tokens += count;
        Prefix { prefix_hash: hash.clone(), token_count: tokens, ..whole.clone() }
    });
    let blocks: Vec<Prefix> = blocks.collect();
    let beside = Some(whole.clone()).filter(|whole| !whole.prefix_hash.0.is_empty());
    blocks.into_iter().chain(beside).collect()
}
