//! Who holds what, by runs of consecutive blocks.
//!
//! In: reports that a replica has blocks, or no longer has them. Out: for a request's chain, the replicas that hold a
//! leading run of it, with its oldest block's time and its coldest tier; for one key, its holders. Times are Unix ms. The
//! index never credits a replica with a block that it was not reported to hold. It does no I/O and knows no clock.
//!
//! Engines announce a prompt as consecutive blocks, so blocks are kept as they come: a *run* is an array of keys, and
//! a *stretch* says that a holder has the blocks from here to there of a run, all last seen at the same time, in
//! the same tier. A table of 8 bytes a block says where each key is; it serves removal, which names blocks one
//! by one, exact look-ups, and the walk, which enters a run wherever it branched off another. So there is no tree to
//! split when prompts diverge or holders differ.
//!
//! A walk looks the first block up, compares along the run, folds the stretches it crosses, and looks up the block at
//! which the request leaves the run. **Proof by chaining**: in a run of prefix hashes each is made from the one before. A
//! request whose prefix hashes were computed here from token ids is then compared at the run's end only, since an equal
//! hash there means that all before are equal. This needs both sides: the run stored with [`Report::chained`], the
//! request [proven](chain::Chain::is_proven). Explicit keys are opaque, whoever sends them may put anything before a
//! key that is held, so they are compared one by one, as are the keys of a run that was not stored as chained.
//! Holders need no proof: stretches say exactly who has which block, holes included.
//!
//! Measured against what else there is (conversation trace, 8 M pairs on 8 replicas, one process, medians of 7 rounds on a
//! busy machine; `benches/peers`, raw results in `benches/results`). A lookup gets ready hashes, in cache as when they
//! have just been computed; only the flat map and the runs give times and tiers.
//!
//! | Design | Lookup mean, us | Ingest, ns/block | B/pair |
//! |---|---|---|---|
//! | flat map, holders in place, a probe a block | 95 | 149 | 38.6 |
//! | positional map with jump search (dynamo-kv-router 1.6) | 17.5 | 663 | 176 |
//! | radix tree (dynamo-kv-router 1.6) | 3.9 | 118 | 71.7 |
//! | radix tree of runs (kv-index 2.0): its answer as a map, none | 2.2, 1.5 | 78 | 51.0 |
//! | runs, found by table (this) | 0.95 | 105 | 15.6, now 18 |
//!
//! With the request read from memory too, the mean is 3.5 us, and 4.3 and 3.2 for kv-index. Since then the table was laid
//! out in cache lines. On the same state, before and after in one process: ingest from empty 129 and 108 ns a block. At 1 M
//! and at 4 M pairs: adding to what is there 60 and 67 to 75 ns a block, removing a block by itself 101 to 108 and 111 to
//! 158, all of an event in one call 36 and 40 to 51. What is more at 4 M is the page walk to the entry's line.
//!
//! What decided: a probe a block is a miss of cache and TLB a block, and so is a jump's; a tree of runs has few, and no
//! child tables are needed where the table that removal wants anyway finds the next run. Branches and holders never
//! split a run here, so a conversation stays in few of them: 2.7 a lookup on the generated stand-in.
//!
//! Work is bounded: a run has at most 2,048 blocks, a shard of the table about 3,000; neither they nor anything else
//! is rehashed or moved as a whole. [Clearing](Runs::clear) is one step, [sweeping](Runs::sweep) goes on in steps.
//!
//! Each stretch is listed by a page of shared data that its report named, so that what a page lists follows from the log
//! alone, whatever the runs of this VM look like. Pages are loaded at different log sequences; a record that is older than
//! the page which lists what it speaks of changes nothing there.

pub mod chain;
mod holders;
mod journal;
mod key;
mod page;
mod pages;
mod places;
mod remove;
mod run;
mod slab;
mod store;
mod stretch;
mod sweep;
mod table;
mod walk;

use hashbrown::HashMap;

use crate::observation::{ReplicaSlot, ScopeSlot, Tier};
use holders::Holders;
pub use holders::{Standing, Turn};
use journal::Journal;
pub use journal::{Change, Span};
pub use key::KeyRef;
pub use page::HeldRun;
pub use pages::MAX_PAGES;
use pages::Pages;
use places::Places;
use slab::Slab;
use stretch::HolderId;
pub use sweep::Swept;
use table::Place;
pub use walk::LeadingRun;

