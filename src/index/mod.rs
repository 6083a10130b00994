//! Who holds what.
//!
//! In: [`Observation`]s with the log sequence they were committed under. Out: for a chain of block keys, the replicas
//! that hold a leading run of it. The index never credits a replica with a block that it was not reported to hold;
//! after a loss it may know less than there is. Blocks are kept in [runs] of consecutive ones; what counts under which
//! names is kept beside them. Each page of shared data lists a share of the (block, replica) pairs; applying a record that
//! a loaded page already covers changes nothing of what it lists.

pub mod dictionary;
pub mod hits;
mod live;
pub mod log;
mod names;
pub mod runs;
pub mod victims;

use hashbrown::HashSet;

use crate::observation::{
    BlockKey, Counted, Observation, ReplicaCounts, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock,
};
use crate::request::RequestChain;
use dictionary::Dictionary;
use hits::Hits;
use live::Live;
use runs::chain::{Blocks, Keys, PrefixHashes};
use runs::{Change, HeldRun, KeyRef, Report, Runs, Standing};

pub use runs::{Holder, LeadingRun, MAX_PAGES, Size, Swept};

/// Who holds what, as of a log sequence.
#[derive(Clone, Debug)]
pub struct Index {
    dictionary: Dictionary,
    /// The log sequence the dictionary is true of.
    dictionary_as_of: u64,
    runs: Runs,
    /// What of the holdings counts: ended generations do not, at once.
    live: Live,
    /// Scopes of blocks that have no name: it has gone, or in a replay is yet to come. Until the last block has gone.
    unnamed: HashSet<ScopeSlot>,
    /// Scopes of blocks that were ever hit, as long as there is anything of them.
    counted: HashSet<ScopeSlot>,
}

/// A block at a replica's generation.
pub type Pair = (ScopeSlot, BlockKey, ReplicaSlot);

// === impl Index ===

impl Index {
    /// An empty index whose pairs are listed by `pages` pages, 1 to [`MAX_PAGES`].
    pub fn new(pages: u32) -> Index {
        Index {
            dictionary: Dictionary::default(),
            dictionary_as_of: 0,
            runs: Runs::new(pages),
            live: Live::default(),
            unnamed: HashSet::new(),
            counted: HashSet::new(),
        }
    }

    /// Applies an observation committed under log sequence `sequence`.
    pub fn apply(&mut self, sequence: u64, observation: Observation) {
        match observation {
            Observation::Stored(stored) => self.store(sequence, &stored),
            Observation::Removed { replica, scope, keys } => {
                self.runs.remove(sequence, scope, replica, keys.iter().map(KeyRef::from));
                self.take_turns();
            }
            Observation::Cleared { replica } => {
                self.runs.remove_all(sequence, replica);
                self.take_turns();
            }
            Observation::Counted(counted) => self.set_counts(sequence, &counted),
            other => {
                if sequence > self.dictionary_as_of {
                    self.announce(&other);
                }
            }
        }
    }

    /// Loads the dictionary from a page that is true of `as_of`.
    pub fn load_dictionary(&mut self, as_of: u64, observations: &[Observation]) {
        self.dictionary = Dictionary::default();
        self.live = Live::default();
        self.unnamed.clear();
        self.unnamed.extend(self.runs.scopes());
        let replicas: Vec<ReplicaSlot> = self.runs.replicas().collect();
        replicas.into_iter().for_each(|replica| self.set_standing(replica));
        for observation in observations {
            self.announce(observation);
        }
        self.dictionary_as_of = as_of;
    }

    /// Every record up to log sequence `sequence` has been applied: what the dictionary says is true of it, and applying such a
    /// record once more must not change it.
    pub fn has_applied(&mut self, sequence: u64) {
        self.dictionary_as_of = self.dictionary_as_of.max(sequence);
    }

