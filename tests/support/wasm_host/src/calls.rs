//! The ABI's functions, by name.
//!
//! A function that the module imports and never calls answers "unimplemented". Pointers that lie outside the VM's memory are
//! answered with "invalid memory access", as Envoy does.

use wasmtime::{Caller, Extern, ExternType, Linker, Memory, Module, Val};

use crate::process::{Queue, Stream, status};
use crate::vm::State;

/// Links every function that the module imports.
pub(crate) fn link(linker: &mut Linker<State>, module: &Module) {
    for import in module.imports() {
        let ExternType::Func(kind) = import.ty() else { panic!("{} is no function", import.name()) };
        assert_eq!(import.module(), "env");
        let name = import.name().to_owned();
        let returns = kind.results().len();
        let call = move |mut caller: Caller<'_, State>, arguments: &[Val], results: &mut [Val]| {
            let fault = caller.data().shared.borrow_mut().faults.next(&name);
            let status = match fault {
                Some(status) => status,
                None => called(&name, &mut caller, arguments)?,
            };
            if returns > 0 {
                results[0] = Val::I32(status as i32);
            }
            Ok(())
        };
        linker.func_new("env", import.name(), kind, call).unwrap();
    }
}

fn called(name: &str, caller: &mut Caller<'_, State>, arguments: &[Val]) -> wasmtime::Result<u32> {
    let mut call = Call { memory: memory(caller), caller, arguments, next: 0 };
    let done = match name {
        "proxy_get_current_time_nanoseconds" => call.time(),
        "proxy_get_shared_data" => call.get_shared(),
        "proxy_set_shared_data" => call.set_shared(),
        "proxy_register_shared_queue" => call.register_queue(),
        "proxy_resolve_shared_queue" => call.resolve_queue(),
        "proxy_enqueue_shared_queue" => call.enqueue(),
        "proxy_dequeue_shared_queue" => call.dequeue(),
        "proxy_get_header_map_pairs" => call.header_pairs(),
        "proxy_get_header_map_value" => call.header_value(),
        "proxy_replace_header_map_value" => call.replace_header(),
        "proxy_remove_header_map_value" => call.remove_header(),
        "proxy_get_buffer_bytes" => call.buffer(),
        "proxy_get_property" => call.property(),
        "proxy_set_property" => call.set_property(),
        "proxy_define_metric" => call.define_metric(),
        "proxy_increment_metric" => call.increment_metric(),
        "proxy_record_metric" => call.record_metric(),
        "proxy_log" => call.log(),
        "proxy_set_tick_period_milliseconds" => call.set_tick_period(),
        "proxy_grpc_stream" => call.open_stream(),
        "proxy_grpc_send" => call.send(),
        "proxy_grpc_cancel" | "proxy_grpc_close" => call.cancel(),
        "proxy_set_effective_context" | "proxy_done" => Ok(Ok(())),
        _ => Ok(Err(status::UNIMPLEMENTED)),
    };
    Ok(done?.err().unwrap_or(status::OK))
}

fn memory(caller: &mut Caller<'_, State>) -> Memory {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!("the module exports no memory") };
    memory
}

/// A trap of the module while it allocates, or else what the call came to.
type Done<T = ()> = wasmtime::Result<Result<T, u32>>;

/// One call and its arguments, front to back.
struct Call<'c, 's> {
    caller: &'c mut Caller<'s, State>,
    memory: Memory,
    arguments: &'c [Val],
    next: usize,
}

/// Goes on with a value, or ends the call with a status.
macro_rules! some {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(status) => return Ok(Err(status)),
        }
    };
}

// === impl Call ===

