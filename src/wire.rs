//! The Observe stream's protobuf messages to and from domain types.
//!
//! In: bytes that another process sent. Out: [`StreamMessage`]s that can be trusted in shape: keys are whole and not
//! empty, counts fit the keys, every message has a body. What does not hold is refused as a whole with the field's
//! name. The only file that sees both prost types and domain types; `proto/warmroute/v1/observation.proto` is the
//! reference for the fields.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use prost::Message;

use crate::observation::{
    BlockKey, Counted, MODEL_PART_BYTES, Member, ModelDigest, ModelPart, ModelVersion, Observation, ReplicaCounts,
    ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored, StoredBlock, StreamBody, StreamMessage, SubscriberMessage,
    Subscription, Tier,
};
use crate::routing::policy::{Eviction, Policy, Strategy};

/// Types generated from `warmroute.v1`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/warmroute.v1.rs"));
}

/// Full name of the service.
pub const SERVICE: &str = "warmroute.v1.Observation";
/// The streaming method.
pub const METHOD: &str = "Observe";
/// The largest encoded message the hub sends.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// The most bytes of messages the hub sends ahead of the subscriber's acknowledgement.
pub const MAX_UNACKNOWLEDGED_BYTES: usize = 256 * 1024;
/// The most bytes that stand before a fact in a message: the field's tag and the fact's length.
const FACT_OVERHEAD_BYTES: usize = 4;
pub use crate::observation::MAX_KEY_BYTES;

/// Why a message was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not a protobuf message of the expected type.
    NotProtobuf(String),
    /// A message or fact without a kind, or of a kind this build does not know.
    NoKind(&'static str),
    /// A field with a value that is not allowed.
    Field {
        /// The field's name in the proto file.
        field: &'static str,
        /// What is wrong and what is allowed.
        problem: &'static str,
    },
}

/// Encodes what a subscriber sends.
pub fn encode_subscriber_message(message: &SubscriberMessage) -> Vec<u8> {
    subscriber_message_to_proto(message).encode_to_vec()
}

/// Decodes what the hub sends.
///
/// # Errors
/// When the bytes are not a well-formed `ObserveResponse`.
pub fn decode_stream_message(bytes: &[u8]) -> Result<StreamMessage, Malformed> {
    let message = v1::ObserveResponse::decode(bytes).map_err(|error| Malformed::NotProtobuf(error.to_string()))?;
    stream_message_from_proto(message)
}

/// Encodes observations as a log segment or page holds them: a `Chunk`.
pub fn encode_records(observations: &[Observation]) -> Vec<u8> {
    v1::Chunk { facts: all_facts_to_proto(observations) }.encode_to_vec()
}

/// Decodes the records of a log segment or page.
///
/// # Errors
/// When the bytes are not a well-formed `Chunk`.
pub fn decode_records(bytes: &[u8]) -> Result<Vec<Observation>, Malformed> {
    let chunk = v1::Chunk::decode(bytes).map_err(|error| Malformed::NotProtobuf(error.to_string()))?;
    facts_from_proto(chunk.facts)
}

/// The protobuf form of what a subscriber sends.
pub fn subscriber_message_to_proto(message: &SubscriberMessage) -> v1::ObserveRequest {
    use v1::observe_request::Kind;
    let kind = match message {
        SubscriberMessage::Acknowledge(number) => Kind::Acknowledge(v1::Acknowledge { number: *number }),
        SubscriberMessage::WantModel { digest, first_part } => {
            Kind::WantModel(v1::WantModel { digest: digest_to_proto(*digest), first_part: *first_part })
        }
        SubscriberMessage::Subscribe(subscription) => Kind::Subscribe(v1::Subscribe {
            node_id: subscription.node_id.clone(),
            version: subscription.version.clone(),
            epoch: subscription.epoch,
            sequence: subscription.sequence,
            models: subscription.models.clone(),
            tenants: subscription.tenants.clone(),
        }),
    };
    v1::ObserveRequest { kind: Some(kind) }
}

