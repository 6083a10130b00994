//! A pool: VMs of one process, and a hub that tells whichever of them asks what two replicas hold, and sends the model that
//! they serve.

#![allow(dead_code, reason = "not every test has a use for all of it")]

pub mod model;

use model::MODEL;
use prost::Message;
use warmroute::fingerprint::{BlockSize, PrefixHash, prefix_hashes};
use warmroute::observation::{
    BlockKey, Member, Observation, ReplicaSlot, Scope, ScopeSlot, Stored, StoredBlock, StreamBody, StreamMessage,
    SubscriberMessage, Tier,
};
use warmroute::wire;
use wasm_host::{Action, Headers, Process, RootId, Trapped, Vm};

/// A configuration with every limit at its default.
pub const CONFIGURATION: &str = r#"{"hub_cluster":"hub","models":[{"model_id":"m"}]}"#;
/// Blocks of the first prompt.
pub const BLOCKS: u32 = 20;
/// Unix time in ms at which tests begin.
pub const START_MS: u64 = 1_700_000_000_000;

const SCOPE: ScopeSlot = ScopeSlot(1);
const EPOCH: u64 = 7;
/// The most blocks in one message.
const MAX_BLOCKS: usize = 256;

/// VMs, of which the first gets no requests, and their hub.
pub struct Pool<'p> {
    pub process: &'p Process,
    replicas: u32,
    /// Whether the hub announces the model's tokenizer.
    pub has_model: bool,
    pub vms: Vec<(RootId, Vm)>,
    /// The stream that is followed, and the number of its last message.
    stream: Option<(u32, u64)>,
    sequence: u64,
    /// Callbacks of VMs that have ended.
    ended_callbacks: u64,
}

/// What became of a request.
#[derive(Debug)]
pub struct Told {
    pub action: Action,
    pub code: Option<String>,
    pub detail: Option<String>,
    pub destination: Option<String>,
    pub matched_tokens: Option<String>,
}

/// The token ids of a prompt.
pub fn token_ids(prompt: u32, blocks: u32) -> Vec<u32> {
    (0..blocks * 16).map(|at| prompt.wrapping_mul(7_919).wrapping_add(at)).collect()
}

/// A request's body for the first `blocks` blocks of the first prompt.
pub fn body(blocks: u32) -> Vec<u8> {
    serde_json::json!({"model": "m", "prompt": token_ids(0, blocks)}).to_string().into_bytes()
}

/// The headers of a request with a JSON body.
pub fn json_headers(length: usize) -> Headers {
    let length = length.to_string();
    let pairs = [
        (":method", "POST"),
        (":path", "/v1/completions"),
        (":authority", "llm"),
        ("content-type", "application/json"),
        ("content-length", &length),
        ("x-gateway-destination-endpoint", "10.9.9.9:1"),
    ];
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
}

/// A replica stores all whole blocks of a prompt, at a time in Unix ms.
pub fn stored(replica: u32, ids: &[u32], at_ms: u64) -> Vec<Observation> {
    let mut parent = None;
    let hashes: Vec<PrefixHash> = prefix_hashes(ids, BlockSize::DEFAULT, None).collect();
    let mut facts = Vec::new();
    for (at, hashes) in hashes.chunks(MAX_BLOCKS).enumerate() {
        let first = (at * MAX_BLOCKS) as u32;
        let block = |(at, hash): (usize, &PrefixHash)| StoredBlock {
            key: BlockKey::from(*hash),
            token_count: 16 * (first + at as u32 + 1),
        };
        facts.push(Observation::Stored(Stored {
            replica: ReplicaSlot(replica),
            scope: SCOPE,
            tier: Tier::T1,
            last_seen_ms: at_ms,
            parent: parent.map(BlockKey::from),
            chained: true,
            blocks: hashes.iter().enumerate().map(block).collect(),
            ..Stored::default()
        }));
        parent = hashes.last().copied();
    }
    facts
}

/// A replica removes them.
pub fn removed(replica: u32, ids: &[u32]) -> Vec<Observation> {
    let keys = prefix_hashes(ids, BlockSize::DEFAULT, None).map(BlockKey::from).collect();
    vec![Observation::Removed { replica: ReplicaSlot(replica), scope: SCOPE, keys }]
}

// === impl Pool ===

impl<'p> Pool<'p> {
    /// So many VMs with this configuration.
    pub fn new(process: &'p Process, vms: usize, configuration: &str) -> Result<Pool<'p>, Trapped> {
        Pool::of_replicas(process, vms, configuration, 2)
    }

    /// The same with so many replicas, of which the first one holds the first prompt.
    pub fn of_replicas(
        process: &'p Process,
        vms: usize,
        configuration: &str,
        replicas: u32,
    ) -> Result<Pool<'p>, Trapped> {
        process.set_clock(START_MS * 1_000_000);
        let mut pool = Pool { process, replicas, has_model: true, vms: Vec::new(), stream: None, sequence: 0, ended_callbacks: 0 };
        for _ in 0..vms {
            let mut vm = process.vm()?;
            pool.vms.push((vm.root("warmroute", configuration.as_bytes())?, vm));
        }
        Ok(pool)
    }

