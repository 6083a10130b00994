use super::*;
use crate::fingerprint::{BlockSize, prefix_hashes};
use crate::observation::{BlockKey, Member, Observation, ReplicaStats, ScopeSlot, Stored, StoredBlock};
use crate::request::{ChainBlock, LookupRequest, NoTokenizer, PromptInput, PromptSource, WireChain};
use crate::routing::lookup::{Lookup, lookup_route};

const NOW_MS: u64 = 1_700_000_000_000;
const BLOCK: u32 = 64;

fn scope() -> Scope {
    Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() }
}

/// Replicas `r1`, `r2`, … that hold this many blocks of one chain, reported this long ago.
fn index(held: &[(u64, u64)]) -> Index {
    let mut index = Index::new(4);
    index.apply(1, Observation::Scope { slot: ScopeSlot(1), scope: scope() });
    for (at, (blocks, age_ms)) in held.iter().enumerate() {
        let replica = ReplicaSlot(at as u32 + 1);
        let replica_id = format!("r{}", replica.0);
        let member = Member::new("t", "m", replica_id);
        index.apply(
            1,
            Observation::ReplicaUp {
                replica,
                member,
                address: format!("10.0.0.{}:80", replica.0),
                data_parallel_rank: None,
            },
        );
        index.apply(1, Observation::ReplicaComplete { replica });
        index.apply(
            1,
            Observation::Stored(Stored {
                replica,
                scope: ScopeSlot(1),
                tier: Tier::T1,
                last_seen_ms: NOW_MS - age_ms,
                blocks: (1..=*blocks)
                    .map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: key as u32 * BLOCK })
                    .collect(),
                ..Stored::default()
            }),
        );
    }
    index
}

fn request(blocks: u64) -> LookupRequest {
    let blocks = (1..=blocks).map(|key| ChainBlock { key: BlockKey::Hash64(key), tokens: BLOCK as i32 }).collect();
    LookupRequest {
        scope: scope(),
        prompt: PromptInput { chain: WireChain::Chain(blocks), ..PromptInput::default() },
        block_size: BlockSize::DEFAULT,
        slo_ttft_ms: None,
    }
}

/// Without affinity, so that what it would stand in for shows.
fn without_affinity() -> Policy {
    Policy { affinity_routing: false, ..Policy::default() }
}

fn decision(index: &Index, request: &LookupRequest, policy: &Policy) -> Decision {
    let ranking = Ranking::default();
    let lookup =
        Lookup { index, policy, ranking: &ranking, tokenizer: &NoTokenizer, now_ms: NOW_MS, is_late: &|| false };
    lookup_route(&lookup, request).decision
}

fn scores(decision: &Decision) -> Vec<(&str, u32, f32)> {
    decision.ranked.iter().map(|r| (&*r.replica_id, r.matched_tokens, (r.score * 100.0).round() / 100.0)).collect()
}

#[test]
fn a_longer_run_that_fewer_replicas_share_wins() {
    let index = index(&[(4, 0), (2, 0), (1, 0)]);
    let decision = decision(&index, &request(4), &without_affinity());
    assert_eq!(decision.reason, ReasonCode::PrefixMatch);
    assert_eq!(scores(&decision), [("r1", 256, 170.67), ("r2", 128, 42.67), ("r3", 64, 0.0)]);
}

#[test]
fn age_takes_its_share() {
    let index = index(&[(3, 60_000), (2, 120_000), (1, 240_000)]);
    let decision = decision(&index, &request(5), &without_affinity());
    assert_eq!(scores(&decision), [("r1", 192, 123.73), ("r2", 128, 39.82), ("r3", 64, 0.0)]);
}

#[test]
fn what_every_replica_holds_is_no_hint() {
    let index = index(&[(4, 0), (4, 0)]);
    assert_eq!(decision(&index, &request(4), &without_affinity()), Decision::no_hint(Detail::BelowRoutingFloor));
}

