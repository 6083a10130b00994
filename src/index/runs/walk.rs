//! The leading runs of a request's chain.
//!
//! The walk goes from run to run while any replica is still in. A replica that misses a block is out and does not come
//! back; what it has is measured by its oldest block and its coldest tier. Expired blocks do not count.

use std::ops::Range;

use crate::index::runs::Runs;
use crate::index::runs::chain::Chain;
use crate::index::runs::holders::Holders;
use crate::index::runs::key::KeyRef;
use crate::index::runs::run::Run;
use crate::index::runs::stretch::{HolderId, Stretch, count};
use crate::observation::{ReplicaSlot, ScopeSlot, Tier};

/// What a replica holds of a chain from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadingRun {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// Tokens of the run, as the request counts them; for an exact key, as the replica reported them.
    pub matched_tokens: i64,
    /// Blocks of the run; 1 for an exact key.
    pub blocks: usize,
    /// When the run's oldest block was last reported or re-asserted, Unix time in ms.
    pub last_seen_ms: u64,
    /// The run's coldest tier.
    pub tier: Tier,
}

/// What a holder has of some consecutive blocks, from the first of them on.
#[derive(Clone, Copy)]
struct Cover {
    blocks: usize,
    last_seen_ms: u64,
    tier: Tier,
}

// === impl Runs ===

impl Runs {
    /// Puts the leading runs of `chain` in `scope` into `out`, sorted by replica, made of blocks reported after `oldest_ms`
    /// by replicas that [count](crate::index::runs::Standing::counts).
    pub fn leading_runs(&self, scope: ScopeSlot, chain: &impl Chain, oldest_ms: u64, out: &mut Vec<LeadingRun>) {
        out.clear();
        let mut done = 0;
        // Until the end, `out` has holders' numbers for replicas, sorted, and no tokens.
        while let Some((run, at, common)) = self.meet(scope, chain, done) {
            let blocks = at..at + common;
            let going = if done == 0 {
                self.begin(run, blocks, oldest_ms, out)
            } else {
                go_on(&self.holders, &run.stretches, blocks, oldest_ms, done, out)
            };
            done += common;
            if !going {
                break;
            }
        }
        self.finish(chain, out);
    }

    /// The leading run of an exact key: its holders, with the token counts that they reported.
    pub fn exact_runs(&self, scope: ScopeSlot, key: KeyRef<'_>, oldest_ms: u64) -> Vec<LeadingRun> {
        let mut runs: Vec<LeadingRun> = self
            .holders(scope, key)
            .filter(|holder| holder.last_seen_ms > oldest_ms && self.standing(holder.replica).counts)
            .map(|holder| LeadingRun {
                replica: holder.replica,
                matched_tokens: holder.token_count.into(),
                blocks: 1,
                last_seen_ms: holder.last_seen_ms,
                tier: holder.tier,
            })
            .collect();
        runs.sort_unstable_by_key(|run| run.replica);
        runs
    }

    /// Sets delivered hits, as of log sequence `sequence`, of the first `blocks` blocks of `chain` at `replica`, where it holds
    /// them: `counted` gives them from the block's place in the chain and from what they are.
    pub fn count(
        &mut self,
        sequence: u64,
        (scope, chain): (ScopeSlot, &impl Chain),
        (replica, blocks): (ReplicaSlot, Range<usize>),
        counted: impl Fn(u32) -> u32,
    ) {
        let Some(holder) = self.holders.get(replica) else { return };
        let mut done = blocks.start;
        while done < blocks.end {
            let Some((number, at, common)) = self.meet_number(scope, chain, done) else {
                done += 1;
                continue;
            };
            let Some(run) = self.slab.get_mut(number) else { return };
            let until = at + common.min(blocks.end - done);
            count(&mut run.stretches, holder, at..until, (&self.pages, sequence), &counted);
            if let Some(journal) = &mut self.journal {
                journal.note(number, &run.stretches, holder, &(at..until));
            }
            self.slab.weigh(number);
            done += common;
        }
    }

    /// The run that has block `done` of the chain, its offset there, and for how many blocks they go together.
    #[inline]
    fn meet(&self, scope: ScopeSlot, chain: &impl Chain, done: usize) -> Option<(&Run, usize, usize)> {
        let (number, at, common) = self.meet_number(scope, chain, done)?;
        Some((self.slab.get(number)?, at, common))
    }