/// What a subscriber sent.
///
/// # Errors
/// When the message has no kind.
pub fn subscriber_message_from_proto(message: v1::ObserveRequest) -> Result<SubscriberMessage, Malformed> {
    use v1::observe_request::Kind;
    match message.kind.ok_or(Malformed::NoKind("ObserveRequest"))? {
        Kind::Acknowledge(acknowledge) => Ok(SubscriberMessage::Acknowledge(acknowledge.number)),
        Kind::WantModel(want) => {
            Ok(SubscriberMessage::WantModel { digest: digest_from_proto(&want.digest)?, first_part: want.first_part })
        }
        Kind::Subscribe(subscribe) => Ok(SubscriberMessage::Subscribe(Subscription {
            node_id: subscribe.node_id,
            version: subscribe.version,
            epoch: subscribe.epoch,
            sequence: subscribe.sequence,
            models: subscribe.models,
            tenants: subscribe.tenants,
        })),
    }
}

/// The protobuf form of a stream message.
pub fn stream_message_to_proto(message: &StreamMessage) -> v1::ObserveResponse {
    use v1::observe_response::Kind;
    let kind = match &message.body {
        StreamBody::Reset => Kind::Reset(v1::Reset {}),
        StreamBody::Chunk(observations) => Kind::Chunk(v1::Chunk { facts: all_facts_to_proto(observations) }),
        StreamBody::ResetComplete => Kind::ResetComplete(v1::ResetComplete {}),
        StreamBody::Resumed => Kind::Resumed(v1::Resumed {}),
        StreamBody::Delta { first_sequence, observations } => {
            Kind::Delta(v1::Delta { first_sequence: *first_sequence, facts: all_facts_to_proto(observations) })
        }
        StreamBody::Heartbeat => Kind::Heartbeat(v1::Heartbeat {}),
        StreamBody::ModelPart(part) => Kind::ModelPart(v1::ModelPart {
            digest: digest_to_proto(part.digest),
            number: part.number,
            contents: part.contents.clone().into(),
        }),
    };
    v1::ObserveResponse { number: message.number, epoch: message.epoch, sequence: message.sequence, kind: Some(kind) }
}

/// A stream message as the hub sent it.
///
/// # Errors
/// When a field is missing or has a value that is not allowed.
pub fn stream_message_from_proto(message: v1::ObserveResponse) -> Result<StreamMessage, Malformed> {
    use v1::observe_response::Kind;
    if message.epoch == 0 {
        return Err(Malformed::Field { field: "epoch", problem: "is 0, must name the hub's lifetime" });
    }
    let body = match message.kind.ok_or(Malformed::NoKind("ObserveResponse"))? {
        Kind::Reset(_) => StreamBody::Reset,
        Kind::Chunk(chunk) => StreamBody::Chunk(facts_from_proto(chunk.facts)?),
        Kind::ResetComplete(_) => StreamBody::ResetComplete,
        Kind::Resumed(_) => StreamBody::Resumed,
        Kind::Delta(delta) => {
            StreamBody::Delta { first_sequence: delta.first_sequence, observations: facts_from_proto(delta.facts)? }
        }
        Kind::Heartbeat(_) => StreamBody::Heartbeat,
        Kind::ModelPart(part) => StreamBody::ModelPart(part_from_proto(part)?),
    };
    Ok(StreamMessage { number: message.number, epoch: message.epoch, sequence: message.sequence, body })
}

/// The bytes that an observation takes in an encoded message, at most: its facts, and what stands before each.
pub fn facts_bytes(observation: &Observation) -> usize {
    facts_to_proto(observation).iter().map(|fact| fact.encoded_len().saturating_add(FACT_OVERHEAD_BYTES)).sum()
}

/// The protobuf form of one observation: one fact, several where its keys differ in width, as a fact has one for all.
/// Keys that nobody can hold, without bytes or too long, are left out.
pub fn facts_to_proto(observation: &Observation) -> Vec<v1::Fact> {
    if observation.is_uniform() {
        return vec![fact_to_proto(observation)];
    }
    observation.clone().into_uniform().iter().map(fact_to_proto).collect()
}

