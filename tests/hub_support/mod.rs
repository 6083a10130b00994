//! What the hub talks to, written from its documented formats: an engine's publisher with real ZeroMQ sockets, and a
//! subscriber of the Observe stream that folds what it is told and checks the stream's promises on the way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rmpv::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::Streaming;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::observation::{
    BlockKey, ModelDigest, ModelPart, ModelVersion, Observation, ReplicaStats, Stored, StreamBody, StreamMessage,
    SubscriberMessage, Subscription,
};
use warmroute::routing::policy::Policy;
use warmroute::wire::{self, v1};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Tokens in a block, everywhere in these tests.
pub const BLOCK: usize = 4;

/// How an engine frames the answers to a replay request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Framing {
    /// `["", seq, payload]`.
    Two,
    /// `["", topic, seq, payload]`.
    Three,
}

/// An engine's publisher.
pub struct Engine {
    publisher: PubSocket,
    router: Option<JoinHandle<()>>,
    ring: Arc<Mutex<VecDeque<(u64, Bytes)>>>,
    answers: Arc<AtomicUsize>,
    pub events_port: u16,
    pub replay_port: u16,
    pub next: u64,
    /// The rank that batches state.
    pub rank: u64,
}

/// Free for now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A `BlockStored` as an array.
pub fn stored(keys: &[u64], parent: Option<u64>, token_ids: &[u32]) -> Value {
    Value::Array(vec![
        "BlockStored".into(),
        Value::Array(keys.iter().map(|key| (*key).into()).collect()),
        parent.map_or(Value::Nil, Value::from),
        Value::Array(token_ids.iter().map(|id| (*id).into()).collect()),
        (BLOCK as u64).into(),
        Value::Nil,
        "GPU".into(),
    ])
}

/// A `BlockRemoved` as a map.
pub fn removed(keys: &[u64]) -> Value {
    Value::Map(vec![
        ("type".into(), "BlockRemoved".into()),
        ("block_hashes".into(), Value::Array(keys.iter().map(|key| (*key).into()).collect())),
    ])
}

/// The keys a request with these tokens would look up.
pub fn keys_of(token_ids: &[u32]) -> BTreeSet<BlockKey> {
    prefix_hashes(token_ids, BlockSize::try_new(BLOCK as u64).unwrap(), None).map(BlockKey::from).collect()
}

/// Consecutive token ids.
pub fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

impl Engine {
    pub async fn start(framing: Framing) -> Engine {
        Engine::start_on(free_port(), free_port(), Some(framing)).await
    }

    /// One whose replay socket sends at most so many answers and drops the others, the end among them.
    pub async fn start_with_full_socket(answers: usize) -> Engine {
        let engine = Engine::start(Framing::Two).await;
        engine.answers.store(answers, Ordering::Relaxed);
        engine
    }

    /// `framing: None` leaves replay requests unanswered.
    pub async fn start_on(events_port: u16, replay_port: u16, framing: Option<Framing>) -> Engine {
        let mut publisher = PubSocket::new();
        let endpoint = format!("tcp://127.0.0.1:{events_port}");
        let tries = Instant::now() + Duration::from_secs(20);
        while publisher.bind(&endpoint).await.is_err() {
            assert!(Instant::now() < tries, "{endpoint} cannot be bound");
            sleep(Duration::from_millis(10)).await;
        }
        let ring = Arc::new(Mutex::new(VecDeque::new()));
        let mut router = RouterSocket::new();
        while router.bind(&format!("tcp://127.0.0.1:{replay_port}")).await.is_err() {
            assert!(Instant::now() < tries, "port {replay_port} cannot be bound");
            sleep(Duration::from_millis(10)).await;
        }
        let answers = Arc::new(AtomicUsize::new(usize::MAX));
        let router = tokio::spawn(answer_replays(router, Arc::clone(&ring), framing, Arc::clone(&answers)));
        Engine { publisher, router: Some(router), ring, answers, events_port, replay_port, next: 0, rank: 0 }
    }

    /// Ends as a process does: connections close, nothing is said.
    pub async fn kill(mut self) -> (u16, u16) {
        if let Some(router) = self.router.take() {
            router.abort();
            let _ = router.await;
        }
        (self.events_port, self.replay_port)
    }

    /// Publishes events as one batch.
    pub async fn publish(&mut self, events: Vec<Value>) {
        let payload = self.record(events);
        self.send(payload).await;
    }

    /// Publishes whatever this is.
    pub async fn publish_payload(&mut self, payload: Bytes) {
        self.ring.lock().unwrap().push_back((self.next, payload.clone()));
        self.send(payload).await;
    }

    /// A batch that reaches the ring only, as if the live message was lost.
    pub fn lose_live(&mut self, events: Vec<Value>) {
        self.record(events);
        self.next += 1;
    }

