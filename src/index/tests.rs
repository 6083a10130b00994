use super::*;
use crate::observation::{Member, Stored, Tier};
use crate::request::{ChainBlock, RequestChain};

const SCOPE: ScopeSlot = ScopeSlot(1);
const NEVER: u64 = 0;

fn scope() -> Scope {
    Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() }
}

fn up(replica: u32, replica_id: &str) -> [Observation; 2] {
    let replica = ReplicaSlot(replica);
    [
        Observation::ReplicaUp {
            replica,
            member: Member::new("t", "m", replica_id),
            address: "10.0.0.1:80".into(),
            data_parallel_rank: None,
        },
        Observation::ReplicaComplete { replica },
    ]
}

fn stored(replica: u32, keys: &[u64], last_seen_ms: u64) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(replica),
        scope: SCOPE,
        tier: Tier::T1,
        last_seen_ms,
        blocks: keys.iter().map(|key| StoredBlock { key: BlockKey::Hash64(*key), token_count: 16 }).collect(),
        ..Stored::default()
    })
}

fn removed(replica: u32, keys: &[u64]) -> Observation {
    Observation::Removed {
        replica: ReplicaSlot(replica),
        scope: SCOPE,
        keys: keys.iter().map(|key| BlockKey::Hash64(*key)).collect(),
    }
}

fn index(observations: impl IntoIterator<Item = Observation>) -> Index {
    let mut index = Index::new(4);
    index.apply(1, Observation::Scope { slot: SCOPE, scope: scope() });
    for (at, observation) in observations.into_iter().enumerate() {
        index.apply(2 + at as u64, observation);
    }
    index
}

fn chain(keys: &[u64]) -> RequestChain {
    RequestChain::Chain(keys.iter().map(|key| ChainBlock { key: BlockKey::Hash64(*key), tokens: 16 }).collect())
}

fn runs(index: &Index, keys: &[u64], oldest_ms: u64) -> Vec<(u32, i64)> {
    index
        .leading_runs(SCOPE, &chain(keys), oldest_ms)
        .into_iter()
        .map(|run| (run.replica.0, run.matched_tokens))
        .collect()
}

#[test]
fn what_ended_generations_hold_is_not_certain_until_it_is_dropped() {
    let said = [up(1, "a"), up(2, "b")].concat();
    let mut index = index(said.into_iter().chain([stored(1, &[1, 2, 3], 5), stored(2, &[3, 4], 5)]));
    let counts = |index: &Index| (index.runs().keys_at_least(SCOPE), index.keys_of(SCOPE));
    assert_eq!(counts(&index), (4, 4));
    assert!(index.drop_ended(1), "nothing has ended");
    index.apply(20, Observation::ReplicaGone { replica: ReplicaSlot(1) });
    // Block 3 is still held: that it is one of those that are left is not known yet.
    assert_eq!(counts(&index), (1, 4));
    while !index.drop_ended(1) {}
    assert_eq!((counts(&index), index.pairs()), ((2, 2), 2));
    // A sweep that is under way is not disturbed, and drops as well.
    index.apply(21, Observation::ReplicaGone { replica: ReplicaSlot(2) });
    assert_eq!(counts(&index), (0, 2));
    index.sweep(|_, _, _| false);
    assert_eq!(counts(&index), (0, 0));
    assert!(index.drop_ended(1));
}

#[test]
fn a_run_ends_at_the_first_block_missing() {
    let index =
        index([up(1, "a"), up(2, "b")].concat().into_iter().chain([stored(1, &[1, 2, 3], 5), stored(2, &[1, 3], 5)]));
    assert_eq!(runs(&index, &[1, 2, 3, 4], NEVER), [(1, 48), (2, 16)]);
    assert_eq!(runs(&index, &[2, 3], NEVER), [(1, 32)]);
    assert_eq!(runs(&index, &[9], NEVER), []);
}