    /// Loads a page of blocks that is true of `as_of`, in place of what it lists.
    pub fn load_page(&mut self, page: u16, as_of: u64, observations: &[Observation]) {
        self.runs.load_page(page);
        for observation in observations {
            if let Observation::Stored(stored) = observation {
                self.store(as_of, &Stored { page, ..stored.clone() });
            }
        }
        self.runs.loaded_page(page, as_of);
        self.take_turns();
    }

    /// Observations that rebuild the dictionary.
    pub fn dictionary_observations(&self) -> Vec<Observation> {
        self.dictionary.to_observations()
    }

    /// Observations that rebuild what a page lists, generations that have ended left out.
    pub fn page_observations(&self, page: u16) -> Vec<Observation> {
        let counts = |held: &HeldRun| self.dictionary.replica(held.replica).is_some();
        self.runs.page(page).filter(counts).map(|held| Observation::Stored(stored(&held))).collect()
    }

    /// Observations that rebuild what the generations that `wanted` accepts hold.
    pub fn observations_of(&self, wanted: impl Fn(ReplicaSlot) -> bool + Copy) -> Vec<Observation> {
        let wanted = |replica| wanted(replica) && self.dictionary.replica(replica).is_some();
        self.runs.held_by(wanted).map(|held| Observation::Stored(stored(&held))).collect()
    }

    /// The log sequence that the dictionary and then each page of blocks was loaded at.
    pub fn loaded_as_of(&self) -> impl Iterator<Item = u64> {
        let pages = (0..self.pages()).map(|page| self.runs.page_as_of(page));
        std::iter::once(self.dictionary_as_of).chain(pages)
    }

    /// The oldest log sequence that some part of this index was loaded at.
    pub fn oldest_as_of(&self) -> u64 {
        self.loaded_as_of().min().unwrap_or(0)
    }

    /// The log sequence that page `number` of shared data was loaded at: 0 is the dictionary, then come the pages of blocks.
    pub fn page_as_of(&self, number: u32) -> Option<u64> {
        match number.checked_sub(1) {
            None => Some(self.dictionary_as_of),
            Some(page) => {
                u16::try_from(page).ok().filter(|page| *page < self.pages()).map(|at| self.runs.page_as_of(at))
            }
        }
    }

    /// How many pages list blocks.
    pub fn pages(&self) -> u16 {
        self.runs.pages() as u16
    }

    /// Pairs that a page lists, those of ended generations until the sweep.
    pub fn page_pairs(&self, page: u16) -> u64 {
        self.runs.page_pairs(page)
    }

    /// Whether blocks of a scope were ever hit.
    pub fn has_hits(&self, scope: ScopeSlot) -> bool {
        self.counted.contains(&scope)
    }

