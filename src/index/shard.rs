//! A part of the index: the blocks whose keys fall into it, and who holds them.
//!
//! A shard is what one page in shared data holds. It knows the log sequence that it is true of, so that replaying
//! older records changes nothing.

use hashbrown::{Equivalent, HashMap};

use crate::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock, Tier};

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
    /// When it last reported the block, Unix time in ms.
    pub last_seen_ms: u64,
}

/// What a report changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nobody holds more or less.
    None,
    /// A block has one holder more or less, and had or keeps others.
    Holder,
    /// A block has its first holder, or lost its last.
    Block,
}

/// The blocks of one page.
#[derive(Clone, Debug, Default)]
pub struct Shard {
    /// The log sequence this shard is true of.
    pub as_of: u64,
    /// Holders by block, sorted by replica.
    blocks: HashMap<(ScopeSlot, BlockKey), Vec<Holder>>,
}

/// A block's key by reference, for look-ups; hashes as the pair that the map owns.
#[derive(Hash)]
struct BlockRef<'a>(ScopeSlot, &'a BlockKey);

impl Equivalent<(ScopeSlot, BlockKey)> for BlockRef<'_> {
    fn equivalent(&self, (scope, key): &(ScopeSlot, BlockKey)) -> bool {
        self.0 == *scope && self.1 == key
    }
}

// === impl Shard ===

impl Shard {
    /// The block's holders, sorted by replica.
    pub fn holders(&self, scope: ScopeSlot, key: &BlockKey) -> &[Holder] {
        self.blocks.get(&BlockRef(scope, key)).map_or(&[], Vec::as_slice)
    }

    /// A holder of the block.
    pub fn holder(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<&Holder> {
        let holders = self.holders(scope, key);
        holders.binary_search_by_key(&replica, |held| held.replica).ok().and_then(|at| holders.get(at))
    }

    /// The same, to change it.
    pub fn holder_mut(&mut self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<&mut Holder> {
        let holders = self.blocks.get_mut(&BlockRef(scope, key))?;
        holders.binary_search_by_key(&replica, |held| held.replica).ok().and_then(|at| holders.get_mut(at))
    }

    /// Records that `holder` has the block. What was counted of it is kept unless `counts_anew`.
    pub fn store(&mut self, scope: ScopeSlot, key: BlockKey, holder: Holder, counts_anew: bool) -> Change {
        let holders = self.blocks.entry((scope, key)).or_default();
        match holders.binary_search_by_key(&holder.replica, |held| held.replica) {
            Ok(at) => {
                if let Some(held) = holders.get_mut(at) {
                    let access_count = if counts_anew { holder.access_count } else { held.access_count };
                    *held = Holder { access_count, ..holder };
                }
                Change::None
            }
            Err(at) => {
                holders.insert(at, holder);
                if holders.len() == 1 { Change::Block } else { Change::Holder }
            }
        }
    }

    /// Records that `replica` no longer has the block.
    pub fn remove(&mut self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Change {
        let Some(holders) = self.blocks.get_mut(&BlockRef(scope, key)) else { return Change::None };
        let Ok(at) = holders.binary_search_by_key(&replica, |held| held.replica) else { return Change::None };
        holders.remove(at);
        if !holders.is_empty() {
            return Change::Holder;
        }
        self.blocks.remove(&BlockRef(scope, key));
        Change::Block
    }

    /// The (block, replica) pairs that `wanted` accepts.
    pub fn pairs(
        &self,
        wanted: impl Fn(ScopeSlot, &Holder) -> bool,
    ) -> impl Iterator<Item = (ScopeSlot, &BlockKey, &Holder)> {
        let pairs = self
            .blocks
            .iter()
            .flat_map(|((scope, key), holders)| holders.iter().map(move |holder| (*scope, key, holder)));
        pairs.filter(move |(scope, _, holder)| wanted(*scope, holder))
    }

    /// Drops the holders that `keep` refuses, and reports each; a block's last holder as a change of the block.
    pub fn retain(
        &mut self,
        mut keep: impl FnMut(ScopeSlot, &Holder) -> bool,
        mut dropped: impl FnMut(ScopeSlot, ReplicaSlot, Change),
    ) {
        self.blocks.retain(|(scope, _), holders| {
            let mut left = holders.len();
            holders.retain(|holder| {
                let kept = keep(*scope, holder);
                if !kept {
                    left -= 1;
                    dropped(*scope, holder.replica, if left == 0 { Change::Block } else { Change::Holder });
                }
                kept
            });
            left > 0
        });
    }

    /// Observations that rebuild the holders that `keep` accepts, blocks of one report together.
    pub fn to_observations(&self, keep: impl Fn(&Holder) -> bool) -> Vec<Observation> {
        let mut pairs: Vec<(ScopeSlot, &BlockKey, &Holder)> = self.pairs(|_, holder| keep(holder)).collect();
        pairs.sort_unstable_by_key(|(scope, key, holder)| (report(*scope, key, holder), holder.token_count, *key));
        pairs
            .chunk_by(|(scope, key, holder), (next_scope, next_key, next_holder)| {
                report(*scope, key, holder) == report(*next_scope, next_key, next_holder)
            })
            .filter_map(stored)
            .collect()
    }
}

/// What the blocks of one `Stored` have in common.
fn report(scope: ScopeSlot, key: &BlockKey, holder: &Holder) -> (ReplicaSlot, ScopeSlot, Tier, u64, usize, u32) {
    (holder.replica, scope, holder.tier, holder.last_seen_ms, key.width(), holder.access_count)
}

fn stored(pairs: &[(ScopeSlot, &BlockKey, &Holder)]) -> Option<Observation> {
    let (scope, _, holder) = pairs.first()?;
    Some(Observation::Stored(Stored {
        replica: holder.replica,
        scope: *scope,
        tier: holder.tier,
        last_seen_ms: holder.last_seen_ms,
        access_count: Some(holder.access_count).filter(|count| *count > 0),
        blocks: pairs
            .iter()
            .map(|(_, key, holder)| StoredBlock { key: (*key).clone(), token_count: holder.token_count })
            .collect(),
        ..Stored::default()
    }))
}