/// Who holds what.
#[derive(Clone, Debug)]
pub struct Runs {
    places: Places,
    slab: Slab,
    pages: Pages,
    holders: Holders,
    /// Distinct blocks that somebody holds in each scope; those of replicas that were cleared until the sweep.
    keys: HashMap<ScopeSlot, u64>,
    /// For each holder in each scope the run that takes in its blocks whose place in a chain is not known.
    loose: HashMap<(ScopeSlot, HolderId), u32>,
    /// What changed, while somebody keeps an order of it.
    journal: Option<Journal>,
    sweep_next: u32,
    drop_next: u32,
    /// The block removed last: its neighbour is likely to be the next.
    removed_last: Place,
}

/// A replica has blocks: what they have in common.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What the keys are relative to.
    pub scope: ScopeSlot,
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// Where it has the blocks.
    pub tier: Tier,
    /// When it last reported them.
    pub last_seen_ms: u64,
    /// Delivered hits; nothing leaves them as they were, 0 for a block not held before.
    pub access_count: Option<u32>,
    /// The block before the first one, where that is known.
    pub parent: Option<KeyRef<'a>>,
    /// The keys are prefix hashes, each made from the one before it, the first from the parent. To say so where it is not
    /// so lets replicas be credited with blocks that they do not hold.
    pub chained: bool,
    /// The page that lists the blocks from now on, less than the number of pages.
    pub page: u16,
    /// The log sequence of the report, at least 1: what a page was loaded with as of then or later stays.
    pub sequence: u64,
}

/// A replica that holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The replica's generation.
    pub replica: ReplicaSlot,
    /// Where it has the block.
    pub tier: Tier,
    /// How often a delivered answer counted on it; of no meaning unless someone counts.
    pub access_count: u32,
    /// Tokens from the start of the prompt to the end of the block.
    pub token_count: u32,
    /// When it last reported the block, or all of its blocks were re-asserted, Unix time in ms.
    pub last_seen_ms: u64,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// (Block, replica) pairs, expired ones until the sweep.
    pub pairs: u64,
    /// Runs.
    pub runs: u64,
    /// Bytes asked of the allocator.
    pub bytes: u64,
}

// === impl Runs ===

impl Runs {
    /// An empty index whose content is listed by `pages` pages, 1 to [`MAX_PAGES`].
    pub fn new(pages: u32) -> Runs {
        Runs {
            places: Places::new(),
            slab: Slab::new(),
            pages: Pages::new(pages),
            holders: Holders::default(),
            keys: HashMap::new(),
            loose: HashMap::new(),
            journal: None,
            sweep_next: 1,
            drop_next: 1,
            removed_last: Place { run: 0, at: 0 },
        }
    }

    /// (Block, replica) pairs, expired ones until the sweep.
    pub fn pairs(&self) -> u64 {
        self.holders.pairs()
    }

    /// Blocks that a replica holds, expired ones until the sweep.
    pub fn pairs_of(&self, replica: ReplicaSlot) -> u64 {
        self.holders.pairs_of(replica)
    }

    /// The replicas that hold blocks in a scope, and how many, expired ones until the sweep.
    pub fn holding(&self, scope: ScopeSlot) -> impl Iterator<Item = (ReplicaSlot, u64)> {
        self.holders.in_scope(scope)
    }

    /// Distinct blocks that somebody holds in a scope; those of replicas that were cleared until the sweep.
    pub fn keys_of(&self, scope: ScopeSlot) -> u64 {
        self.keys.get(&scope).copied().unwrap_or(0)
    }

    /// Of [those](Runs::keys_of), how many are certain to be held by a replica that was not cleared.
    pub fn keys_at_least(&self, scope: ScopeSlot) -> u64 {
        self.keys_of(scope).saturating_sub(self.holders.retired_in(scope))
    }

    /// The scopes that a replica holds something in, in no order.
    pub fn scopes_of(&self, replica: ReplicaSlot) -> impl Iterator<Item = ScopeSlot> {
        self.holders.scopes_of(replica)
    }