/// The fact of an observation that [is uniform](Observation::is_uniform).
fn fact_to_proto(observation: &Observation) -> v1::Fact {
    use v1::fact::Kind;
    let kind = match observation {
        Observation::Scope { slot, scope } => Kind::Scope(v1::Scope {
            scope: slot.0,
            tenant_id: scope.tenant_id.clone(),
            model_id: scope.model_id.clone(),
            hash_scheme: scope.hash_scheme.clone(),
            adapter_id: scope.adapter_id.clone(),
        }),
        Observation::ScopeGone { slot } => Kind::ScopeGone(v1::ScopeGone { scope: slot.0 }),
        Observation::ReplicaUp { replica, member, address, data_parallel_rank } => Kind::ReplicaUp(v1::ReplicaUp {
            replica: replica.0,
            replica_id: member.replica_id.clone(),
            address: address.clone(),
            tenant_id: member.tenant_id.clone(),
            model_id: member.model_id.clone(),
            data_parallel_rank: *data_parallel_rank,
        }),
        Observation::ReplicaComplete { replica } => Kind::ReplicaComplete(v1::ReplicaComplete { replica: replica.0 }),
        Observation::ReplicaGone { replica } => Kind::ReplicaGone(v1::ReplicaGone { replica: replica.0 }),
        Observation::Stored(stored) => Kind::Stored(stored_to_proto(stored)),
        Observation::Removed { replica, scope, keys } => {
            let (keys, key_bytes) = concatenated(keys.iter());
            Kind::Removed(v1::BlockRemoved { replica: replica.0, scope: scope.0, keys, key_bytes })
        }
        Observation::Cleared { replica } => Kind::Cleared(v1::AllBlocksCleared { replica: replica.0 }),
        Observation::Reasserted { replica, at_ms } => {
            Kind::Reasserted(v1::Reasserted { replica: replica.0, at_ms: *at_ms })
        }
        Observation::Counted(counted) => Kind::Counted(counted_to_proto(counted)),
        Observation::Stats { replica, stats } => Kind::Stats(v1::ReplicaStats {
            replica: replica.0,
            pressure: stats.pressure,
            hit_rate: stats.hit_rate,
            reported_ms: stats.reported_ms,
        }),
        Observation::Policy { tenant_id, policy } => Kind::Policy(policy_to_proto(tenant_id.as_deref(), policy)),
        Observation::PolicyGone { tenant_id } => {
            Kind::PolicyGone(v1::CachePolicyGone { tenant_id: tenant_id.clone().unwrap_or_default() })
        }
        Observation::Model { model_id, version } => Kind::Model(v1::ModelVersion {
            model_id: model_id.clone(),
            digest: digest_to_proto(version.digest),
            length: version.length,
        }),
        Observation::ModelGone { model_id } => Kind::ModelGone(v1::ModelGone { model_id: model_id.clone() }),
        Observation::PublishedScope { slot, published } => {
            Kind::PublishedScope(v1::PublishedNumber { number: slot.0, published: published.0 })
        }
        Observation::PublishedReplica { replica, published } => {
            Kind::PublishedReplica(v1::PublishedNumber { number: replica.0, published: published.0 })
        }
    };
    v1::Fact { kind: Some(kind) }
}

