//! What one replica holds, folded from its engine's events.
//!
//! In: [`KvEvent`]s in the order the engine made them. Out: the [`Change`]s in terms of prefix hashes that they amount
//! to, and a [`Tally`] of what was and was not credited. No I/O, no clock.
//!
//! A block is credited when its whole prefix is known: its event starts a prompt, or has a parent that is itself credited.
//! An unknown parent is never taken for the start of a prompt; such blocks are skipped and counted, until a replay brings
//! the parent or a clear makes them moot. Errors are on the side of too little: a block the replica holds may be
//! missing here, a block it does not hold is not here.
//!
//! A block can be in several storages at once; it is held in the nearest, and gone when it has left all of them.
//!
//! Where an engine's keys stand for a block alone ([`Chaining`]), a key names a block only while no more than one prefix
//! can have it. One that may have two is ambiguous until the engine's cache is known to be empty: nothing is credited
//! under it or after it. For that, every block since the cache was empty must have been seen.

use std::collections::{HashMap, HashSet};

use super::capacity::Places;
use super::replica_blocks::{Blocks, Entry, Forgotten, Left};
use crate::fingerprint::{BlockSize, PrefixHash, prefix_hashes};
use crate::native::engine::chaining::{Before, Chaining};
use crate::native::engine::creditable::{AdapterNames, Run, check_group, check_kind, creditable_run};
use crate::native::engine::medium::{Media, Medium};
use crate::native::engine::{BlockRemoved, BlockStored, EngineKey, KvEvent, Missed, Place, SkipReason};
use crate::observation::{ScopeSlot, Tier};

pub use super::replica_blocks::HeldBlock;

/// The most ambiguous keys that are kept; beyond them no block is taken to follow such a key.
const MAX_AMBIGUOUS: usize = 1 << 18;

/// The blocks of one replica.
#[derive(Debug, Default)]
pub struct ReplicaCache {
    /// Tokens in a full block: as configured, else the largest seen, since partial blocks are smaller.
    block_size: Option<BlockSize>,
    /// Whether `block_size` was configured.
    block_size_is_fixed: bool,
    adapter_names: AdapterNames,
    blocks: Blocks,
    /// Keys that may stand for more than one prefix.
    ambiguous: HashSet<EngineKey>,
    /// Whether everything was seen since the engine's cache was empty.
    since_empty: bool,
    groups: Groups,
}

/// What is known of a hybrid cache's groups.
#[derive(Clone, Copy, Debug, Default)]
struct Groups {
    /// There is more than one.
    are_several: bool,
    /// There is more than one, and the first was not said to have attention that reads the whole prefix.
    are_unnamed: bool,
    /// Blocks of such a first group were credited when it seemed to be the only one.
    credited_unnamed: bool,
}

/// What an event changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These blocks are held, or were reported again.
    Stored(Chained),
    /// These blocks are held in another tier than before, in no order.
    Moved(Vec<(ScopeSlot, PrefixHash, HeldBlock)>),
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
    /// Where all of them are held.
    pub tier: Tier,
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
    /// Keys of which it was not certain what they stand for, given up as there were too many.
    pub doubts_given_up: u64,
    /// Blocks (or batches, or events, by the reason) that were not credited.
    pub skipped: HashMap<SkipReason, u64>,
}

/// What an event is applied with, and where what comes of it goes.
struct Effects<'a> {
    now_ms: u64,
    scope_of: &'a mut dyn FnMut(&str) -> Option<ScopeSlot>,
    changes: &'a mut Vec<Change>,
    tally: &'a mut Tally,
}

// === impl ReplicaCache ===

impl ReplicaCache {
    /// An empty cache; with `block_size` given, blocks of any other size are skipped.
    pub fn new(block_size: Option<BlockSize>) -> ReplicaCache {
        ReplicaCache { block_size, block_size_is_fixed: block_size.is_some(), ..ReplicaCache::default() }
    }

    /// With names for adapters that come as numbers.
    pub fn with_adapter_names(self, adapter_names: AdapterNames) -> ReplicaCache {
        ReplicaCache { adapter_names, ..self }
    }

    /// Blocks held, counting two engine keys with the same prefix once.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Engine keys that are kept: one or more for each block, and those that may stand for more than one prefix.
    pub fn keys(&self) -> usize {
        self.blocks.keys() + self.ambiguous.len()
    }

