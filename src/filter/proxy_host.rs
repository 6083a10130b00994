//! The host calls: each once, with the statuses it can get and what follows.
//!
//! The functions are declared here and not taken from the SDK, whose wrappers panic on a status that they do not list.
//! A pointer that the proxy cannot use, or memory that it cannot get here (`malloc` returned null), is InvalidMemoryAccess.
//!
//! | Call | Status other than Ok | What follows |
//! |---|---|---|
//! | `proxy_get_current_time_nanoseconds` | none known | the time reads as 0: nothing is fresh, nothing expires |
//! | `proxy_get_shared_data` | NotFound | absent |
//! | `proxy_set_shared_data` | CasMismatch | mismatch; any other: refused |
//! | `proxy_register_shared_queue`, `proxy_resolve_shared_queue` | NotFound, InvalidMemoryAccess | no queue: looked for again at the next tick |
//! | `proxy_enqueue_shared_queue` | NotFound | the batch is lost and counted |
//! | `proxy_dequeue_shared_queue` | Empty, NotFound | nothing to take |
//! | `proxy_get_header_map_pairs` | BadArgument, InvalidMemoryAccess | no headers: all routing headers are removed by name |
//! | `proxy_get_header_map_value` | NotFound, BadArgument | no such header: the response is not read |
//! | `proxy_replace_header_map_value`, `proxy_remove_header_map_value` | BadArgument | the header stays as it is |
//! | `proxy_get_buffer_bytes` | NotFound, BadArgument, InvalidMemoryAccess | no body: no hint, or the response is not read on |
//! | `proxy_get_property` | NotFound, SerializationFailure | no value |
//! | `proxy_set_property` | NotFound, InternalFailure | the access log lacks the value |
//! | `proxy_define_metric`, `proxy_increment_metric`, `proxy_record_metric` | BadArgument, NotFound | the metric lacks the value |
//! | `proxy_log` | BadArgument | the line is lost |
//! | `proxy_set_tick_period_milliseconds` | none known | no ticks: this VM neither leads nor follows between requests |
//! | `proxy_grpc_stream` | ParseFailure, InternalFailure | no stream; tried again after a pause |
//! | `proxy_grpc_send`, `proxy_grpc_cancel` | NotFound, BadArgument | the stream is gone; its close follows or has been seen |
#![allow(unsafe_code, reason = "the proxy-wasm ABI is a C interface")]

use std::cell::RefCell;
use std::ptr;

use crate::host::{Cas, Host, HttpHost, Level, QueueToken, SharedValue, SharedWrite, StreamToken, pairs};
use hashbrown::HashMap;

/// The proxy that runs this module.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyHost;

/// Which buffer to read.
#[derive(Clone, Copy, Debug)]
pub enum Buffer {
    /// The request's body, as far as it is buffered.
    RequestBody = 0,
    /// What is here of the response's body.
    ResponseBody = 1,
    /// The message that a stream callback announces.
    GrpcMessage = 5,
    /// The plugin's configuration.
    PluginConfiguration = 7,
}

const OK: u32 = 0;
const CAS_MISMATCH: u32 = 8;
const REQUEST_HEADERS: u32 = 0;
const RESPONSE_HEADERS: u32 = 2;
const COUNTER: u32 = 0;
const GAUGE: u32 = 1;
const HISTOGRAM: u32 = 2;
const LOG_INFO: u32 = 2;
const LOG_WARN: u32 = 3;
const LOG_CRITICAL: u32 = 5;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        value: *mut *mut u8,
        value_size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(key: *const u8, key_size: usize, value: *const u8, value_size: usize, cas: u32) -> u32;
    fn proxy_register_shared_queue(name: *const u8, name_size: usize, token: *mut u32) -> u32;
    fn proxy_resolve_shared_queue(
        vm_id: *const u8,
        vm_id_size: usize,
        name: *const u8,
        name_size: usize,
        token: *mut u32,
    ) -> u32;
    fn proxy_enqueue_shared_queue(token: u32, message: *const u8, size: usize) -> u32;
    fn proxy_dequeue_shared_queue(token: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *mut *mut u8,
        value_size: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_size: usize) -> u32;
    fn proxy_get_buffer_bytes(buffer: u32, start: usize, max_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, value_size: usize) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_size: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, by: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_log(level: u32, message: *const u8, size: usize) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_grpc_stream(
        service: *const u8,
        service_size: usize,
        service_name: *const u8,
        service_name_size: usize,
        method_name: *const u8,
        method_name_size: usize,
        metadata: *const u8,
        metadata_size: usize,
        token: *mut u32,
    ) -> u32;
    fn proxy_grpc_send(token: u32, message: *const u8, size: usize, end_stream: u32) -> u32;
    fn proxy_grpc_cancel(token: u32) -> u32;
}

