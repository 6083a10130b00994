//! The hub's gRPC server as a [`Server`].
//!
//! A case's time stands still, a hub's does not: what is reported carries one time for the whole case, and one that lies a
//! little ahead, within what the hub takes. So nothing ages while the case runs, and equal scores stay equal.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warmroute::native::hub::config::ModelBlocks;
use warmroute::native::hub::contract::messages::v1alpha1 as wire;
use warmroute::native::hub::{Hub, HubConfig, HubOptions};
use warmroute::request::{TextPrompt, TokenizeError, Tokenized, Tokenizer as Tokenize};
use wire::inference_cache_client::InferenceCacheClient;

use crate::cases::format::{self, Case, Step, Tenant, Tokenizer, TokenizerKind};
use crate::cases::messages::{
    Bytes, CacheState, Counts, Entry, Event, EventKind, Lookup, Prefix, ReplicaScore, ReplicaState, Request, Response,
    Stats, Update,
};
use crate::cases::replay::Outcome;
use crate::cases::{Server, settings};

/// How far ahead the time of reports lies: more than a case takes, less than the hub is told to tolerate.
const AHEAD: Duration = Duration::from_secs(30);
/// The longest message: as many token ids as may be, and one more.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
/// A type that no event has.
const UNKNOWN_EVENT: i32 = 99;

/// A hub, set up for one case, and a client of it.
pub struct OverGrpc<'a> {
    runtime: &'a Runtime,
    hub: Hub,
    client: InferenceCacheClient<Channel>,
    reported_us: i64,
    ttl_ms: u64,
    /// What the hub should not have answered.
    errors: Vec<String>,
}

/// Does as the case says, at once.
struct CaseTokenizer(Tokenizer);

// === impl OverGrpc ===

impl<'a> OverGrpc<'a> {
    /// Starts a hub that is set up for `case`.
    ///
    /// # Errors
    /// When it does not start or cannot be reached; says why.
    pub fn start(case: &Case, runtime: &'a Runtime) -> Result<OverGrpc<'a>, String> {
        let config = &case.config;
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut hub_config = HubConfig::from_yaml("reports: {}").map_err(|error| format!("{error:?}"))?;
        (hub_config.grpc, hub_config.http) = (any_port, any_port);
        hub_config.routing = settings::ranking(&config.ranker);
        hub_config.reports.future_tolerance = AHEAD * 2;
        hub_config.reports.quotas = settings::quotas(&config.tenants);
        if let Some(max_entries) = config.max_entries {
            hub_config.reports.max_entries = max_entries;
        }
        hub_config.models = block_sizes(case);
        let options = match &config.tokenizer {
            Some(tokenizer) => HubOptions { tokenizer: Some(Arc::new(CaseTokenizer(tokenizer.clone()))) },
            None => HubOptions::default(),
        };
        let (hub, channel) = runtime.block_on(async {
            let hub = Hub::start_with(hub_config, options).await.map_err(text)?;
            let endpoint = Channel::from_shared(format!("http://{}", hub.grpc_address())).map_err(text)?;
            Ok::<_, String>((hub, endpoint.connect().await.map_err(text)?))
        })?;
        let client = InferenceCacheClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let reported_us = unix_us(SystemTime::now() + AHEAD);
        let mut server =
            OverGrpc { runtime, hub, client, reported_us, ttl_ms: settings::ttl_ms(config), errors: Vec::new() };
        server.set_policies(&config.policies, None);
        Ok(server)
    }

    /// Ends the hub; the outcome, with the errors that there were.
    pub fn stop(self, mut outcome: Outcome) -> Outcome {
        self.runtime.block_on(self.hub.shutdown());
        for error in self.errors {
            outcome.mismatches.extend(Outcome::failed(error).mismatches);
        }
        outcome
    }

    /// What a call came to; an error is noted, and stands for an empty answer.
    fn call<T: Default>(
        &mut self,
        call: impl AsyncFnOnce(&mut InferenceCacheClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> T {
        let (runtime, client) = (self.runtime, &mut self.client);
        match runtime.block_on(call(client)) {
            Ok(response) => response.into_inner(),
            Err(status) => {
                self.errors.push(status.to_string());
                T::default()
            }
        }
    }
}

impl Server for OverGrpc<'_> {
    fn ingest(&mut self, update: &Update) {
        let message = wire::CacheStateUpdate {
            replica_id: update.replica_id.clone(),
            model_id: update.model_id.clone(),
            tenant_id: update.tenant_id.clone(),
            hash_scheme: update.hash_scheme.clone(),
            timestamp_us: self.reported_us,
            prefixes: update.prefixes.iter().map(prefix_entry).collect(),
            stats: update.stats.as_ref().map(replica_stats),
            adapter_id: update.adapter_id.clone(),
        };
        self.call(async |client| client.report_cache_state(futures::stream::iter([message])).await);
    }

    fn event(&mut self, event: &Event) {
        use wire::cache_event::Type;
        let message = wire::CacheEvent {
            r#type: match event.kind {
                EventKind::Unspecified => Type::Unspecified.into(),
                EventKind::PrefixAdded => Type::PrefixAdded.into(),
                EventKind::PrefixEvicted => Type::PrefixEvicted.into(),
                EventKind::ReplicaUpdated => Type::ReplicaUpdated.into(),
                EventKind::AllCleared => Type::AllCleared.into(),
                EventKind::Unknown => UNKNOWN_EVENT,
            },
            replica_id: event.replica_id.clone(),
            model_id: event.model_id.clone(),
            tenant_id: event.tenant_id.clone(),
            prefix_hash: event.prefix_hash.0.clone().into(),
            timestamp_us: self.reported_us,
            adapter_id: event.adapter_id.clone(),
        };
        self.call(async |client| client.publish_event(message).await);
    }

    fn lookup(&mut self, lookup: &Lookup) -> Response {
        let message = lookup_route_request(&lookup.request);
        let response = self.call(async |client| client.lookup_route(message).await);
        let scores = response.replica_scores.into_iter().map(|score| ReplicaScore {
            replica_id: score.replica_id,
            score: score.score,
            matched_tokens: score.matched_tokens,
            estimated_cache_hit_prob: score.estimated_cache_hit_prob,
            tier: score.tier,
        });
        Response {
            replica_scores: scores.collect(),
            reason_code: response.reason_code,
            token_ids: response.token_ids,
            adapter_id: response.adapter_id,
        }
    }

    fn cache_state(&mut self, model_id: &str, tenant_id: &str) -> CacheState {
        let message = wire::GetCacheStateRequest { model_id: model_id.into(), tenant_id: tenant_id.into() };
        let response = self.call(async |client| client.get_cache_state(message).await);
        let summary = response.summary.unwrap_or_default();
        CacheState {
            replicas: response.replicas.into_iter().map(replica_state).collect(),
            total_prefixes: summary.total_prefixes,
            hot_prefixes: summary.hot_prefixes,
        }
    }

    fn set_policies(&mut self, policies: &[format::Policy], tenants: Option<&[Tenant]>) {
        self.hub.set_policies(settings::policies(policies, self.ttl_ms));
        if let Some(tenants) = tenants {
            self.hub.set_quotas(settings::quotas(tenants));
        }
    }

    fn advance(&mut self, ms: i64) {
        self.errors.push(format!("the clock cannot be moved by {ms} ms"));
    }

    fn sweep(&mut self) {
        self.errors.push("the sweep cannot be asked for".into());
    }

    fn counts(&mut self) -> Option<Counts> {
        None
    }

    fn access_count(&mut self, _: &Entry) -> Option<i64> {
        None
    }

    fn set_access_count(&mut self, _: &Entry, count: i64) {
        self.errors.push(format!("no access count can be set to {count}"));
    }
}

// === impl CaseTokenizer ===

impl Tokenize for CaseTokenizer {
    fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        match self.0.kind {
            _ if self.0.saturated => Err(TokenizeError::Saturated),
            TokenizerKind::Fixed => Ok(Tokenized { ids: self.0.tokens.0.clone(), complete: true }),
            TokenizerKind::Error => Err(TokenizeError::Failed),
            TokenizerKind::Unavailable => Err(TokenizeError::Unavailable),
        }
    }
}