    /// Blocks held in T1, T2 and T3, each counted in the nearest.
    pub fn by_tier(&self) -> [usize; 3] {
        self.blocks.by_tier()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Tokens in a full block, as far as it is known.
    pub fn block_size(&self) -> Option<BlockSize> {
        self.block_size
    }

    /// The blocks held, in no order.
    pub fn held(&self) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.blocks.held()
    }

    /// Those in one of the [`SHARDS`](super::sharded::SHARDS) parts.
    pub fn held_in(&self, part: usize) -> impl Iterator<Item = (ScopeSlot, PrefixHash, HeldBlock)> + '_ {
        self.blocks.held_in(part)
    }

    /// Applies one event reported at `now_ms`, in the hub's own ms.
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
        let mut effects = Effects { now_ms, scope_of, changes, tally };
        match event {
            KvEvent::BlockStored(event) => self.stored(event, &mut effects),
            KvEvent::BlockRemoved(event) => self.removed(event, &mut effects),
            KvEvent::AllBlocksCleared => {
                self.clear(effects.changes, effects.tally);
                self.since_empty = true;
            }
            KvEvent::TierBlocksCleared(place) => self.tier_cleared(place, &mut effects),
            KvEvent::Missed(Missed::Anything) => self.clear(effects.changes, effects.tally),
            KvEvent::Missed(Missed::Stores) => self.since_empty = false,
        }
    }

    /// Forgets everything: what the engine holds is not known.
    pub fn clear(&mut self, changes: &mut Vec<Change>, tally: &mut Tally) {
        tally.cleared += 1;
        if !self.is_empty() {
            changes.push(Change::Cleared);
        }
        self.blocks = Blocks::default();
        self.ambiguous = HashSet::new();
        self.since_empty = false;
        self.groups = Groups { credited_unnamed: false, ..self.groups };
        if !self.block_size_is_fixed {
            self.block_size = None;
        }
    }

    /// Forgets those engine keys in one of the [`SHARDS`](super::sharded::SHARDS) parts that stand for these blocks: after all
    /// parts the blocks are gone. Where such a key stands for its block alone, it cannot be told any more which prefixes have had
    /// it.
    pub fn forget_in(&mut self, part: usize, places: &Places) -> Forgotten {
        let forgotten = self.blocks.forget_in(part, places);
        self.since_empty &= !forgotten.were_unchained;
        forgotten
    }

    /// Forgets which keys may stand for more than one prefix; how many they were. From then on none is taken to follow a key that
    /// stands for its block alone, until the engine's cache is empty.
    pub fn forget_doubts(&mut self) -> usize {
        let doubts = std::mem::take(&mut self.ambiguous).len();
        self.since_empty &= doubts == 0;
        doubts
    }

    fn stored(&mut self, event: &BlockStored, effects: &mut Effects<'_>) {
        self.learn_groups(event, effects);
        let chaining = Chaining::of(event);
        let all = event.block_hashes.len();
        let credited = match Medium::of(&event.place) {
            Ok(medium) if medium != Medium::Gpu && is_bare(event) => self.known_elsewhere(event, medium, effects),
            Ok(medium) => self.with_tokens(event, medium, chaining, effects),
            Err(reason) => Err(reason),
        };
        match credited {
            Ok(credited) => effects.tally.skip(SkipReason::ExtraKeys, all - credited),
            Err(reason) => effects.tally.skip(reason, all.max(1)),
        }
        if chaining.is_unchained {
            let credited = credited.unwrap_or(0);
            event.block_hashes.iter().skip(credited).for_each(|key| self.doubt(key, effects));
        }
    }

    /// A first group of unnamed attention is taken for the only one until there is another.
    fn learn_groups(&mut self, event: &BlockStored, effects: &mut Effects<'_>) {
        if check_group(&event.place).is_ok() {
            return;
        }
        self.groups.are_several = true;
        self.groups.are_unnamed |= event.kv_cache_spec_kind.is_none();
        if self.groups.are_unnamed && self.groups.credited_unnamed {
            self.clear(effects.changes, effects.tally);
        }
    }

    /// Blocks that are named by their keys alone: those that are known are in one more storage.
    fn known_elsewhere(
        &mut self,
        event: &BlockStored,
        medium: Medium,
        effects: &mut Effects<'_>,
    ) -> Result<usize, SkipReason> {
        check_group(&event.place)?;
        check_kind(event)?;
        if self.groups.are_several && event.kv_cache_spec_kind.is_none() {
            return Err(SkipReason::Group);
        }
        for key in &event.block_hashes {
            let known = self.blocks.find(key).filter(|entry| !entry.is_unchained);
            match known.and_then(|_| self.blocks.add(key, Media::only(medium), effects.now_ms)) {
                Some((entry, held)) => effects.again(entry, held),
                None => effects.tally.skip(SkipReason::NoTokens, 1),
            }
        }
        Ok(event.block_hashes.len())
    }

    fn with_tokens(
        &mut self,
        event: &BlockStored,
        medium: Medium,
        chaining: Chaining<'_>,
        effects: &mut Effects<'_>,
    ) -> Result<usize, SkipReason> {
        let names = std::mem::take(&mut self.adapter_names);
        let credited = creditable_run(event, &names).and_then(|run| {
            self.check_block_size(run.block_size, medium)?;
            let is_unnamed = event.place.group_idx.is_some() && event.kv_cache_spec_kind.is_none();
            if is_unnamed && self.groups.are_unnamed {
                return Err(SkipReason::Group);
            }
            let scope = (effects.scope_of)(run.adapter_id).ok_or(SkipReason::TooManyScopes)?;
            let parent = self.parent(chaining, scope)?;
            self.groups.credited_unnamed |= is_unnamed;
            // Only blocks that are credited say how long a full one is.
            self.block_size = Some(run.block_size);
            self.credit(run, scope, parent, medium, chaining.is_unchained, effects)
        });
        self.adapter_names = names;
        credited
    }

    /// Partial blocks are smaller than full ones, and nothing else tells them apart. Other storages can have blocks of
    /// their own size.
    fn check_block_size(&self, block_size: BlockSize, medium: Medium) -> Result<(), SkipReason> {
        let is_fixed = self.block_size_is_fixed || medium != Medium::Gpu;
        match self.block_size {
            Some(expected) if block_size == expected => Ok(()),
            Some(expected) if is_fixed || block_size.tokens() < expected.tokens() => Err(SkipReason::BlockSize),
            None if is_fixed => Err(SkipReason::BlockSize),
            _ => Ok(()),
        }
    }

    fn parent(&self, chaining: Chaining<'_>, scope: ScopeSlot) -> Result<Option<Entry>, SkipReason> {
        let key = match chaining.before {
            Before::Nothing => return Ok(None),
            Before::NotSaid => return Err(SkipReason::UnprovenRoot),
            Before::Block(key) => key,
        };
        let parent = self.blocks.find(key).filter(|parent| parent.scope == scope);
        match parent {
            // Its key is another prefix's too, for all that is known.
            Some(parent) if parent.is_unchained && !self.since_empty => Err(SkipReason::AmbiguousKey),
            Some(parent) => Ok(Some(parent)),
            None if self.ambiguous.contains(key) => Err(SkipReason::AmbiguousKey),
            None => Err(SkipReason::UnknownParent),
        }
    }

    fn credit(
        &mut self,
        run: Run<'_>,
        scope: ScopeSlot,
        parent: Option<Entry>,
        medium: Medium,
        is_unchained: bool,
        effects: &mut Effects<'_>,
    ) -> Result<usize, SkipReason> {
        let start = parent.map_or(0, |parent| parent.token_count);
        let end = u32::try_from(run.token_ids.len()).ok().and_then(|tokens| start.checked_add(tokens));
        end.ok_or(SkipReason::TokenCount)?;
        let step = u32::try_from(run.block_size.tokens()).unwrap_or(u32::MAX);

        let mut previous = parent.map(|parent| parent.hash);
        let mut token_count = start;
        let tier = medium.tier();
        let mut stored = Chained { scope, tier, parent: previous, blocks: Vec::with_capacity(run.keys.len()) };
        for (key, hash) in run.keys.iter().zip(prefix_hashes(run.token_ids, run.block_size, previous)) {
            token_count += step;
            let entry = Entry { scope, hash, token_count, media: Media::only(medium), is_unchained };
            let earlier = self.blocks.named(key).filter(|earlier| !earlier.is_same_block(&entry));
            if is_unchained && (earlier.is_some() || self.ambiguous.contains(key)) {
                push_stored(effects.changes, stored);
                return Err(SkipReason::AmbiguousKey);
            }
            if earlier.is_some() {
                effects.tally.skip(SkipReason::KeyReused, 1);
            }
            let tier = self.blocks.store(key, entry, previous, effects.now_ms);
            if earlier.is_some() || tier != stored.tier {
                let rest = Chained { scope, tier, parent: previous, blocks: Vec::new() };
                push_stored(effects.changes, std::mem::replace(&mut stored, rest));
            }
            if let Some(earlier) = earlier {
                let left = self.blocks.release(earlier, earlier.media, effects.now_ms);
                effects.left(earlier, left);
            }
            stored.blocks.push((hash, token_count));
            effects.tally.stored += 1;
            previous = Some(hash);
        }
        push_stored(effects.changes, stored);
        Ok(run.keys.len())
    }

    /// `key` may stand for a prefix that is not known: what was known by it is given up.
    fn doubt(&mut self, key: &EngineKey, effects: &mut Effects<'_>) {
        if let Some(entry) = self.blocks.forget(key) {
            let left = self.blocks.release(entry, entry.media, effects.now_ms);
            effects.left(entry, left);
        }
        self.ambiguous.insert(key.clone());
        if self.ambiguous.len() > MAX_AMBIGUOUS {
            effects.tally.doubts_given_up += self.forget_doubts() as u64;
        }
    }

    /// Nothing is in one storage any more.
    fn tier_cleared(&mut self, place: &Place, effects: &mut Effects<'_>) {
        let media = match media_of(place) {
            Ok(media) => media,
            // Nothing is known to be there.
            Err(reason) => return effects.tally.skip(reason, 1),
        };
        if self.blocks.are_only_in(media) {
            // Those without a known place may be anywhere else.
            return self.clear(effects.changes, effects.tally);
        }
        for key in self.blocks.keys_in(media) {
            if let Some((entry, media)) = self.blocks.take(&key, media) {
                let left = self.blocks.release(entry, media, effects.now_ms);
                effects.left(entry, left);
            }
        }
    }

    fn removed(&mut self, event: &BlockRemoved, effects: &mut Effects<'_>) {
        let media = match check_group(&event.place).and(media_of(&event.place)) {
            Ok(media) => media,
            Err(reason) => return effects.tally.skip(reason, event.block_hashes.len()),
        };
        for key in &event.block_hashes {
            match self.blocks.take(key, media) {
                Some((entry, media)) => {
                    let left = self.blocks.release(entry, media, effects.now_ms);
                    effects.left(entry, left);
                }
                None if self.ambiguous.contains(key) => effects.tally.skip(SkipReason::AmbiguousKey, 1),
                None => effects.tally.skip(SkipReason::UnknownBlock, 1),
            }
        }
    }
}

