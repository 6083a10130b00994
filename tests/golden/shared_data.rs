//! Reads `shared_data.json` and compares it with the library: the same bytes from the same values, and back.
//!
//! All VMs of a proxy read what one of them wrote, perhaps with another build of the module: the bytes must not change
//! without the format's number.

use std::collections::BTreeMap;

use serde::Deserialize;
use warmroute::index::Index;
use warmroute::index::log::{Credits, Head, Incarnation, ModelList, Page, PartStamp, Segment};
use warmroute::observation::{
    BlockKey, Counted, MODEL_PART_BYTES, Member, ModelDigest, ModelPart, ModelVersion, Observation, ReplicaCounts,
    ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StoredBlock, Tier,
};
use warmroute::routing::policy::{Eviction, Policy, Strategy};

const INCARNATION: Incarnation = Incarnation(0x1122_3344_5566_7788);
const NOW_MS: u64 = 1_700_000_000_000;

#[derive(Deserialize)]
struct File {
    /// Pieces, each with its name.
    values: BTreeMap<String, Vec<(String, String)>>,
}

/// Compares every value of the file; panics with the first that differs.
pub fn compare_all() {
    let file: File = serde_json::from_str(include_str!("shared_data.json")).unwrap();
    let bytes = |name: &str| -> Vec<u8> { file.values[name].iter().flat_map(|(_, piece)| unhex(piece)).collect() };
    assert_eq!(file.values.len(), 9);
    for (name, head) in [("head", head()), ("new head", new_head())] {
        assert_eq!(hex(&head.encode()), hex(&bytes(name)), "{name}");
        assert_eq!(Head::decode(&bytes(name)), Ok(head), "{name}");
    }
    let segment = Segment { incarnation: INCARNATION, term: 2, sequence: 532, records: every_kind() };
    assert_eq!(hex(&segment.encode()), hex(&bytes("segment")));
    assert_eq!(Segment::decode(&bytes("segment")), Ok(segment));
    for (name, page) in [("dictionary", dictionary()), ("page", page()), ("first page", first_page())] {
        assert_eq!(hex(&page.encode()), hex(&bytes(name)), "{name}");
        assert_eq!(Page::decode(&bytes(name)), Ok(page), "{name}");
    }
    assert_eq!(hex(&credits().encode()), hex(&bytes("credits")));
    assert_eq!(Credits::decode(&bytes("credits")), Ok(credits()));
    assert_eq!(hex(&model_part().encode()), hex(&bytes("model part")));
    assert_eq!(ModelPart::decode(&bytes("model part")), Ok(model_part()));
    let stamp = PartStamp { digest: version().digest, number: 2, bytes: 5 };
    assert_eq!(ModelPart::stamp(&bytes("model part")), Ok(stamp));
    assert_eq!(hex(&model_list().encode()), hex(&bytes("model list")));
    assert_eq!(ModelList::decode(&bytes("model list")), Ok(model_list()));
}

/// An index that was loaded from the pages of the file writes the same pages.
pub fn rewrite_pages() {
    let (names, page) = (dictionary(), page());
    let mut index = Index::new(1_024);
    index.load_dictionary(names.as_of, &names.records);
    index.load_page(300, page.as_of, &page.records);
    assert_eq!(index.dictionary_observations(), names.records);
    assert_eq!(index.page_observations(300), page.records);
}

fn head() -> Head {
    Head {
        incarnation: INCARNATION,
        term: 0x0102_0304_0506_0708,
        first: 21,
        last: 532,
        oldest_page: 20,
        pages: 1_025,
        ring: 512,
        hub_epoch: 0xA0A1_A2A3_A4A5_A6A7,
        hub_sequence: 9_000,
        heard_ms: NOW_MS + 123,
        beat: 77,
        next_replica: 65,
        next_scope: 7,
        leader_serves: true,
        complete: true,
    }
}

fn new_head() -> Head {
    Head::new(INCARNATION, 9, 2, 4)
}

