//! Decisions from token ids to a ranked list, as the filter makes them: hash, look up, rank.
//!
//! The index is loaded as the leader loads it.

use std::collections::HashSet;

use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::flow::pager::Pager;
use warmroute::index::Index;
use warmroute::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StoredBlock, Tier,
};
use warmroute::request::{ChainBlock, LookupRequest, NoTokenizer, PromptInput, PromptSource, WireChain};
use warmroute::routing::decision::Decision;
use warmroute::routing::lookup::{Lookup, lookup_route};
use warmroute::routing::policy::{Policy, Ranking};
use warmroute::routing::reason::ReasonCode;

use crate::operations::mixed;
use crate::ours::{BLOCK_SIZE, START_MS};
use crate::workload::{PIECE_BLOCKS, Random};

/// Pieces of a request that is decided: 512 blocks.
const PIECES: usize = 16;
const PAGES: u32 = 256;
/// Ids are below this, as those of a large vocabulary are.
const VOCABULARY: usize = 128_256;
const SCOPE: ScopeSlot = ScopeSlot(1);

/// An index, and requests to decide.
pub struct Decisions {
    index: Index,
    policy: Policy,
    ranking: Ranking,
    now_ms: u64,
    /// Requests that a replica holds.
    hits: Vec<Vec<u32>>,
    /// Requests that come after those that the index has seen.
    next: Vec<Vec<u32>>,
    from: Origin,
    request: LookupRequest,
}

/// Where a request is from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The index has seen it: a replica holds all of it.
    Held,
    /// It comes after those that the index has seen.
    Next,
}

/// Applies observations as the leader does, under ascending numbers.
struct Loading {
    index: Index,
    pager: Pager,
    sequence: u64,
}

// === impl Decisions ===

impl Decisions {
    /// An index of `replicas` replicas that hold `pairs` blocks between them.
    pub fn new(workload: &[Vec<u32>], replicas: u32, pairs: usize) -> Decisions {
        let mut loading =
            Loading { index: Index::new(PAGES), pager: Pager::new(PAGES as u16, pairs as u64), sequence: 0 };
        loading.announce(replicas);
        let mut held = HashSet::new();
        let mut seen = 0;
        for (number, pieces) in workload.iter().enumerate() {
            if loading.index.pairs() >= pairs as u64 {
                break;
            }
            let replica = number as u32 % replicas;
            // A replica's holdings are closed under prefixes, and a piece is in one place only.
            let from = pieces.iter().take_while(|piece| held.contains(&(replica, **piece))).count();
            held.extend(pieces.iter().map(|piece| (replica, *piece)));
            loading.store(number as u64, replica, pieces, from * PIECE_BLOCKS);
            seen = number + 1;
        }
        let long = |requests: &[Vec<u32>]| -> Vec<Vec<u32>> {
            requests.iter().filter_map(|pieces| pieces.get(..PIECES).map(<[u32]>::to_vec)).collect()
        };
        Decisions {
            index: loading.index,
            policy: Policy::default(),
            ranking: Ranking::default(),
            now_ms: START_MS + seen as u64,
            hits: long(&workload[..seen]),
            next: long(&workload[seen..]),
            from: Origin::Next,
            request: LookupRequest {
                scope: scope(),
                prompt: PromptInput::default(),
                block_size: BlockSize::DEFAULT,
                slo_ttft_ms: None,
            },
        }
    }

    /// Pairs in the index.
    pub fn pairs(&self) -> u32 {
        self.index.pairs() as u32
    }

    /// Makes the request that is decided next. How many ids it has.
    pub fn prepare(&mut self, number: u32, from: Origin) -> u32 {
        let requests = match from {
            Origin::Held => &self.hits,
            Origin::Next => &self.next,
        };
        let token_ids = token_ids(&requests[number as usize * 31 % requests.len()]);
        let count = token_ids.len() as u32;
        self.from = from;
        self.request.prompt = PromptInput { source: PromptSource::TokenIds(token_ids), ..PromptInput::default() };
        count
    }

    /// The same of a request that a replica holds, with its hashes instead of its ids. How many hashes.
    pub fn prepare_explicit(&mut self, number: u32) -> u32 {
        self.prepare(number, Origin::Held);
        let PromptSource::TokenIds(token_ids) = &self.request.prompt.source else { return 0 };
        let hashes = prefix_hashes(token_ids, self.request.block_size, None);
        let blocks: Vec<ChainBlock> =
            hashes.map(|hash| ChainBlock { key: hash.into(), tokens: BLOCK_SIZE as i32 }).collect();
        let count = blocks.len() as u32;
        self.request.prompt = PromptInput { chain: WireChain::Chain(blocks), ..PromptInput::default() };
        count
    }

