//! The contract's protobuf messages to and from domain types.
//!
//! In: what a client sent, whatever it is. Out: the same in the core's words; nothing is refused here, since a lookup
//! answers what it cannot make sense of, and a publisher counts it. `proto/inferencecache/v1alpha1/inferencecache.proto` is the reference for
//! the fields.

use bytes::Bytes;

use crate::fingerprint::BlockSize;
use crate::observation::{BlockKey, Scope, Tier};
use crate::publisher::CacheState;
use crate::publisher::message::{self, EventKind};
use crate::request::{ChainBlock, LookupRequest, PromptInput, PromptSource, TextPrompt, WireChain};
use crate::routing::decision::RankedReplica;
use crate::routing::lookup::Answer;
use v1alpha1::cache_event::Type;
use v1alpha1::{CacheTier, LookupRouteRequest, LookupRouteResponse, ReplicaScore};

/// Types generated from `inferencecache.v1alpha1`.
#[allow(missing_docs, clippy::all)]
pub mod v1alpha1 {
    include!(concat!(env!("OUT_DIR"), "/inferencecache.v1alpha1.rs"));
}

/// About how many bytes the message has.
pub fn lookup_bytes(request: &LookupRouteRequest) -> usize {
    let a_hash = request.block_hashes.first().map_or(0, |hash| hash.len() + 2);
    let lists = request.block_hashes.len() * a_hash + request.block_token_counts.len() + request.token_ids.len() * 3;
    lists + request.prompt_text.len()
}

/// The request's scope.
pub fn scope_of(request: &LookupRouteRequest) -> Scope {
    Scope {
        tenant_id: request.tenant_id.clone(),
        model_id: request.model_id.clone(),
        hash_scheme: request.hash_scheme.clone(),
        adapter_id: request.adapter_id.clone(),
    }
}

/// What to look up. Chains that are derived here have blocks of `block_size`.
pub fn lookup_request(request: LookupRouteRequest, block_size: BlockSize) -> LookupRequest {
    let scope = scope_of(&request);
    // Only a positive time is a wish.
    let slo_ttft_ms = request.slo.and_then(|slo| u32::try_from(slo.ttft_ms).ok()).filter(|ttft_ms| *ttft_ms > 0);
    let source = if !request.token_ids.is_empty() {
        PromptSource::TokenIds(request.token_ids)
    } else if !request.prompt_text.is_empty() {
        PromptSource::Text(TextPrompt::User(request.prompt_text))
    } else {
        PromptSource::Absent
    };
    let prompt = PromptInput {
        prefix_hash: (!request.prefix_hash.is_empty()).then(|| BlockKey::of_request(&request.prefix_hash)),
        prefix_token_count: request.prefix_token_count,
        chain: wire_chain(&request.block_hashes, &request.block_token_counts),
        source,
        ..PromptInput::default()
    };
    LookupRequest { scope, prompt, block_size, slo_ttft_ms }
}

fn wire_chain(hashes: &[Bytes], token_counts: &[i32]) -> WireChain {
    if hashes.len() != token_counts.len() {
        return WireChain::Malformed;
    }
    if hashes.is_empty() {
        return WireChain::Absent;
    }
    let block = |(hash, tokens): (&Bytes, &i32)| ChainBlock { key: BlockKey::of_request(hash), tokens: *tokens };
    WireChain::Chain(hashes.iter().zip(token_counts).map(block).collect())
}

/// The response to a request that names this adapter; the latency is for the caller to fill in.
pub fn lookup_response(answer: Answer, adapter_id: &str) -> LookupRouteResponse {
    // The chain is kept exactly when the index was asked, and in time.
    let index_was_asked = answer.chain.is_some();
    LookupRouteResponse {
        replica_scores: answer.decision.ranked.iter().map(replica_score).collect(),
        reason_code: answer.decision.reason.as_str().to_owned(),
        lookup_latency_us: 0,
        token_ids: answer.tokenized.map(|tokenized| tokenized.ids).unwrap_or_default(),
        adapter_id: if index_was_asked { adapter_id.to_owned() } else { String::new() },
    }
}

fn replica_score(ranked: &RankedReplica) -> ReplicaScore {
    let tier = match ranked.tier {
        Tier::T1 => CacheTier::T1,
        Tier::T2 => CacheTier::T2,
        Tier::T3 => CacheTier::T3,
        Tier::Unspecified => CacheTier::Unspecified,
    };
    ReplicaScore {
        replica_id: ranked.replica_id.to_string(),
        score: ranked.score,
        matched_tokens: i32::try_from(ranked.matched_tokens).unwrap_or(i32::MAX),
        estimated_cache_hit_prob: ranked.hit_probability,
        tier: tier.into(),
    }
}

