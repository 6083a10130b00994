//! A proxy for several VMs in one thread: shared data and queues as Envoy keeps them, streams to a hub, and a clock that
//! only the test moves.
//!
//! Nothing is ever removed from shared data, a write of a key that is missing is never compared, and a number is never
//! given twice. A queue outlives whoever registered it. Whoever runs a VM says so first, so that a stream belongs to the VM that opened it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use prost::Message;
use warmroute::host::{Cas, Host, Level, QueueToken, SharedValue, SharedWrite, StreamToken};
use warmroute::observation::SubscriberMessage;
use warmroute::wire;

/// The proxy, as a VM sees it.
#[derive(Clone, Debug, Default)]
pub struct Proxy(Rc<State>);

#[derive(Debug, Default)]
struct State {
    now_ns: Cell<u64>,
    /// What a look at the clock takes.
    look_ns: Cell<u64>,
    shared: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    last_cas: Cell<u32>,
    /// By name. A queue's number is its place, from 1.
    queues: RefCell<Vec<(String, VecDeque<Vec<u8>>)>>,
    running: Cell<usize>,
    streams: RefCell<BTreeMap<u32, Stream>>,
    last_stream: Cell<u32>,
    counters: RefCell<BTreeMap<String, u64>>,
    logged: RefCell<Vec<String>>,
}

/// An open stream.
#[derive(Debug)]
struct Stream {
    owner: usize,
    to_hub: VecDeque<SubscriberMessage>,
    to_vm: VecDeque<Vec<u8>>,
}

// === impl Proxy ===

impl Proxy {
    /// A proxy whose clock stands at `now_ms`, Unix time in ms.
    pub fn at(now_ms: u64) -> Proxy {
        let proxy = Proxy::default();
        proxy.set_clock(now_ms);
        proxy
    }

    /// Sets the clock.
    pub fn set_clock(&self, now_ms: u64) {
        self.0.now_ns.set(now_ms * 1_000_000);
    }

    /// From now on every look at the clock takes this long, as if the machine had other work.
    #[allow(dead_code, reason = "not every test has a busy machine")]
    pub fn set_look_ns(&self, look_ns: u64) {
        self.0.look_ns.set(look_ns);
    }

    /// What is called from now on is called by this VM.
    pub fn run(&self, vm: usize) {
        self.0.running.set(vm);
    }

    /// The VM is gone, and its streams with it.
    pub fn end(&self, vm: usize) {
        self.0.streams.borrow_mut().retain(|_, stream| stream.owner != vm);
    }

    /// What VMs have sent to the hub since the last call, by stream.
    pub fn take_sent(&self) -> Vec<(StreamToken, SubscriberMessage)> {
        let mut streams = self.0.streams.borrow_mut();
        let sent = |(token, stream): (&u32, &mut Stream)| {
            let token = StreamToken(*token);
            stream.to_hub.drain(..).map(|message| (token, message)).collect::<Vec<_>>()
        };
        streams.iter_mut().flat_map(sent).collect()
    }

    /// Puts a message of the hub's on its way; false if the stream is gone.
    pub fn reply(&self, token: StreamToken, message: Vec<u8>) -> bool {
        let mut streams = self.0.streams.borrow_mut();
        streams.get_mut(&token.0).map(|stream| stream.to_vm.push_back(message)).is_some()
    }

    /// The next message that is on its way to `vm`.
    pub fn next_message_to(&self, vm: usize) -> Option<(StreamToken, Vec<u8>)> {
        let mut streams = self.0.streams.borrow_mut();
        let own = streams.iter_mut().filter(|(_, stream)| stream.owner == vm);
        own.filter_map(|(token, stream)| Some((StreamToken(*token), stream.to_vm.pop_front()?))).next()
    }

    /// The VM that opened a stream, while it is open.
    pub fn owner(&self, token: StreamToken) -> Option<usize> {
        self.0.streams.borrow().get(&token.0).map(|stream| stream.owner)
    }

