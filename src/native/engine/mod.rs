//! What engines say about their KV caches, in one form for all of them.
//!
//! In: the payload of an engine's event batch. Out: [`KvEvent`]s, field by field as the engine sent them, and for each
//! event that cannot be read the [`SkipReason`]. Nothing is credited here: [`creditable`] decides which blocks of an
//! event stand for their tokens alone, [`chaining`] where in a prompt they are, [`medium`] how near, and
//! `hub::replica_cache` keeps what a replica holds.
//!
//! `README.md` beside this file has the layouts, field by field and version by version.

pub mod batch;
pub mod chaining;
pub mod creditable;
pub mod layout;
pub mod medium;
pub mod msgpack;
pub mod python_hash;
pub mod sglang;
pub mod smg;
pub mod tensorrt_llm;
pub mod vllm;

use crate::native::hub::config::EngineKind;
pub use batch::{MalformedBatch, decode};
pub use layout::Dialect;

/// An engine's own key of a block. Opaque: it is only compared, never computed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EngineKey {
    /// An integer; a signed one by its two's complement bits.
    Int(u64),
    /// Raw bytes.
    Bytes(Box<[u8]>),
}

/// The content of one published message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The engine's clock when the batch was made, Unix time in seconds.
    pub timestamp: Option<f64>,
    /// The rank that published it.
    pub data_parallel_rank: Option<i64>,
    /// The events in order, with [`KvEvent::Missed`] for those that could not be read.
    pub events: Vec<KvEvent>,
    /// How many events could be read.
    pub read: u64,
    /// Why others could not, and how many.
    pub faults: Vec<(EventFault, u64)>,
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
    /// Nothing is in this storage any more; what is in others stays.
    TierBlocksCleared(Place),
    /// Not an engine's event: something was said here that is not known.
    Missed(Missed),
}

/// What may have been said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// That blocks are stored.
    Stores,
    /// That blocks are gone, so that nothing known is certain any more.
    Anything,
}

/// A run of consecutive blocks that entered the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockStored {
    /// The blocks' keys, in prompt order.
    pub block_hashes: Vec<EngineKey>,
    /// The block before the first one; `None` at the start of a prompt.
    pub parent_block_hash: Option<EngineKey>,
    /// The tokens of these blocks, up to the first that is not a plain id; can cover blocks that are not listed.
    pub token_ids: Vec<u32>,
    /// Tokens from the first on that is not a plain id.
    pub further_tokens: usize,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Blocks that are said to start no prompt and to follow no block.
    UnprovenRoot,
    /// Blocks whose key stands, or may stand, for more than one prefix.
    AmbiguousKey,
    /// Blocks whose keys depend on more than tokens and adapter.
    ExtraKeys,
    /// Blocks whose keys depend on a salt.
    Salted,
    /// Blocks whose keys depend on tokens after them.
    Lookahead,
    /// Blocks of an adapter without a usable name.
    UnnamedAdapter,
    /// Blocks without tokens.
    NoTokens,
    /// Blocks whose tokens do not cover them exactly.
    TokenCount,
    /// Blocks of another size than the replica's: partial ones.
    BlockSize,
    /// Blocks in a storage of unknown kind.
    Medium,
    /// Blocks of a further group of a hybrid cache.
    Group,
    /// Blocks of attention that does not read the whole prefix.
    AttentionKind,
    /// A key that came again for other tokens; the earlier block is given up.
    KeyReused,
    /// Blocks of a scope beyond the hub's limit.
    TooManyScopes,
    /// A batch of another rank than the one whose publisher sent it.
    OtherRank,
    /// A batch that came while too many were missing.
    Suspended,
}

// === impl Dialect ===

impl Dialect {
    /// What `engine` writes; of one that is not stated, what any of them does.
    pub const fn of(engine: EngineKind) -> Dialect {
        match engine {
            EngineKind::Auto => Dialect { pairs: true, digests: true, metadata: true },
            EngineKind::Vllm => vllm::DIALECT,
            EngineKind::Sglang => sglang::DIALECT,
            EngineKind::TensorrtLlm => tensorrt_llm::DIALECT,
        }
    }
}

