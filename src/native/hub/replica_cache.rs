//! What one replica holds, folded from its engine's events.
//!
//! In: [`KvEvent`]s in the order the engine made them. Out: the [`Change`]s in terms of prefix hashes that they amount
//! to, and a [`Tally`] of what was and was not credited. No I/O, no clock.
//!
//! A block is credited when its whole prefix is known: its event has no parent, or a parent that is itself credited. An
//! unknown parent is never taken for the start of a prompt; such blocks are skipped and counted, until a replay brings
//! the parent or a clear makes them moot. Errors are on the side of too little: a block the replica holds may be
//! missing here, a block it does not hold is not here.

use std::collections::HashMap;

use super::capacity::Places;
use crate::fingerprint::{BlockSize, PrefixHash, prefix_hashes};
use crate::native::engine::creditable::{Run, check_place, creditable_run};
use crate::native::engine::{BlockRemoved, BlockStored, EngineKey, KvEvent, SkipReason};
use crate::observation::ScopeSlot;

/// The blocks of one replica.
#[derive(Debug, Default)]
pub struct ReplicaCache {
    /// Tokens in a full block: as configured, else the largest seen, since partial blocks are smaller.
    block_size: Option<BlockSize>,
    /// Whether `block_size` was configured.
    block_size_is_fixed: bool,
    blocks: HashMap<EngineKey, BlockRef>,
    held: HashMap<(ScopeSlot, PrefixHash), HeldBlock>,
}

/// A block that the replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block before it; `None` at the start of a prompt.
    pub parent: Option<PrefixHash>,
    /// Tokens from the start of the prompt to the end of this block.
    pub token_count: u32,
    /// When it was last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// Engine keys that stand for it.
    keys: u32,
}

/// What an event changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These blocks are held, or were reported again.
    Stored(Chained),
    /// These blocks are not held any more.
    Removed(ScopeSlot, Vec<PrefixHash>),
    /// Nothing is held any more.
    Cleared,
}

/// Consecutive blocks of one prompt. Each hash is made from the one before it, the first from the parent: whatever is
/// credited here is, so that a block's hash stands for its whole prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chained {
    /// What the hashes are relative to.
    pub scope: ScopeSlot,
    /// The block before the first one, held or not; `None` at the start of a prompt.
    pub parent: Option<PrefixHash>,
    /// Hash and tokens up to its end of each block, at least one.
    pub blocks: Vec<(PrefixHash, u32)>,
}

/// What became of the blocks in some events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Blocks credited, or credited again.
    pub stored: u64,
    /// Blocks no longer credited.
    pub removed: u64,
    /// Times the cache was cleared.
    pub cleared: u64,
    /// Blocks (or batches, or events, by the reason) that were not credited.
    pub skipped: HashMap<SkipReason, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockRef {
    scope: ScopeSlot,
    hash: PrefixHash,
    token_count: u32,
}

// === impl ReplicaCache ===

impl ReplicaCache {
    /// An empty cache; with `block_size` given, blocks of any other size are skipped.
    pub fn new(block_size: Option<BlockSize>) -> ReplicaCache {
        ReplicaCache { block_size, block_size_is_fixed: block_size.is_some(), ..ReplicaCache::default() }
    }

    /// Blocks held, counting two engine keys with the same prefix once.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Tokens in a full block, as far as it is known.
    pub fn block_size(&self) -> Option<BlockSize> {
        self.block_size
    }