    /// A batch that is lost altogether: sent to nobody and not in the ring.
    pub fn lose(&mut self) {
        self.next += 1;
    }

    pub async fn send(&mut self, payload: Bytes) {
        let mut message = ZmqMessage::from(Bytes::from_static(b"kv"));
        message.push_back(Bytes::copy_from_slice(&self.next.to_be_bytes()));
        message.push_back(payload);
        self.publisher.send(message).await.unwrap();
        self.next += 1;
    }

    pub fn forget_ring(&self) {
        self.ring.lock().unwrap().clear();
    }

    fn record(&mut self, events: Vec<Value>) -> Bytes {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let batch = Value::Array(vec![now.into(), Value::Array(events), self.rank.into()]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        let payload = Bytes::from(payload);
        self.ring.lock().unwrap().push_back((self.next, payload.clone()));
        payload
    }
}

async fn answer_replays(
    mut router: RouterSocket,
    ring: Arc<Mutex<VecDeque<(u64, Bytes)>>>,
    framing: Option<Framing>,
    limit: Arc<AtomicUsize>,
) {
    loop {
        let Ok(request) = router.recv().await else { return };
        let frames = request.into_vec();
        let Some(framing) = framing else { continue };
        assert_eq!(frames.len(), 3, "a request is [identity, \"\", first sequence]");
        assert!(frames[1].is_empty());
        let first = u64::from_be_bytes(frames[2].as_ref().try_into().unwrap());
        let mut answers: Vec<_> = ring.lock().unwrap().iter().filter(|(seq, _)| *seq >= first).cloned().collect();
        answers.push((u64::MAX, Bytes::new()));
        for (sequence, payload) in answers.into_iter().take(limit.load(Ordering::Relaxed)) {
            let mut answer = ZmqMessage::from(frames[0].clone());
            answer.push_back(Bytes::new());
            if framing == Framing::Three {
                answer.push_back(if sequence == u64::MAX { Bytes::new() } else { Bytes::from_static(b"kv") });
            }
            answer.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
            answer.push_back(payload);
            router.send(answer).await.unwrap();
        }
    }
}

/// A hub that follows these engines as replicas `r0`, `r1`, …
pub async fn hub(engines: &[&Engine], more: &str) -> Hub {
    let replicas: Vec<String> = engines
        .iter()
        .enumerate()
        .map(|(at, engine)| {
            format!(
                "{{id: r{at}, address: 'localhost:{}', kv_events: 'tcp://127.0.0.1:{}', \
                 kv_replay: 'tcp://127.0.0.1:{}', model: m{at}}}",
                8000 + at,
                engine.events_port,
                engine.replay_port
            )
        })
        .collect();
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nreplicas: [{}]\nheartbeat_ms: 200\n{more}",
        replicas.join(", ")
    );
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

/// A filter's view of the world.
pub struct Observer {
    requests: mpsc::Sender<v1::ObserveRequest>,
    responses: Streaming<v1::ObserveResponse>,
    pub acknowledges: bool,
    pub epoch: u64,
    pub sequence: u64,
    pub numbers: u64,
    pub bytes: usize,
    pub kinds: Vec<&'static str>,
    pub held: BTreeMap<String, BTreeSet<BlockKey>>,
    pub addresses: BTreeMap<String, String>,
    pub ranks: BTreeMap<String, Option<u32>>,
    pub stats: BTreeMap<String, ReplicaStats>,
    pub complete: BTreeSet<String>,
    pub clears: usize,
    /// What was said to be stored, in order.
    pub stored: Vec<Stored>,
    /// When each replica was said to hold still what it held.
    pub reasserted: BTreeMap<String, Vec<u64>>,
    pub policies: BTreeMap<Option<String>, Policy>,
    pub models: BTreeMap<String, ModelVersion>,
    /// Parts of models, in the order in which they came.
    pub parts: Vec<ModelPart>,
    names: BTreeMap<u32, String>,
    scopes: BTreeMap<u32, String>,
}

impl Observer {
    pub async fn subscribe(hub: &Hub, subscription: Subscription) -> Observer {
        let endpoint = format!("http://{}", hub.grpc_address());
        let mut client = v1::observation_client::ObservationClient::connect(endpoint).await.unwrap();
        let (requests, receiver) = mpsc::channel(64);
        let first = wire::subscriber_message_to_proto(&SubscriberMessage::Subscribe(subscription));
        requests.send(first).await.unwrap();
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let responses = client.observe(stream).await.unwrap().into_inner();
        Observer {
            requests,
            responses,
            acknowledges: true,
            epoch: 0,
            sequence: 0,
            numbers: 0,
            bytes: 0,
            kinds: Vec::new(),
            held: BTreeMap::new(),
            addresses: BTreeMap::new(),
            ranks: BTreeMap::new(),
            stats: BTreeMap::new(),
            complete: BTreeSet::new(),
            clears: 0,
            stored: Vec::new(),
            reasserted: BTreeMap::new(),
            policies: BTreeMap::new(),
            models: BTreeMap::new(),
            parts: Vec::new(),
            names: BTreeMap::new(),
            scopes: BTreeMap::new(),
        }
    }

