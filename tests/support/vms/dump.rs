//! All that an index holds, block by block and by name, in order: what two indexes are compared by.

use warmroute::index::{Holder, Index};
use warmroute::observation::{BlockKey, Scope, ScopeSlot, Tier};

/// A block at a replica whose state is complete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub scope: Scope,
    pub key: BlockKey,
    pub replica_id: String,
    pub tier: Tier,
    pub token_count: u32,
    pub last_seen_ms: u64,
    /// Delivered hits.
    pub access_count: u32,
}

/// What generations that count hold in scopes that have a name; what has expired until it is swept.
pub fn rows(index: &Index) -> Vec<Row> {
    let dictionary = index.dictionary();
    let row = |(slot, key, holder): (ScopeSlot, BlockKey, Holder)| {
        let Holder { replica, tier, access_count, token_count, last_seen_ms } = holder;
        let replica_id = dictionary.complete_replica(replica)?.replica_id.to_string();
        let scope = dictionary.scope(slot)?.clone();
        Some(Row { scope, key, replica_id, tier, token_count, last_seen_ms, access_count })
    };
    let mut rows: Vec<Row> = index.held().into_iter().filter_map(row).collect();
    rows.sort_unstable();
    rows
}