/// A record of every kind, in the order of the file.
fn every_kind() -> Vec<Observation> {
    let replica = ReplicaSlot(40);
    let scope = ScopeSlot(3);
    let stats = ReplicaStats { pressure: 0.25, hit_rate: 0.5, reported_ms: NOW_MS };
    let chained = Stored {
        last_seen_ms: NOW_MS + 1,
        parent: Some(BlockKey::Hash64(7)),
        chained: true,
        page: 300,
        ..stored(40, 3, Tier::T1, &[(BlockKey::Hash64(1), 16), (BlockKey::Hash64(2), 32)])
    };
    let wide_keys = stored(40, 3, Tier::T2, &[(wide(), 200)]);
    let parent = BlockKey::from_bytes(&[0, 1, 2]).ok();
    let no_tier = Stored { parent, ..stored(40, 3, Tier::Unspecified, &[(BlockKey::Hash64(9), 48)]) };
    vec![
        Observation::Scope { slot: scope, scope: named("t", "vllm", "lora") },
        Observation::PublishedScope { slot: scope, published: ScopeSlot(12) },
        Observation::ReplicaUp {
            replica,
            member: Member::new("t", "m", "r-1"),
            address: "10.0.0.1:8000".into(),
            data_parallel_rank: None,
        },
        Observation::PublishedReplica { replica, published: ReplicaSlot(5) },
        rank(43, "r-3/dp3", "10.0.0.3:8000", 3),
        Observation::Stats { replica, stats },
        Observation::Stored(chained),
        Observation::Stored(wide_keys),
        Observation::Stored(no_tier),
        Observation::ReplicaComplete { replica },
        Observation::Reasserted { replica, at_ms: NOW_MS + 2 },
        Observation::Counted(counted(3, &[1, 2], &[(40, &[4, 300]), (41, &[0])])),
        Observation::Removed { replica, scope, keys: vec![BlockKey::Hash64(1), BlockKey::Hash64(2)] },
        Observation::Removed { replica, scope, keys: vec![wide()] },
        Observation::Cleared { replica: ReplicaSlot(41) },
        Observation::ReplicaGone { replica: ReplicaSlot(39) },
        Observation::ScopeGone { slot: ScopeSlot(2) },
        Observation::Policy { tenant_id: Some("t".into()), policy: policies()[0].clone() },
        Observation::Policy { tenant_id: None, policy: policies()[1].clone() },
        Observation::PolicyGone { tenant_id: Some("u".into()) },
        Observation::PolicyGone { tenant_id: None },
        Observation::Model { model_id: "m".into(), version: version() },
        Observation::ModelGone { model_id: "n".into() },
    ]
}

/// Two policies: each flag is set in one of them.
fn policies() -> [Policy; 2] {
    let strategy = |first| Strategy { enable_chain_matching: first, require_chain: !first, enable_tenant_hot: first };
    [
        Policy {
            eviction: Eviction::Lfu,
            eviction_ttl_ms: 90_000,
            minimum_prefix_tokens: 10,
            minimum_matched_tokens: 20,
            routing_floor_score: 1.5,
            lookup_timeout_ms: 30,
            strategy: strategy(true),
            affinity_routing: false,
        },
        Policy {
            eviction: Eviction::Lru,
            eviction_ttl_ms: 1,
            minimum_prefix_tokens: 0,
            minimum_matched_tokens: 0,
            routing_floor_score: 0.0,
            lookup_timeout_ms: 0,
            strategy: strategy(false),
            affinity_routing: true,
        },
    ]
}

fn dictionary() -> Page {
    let (replica, scope) = (ReplicaSlot(40), ScopeSlot(3));
    let (member, arriving) = (Member::new("t", "m", "r-1"), Member::new("u", "m", "r-2"));
    let stats = ReplicaStats { pressure: 1.0, hit_rate: 0.0, reported_ms: 6 };
    let strategy = Strategy { enable_chain_matching: true, require_chain: false, enable_tenant_hot: true };
    let policy = Policy { eviction_ttl_ms: 60_000, strategy, ..policies()[1].clone() };
    let records = vec![
        Observation::Scope { slot: scope, scope: named("t", "vllm", "") },
        Observation::PublishedScope { slot: scope, published: ScopeSlot(12) },
        Observation::Scope { slot: ScopeSlot(4), scope: named("u", "sglang", "") },
        Observation::ReplicaUp { replica, member, address: "[fd00::1]:8000".into(), data_parallel_rank: None },
        Observation::PublishedReplica { replica, published: ReplicaSlot(5) },
        Observation::Stats { replica, stats },
        Observation::Reasserted { replica, at_ms: 9 },
        Observation::ReplicaComplete { replica },
        Observation::ReplicaUp {
            replica: ReplicaSlot(41),
            member: arriving,
            address: String::new(),
            data_parallel_rank: None,
        },
        rank(44, "r-4/dp0", "10.0.0.4:8000", 0),
        Observation::Policy { tenant_id: Some("u".into()), policy },
        Observation::Model { model_id: "m".into(), version: version() },
        Observation::Model { model_id: "n".into(), version: one_byte() },
    ];
    Page { incarnation: INCARNATION, number: 0, as_of: 532, records }
}

