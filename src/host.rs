//! What we ask of a proxy, in our words.
//!
//! The core never sees these traits; the [flow](crate::flow) state machines are written over them, so that they run in
//! Envoy and in a simulation alike. A call that the proxy refuses is an outcome, never a panic.

pub mod pairs;

/// The compare-and-swap number of a shared value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cas(pub u32);

/// What a read of shared data found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedValue {
    /// The value and its number.
    Present {
        /// The bytes.
        bytes: Vec<u8>,
        /// The number to write with.
        cas: Cas,
    },
    /// No such key, or the proxy refused: writing with [`Cas::ABSENT`] is right in both cases.
    Absent,
}

/// What a write to shared data did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedWrite {
    /// The value is written.
    Stored,
    /// Somebody else wrote since; nothing is written.
    Mismatch,
    /// The proxy refused; nothing is written.
    Refused,
}

/// An open gRPC stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamToken(pub u32);

/// A queue of messages that all VMs of one vm_id share. It lives in the proxy as long as one of them does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueToken(pub u32);

/// How loud a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Worth knowing once.
    Info,
    /// Worth a look.
    Warn,
}

/// What every context may ask.
pub trait Host {
    /// The wall clock, Unix time in ns.
    fn now_ns(&self) -> u64;
    /// Reads a shared value.
    fn shared_get(&self, key: &str) -> SharedValue;
    /// Writes a shared value if its number is still `cas`; [`Cas::ABSENT`] creates it only.
    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite;
    /// The queue of this name, made if there is none; what is in it stays. None if the proxy refused.
    fn register_queue(&self, name: &str) -> Option<QueueToken>;
    /// The queue of this name; none if nobody has registered it.
    fn find_queue(&self, name: &str) -> Option<QueueToken>;
    /// Puts a message at the end of a queue, however long it is; false if there is no such queue.
    fn enqueue(&self, queue: QueueToken, message: &[u8]) -> bool;
    /// Takes the oldest message out of a queue; none if there is none, or no such queue.
    fn dequeue(&self, queue: QueueToken) -> Option<Vec<u8>>;
    /// Opens a bidirectional stream to a method of a service behind a cluster, with these headers at its beginning.
    fn open_stream(&self, cluster: &str, service: &str, method: &str, metadata: &[(&str, &str)])
    -> Option<StreamToken>;
    /// Sends a message; false if the stream is no longer there.
    fn send(&self, stream: StreamToken, message: &[u8]) -> bool;
    /// Gives a stream up.
    fn cancel(&self, stream: StreamToken);
    /// Adds to a counter.
    fn count(&self, metric: &str, by: u64);
    /// Sets a gauge.
    fn gauge(&self, metric: &str, value: u64);
    /// Records a value in a histogram.
    fn record(&self, metric: &str, value: u64);
    /// Writes a log line.
    fn log(&self, level: Level, message: &str);

    /// Bytes of the VM's memory, which never shrinks; 0 where there is none to speak of.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// The wall clock, Unix time in ms.
    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }
}

/// What a request's context may ask besides.
pub trait HttpHost: Host {
    /// All request headers, pseudo headers included, names in lower case.
    fn request_headers(&self) -> Option<Vec<(String, Vec<u8>)>>;
    /// Sets a request header, replacing what is there.
    fn set_request_header(&self, name: &str, value: &str);
    /// Removes a request header.
    fn remove_request_header(&self, name: &str);
    /// The value of a response header, of pseudo headers too, by its name in lower case; of several, what the proxy makes of
    /// them.
    fn response_header(&self, name: &str) -> Option<Vec<u8>>;
    /// Sets a response header, replacing what is there.
    fn set_response_header(&self, name: &str, value: &str);
    /// The first `size` bytes of the buffered request body.
    fn request_body(&self, size: usize) -> Option<Vec<u8>>;
    /// At most `size` bytes from `start` on of the response body, as far as it is here.
    fn response_body(&self, start: usize, size: usize) -> Option<Vec<u8>>;
    /// An attribute of the request or connection.
    fn property(&self, path: &[&str]) -> Option<Vec<u8>>;
    /// Writes a value into the filter state, for access logs.
    fn set_filter_state(&self, name: &str, value: &str);
}

// === impl Cas ===

impl Cas {
    /// Writes only if the key does not exist: no value ever has this number, and a missing key is not compared.
    pub const ABSENT: Cas = Cas(u32::MAX);
}
