//! What a publisher reports about replicas' caches.
//!
//! An [`Observation`] is one fact. The hub publishes them numbered with its own slots; the leader VM renumbers them with
//! the slots of its log and commits them there; every index is a fold over them. A slot is never given to another
//! replica or scope within its publisher's lifetime, so that applying a fact twice, or late, cannot credit the
//! wrong one.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod widths;

use crate::fingerprint::PrefixHash;
use crate::routing::policy::Policy;

/// The tenant that the contract keeps for its own probes; a lookup for it is never answered.
pub const RESERVED_TENANT: &str = "inferencecache.io/probe";
/// Bytes of each part of a model's package but the last.
pub const MODEL_PART_BYTES: usize = 48 * 1024;
/// The longest explicit block key.
pub const MAX_KEY_BYTES: usize = 256;
/// The longest tenant, model, scheme, adapter or replica id, in bytes: from producers and over the stream.
pub const MAX_NAME_BYTES: usize = 512;

/// The key of a block: opaque bytes, equal or not.
///
/// A fingerprint and an explicit 8-byte key with the same bytes are the same key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKey {
    /// A key of 8 bytes, read big-endian.
    Hash64(u64),
    /// A key of any other length; without bytes only in requests.
    Bytes(Box<[u8]>),
}

/// A number that stands for a replica in one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaSlot(pub u32);

/// A number that stands for a [`Scope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeSlot(pub u32);

/// A replica as it serves one tenant and one model. A replica that serves several is a member of each, and what is said
/// of one says nothing of the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The tenant.
    pub tenant_id: String,
    /// The model as requests name it.
    pub model_id: String,
    /// The replica's id.
    pub replica_id: String,
}

/// What block keys are relative to: blocks match inside one scope only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The tenant.
    pub tenant_id: String,
    /// The model as requests name it.
    pub model_id: String,
    /// The tag that the producer of keys and the gateway share.
    pub hash_scheme: String,
    /// The LoRA adapter; empty for the base model.
    pub adapter_id: String,
}

/// Where a block is; colder tiers are slower to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The engine's KV cache.
    #[default]
    T1,
    /// Local offload.
    T2,
    /// Remote.
    T3,
    /// Not known; the coldest, since nothing can be assumed.
    Unspecified,
}

/// A block that a replica holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// The block's key.
    pub key: BlockKey,
    /// Tokens from the start of the prompt to the end of this block.
    pub token_count: u32,
}

/// Blocks that a replica holds, what is said of all of them alike, in the order of the prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The replica.
    pub replica: ReplicaSlot,
    /// What the keys are relative to.
    pub scope: ScopeSlot,
    /// Where the blocks are.
    pub tier: Tier,
    /// When they were last reported, Unix time in ms.
    pub last_seen_ms: u64,
    /// The block before the first one in the prompt, where that is known; not necessarily one that the replica holds.
    pub parent: Option<BlockKey>,
    /// Every key is the [prefix hash](crate::fingerprint::PrefixHash) of the prompt up to its block, made from the key before
    /// it, the first from the parent. Only whoever made the keys may say so: where it is not so, replicas would be
    /// credited with blocks that they do not hold.
    pub chained: bool,
    /// In the log only: the page of shared data that lists the blocks.
    pub page: u16,
    /// In pages, and in the log where hits count: delivered hits of each block. Nothing leaves them as they were, 0 for a
    /// block not held before: enough where there are none.
    pub access_count: Option<u32>,
    /// The blocks.
    pub blocks: Vec<StoredBlock>,
}

/// Delivered hits of blocks: what they are now, so that applying this twice, or late, changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What the keys are relative to.
    pub scope: ScopeSlot,
    /// The blocks, of which each replica counts some from the first on.
    pub keys: Vec<BlockKey>,
    /// The counts at each replica.
    pub replicas: Vec<ReplicaCounts>,
}

/// Delivered hits at one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// The replica.
    pub replica: ReplicaSlot,
    /// The count of each key, of the first ones if there are fewer.
    pub counts: Vec<u32>,
}

