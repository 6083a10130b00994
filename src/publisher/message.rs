//! What producers report over the public `inferencecache.v1alpha1` contract, field by field.
//!
//! As it came from the wire: nothing in here has been checked yet.

use crate::observation::StoredBlock;

/// `CacheStateUpdate`: blocks that a replica holds, and its load. It adds and refreshes; absence removes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheStateUpdate {
    /// The replica.
    pub replica_id: String,
    /// The model.
    pub model_id: String,
    /// The tenant.
    pub tenant_id: String,
    /// What the hashes are made by.
    pub hash_scheme: String,
    /// When this was true, Unix time in us; 0 for now.
    pub timestamp_us: i64,
    /// The blocks.
    pub prefixes: Vec<PrefixEntry>,
    /// The load.
    pub stats: Option<ReportedStats>,
    /// The adapter of entries that name none.
    pub adapter_id: String,
}

/// `PrefixEntry`: a prefix by its hash, a chain of blocks, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefixEntry {
    /// The hash of the whole prefix.
    pub prefix_hash: Vec<u8>,
    /// Tokens that `prefix_hash` covers.
    pub token_count: i32,
    /// The hashes of the blocks of a chain.
    pub block_hashes: Vec<Vec<u8>>,
    /// Tokens of each of these blocks alone.
    pub block_token_counts: Vec<i32>,
    /// Not in the contract: the block before the first one of the chain, where this is a later
    /// [piece](CacheStateUpdate::into_pieces) of one.
    pub before: Option<StoredBlock>,
    /// `CacheTier`: 0 for the engine's KV cache, 1 to 3 for a tier; anything else is a tier that is not known.
    pub tier: i32,
    /// The adapter; empty for that of the update.
    pub adapter_id: String,
}

/// `ReplicaStats`, but for the replica's id and version, which say nothing that the update does not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReportedStats {
    /// Memory of the cache in bytes.
    pub cache_memory_bytes: i64,
    /// Share of queried tokens served from cache.
    pub hit_rate: f32,
    /// From 0 (idle) to 1 (saturated).
    pub pressure: f32,
    /// Tokens served from the second tier.
    pub t2_hit_tokens: i64,
    /// Tokens asked of the second tier.
    pub t2_query_tokens: i64,
}

/// `CacheEvent`: one change at a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheEvent {
    /// What happened.
    pub kind: EventKind,
    /// The replica.
    pub replica_id: String,
    /// The model.
    pub model_id: String,
    /// The tenant.
    pub tenant_id: String,
    /// The block, under whatever hash scheme.
    pub prefix_hash: Vec<u8>,
    /// When it happened, Unix time in us; 0 for now.
    pub timestamp_us: i64,
    /// The adapter; empty for all.
    pub adapter_id: String,
}

/// `CacheEvent.Type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventKind {
    /// Not set, or not known here; changes nothing.
    #[default]
    Unspecified,
    /// Changes nothing: an event has no hash scheme to store a block under.
    PrefixAdded,
    /// The replica no longer holds the block.
    PrefixEvicted,
    /// The replica lives.
    ReplicaUpdated,
    /// The replica holds nothing any more, and its load is not known.
    AllCleared,
}