thread_local! {
    /// Ids of the metrics defined so far; the proxy gives none for a name that it refused.
    static METRICS: RefCell<HashMap<String, Option<u32>>> = RefCell::new(HashMap::new());
}

// === impl ProxyHost ===

impl ProxyHost {
    /// Asks for a tick every `period_ms`.
    pub fn set_tick_period(self, period_ms: u64) {
        let period_ms = u32::try_from(period_ms).unwrap_or(u32::MAX);
        // SAFETY: no pointers.
        unsafe { proxy_set_tick_period_milliseconds(period_ms) };
    }

    /// Logs what a panic says of itself.
    pub fn log_panic(self, message: &str) {
        log(LOG_CRITICAL, message);
    }

    /// The first `size` bytes of a buffer.
    pub fn buffer(self, buffer: Buffer, size: usize) -> Option<Vec<u8>> {
        self.part_of_buffer(buffer, 0, size)
    }

    fn part_of_buffer(self, buffer: Buffer, start: usize, size: usize) -> Option<Vec<u8>> {
        // SAFETY: the out pointers live through the call.
        received(|data, length| unsafe { proxy_get_buffer_bytes(buffer as u32, start, size, data, length) })
    }
}

impl Host for ProxyHost {
    fn now_ns(&self) -> u64 {
        let mut now_ns = 0;
        // SAFETY: the out pointer lives through the call.
        unsafe { proxy_get_current_time_nanoseconds(&mut now_ns) };
        now_ns
    }

    fn memory_bytes(&self) -> u64 {
        // Pages of 64 KiB.
        core::arch::wasm32::memory_size(0) as u64 * 65_536
    }

    fn shared_get(&self, key: &str) -> SharedValue {
        let mut cas = 0;
        // SAFETY: key and out pointers live through the call.
        let bytes =
            received(|data, size| unsafe { proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas) });
        match bytes {
            Some(bytes) => SharedValue::Present { bytes, cas: Cas(cas) },
            None => SharedValue::Absent,
        }
    }

    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite {
        // SAFETY: key and value live through the call.
        match unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas.0) } {
            OK => SharedWrite::Stored,
            CAS_MISMATCH => SharedWrite::Mismatch,
            _ => SharedWrite::Refused,
        }
    }

    fn register_queue(&self, name: &str) -> Option<QueueToken> {
        let mut token = 0;
        // SAFETY: the name and the out pointer live through the call.
        let status = unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &mut token) };
        (status == OK).then_some(QueueToken(token))
    }

    fn find_queue(&self, name: &str) -> Option<QueueToken> {
        let vm_id = self.property(&["plugin_vm_id"]).unwrap_or_default();
        let mut token = 0;
        // SAFETY: vm_id, name and the out pointer live through the call.
        let status =
            unsafe { proxy_resolve_shared_queue(vm_id.as_ptr(), vm_id.len(), name.as_ptr(), name.len(), &mut token) };
        (status == OK).then_some(QueueToken(token))
    }

    fn enqueue(&self, queue: QueueToken, message: &[u8]) -> bool {
        // SAFETY: the message lives through the call.
        unsafe { proxy_enqueue_shared_queue(queue.0, message.as_ptr(), message.len()) == OK }
    }

    fn dequeue(&self, queue: QueueToken) -> Option<Vec<u8>> {
        // SAFETY: the out pointers live through the call.
        received(|data, size| unsafe { proxy_dequeue_shared_queue(queue.0, data, size) })
    }

    fn open_stream(
        &self,
        cluster: &str,
        service: &str,
        method: &str,
        metadata: &[(&str, &str)],
    ) -> Option<StreamToken> {
        let metadata = pairs::encode(metadata);
        let mut token = 0;
        // SAFETY: names, metadata and the out pointer live through the call.
        let status = unsafe {
            proxy_grpc_stream(
                cluster.as_ptr(),
                cluster.len(),
                service.as_ptr(),
                service.len(),
                method.as_ptr(),
                method.len(),
                metadata.as_ptr(),
                metadata.len(),
                &mut token,
            )
        };
        (status == OK).then_some(StreamToken(token))
    }

    fn send(&self, stream: StreamToken, message: &[u8]) -> bool {
        // SAFETY: the message lives through the call.
        unsafe { proxy_grpc_send(stream.0, message.as_ptr(), message.len(), 0) == OK }
    }

    fn cancel(&self, stream: StreamToken) {
        // SAFETY: no pointers.
        unsafe { proxy_grpc_cancel(stream.0) };
    }

    fn count(&self, metric: &str, by: u64) {
        if let Some(id) = metric_id(COUNTER, metric) {
            // SAFETY: no pointers.
            unsafe { proxy_increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX)) };
        }
    }

    fn gauge(&self, metric: &str, value: u64) {
        if let Some(id) = metric_id(GAUGE, metric) {
            // SAFETY: no pointers.
            unsafe { proxy_record_metric(id, value) };
        }
    }

    fn record(&self, metric: &str, value: u64) {
        if let Some(id) = metric_id(HISTOGRAM, metric) {
            // SAFETY: no pointers.
            unsafe { proxy_record_metric(id, value) };
        }
    }

    fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Info => LOG_INFO,
            Level::Warn => LOG_WARN,
        };
        log(level, message);
    }
}