/// One reported fact about a replica's cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// `slot` stands for `scope` from now on.
    Scope {
        /// The number.
        slot: ScopeSlot,
        /// What it stands for.
        scope: Scope,
    },
    /// Nothing is held under `slot` any more, and it is not used again.
    ScopeGone {
        /// The number.
        slot: ScopeSlot,
    },
    /// `replica` stands for a new generation of what `replica_id` holds for one tenant and model; it counts from its
    /// [`Observation::ReplicaComplete`].
    ReplicaUp {
        /// The number.
        replica: ReplicaSlot,
        /// The replica's id, the tenant and the model.
        member: Member,
        /// Where Envoy reaches it: `ip:port`, IPv6 in brackets; empty if that is not known.
        address: String,
        /// The rank of data parallelism that it is, where the engine at the address has several.
        data_parallel_rank: Option<u32>,
    },
    /// All that the replica holds has been reported: it counts now, and an older generation no longer does.
    ReplicaComplete {
        /// The replica.
        replica: ReplicaSlot,
    },
    /// The replica is gone for good, and its older generations with it.
    ReplicaGone {
        /// The replica.
        replica: ReplicaSlot,
    },
    /// The replica holds these blocks (`BlockStored`).
    Stored(Stored),
    /// The replica no longer holds these blocks (`BlockRemoved`).
    Removed {
        /// The replica.
        replica: ReplicaSlot,
        /// What the keys are relative to.
        scope: ScopeSlot,
        /// The blocks.
        keys: Vec<BlockKey>,
    },
    /// The replica holds nothing any more (`AllBlocksCleared`).
    Cleared {
        /// The replica.
        replica: ReplicaSlot,
    },
    /// Whoever follows the replica's engine knows that it still holds all that was reported of it and not taken back
    /// before this, as if all of it had been reported again at `at_ms`.
    Reasserted {
        /// The replica.
        replica: ReplicaSlot,
        /// When it was known, Unix time in ms.
        at_ms: u64,
    },
    /// In the log only: delivered hits of blocks, as the leader counted them.
    Counted(Counted),
    /// The replica's load.
    Stats {
        /// The replica.
        replica: ReplicaSlot,
        /// The figures.
        stats: ReplicaStats,
    },
    /// The policy of a tenant from now on.
    Policy {
        /// The tenant; none for those without a policy of their own.
        tenant_id: Option<String>,
        /// The policy.
        policy: Policy,
    },
    /// The publisher has no policy for a tenant any more.
    PolicyGone {
        /// As in [`Observation::Policy`].
        tenant_id: Option<String>,
    },
    /// What turns the model's text into token ids, from now on.
    Model {
        /// The model as requests name it.
        model_id: String,
        /// Names the contents.
        version: ModelVersion,
    },
    /// The model's text cannot be turned into token ids any more.
    ModelGone {
        /// As in [`Observation::Model`].
        model_id: String,
    },
    /// In the log only: the hub's number for `scope`, so that the next leader can go on with the hub's stream.
    PublishedScope {
        /// The log's number.
        slot: ScopeSlot,
        /// The hub's number.
        published: ScopeSlot,
    },
    /// In the log only: the hub's number for `replica`.
    PublishedReplica {
        /// The log's number.
        replica: ReplicaSlot,
        /// The hub's number.
        published: ReplicaSlot,
    },
}

/// Names the contents of a model's package, whose layout [`crate::model`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelDigest(pub u128);

/// A model's package as it was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelVersion {
    /// XXH3-128 of the contents.
    pub digest: ModelDigest,
    /// Length of the contents in bytes, at least 1.
    pub length: u32,
}

/// A part of a model's package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// Of which contents.
    pub digest: ModelDigest,
    /// Counts the parts from 0; each has [`MODEL_PART_BYTES`], the last one what is left.
    pub number: u32,
    /// The bytes.
    pub contents: Vec<u8>,
}

/// A replica's load as it reported it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplicaStats {
    /// From 0 (idle) to 1 (saturated).
    pub pressure: f32,
    /// Share of queried prefix tokens served from cache since the previous report, 0 to 1.
    pub hit_rate: f32,
    /// When the replica reported this, Unix time in ms.
    pub reported_ms: u64,
}

/// One message of the Observe stream. `proto/warmroute/v1/observation.proto` has the guarantees.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMessage {
    /// Counts the messages of one stream, from 1.
    pub number: u64,
    /// The hub's lifetime, never 0.
    pub epoch: u64,
    /// The subscriber's position once this message is applied.
    pub sequence: u64,
    /// What the message says.
    pub body: StreamBody,
}

/// What a [`StreamMessage`] says.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamBody {
    /// Full state follows.
    Reset,
    /// A part of the full state.
    Chunk(Vec<Observation>),
    /// The full state is complete; a replica not announced since the reset is gone.
    ResetComplete,
    /// Deltas continue from the subscriber's position.
    Resumed,
    /// Changes, in order.
    Delta {
        /// The first sequence in this message.
        first_sequence: u64,
        /// The changes.
        observations: Vec<Observation>,
    },
    /// Nothing new; the hub lives.
    Heartbeat,
    /// A part of what was asked for with [`SubscriberMessage::WantModel`]; the position stays.
    ModelPart(ModelPart),
}

