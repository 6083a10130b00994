//! Several VMs over one simulated proxy: who leads, what the others see, what survives.

mod hits;
mod hub;
mod interleaved;
pub(super) mod packages;
mod random;
mod scenarios;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use crate::host::{Cas, Host, Level, QueueToken, SharedValue, SharedWrite, StreamToken};
use crate::observation::{Scope, SubscriberMessage};
use crate::wire;
use prost::Message;

const DOMAIN: &str = "sim";
pub const START_NS: u64 = 1_700_000_000_000_000_000;

/// What all VMs share.
#[derive(Debug, Default)]
pub struct World {
    shared: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    next_cas: Cell<u32>,
    pub elapsed_ns: Cell<u64>,
    /// How far the wall clock has been set forward or back since the start.
    skew_ns: Cell<i64>,
    /// Messages by the queue's name. As in Envoy, a queue's token is the same whoever registers it, and it outlives them.
    pub queues: RefCell<Vec<(String, VecDeque<Vec<u8>>)>>,
    next_token: Cell<u32>,
    /// Open streams, with what was sent over each.
    pub streams: RefCell<BTreeMap<u32, Vec<SubscriberMessage>>>,
    /// The cluster of every stream that was ever opened, and the headers that it began with.
    pub opened: RefCell<BTreeMap<u32, (String, Vec<String>)>>,
    /// What a look at the clock takes, beside 80 ns.
    pub look_ns: Cell<u64>,
    /// No stream can be opened.
    hub_down: Cell<bool>,
    /// Counters by name.
    pub counts: RefCell<BTreeMap<String, u64>>,
    /// The last values of gauges, by name.
    pub gauges: RefCell<BTreeMap<String, u64>>,
    /// What was recorded in histograms, by name.
    pub recorded: RefCell<BTreeMap<String, Vec<u64>>>,
    pub logged: RefCell<Vec<String>>,
    /// A key that cannot be read, as a partial write would leave it.
    broken: RefCell<Option<String>>,
}

/// The simulated proxy, as a VM sees it.
#[derive(Clone, Debug, Default)]
pub struct SimHost(pub Rc<World>);

// === impl SimHost ===

impl Host for SimHost {
    fn now_ns(&self) -> u64 {
        // Every look at the clock takes its time.
        self.0.elapsed_ns.set(self.0.elapsed_ns.get() + 80 + self.0.look_ns.get());
        (START_NS + self.0.elapsed_ns.get()).saturating_add_signed(self.0.skew_ns.get())
    }

    fn shared_get(&self, key: &str) -> SharedValue {
        match self.0.shared.borrow().get(key) {
            Some((_, cas)) if self.0.broken.borrow().as_deref() == Some(key) => {
                SharedValue::Present { bytes: b"garbage".to_vec(), cas: Cas(*cas) }
            }
            Some((bytes, cas)) => SharedValue::Present { bytes: bytes.clone(), cas: Cas(*cas) },
            None => SharedValue::Absent,
        }
    }

    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite {
        let mut shared = self.0.shared.borrow_mut();
        // As Envoy has it: 0 overwrites, and a missing key is not compared.
        if shared.get(key).is_some_and(|(_, current)| cas.0 != 0 && *current != cas.0) {
            return SharedWrite::Mismatch;
        }
        self.0.next_cas.set(self.0.next_cas.get() + 1);
        shared.insert(key.to_owned(), (value.to_vec(), self.0.next_cas.get()));
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
        queues.get_mut(queue.0 as usize - 1).map(|(_, messages)| messages.push_back(message.to_vec())).is_some()
    }

    fn dequeue(&self, queue: QueueToken) -> Option<Vec<u8>> {
        self.0.queues.borrow_mut().get_mut(queue.0 as usize - 1)?.1.pop_front()
    }

    fn open_stream(
        &self,
        cluster: &str,
        service: &str,
        method: &str,
        metadata: &[(&str, &str)],
    ) -> Option<StreamToken> {
        assert_eq!((service, method), ("warmroute.v1.Observation", "Observe"));
        if self.0.hub_down.get() {
            return None;
        }
        let token = self.0.next_token.get() + 1;
        self.0.next_token.set(token);
        self.0.streams.borrow_mut().insert(token, Vec::new());
        let shown = metadata.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        self.0.opened.borrow_mut().insert(token, (cluster.to_owned(), shown));
        Some(StreamToken(token))
    }

    fn send(&self, stream: StreamToken, message: &[u8]) -> bool {
        let message = wire::v1::ObserveRequest::decode(message).unwrap();
        let message = wire::subscriber_message_from_proto(message).unwrap();
        self.0.streams.borrow_mut().get_mut(&stream.0).map(|sent| sent.push(message)).is_some()
    }

    fn cancel(&self, stream: StreamToken) {
        self.0.streams.borrow_mut().remove(&stream.0);
    }

    fn count(&self, metric: &str, by: u64) {
        *self.0.counts.borrow_mut().entry(metric.to_owned()).or_default() += by;
    }

    fn gauge(&self, metric: &str, value: u64) {
        self.0.gauges.borrow_mut().insert(metric.to_owned(), value);
    }

    fn record(&self, metric: &str, value: u64) {
        self.0.recorded.borrow_mut().entry(metric.to_owned()).or_default().push(value);
    }

    fn log(&self, _level: Level, message: &str) {
        self.0.logged.borrow_mut().push(message.to_owned());
    }
}

pub fn scope() -> Scope {
    Scope { tenant_id: "default".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() }
}