/// One observation as the hub sent it.
///
/// # Errors
/// When a field is missing or has a value that is not allowed.
pub fn fact_from_proto(fact: v1::Fact) -> Result<Observation, Malformed> {
    use v1::fact::Kind;
    Ok(match fact.kind.ok_or(Malformed::NoKind("Fact"))? {
        Kind::Scope(scope) => Observation::Scope {
            slot: ScopeSlot(scope.scope),
            scope: Scope {
                tenant_id: scope.tenant_id,
                model_id: scope.model_id,
                hash_scheme: scope.hash_scheme,
                adapter_id: scope.adapter_id,
            },
        },
        Kind::ScopeGone(gone) => Observation::ScopeGone { slot: ScopeSlot(gone.scope) },
        Kind::ReplicaUp(up) => {
            if up.replica_id.is_empty() {
                return Err(Malformed::Field { field: "replica_id", problem: "is empty" });
            }
            let member = Member { tenant_id: up.tenant_id, model_id: up.model_id, replica_id: up.replica_id };
            Observation::ReplicaUp {
                replica: ReplicaSlot(up.replica),
                member,
                address: up.address,
                data_parallel_rank: up.data_parallel_rank,
            }
        }
        Kind::ReplicaComplete(complete) => Observation::ReplicaComplete { replica: ReplicaSlot(complete.replica) },
        Kind::ReplicaGone(gone) => Observation::ReplicaGone { replica: ReplicaSlot(gone.replica) },
        Kind::Stored(stored) => Observation::Stored(stored_from_proto(stored)?),
        Kind::Removed(removed) => Observation::Removed {
            replica: ReplicaSlot(removed.replica),
            scope: ScopeSlot(removed.scope),
            keys: split_keys(&removed.keys, removed.key_bytes)?,
        },
        Kind::Cleared(cleared) => Observation::Cleared { replica: ReplicaSlot(cleared.replica) },
        Kind::Reasserted(reasserted) => {
            Observation::Reasserted { replica: ReplicaSlot(reasserted.replica), at_ms: reasserted.at_ms }
        }
        Kind::Counted(counted) => Observation::Counted(counted_from_proto(counted)?),
        Kind::Stats(stats) => Observation::Stats {
            replica: ReplicaSlot(stats.replica),
            stats: ReplicaStats {
                pressure: unit_interval(stats.pressure),
                hit_rate: unit_interval(stats.hit_rate),
                reported_ms: stats.reported_ms,
            },
        },
        Kind::Policy(policy) => {
            let tenant_id = Some(policy.tenant_id.clone()).filter(|tenant_id| !tenant_id.is_empty());
            Observation::Policy { tenant_id, policy: policy_from_proto(&policy)? }
        }
        Kind::PolicyGone(gone) => {
            Observation::PolicyGone { tenant_id: Some(gone.tenant_id).filter(|tenant_id| !tenant_id.is_empty()) }
        }
        Kind::Model(model) => {
            if model.length == 0 {
                return Err(Malformed::Field { field: "length", problem: "is 0, must be at least 1" });
            }
            let version = ModelVersion { digest: digest_from_proto(&model.digest)?, length: model.length };
            Observation::Model { model_id: model.model_id, version }
        }
        Kind::ModelGone(gone) => Observation::ModelGone { model_id: gone.model_id },
        Kind::PublishedScope(pair) => {
            Observation::PublishedScope { slot: ScopeSlot(pair.number), published: ScopeSlot(pair.published) }
        }
        Kind::PublishedReplica(pair) => {
            Observation::PublishedReplica { replica: ReplicaSlot(pair.number), published: ReplicaSlot(pair.published) }
        }
    })
}

fn digest_to_proto(digest: ModelDigest) -> prost::bytes::Bytes {
    digest.0.to_be_bytes().to_vec().into()
}

fn digest_from_proto(bytes: &[u8]) -> Result<ModelDigest, Malformed> {
    let bytes = <[u8; 16]>::try_from(bytes);
    let bytes = bytes.map_err(|_| Malformed::Field { field: "digest", problem: "must have 16 bytes" })?;
    Ok(ModelDigest(u128::from_be_bytes(bytes)))
}

fn part_from_proto(part: v1::ModelPart) -> Result<ModelPart, Malformed> {
    if !(1..=MODEL_PART_BYTES).contains(&part.contents.len()) {
        return Err(Malformed::Field { field: "contents", problem: "must have 1 to 49152 bytes" });
    }
    let digest = digest_from_proto(&part.digest)?;
    Ok(ModelPart { digest, number: part.number, contents: part.contents.into() })
}

