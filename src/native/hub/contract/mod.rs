//! The public contract `inferencecache.v1alpha1.InferenceCache`, for producers of cache state that are no engines the hub
//! follows, and for gateways that are not Envoy.
//!
//! ```text
//! producer ── ReportCacheState, PublishEvent ──► Publisher ──► history ──► filters, StreamCacheEvents
//! gateway  ── LookupRoute, GetCacheState ──────► its index
//! ```
//!
//! A lookup is answered from the same core as in the filter, and from what the filters are told. It fails open: no input
//! and no load makes it an error. RenderTemplate and LookupPDRoute answer what the contract says for a server without
//! templates and pools; StreamMetrics closes at once.

mod adapters;
mod addresses;
pub mod codec;
mod deadline;
mod events;
mod following;
mod heavy;
mod labels;
mod lookup;
mod matching;
pub mod messages;
mod metrics;
mod preparing;
mod reporting;
mod texts;

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::once;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};

use super::config::HubConfig;
use super::fleet::FleetBook;
use super::security::Revoked;
use super::state::HubState;
use addresses::AddressBook;
use deadline::Arrived;
use heavy::Heavy;
pub use labels::ModelLabels;
use lookup::Lookups;
use messages::v1alpha1::inference_cache_server::{InferenceCache, InferenceCacheServer};
use messages::v1alpha1::{
    Ack, CacheEvent, CacheStateUpdate, GetCacheStateRequest, GetCacheStateResponse, LookupPdRouteRequest,
    LookupPdRouteResponse, LookupRouteRequest, LookupRouteResponse, Metric, RenderTemplateRequest,
    RenderTemplateResponse, StreamEventsRequest, StreamMetricsRequest,
};
pub use metrics::ContractMetrics;
pub use preparing::SharedTokenizer;
use reporting::Reports;
use texts::HubTexts;

/// The reason code of RenderTemplate where nothing went wrong.
const RENDERED: &str = "OK";
/// The reason code of what has no hint to give.
const NO_HINT: &str = "NO_HINT";

/// The contract as a gRPC service.
pub type ContractService =
    InterceptedService<InferenceCacheServer<Contract>, fn(Request<()>) -> Result<Request<()>, Status>>;

/// Serves the contract.
pub struct Contract {
    state: Arc<HubState>,
    lookups: Lookups,
    reports: Reports,
    stop: CancellationToken,
}

// === impl Contract ===

impl Contract {
    /// Over `state` and the replicas of `fleet`, until `stop`. Texts are tokenized with the hub's models, unless there is another `tokenizer`.
    pub fn new(
        config: &HubConfig,
        state: &Arc<HubState>,
        fleet: &Arc<FleetBook>,
        tokenizer: Option<SharedTokenizer>,
        metrics: Arc<ContractMetrics>,
        stop: &CancellationToken,
    ) -> Contract {
        let ranking = Arc::new(config.routing.clone());
        let heavy = Heavy::new();
        let utc_offset_seconds = config.tokenizers.as_ref().map_or(0, |tokenizers| tokenizers.utc_offset_seconds);
        let tokenizer = tokenizer.unwrap_or_else(|| Arc::new(HubTexts::new(state, utc_offset_seconds)));
        Contract {
            state: Arc::clone(state),
            lookups: Lookups::new(state, ranking, tokenizer, config, metrics, heavy.clone()),
            reports: Reports::new(state, AddressBook::new(&config.reports, fleet), heavy),
            stop: stop.clone(),
        }
    }

    /// As a gRPC service that takes messages of at most `message_bytes`.
    pub fn into_service(self, message_bytes: usize) -> ContractService {
        let server = InferenceCacheServer::new(self).max_decoding_message_size(message_bytes);
        InterceptedService::new(server, Arrived::note)
    }
}

#[tonic::async_trait]
impl InferenceCache for Contract {
    type StreamCacheEventsStream = following::Events;
    type StreamMetricsStream = Pin<Box<dyn Stream<Item = Result<Metric, Status>> + Send>>;

    async fn lookup_route(
        &self,
        request: Request<LookupRouteRequest>,
    ) -> Result<Response<LookupRouteResponse>, Status> {
        Ok(Response::new(self.lookups.answer(request).await))
    }

    async fn report_cache_state(&self, request: Request<Streaming<CacheStateUpdate>>) -> Result<Response<Ack>, Status> {
        let revoked = Revoked::of(&request);
        tokio::select! {
            taken = self.reports.take_all(request.into_inner()) => taken.map(Response::new),
            status = revoked.status() => Err(status),
        }
    }

    async fn publish_event(&self, request: Request<CacheEvent>) -> Result<Response<Ack>, Status> {
        Ok(Response::new(self.reports.event(request.into_inner()).await))
    }

    async fn get_cache_state(
        &self,
        request: Request<GetCacheStateRequest>,
    ) -> Result<Response<GetCacheStateResponse>, Status> {
        let GetCacheStateRequest { model_id, tenant_id } = request.into_inner();
        let cache_state = self.state.read(|publisher| publisher.cache_state(&tenant_id, &model_id));
        Ok(Response::new(messages::cache_state(cache_state)))
    }

    async fn stream_cache_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        let revoked = Revoked::of(&request);
        let events = following::follow(&self.state, request.into_inner(), &self.stop);
        // Events go on until they end with an error, or the token does.
        let ended = revoked.clone();
        let events = events.take_until(async move { ended.status().await });
        Ok(Response::new(Box::pin(events.chain(once(async move { Err(revoked.status().await) })))))
    }

    async fn stream_metrics(
        &self,
        _: Request<StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Ok(Response::new(Box::pin(futures::stream::empty())))
    }

    async fn render_template(
        &self,
        _: Request<RenderTemplateRequest>,
    ) -> Result<Response<RenderTemplateResponse>, Status> {
        let reason_code = RENDERED.to_owned();
        Ok(Response::new(RenderTemplateResponse { reason_code, ..RenderTemplateResponse::default() }))
    }

    async fn lookup_pd_route(
        &self,
        _: Request<LookupPdRouteRequest>,
    ) -> Result<Response<LookupPdRouteResponse>, Status> {
        let reason_code = NO_HINT.to_owned();
        Ok(Response::new(LookupPdRouteResponse { reason_code, ..LookupPdRouteResponse::default() }))
    }
}