    /// The blocks held, in no order.
    pub fn held(&self) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.held.iter().map(|((scope, hash), block)| (*scope, *hash, *block))
    }

    /// Applies one event reported at `now_ms`, Unix time in ms.
    ///
    /// `scope_of` gives the scope of an adapter, or `None` if there can be no further scope.
    pub fn apply(
        &mut self,
        event: &KvEvent,
        now_ms: u64,
        scope_of: &mut dyn FnMut(&str) -> Option<ScopeSlot>,
        changes: &mut Vec<Change>,
        tally: &mut Tally,
    ) {
        match event {
            KvEvent::BlockStored(event) => self.stored(event, now_ms, scope_of, changes, tally),
            KvEvent::BlockRemoved(event) => self.removed(event, changes, tally),
            KvEvent::AllBlocksCleared => self.clear(changes, tally),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, changes: &mut Vec<Change>, tally: &mut Tally) {
        tally.cleared += 1;
        if !self.is_empty() {
            changes.push(Change::Cleared);
        }
        self.blocks = HashMap::new();
        self.held = HashMap::new();
        if !self.block_size_is_fixed {
            self.block_size = None;
        }
    }

    /// Forgets these blocks, whatever engine keys stand for them.
    pub fn forget(&mut self, places: &Places) {
        self.held.retain(|place, _| !places.contains(place));
        self.blocks.retain(|_, block| !places.contains(&(block.scope, block.hash)));
    }

    fn stored(
        &mut self,
        event: &BlockStored,
        now_ms: u64,
        scope_of: &mut dyn FnMut(&str) -> Option<ScopeSlot>,
        changes: &mut Vec<Change>,
        tally: &mut Tally,
    ) {
        let all = event.block_hashes.len();
        let credited = creditable_run(event).and_then(|run| {
            self.check_block_size(run.block_size)?;
            let scope = scope_of(run.adapter_id).ok_or(SkipReason::TooManyScopes)?;
            let parent = self.parent(event, scope)?;
            self.credit(run, scope, parent, now_ms, changes, tally)
        });
        match credited {
            Ok(credited) => tally.skip(SkipReason::ExtraKeys, all - credited),
            Err(reason) => tally.skip(reason, all.max(1)),
        }
    }

    /// Partial blocks are smaller than full ones, and nothing else tells them apart.
    fn check_block_size(&mut self, block_size: BlockSize) -> Result<(), SkipReason> {
        match self.block_size {
            Some(expected) if block_size == expected => Ok(()),
            Some(expected) if self.block_size_is_fixed || block_size.tokens() < expected.tokens() => {
                Err(SkipReason::BlockSize)
            }
            _ => {
                self.block_size = Some(block_size);
                Ok(())
            }
        }
    }

    fn parent(&self, event: &BlockStored, scope: ScopeSlot) -> Result<Option<BlockRef>, SkipReason> {
        let Some(key) = &event.parent_block_hash else { return Ok(None) };
        match self.blocks.get(key) {
            Some(parent) if parent.scope == scope => Ok(Some(*parent)),
            _ => Err(SkipReason::UnknownParent),
        }
    }

    fn credit(
        &mut self,
        run: Run<'_>,
        scope: ScopeSlot,
        parent: Option<BlockRef>,
        now_ms: u64,
        changes: &mut Vec<Change>,
        tally: &mut Tally,
    ) -> Result<usize, SkipReason> {
        let start = parent.map_or(0, |parent| parent.token_count);
        let end = u32::try_from(run.token_ids.len()).ok().and_then(|tokens| start.checked_add(tokens));
        end.ok_or(SkipReason::TokenCount)?;
        let step = u32::try_from(run.block_size.tokens()).unwrap_or(u32::MAX);

        let mut previous = parent.map(|parent| parent.hash);
        let mut token_count = start;
        let mut stored = Chained { scope, parent: previous, blocks: Vec::with_capacity(run.keys.len()) };
        for (key, hash) in run.keys.iter().zip(prefix_hashes(run.token_ids, run.block_size, previous)) {
            token_count += step;
            let block = BlockRef { scope, hash, token_count };
            match self.blocks.insert(key.clone(), block) {
                Some(earlier) if (earlier.scope, earlier.hash) == (scope, hash) => self.refresh(block, now_ms),
                earlier => {
                    self.hold(block, previous, now_ms);
                    if let Some(earlier) = earlier {
                        tally.skip(SkipReason::KeyReused, 1);
                        let rest = Chained { scope, parent: previous, blocks: Vec::new() };
                        push_stored(changes, std::mem::replace(&mut stored, rest));
                        if self.release(earlier) {
                            tally.removed += 1;
                            changes.push(Change::Removed(earlier.scope, vec![earlier.hash]));
                        }
                    }
                }
            }
            stored.blocks.push((hash, token_count));
            previous = Some(hash);
        }
        tally.stored += run.keys.len() as u64;
        push_stored(changes, stored);
        Ok(run.keys.len())
    }

    fn removed(&mut self, event: &BlockRemoved, changes: &mut Vec<Change>, tally: &mut Tally) {
        if let Err(reason) = check_place(&event.place) {
            tally.skip(reason, event.block_hashes.len());
            return;
        }
        for key in &event.block_hashes {
            let Some(block) = self.blocks.remove(key) else {
                tally.skip(SkipReason::UnknownBlock, 1);
                continue;
            };
            if !self.release(block) {
                continue;
            }
            tally.removed += 1;
            match changes.last_mut() {
                Some(Change::Removed(scope, hashes)) if *scope == block.scope => hashes.push(block.hash),
                _ => changes.push(Change::Removed(block.scope, vec![block.hash])),
            }
        }
    }

    fn hold(&mut self, block: BlockRef, parent: Option<PrefixHash>, now_ms: u64) {
        let held = self.held.entry((block.scope, block.hash)).or_insert(HeldBlock {
            parent,
            token_count: block.token_count,
            last_seen_ms: now_ms,
            keys: 0,
        });
        held.keys += 1;
        held.last_seen_ms = held.last_seen_ms.max(now_ms);
    }

    fn refresh(&mut self, block: BlockRef, now_ms: u64) {
        if let Some(held) = self.held.get_mut(&(block.scope, block.hash)) {
            held.last_seen_ms = held.last_seen_ms.max(now_ms);
        }
    }

    /// Takes one engine key from a block; true if it was the last.
    fn release(&mut self, block: BlockRef) -> bool {
        let place = (block.scope, block.hash);
        match self.held.get_mut(&place) {
            Some(held) if held.keys > 1 => {
                held.keys -= 1;
                false
            }
            Some(_) => self.held.remove(&place).is_some(),
            None => false,
        }
    }
}

fn push_stored(changes: &mut Vec<Change>, stored: Chained) {
    if !stored.blocks.is_empty() {
        changes.push(Change::Stored(stored));
    }
}

// === impl Tally ===

impl Tally {
    /// Counts `count` blocks, events or batches as skipped.
    pub fn skip(&mut self, reason: SkipReason, count: usize) {
        if count > 0 {
            *self.skipped.entry(reason).or_default() += count as u64;
        }
    }
}

#[cfg(test)]
#[path = "replica_cache_tests.rs"]
mod tests;
