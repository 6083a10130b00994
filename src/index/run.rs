//! The leading runs: which replicas hold how much of a request's chain from its start.
//!
//! The walk stops where no candidate is left. A replica that misses a block is out and does not come back; a run's
//! freshness is that of its oldest block, its tier that of its coldest. Expired blocks do not count.

use crate::index::Index;
use crate::index::shard::Holder;
use crate::observation::{BlockKey, ReplicaSlot, ScopeSlot, Tier};
use crate::request::RequestChain;

/// What a replica holds of a chain from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingRun {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// Tokens of the run, as the request counts them; for an exact key, as the replica reported them.
    pub matched_tokens: i64,
    /// Blocks of the run; 1 for an exact key.
    pub blocks: usize,
    /// When the run's oldest block was last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// The run's coldest tier.
    pub tier: Tier,
}

// === impl Index ===

impl Index {
    /// The leading runs of `chain` in `scope` made of blocks reported after `oldest_ms`, sorted by replica.
    pub fn leading_runs(&self, scope: ScopeSlot, chain: &RequestChain, oldest_ms: u64) -> Vec<LeadingRun> {
        match chain {
            RequestChain::Exact { key } => {
                let holders = self.counting(scope, key, oldest_ms);
                holders.map(|holder| LeadingRun::new(holder, holder.token_count.into())).collect()
            }
            RequestChain::Chain(blocks) => {
                let mut blocks = blocks.iter();
                let Some(first) = blocks.next() else { return Vec::new() };
                let mut going: Vec<LeadingRun> = self
                    .counting(scope, &first.key, oldest_ms)
                    .map(|holder| LeadingRun::new(holder, first.tokens.into()))
                    .collect();
                let mut ended = Vec::new();
                for block in blocks {
                    if going.is_empty() {
                        break;
                    }
                    going = extend(going, self.holders(scope, &block.key), block.tokens.into(), oldest_ms, &mut ended);
                }
                ended.append(&mut going);
                ended.sort_unstable_by_key(|run| run.replica);
                ended
            }
        }
    }

    fn counting(&self, scope: ScopeSlot, key: &BlockKey, oldest_ms: u64) -> impl Iterator<Item = &Holder> {
        self.holders(scope, key).iter().filter(move |holder| {
            holder.last_seen_ms > oldest_ms && self.dictionary.complete_replica(holder.replica).is_some()
        })
    }
}

// === impl LeadingRun ===

impl LeadingRun {
    fn new(holder: &Holder, matched_tokens: i64) -> LeadingRun {
        let Holder { replica, last_seen_ms, tier, .. } = *holder;
        LeadingRun { replica, matched_tokens, blocks: 1, last_seen_ms, tier }
    }

    fn extended_by(self, holder: &Holder, tokens: i64) -> LeadingRun {
        LeadingRun {
            replica: self.replica,
            matched_tokens: self.matched_tokens.saturating_add(tokens),
            blocks: self.blocks + 1,
            last_seen_ms: self.last_seen_ms.min(holder.last_seen_ms),
            tier: self.tier.max(holder.tier),
        }
    }
}

/// Extends the runs whose replica holds the next block; the others have ended. Both lists are sorted by replica.
fn extend(
    going: Vec<LeadingRun>,
    holders: &[Holder],
    tokens: i64,
    oldest_ms: u64,
    ended: &mut Vec<LeadingRun>,
) -> Vec<LeadingRun> {
    let mut still = Vec::with_capacity(going.len());
    let mut holders = holders.iter().peekable();
    for run in going {
        while holders.next_if(|holder| holder.replica < run.replica).is_some() {}
        match holders.peek() {
            Some(holder) if holder.replica == run.replica && holder.last_seen_ms > oldest_ms => {
                still.push(run.extended_by(holder, tokens));
            }
            _ => ended.push(run),
        }
    }
    still
}