    pub async fn new(hub: &Hub) -> Observer {
        Observer::subscribe(hub, Subscription { node_id: "test".into(), ..Subscription::default() }).await
    }

    /// Takes messages until `done`, for at most twenty seconds: a machine can have other work.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Observer) -> bool) {
        let limit = Instant::now() + Duration::from_secs(20);
        while !done(self) {
            let left = limit.saturating_duration_since(Instant::now());
            match timeout(left, self.step()).await {
                Ok(Ok(())) => {}
                Ok(Err(status)) => panic!("waiting for {what}: {status}"),
                Err(_) => panic!("{what} did not come: {:?}", self.summary()),
            }
        }
    }

    /// Takes messages for a while.
    pub async fn listen(&mut self, duration: Duration) {
        let limit = Instant::now() + duration;
        while timeout(limit.saturating_duration_since(Instant::now()), self.step()).await.is_ok_and(|step| step.is_ok())
        {
        }
    }

    /// Takes one message.
    pub async fn step(&mut self) -> Result<(), tonic::Status> {
        let response = self.responses.message().await?.ok_or_else(|| tonic::Status::aborted("the stream ended"))?;
        let bytes = response.encoded_len();
        assert!(bytes <= wire::MAX_MESSAGE_BYTES, "a message of {bytes} bytes");
        self.bytes += bytes;
        let message = wire::stream_message_from_proto(response).unwrap();
        let number = message.number;
        self.take(message);
        if self.acknowledges {
            let acknowledge = wire::subscriber_message_to_proto(&SubscriberMessage::Acknowledge(number));
            let _ = self.requests.send(acknowledge).await;
        }
        Ok(())
    }

    /// Asks for a model's contents.
    pub async fn want(&mut self, digest: ModelDigest, first_part: u32) {
        let want = wire::subscriber_message_to_proto(&SubscriberMessage::WantModel { digest, first_part });
        self.requests.send(want).await.unwrap();
    }

    /// Acknowledges all that came.
    pub async fn acknowledge(&mut self) {
        let acknowledge = wire::subscriber_message_to_proto(&SubscriberMessage::Acknowledge(self.numbers));
        self.requests.send(acknowledge).await.unwrap();
    }

    pub fn holds(&self, replica: &str, token_ids: &[u32]) -> bool {
        self.held.get(replica).cloned().unwrap_or_default() == keys_of(token_ids)
    }

    fn summary(&self) -> BTreeMap<&str, usize> {
        self.held.iter().map(|(replica, keys)| (replica.as_str(), keys.len())).collect()
    }

    fn take(&mut self, message: StreamMessage) {
        assert_eq!(message.number, self.numbers + 1, "messages are counted");
        self.numbers = message.number;
        self.epoch = message.epoch;
        match message.body {
            StreamBody::Reset => self.kinds.push("reset"),
            StreamBody::ResetComplete => self.kinds.push("reset_complete"),
            StreamBody::Resumed => self.kinds.push("resumed"),
            StreamBody::Heartbeat => {
                assert_eq!(message.sequence, self.sequence, "a heartbeat does not move the position");
                self.kinds.push("heartbeat");
            }
            StreamBody::ModelPart(part) => {
                assert_eq!(message.sequence, self.sequence, "a part does not move the position");
                self.kinds.push("model_part");
                self.parts.push(part);
            }
            StreamBody::Chunk(observations) => {
                assert_eq!(message.sequence, 0, "there is no position inside a reset");
                self.kinds.push("chunk");
                observations.into_iter().for_each(|observation| self.fold(observation));
            }
            StreamBody::Delta { first_sequence, observations } => {
                assert_eq!(first_sequence, self.sequence + 1, "deltas are without gaps");
                assert!(message.sequence >= first_sequence);
                self.kinds.push("delta");
                observations.into_iter().for_each(|observation| self.fold(observation));
            }
        }
        self.sequence = message.sequence;
    }

