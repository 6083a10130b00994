//! Each setting that differs from the contract, against what its documentation says of it.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use warmroute::routing::policy::{AffinityHash, AffinitySeed, ChainOrigin, Denominator, Ranking, SharedPrefix};

use crate::cases::Server;
use crate::cases::format::{Config, Policy, Strategy as PolicyStrategy, Tokenizer, TokenizerKind};
use crate::cases::messages::{Bytes, Float, Lookup, Prefix, Request, Response, Stats, TokenIds, Update};
use crate::core::Core;

const KEYS: u32 = 2_000;

/// A report of `replica_id` on the one model there is.
fn update(replica_id: &str, prefixes: Vec<Prefix>, pressure: Option<f64>) -> Update {
    Update {
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "vllm".into(),
        prefixes,
        stats: pressure.map(|pressure| Stats { pressure: Float(pressure), ..Stats::default() }),
        ..Update::default()
    }
}

fn key(name: &str, token_count: i32) -> Prefix {
    Prefix { prefix_hash: Bytes(name.into()), token_count, ..Prefix::default() }
}

fn asked() -> Request {
    Request { model_id: "m".into(), tenant_id: "t".into(), hash_scheme: "vllm".into(), ..Request::default() }
}

fn exact(name: &str) -> Request {
    Request { prefix_hash: Bytes(name.into()), ..asked() }
}

fn chain(blocks: &[String]) -> Request {
    let block_hashes: Vec<Bytes> = blocks.iter().map(|block| Bytes(block.clone().into_bytes())).collect();
    Request { block_token_counts: vec![16; blocks.len()], block_hashes, ..asked() }
}

fn ask(core: &mut Core, request: Request) -> Response {
    core.lookup(&Lookup { request, caller_deadline_ms: None })
}

fn ids(response: &Response) -> Vec<&str> {
    response.replica_scores.iter().map(|score| score.replica_id.as_str()).collect()
}

/// The replica that affinity picks.
fn picked(core: &mut Core, request: Request) -> String {
    let response = ask(core, request);
    assert_eq!(response.reason_code, "AFFINITY_HINT");
    response.replica_scores[0].replica_id.clone()
}

/// Replicas of which each holds something of its own.
fn pool(replicas: usize, ranking: Ranking) -> Core {
    let mut core = Core::new(&Config::default());
    core.ranking = ranking;
    for at in 0..replicas {
        join(&mut core, at, None);
    }
    core
}

fn join(core: &mut Core, at: usize, pressure: Option<f64>) {
    let id = format!("replica-{at}");
    core.ingest(&update(&id, vec![key(&format!("own of {id}"), 64)], pressure));
}

/// The share of keys that another replica gets once one has joined `replicas`, and who gets them.
fn moved_by_a_join(replicas: usize, affinity_hash: AffinityHash) -> (f64, BTreeSet<String>) {
    let mut core = pool(replicas, Ranking { affinity_hash, ..Ranking::default() });
    let pick_all =
        |core: &mut Core| -> Vec<String> { (0..KEYS).map(|at| picked(core, exact(&format!("prompt {at}")))).collect() };
    let before = pick_all(&mut core);
    join(&mut core, replicas, None);
    let after = pick_all(&mut core);
    let moved: Vec<String> = before.iter().zip(&after).filter(|(a, b)| a != b).map(|(_, b)| b.clone()).collect();
    (moved.len() as f64 / f64::from(KEYS), moved.into_iter().collect())
}

#[test]
fn rendezvous_moves_one_key_in_n_and_only_to_the_replica_that_joins() {
    for replicas in [1, 3, 8, 16] {
        let (share, to) = moved_by_a_join(replicas, AffinityHash::Rendezvous);
        let fair = 1.0 / (replicas as f64 + 1.0);
        assert!((share - fair).abs() < 0.04, "{replicas} replicas: {share} of the keys moved, {fair} would be fair");
        assert_eq!(to, BTreeSet::from([format!("replica-{replicas}")]), "{replicas} replicas");
    }
}

#[test]
fn rendezvous_gives_each_replica_its_share() {
    let mut core = pool(5, Ranking { affinity_hash: AffinityHash::Rendezvous, ..Ranking::default() });
    let mut shares = [0_u32; 5];
    for at in 0..KEYS {
        let id = picked(&mut core, exact(&format!("prompt {at}")));
        shares[id.strip_prefix("replica-").unwrap().parse::<usize>().unwrap()] += 1;
    }
    assert!(shares.iter().all(|share| share.abs_diff(KEYS / 5) < KEYS / 20), "{shares:?}");
}

