//! One VM: its callbacks, and the contexts that they are of.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wasmtime::{Engine, Instance, Linker, Module, ResourceLimiter, Store, WasmParams, WasmResults};

use crate::calls;
use crate::process::Shared;

/// Names and values.
pub type Headers = Vec<(String, Vec<u8>)>;

/// What a request's callback asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request goes on.
    Continue,
    /// The request is held.
    Pause,
}

/// The number of a root context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootId(pub u32);

/// The module trapped: in Envoy that VM would be gone.
#[derive(Debug)]
pub struct Trapped {
    /// Which callback.
    pub callback: &'static str,
    /// What the engine says, with a backtrace.
    pub error: String,
    /// The last lines of the log.
    pub logged: Vec<String>,
}

/// One VM.
pub struct Vm {
    store: Store<State>,
    instance: Instance,
    limit_ticks: u64,
    last_context: u32,
    /// Callbacks so far.
    pub callbacks: u64,
}

/// What the host calls of one VM work on.
pub(crate) struct State {
    pub(crate) number: usize,
    pub(crate) shared: Rc<RefCell<Shared>>,
    /// Whose callback runs.
    pub(crate) current: u32,
    pub(crate) contexts: HashMap<u32, ContextState>,
    pub(crate) tick_period_ms: HashMap<u32, u32>,
    memory: MemoryBound,
}

/// What a context's callbacks can read and write.
#[derive(Default)]
pub(crate) struct ContextState {
    pub(crate) root: u32,
    pub(crate) headers: HashMap<u32, Headers>,
    pub(crate) buffers: HashMap<u32, Vec<u8>>,
    pub(crate) properties: HashMap<Vec<u8>, Vec<u8>>,
}

struct MemoryBound(Arc<AtomicUsize>);

const REQUEST_HEADERS: u32 = 0;
const REQUEST_TRAILERS: u32 = 1;
const RESPONSE_HEADERS: u32 = 2;
const RESPONSE_TRAILERS: u32 = 3;
const REQUEST_BODY: u32 = 0;
const RESPONSE_BODY: u32 = 1;
const GRPC_MESSAGE: u32 = 5;
const PLUGIN_CONFIGURATION: u32 = 7;

// === impl Vm ===

impl Vm {
    pub(crate) fn new(
        engine: &Engine,
        module: &Module,
        number: usize,
        shared: Rc<RefCell<Shared>>,
        limit_ticks: u64,
    ) -> Result<Vm, Trapped> {
        let max_memory_bytes = Arc::clone(&shared.borrow().max_memory_bytes);
        let state = State {
            number,
            memory: MemoryBound(max_memory_bytes),
            shared,
            current: 0,
            contexts: HashMap::new(),
            tick_period_ms: HashMap::new(),
        };
        let mut store = Store::new(engine, state);
        store.limiter(|state| &mut state.memory);
        store.set_epoch_deadline(limit_ticks);
        let mut linker = Linker::new(engine);
        calls::link(&mut linker, module);
        let instance = linker.instantiate(&mut store, module).unwrap();
        let mut vm = Vm { store, instance, limit_ticks, last_context: 0, callbacks: 0 };
        vm.tell("_initialize", 0, ())?;
        Ok(vm)
    }

    /// Creates a root context and configures it; what it has no use for it must accept all the same.
    ///
    /// # Errors
    /// When the module traps.
    pub fn root(&mut self, root_id: &str, configuration: &[u8]) -> Result<RootId, Trapped> {
        let root = self.new_context(0);
        if let Some(context) = self.store.data_mut().contexts.get_mut(&root) {
            context.properties.insert(b"plugin_root_id".to_vec(), root_id.as_bytes().to_vec());
            context.properties.insert(b"plugin_vm_id".to_vec(), b"vm".to_vec());
        }
        self.tell("proxy_on_context_create", root, (root as i32, 0))?;
        self.ask("proxy_on_vm_start", root, (root as i32, 0), 1)?;
        self.configure(RootId(root), configuration)?;
        Ok(RootId(root))
    }

    /// Configures a root context. Returns whether it accepts, which it must.
    ///
    /// # Errors
    /// When the module traps.
    pub fn configure(&mut self, root: RootId, configuration: &[u8]) -> Result<bool, Trapped> {
        self.set_buffer(root.0, PLUGIN_CONFIGURATION, configuration.to_vec());
        let size = configuration.len() as i32;
        Ok(self.ask("proxy_on_configure", root.0, (root.0 as i32, size), 1)? != 0)
    }