fn page() -> Page {
    let [one, two, three] = [(1, 16), (2, 32), (3, 48)].map(|(key, tokens)| (BlockKey::Hash64(key), tokens));
    let wide_keys = [wide_bytes(), wide_bytes().into_iter().rev().collect()].map(|bytes| BlockKey::of_request(&bytes));
    let [first, second] = wide_keys;
    let records = vec![
        Stored {
            last_seen_ms: NOW_MS + 1,
            chained: true,
            access_count: Some(128),
            ..stored(40, 3, Tier::T1, &[one, two.clone(), three.clone()])
        },
        Stored {
            last_seen_ms: 8,
            parent: Some(BlockKey::Hash64(1)),
            chained: true,
            access_count: Some(0),
            ..stored(41, 3, Tier::T1, &[two, three])
        },
        Stored { last_seen_ms: 7, access_count: Some(1), ..stored(41, 4, Tier::T3, &[(first, 5), (second, 9)]) },
    ];
    let records = records.into_iter().map(|stored| Observation::Stored(Stored { page: 300, ..stored })).collect();
    Page { incarnation: INCARNATION, number: 301, as_of: 532, records }
}

fn first_page() -> Page {
    let block = stored(1, 1, Tier::T1, &[(BlockKey::Hash64(6), 16)]);
    let records = vec![Observation::Stored(Stored { last_seen_ms: 7, access_count: Some(0), ..block })];
    Page { incarnation: INCARNATION, number: 1, as_of: 8, records }
}

/// Of two whole parts and one of five bytes.
fn version() -> ModelVersion {
    let digest = u128::from_be_bytes(std::array::from_fn(|at| at as u8 + 1));
    ModelVersion { digest: ModelDigest(digest), length: 2 * MODEL_PART_BYTES as u32 + 5 }
}

fn one_byte() -> ModelVersion {
    ModelVersion { digest: ModelDigest(version().digest.0.swap_bytes()), length: 1 }
}

fn model_part() -> ModelPart {
    ModelPart { digest: version().digest, number: 2, contents: (0..version().part_bytes(2) as u8).collect() }
}

fn model_list() -> ModelList {
    ModelList(vec![version(), one_byte()])
}

fn credits() -> Credits {
    let of_wide = Counted { keys: vec![wide()], ..counted(4, &[], &[(41, &[1])]) };
    Credits { incarnation: INCARNATION, hits: vec![counted(3, &[1, 0x0203], &[(40, &[7, 7]), (41, &[7])]), of_wide] }
}

fn named(tenant_id: &str, hash_scheme: &str, adapter_id: &str) -> Scope {
    Scope {
        tenant_id: tenant_id.into(),
        model_id: "m".into(),
        hash_scheme: hash_scheme.into(),
        adapter_id: adapter_id.into(),
    }
}

/// Last seen at 5.
fn rank(number: u32, replica_id: &str, address: &str, rank: u32) -> Observation {
    let (replica, member) = (ReplicaSlot(number), Member::new("t", "m", replica_id));
    Observation::ReplicaUp { replica, member, address: address.into(), data_parallel_rank: Some(rank) }
}

fn stored(replica: u32, scope: u32, tier: Tier, blocks: &[(BlockKey, u32)]) -> Stored {
    let blocks = blocks.iter().cloned().map(|(key, token_count)| StoredBlock { key, token_count }).collect();
    let (replica, scope) = (ReplicaSlot(replica), ScopeSlot(scope));
    Stored { replica, scope, tier, last_seen_ms: 5, blocks, ..Stored::default() }
}

fn counted(scope: u32, keys: &[u64], replicas: &[(u32, &[u32])]) -> Counted {
    let replicas = replicas.iter();
    let replicas =
        replicas.map(|(replica, counts)| ReplicaCounts { replica: ReplicaSlot(*replica), counts: counts.to_vec() });
    let keys = keys.iter().copied().map(BlockKey::Hash64).collect();
    Counted { scope: ScopeSlot(scope), keys, replicas: replicas.collect() }
}

fn wide_bytes() -> Vec<u8> {
    (0..32).collect()
}

fn wide() -> BlockKey {
    BlockKey::of_request(&wide_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}