fn stored_to_proto(stored: &Stored) -> v1::BlockStored {
    let (keys, key_bytes) = concatenated(stored.blocks.iter().map(|block| &block.key));
    let mut parent = Vec::new();
    // One that is too long is held by nobody: nothing is lost with it.
    let known = stored.parent.iter().filter(|key| key.width() <= MAX_KEY_BYTES);
    known.for_each(|key| key.write_to(&mut parent));
    v1::BlockStored {
        replica: stored.replica.0,
        scope: stored.scope.0,
        tier: u32::from(stored.tier.number()),
        last_seen_ms: stored.last_seen_ms,
        keys,
        key_bytes,
        token_counts: stored.blocks.iter().map(|block| block.token_count).collect(),
        parent: parent.into(),
        chained: stored.chained,
        page: stored.page.into(),
        access_count: stored.access_count,
    }
}

fn stored_from_proto(stored: v1::BlockStored) -> Result<Stored, Malformed> {
    let keys = split_keys(&stored.keys, stored.key_bytes)?;
    if keys.len() != stored.token_counts.len() {
        return Err(Malformed::Field { field: "token_counts", problem: "must have one entry a key" });
    }
    if stored.token_counts.contains(&0) {
        return Err(Malformed::Field { field: "token_counts", problem: "has a 0, must be at least 1" });
    }
    if stored.parent.len() > MAX_KEY_BYTES {
        return Err(Malformed::Field { field: "parent", problem: "must have at most 256 bytes" });
    }
    let page = u16::try_from(stored.page);
    let blocks = keys.into_iter().zip(stored.token_counts);
    Ok(Stored {
        replica: ReplicaSlot(stored.replica),
        scope: ScopeSlot(stored.scope),
        tier: Tier::from_number(stored.tier),
        last_seen_ms: stored.last_seen_ms,
        parent: BlockKey::from_bytes(&stored.parent).ok(),
        chained: stored.chained && (stored.key_bytes == 8 || stored.keys.is_empty()),
        page: page.map_err(|_| Malformed::Field { field: "page", problem: "must be at most 65535" })?,
        access_count: stored.access_count,
        blocks: blocks.map(|(key, token_count)| StoredBlock { key, token_count }).collect(),
    })
}

fn counted_to_proto(counted: &Counted) -> v1::HitCounts {
    let (keys, key_bytes) = concatenated(counted.keys.iter());
    let replicas = counted.replicas.iter();
    let replicas = replicas.map(|at| v1::ReplicaHitCounts { replica: at.replica.0, counts: at.counts.clone() });
    v1::HitCounts { scope: counted.scope.0, keys, key_bytes, replicas: replicas.collect() }
}

fn counted_from_proto(counted: v1::HitCounts) -> Result<Counted, Malformed> {
    let keys = split_keys(&counted.keys, counted.key_bytes)?;
    if counted.replicas.iter().any(|replica| replica.counts.len() > keys.len()) {
        return Err(Malformed::Field { field: "counts", problem: "must have at most one entry a key" });
    }
    let replicas = counted.replicas.into_iter();
    let replicas = replicas.map(|at| ReplicaCounts { replica: ReplicaSlot(at.replica), counts: at.counts });
    Ok(Counted { scope: ScopeSlot(counted.scope), keys, replicas: replicas.collect() })
}

fn policy_to_proto(tenant_id: Option<&str>, policy: &Policy) -> v1::CachePolicy {
    let eviction = match policy.eviction {
        Eviction::Lru => v1::cache_policy::Eviction::Lru,
        Eviction::Lfu => v1::cache_policy::Eviction::Lfu,
    };
    v1::CachePolicy {
        tenant_id: tenant_id.unwrap_or_default().to_owned(),
        eviction: eviction.into(),
        eviction_ttl_ms: policy.eviction_ttl_ms,
        minimum_prefix_tokens: policy.minimum_prefix_tokens,
        minimum_matched_tokens: policy.minimum_matched_tokens,
        routing_floor_score: policy.routing_floor_score,
        lookup_timeout_ms: policy.lookup_timeout_ms,
        enable_chain_matching: policy.strategy.enable_chain_matching,
        require_chain: policy.strategy.require_chain,
        enable_tenant_hot: policy.strategy.enable_tenant_hot,
        affinity_routing: policy.affinity_routing,
    }
}