    /// Ticks.
    ///
    /// # Errors
    /// When the module traps.
    pub fn tick(&mut self, root: RootId) -> Result<(), Trapped> {
        self.tell("proxy_on_tick", root.0, (root.0 as i32,))
    }

    /// The tick period that a root context asked for, in ms; 0 if it asked for none.
    pub fn tick_period_ms(&self, root: RootId) -> u32 {
        self.store.data().tick_period_ms.get(&root.0).copied().unwrap_or(0)
    }

    /// Tells the root context that a queue has something.
    ///
    /// # Errors
    /// When the module traps.
    pub fn queue_ready(&mut self, context: u32, queue: u32) -> Result<(), Trapped> {
        self.tell("proxy_on_queue_ready", context, (context as i32, queue as i32))
    }

    /// A message on a stream.
    ///
    /// # Errors
    /// When the module traps.
    pub fn grpc_message(&mut self, context: u32, token: u32, message: Vec<u8>) -> Result<(), Trapped> {
        let size = message.len() as i32;
        self.set_buffer(context, GRPC_MESSAGE, message);
        self.tell("proxy_on_grpc_receive", context, (context as i32, token as i32, size))
    }

    /// A stream ended, with a gRPC status.
    ///
    /// # Errors
    /// When the module traps.
    pub fn grpc_close(&mut self, context: u32, token: u32, status: u32) -> Result<(), Trapped> {
        self.tell("proxy_on_grpc_close", context, (context as i32, token as i32, status as i32))
    }

    /// A root context ends.
    ///
    /// # Errors
    /// When the module traps.
    pub fn end_root(&mut self, root: RootId) -> Result<(), Trapped> {
        self.ask("proxy_on_done", root.0, (root.0 as i32,), 1)?;
        self.tell("proxy_on_delete", root.0, (root.0 as i32,))?;
        self.store.data_mut().contexts.remove(&root.0);
        self.store.data_mut().tick_period_ms.remove(&root.0);
        Ok(())
    }

    /// A new request of a root context.
    ///
    /// # Errors
    /// When the module traps.
    pub fn request(&mut self, root: RootId) -> Result<u32, Trapped> {
        let context = self.new_context(root.0);
        self.tell("proxy_on_context_create", context, (context as i32, root.0 as i32))?;
        Ok(context)
    }

    /// The number of a request's context is given to another one of `root`.
    ///
    /// # Errors
    /// When the module traps.
    pub fn create_again(&mut self, context: u32, root: RootId) -> Result<(), Trapped> {
        self.tell("proxy_on_context_create", context, (context as i32, root.0 as i32))
    }

    /// The request's headers.
    ///
    /// # Errors
    /// When the module traps.
    pub fn request_headers(&mut self, context: u32, headers: Headers, end: bool) -> Result<Action, Trapped> {
        let count = headers.len() as i32;
        self.set_headers(context, REQUEST_HEADERS, headers);
        self.action("proxy_on_request_headers", context, count, end)
    }

    /// More of the request's body; while the request is held, `body` is all of it so far.
    ///
    /// # Errors
    /// When the module traps.
    pub fn request_body(&mut self, context: u32, body: Vec<u8>, end: bool) -> Result<Action, Trapped> {
        let size = body.len() as i32;
        self.set_buffer(context, REQUEST_BODY, body);
        self.action("proxy_on_request_body", context, size, end)
    }

    /// The request's trailers.
    ///
    /// # Errors
    /// When the module traps.
    pub fn request_trailers(&mut self, context: u32, trailers: Headers) -> Result<Action, Trapped> {
        let count = trailers.len() as i32;
        self.set_headers(context, REQUEST_TRAILERS, trailers);
        self.action_of("proxy_on_request_trailers", context, (context as i32, count))
    }

    /// The response's headers.
    ///
    /// # Errors
    /// When the module traps.
    pub fn response_headers(&mut self, context: u32, headers: Headers, end: bool) -> Result<Action, Trapped> {
        let count = headers.len() as i32;
        self.set_headers(context, RESPONSE_HEADERS, headers);
        self.action("proxy_on_response_headers", context, count, end)
    }

    /// A part of the response's body.
    ///
    /// # Errors
    /// When the module traps.
    pub fn response_body(&mut self, context: u32, body: Vec<u8>, end: bool) -> Result<Action, Trapped> {
        let size = body.len() as i32;
        self.set_buffer(context, RESPONSE_BODY, body);
        self.action("proxy_on_response_body", context, size, end)
    }