/// What a producer reports.
pub fn reported_update(update: v1alpha1::CacheStateUpdate) -> message::CacheStateUpdate {
    message::CacheStateUpdate {
        replica_id: update.replica_id,
        model_id: update.model_id,
        tenant_id: update.tenant_id,
        hash_scheme: update.hash_scheme,
        timestamp_us: update.timestamp_us,
        prefixes: update.prefixes.into_iter().map(reported_prefix).collect(),
        stats: update.stats.map(|stats| message::ReportedStats {
            cache_memory_bytes: stats.cache_memory_bytes,
            hit_rate: stats.hit_rate,
            pressure: stats.pressure,
            t2_hit_tokens: stats.t2_hit_tokens,
            t2_query_tokens: stats.t2_query_tokens,
        }),
        adapter_id: update.adapter_id,
    }
}

fn reported_prefix(entry: v1alpha1::PrefixEntry) -> message::PrefixEntry {
    message::PrefixEntry {
        prefix_hash: entry.prefix_hash.into(),
        token_count: entry.token_count,
        block_hashes: entry.block_hashes.into_iter().map(Vec::from).collect(),
        block_token_counts: entry.block_token_counts,
        before: None,
        tier: entry.tier,
        adapter_id: entry.adapter_id,
    }
}

/// What a producer says happened.
pub fn reported_event(event: v1alpha1::CacheEvent) -> message::CacheEvent {
    let kind = match event.r#type() {
        Type::Unspecified => EventKind::Unspecified,
        Type::PrefixAdded => EventKind::PrefixAdded,
        Type::PrefixEvicted => EventKind::PrefixEvicted,
        Type::ReplicaUpdated => EventKind::ReplicaUpdated,
        Type::AllCleared => EventKind::AllCleared,
    };
    message::CacheEvent {
        kind,
        replica_id: event.replica_id,
        model_id: event.model_id,
        tenant_id: event.tenant_id,
        prefix_hash: event.prefix_hash.into(),
        timestamp_us: event.timestamp_us,
        adapter_id: event.adapter_id,
    }
}

/// The response to `GetCacheState`.
pub fn cache_state(state: CacheState) -> v1alpha1::GetCacheStateResponse {
    let replicas = state.replicas.into_iter().map(|replica| v1alpha1::ReplicaStats {
        replica_id: replica.replica_id,
        cache_memory_bytes: replica.stats.cache_memory_bytes,
        hit_rate: replica.stats.hit_rate,
        pressure: replica.stats.pressure,
        client_version: String::new(),
        t2_hit_tokens: replica.stats.t2_hit_tokens,
        t2_query_tokens: replica.stats.t2_query_tokens,
    });
    let total_prefixes = i64::try_from(state.total_prefixes).unwrap_or(i64::MAX);
    v1alpha1::GetCacheStateResponse {
        replicas: replicas.collect(),
        summary: Some(v1alpha1::CacheSummary { total_prefixes, hot_prefixes: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1alpha1::Slo;

    fn converted(request: LookupRouteRequest) -> LookupRequest {
        lookup_request(request, BlockSize::try_new(16).unwrap())
    }

    #[test]
    fn empty_fields_are_absent() {
        let request = converted(LookupRouteRequest::default());
        assert_eq!(request.prompt, PromptInput::default());
        assert_eq!(request.slo_ttft_ms, None);
    }

    #[test]
    fn token_ids_come_before_text_and_explicit_hashes_are_kept_beside_them() {
        let request = converted(LookupRouteRequest {
            prefix_hash: Bytes::from_static(b"p"),
            token_ids: vec![1, 2],
            prompt_text: "text".into(),
            slo: Some(Slo { ttft_ms: -5, tbt_ms: 1 }),
            ..LookupRouteRequest::default()
        });
        assert_eq!(request.prompt.source, PromptSource::TokenIds(vec![1, 2]));
        assert_eq!(request.prompt.prefix_hash, Some(BlockKey::of_request(b"p")));
        assert_eq!(request.slo_ttft_ms, None);
    }

    #[test]
    fn a_chain_needs_as_many_counts_as_hashes() {
        let chain = |hashes: &[&'static [u8]], counts: &[i32]| {
            let hashes: Vec<Bytes> = hashes.iter().map(|hash| Bytes::from_static(hash)).collect();
            wire_chain(&hashes, counts)
        };
        assert_eq!(chain(&[], &[]), WireChain::Absent);
        assert_eq!(chain(&[b"a"], &[]), WireChain::Malformed);
        assert_eq!(chain(&[], &[1]), WireChain::Malformed);
        let block = ChainBlock { key: BlockKey::of_request(b""), tokens: -1 };
        assert_eq!(chain(&[b""], &[-1]), WireChain::Chain(vec![block]));
    }
}