#[test]
fn modulo_moves_most_keys() {
    let (share, _) = moved_by_a_join(3, AffinityHash::Modulo);
    assert!((share - 0.75).abs() < 0.04, "{share} of the keys moved");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_head_keeps_a_growing_conversation_where_it_is(
        blocks in vec("[a-z]{1,12}", 1..24),
        replicas in 1..9_usize,
        affinity_hash in select(vec![AffinityHash::Modulo, AffinityHash::Rendezvous]),
    ) {
        let ranking = Ranking { affinity_seed: AffinitySeed::Head, affinity_hash, ..Ranking::default() };
        let mut core = pool(replicas, ranking);
        let turns = (1..=blocks.len()).map(|blocks_so_far| picked(&mut core, chain(&blocks[..blocks_so_far])));
        let seen: BTreeSet<String> = turns.collect();
        prop_assert_eq!(seen.len(), 1, "{:?}", seen);
    }

    #[test]
    fn the_pressed_are_skipped_unless_all_are(
        pressures in vec(prop_oneof![Just(0.8), 0.0..1.0_f64], 1..8),
        prompts in vec("[a-z]{1,12}", 1..12),
    ) {
        let (limit, affinity_hash) = (0.8_f32, AffinityHash::Rendezvous);
        let mut plain = Core::new(&Config::default());
        pressures.iter().enumerate().for_each(|(at, pressure)| join(&mut plain, at, Some(*pressure)));
        let mut skipping = Core::new(&Config::default());
        pressures.iter().enumerate().for_each(|(at, pressure)| join(&mut skipping, at, Some(*pressure)));
        plain.ranking.affinity_hash = affinity_hash;
        skipping.ranking = Ranking { affinity_skip_pressure_above: Some(limit), ..plain.ranking.clone() };
        let is_calm = |id: &String| {
            pressures[id.strip_prefix("replica-").unwrap().parse::<usize>().unwrap()] as f32 <= limit
        };
        let all_pressed = pressures.iter().all(|pressure| *pressure as f32 > limit);
        for prompt in &prompts {
            let (usual, chosen) = (picked(&mut plain, exact(prompt)), picked(&mut skipping, exact(prompt)));
            prop_assert!(all_pressed || is_calm(&chosen), "{chosen} of {pressures:?}");
            // Nobody moves who need not.
            prop_assert!(usual == chosen || (!all_pressed && !is_calm(&usual)), "{usual} {chosen} {pressures:?}");
        }
    }

    #[test]
    fn of_a_prefix_that_all_hold_the_least_pressed_holder_is_preferred(
        pressures in vec(0.0..0.99_f64, 2..8), tokens in 64..4_000_i32,
    ) {
        let mut core = Core::new(&Config::default());
        for (at, pressure) in pressures.iter().enumerate() {
            core.ingest(&update(&format!("replica-{at}"), vec![key("shared", tokens)], Some(*pressure)));
        }
        prop_assert_eq!(ask(&mut core, exact("shared")).reason_code, "AFFINITY_HINT");
        core.ranking.shared_prefix = SharedPrefix::LeastPressure;
        let response = ask(&mut core, exact("shared"));
        prop_assert_eq!(&response.reason_code, "PREFIX_MATCH");
        let least = pressures.iter().map(|pressure| *pressure as f32).fold(f32::MAX, f32::min);
        let first = &response.replica_scores[0];
        let at: usize = first.replica_id.strip_prefix("replica-").unwrap().parse().unwrap();
        prop_assert!((pressures[at] as f32 - least).abs() < 1e-5, "{first:?} of {pressures:?}");
        prop_assert_eq!(response.replica_scores.len(), pressures.len());
    }

    #[test]
    fn a_prefix_that_not_all_hold_goes_by_the_contract(
        holders in 1..6_usize, others in 1..4_usize, tokens in 1..400_i32, floor in 0.1..200.0_f64,
    ) {
        let policy = Policy { namespace: "t".into(), routing_floor_score: Some(floor), ..Policy::default() };
        let mut core = Core::new(&Config { policies: vec![policy], ..Config::default() });
        (0..holders).for_each(|at| core.ingest(&update(&format!("holder-{at}"), vec![key("some", tokens)], None)));
        (0..others).for_each(|at| join(&mut core, at, None));
        let contract = ask(&mut core, exact("some"));
        core.ranking.shared_prefix = SharedPrefix::LeastPressure;
        prop_assert_eq!(contract, ask(&mut core, exact("some")));
    }

    #[test]
    fn serving_compares_with_those_who_hold_nothing_yet_too(
        holders in 1..6_usize, empty in 0..4_usize, others in 0..3_usize,
    ) {
        let policy = Policy { namespace: "t".into(), routing_floor_score: Some(0.0), ..Policy::default() };
        let mut core = Core::new(&Config { policies: vec![policy], ..Config::default() });
        (0..holders).for_each(|at| core.ingest(&update(&format!("holder-{at}"), vec![key("some", 64)], None)));
        (0..empty).for_each(|at| core.ingest(&update(&format!("empty-{at}"), Vec::new(), Some(0.0))));
        (0..others).for_each(|at| join(&mut core, at, None));
        let score = |core: &mut Core| f64::from(ask(core, exact("some")).replica_scores[0].score);
        let expected = |total: usize| match total {
            1 => 64.0,
            total => 64.0 * (1.0 - holders as f64 / total as f64),
        };
        let by_contract = score(&mut core);
        prop_assert!((by_contract - expected(holders + others)).abs() < 1e-3, "{by_contract}");
        core.ranking.distinguishing_denominator = Denominator::Serving;
        let by_serving = score(&mut core);
        prop_assert!((by_serving - expected(holders + empty + others)).abs() < 1e-3, "{by_serving}");
    }
}