fn policy_from_proto(policy: &v1::CachePolicy) -> Result<Policy, Malformed> {
    let eviction = match v1::cache_policy::Eviction::try_from(policy.eviction) {
        Ok(v1::cache_policy::Eviction::Lru) => Eviction::Lru,
        Ok(v1::cache_policy::Eviction::Lfu) => Eviction::Lfu,
        Err(_) => return Err(Malformed::Field { field: "eviction", problem: "must be LRU or LFU" }),
    };
    if policy.eviction_ttl_ms == 0 {
        return Err(Malformed::Field { field: "eviction_ttl_ms", problem: "is 0, must be at least 1" });
    }
    let routing_floor_score = policy.routing_floor_score;
    if !routing_floor_score.is_finite() || routing_floor_score < 0.0 {
        return Err(Malformed::Field { field: "routing_floor_score", problem: "must be finite and not negative" });
    }
    Ok(Policy {
        eviction,
        eviction_ttl_ms: policy.eviction_ttl_ms,
        minimum_prefix_tokens: policy.minimum_prefix_tokens,
        minimum_matched_tokens: policy.minimum_matched_tokens,
        routing_floor_score,
        lookup_timeout_ms: policy.lookup_timeout_ms,
        strategy: Strategy {
            enable_chain_matching: policy.enable_chain_matching,
            require_chain: policy.require_chain,
            enable_tenant_hot: policy.enable_tenant_hot,
        },
        affinity_routing: policy.affinity_routing,
    })
}

fn all_facts_to_proto(observations: &[Observation]) -> Vec<v1::Fact> {
    let mut facts = Vec::with_capacity(observations.len());
    for observation in observations {
        if observation.is_uniform() {
            facts.push(fact_to_proto(observation));
        } else {
            facts.extend(facts_to_proto(observation));
        }
    }
    facts
}

/// A kind of fact that this build does not know is skipped: the proto file promises that this is safe.
fn facts_from_proto(facts: Vec<v1::Fact>) -> Result<Vec<Observation>, Malformed> {
    facts.into_iter().filter(|fact| fact.kind.is_some()).map(fact_from_proto).collect()
}

/// Keys of one width, one after another, and that width.
fn concatenated<'a>(keys: impl Iterator<Item = &'a BlockKey>) -> (prost::bytes::Bytes, u32) {
    let mut bytes = Vec::new();
    let mut width = 0;
    for key in keys {
        width = key.width();
        key.write_to(&mut bytes);
    }
    (bytes.into(), u32::try_from(width).unwrap_or(u32::MAX))
}

fn split_keys(bytes: &[u8], key_bytes: u32) -> Result<Vec<BlockKey>, Malformed> {
    let width = key_bytes as usize;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if width == 0 || width > MAX_KEY_BYTES {
        return Err(Malformed::Field { field: "key_bytes", problem: "must be 1 to 256" });
    }
    if !bytes.len().is_multiple_of(width) {
        return Err(Malformed::Field { field: "keys", problem: "length is not a multiple of key_bytes" });
    }
    bytes
        .chunks_exact(width)
        .map(|key| {
            BlockKey::from_bytes(key).map_err(|_| Malformed::Field { field: "keys", problem: "has an empty key" })
        })
        .collect()
}

/// A share between 0 and 1; what is not a number counts as 0.
fn unit_interval(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::NotProtobuf(error) => write!(f, "not a protobuf message: {error}"),
            Malformed::NoKind(message) => write!(f, "{message} has no kind known to this build"),
            Malformed::Field { field, problem } => write!(f, "{field} {problem}"),
        }
    }
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests;