    /// How many replicas hold something.
    pub fn replicas_holding(&self) -> usize {
        self.holders.holding()
    }

    /// The scopes that hold blocks, in no order.
    pub fn scopes(&self) -> impl Iterator<Item = ScopeSlot> {
        self.keys.keys().copied()
    }

    /// The replicas that there is anything to say of, in no order.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaSlot> {
        self.holders.replicas()
    }

    /// Whether there is anything to say of a replica.
    pub fn knows(&self, replica: ReplicaSlot) -> bool {
        self.holders.get(replica).is_some()
    }

    /// What is said of all that a replica holds.
    pub fn standing(&self, replica: ReplicaSlot) -> Standing {
        let holder = self.holders.get(replica);
        holder.map_or(Standing { counts: false, reasserted_ms: 0 }, |holder| self.holders.standing(holder))
    }

    /// Says what is to be said of all that a replica holds and will hold, until it is [cleared](Runs::clear). Without, it
    /// counts.
    pub fn set_standing(&mut self, replica: ReplicaSlot, standing: Standing) {
        self.holders.set_standing(replica, standing);
    }

    /// Who began or ceased to hold something in a scope since the last call, in order.
    pub fn take_turns(&mut self) -> Vec<Turn> {
        self.holders.take_turns()
    }

    /// How much there is.
    pub fn size(&self) -> Size {
        Size {
            pairs: self.pairs(),
            runs: self.slab.live() as u64,
            bytes: (self.places.bytes() + self.slab.bytes() + self.pages.bytes()) as u64,
        }
    }

    /// The holders of one block, in no order, expired ones until the sweep.
    pub fn holders(&self, scope: ScopeSlot, key: KeyRef<'_>) -> impl Iterator<Item = Holder> {
        let found = self.find(scope, key).and_then(|place| Some((place.at, self.slab.get(place.run)?)));
        found.into_iter().flat_map(move |(at, run)| {
            run.stretches.iter().filter(move |stretch| stretch.covers(at)).filter_map(move |stretch| {
                Some(Holder {
                    replica: self.holders.replica(stretch.holder)?,
                    tier: stretch.tier(),
                    access_count: stretch.access_count,
                    token_count: stretch.token_count(at),
                    last_seen_ms: stretch.last_seen_ms().max(self.holders.reasserted_ms(stretch.holder)),
                })
            })
        })
    }

    /// Delivered hits of a block at a replica, if it holds it.
    pub fn access_count(&self, scope: ScopeSlot, key: KeyRef<'_>, replica: ReplicaSlot) -> Option<u32> {
        let holder = self.holders.get(replica)?;
        let place = self.find(scope, key)?;
        let run = self.slab.get(place.run)?;
        let of_holder = run.stretches.get(stretch::of_holder(&run.stretches, holder))?;
        of_holder.iter().find(|stretch| stretch.covers(place.at)).map(|stretch| stretch.access_count)
    }

    /// What one replica has of a block, if it holds it.
    pub fn holder(&self, scope: ScopeSlot, key: KeyRef<'_>, replica: ReplicaSlot) -> Option<Holder> {
        self.holders(scope, key).find(|holder| holder.replica == replica)
    }

    /// Where a block is, if anybody holds it, or nobody any more.
    fn find(&self, scope: ScopeSlot, key: KeyRef<'_>) -> Option<Place> {
        self.find_hashed(scope, key, key.hash(scope))
    }

    #[inline]
    fn find_hashed(&self, scope: ScopeSlot, key: KeyRef<'_>, hash: u64) -> Option<Place> {
        self.places
            .candidates(hash)
            .find(|place| self.slab.get(place.run).is_some_and(|run| run.scope == scope && run.keys.is(place.at, key)))
    }
}

/// Notes how many blocks of a run somebody holds, before and after a change to it.
fn recount(keys: &mut HashMap<ScopeSlot, u64>, scope: ScopeSlot, before: u64, after: u64) {
    if before == after {
        return;
    }
    let counted = keys.entry(scope).or_default();
    *counted = (*counted + after).saturating_sub(before);
    if *counted == 0 {
        keys.remove(&scope);
    }
}