/// Where `place` is; of one that names none, everywhere.
fn media_of(place: &Place) -> Result<Media, SkipReason> {
    match (&place.medium, place.remote) {
        (None, false) => Ok(Media::ALL),
        _ => Medium::of(place).map(Media::only),
    }
}

/// Whether the event names blocks without saying what is in them.
fn is_bare(event: &BlockStored) -> bool {
    event.token_ids.is_empty() && event.further_tokens == 0 && !event.block_hashes.is_empty()
}

fn push_stored(changes: &mut Vec<Change>, stored: Chained) {
    if !stored.blocks.is_empty() {
        changes.push(Change::Stored(stored));
    }
}

// === impl Effects ===

impl Effects<'_> {
    /// A known block was reported again.
    fn again(&mut self, entry: Entry, held: HeldBlock) {
        self.tally.stored += 1;
        let (scope, tier, parent) = (entry.scope, held.tier(), held.parent);
        let block = (entry.hash, entry.token_count);
        match self.changes.last_mut() {
            Some(Change::Stored(run))
                if (run.scope, run.tier) == (scope, tier)
                    && parent.is_some()
                    && run.blocks.last().map(|(hash, _)| *hash) == parent =>
            {
                run.blocks.push(block);
            }
            _ => self.changes.push(Change::Stored(Chained { scope, tier, parent, blocks: vec![block] })),
        }
    }

    /// A block has left a storage.
    fn left(&mut self, entry: Entry, left: Left) {
        match (left, self.changes.last_mut()) {
            (Left::Held, _) => {}
            (Left::Gone, Some(Change::Removed(scope, hashes))) if *scope == entry.scope => {
                self.tally.removed += 1;
                hashes.push(entry.hash);
            }
            (Left::Gone, _) => {
                self.tally.removed += 1;
                self.changes.push(Change::Removed(entry.scope, vec![entry.hash]));
            }
            (Left::Moved(held), Some(Change::Moved(moved))) => moved.push((entry.scope, entry.hash, held)),
            (Left::Moved(held), _) => self.changes.push(Change::Moved(vec![(entry.scope, entry.hash, held)])),
        }
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
