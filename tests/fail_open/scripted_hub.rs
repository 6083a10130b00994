//! A hub of the tests' own, which says what a test has it say: messages of the contract, or any bytes.
//!
//! It speaks HTTP/2 and frames gRPC by hand, since a proper server would not send what is wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use futures::stream::unfold;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::load::envoy_config::MODEL;
use warmroute::observation::SubscriberMessage;
use warmroute::wire;
use warmroute::wire::v1::fact::Kind as Fact;
use warmroute::wire::v1::observe_response::Kind;
use warmroute::wire::v1::{self, ObserveResponse};

/// How long a script may go on after the end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Messages ahead of what was acknowledged: fewer bytes than a hub may be.
const WINDOW: u64 = 4;
/// Pieces of a response that wait to be sent.
const WAITING: usize = 4;

/// The hub. Dropped, it ends with its connections.
pub struct ScriptedHub {
    runtime: Option<Runtime>,
    streams: Arc<AtomicU32>,
    bytes: Arc<AtomicU64>,
}

/// A stream that a filter opened.
pub struct Stream {
    /// Counts streams from 0.
    pub number: u32,
    pieces: mpsc::Sender<Frame<Bytes>>,
    bytes: Arc<AtomicU64>,
    acknowledged: watch::Receiver<u64>,
}

/// What a hub says of itself in each message, and what it has said.
#[derive(Clone, Debug)]
pub struct Speaker {
    pub number: u64,
    pub epoch: u64,
    pub sequence: u64,
}

// === impl ScriptedHub ===

impl ScriptedHub {
    /// Listens; each stream gets what `script` says on it, and ends with it.
    pub async fn start<F>(address: SocketAddr, script: impl Fn(Stream) -> F + Send + Sync + 'static) -> ScriptedHub
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap().into_std().unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let hub = ScriptedHub { runtime: Some(runtime), streams: Arc::default(), bytes: Arc::default() };
        let (streams, bytes) = (Arc::clone(&hub.streams), Arc::clone(&hub.bytes));
        let script = Arc::new(script);
        hub.runtime.as_ref().unwrap().spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let (script, streams, bytes) = (Arc::clone(&script), Arc::clone(&streams), Arc::clone(&bytes));
                let service = hyper::service::service_fn(move |request| {
                    let number = streams.fetch_add(1, Ordering::Relaxed);
                    let (pieces, waiting) = mpsc::channel(WAITING);
                    let (acknowledges, acknowledged) = watch::channel(0);
                    let stream = Stream { number, pieces, bytes: Arc::clone(&bytes), acknowledged };
                    tokio::spawn(script(stream));
                    async move { Ok::<_, std::convert::Infallible>(respond(request, waiting, acknowledges)) }
                });
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(socket), service));
            }
        });
        hub
    }

    /// Streams so far.
    pub fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Bytes said so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for ScriptedHub {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // Waited for, so that another hub can listen there; elsewhere, since a runtime's thread must not wait.
        let _ = std::thread::spawn(move || runtime.shutdown_timeout(ENDS_WITHIN)).join();
    }
}

fn respond(
    request: Request<Incoming>,
    waiting: mpsc::Receiver<Frame<Bytes>>,
    acknowledges: watch::Sender<u64>,
) -> Response<impl hyper::body::Body<Data = Bytes, Error = std::io::Error>> {
    tokio::spawn(listen(request.into_body(), acknowledges));
    let pieces = unfold(waiting, async |mut waiting| Some((Ok(waiting.recv().await?), waiting)));
    Response::builder().header("content-type", "application/grpc").body(StreamBody::new(Box::pin(pieces))).unwrap()
}

/// Takes what the filter says, so that it can go on saying it, and notes what it has acknowledged.
async fn listen(mut body: Incoming, acknowledges: watch::Sender<u64>) {
    let mut read = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        read.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
        while let Some(length) = read.get(1..5).map(|length| u32::from_be_bytes(length.try_into().unwrap()) as usize)
            && read.len() >= 5 + length
        {
            let said = v1::ObserveRequest::decode(&read.split_to(5 + length)[5..]).unwrap();
            if let Ok(SubscriberMessage::Acknowledge(number)) = wire::subscriber_message_from_proto(said) {
                acknowledges.send_replace(number);
            }
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Sends bytes as they are; false once the filter has gone.
    pub async fn send(&self, bytes: impl Into<Bytes>) -> bool {
        let bytes = bytes.into();
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.pieces.send(Frame::data(bytes)).await.is_ok()
    }

    /// Sends a message.
    pub async fn say(&self, message: &ObserveResponse) -> bool {
        self.send(framed(&message.encode_to_vec())).await
    }

    /// Sends a message once no more than [`WINDOW`] are ahead of what was acknowledged, as a hub has to.
    pub async fn say_in_turn(&self, message: &ObserveResponse) -> bool {
        let number = message.number;
        let is_due = |acknowledged: &u64| acknowledged + WINDOW >= number;
        self.acknowledged.clone().wait_for(is_due).await.is_ok() && self.say(message).await
    }

    /// Ends the stream with this status.
    pub async fn end_with(&self, status: u32) {
        let trailers = hyper::HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.into())]);
        let _ = self.pieces.send(Frame::trailers(trailers)).await;
    }
}

