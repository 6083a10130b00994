//! Replicas that come and go, and what they hold.

use std::ops::Range;

use warmroute::flow::pager::Pager;
use warmroute::index::Index;
use warmroute::observation::{BlockKey, Member, Observation, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock};
use warmroute::request::{ChainBlock, RequestChain};

pub const TENANTS: u32 = 3;
/// Blocks that all replicas hold, and that each holds alone.
pub const SHARED: u64 = PROMPTS * BLOCKS;
pub const ALONE: u64 = PROMPTS * BLOCKS;
/// Blocks that a replica holds.
pub const PER_REPLICA: u64 = SHARED + ALONE;
const PROMPTS: u64 = 10;
const BLOCKS: u64 = 100;
const TOKENS: u32 = 16;
const PAGES: u16 = 64;
const MOST_PAIRS: u64 = 200_000;

/// An index, and whoever leads it.
pub struct Pool {
    pub index: Index,
    pager: Pager,
    sequence: u64,
}

// === impl Pool ===

impl Pool {
    pub fn new() -> Pool {
        Pool { index: Index::new(PAGES.into()), pager: Pager::new(PAGES, MOST_PAIRS), sequence: 0 }
    }

    pub fn join(&mut self, tenant: u32, replicas: Range<u32>) {
        if self.index.dictionary().scope(scope_slot(tenant)).is_none() {
            self.commit(vec![scope(tenant)]);
        }
        for replica in replicas {
            for record in joins(tenant, replica) {
                self.commit(vec![record]);
            }
        }
    }

    pub fn leave(&mut self, tenant: u32, replicas: Range<u32>) {
        for replica in replicas {
            self.commit(vec![Observation::ReplicaGone { replica: slot(tenant, replica) }]);
        }
    }

    pub fn scope_gone(&mut self, tenant: u32) {
        self.commit(vec![Observation::ScopeGone { slot: scope_slot(tenant) }]);
    }

    /// Each of these records is a commit.
    pub fn tell(&mut self, said: Vec<Observation>) {
        said.into_iter().for_each(|record| self.commit(vec![record]));
    }

    fn commit(&mut self, records: Vec<Observation>) {
        self.sequence += 1;
        for record in self.pager.name_pages(&self.index, records, |_| false) {
            self.index.apply(self.sequence, record);
        }
    }
}

pub fn scope_slot(tenant: u32) -> ScopeSlot {
    ScopeSlot(1 + tenant)
}

pub fn slot(tenant: u32, replica: u32) -> ReplicaSlot {
    ReplicaSlot(1 + tenant * 1_000 + replica)
}

pub fn scope(tenant: u32) -> Observation {
    let (tenant_id, model_id) = (format!("t{tenant}"), "m".to_owned());
    let scope = Scope { tenant_id, model_id, hash_scheme: "vllm".into(), adapter_id: String::new() };
    Observation::Scope { slot: scope_slot(tenant), scope }
}

/// What is said of a replica that comes.
pub fn joins(tenant: u32, replica: u32) -> Vec<Observation> {
    let replica_slot = slot(tenant, replica);
    let member = Member::new(format!("t{tenant}"), "m", format!("r-{replica}"));
    let mut said = vec![Observation::ReplicaUp {
        replica: replica_slot,
        member,
        address: String::new(),
        data_parallel_rank: None,
    }];
    for prompt in 0..PROMPTS {
        said.push(stored(tenant, replica, shared(prompt), None));
        // Half of what it holds alone is the end of a shared prompt.
        let parent = prompt.is_multiple_of(2).then(|| BlockKey::Hash64(shared(prompt).end - 1));
        said.push(stored(tenant, replica, alone(replica, prompt), parent));
    }
    said.push(Observation::ReplicaComplete { replica: replica_slot });
    said
}

/// The keys of a prompt; mixed, they are as hashes are.
fn shared(prompt: u64) -> Range<u64> {
    let first = (prompt + 1) << 32;
    first..first + BLOCKS
}

fn alone(replica: u32, prompt: u64) -> Range<u64> {
    let first = (u64::from(replica) * PROMPTS + prompt + 1_000) << 32;
    first..first + BLOCKS
}

fn stored(tenant: u32, replica: u32, keys: Range<u64>, parent: Option<BlockKey>) -> Observation {
    let before = if parent.is_some() { BLOCKS as u32 } else { 0 };
    let blocks = (before + 1..).zip(keys);
    let blocks = blocks.map(|(place, key)| StoredBlock { key: BlockKey::Hash64(key), token_count: place * TOKENS });
    Observation::Stored(Stored {
        replica: slot(tenant, replica),
        scope: scope_slot(tenant),
        last_seen_ms: 1_700_000_000_000 + u64::from(replica),
        parent,
        chained: true,
        blocks: blocks.collect(),
        ..Stored::default()
    })
}

/// Who matches a shared prompt and what follows it at this replica, and what it holds alone from its beginning: replicas
/// with tokens.
pub fn looked_up(index: &Index, tenant: u32, replica: u32) -> Vec<Vec<(u32, i64)>> {
    let chain = |keys: Vec<u64>| {
        let block = |key| ChainBlock { key: BlockKey::Hash64(key), tokens: TOKENS as i32 };
        RequestChain::Chain(keys.into_iter().map(block).collect())
    };
    let asked = (0..PROMPTS).map(|prompt| match prompt % 2 {
        0 => chain(shared(prompt).chain(alone(replica, prompt)).collect()),
        _ => chain(alone(replica, prompt).collect()),
    });
    let first = slot(tenant, 0).0;
    let runs = asked.map(|chain| {
        let runs = index.leading_runs(scope_slot(tenant), &chain, 0);
        runs.into_iter().map(|run| (run.replica.0 - first, run.matched_tokens)).collect()
    });
    runs.collect()
}

/// What [`looked_up`] is to give where `all` hold what they hold.
pub fn expected(replica: u32, all: Range<u32>) -> Vec<Vec<(u32, i64)>> {
    let prompt = BLOCKS as i64 * i64::from(TOKENS);
    let answer = |number: u64| match number % 2 {
        0 => all.clone().map(|holder| (holder, if holder == replica { 2 * prompt } else { prompt })).collect(),
        _ => vec![(replica, prompt)],
    };
    (0..PROMPTS).map(answer).collect()
}