impl HttpHost for ProxyHost {
    fn request_headers(&self) -> Option<Vec<(String, Vec<u8>)>> {
        // SAFETY: the out pointers live through the call.
        let bytes = received(|data, size| unsafe { proxy_get_header_map_pairs(REQUEST_HEADERS, data, size) })?;
        pairs::decode(&bytes)
    }

    fn set_request_header(&self, name: &str, value: &str) {
        replace_header(REQUEST_HEADERS, name, value);
    }

    fn remove_request_header(&self, name: &str) {
        // SAFETY: the name lives through the call.
        unsafe { proxy_remove_header_map_value(REQUEST_HEADERS, name.as_ptr(), name.len()) };
    }

    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        // SAFETY: name and out pointers live through the call.
        received(|data, size| unsafe {
            proxy_get_header_map_value(RESPONSE_HEADERS, name.as_ptr(), name.len(), data, size)
        })
    }

    fn set_response_header(&self, name: &str, value: &str) {
        replace_header(RESPONSE_HEADERS, name, value);
    }

    fn request_body(&self, size: usize) -> Option<Vec<u8>> {
        self.buffer(Buffer::RequestBody, size)
    }

    fn response_body(&self, start: usize, size: usize) -> Option<Vec<u8>> {
        self.part_of_buffer(Buffer::ResponseBody, start, size)
    }

    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        let path = path.join("\0");
        // SAFETY: path and out pointers live through the call.
        received(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
    }

    fn set_filter_state(&self, name: &str, value: &str) {
        // SAFETY: name and value live through the call.
        unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
    }
}

/// What a call returned in memory that it had this module allocate; none unless its status is Ok.
fn received(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data: *mut u8 = ptr::null_mut();
    let mut size = 0;
    if call(&mut data, &mut size) != OK {
        return None;
    }
    if data.is_null() || size == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the proxy got these `size` bytes from `malloc`, which allocates with exactly that layout, has filled them,
    // and has given up ownership.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

fn log(level: u32, message: &str) {
    // SAFETY: the message lives through the call.
    unsafe { proxy_log(level, message.as_ptr(), message.len()) };
}

fn replace_header(map: u32, name: &str, value: &str) {
    // SAFETY: name and value live through the call.
    unsafe { proxy_replace_header_map_value(map, name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

fn metric_id(kind: u32, name: &str) -> Option<u32> {
    METRICS.with(|metrics| {
        let mut metrics = metrics.try_borrow_mut().ok()?;
        if let Some(id) = metrics.get(name) {
            return *id;
        }
        let mut id = 0;
        // SAFETY: the name and the out pointer live through the call.
        let status = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id) };
        let id = (status == OK).then_some(id);
        metrics.insert(name.to_owned(), id);
        id
    })
}