#[test]
fn both_floors_let_equality_pass() {
    let index = index(&[(1, 0)]);
    let at = Policy { minimum_matched_tokens: 64, routing_floor_score: 64.0, ..without_affinity() };
    assert_eq!(decision(&index, &request(1), &at).reason, ReasonCode::PrefixMatch);
    let tokens = Policy { minimum_matched_tokens: 65, ..at.clone() };
    assert_eq!(decision(&index, &request(1), &tokens), Decision::no_hint(Detail::BelowMatchedTokens));
    let score = Policy { routing_floor_score: 64.1, ..at };
    assert_eq!(decision(&index, &request(1), &score), Decision::no_hint(Detail::BelowRoutingFloor));
}

#[test]
fn what_the_first_of_several_prompts_matched_says_so() {
    let ids: Vec<u32> = (0..128).collect();
    let mut index = index(&[(0, 0)]);
    let hashes = prefix_hashes(&ids, BlockSize::DEFAULT, None).zip(1..);
    let blocks = hashes.map(|(hash, number)| StoredBlock { key: BlockKey::Hash64(hash.0), token_count: number * 16 });
    let blocks = blocks.collect();
    let (replica, scope) = (ReplicaSlot(1), ScopeSlot(1));
    index.apply(1, Observation::Stored(Stored { replica, scope, last_seen_ms: NOW_MS, blocks, ..Stored::default() }));
    let with = |of_several, ids: &[u32]| {
        let prompt = PromptInput { source: PromptSource::TokenIds(ids.to_vec()), of_several, ..PromptInput::default() };
        LookupRequest { prompt, ..request(1) }
    };
    for (of_several, expected) in [(true, Detail::FirstOfSeveral), (false, Detail::None)] {
        let found = decision(&index, &with(of_several, &ids), &without_affinity());
        assert_eq!((found.reason, found.detail), (ReasonCode::PrefixMatch, expected));
    }
    let missed = decision(&index, &with(true, &ids[1..]), &without_affinity());
    assert_eq!(missed, Decision::no_hint(Detail::Miss));
    let explicit = LookupRequest { prompt: PromptInput { of_several: true, ..request(4).prompt }, ..request(4) };
    let found = decision(&self::index(&[(4, 0), (0, 0)]), &explicit, &without_affinity());
    assert_eq!(
        (found.reason, found.detail),
        (ReasonCode::PrefixMatch, Detail::None),
        "explicit keys are nobody's first"
    );
}

#[test]
fn a_short_prompt_is_not_looked_up() {
    let index = index(&[(4, 0)]);
    let policy = Policy { minimum_prefix_tokens: 257, ..without_affinity() };
    assert_eq!(decision(&index, &request(4), &policy), Decision::no_hint(Detail::BelowMinimumPrefix));
}

#[test]
fn load_and_a_tight_target_change_the_order() {
    let mut index = index(&[(4, 0), (3, 0), (0, 0), (1, 0)]);
    let stats = ReplicaStats { pressure: 0.75, hit_rate: 0.0, reported_ms: NOW_MS };
    index.apply(1, Observation::Stats { replica: ReplicaSlot(1), stats });
    let tight = LookupRequest { slo_ttft_ms: Some(100), ..request(4) };
    let decision = decision(&index, &tight, &without_affinity());
    // Three replicas hold something: 256 x 0.25 x 2 x 2/3, and 192 x 1 x 2 x 1/3.
    assert_eq!(scores(&decision), [("r2", 192, 128.0), ("r1", 256, 85.33), ("r4", 64, 0.0)]);
}

#[test]
fn a_miss_and_a_cold_index_are_told_apart() {
    let index = index(&[(4, 0)]);
    let mut other = request(4);
    other.prompt.chain = WireChain::Chain(vec![ChainBlock { key: BlockKey::Hash64(9), tokens: 64 }]);
    assert_eq!(decision(&index, &other, &without_affinity()), Decision::no_hint(Detail::Miss));
    assert_eq!(decision(&Index::new(4), &other, &without_affinity()), Decision::no_hint(Detail::Cold));
}