#[test]
fn a_run_is_as_fresh_as_its_oldest_block_and_as_cold_as_its_coldest() {
    let mut index = index(up(1, "a").into_iter().chain([stored(1, &[1], 9), stored(1, &[2], 5)]));
    index.apply(
        9,
        Observation::Stored(Stored {
            replica: ReplicaSlot(1),
            scope: SCOPE,
            tier: Tier::T2,
            last_seen_ms: 7,
            blocks: vec![StoredBlock { key: BlockKey::Hash64(3), token_count: 48 }],
            ..Stored::default()
        }),
    );
    assert_eq!(
        index.leading_runs(SCOPE, &chain(&[1, 2, 3]), NEVER),
        [LeadingRun { replica: ReplicaSlot(1), matched_tokens: 48, blocks: 3, last_seen_ms: 5, tier: Tier::T2 }]
    );
    assert_eq!(runs(&index, &[1, 2, 3], 5), [(1, 16)], "an expired block ends the run");
}

#[test]
fn removed_and_cleared_blocks_are_not_credited() {
    let both = [up(1, "a"), up(2, "b")].concat().into_iter().chain([stored(1, &[1, 2], 5), stored(2, &[1, 2], 5)]);
    let mut index = index(both);
    index.apply(20, removed(1, &[2]));
    assert_eq!(runs(&index, &[1, 2], NEVER), [(1, 16), (2, 32)]);
    index.apply(21, Observation::Cleared { replica: ReplicaSlot(2) });
    assert_eq!(runs(&index, &[1, 2], NEVER), [(1, 16)]);
    assert_eq!(index.pairs(), 1);
    assert_eq!(index.serving(&scope()).count(), 1);
}

#[test]
fn a_generation_that_arrives_does_not_count_and_one_that_ended_no_longer_does() {
    let mut index = index(up(1, "a").into_iter().chain([stored(1, &[1], 5)]));
    let [arrives, complete] = up(2, "a");
    index.apply(20, arrives);
    index.apply(21, stored(2, &[1, 2], 6));
    assert_eq!(runs(&index, &[1, 2], NEVER), [(1, 16)]);
    index.apply(22, complete);
    assert_eq!(runs(&index, &[1, 2], NEVER), [(2, 32)]);
    assert_eq!([1, 2].map(|replica| index.pairs_of(ReplicaSlot(replica))), [0, 2], "ended, at once");
    assert_eq!(index.keys_of(SCOPE), 2);
    index.sweep(|_, _, _| false);
    assert_eq!([1, 2].map(|replica| index.pairs_of(ReplicaSlot(replica))), [0, 2]);
    assert_eq!(index.pairs(), 2);
}

#[test]
fn the_sweep_drops_what_has_expired() {
    let mut index = index(up(1, "a").into_iter().chain([stored(1, &[1], 5), stored(1, &[2], 50)]));
    index.sweep(|_, _, last_seen_ms| last_seen_ms < 10);
    assert_eq!(index.pairs(), 1);
    assert_eq!(runs(&index, &[2], NEVER), [(1, 16)]);
}

#[test]
fn pages_rebuild_the_index_and_replaying_what_they_cover_changes_nothing() {
    let facts: Vec<Observation> = [up(1, "a"), up(2, "b")]
        .concat()
        .into_iter()
        .chain([stored(1, &[1, 2, 3], 5), stored(2, &[1, 2], 6), removed(1, &[3])])
        .collect();
    let original = index(facts.clone());
    let mut rebuilt = Index::new(4);
    rebuilt.load_dictionary(6, &original.dictionary_observations());
    for page in 0..4 {
        rebuilt.load_page(page, 6, &original.page_observations(page));
    }
    // The record under sequence 4 stored block 3, which was removed again under 6: a page as of 6 covers both.
    rebuilt.apply(4, stored(1, &[1, 2, 3], 5));
    assert_eq!(runs(&rebuilt, &[1, 2, 3], NEVER), [(1, 32), (2, 32)]);
    assert_eq!(rebuilt.pairs(), original.pairs());
    assert_eq!(rebuilt.oldest_as_of(), 6);
    rebuilt.apply(7, stored(1, &[3], 9));
    assert_eq!(runs(&rebuilt, &[1, 2, 3], NEVER), [(1, 48), (2, 32)]);
}

