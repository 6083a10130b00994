//! Long chains against the index, in pieces: between any two the state is free for others.
//!
//! In: a resolved prompt. Out: what [`Foreknown`] says of it, the same as a walk in one go would find, unless the index
//! changes meanwhile: then each piece is as of its own moment.

use super::deadline::Deadline;
use crate::index::LeadingRun;
use crate::native::hub::clock::hub_ms;
use crate::native::hub::state::HubState;
use crate::observation::Scope;
use crate::request::RequestChain;
use crate::routing::affinity::prompt_hash;
use crate::routing::decision::{Foreknown, RankedReplica};
use crate::routing::policy::{Policy, Ranking};

/// How many blocks are looked up without a pause.
const PIECE_BLOCKS: usize = 1_024;

/// What can be known of a chain before the decision; `None` if the time is up meanwhile.
pub fn foreknown(
    state: &HubState,
    scope: &Scope,
    chain: &RequestChain,
    (policy, ranking): (&Policy, &Ranking),
    deadline: Deadline,
) -> Option<Foreknown> {
    let oldest_ms = hub_ms().saturating_sub(policy.eviction_ttl_ms);
    let mut runs: Option<Runs> = None;
    for piece in pieces(chain) {
        if deadline.has_passed() {
            return None;
        }
        let found = piece_runs(state, scope, &piece, oldest_ms);
        let runs = match &mut runs {
            Some(runs) => {
                runs.extend(&found, piece.len());
                runs
            }
            None => runs.insert(Runs::new(found, piece.len())),
        };
        if runs.going.is_empty() {
            break;
        }
    }
    let prompt_hash = policy.affinity_routing.then(|| prompt_hash(chain, ranking.affinity_seed));
    Some(Foreknown { runs: runs.map(Runs::into_sorted), prompt_hash })
}

/// Counts hits as [`Publisher::credit`](crate::publisher::Publisher::credit) does.
pub fn credit(state: &HubState, scope: &Scope, chain: &RequestChain, delivered: &[RankedReplica]) {
    for (at, piece) in pieces(chain).enumerate() {
        let before = at * PIECE_BLOCKS;
        let reaching = delivered.iter().filter(|ranked| ranked.matched_blocks > before);
        let shares: Vec<RankedReplica> = reaching
            .map(|ranked| RankedReplica { matched_blocks: ranked.matched_blocks - before, ..ranked.clone() })
            .collect();
        if shares.is_empty() {
            return;
        }
        state.change(|publisher| publisher.credit(scope, &piece, &shares));
    }
}

fn pieces(chain: &RequestChain) -> impl Iterator<Item = RequestChain> {
    let all = chain.len();
    (0..all).step_by(PIECE_BLOCKS).map(move |from| chain.piece(from..all.min(from + PIECE_BLOCKS)))
}

fn piece_runs(state: &HubState, scope: &Scope, piece: &RequestChain, oldest_ms: u64) -> Vec<LeadingRun> {
    state.read(|publisher| {
        let index = publisher.index();
        let slot = index.dictionary().scope_slot(scope);
        slot.map(|slot| index.leading_runs(slot, piece, oldest_ms)).unwrap_or_default()
    })
}

/// The runs so far.
struct Runs {
    /// Those that reach to the end of the last piece, sorted by replica.
    going: Vec<LeadingRun>,
    ended: Vec<LeadingRun>,
    /// Blocks so far.
    covered: usize,
}

// === impl Runs ===

impl Runs {
    fn new(found: Vec<LeadingRun>, blocks: usize) -> Runs {
        let (going, ended) = found.into_iter().partition(|run| run.blocks == blocks);
        Runs { going, ended, covered: blocks }
    }

    /// Appends the runs of the next piece, which has so many blocks. Both are sorted by replica.
    fn extend(&mut self, found: &[LeadingRun], blocks: usize) {
        self.covered += blocks;
        for run in std::mem::take(&mut self.going) {
            let next = found.binary_search_by_key(&run.replica, |next| next.replica).ok().and_then(|at| found.get(at));
            let longer = next.map_or(run, |next| LeadingRun {
                replica: run.replica,
                matched_tokens: run.matched_tokens.saturating_add(next.matched_tokens),
                blocks: run.blocks + next.blocks,
                last_seen_ms: run.last_seen_ms.min(next.last_seen_ms),
                tier: run.tier.max(next.tier),
            });
            if longer.blocks == self.covered { self.going.push(longer) } else { self.ended.push(longer) }
        }
    }

    fn into_sorted(mut self) -> Vec<LeadingRun> {
        self.ended.append(&mut self.going);
        self.ended.sort_unstable_by_key(|run| run.replica);
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::BlockKey;
    use crate::publisher::message::{CacheStateUpdate, PrefixEntry};
    use crate::publisher::{Publisher, PublisherLimits};
    use crate::request::ChainBlock;

    fn report(replica_id: &str, blocks: u64, timestamp_us: i64) -> CacheStateUpdate {
        let entry = PrefixEntry {
            block_hashes: (0..blocks).map(|at| at.to_be_bytes().to_vec()).collect(),
            block_token_counts: vec![16; blocks as usize],
            ..PrefixEntry::default()
        };
        CacheStateUpdate {
            replica_id: replica_id.into(),
            model_id: "m".into(),
            tenant_id: "t".into(),
            hash_scheme: "s".into(),
            timestamp_us,
            prefixes: vec![entry],
            ..CacheStateUpdate::default()
        }
    }

    #[test]
    fn runs_in_pieces_are_the_runs_in_one_go() {
        let now_ms = hub_ms();
        let at_us = |ago_ms: u64| (now_ms - ago_ms) as i64 * 1_000;
        let mut publisher = Publisher::new(PublisherLimits::default());
        let piece = PIECE_BLOCKS as u64;
        for (place, blocks) in
            [1, 7, piece - 1, piece, piece + 1, 2 * piece, 3 * piece - 5, 4 * piece].iter().enumerate()
        {
            publisher.report(&report(&format!("r{place}"), *blocks, at_us(place as u64)), now_ms);
        }
        let mut slow_tail = report("r7", piece / 2, at_us(500));
        slow_tail.prefixes[0].tier = 2;
        publisher.report(&slow_tail, now_ms);
        let state = HubState::new(1, publisher, 1 << 20);
        let scope =
            Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "s".into(), adapter_id: String::new() };
        for length in [1, piece, piece + 1, 3 * piece, 5 * piece] {
            let blocks: Vec<ChainBlock> =
                (0..length).map(|key| ChainBlock { key: BlockKey::Hash64(key), tokens: 16 }).collect();
            let chain = RequestChain::Chain(blocks);
            let settings = (&Policy::default(), &Ranking::default());
            let found = foreknown(&state, &scope, &chain, settings, Deadline(None)).unwrap();
            let oldest_ms = now_ms.saturating_sub(Policy::default().eviction_ttl_ms);
            let whole = state.read(|publisher| {
                let slot = publisher.index().dictionary().scope_slot(&scope).unwrap();
                publisher.index().leading_runs(slot, &chain, oldest_ms)
            });
            assert_eq!(whole.len(), 8);
            assert_eq!(found.runs, Some(whole), "{length}");
        }
    }
}