    /// Open streams.
    pub fn streams(&self) -> Vec<StreamToken> {
        self.0.streams.borrow().keys().copied().map(StreamToken).collect()
    }

    /// What a counter has come to, over all VMs.
    pub fn counted(&self, metric: &str) -> u64 {
        self.0.counters.borrow().get(metric).copied().unwrap_or(0)
    }

    /// What VMs logged so far.
    pub fn logged(&self) -> Vec<String> {
        self.0.logged.borrow().clone()
    }
}

impl Host for Proxy {
    fn now_ns(&self) -> u64 {
        self.0.now_ns.set(self.0.now_ns.get() + self.0.look_ns.get());
        self.0.now_ns.get()
    }

    fn shared_get(&self, key: &str) -> SharedValue {
        match self.0.shared.borrow().get(key) {
            Some((bytes, cas)) => SharedValue::Present { bytes: bytes.clone(), cas: Cas(*cas) },
            None => SharedValue::Absent,
        }
    }

    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite {
        let mut shared = self.0.shared.borrow_mut();
        if shared.get(key).is_some_and(|(_, current)| cas.0 != 0 && cas.0 != *current) {
            return SharedWrite::Mismatch;
        }
        self.0.last_cas.set(self.0.last_cas.get() + 1);
        shared.insert(key.to_owned(), (value.to_vec(), self.0.last_cas.get()));
        SharedWrite::Stored
    }

    fn register_queue(&self, name: &str) -> Option<QueueToken> {
        if self.find_queue(name).is_none() {
            self.0.queues.borrow_mut().push((name.to_owned(), VecDeque::new()));
        }
        self.find_queue(name)
    }

    fn find_queue(&self, name: &str) -> Option<QueueToken> {
        let at = self.0.queues.borrow().iter().position(|(other, _)| other == name)?;
        Some(QueueToken(at as u32 + 1))
    }

    fn enqueue(&self, queue: QueueToken, message: &[u8]) -> bool {
        let mut queues = self.0.queues.borrow_mut();
        let found = queues.get_mut((queue.0 as usize).wrapping_sub(1));
        found.map(|(_, messages)| messages.push_back(message.to_vec())).is_some()
    }

    fn dequeue(&self, queue: QueueToken) -> Option<Vec<u8>> {
        let mut queues = self.0.queues.borrow_mut();
        queues.get_mut((queue.0 as usize).wrapping_sub(1))?.1.pop_front()
    }

    fn open_stream(&self, _: &str, _: &str, _: &str, _: &[(&str, &str)]) -> Option<StreamToken> {
        let token = self.0.last_stream.get() + 1;
        self.0.last_stream.set(token);
        let stream = Stream { owner: self.0.running.get(), to_hub: VecDeque::new(), to_vm: VecDeque::new() };
        self.0.streams.borrow_mut().insert(token, stream);
        Some(StreamToken(token))
    }

    fn send(&self, stream: StreamToken, message: &[u8]) -> bool {
        let message = wire::v1::ObserveRequest::decode(message).expect("a VM sends protobuf");
        let message = wire::subscriber_message_from_proto(message).expect("a VM keeps the stream's contract");
        let mut streams = self.0.streams.borrow_mut();
        streams.get_mut(&stream.0).map(|stream| stream.to_hub.push_back(message)).is_some()
    }

    fn cancel(&self, stream: StreamToken) {
        self.0.streams.borrow_mut().remove(&stream.0);
    }

    fn count(&self, metric: &str, by: u64) {
        *self.0.counters.borrow_mut().entry(metric.to_owned()).or_default() += by;
    }

    fn gauge(&self, _: &str, _: u64) {}

    fn record(&self, _: &str, _: u64) {}

    fn log(&self, _: Level, message: &str) {
        self.0.logged.borrow_mut().push(message.to_owned());
    }
}