#[test]
fn the_whole_chain_moves_a_growing_conversation() {
    let mut core = pool(8, Ranking::default());
    let blocks: Vec<String> = (0..24).map(|turn| format!("turn {turn}")).collect();
    let seen: BTreeSet<String> = (1..=24).map(|turns| picked(&mut core, chain(&blocks[..turns]))).collect();
    assert!(seen.len() > 4, "{seen:?}");
}

#[test]
fn pressure_that_is_not_live_skips_nobody() {
    let mut core = pool(3, Ranking { affinity_skip_pressure_above: Some(0.5), ..Ranking::default() });
    let before: Vec<String> = (0..64).map(|at| picked(&mut core, exact(&format!("prompt {at}")))).collect();
    core.ingest(&update("replica-0", Vec::new(), Some(1.0)));
    let pressed: BTreeSet<String> = (0..64).map(|at| picked(&mut core, exact(&format!("prompt {at}")))).collect();
    assert!(!pressed.contains("replica-0") && before.iter().any(|id| id == "replica-0"), "{pressed:?}");
    core.advance(30 * 60 * 1_000);
    let after: Vec<String> = (0..64).map(|at| picked(&mut core, exact(&format!("prompt {at}")))).collect();
    assert_eq!(before, after);
}

#[test]
fn a_deep_run_that_is_saturated_leaves_the_shared_head_to_the_least_pressed() {
    let mut core = Core::new(&Config::default());
    let blocks = |names: &[&str]| Prefix {
        block_hashes: names.iter().map(|name| Bytes((*name).into())).collect(),
        block_token_counts: vec![64; names.len()],
        ..Prefix::default()
    };
    core.ingest(&update("deep", vec![blocks(&["b1", "b2", "b3"])], Some(1.0)));
    core.ingest(&update("busy", vec![blocks(&["b1"])], Some(0.5)));
    core.ingest(&update("idle", vec![blocks(&["b1"])], Some(0.0)));
    let names: Vec<String> = ["b1", "b2", "b3"].map(str::to_owned).to_vec();
    let request = || Request { block_token_counts: vec![64; 3], ..chain(&names) };
    assert_eq!(ask(&mut core, request()).reason_code, "AFFINITY_HINT");
    core.ranking.shared_prefix = SharedPrefix::LeastPressure;
    let response = ask(&mut core, request());
    assert_eq!(response.reason_code, "PREFIX_MATCH");
    assert_eq!(ids(&response), ["idle", "busy", "deep"]);
}

#[test]
fn a_derived_chain_satisfies_a_policy_that_requires_one_where_that_is_set() {
    let strategy = Some(PolicyStrategy { require_chain: Some(true), ..PolicyStrategy::default() });
    let policy = Policy { namespace: "t".into(), strategy, ..Policy::default() };
    let tokens = TokenIds((0..64).collect());
    let tokenizer = Tokenizer {
        kind: TokenizerKind::Fixed,
        tokens: tokens.clone(),
        delay_ms: 0,
        timeout_ms: None,
        saturated: false,
    };
    let mut core = Core::new(&Config { policies: vec![policy], tokenizer: Some(tokenizer), ..Config::default() });
    let held = ["d47a8f41c833328a", "bf15dffb16447f38", "a4dda066f3c1e1a0", "35f7c0d119848950"];
    let held = held.iter().map(|hex| Bytes(crate::cases::messages::unhex(hex).unwrap())).collect();
    let prefix = Prefix { block_hashes: held, block_token_counts: vec![16; 4], ..Prefix::default() };
    core.ingest(&update("a", vec![prefix, key("whole", 64)], None));

    let ids = Request { token_ids: tokens, ..asked() };
    let text = Request { prompt_text: "hello".into(), ..asked() };
    let both = Request { prefix_hash: Bytes("whole".into()), ..ids.clone() };
    let malformed = Request { block_token_counts: vec![16], ..ids.clone() };
    let requests = [ids, text, both, malformed, exact("whole"), asked()];
    let reasons = |core: &mut Core| requests.clone().map(|request| ask(core, request).reason_code);
    assert_eq!(reasons(&mut core), ["POLICY_REQUIRES_CHAIN"; 6]);
    core.ranking.require_chain = ChainOrigin::Derived;
    let refused = "POLICY_REQUIRES_CHAIN";
    assert_eq!(reasons(&mut core), ["PREFIX_MATCH", "PREFIX_MATCH", refused, refused, refused, refused]);
}