    #[inline]
    fn meet_number(&self, scope: ScopeSlot, chain: &impl Chain, done: usize) -> Option<(u32, usize, usize)> {
        let hash = chain.key(done)?.hash(scope);
        self.places.likely_first(hash).find_map(|place| {
            let run = self.slab.get(place.run).filter(|run| run.scope == scope)?;
            let common = run.common(place.at, chain, done);
            (common > 0).then_some((place.run, place.at, common))
        })
    }

    /// Everyone who holds the first block is in.
    fn begin(&self, run: &Run, blocks: Range<usize>, oldest_ms: u64, out: &mut Vec<LeadingRun>) -> bool {
        let mut going = false;
        for (number, stretch) in run.stretches.iter().enumerate().filter(|(_, stretch)| stretch.covers(blocks.start)) {
            let Some((_, reasserted_ms)) = self.holders.counting(stretch.holder) else { continue };
            let following = run.stretches.get(number..).unwrap_or_default();
            let Some(cover) = cover(following, (stretch.holder, reasserted_ms), &blocks, oldest_ms) else { continue };
            going |= cover.blocks == blocks.len();
            out.push(LeadingRun {
                replica: ReplicaSlot(stretch.holder.0),
                matched_tokens: 0,
                blocks: cover.blocks,
                last_seen_ms: cover.last_seen_ms,
                tier: cover.tier,
            });
        }
        going
    }

    /// Turns holders into replicas and counts tokens.
    fn finish(&self, chain: &impl Chain, out: &mut [LeadingRun]) {
        if !chain.all_alike() {
            out.sort_unstable_by_key(|run| run.blocks);
        }
        let (mut blocks, mut tokens) = (0, 0);
        for run in out.iter_mut() {
            let its_blocks = run.blocks;
            if chain.all_alike() {
                tokens = chain.tokens(0, its_blocks);
            } else {
                tokens += chain.tokens(blocks, its_blocks);
                blocks = its_blocks;
            }
            run.matched_tokens = tokens;
            // All of them had a replica when they were let in.
            if let Some(replica) = self.holders.replica(HolderId(run.replica.0)) {
                run.replica = replica;
            }
        }
        if !out.is_sorted_by_key(|run| run.replica) {
            out.sort_unstable_by_key(|run| run.replica);
        }
    }
}

/// Extends the runs that are as long as `done`. False if none can be extended any more.
fn go_on(
    holders: &Holders,
    stretches: &[Stretch],
    blocks: Range<usize>,
    oldest_ms: u64,
    done: usize,
    out: &mut [LeadingRun],
) -> bool {
    let mut going = false;
    let mut rest = stretches;
    for run in out.iter_mut().filter(|run| run.blocks == done) {
        let holder = HolderId(run.replica.0);
        let before = rest.iter().take_while(|stretch| stretch.holder < holder).count();
        rest = rest.get(before..).unwrap_or_default();
        let holder = (holder, holders.reasserted_ms(holder));
        let Some(cover) = cover(rest, holder, &blocks, oldest_ms) else { continue };
        going |= cover.blocks == blocks.len();
        run.blocks += cover.blocks;
        run.last_seen_ms = run.last_seen_ms.min(cover.last_seen_ms);
        run.tier = run.tier.max(cover.tier);
    }
    going
}

/// What a holder, whose stretches come first in `stretches`, has of `blocks` from the first of them on. Beside the holder is
/// when all that it has was known to be held.
#[inline]
fn cover(
    stretches: &[Stretch],
    (holder, reasserted_ms): (HolderId, u64),
    blocks: &Range<usize>,
    oldest_ms: u64,
) -> Option<Cover> {
    let mut next = blocks.start;
    let mut cover = Cover { blocks: 0, last_seen_ms: u64::MAX, tier: Tier::T1 };
    for stretch in stretches.iter().take_while(|stretch| stretch.holder == holder) {
        if stretch.until() <= next {
            continue;
        }
        let last_seen_ms = stretch.last_seen_ms().max(reasserted_ms);
        if next >= blocks.end || stretch.from() > next || last_seen_ms <= oldest_ms {
            break;
        }
        next = stretch.until().min(blocks.end);
        cover.last_seen_ms = cover.last_seen_ms.min(last_seen_ms);
        cover.tier = cover.tier.max(stretch.tier());
    }
    cover.blocks = next - blocks.start;
    (cover.blocks > 0).then_some(cover)
}
