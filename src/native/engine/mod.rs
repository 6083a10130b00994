//! What engines say about their KV caches, in one form for all of them.
//!
//! In: the payload of an engine's event batch. Out: [`KvEvent`]s, field by field as the engine sent them, and for each
//! event that cannot be read the [`SkipReason`]. Nothing is credited here: [`creditable`] decides which blocks of an
//! event stand for their tokens alone, and `hub::replica_cache` keeps what a replica holds.

pub mod creditable;
pub mod smg;
pub mod vllm;

/// An engine's own key of a block. Opaque: it is only compared, never computed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineKey {
    /// An integer; a signed one by its two's complement bits.
    Int(u64),
    /// Raw bytes.
    Bytes(Box<[u8]>),
}

/// The content of one published message.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The engine's clock when the batch was made, Unix time in seconds.
    pub timestamp: Option<f64>,
    /// The rank of data parallelism that it says it is of.
    pub data_parallel_rank: Option<i64>,
    /// The events in order; `Err` for one that could not be read.
    pub events: Vec<Result<KvEvent, EventFault>>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum KvEvent {
    /// Blocks entered the cache.
    BlockStored(BlockStored),
    /// Blocks left the cache.
    BlockRemoved(BlockRemoved),
    /// The cache is empty.
    AllBlocksCleared,
}

/// A run of consecutive blocks that entered the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockStored {
    /// The blocks' keys, in prompt order.
    pub block_hashes: Vec<EngineKey>,
    /// The block before the first one; `None` at the start of a prompt.
    pub parent_block_hash: Option<EngineKey>,
    /// The tokens of these blocks; can cover blocks that are not listed.
    pub token_ids: Vec<u32>,
    /// Tokens in a block.
    pub block_size: u64,
    /// The adapter's number, in engines that do not send its name.
    pub lora_id: Option<i64>,
    /// The adapter's name.
    pub lora_name: Option<String>,
    /// Where the blocks are.
    pub place: Place,
    /// What kind of attention uses these blocks; `None` where the engine does not say.
    pub kv_cache_spec_kind: Option<String>,
    /// For each block what its key depends on besides tokens; empty where the engine does not say.
    pub extra_keys: Vec<ExtraKeys>,
    /// Whether a cache salt is part of the keys.
    pub salted: bool,
    /// Whether keys depend on tokens that follow their block.
    pub looks_ahead: bool,
}

/// Blocks that left the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockRemoved {
    /// The blocks' keys.
    pub block_hashes: Vec<EngineKey>,
    /// Where they were.
    pub place: Place,
}

/// Where blocks are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The storage as the engine names it, such as `GPU`; `None` is the engine's KV cache.
    pub medium: Option<String>,
    /// The group of a hybrid cache; `None` is the only one.
    pub group_idx: Option<u64>,
    /// Whether the blocks are on another machine.
    pub remote: bool,
}

/// What a block's key depends on besides its tokens and its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraKeys {
    /// Nothing.
    None,
    /// One text, which is the adapter's name if the event names that adapter.
    Text(String),
    /// Anything else: images, a salt, prompt embeddings.
    Other,
}

/// Why one event of a batch could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventFault {
    /// A tag this build does not know.
    UnknownTag,
    /// A known event with a field of the wrong type.
    Malformed {
        /// The event's tag.
        tag: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// Why something an engine reported is not credited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// A batch that is not what the engine's format says.
    MalformedBatch,
    /// An event with a field of the wrong type.
    MalformedEvent,
    /// An event of an unknown kind.
    UnknownEvent,
    /// Blocks that continue a block which is not known.
    UnknownParent,
    /// Removed blocks that are not known.
    UnknownBlock,
    /// Blocks whose keys depend on more than tokens and adapter.
    ExtraKeys,
    /// Blocks of an adapter without a usable name.
    UnnamedAdapter,
    /// Blocks without tokens.
    NoTokens,
    /// Blocks whose tokens do not cover them exactly.
    TokenCount,
    /// Blocks of another size than the replica's: partial ones.
    BlockSize,
    /// Blocks outside the engine's own KV cache.
    Medium,
    /// Blocks of a further group of a hybrid cache.
    Group,
    /// Blocks of attention that does not read the whole prefix.
    AttentionKind,
    /// Blocks on another machine.
    Remote,
    /// A key that came again for other tokens; the earlier block is given up.
    KeyReused,
    /// Blocks of a scope beyond the hub's limit.
    TooManyScopes,
    /// A batch of another rank than the one whose publisher sent it.
    OtherRank,
    /// A batch that came while too many were missing.
    Suspended,
}

// === impl EventFault ===

impl EventFault {
    /// The reason under which the event is counted.
    pub fn reason(&self) -> SkipReason {
        match self {
            EventFault::UnknownTag => SkipReason::UnknownEvent,
            EventFault::Malformed { .. } => SkipReason::MalformedEvent,
        }
    }

    /// Whether the event may have said that blocks are gone, so that nothing known of the replica is certain any more.
    pub fn may_hide_a_removal(&self) -> bool {
        matches!(self, EventFault::Malformed { tag, .. } if *tag != vllm::BLOCK_STORED)
    }
}

// === impl SkipReason ===

impl SkipReason {
    /// Every reason.
    pub const ALL: [SkipReason; 18] = [
        SkipReason::MalformedBatch,
        SkipReason::MalformedEvent,
        SkipReason::UnknownEvent,
        SkipReason::UnknownParent,
        SkipReason::UnknownBlock,
        SkipReason::ExtraKeys,
        SkipReason::UnnamedAdapter,
        SkipReason::NoTokens,
        SkipReason::TokenCount,
        SkipReason::BlockSize,
        SkipReason::Medium,
        SkipReason::Group,
        SkipReason::AttentionKind,
        SkipReason::Remote,
        SkipReason::KeyReused,
        SkipReason::TooManyScopes,
        SkipReason::OtherRank,
        SkipReason::Suspended,
    ];

    /// The value of the metric's `reason` label.
    pub fn as_str(self) -> &'static str {
        match self {
            SkipReason::MalformedBatch => "malformed_batch",
            SkipReason::MalformedEvent => "malformed_event",
            SkipReason::UnknownEvent => "unknown_event",
            SkipReason::UnknownParent => "unknown_parent",
            SkipReason::UnknownBlock => "unknown_block",
            SkipReason::ExtraKeys => "extra_keys",
            SkipReason::UnnamedAdapter => "unnamed_adapter",
            SkipReason::NoTokens => "no_tokens",
            SkipReason::TokenCount => "token_count",
            SkipReason::BlockSize => "block_size",
            SkipReason::Medium => "medium",
            SkipReason::Group => "group",
            SkipReason::AttentionKind => "attention_kind",
            SkipReason::Remote => "remote",
            SkipReason::KeyReused => "key_reused",
            SkipReason::TooManyScopes => "too_many_scopes",
            SkipReason::OtherRank => "other_rank",
            SkipReason::Suspended => "suspended",
        }
    }
}