    /// Hashes the request that was prepared. The last block's prefix hash.
    pub fn hash(&self) -> u64 {
        let PromptSource::TokenIds(token_ids) = &self.request.prompt.source else { return 0 };
        prefix_hashes(token_ids, self.request.block_size, None).last().map_or(0, |hash| hash.0)
    }

    /// Decides the request that was prepared. A number that stands for the answer.
    pub fn decide(&self) -> u64 {
        let lookup = Lookup {
            index: &self.index,
            policy: &self.policy,
            ranking: &self.ranking,
            tokenizer: &NoTokenizer,
            now_ms: self.now_ms,
            is_late: &|| false,
        };
        let decision = lookup_route(&lookup, &self.request).decision;
        // Whoever holds all of it need not be the first: it may be under pressure.
        let longest = decision.ranked.iter().map(|ranked| ranked.matched_blocks).max();
        if self.from == Origin::Held {
            assert_eq!((decision.reason, longest), (ReasonCode::PrefixMatch, Some(PIECES * PIECE_BLOCKS)));
        }
        number_of(&decision)
    }
}

fn number_of(decision: &Decision) -> u64 {
    let reason = decision.reason.as_str().len() as u64 ^ (decision.ranked.len() as u64) << 8;
    decision.ranked.iter().fold(reason, |sum, ranked| {
        mixed(
            mixed(sum, u64::from(ranked.replica.0)),
            u64::from(ranked.matched_tokens) << 32 | u64::from(ranked.score.to_bits()),
        )
    })
}

fn scope() -> Scope {
    Scope {
        tenant_id: "default".into(),
        model_id: "llama-3.1-8b".into(),
        hash_scheme: "vllm".into(),
        adapter_id: String::new(),
    }
}

/// The ids of a prompt's pieces.
fn token_ids(pieces: &[u32]) -> Vec<u32> {
    let of_piece = |piece: &u32| {
        let mut random = Random(u64::from(*piece) << 16);
        std::iter::repeat_with(move || random.below(VOCABULARY) as u32).take(PIECE_BLOCKS * BLOCK_SIZE as usize)
    };
    pieces.iter().flat_map(of_piece).collect()
}

// === impl Loading ===

impl Loading {
    fn apply(&mut self, observation: Observation) {
        for record in self.pager.name_pages(&self.index, vec![observation], |_| false) {
            self.sequence += 1;
            self.index.apply(self.sequence, record);
        }
    }

    fn announce(&mut self, replicas: u32) {
        let scope = scope();
        let member = |replica| Member::new(&*scope.tenant_id, &*scope.model_id, format!("vllm-{replica}"));
        self.apply(Observation::Scope { slot: SCOPE, scope: scope.clone() });
        for number in 0..replicas {
            let replica = ReplicaSlot(number);
            let address = format!("10.0.{}.{}:8000", number / 256, number % 256);
            let pressure = (number % 16) as f32 / 16.0;
            let stats = ReplicaStats { pressure, hit_rate: 0.5, reported_ms: START_MS };
            self.apply(Observation::ReplicaUp { replica, member: member(number), address, data_parallel_rank: None });
            self.apply(Observation::Stats { replica, stats });
            self.apply(Observation::ReplicaComplete { replica });
        }
    }

    fn store(&mut self, number: u64, replica: u32, pieces: &[u32], from: usize) {
        let hashes: Vec<BlockKey> =
            prefix_hashes(&token_ids(pieces), BlockSize::DEFAULT, None).map(BlockKey::from).collect();
        let parent = from.checked_sub(1).map(|before| hashes[before].clone());
        let token_count = |at: usize| BLOCK_SIZE * (at + 1) as u32;
        let blocks = hashes.into_iter().enumerate().skip(from);
        let blocks: Vec<StoredBlock> =
            blocks.map(|(at, key)| StoredBlock { key, token_count: token_count(at) }).collect();
        if blocks.is_empty() {
            return;
        }
        let (last_seen_ms, count) = (START_MS + number, blocks.len() as u64);
        let before = self.index.pairs();
        self.apply(Observation::Stored(Stored {
            replica: ReplicaSlot(replica),
            scope: SCOPE,
            tier: Tier::T1,
            last_seen_ms,
            parent,
            chained: true,
            blocks,
            ..Stored::default()
        }));
        assert_eq!(self.index.pairs(), before + count);
    }
}