    fn fold(&mut self, observation: Observation) {
        match observation {
            Observation::Scope { slot, scope } => {
                self.scopes.insert(slot.0, scope.model_id);
            }
            Observation::ScopeGone { slot } => {
                self.scopes.remove(&slot.0);
            }
            Observation::ReplicaUp { replica, member, address, data_parallel_rank } => {
                let replica_id = member.replica_id;
                self.held.insert(replica_id.clone(), BTreeSet::new());
                self.addresses.insert(replica_id.clone(), address);
                self.ranks.insert(replica_id.clone(), data_parallel_rank);
                self.complete.remove(&replica_id);
                self.names.insert(replica.0, replica_id);
            }
            Observation::ReplicaComplete { replica } => {
                self.complete.insert(self.names[&replica.0].clone());
            }
            Observation::Stored(stored) => {
                assert!(self.scopes.contains_key(&stored.scope.0), "scopes are announced before they are used");
                let begins = stored.blocks[0].token_count == BLOCK as u32;
                assert!(
                    !stored.chained || stored.parent.is_none() == begins,
                    "only the first block has none before it"
                );
                let held = self.held.get_mut(&self.names[&stored.replica.0]).unwrap();
                held.extend(stored.blocks.iter().map(|block| block.key.clone()));
                self.stored.push(stored);
            }
            Observation::Removed { replica, keys, .. } => {
                let held = self.held.get_mut(&self.names[&replica.0]).unwrap();
                for key in keys {
                    held.remove(&key);
                }
            }
            Observation::Cleared { replica } => {
                self.clears += 1;
                self.held.get_mut(&self.names[&replica.0]).unwrap().clear();
            }
            Observation::ReplicaGone { replica } => {
                self.held.remove(&self.names[&replica.0]);
            }
            Observation::Stats { replica, stats } => {
                self.stats.insert(self.names[&replica.0].clone(), stats);
            }
            Observation::Policy { tenant_id, policy } => {
                self.policies.insert(tenant_id, policy);
            }
            Observation::PolicyGone { tenant_id } => {
                self.policies.remove(&tenant_id);
            }
            Observation::Model { model_id, version } => {
                self.models.insert(model_id, version);
            }
            Observation::ModelGone { model_id } => {
                self.models.remove(&model_id);
            }
            Observation::Reasserted { replica, at_ms } => {
                self.reasserted.entry(self.names[&replica.0].clone()).or_default().push(at_ms);
            }
            Observation::Counted(_) | Observation::PublishedScope { .. } | Observation::PublishedReplica { .. } => {
                panic!("the stream says nothing that is the log's own")
            }
        }
    }
}

/// A subscriber that looks at the kinds of messages only.
pub struct RawStream {
    _requests: mpsc::Sender<v1::ObserveRequest>,
    responses: Streaming<v1::ObserveResponse>,
}

impl RawStream {
    pub async fn open(hub: &Hub, subscription: Subscription) -> RawStream {
        let endpoint = format!("http://{}", hub.grpc_address());
        let mut client = v1::observation_client::ObservationClient::connect(endpoint).await.unwrap();
        let (requests, receiver) = mpsc::channel(4);
        let subscribe = wire::subscriber_message_to_proto(&SubscriberMessage::Subscribe(subscription));
        requests.send(subscribe).await.unwrap();
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        RawStream { _requests: requests, responses: client.observe(stream).await.unwrap().into_inner() }
    }

    pub async fn kinds(&mut self, count: usize) -> Vec<&'static str> {
        use v1::observe_response::Kind;
        let mut kinds = Vec::new();
        while kinds.len() < count {
            kinds.push(match self.responses.message().await.unwrap().unwrap().kind.unwrap() {
                Kind::Reset(_) => "reset",
                Kind::Chunk(_) => "chunk",
                Kind::ResetComplete(_) => "reset_complete",
                Kind::Resumed(_) => "resumed",
                Kind::Delta(_) => "delta",
                Kind::Heartbeat(_) => "heartbeat",
                Kind::ModelPart(_) => "model_part",
            });
        }
        kinds
    }
}

/// The body of a GET.
pub async fn get(hub: &Hub, path: &str) -> (u16, String) {
    use http_body_util::{BodyExt, Empty};
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let url = format!("http://{}{path}", hub.http_address()).parse().unwrap();
    let response = client.get(url).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until the hub has caught up with every replica.
pub async fn ready(hub: &Hub) {
    let limit = Instant::now() + Duration::from_secs(20);
    while get(hub, "/readyz").await.0 != 200 {
        assert!(Instant::now() < limit, "not ready: {}", get(hub, "/state").await.1);
        sleep(Duration::from_millis(10)).await;
    }
}

/// A hub that has caught up with these engines, and an observer of it.
pub async fn observed(engines: &[&Engine], more: &str) -> (Hub, Observer) {
    let hub = hub(engines, more).await;
    ready(&hub).await;
    let observer = Observer::new(&hub).await;
    (hub, observer)
}

/// The hub as a process, with its messages kept.
pub fn run_binary(config: &str) -> std::process::Child {
    let name = format!("warmroute-hub-{}-{}.yaml", std::process::id(), free_port());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, config).unwrap();
    std::process::Command::new(env!("CARGO_BIN_EXE_warmroute-hub"))
        .arg("--config")
        .arg(path)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}