/// What a subscriber asks for first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    /// Who subscribes, for logs and metrics.
    pub node_id: String,
    /// The subscriber's build.
    pub version: String,
    /// Epoch of the last message applied, 0 for none.
    pub epoch: u64,
    /// Sequence of the last message applied, 0 for none.
    pub sequence: u64,
    /// Only these models; empty for all.
    pub models: Vec<String>,
    /// Only these tenants; empty for all.
    pub tenants: Vec<String>,
}

/// What a subscriber sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriberMessage {
    /// The first message, and only the first.
    Subscribe(Subscription),
    /// The highest [`StreamMessage::number`] applied.
    Acknowledge(u64),
    /// Send the contents of a model's version, from a part on, in place of what was asked for before.
    WantModel {
        /// Of which contents.
        digest: ModelDigest,
        /// The first part to send.
        first_part: u32,
    },
}

/// A key without bytes: it would stand for every prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyKey;

// === impl ModelVersion ===

impl ModelVersion {
    /// Number of parts in which the contents are sent.
    pub fn parts(self) -> u32 {
        // A quotient of a u32.
        self.length.div_ceil(MODEL_PART_BYTES as u32)
    }

    /// Length of a part in bytes; 0 of one that there is not.
    pub fn part_bytes(self, number: u32) -> usize {
        let start = (number as usize).saturating_mul(MODEL_PART_BYTES);
        (self.length as usize).saturating_sub(start).min(MODEL_PART_BYTES)
    }
}

// === impl Scope ===

impl Scope {
    /// What it is called by.
    pub fn names(&self) -> [&str; 4] {
        [&self.tenant_id, &self.model_id, &self.hash_scheme, &self.adapter_id]
    }
}

// === impl Member ===

impl Member {
    /// What it is called by.
    pub fn names(&self) -> [&str; 3] {
        [&self.tenant_id, &self.model_id, &self.replica_id]
    }

    /// `replica_id` as it serves `tenant_id` and `model_id`.
    pub fn new(tenant_id: impl Into<String>, model_id: impl Into<String>, replica_id: impl Into<String>) -> Member {
        Member { tenant_id: tenant_id.into(), model_id: model_id.into(), replica_id: replica_id.into() }
    }
}

// === impl Stored ===

impl Stored {
    /// The same in parts of at most `blocks` blocks, at least 1, each with the block before it.
    pub fn in_parts(mut self, blocks: usize) -> Vec<Observation> {
        let mut parts = Vec::with_capacity(self.blocks.len().div_ceil(blocks.max(1)));
        let all = std::mem::take(&mut self.blocks);
        for part in all.chunks(blocks.max(1)) {
            let parent = part.last().map(|block| block.key.clone());
            parts.push(Observation::Stored(Stored { blocks: part.to_vec(), ..self.clone() }));
            self.parent = parent;
        }
        parts
    }
}

// === impl BlockKey ===

impl BlockKey {
    /// The key with these bytes.
    ///
    /// # Errors
    /// When there are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<BlockKey, EmptyKey> {
        if let Ok(eight) = <[u8; 8]>::try_from(bytes) {
            return Ok(BlockKey::Hash64(u64::from_be_bytes(eight)));
        }
        if bytes.is_empty() { Err(EmptyKey) } else { Ok(BlockKey::Bytes(bytes.into())) }
    }

    /// The key with these bytes as a request gives it: one without bytes is held by nobody.
    pub fn of_request(bytes: &[u8]) -> BlockKey {
        BlockKey::from_bytes(bytes).unwrap_or_else(|EmptyKey| BlockKey::Bytes(Box::default()))
    }

    /// Appends the key's bytes to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match self {
            BlockKey::Hash64(hash) => out.extend_from_slice(&hash.to_be_bytes()),
            BlockKey::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }

    /// Length in bytes.
    pub fn width(&self) -> usize {
        match self {
            BlockKey::Hash64(_) => 8,
            BlockKey::Bytes(bytes) => bytes.len(),
        }
    }
}

impl From<PrefixHash> for BlockKey {
    fn from(hash: PrefixHash) -> BlockKey {
        BlockKey::Hash64(hash.0)
    }
}

// === impl Tier ===

impl Tier {
    /// The number used on the wire and in the log: 1 to 3, 0 for unspecified.
    pub fn number(self) -> u8 {
        match self {
            Tier::Unspecified => 0,
            Tier::T1 => 1,
            Tier::T2 => 2,
            Tier::T3 => 3,
        }
    }

    /// The tier with this number; anything outside 1 to 3 is unspecified.
    pub fn from_number(number: u32) -> Tier {
        match number {
            1 => Tier::T1,
            2 => Tier::T2,
            3 => Tier::T3,
            _ => Tier::Unspecified,
        }
    }
}

impl std::fmt::Display for EmptyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a block key is empty, at least 1 byte is needed")
    }
}

impl std::error::Error for EmptyKey {}