impl Call<'_, '_> {
    fn number(&mut self) -> u64 {
        let value = &self.arguments[self.next];
        self.next += 1;
        match value {
            Val::I32(value) => u64::from(*value as u32),
            Val::I64(value) => *value as u64,
            other => panic!("{other:?} is no number"),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, u32> {
        let (at, size) = (self.number() as usize, self.number() as usize);
        let data = self.memory.data(&self.caller);
        let end = at.checked_add(size).ok_or(status::INVALID_MEMORY_ACCESS)?;
        data.get(at..end).map(<[u8]>::to_vec).ok_or(status::INVALID_MEMORY_ACCESS)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), u32> {
        self.memory.write(&mut *self.caller, at, bytes).map_err(|_| status::INVALID_MEMORY_ACCESS)
    }

    fn write_u32(&mut self, value: u32) -> Result<(), u32> {
        let at = self.number() as usize;
        self.write(at, &value.to_le_bytes())
    }

    /// Hands bytes out in memory that the module allocates, as the next two arguments say.
    fn give(&mut self, bytes: &[u8]) -> Done {
        let mut place = 0;
        if !bytes.is_empty() {
            let Some(Extern::Func(allocate)) = self.caller.get_export("malloc") else { panic!("no malloc") };
            let allocate = allocate.typed::<i32, i32>(&self.caller)?;
            place = allocate.call(&mut *self.caller, bytes.len() as i32)?;
            if place == 0 {
                return Ok(Err(status::INVALID_MEMORY_ACCESS));
            }
            some!(self.write(place as u32 as usize, bytes));
        }
        some!(self.write_u32(place as u32));
        some!(self.write_u32(bytes.len() as u32));
        Ok(Ok(()))
    }

    fn time(&mut self) -> Done {
        let now_ns = self.caller.data().shared.borrow().now_ns();
        let at = self.number() as usize;
        Ok(self.write(at, &now_ns.to_le_bytes()))
    }

    fn get_shared(&mut self) -> Done {
        let key = some!(self.bytes());
        let found = self.caller.data().shared.borrow().data.get(&key).cloned();
        let Some((value, cas)) = found else { return Ok(Err(status::NOT_FOUND)) };
        some!(self.give(&value)?);
        Ok(self.write_u32(cas))
    }

    fn set_shared(&mut self) -> Done {
        let (key, value) = (some!(self.bytes()), some!(self.bytes()));
        let cas = self.number() as u32;
        let shared = self.caller.data().shared.clone();
        let mut shared = shared.borrow_mut();
        if shared.data.get(&key).is_some_and(|(_, now)| cas != 0 && *now != cas) {
            return Ok(Err(status::CAS_MISMATCH));
        }
        shared.last_cas = shared.last_cas.wrapping_add(1).max(1);
        let now = shared.last_cas;
        shared.data.insert(key, (value, now));
        Ok(Ok(()))
    }

    fn register_queue(&mut self) -> Done {
        let name = some!(self.bytes());
        let owner = (self.caller.data().number, self.root());
        let shared = self.caller.data().shared.clone();
        let at = {
            let mut shared = shared.borrow_mut();
            match shared.queues.iter().position(|queue| queue.name == name) {
                Some(at) => {
                    shared.queues[at].owner = owner;
                    at
                }
                None => {
                    shared.queues.push(Queue { name, owner, items: Default::default(), untold: 0 });
                    shared.queues.len() - 1
                }
            }
        };
        Ok(self.write_u32(at as u32 + 1))
    }

    fn resolve_queue(&mut self) -> Done {
        let (_vm_id, name) = (some!(self.bytes()), some!(self.bytes()));
        let at = self.caller.data().shared.borrow().queues.iter().position(|queue| queue.name == name);
        match at {
            Some(at) => Ok(self.write_u32(at as u32 + 1)),
            None => Ok(Err(status::NOT_FOUND)),
        }
    }

    fn enqueue(&mut self) -> Done {
        let token = self.number() as usize;
        let item = some!(self.bytes());
        let shared = self.caller.data().shared.clone();
        let mut shared = shared.borrow_mut();
        let Some(queue) = token.checked_sub(1).and_then(|at| shared.queues.get_mut(at)) else {
            return Ok(Err(status::NOT_FOUND));
        };
        queue.items.push_back(item);
        queue.untold += 1;
        Ok(Ok(()))
    }

    fn dequeue(&mut self) -> Done {
        let token = self.number() as usize;
        let item = {
            let shared = self.caller.data().shared.clone();
            let mut shared = shared.borrow_mut();
            let Some(queue) = token.checked_sub(1).and_then(|at| shared.queues.get_mut(at)) else {
                return Ok(Err(status::NOT_FOUND));
            };
            queue.items.pop_front()
        };
        match item {
            Some(item) => self.give(&item),
            None => Ok(Err(status::EMPTY)),
        }
    }

    fn header_pairs(&mut self) -> Done {
        let map = self.number() as u32;
        let Some(headers) = self.context().headers.get(&map).cloned() else { return Ok(Err(status::BAD_ARGUMENT)) };
        let mut bytes = (headers.len() as u32).to_le_bytes().to_vec();
        for (name, value) in &headers {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in &headers {
            bytes.extend(name.as_bytes());
            bytes.push(0);
            bytes.extend(value);
            bytes.push(0);
        }
        self.give(&bytes)
    }

    fn header_value(&mut self) -> Done {
        let map = self.number() as u32;
        let name = some!(self.bytes());
        let Some(headers) = self.context().headers.get(&map) else { return Ok(Err(status::BAD_ARGUMENT)) };
        let found = headers.iter().find(|(header, _)| header.as_bytes() == name).map(|(_, value)| value.clone());
        match found {
            Some(value) => self.give(&value),
            None => Ok(Err(status::NOT_FOUND)),
        }
    }

    fn replace_header(&mut self) -> Done {
        let map = self.number() as u32;
        let (name, value) = (some!(self.bytes()), some!(self.bytes()));
        let Ok(name) = String::from_utf8(name) else { return Ok(Err(status::BAD_ARGUMENT)) };
        let Some(headers) = self.context().headers.get_mut(&map) else { return Ok(Err(status::BAD_ARGUMENT)) };
        headers.retain(|(header, _)| *header != name);
        headers.push((name, value));
        Ok(Ok(()))
    }

    fn remove_header(&mut self) -> Done {
        let map = self.number() as u32;
        let name = some!(self.bytes());
        let Some(headers) = self.context().headers.get_mut(&map) else { return Ok(Err(status::BAD_ARGUMENT)) };
        headers.retain(|(header, _)| header.as_bytes() != name);
        Ok(Ok(()))
    }

    fn buffer(&mut self) -> Done {
        let (buffer, start, size) = (self.number() as u32, self.number() as usize, self.number() as usize);
        let Some(bytes) = self.context().buffers.get(&buffer) else { return Ok(Err(status::NOT_FOUND)) };
        let end = start.saturating_add(size).min(bytes.len());
        let Some(bytes) = bytes.get(start..end).map(<[u8]>::to_vec) else { return Ok(Err(status::BAD_ARGUMENT)) };
        self.give(&bytes)
    }

    fn property(&mut self) -> Done {
        let path = some!(self.bytes());
        let own = self.context().properties.get(&path).cloned();
        let root = self.root();
        let of_root = || self.caller.data().contexts.get(&root)?.properties.get(&path).cloned();
        match own.or_else(of_root) {
            Some(value) => self.give(&value),
            None => Ok(Err(status::NOT_FOUND)),
        }
    }

    fn set_property(&mut self) -> Done {
        let (path, value) = (some!(self.bytes()), some!(self.bytes()));
        self.context().properties.insert(path, value);
        Ok(Ok(()))
    }

    fn define_metric(&mut self) -> Done {
        let _kind = self.number();
        let name = String::from_utf8_lossy(&some!(self.bytes())).into_owned();
        let shared = self.caller.data().shared.clone();
        let id = {
            let mut shared = shared.borrow_mut();
            let next = shared.metrics.len() as u32;
            let id = *shared.metric_ids.entry(name.clone()).or_insert(next);
            if id == next {
                shared.metrics.push((name, 0));
            }
            id
        };
        Ok(self.write_u32(id))
    }

    fn increment_metric(&mut self) -> Done {
        let (id, by) = (self.number() as usize, self.number() as i64);
        self.metric(id, |value| value.wrapping_add(by))
    }

    fn record_metric(&mut self) -> Done {
        let (id, value) = (self.number() as usize, self.number() as i64);
        self.metric(id, |_| value)
    }

    fn metric(&mut self, id: usize, change: impl FnOnce(i64) -> i64) -> Done {
        let shared = self.caller.data().shared.clone();
        let mut shared = shared.borrow_mut();
        let Some((_, value)) = shared.metrics.get_mut(id) else { return Ok(Err(status::NOT_FOUND)) };
        *value = change(*value);
        Ok(Ok(()))
    }

    fn log(&mut self) -> Done {
        let level = self.number();
        let line = String::from_utf8_lossy(&some!(self.bytes())).into_owned();
        let vm = self.caller.data().number;
        self.caller.data().shared.borrow_mut().log(format!("VM {vm}, level {level}: {line}"));
        Ok(Ok(()))
    }

    fn set_tick_period(&mut self) -> Done {
        let period_ms = self.number() as u32;
        let root = self.root();
        self.caller.data_mut().tick_period_ms.insert(root, period_ms);
        Ok(Ok(()))
    }

    fn open_stream(&mut self) -> Done {
        let cluster = String::from_utf8_lossy(&some!(self.bytes())).into_owned();
        let (_service, _method, _metadata) = (some!(self.bytes()), some!(self.bytes()), some!(self.bytes()));
        let (vm, context) = (self.caller.data().number, self.root());
        let shared = self.caller.data().shared.clone();
        let token = {
            let mut shared = shared.borrow_mut();
            shared.last_token += 1;
            let token = shared.last_token;
            shared.streams.insert(token, Stream { vm, context, cluster, sent: Default::default() });
            token
        };
        Ok(self.write_u32(token))
    }

    fn send(&mut self) -> Done {
        let token = self.number() as u32;
        let message = some!(self.bytes());
        let shared = self.caller.data().shared.clone();
        let mut shared = shared.borrow_mut();
        let Some(stream) = shared.streams.get_mut(&token) else { return Ok(Err(status::NOT_FOUND)) };
        stream.sent.push_back(message);
        Ok(Ok(()))
    }

    fn cancel(&mut self) -> Done {
        let token = self.number() as u32;
        let gone = self.caller.data().shared.borrow_mut().streams.remove(&token);
        Ok(gone.map(|_| ()).ok_or(status::NOT_FOUND))
    }

    fn context(&mut self) -> &mut crate::vm::ContextState {
        let state = self.caller.data_mut();
        state.contexts.entry(state.current).or_default()
    }

    fn root(&self) -> u32 {
        let state = self.caller.data();
        state
            .contexts
            .get(&state.current)
            .map_or(0, |context| if context.root == 0 { state.current } else { context.root })
    }
}
