//! The gRPC stream `SubscribeKvEvents` of an engine, as seen by one that follows it.
//!
//! There is one stream at a time, which replays and goes on live: whoever asks for a replay opens it anew at a number, the
//! replay ends when no more comes at once, and what comes later is live. Nothing can be missed between the two. An engine
//! that does not send again what it is asked for has no replays; it is then followed from what comes next.
//!
//! The three services that have the method are tried one after the other, or only that of the engine which the
//! configuration names. One stream has the batches of all ranks: those of others only count as messages.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::{ProstCodec, ProstEncoder};

use super::config::{EngineKind, ReplicaConfig};
use super::transport::{Fault, Published, Resolved, Transport};
use crate::native::engine::smg::wire::SubscribeKvEventsRequest;
use crate::native::engine::{Batch, smg};

/// The methods of vLLM, SGLang and TensorRT-LLM.
const VLLM: &str = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents";
const SGLANG: &str = "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents";
const TENSORRT_LLM: &str = "/trtllm.TrtllmService/SubscribeKvEvents";

/// A replay has ended when nothing came for this long.
const QUIET: Duration = Duration::from_millis(250);
/// How often a connection without traffic is checked, and how long its answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// The largest message that is taken.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// The stream of one replica, or of one rank of it.
pub struct EventStream {
    resolved: Resolved,
    target: String,
    rank: Option<u32>,
    methods: &'static [&'static str],
    channel: Option<Channel>,
    stream: State,
    /// Whether the engine sends again what it is asked for, as far as is known.
    resends: bool,
    /// Whether the first message of a replay, which was sent before, is still to come.
    awaits_first: bool,
}

type Opening = Pin<Box<dyn Future<Output = Result<Streaming<Bytes>, Status>> + Send>>;

enum State {
    Closed,
    /// Asked for. Some servers answer with the first message only.
    Opening(Opening),
    Open(Box<Streaming<Bytes>>),
}

/// Messages as the bytes that they are.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

// === impl EventStream ===

impl EventStream {
    /// That of `replica`, for this rank if it has several.
    pub fn new(replica: &ReplicaConfig, rank: Option<u32>) -> EventStream {
        EventStream {
            resolved: Resolved::of(&replica.address),
            target: replica.event_stream().unwrap_or_default().to_owned(),
            rank,
            methods: match replica.engine {
                EngineKind::Auto => &[VLLM, SGLANG, TENSORRT_LLM],
                EngineKind::Vllm => &[VLLM],
                EngineKind::Sglang => &[SGLANG],
                EngineKind::TensorrtLlm => &[TENSORRT_LLM],
            },
            channel: None,
            stream: State::Closed,
            resends: true,
            awaits_first: false,
        }
    }

    fn open(&mut self, start: u64) -> Result<(), Fault> {
        let channel = self.channel.clone().ok_or_else(|| Fault::Lost("not connected".into()))?;
        self.stream = State::Opening(Box::pin(subscribe(channel, self.methods, start)));
        Ok(())
    }

    /// The next message. Nothing is lost when this is dropped before it is done.
    async fn read(&mut self) -> Result<Published, Fault> {
        loop {
            match &mut self.stream {
                State::Closed => return Err(Fault::Lost("there is no stream".into())),
                State::Opening(opening) => {
                    let opened = opening.await;
                    self.stream = State::Closed;
                    self.stream = State::Open(Box::new(opened.map_err(lost)?));
                }
                State::Open(stream) => {
                    let payload = match stream.message().await {
                        Ok(Some(payload)) => payload,
                        Ok(None) => return Err(Fault::Lost("the engine ended the stream".into())),
                        Err(status) => return Err(lost(status)),
                    };
                    let sequence = smg::sequence(&payload).map_err(|_| Fault::Malformed)?;
                    return Ok(Published { sequence, payload });
                }
            }
        }
    }
}

impl Transport for EventStream {
    fn replays(&self) -> bool {
        self.resends
    }

    async fn resolve(&mut self) -> Result<String, Fault> {
        self.resolved.look_up().await
    }

    async fn connect(&mut self, limit: Duration) -> Result<(), Fault> {
        self.stream = State::Closed;
        self.resends = true;
        let mut last = Fault::Silent;
        let places = self.resolved.places(&self.target);
        let limit = limit / u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
        let unusable = |error: &dyn std::fmt::Display| Fault::Lost(error.to_string());
        // Named as it is configured, wherever it is reached.
        let origin = format!("http://{}", self.target).parse::<hyper::Uri>().map_err(|error| unusable(&error))?;
        for place in places {
            let endpoint = Endpoint::from_shared(format!("http://{place}")).map_err(|error| unusable(&error))?;
            let endpoint = endpoint
                .origin(origin.clone())
                .connect_timeout(limit)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .keep_alive_while_idle(true);
            match endpoint.connect().await {
                Ok(channel) => {
                    self.resolved.reached(&place);
                    self.channel = Some(channel);
                    return Ok(());
                }
                Err(error) => last = Fault::Lost(error.to_string()),
            }
        }
        Err(last)
    }

    fn reached(&self) -> Option<String> {
        self.resolved.first()
    }

    async fn next(&mut self) -> Result<Published, Fault> {
        self.read().await
    }

    async fn request_replay(&mut self, first: u64, _limit: Duration) -> Result<(), Fault> {
        self.awaits_first = first > 0;
        self.open(first)
    }

    async fn next_replayed(&mut self, limit: Duration) -> Result<Option<Published>, Fault> {
        let wait = if self.awaits_first { limit } else { QUIET.min(limit) };
        let message = timeout(wait, self.read()).await;
        match message {
            Ok(message) => {
                self.awaits_first = false;
                message.map(Some)
            }
            Err(_) if self.awaits_first => {
                self.awaits_first = false;
                self.resends = false;
                self.open(0)?;
                Err(Fault::Silent)
            }
            Err(_) => Ok(None),
        }
    }

    /// What comes after it is live.
    fn end_replay(&mut self) {}

    fn decode(&self, payload: &Bytes) -> Result<Batch, String> {
        let batch = smg::decode(payload).map_err(|error| error.to_string())?;
        match (self.rank, batch.data_parallel_rank) {
            (Some(_), None) => Err("the batch does not say which rank it is of".into()),
            (Some(rank), Some(of)) if of != i64::from(rank) => Ok(Batch::default()),
            _ => Ok(batch),
        }
    }
}

/// Subscribes at the first of `methods` that there is.
async fn subscribe(channel: Channel, methods: &[&'static str], start: u64) -> Result<Streaming<Bytes>, Status> {
    let mut answer = Err(Status::unimplemented("no method"));
    for method in methods {
        let mut client = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let request = Request::new(SubscribeKvEventsRequest { start_sequence_number: start });
        let opened = client.server_streaming(request, PathAndQuery::from_static(method), RawCodec).await;
        answer = opened.map(tonic::Response::into_inner);
        if !matches!(&answer, Err(status) if status.code() == Code::Unimplemented) {
            break;
        }
    }
    answer
}

fn lost(status: Status) -> Fault {
    Fault::Lost(format!("{:?}: {}", status.code(), status.message()))
}

// === impl RawCodec ===

impl Codec for RawCodec {
    type Encode = SubscribeKvEventsRequest;
    type Decode = Bytes;
    type Encoder = ProstEncoder<SubscribeKvEventsRequest>;
    type Decoder = RawCodec;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<SubscribeKvEventsRequest, ()>::default().encoder()
    }

    fn decoder(&mut self) -> RawCodec {
        RawCodec
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
