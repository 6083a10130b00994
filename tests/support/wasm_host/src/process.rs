//! What all VMs of a process share.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wasmtime::{Config, Engine, Module};

use crate::faults::Faults;
use crate::vm::{Trapped, Vm};

/// Statuses of the ABI.
pub mod status {
    pub const OK: u32 = 0;
    pub const NOT_FOUND: u32 = 1;
    pub const BAD_ARGUMENT: u32 = 2;
    pub const SERIALIZATION_FAILURE: u32 = 3;
    pub const PARSE_FAILURE: u32 = 4;
    pub const INVALID_MEMORY_ACCESS: u32 = 6;
    pub const EMPTY: u32 = 7;
    pub const CAS_MISMATCH: u32 = 8;
    pub const INTERNAL_FAILURE: u32 = 10;
    pub const UNIMPLEMENTED: u32 = 12;
}

/// How long a callback may take before it is taken for one that never ends.
const CALLBACK_LIMIT_TICKS: u64 = 60;
/// The most memory that Envoy gives a VM.
const ENVOY_MAX_MEMORY_BYTES: usize = 1 << 30;
const EPOCH: Duration = Duration::from_secs(1);

/// A process: the module, compiled once, and the state that its VMs share.
pub struct Process {
    engine: Engine,
    module: Module,
    shared: Rc<RefCell<Shared>>,
}

/// An open stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The VM that opened it.
    pub vm: usize,
    /// The root context that opened it.
    pub context: u32,
    /// The cluster that it goes to.
    pub cluster: String,
    /// What the VM sent that nobody has taken yet.
    pub sent: VecDeque<Vec<u8>>,
}

/// What a VM sent over a stream.
pub struct Sent {
    /// The stream's number.
    pub token: u32,
    /// The message.
    pub message: Vec<u8>,
}

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) now_ns: u64,
    /// The thread's time when the clock was set, if it runs.
    pub(crate) set_at_ns: Option<u64>,
    pub(crate) data: HashMap<Vec<u8>, (Vec<u8>, u32)>,
    pub(crate) last_cas: u32,
    pub(crate) queues: Vec<Queue>,
    pub(crate) streams: BTreeMap<u32, Stream>,
    pub(crate) last_token: u32,
    pub(crate) metrics: Vec<(String, i64)>,
    pub(crate) metric_ids: HashMap<String, u32>,
    pub(crate) logged: VecDeque<String>,
    pub(crate) faults: Faults,
    pub(crate) vms: usize,
    pub(crate) max_memory_bytes: Arc<AtomicUsize>,
}

/// A shared queue.
pub(crate) struct Queue {
    pub(crate) name: Vec<u8>,
    /// VM and root context that registered it last.
    pub(crate) owner: (usize, u32),
    pub(crate) items: VecDeque<Vec<u8>>,
    /// Items that the owner has not been told of.
    pub(crate) untold: usize,
}

/// Lines of log that are kept.
const LOGGED: usize = 1_000;

/// The processor time that this thread has used.
pub fn thread_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

// === impl Process ===