    pub fn worker(&mut self, at: usize) -> (RootId, &mut Vm) {
        let (root, vm) = &mut self.vms[at];
        (*root, vm)
    }

    /// So many rounds of 100 ms: every VM ticks, and the hub tells what it has to.
    pub fn settle(&mut self, rounds: u32) -> Result<(), Trapped> {
        for _ in 0..rounds {
            self.process.set_clock(self.process.now_ns() + 100_000_000);
            for (root, vm) in &mut self.vms {
                vm.tick(*root)?;
            }
            self.serve()?;
            self.beat()?;
        }
        Ok(())
    }

    /// The stream ends, with a gRPC status.
    pub fn lose_stream(&mut self, status: u32) -> Result<(), Trapped> {
        let Some((token, _)) = self.stream.take() else { return Ok(()) };
        let Some(stream) = self.process.end_stream(token) else { return Ok(()) };
        match self.owner(stream.vm) {
            Some((_, vm)) => vm.grpc_close(stream.context, token, status),
            None => Ok(()),
        }
    }

    /// The hub tells of the blocks of another prompt. Returns how many these are; none while nobody follows.
    pub fn tell_of_prompt(&mut self, prompt: u32, blocks: u32) -> Result<u32, Trapped> {
        self.tell_of(&token_ids(prompt, blocks))
    }

    /// The same of a prompt of these token ids.
    pub fn tell_of(&mut self, ids: &[u32]) -> Result<u32, Trapped> {
        if self.stream.is_none() {
            return Ok(0);
        }
        self.tell_replica_of(1, ids)?;
        Ok(ids.len() as u32 / 16)
    }

    /// The hub tells that a replica has stored the blocks of a prompt.
    pub fn tell_replica_of(&mut self, replica: u32, ids: &[u32]) -> Result<(), Trapped> {
        stored(replica, ids, self.now_ms()).into_iter().try_for_each(|fact| self.delta(vec![fact]))
    }

    /// The hub tells of changes, in one message.
    pub fn delta(&mut self, observations: Vec<Observation>) -> Result<(), Trapped> {
        let first_sequence = self.sequence + 1;
        self.sequence += observations.len() as u64;
        self.send(StreamBody::Delta { first_sequence, observations })
    }

    /// The clock, Unix time in ms.
    pub fn now_ms(&self) -> u64 {
        self.process.now_ns() / 1_000_000
    }

    /// The hub tells that it lives.
    pub fn beat(&mut self) -> Result<(), Trapped> {
        self.send(StreamBody::Heartbeat)
    }

    /// What a worker does with a request for a completion.
    pub fn ask(&mut self, at: usize, body: &[u8]) -> Result<Told, Trapped> {
        self.ask_at(at, "/v1/completions", body)
    }

    /// What a worker does with a request.
    pub fn ask_at(&mut self, at: usize, path: &str, body: &[u8]) -> Result<Told, Trapped> {
        let (root, vm) = self.worker(at);
        let context = vm.request(root)?;
        let mut headers = json_headers(body.len());
        headers.retain(|(name, _)| name != ":path");
        headers.push((":path".into(), path.as_bytes().to_vec()));
        let mut action = vm.request_headers(context, headers, false)?;
        if action == Action::Pause {
            action = vm.request_body(context, body.to_vec(), true)?;
        }
        let header = |name: &str| vm.header(context, name);
        let told = Told {
            action,
            code: header("x-inferencecache-reason-code"),
            detail: header("x-inferencecache-detail"),
            destination: header("x-gateway-destination-endpoint"),
            matched_tokens: header("x-inferencecache-matched-tokens"),
        };
        vm.response_headers(context, vec![(":status".into(), b"200".to_vec())], false)?;
        vm.response_body(context, b"{}".to_vec(), true)?;
        vm.end_request(context)?;
        Ok(told)
    }

