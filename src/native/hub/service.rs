//! The gRPC side: `warmroute.v1.Observation`, a [`Subscriber`] a stream, and beside it the public
//! [contract](super::contract), health, and reflection.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tower::util::MapRequestLayer;
use tracing::debug;

use super::config::LimitsConfig;
use super::contract::Contract;
use super::contract::messages::v1alpha1::inference_cache_server::InferenceCacheServer;
use super::metrics::Metrics;
use super::resets::Resets;
use super::security::{Calls, Connection, GateLayer, Incoming, Peer, Refusal, Refusals, Revoked};
use super::state::HubState;
use super::subscriber::{StreamLimits, Subscriber};
use crate::wire::v1;
use crate::wire::v1::observation_server::{Observation, ObservationServer};

/// A connection is asked for a sign of life this often, so that a proxy that vanished does not hold its stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the sign of life may take.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a connection over HTTP/2 is asked for a sign of life, and how long that may take, so that one that is alive is not
/// taken for idle.
pub fn keepalive(idle: Duration) -> (Duration, Duration) {
    (KEEPALIVE_INTERVAL.min(idle / 3), KEEPALIVE_TIMEOUT.min(idle / 3))
}

/// What a client may send on a stream before it is read. The server beneath charges each small DATA frame that waits to be
/// read up to 256 bytes, and ends the connection once that comes to half of its window (`too_many_data_frames`). A stream's
/// window full of gRPC messages of 5 bytes, the smallest there are, is charged 13 MiB.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// A connection's window: large enough for 40 such streams that nobody reads at the moment. It is no bound on memory,
/// which the windows of its streams are.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024 * 1024;
/// Messages that wait for the connection; the window bounds their bytes.
const OUTGOING_MESSAGES: usize = 16;

/// The descriptors of our own services.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Why serving ended.
pub type ServeError = Box<dyn std::error::Error + Send + Sync>;

/// Serves Observe streams.
pub struct ObserveService {
    state: Arc<HubState>,
    resets: Arc<Resets>,
    metrics: Arc<Metrics>,
    refusals: Arc<Refusals>,
    limits: StreamLimits,
    bounds: LimitsConfig,
    /// A permit for each stream that there may be.
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

// === impl ObserveService ===

impl ObserveService {
    /// Serves `state` as `limits` say, at most so much of it as `bounds` say, until `stop`.
    pub fn new(
        state: &Arc<HubState>,
        metrics: &Arc<Metrics>,
        refusals: &Arc<Refusals>,
        limits: StreamLimits,
        bounds: &LimitsConfig,
        stop: &CancellationToken,
    ) -> ObserveService {
        ObserveService {
            state: Arc::clone(state),
            resets: Arc::default(),
            metrics: Arc::clone(metrics),
            refusals: Arc::clone(refusals),
            limits,
            bounds: bounds.clone(),
            places: Arc::new(Semaphore::new(bounds.subscribers.min(Semaphore::MAX_PERMITS))),
            stop: stop.clone(),
        }
    }

    /// Serves these streams and `contract` behind `gate` to all that come in, until stopped.
    ///
    /// # Errors
    /// When the server fails.
    pub async fn serve(self, contract: Contract, gate: GateLayer, mut incoming: Incoming) -> Result<(), ServeError> {
        let (stop, idle) = (self.stop.clone(), self.bounds.idle);
        let (interval, timeout) = keepalive(idle);
        let LimitsConfig { streams_per_connection, message_bytes, metadata_bytes, .. } = self.bounds;
        // Serving from the start: a lookup is answered whatever is known.
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_serving::<InferenceCacheServer<Contract>>().await;
        health.set_serving::<ObservationServer<ObserveService>>().await;
        let server = Server::builder()
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(timeout))
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(Some(streams_per_connection))
            .http2_max_header_list_size(Some(metadata_bytes));
        let routes = Routes::new(ObservationServer::new(self).max_decoding_message_size(message_bytes))
            .add_service(contract.into_service(message_bytes))
            .add_service(health_service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .prepare();
        let connections = TaskTracker::new();
        while let Some(Some(connection)) = stop.run_until_cancelled(incoming.next()).await {
            let (server, gate, routes, stop) = (server.clone(), gate.clone(), routes.clone(), stop.clone());
            connections.spawn(serve_one(server, gate, routes, connection, idle, stop));
        }
        connections.close();
        connections.wait().await;
        Ok(())
    }
}

/// Serves one connection until it ends, by `stop`, or for want of calls: a server of its own, which can be told to end it.
async fn serve_one(
    server: Server,
    gate: GateLayer,
    routes: Routes,
    connection: Connection,
    idle: Duration,
    stop: CancellationToken,
) {
    let (calls, gone, peer) = (Calls::default(), connection.gone(), connection.peer());
    let counted = calls.clone();
    let count = move |mut request: hyper::Request<Body>| {
        request.extensions_mut().insert(counted.clone());
        request
    };
    // The server takes the end of this for a reason to end; it is to wait for the connection's.
    let one = stream::once(ready(Ok::<_, Infallible>(connection))).chain(stream::pending());
    let is_over = async {
        tokio::select! {
            () = gone.cancelled() => {}
            () = stop.cancelled() => {}
            () = calls.idle_for(idle) => debug!(peer = %peer.address, "a connection is closed: it carried no call"),
        }
    };
    let mut server = server.layer(MapRequestLayer::new(count)).layer(gate);
    if let Err(error) = server.add_routes(routes).serve_with_incoming_shutdown(one, is_over).await {
        debug!(peer = %peer.address, "a gRPC connection ended: {error}");
    }
}

/// Describes every service here.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[tonic::async_trait]
impl Observation for ObserveService {
    type ObserveStream = ReceiverStream<Result<v1::ObserveResponse, Status>>;

    async fn observe(
        &self,
        request: Request<Streaming<v1::ObserveRequest>>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let problem = format!("limits.max_subscribers is {}", self.bounds.subscribers);
            peer.into_iter().for_each(|peer| self.refusals.note(Refusal::TooManySubscribers, peer, &problem));
            return Err(Status::resource_exhausted(format!("the hub has no place for another subscriber: {problem}")));
        };
        let revoked = Revoked::of(&request);
        let refusals = Arc::clone(&self.refusals);
        let (outgoing, messages) = mpsc::channel(OUTGOING_MESSAGES);
        let (state, metrics) = (Arc::clone(&self.state), Arc::clone(&self.metrics));
        let subscriber =
            Subscriber::new(state, Arc::clone(&self.resets), metrics, self.limits, request.into_inner(), outgoing);
        let stop = self.stop.clone();
        tokio::spawn(async move {
            let lost = async {
                let status = revoked.status().await;
                peer.into_iter().for_each(|peer| refusals.note(Refusal::Revoked, peer, "an Observe stream"));
                status
            };
            subscriber.run(stop, lost).await;
            drop(place);
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}