// === what cases say, as messages ===

/// The case's block size, for each model that is asked for: a hub has no other one for all.
fn block_sizes(case: &Case) -> Vec<ModelBlocks> {
    if case.config.block_size.is_none() {
        return Vec::new();
    }
    let block_size = settings::block_size(&case.config);
    let asked = case.steps.iter().filter_map(|step| match step {
        Step::Lookup { lookup, .. } => Some(&lookup.request.model_id),
        _ => None,
    });
    let models: BTreeSet<&String> = asked.collect();
    models.into_iter().map(|id| ModelBlocks { model_id: id.clone(), hash_scheme: None, block_size }).collect()
}

fn lookup_route_request(request: &Request) -> wire::LookupRouteRequest {
    wire::LookupRouteRequest {
        model_id: request.model_id.clone(),
        tenant_id: request.tenant_id.clone(),
        prefix_hash: request.prefix_hash.0.clone().into(),
        prefix_token_count: request.prefix_token_count,
        hash_scheme: request.hash_scheme.clone(),
        slo: Some(wire::Slo { ttft_ms: request.slo_ttft_ms, tbt_ms: request.slo_tbt_ms }),
        block_hashes: bytes(&request.block_hashes),
        block_token_counts: request.block_token_counts.clone(),
        token_ids: request.token_ids.0.clone(),
        prompt_text: request.text(),
        adapter_id: request.adapter_id.clone(),
    }
}

fn prefix_entry(prefix: &Prefix) -> wire::PrefixEntry {
    wire::PrefixEntry {
        prefix_hash: prefix.prefix_hash.0.clone().into(),
        token_count: prefix.token_count,
        block_hashes: bytes(&prefix.block_hashes),
        block_token_counts: prefix.block_token_counts.clone(),
        tier: prefix.tier,
        adapter_id: prefix.adapter_id.clone(),
    }
}

fn bytes(hashes: &[Bytes]) -> Vec<bytes::Bytes> {
    hashes.iter().map(|hash| hash.0.clone().into()).collect()
}

fn replica_stats(stats: &Stats) -> wire::ReplicaStats {
    wire::ReplicaStats {
        replica_id: stats.replica_id.clone(),
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate.0 as f32,
        pressure: stats.pressure.0 as f32,
        client_version: stats.client_version.clone(),
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

fn replica_state(stats: wire::ReplicaStats) -> ReplicaState {
    ReplicaState {
        replica_id: stats.replica_id,
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        client_version: stats.client_version,
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

fn unix_us(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn text(error: impl Display) -> String {
    error.to_string()
}