/// A message as gRPC sends it.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    frame
}

// === impl Speaker ===

impl Speaker {
    /// A hub of this lifetime, which has said nothing.
    pub fn new(epoch: u64) -> Speaker {
        Speaker { number: 0, epoch, sequence: 0 }
    }

    fn says(&mut self, kind: Kind) -> ObserveResponse {
        self.number += 1;
        ObserveResponse { number: self.number, epoch: self.epoch, sequence: self.sequence, kind: Some(kind) }
    }

    pub fn reset(&mut self) -> ObserveResponse {
        self.sequence = 0;
        self.says(Kind::Reset(v1::Reset {}))
    }

    pub fn chunk(&mut self, facts: Vec<Fact>) -> ObserveResponse {
        self.says(Kind::Chunk(v1::Chunk { facts: facts.into_iter().map(fact).collect() }))
    }

    pub fn reset_complete(&mut self, sequence: u64) -> ObserveResponse {
        self.sequence = sequence;
        self.says(Kind::ResetComplete(v1::ResetComplete {}))
    }

    pub fn delta(&mut self, facts: Vec<Fact>) -> ObserveResponse {
        let first_sequence = self.sequence + 1;
        self.sequence = first_sequence;
        self.says(Kind::Delta(v1::Delta { first_sequence, facts: facts.into_iter().map(fact).collect() }))
    }

    pub fn heartbeat(&mut self) -> ObserveResponse {
        self.says(Kind::Heartbeat(v1::Heartbeat {}))
    }

    /// A whole state, in messages of a few facts.
    pub fn state(&mut self, facts: Vec<Fact>) -> Vec<ObserveResponse> {
        let mut messages = vec![self.reset()];
        messages.extend(facts.chunks(8).map(|facts| self.chunk(facts.to_vec())));
        messages.push(self.reset_complete(1));
        messages
    }
}

fn fact(kind: Fact) -> v1::Fact {
    v1::Fact { kind: Some(kind) }
}

/// A scope of the model in the tests' configuration.
pub fn scope(scope: u32, tenant: &str) -> Fact {
    scope_of(scope, tenant, MODEL, "")
}

/// Any scope.
pub fn scope_of(scope: u32, tenant: &str, model: &str, adapter: &str) -> Fact {
    Fact::Scope(v1::Scope {
        scope,
        tenant_id: tenant.into(),
        model_id: model.into(),
        hash_scheme: "vllm".into(),
        adapter_id: adapter.into(),
    })
}

/// A replica of the model in the tests' configuration.
pub fn replica_up(replica: u32, id: &str, address: &str, tenant: &str) -> Fact {
    Fact::ReplicaUp(v1::ReplicaUp {
        replica,
        replica_id: id.into(),
        address: address.into(),
        tenant_id: tenant.into(),
        model_id: MODEL.into(),
        data_parallel_rank: None,
    })
}

/// Everything that the replica holds has been said.
pub fn complete(replica: u32) -> Fact {
    Fact::ReplicaComplete(v1::ReplicaComplete { replica })
}

/// The replica holds the blocks of a prompt.
pub fn stored(replica: u32, scope: u32, prompt: &[u32]) -> Fact {
    let hashes: Vec<u64> = prefix_hashes(prompt, BlockSize::DEFAULT, None).map(|hash| hash.0).collect();
    Fact::Stored(v1::BlockStored {
        replica,
        scope,
        tier: 1,
        last_seen_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64,
        keys: hashes.iter().flat_map(|hash| hash.to_be_bytes()).collect(),
        key_bytes: 8,
        token_counts: (1..=hashes.len() as u32).map(|blocks| blocks * 16).collect(),
        chained: true,
        ..Default::default()
    })
}