impl Process {
    /// Compiles the module at `path`.
    pub fn new(path: &Path) -> Process {
        let mut config = Config::new();
        config.epoch_interruption(true).wasm_backtrace_max_frames(std::num::NonZeroUsize::new(64));
        let engine = Engine::new(&config).unwrap();
        let bytes =
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}; `make wasm` builds it", path.display()));
        let module = Module::new(&engine, bytes).unwrap();
        let ticker = engine.weak();
        thread::spawn(move || {
            while let Some(engine) = ticker.upgrade() {
                engine.increment_epoch();
                drop(engine);
                thread::sleep(EPOCH);
            }
        });
        Process { engine, module, shared: Rc::new(RefCell::new(Shared::fresh())) }
    }

    /// The names of the functions that the module imports.
    pub fn imports(&self) -> Vec<String> {
        self.module.imports().map(|import| import.name().to_owned()).collect()
    }

    /// Another process with the same module, in which nothing has happened yet.
    pub fn restarted(&self) -> Process {
        let shared = Rc::new(RefCell::new(Shared::fresh()));
        Process { engine: self.engine.clone(), module: self.module.clone(), shared }
    }

    /// Starts a VM.
    ///
    /// # Errors
    /// When the module traps.
    pub fn vm(&self) -> Result<Vm, Trapped> {
        let number = {
            let mut shared = self.shared.borrow_mut();
            shared.vms += 1;
            shared.vms - 1
        };
        Vm::new(&self.engine, &self.module, number, Rc::clone(&self.shared), CALLBACK_LIMIT_TICKS)
    }

    /// Sets the clock, Unix time in ns; it may go back.
    pub fn set_clock(&self, now_ns: u64) {
        let mut shared = self.shared.borrow_mut();
        (shared.now_ns, shared.set_at_ns) = (now_ns, None);
    }

    /// Sets the clock, which from then on goes by the thread's processor time.
    pub fn run_clock(&self, now_ns: u64) {
        let mut shared = self.shared.borrow_mut();
        (shared.now_ns, shared.set_at_ns) = (now_ns, Some(thread_time_ns()));
    }

    /// The clock.
    pub fn now_ns(&self) -> u64 {
        self.shared.borrow().now_ns()
    }

    /// VMs get no more memory than this.
    pub fn set_max_memory(&self, bytes: usize) {
        self.shared.borrow().max_memory_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Which host calls fail.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.shared.borrow_mut().faults);
    }

    /// The streams that are open.
    pub fn streams(&self) -> BTreeMap<u32, Stream> {
        self.shared.borrow().streams.clone()
    }

    /// What VMs have sent since the last call.
    pub fn take_sent(&self) -> Vec<Sent> {
        let mut shared = self.shared.borrow_mut();
        let all = shared.streams.iter_mut();
        all.flat_map(|(token, stream)| stream.sent.drain(..).map(|message| Sent { token: *token, message })).collect()
    }

    /// A stream is no more; whoever opened it is still to be told.
    pub fn end_stream(&self, token: u32) -> Option<Stream> {
        self.shared.borrow_mut().streams.remove(&token)
    }

    /// The keys of shared data.
    pub fn shared_keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = self.shared.borrow().data.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// A value of shared data.
    pub fn shared_value(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.shared.borrow().data.get(key).map(|(value, _)| value.clone())
    }

    /// Writes shared data as another plugin of the same vm_id would.
    pub fn overwrite(&self, key: &[u8], value: Vec<u8>) {
        let mut shared = self.shared.borrow_mut();
        shared.last_cas = shared.last_cas.wrapping_add(1).max(1);
        let cas = shared.last_cas;
        shared.data.insert(key.to_vec(), (value, cas));
    }

    /// VMs and root contexts that are to be told that a queue has something, each once an item.
    pub fn take_queue_notices(&self) -> Vec<(usize, u32, u32)> {
        let mut shared = self.shared.borrow_mut();
        let mut notices = Vec::new();
        for (at, queue) in shared.queues.iter_mut().enumerate() {
            let (vm, context) = queue.owner;
            notices.extend((0..std::mem::take(&mut queue.untold)).map(|_| (vm, context, at as u32 + 1)));
        }
        notices
    }

    /// The value of a metric, all its labels together.
    pub fn metric(&self, name: &str) -> i64 {
        let shared = self.shared.borrow();
        shared.metrics.iter().filter(|(metric, _)| metric.split('.').next() == Some(name)).map(|(_, value)| value).sum()
    }

    /// The value of a gauge of that name.
    pub fn gauge(&self, name: &str) -> i64 {
        let shared = self.shared.borrow();
        shared.metric_ids.get(name).and_then(|id| shared.metrics.get(*id as usize)).map_or(0, |(_, value)| *value)
    }

    /// The latest lines of the log.
    pub fn logged(&self) -> Vec<String> {
        self.shared.borrow().logged.iter().cloned().collect()
    }
}

// === impl Shared ===

impl Shared {
    fn fresh() -> Shared {
        Shared { max_memory_bytes: Arc::new(AtomicUsize::new(ENVOY_MAX_MEMORY_BYTES)), ..Shared::default() }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns + self.set_at_ns.map_or(0, |set_at_ns| thread_time_ns() - set_at_ns)
    }

    pub(crate) fn log(&mut self, line: String) {
        if self.logged.len() == LOGGED {
            self.logged.pop_front();
        }
        self.logged.push_back(line);
    }
}