// === impl EventFault ===

impl EventFault {
    /// The reason under which the event is counted.
    pub fn reason(self) -> SkipReason {
        match self {
            EventFault::UnknownTag => SkipReason::UnknownEvent,
            EventFault::Malformed { .. } => SkipReason::MalformedEvent,
        }
    }
}

// === impl SkipReason ===

impl SkipReason {
    /// Every reason.
    pub const ALL: [SkipReason; 21] = [
        SkipReason::MalformedBatch,
        SkipReason::MalformedEvent,
        SkipReason::UnknownEvent,
        SkipReason::UnknownParent,
        SkipReason::UnknownBlock,
        SkipReason::UnprovenRoot,
        SkipReason::AmbiguousKey,
        SkipReason::ExtraKeys,
        SkipReason::Salted,
        SkipReason::Lookahead,
        SkipReason::UnnamedAdapter,
        SkipReason::NoTokens,
        SkipReason::TokenCount,
        SkipReason::BlockSize,
        SkipReason::Medium,
        SkipReason::Group,
        SkipReason::AttentionKind,
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
            SkipReason::UnprovenRoot => "unproven_root",
            SkipReason::AmbiguousKey => "ambiguous_key",
            SkipReason::ExtraKeys => "extra_keys",
            SkipReason::Salted => "salted",
            SkipReason::Lookahead => "lookahead",
            SkipReason::UnnamedAdapter => "unnamed_adapter",
            SkipReason::NoTokens => "no_tokens",
            SkipReason::TokenCount => "token_count",
            SkipReason::BlockSize => "block_size",
            SkipReason::Medium => "medium",
            SkipReason::Group => "group",
            SkipReason::AttentionKind => "attention_kind",
            SkipReason::KeyReused => "key_reused",
            SkipReason::TooManyScopes => "too_many_scopes",
            SkipReason::OtherRank => "other_rank",
            SkipReason::Suspended => "suspended",
        }
    }

    /// What it means, for people.
    pub fn cause(self) -> &'static str {
        match self {
            SkipReason::MalformedBatch => "messages are not batches of KV events",
            SkipReason::MalformedEvent => "an event has a field of the wrong type",
            SkipReason::UnknownEvent => "events of an unknown kind",
            SkipReason::UnknownParent => "the block before them is not known",
            SkipReason::UnknownBlock => "blocks were removed that are not known",
            SkipReason::UnprovenRoot => "this engine's events do not say where in a prompt blocks are",
            SkipReason::AmbiguousKey => "this engine gives blocks of different prompts the same key",
            SkipReason::ExtraKeys => "keys depend on more than tokens and adapter, such as images",
            SkipReason::Salted => "keys depend on a salt",
            SkipReason::Lookahead => "keys depend on the tokens after a block",
            SkipReason::UnnamedAdapter => "an adapter has no name; `adapter_names` can give its number one",
            SkipReason::NoTokens => "blocks came without tokens",
            SkipReason::TokenCount => "tokens do not cover the blocks exactly",
            SkipReason::BlockSize => "blocks of another size than the replica's",
            SkipReason::Medium => "blocks in a storage of unknown kind",
            SkipReason::Group => "blocks of a further group of a hybrid cache",
            SkipReason::AttentionKind => "blocks of attention that does not read the whole prefix",
            SkipReason::KeyReused => "a key came again for other tokens",
            SkipReason::TooManyScopes => "more adapters than the hub keeps apart",
            SkipReason::OtherRank => "batches state another rank than that of the port they came from",
            SkipReason::Suspended => "too many messages were missing, so that nothing is applied for a while",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_every_reason() {
        let readme = include_str!("README.md");
        let rows: Vec<&str> = readme
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(reason, _)| reason)
            .collect();
        for reason in SkipReason::ALL {
            assert!(rows.contains(&reason.as_str()), "{}", reason.as_str());
        }
    }
}