    /// The last message that would be sent, with other bytes.
    pub fn send_raw(&mut self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Result<(), Trapped> {
        let Some((token, number)) = self.stream else { return Ok(()) };
        let observations = stored(1, &token_ids(number as u32 % 7, 40), self.now_ms());
        let body = StreamBody::Delta { first_sequence: self.sequence + 1, observations };
        let message = StreamMessage { number: number + 1, epoch: EPOCH, sequence: self.sequence + 1, body };
        let bytes = change(wire::stream_message_to_proto(&message).encode_to_vec());
        self.deliver(token, bytes)
    }

    /// Callbacks of all VMs that are there.
    pub fn callbacks(&self) -> u64 {
        self.ended_callbacks + self.vms.iter().map(|(_, vm)| vm.callbacks).sum::<u64>()
    }

    /// A root context ends: what it opened ends with it.
    pub fn forget(&mut self, at: usize, root: RootId) {
        let number = self.vms[at].1.number();
        for (token, stream) in self.process.streams() {
            if stream.vm == number && stream.context == root.0 {
                self.process.end_stream(token);
            }
        }
    }

    /// Another VM in the place of one that ends without a word.
    pub fn replace(&mut self, at: usize, configuration: &str) -> Result<(), Trapped> {
        let number = self.vms[at].1.number();
        for (token, stream) in self.process.streams() {
            if stream.vm == number {
                self.process.end_stream(token);
            }
        }
        let mut vm = self.process.vm()?;
        let root = vm.root("warmroute", configuration.as_bytes())?;
        self.ended_callbacks += self.vms[at].1.callbacks;
        self.vms[at] = (root, vm);
        Ok(())
    }

    fn owner(&mut self, vm: usize) -> Option<&mut (RootId, Vm)> {
        self.vms.iter_mut().find(|(_, each)| each.number() == vm)
    }

    fn deliver(&mut self, token: u32, bytes: Vec<u8>) -> Result<(), Trapped> {
        let Some(stream) = self.process.streams().remove(&token) else {
            self.stream = None;
            return Ok(());
        };
        match self.owner(stream.vm) {
            Some((_, vm)) => vm.grpc_message(stream.context, token, bytes),
            None => Ok(()),
        }
    }

    /// Answers what the filters ask for: a subscription with the full state, a model with its parts.
    pub fn serve(&mut self) -> Result<(), Trapped> {
        let streams = self.process.streams();
        let sent = self.process.take_sent();
        for message in &sent {
            self.send_model(&message.message)?;
        }
        let newest = streams.keys().next_back().copied();
        if self.stream.map(|(token, _)| token) != newest {
            // Not before its subscription.
            let Some(token) = newest.filter(|newest| sent.iter().any(|sent| sent.token == *newest)) else {
                return Ok(());
            };
            self.stream = Some((token, 0));
            self.sequence = 1;
            let member = |id: &str| Member::new("default", "m", id);
            let up = |number: u32| Observation::ReplicaUp {
                replica: ReplicaSlot(number),
                member: member(&format!("r{number}")),
                address: format!("10.0.0.{number}:80"),
                data_parallel_rank: None,
            };
            let scope = Scope {
                tenant_id: "default".into(),
                model_id: "m".into(),
                hash_scheme: "vllm".into(),
                adapter_id: String::new(),
            };
            let mut facts = vec![Observation::Scope { slot: SCOPE, scope }];
            facts.extend((1..=self.replicas).map(up));
            if self.has_model {
                facts.push(Observation::Model { model_id: "m".into(), version: MODEL.version });
            }
            facts.extend(stored(1, &token_ids(0, BLOCKS), self.now_ms()));
            // Elsewhere nothing of it is held, so that it distinguishes.
            let complete = |number: u32| Observation::ReplicaComplete { replica: ReplicaSlot(number) };
            facts.extend((1..=self.replicas).map(complete));
            for body in [StreamBody::Reset, StreamBody::Chunk(facts), StreamBody::ResetComplete] {
                self.send(body)?;
            }
            return Ok(());
        }
        Ok(())
    }

    /// Sends the model's parts if that is what a filter asks for.
    fn send_model(&mut self, message: &[u8]) -> Result<(), Trapped> {
        let asked = wire::v1::ObserveRequest::decode(message).map(wire::subscriber_message_from_proto);
        let Ok(Ok(SubscriberMessage::WantModel { digest, first_part })) = asked else { return Ok(()) };
        assert_eq!(digest, MODEL.version.digest, "a model is asked for that was not announced");
        for part in MODEL.parts.iter().skip(first_part as usize) {
            self.send(StreamBody::ModelPart(part.clone()))?;
        }
        Ok(())
    }

    fn send(&mut self, body: StreamBody) -> Result<(), Trapped> {
        let Some((token, number)) = &mut self.stream else { return Ok(()) };
        *number += 1;
        let in_reset = matches!(body, StreamBody::Reset | StreamBody::Chunk(_));
        let sequence = if in_reset { 0 } else { self.sequence };
        let message = StreamMessage { number: *number, epoch: EPOCH, sequence, body };
        let (token, bytes) = (*token, wire::stream_message_to_proto(&message).encode_to_vec());
        self.deliver(token, bytes)
    }
}