    /// Delivered hits of a block at a replica, if it holds it.
    pub fn access_count(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<u32> {
        self.runs.access_count(scope, key.into(), replica)
    }

    /// The blocks by runs, for whoever keeps an order of them.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The changes since the last call; the first one begins to keep note of them.
    pub fn take_journal(&mut self) -> Vec<Change> {
        if !self.runs.keeps_journal() {
            self.runs.keep_journal(true);
        }
        self.runs.take_journal()
    }

    /// Keeps no note of changes any more.
    pub fn stop_journal(&mut self) {
        self.runs.keep_journal(false);
    }

    /// Scopes and replicas.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Number of (block, replica) pairs, expired ones until the sweep.
    pub fn pairs(&self) -> u64 {
        self.runs.pairs()
    }

    /// How much there is.
    pub fn size(&self) -> Size {
        self.runs.size()
    }

    /// How many generations hold something.
    pub fn replicas_holding(&self) -> usize {
        self.runs.replicas_holding()
    }

    /// Blocks that a generation holds, expired ones until the sweep.
    pub fn pairs_of(&self, replica: ReplicaSlot) -> u64 {
        self.runs.pairs_of(replica)
    }

    /// Distinct blocks that are held in a scope; expired and ended ones count until the sweep.
    pub fn keys_of(&self, scope: ScopeSlot) -> u64 {
        self.runs.keys_of(scope)
    }

    /// How many distinct blocks are held for a tenant at least: none that only ended generations may hold counts.
    pub fn keys_of_tenant(&self, tenant_id: &str) -> u64 {
        self.dictionary.scopes_of(tenant_id).map(|scope| self.runs.keys_at_least(scope)).sum()
    }

    /// Whether more than `quota` distinct blocks of a tenant may be held, and it is not certain how many are, since generations
    /// have ended.
    pub fn may_exceed(&self, tenant_id: &str, quota: u64) -> bool {
        let most: u64 = self.dictionary.scopes_of(tenant_id).map(|scope| self.runs.keys_of(scope)).sum();
        most > quota && self.keys_of_tenant(tenant_id) < most
    }

    /// The scopes that a generation holds something in, in order.
    pub fn scopes_of(&self, replica: ReplicaSlot) -> Vec<ScopeSlot> {
        let mut scopes: Vec<ScopeSlot> = self.runs.scopes_of(replica).collect();
        scopes.sort_unstable();
        scopes
    }

    /// The blocks that a generation holds, by scope and key. Goes over the whole index.
    pub fn blocks_of(&self, replica: ReplicaSlot) -> Vec<(ScopeSlot, BlockKey)> {
        self.blocks_from(0, usize::MAX, replica).0
    }

    /// Blocks that a generation holds in a part of the index, by scope and key, and where to go on: the first part begins at
    /// 0, each takes about `budget` steps or blocks. What is not removed meanwhile may come again.
    pub fn blocks_from(
        &self,
        from: u32,
        budget: usize,
        replica: ReplicaSlot,
    ) -> (Vec<(ScopeSlot, BlockKey)>, Option<u32>) {
        let (held, next) = self.runs.blocks_from(from, budget, replica);
        let mut blocks: Vec<_> = held.into_iter().map(|(scope, key)| (scope, key.to_key())).collect();
        blocks.sort_unstable();
        (blocks, next)
    }

    /// Everything that is held, by scope, key and replica.
    pub fn held(&self) -> Vec<(ScopeSlot, BlockKey, Holder)> {
        let of_run = |held: HeldRun| {
            let (scope, replica) = (held.scope(), held.replica);
            let keys: Vec<BlockKey> = held.blocks().map(|(key, _)| key.to_key()).collect();
            keys.into_iter().filter_map(move |key| Some((scope, self.holder(scope, &key, replica)?, key)))
        };
        let mut held: Vec<_> =
            self.runs.held_by(|_| true).flat_map(of_run).map(|(scope, holder, key)| (scope, key, holder)).collect();
        held.sort_unstable_by(|a, b| (a.0, &a.1, a.2.replica).cmp(&(b.0, &b.1, b.2.replica)));
        held
    }

    /// A block's holders, in no order.
    pub fn holders(&self, scope: ScopeSlot, key: &BlockKey) -> impl Iterator<Item = Holder> {
        self.runs.holders(scope, key.into())
    }

    /// What a generation holds of a block.
    pub fn holder(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<Holder> {
        self.runs.holder(scope, key.into(), replica)
    }

    /// The leading runs of `chain` in `scope` made of blocks last seen after `oldest_ms`, sorted by replica.
    pub fn leading_runs(&self, scope: ScopeSlot, chain: &RequestChain, oldest_ms: u64) -> Vec<LeadingRun> {
        let mut runs = Vec::new();
        match chain {
            RequestChain::Exact { key } => return self.runs.exact_runs(scope, key.into(), oldest_ms),
            RequestChain::Chain(blocks) => {
                self.runs.leading_runs(scope, &Blocks { blocks, proven: false }, oldest_ms, &mut runs);
            }
            RequestChain::Prefixes { hashes, block_size } => {
                let block_size = block_size.tokens() as u32;
                self.runs.leading_runs(scope, &PrefixHashes { hashes, block_size }, oldest_ms, &mut runs);
            }
        }
        runs
    }

    /// Sets the access count of a block at a generation from what it is.
    pub fn count_hits(&mut self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot, count: impl Fn(u32) -> u32) {
        self.runs.count(u64::MAX, (scope, &Keys(std::slice::from_ref(key))), (replica, 0..1), count);
    }

    /// What the access counts are after `by` more hits of the first blocks of `keys`, of as many as stands beside each
    /// generation; none if nobody holds any of them.
    pub fn counted(
        &self,
        scope: ScopeSlot,
        keys: &[BlockKey],
        hits: &[(ReplicaSlot, usize)],
        (by, counting): (u32, Hits),
    ) -> Option<Counted> {
        let counts = |replica, blocks| -> Vec<u32> {
            let held = keys.iter().take(blocks).map_while(|key| self.holder(scope, key, replica));
            held.map(|holder| counting.add(holder.access_count, by)).collect()
        };
        let replicas = hits.iter().map(|(replica, blocks)| (*replica, counts(*replica, *blocks)));
        let replicas = replicas.filter(|(_, counts)| !counts.is_empty());
        let replicas: Vec<_> = replicas.map(|(replica, counts)| ReplicaCounts { replica, counts }).collect();
        let longest = replicas.iter().map(|at| at.counts.len()).max()?;
        Some(Counted { scope, keys: keys.iter().take(longest).cloned().collect(), replicas })
    }

    /// The pairs that a sweep goes over next and that `expired` says are too old for their scope, without those of
    /// generations that have ended, about `budget` of them; and until where [`Index::sweep_until`] may go then.
    pub fn expired_next(&self, budget: usize, expired: impl Fn(&Scope, u64) -> bool) -> (Vec<Pair>, u32) {
        let wanted = |slot, replica, last_seen_ms| {
            self.dictionary.replica(replica).is_some()
                && self.dictionary.scope(slot).is_some_and(|scope| expired(scope, last_seen_ms))
        };
        let (next, until) = self.runs.next_to_sweep(budget, wanted);
        let mut expired: Vec<Pair> =
            next.into_iter().map(|(scope, key, replica)| (scope, key.to_key(), replica)).collect();
        expired.sort_unstable_by(|(scope, key, replica), (next_scope, next_key, next_replica)| {
            (replica, scope, key).cmp(&(next_replica, next_scope, next_key))
        });
        (expired, until)
    }

    /// Goes on with the sweep for about `budget` steps: drops what has ended, and blocks that `expired` says are too old for
    /// their scope. It is complete when that was the end of it, so that the next step begins anew.
    ///
    /// Call it only when every record up to the log's end is applied: before, a generation may not be known yet.
    pub fn sweep_step(&mut self, budget: usize, expired: impl Fn(&Dictionary, &Scope, u64) -> bool) -> Swept {
        self.sweep_until(u32::MAX, budget, expired)
    }

    /// The same, as far as `until`.
    pub fn sweep_until(
        &mut self,
        until: u32,
        budget: usize,
        expired: impl Fn(&Dictionary, &Scope, u64) -> bool,
    ) -> Swept {
        let dictionary = &self.dictionary;
        let keep = |slot, replica, last_seen_ms| {
            dictionary.replica(replica).is_some()
                && dictionary.scope(slot).is_some_and(|scope| !expired(dictionary, scope, last_seen_ms))
        };
        let swept = self.runs.sweep_until(until, budget, keep, |replica| dictionary.replica(replica).is_some());
        self.take_turns();
        if swept.complete {
            let runs = &self.runs;
            self.unnamed.retain(|scope| runs.keys_of(*scope) > 0);
            let dictionary = &self.dictionary;
            self.counted.retain(|scope| runs.keys_of(*scope) > 0 || dictionary.scope(*scope).is_some());
        }
        swept
    }

    /// Drops what generations hold that have ended, for about `budget` steps, wherever the sweep is. True when none of it is
    /// left, and every count is exact.
    pub fn drop_ended(&mut self, budget: usize) -> bool {
        let dropped = self.runs.drop_cleared(budget);
        self.take_turns();
        dropped
    }

    /// Where the sweep is.
    pub fn sweep_at(&self) -> u32 {
        self.runs.sweep_at().0
    }

    /// Until where to [sweep](Index::sweep_until) in `ms` so that a whole sweep takes `all_ms`.
    pub fn sweep_share(&self, ms: u64, all_ms: u64) -> u32 {
        let (at, numbers) = self.runs.sweep_at();
        let share = u64::from(numbers).saturating_mul(ms).div_ceil(all_ms.max(1));
        at.saturating_add(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Drops what a generation holds, at once in every count. Goes over the whole index.
    pub fn drop_blocks(&mut self, replica: ReplicaSlot) {
        self.apply(u64::MAX, Observation::Cleared { replica });
    }

    /// Sweeps everything.
    pub fn sweep(&mut self, expired: impl Fn(&Dictionary, &Scope, u64) -> bool) {
        // From the beginning: a sweep that was under way is ended first.
        while !self.sweep_step(usize::MAX, |_, _, _| false).complete {}
        while !self.sweep_step(usize::MAX, &expired).complete {}
    }

    fn store(&mut self, sequence: u64, stored: &Stored) {
        if stored.access_count.is_some_and(|count| count > 0) {
            self.counted.insert(stored.scope);
        }
        if !self.runs.knows(stored.replica) {
            self.set_standing(stored.replica);
        }
        let report = Report {
            scope: stored.scope,
            replica: stored.replica,
            tier: stored.tier,
            last_seen_ms: stored.last_seen_ms,
            access_count: stored.access_count,
            parent: stored.parent.as_ref().map(KeyRef::from),
            chained: stored.chained,
            page: stored.page.min(self.pages().saturating_sub(1)),
            sequence,
        };
        self.runs.store(&report, stored.blocks.iter().map(|block| (KeyRef::from(&block.key), block.token_count)));
        self.take_turns();
    }

    fn set_counts(&mut self, sequence: u64, counted: &Counted) {
        self.counted.insert(counted.scope);
        for at in &counted.replicas {
            // Most blocks of a chain have the same count: those are set together.
            let mut from = 0;
            for same in at.counts.chunk_by(|one, next| one == next) {
                let (until, count) = (from + same.len(), same.first().copied().unwrap_or(0));
                self.runs.count(sequence, (counted.scope, &Keys(&counted.keys)), (at.replica, from..until), |_| count);
                from = until;
            }
        }
    }

    /// Tells the runs what the dictionary says of a generation.
    fn set_standing(&mut self, replica: ReplicaSlot) {
        let known = self.dictionary.replica(replica);
        let standing = Standing {
            counts: self.dictionary.complete_replica(replica).is_some(),
            reasserted_ms: known.map_or(0, |known| known.reasserted_ms),
        };
        self.runs.set_standing(replica, standing);
    }

    /// Notes who began or ceased to hold something.
    fn take_turns(&mut self) {
        for turn in self.runs.take_turns() {
            if self.dictionary.complete_replica(turn.replica).is_some() {
                if turn.holds { self.count(turn.scope, turn.replica) } else { self.discount(turn.scope, turn.replica) }
            } else if turn.holds && self.dictionary.scope(turn.scope).is_none() {
                self.unnamed.insert(turn.scope);
            }
        }
    }
}

/// The observation of what is held.
fn stored(held: &HeldRun) -> Stored {
    Stored {
        replica: held.replica,
        scope: held.scope(),
        tier: held.tier(),
        last_seen_ms: held.last_seen_ms(),
        parent: held.parent().map(KeyRef::to_key),
        chained: held.chained(),
        page: held.page(),
        access_count: Some(held.access_count()),
        blocks: held.blocks().map(|(key, token_count)| StoredBlock { key: key.to_key(), token_count }).collect(),
    }
}

#[cfg(test)]
mod tests;