    /// The response's trailers.
    ///
    /// # Errors
    /// When the module traps.
    pub fn response_trailers(&mut self, context: u32, trailers: Headers) -> Result<Action, Trapped> {
        let count = trailers.len() as i32;
        self.set_headers(context, RESPONSE_TRAILERS, trailers);
        self.action_of("proxy_on_response_trailers", context, (context as i32, count))
    }

    /// The request ends, however far it came.
    ///
    /// # Errors
    /// When the module traps.
    pub fn end_request(&mut self, context: u32) -> Result<(), Trapped> {
        self.ask("proxy_on_done", context, (context as i32,), 1)?;
        self.tell("proxy_on_log", context, (context as i32,))?;
        self.tell("proxy_on_delete", context, (context as i32,))?;
        self.store.data_mut().contexts.remove(&context);
        Ok(())
    }

    /// A property that the context can read, by its path.
    pub fn set_property(&mut self, context: u32, path: &[&str], value: &[u8]) {
        if let Some(context) = self.store.data_mut().contexts.get_mut(&context) {
            context.properties.insert(path.join("\0").into_bytes(), value.to_vec());
        }
    }

    /// The request's headers as they are now.
    pub fn headers_of(&self, context: u32) -> Headers {
        let context = self.store.data().contexts.get(&context);
        context.and_then(|context| context.headers.get(&REQUEST_HEADERS)).cloned().unwrap_or_default()
    }

    /// The value of one of them.
    pub fn header(&self, context: u32, name: &str) -> Option<String> {
        let headers = self.headers_of(context);
        let value = headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.clone())?;
        Some(String::from_utf8_lossy(&value).into_owned())
    }

    /// Bytes of the VM's memory.
    pub fn memory_bytes(&mut self) -> usize {
        self.instance.get_memory(&mut self.store, "memory").map_or(0, |memory| memory.data_size(&self.store))
    }

    /// The number by which streams and queues know this VM.
    pub fn number(&self) -> usize {
        self.store.data().number
    }

    fn new_context(&mut self, root: u32) -> u32 {
        self.last_context += 1;
        let context = ContextState { root, ..ContextState::default() };
        self.store.data_mut().contexts.insert(self.last_context, context);
        self.last_context
    }

    fn set_buffer(&mut self, context: u32, buffer: u32, bytes: Vec<u8>) {
        if let Some(context) = self.store.data_mut().contexts.get_mut(&context) {
            context.buffers.insert(buffer, bytes);
        }
    }

    fn set_headers(&mut self, context: u32, map: u32, headers: Headers) {
        if let Some(context) = self.store.data_mut().contexts.get_mut(&context) {
            context.headers.insert(map, headers);
        }
    }

    fn action(&mut self, callback: &'static str, context: u32, size: i32, end: bool) -> Result<Action, Trapped> {
        self.action_of(callback, context, (context as i32, size, i32::from(end)))
    }

    fn action_of(
        &mut self,
        callback: &'static str,
        context: u32,
        parameters: impl WasmParams,
    ) -> Result<Action, Trapped> {
        Ok(if self.ask(callback, context, parameters, 0)? == 0 { Action::Continue } else { Action::Pause })
    }

    fn tell(&mut self, callback: &'static str, context: u32, parameters: impl WasmParams) -> Result<(), Trapped> {
        self.call(callback, context, parameters, ())
    }

    fn ask(
        &mut self,
        callback: &'static str,
        context: u32,
        parameters: impl WasmParams,
        otherwise: i32,
    ) -> Result<i32, Trapped> {
        self.call(callback, context, parameters, otherwise)
    }

    /// Calls an exported function; one that the module does not export comes to `otherwise`, as in Envoy.
    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        callback: &'static str,
        context: u32,
        parameters: P,
        otherwise: R,
    ) -> Result<R, Trapped> {
        let Some(function) = self.instance.get_func(&mut self.store, callback) else { return Ok(otherwise) };
        self.callbacks += 1;
        self.store.data_mut().current = context;
        self.store.set_epoch_deadline(self.limit_ticks);
        let function = function.typed::<P, R>(&self.store).unwrap();
        function.call(&mut self.store, parameters).map_err(|error| Trapped {
            callback,
            error: format!("{error:?}"),
            logged: self.store.data().shared.borrow().logged.iter().rev().take(20).rev().cloned().collect(),
        })
    }
}

impl ResourceLimiter for MemoryBound {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= self.0.load(Ordering::Relaxed))
    }

    fn table_growing(&mut self, _current: usize, _desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true)
    }
}

// === impl Trapped ===

impl fmt::Display for Trapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} trapped: {}\n{}", self.callback, self.error, self.logged.join("\n"))
    }
}
