//! A client of the contract, and short ways to say what it says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::transport::Channel;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::contract::messages::v1alpha1::{
    Ack, CacheEvent, CacheStateUpdate, LookupRouteRequest, LookupRouteResponse, PrefixEntry, cache_event::Type,
};
use warmroute::native::hub::{Hub, HubConfig, HubOptions};
use warmroute::request::{TextPrompt, TokenizeError, Tokenized, Tokenizer};
use warmroute::routing::policy::{Policies, Policy};

pub type Client = InferenceCacheClient<Channel>;

/// Gives the same ids for every text, after a while.
pub struct Fixed {
    pub ids: Vec<u32>,
    pub delay: Duration,
}

impl Tokenizer for Fixed {
    fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        std::thread::sleep(self.delay);
        Ok(Tokenized { ids: self.ids.clone(), complete: true })
    }
}

/// A hub that follows nobody.
pub async fn hub(more: &str) -> Hub {
    Hub::start(config(more)).await.unwrap()
}

/// The same, with a tokenizer that gives these ids after `delay`.
pub async fn hub_with_tokenizer(more: &str, ids: Vec<u32>, delay: Duration) -> Hub {
    let options = HubOptions { tokenizer: Some(std::sync::Arc::new(Fixed { ids, delay })) };
    Hub::start_with(config(more), options).await.unwrap()
}

fn config(more: &str) -> HubConfig {
    let reports = if more.contains("reports:") { "" } else { "reports: {}\n" };
    let yaml = format!("listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\n{reports}{more}");
    HubConfig::from_yaml(&yaml).unwrap()
}

pub async fn connect(hub: &Hub) -> Client {
    let client = Client::connect(format!("http://{}", hub.grpc_address())).await.unwrap();
    client.max_decoding_message_size(64 << 20).max_encoding_message_size(64 << 20)
}

/// For every tenant: no floors and no affinity, so that an answer says what matched.
pub fn plain() -> Policies {
    let default =
        Policy { minimum_matched_tokens: 0, routing_floor_score: 0.0, affinity_routing: false, ..Policy::default() };
    Policies { default, ..Policies::default() }
}

/// A report of these prefixes, 16 tokens each, for tenant `t`, model `m` and scheme `s`.
pub fn update(replica_id: &str, prefixes: &[&[u8]]) -> CacheStateUpdate {
    let entry = |hash: &&[u8]| PrefixEntry {
        prefix_hash: bytes::Bytes::copy_from_slice(hash),
        token_count: 16,
        ..PrefixEntry::default()
    };
    CacheStateUpdate {
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        prefixes: prefixes.iter().map(entry).collect(),
        ..CacheStateUpdate::default()
    }
}

/// A report of the chain of these token ids, in blocks of 4, beginning with one entry.
pub fn chain_update(replica_id: &str, token_ids: &[u32]) -> CacheStateUpdate {
    let block_hashes = chain(token_ids);
    let entry = PrefixEntry { block_token_counts: vec![4; block_hashes.len()], block_hashes, ..PrefixEntry::default() };
    CacheStateUpdate { prefixes: vec![entry], ..update(replica_id, &[]) }
}

/// The prefix hashes of these token ids, in blocks of 4.
pub fn chain(token_ids: &[u32]) -> Vec<bytes::Bytes> {
    let hashes = prefix_hashes(token_ids, BlockSize::try_new(4).unwrap(), None);
    hashes.map(|hash| bytes::Bytes::copy_from_slice(&hash.0.to_be_bytes())).collect()
}

pub async fn report(client: &mut Client, updates: Vec<CacheStateUpdate>) -> Ack {
    client.report_cache_state(tokio_stream::iter(updates)).await.unwrap().into_inner()
}

pub async fn publish(client: &mut Client, kind: Type, replica_id: &str, hash: &[u8]) -> Ack {
    let event = CacheEvent {
        r#type: kind.into(),
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        prefix_hash: bytes::Bytes::copy_from_slice(hash),
        ..CacheEvent::default()
    };
    client.publish_event(event).await.unwrap().into_inner()
}

/// A request of tenant `t` for model `m` under scheme `s`.
pub fn request() -> LookupRouteRequest {
    LookupRouteRequest {
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        ..LookupRouteRequest::default()
    }
}

/// One that asks for this prefix.
pub fn request_for(hash: &[u8]) -> LookupRouteRequest {
    LookupRouteRequest { prefix_hash: bytes::Bytes::copy_from_slice(hash), ..request() }
}

pub async fn look_up(client: &mut Client, request: LookupRouteRequest) -> LookupRouteResponse {
    client.lookup_route(request).await.unwrap().into_inner()
}

/// The ids of the replicas, best first.
pub fn ids(response: &LookupRouteResponse) -> Vec<&str> {
    response.replica_scores.iter().map(|score| score.replica_id.as_str()).collect()
}

/// Now, as the contract counts time.
pub fn now_us() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// A unary call by a client that knows HTTP/2 and nothing of gRPC, so that no library keeps the deadline for it: the
/// `grpc-status` and the message.
pub async fn raw_call<Response: prost::Message + Default>(
    hub: &Hub,
    method: &str,
    framed: Vec<u8>,
    grpc_timeout: Option<&str>,
) -> (String, Option<Response>) {
    use http_body_util::{BodyExt, Full};
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<Full<bytes::Bytes>>();
    let uri = format!("http://{}/inferencecache.v1alpha1.InferenceCache/{method}", hub.grpc_address());
    let mut request = hyper::Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    if let Some(grpc_timeout) = grpc_timeout {
        request = request.header("grpc-timeout", grpc_timeout);
    }
    let response = client.request(request.body(Full::from(framed)).unwrap()).await.unwrap();
    let in_headers = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let in_trailers = body.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
    let status = in_headers.or(in_trailers).unwrap().to_str().unwrap().to_owned();
    let bytes = body.to_bytes();
    (status, bytes.get(5..).map(|message| Response::decode(message).unwrap()))
}

/// A message as gRPC frames it.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}