#[test]
fn keys_of_different_widths_are_different_keys() {
    let wide = BlockKey::from_bytes(&[7; 32]).unwrap();
    let mut index = index(up(1, "a"));
    index.apply(
        9,
        Observation::Stored(Stored {
            replica: ReplicaSlot(1),
            scope: SCOPE,
            tier: Tier::T1,
            last_seen_ms: 5,
            blocks: vec![StoredBlock { key: wide.clone(), token_count: 640 }],
            ..Stored::default()
        }),
    );
    let exact = RequestChain::Exact { key: wide };
    let found = index.leading_runs(SCOPE, &exact, NEVER);
    assert_eq!(found.iter().map(|run| run.matched_tokens).collect::<Vec<_>>(), [640]);
    assert_eq!(runs(&index, &[0x0707_0707_0707_0707], NEVER), []);
}

#[test]
fn names_are_known_while_a_generation_that_counts_holds_something_under_them() {
    let mut index = index(up(1, "a").into_iter().take(1).chain([stored(1, &[1, 2], 5)]));
    let known = |index: &Index| (!index.is_empty(), index.knows_tenant("t"), index.knows_model("t", "m"));
    assert_eq!(known(&index), (false, false, false), "it is still arriving");
    index.apply(20, Observation::ReplicaComplete { replica: ReplicaSlot(1) });
    assert_eq!(known(&index), (true, true, true));
    assert_eq!(
        (index.knows_tenant("m"), index.knows_model("t", "t"), index.knows_model("u", "m")),
        (false, false, false)
    );
    assert_eq!(index.known_tenants().collect::<Vec<_>>(), ["t"]);
    assert_eq!(index.known_models("t").collect::<Vec<_>>(), ["m"]);
    assert_eq!(index.known_schemes("t", "m").collect::<Vec<_>>(), ["vllm"]);
    assert_eq!(index.known_models("u").count() + index.known_schemes("t", "x").count(), 0);
    index.apply(21, Observation::ReplicaGone { replica: ReplicaSlot(1) });
    assert_eq!(known(&index), (false, false, false), "gone counts no more, swept or not");
    assert_eq!((index.pairs(), index.keys_of(SCOPE)), (0, 2), "the blocks go with the sweep");
    index.sweep(|_, _, _| false);
    assert_eq!((index.pairs(), index.keys_of(SCOPE)), (0, 0));
}

#[test]
fn a_replica_serves_while_it_holds_something_in_any_adapter() {
    let mut index = index(up(1, "a"));
    let lora = Scope { adapter_id: "lora".into(), ..scope() };
    index.apply(20, Observation::Scope { slot: ScopeSlot(2), scope: lora.clone() });
    let in_lora = |observation| match observation {
        Observation::Stored(Stored { replica, tier, last_seen_ms, blocks, .. }) => Observation::Stored(Stored {
            replica,
            scope: ScopeSlot(2),
            tier,
            last_seen_ms,
            blocks,
            ..Stored::default()
        }),
        other => other,
    };
    index.apply(21, stored(1, &[1], 5));
    index.apply(22, in_lora(stored(1, &[1], 5)));
    let serving = |index: &Index| [scope(), lora.clone()].map(|scope| index.serving(&scope).count());
    assert_eq!(serving(&index), [1, 1]);
    index.apply(23, removed(1, &[1]));
    assert_eq!(serving(&index), [1, 1]);
    assert_eq!(index.scopes_of(ReplicaSlot(1)), [ScopeSlot(2)]);
    index.apply(24, Observation::Cleared { replica: ReplicaSlot(1) });
    assert_eq!(serving(&index), [0, 0]);
    assert_eq!(index.members(&scope()).map(|(slot, _)| slot).collect::<Vec<_>>(), [ReplicaSlot(1)], "it is still up");
}

