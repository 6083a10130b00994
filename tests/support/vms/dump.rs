//! All that an index holds, block by block and by name, in order: what two indexes are compared by.

use warmroute::index::Index;
use warmroute::observation::{BlockKey, Observation, Scope, Stored, Tier};

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
    let counts = |slot| dictionary.complete_replica(slot).is_some();
    let mut rows = Vec::new();
    for observation in index.observations_of(counts) {
        let Observation::Stored(Stored { replica, scope: slot, tier, last_seen_ms, blocks, .. }) = observation else {
            continue;
        };
        let (Some(known), Some(scope)) = (dictionary.replica(replica), dictionary.scope(slot)) else { continue };
        for block in blocks {
            let access_count = index.holder(slot, &block.key, replica).map_or(0, |holder| holder.access_count);
            rows.push(Row {
                scope: scope.clone(),
                key: block.key,
                replica_id: known.replica_id.to_string(),
                tier,
                token_count: block.token_count,
                last_seen_ms,
                access_count,
            });
        }
    }
    rows.sort_unstable();
    rows
}
