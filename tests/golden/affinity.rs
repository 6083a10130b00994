//! Reads `affinity.json` and compares it with what a lookup picks; shared by the native and the wasm32 test.
//!
//! The file comes from `generate.py`, which shares no code with the library.

use serde::Deserialize;
use warmroute::fingerprint::BlockSize;
use warmroute::index::Index;
use warmroute::observation::{BlockKey, Member, Observation, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock, Tier};
use warmroute::request::{ChainBlock, LookupRequest, NoTokenizer, PromptInput, WireChain};
use warmroute::routing::lookup::{Lookup, lookup_route};
use warmroute::routing::policy::{AffinityHash, AffinitySeed, Policy, Ranking};
use warmroute::routing::reason::ReasonCode;

const NOW_MS: u64 = 1_700_000_000_000;

#[derive(Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    keys: Keys,
    replica_ids: Vec<String>,
    modulo_chain: String,
    modulo_head: String,
    rendezvous_chain: String,
    rendezvous_head: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Keys {
    Exact(String),
    Chain(Vec<String>),
}

/// Compares every pick of every vector; panics with the name of the first that differs.
pub fn compare_all() {
    let file: File = serde_json::from_str(include_str!("affinity.json")).unwrap();
    assert!(file.vectors.len() > 10, "the file holds {} vectors", file.vectors.len());
    for vector in &file.vectors {
        let index = index(&vector.replica_ids);
        for (hash, seed, expected) in [
            (AffinityHash::Modulo, AffinitySeed::Chain, &vector.modulo_chain),
            (AffinityHash::Modulo, AffinitySeed::Head, &vector.modulo_head),
            (AffinityHash::Rendezvous, AffinitySeed::Chain, &vector.rendezvous_chain),
            (AffinityHash::Rendezvous, AffinitySeed::Head, &vector.rendezvous_head),
        ] {
            let picked = pick(&index, &vector.keys, hash, seed);
            assert_eq!(&picked, expected, "{}: {hash:?}, {seed:?}", vector.name);
        }
    }
}

/// The replicas, each with a block that no prompt has.
fn index(replica_ids: &[String]) -> Index {
    let mut index = Index::new(4);
    index.apply(1, Observation::Scope { slot: ScopeSlot(1), scope: scope() });
    for (at, replica_id) in replica_ids.iter().enumerate() {
        let replica = ReplicaSlot(at as u32 + 1);
        let blocks = vec![StoredBlock { key: BlockKey::Hash64(0), token_count: 16 }];
        let member = Member::new("t", "m", replica_id);
        index.apply(1, Observation::ReplicaUp { replica, member, address: String::new(), data_parallel_rank: None });
        index.apply(1, Observation::ReplicaComplete { replica });
        let (scope, tier, last_seen_ms) = (ScopeSlot(1), Tier::T1, NOW_MS);
        index.apply(1, Observation::Stored(Stored { replica, scope, tier, last_seen_ms, blocks, ..Stored::default() }));
    }
    index
}

fn pick(index: &Index, keys: &Keys, affinity_hash: AffinityHash, affinity_seed: AffinitySeed) -> String {
    let prompt = match keys {
        Keys::Exact(key) => {
            PromptInput { prefix_hash: BlockKey::from_bytes(key.as_bytes()).ok(), ..PromptInput::default() }
        }
        Keys::Chain(keys) => {
            let key = |key: &String| BlockKey::from_bytes(key.as_bytes()).unwrap();
            let blocks = keys.iter().map(|bytes| ChainBlock { key: key(bytes), tokens: 16 }).collect();
            PromptInput { chain: WireChain::Chain(blocks), ..PromptInput::default() }
        }
    };
    let request = LookupRequest { scope: scope(), prompt, block_size: BlockSize::DEFAULT, slo_ttft_ms: None };
    let (policy, ranking) = (Policy::default(), Ranking { affinity_hash, affinity_seed, ..Ranking::default() });
    let (policy, ranking) = (&policy, &ranking);
    let lookup = Lookup { index, policy, ranking, tokenizer: &NoTokenizer, now_ms: NOW_MS, is_late: &|| false };
    let decision = lookup_route(&lookup, &request).decision;
    assert_eq!((decision.reason, decision.ranked.len()), (ReasonCode::AffinityHint, 1));
    decision.ranked[0].replica_id.to_string()
}

fn scope() -> Scope {
    Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() }
}