#[test]
fn blocks_of_a_scope_that_is_named_later_count_from_then_on() {
    let mut index = Index::new(4);
    for (at, observation) in up(1, "a").into_iter().chain([stored(1, &[1], 5)]).enumerate() {
        index.apply(1 + at as u64, observation);
    }
    assert!(index.is_empty());
    index.apply(9, Observation::Scope { slot: SCOPE, scope: scope() });
    assert!(index.knows_model("t", "m"));
    let renamed = Scope { model_id: "n".into(), ..scope() };
    index.apply(10, Observation::Scope { slot: SCOPE, scope: renamed.clone() });
    assert_eq!(index.known_models("t").collect::<Vec<_>>(), ["n"], "a number stands for one scope");
    assert_eq!(index.dictionary().scope_slot(&scope()), None);
    index.apply(11, removed(1, &[1]));
    assert!(index.is_empty());
}

#[test]
fn hits_outlive_a_new_report_and_go_with_the_block() {
    let mut index = index(up(1, "a").into_iter().chain([stored(1, &[1], 5)]));
    let count = |index: &Index| index.holder(SCOPE, &BlockKey::Hash64(1), ReplicaSlot(1)).map(|held| held.access_count);
    index.count_hits(SCOPE, &BlockKey::Hash64(1), ReplicaSlot(1), |hits| hits + 3);
    index.apply(20, stored(1, &[1], 9));
    assert_eq!(count(&index), Some(3));
    index.apply(21, removed(1, &[1]));
    assert_eq!(count(&index), None);
    index.apply(22, stored(1, &[1], 9));
    assert_eq!(count(&index), Some(0));
}

#[test]
fn a_pair_costs_24_bytes_besides_its_block() {
    assert_eq!(size_of::<Holder>(), 24);
}

#[test]
fn counted_hits_are_absolute_and_go_into_pages_and_out() {
    let mut leader = index([up(1, "a").to_vec(), vec![stored(1, &[1, 2], 1_000)]].concat());
    let keys: Vec<BlockKey> = [1, 2, 3].map(BlockKey::Hash64).to_vec();
    let hits = [(ReplicaSlot(1), 3), (ReplicaSlot(2), 1)];
    let counted = leader.counted(SCOPE, &keys, &hits, (2, Hits::plain())).unwrap();
    assert_eq!(counted.replicas, [ReplicaCounts { replica: ReplicaSlot(1), counts: vec![2, 2] }]);
    for _ in 0..2 {
        leader.apply(9, Observation::Counted(counted.clone()));
    }
    leader.apply(10, stored(1, &[1, 2], 2_000));
    let counts = |index: &Index| {
        keys.iter().map(|key| Some(index.holder(SCOPE, key, ReplicaSlot(1))?.access_count)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&leader), [Some(2), Some(2), None], "kept by a new report");
    let mut follower = Index::new(4);
    follower.load_dictionary(10, &leader.dictionary_observations());
    (0..leader.pages()).for_each(|page| follower.load_page(page, 10, &leader.page_observations(page)));
    follower.apply(9, Observation::Counted(Counted { replicas: vec![], ..counted.clone() }));
    assert_eq!(counts(&follower), counts(&leader));
    assert_eq!(leader.counted(SCOPE, &keys[2..], &hits, (1, Hits::plain())), None);
}

#[test]
fn a_loose_block_joins_no_run_that_got_the_number_of_one_that_is_gone() {
    let mut index = index(up(1, "a").into_iter().chain(up(2, "b")));
    index.apply(2, stored(1, &[1], 10));
    index.apply(3, removed(1, &[1]));
    // A prompt of another replica, in a run of its own with the number that the single block's had.
    let prompt: Vec<u64> = (100..110).collect();
    index.apply(4, stored(2, &prompt, 10));
    index.apply(5, stored(1, &[2], 10));
    index.apply(6, stored(1, &[3], 10));
    let run_of = |key: u64| -> Vec<u32> {
        let has = |run: &u32| (0..20).any(|at| index.runs().run_key(*run, at) == Some(BlockKey::Hash64(key)));
        (1..index.runs().run_numbers()).filter(has).collect()
    };
    assert_eq!(run_of(100), [1], "the number is given again");
    assert_eq!(run_of(2), [2]);
    assert_eq!(run_of(3), [2], "single blocks stand together");
}
