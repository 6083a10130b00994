//! A proxy-wasm host for tests: the release module, driven callback by callback.
//!
//! In: the module, and what Envoy would tell it. Out: what it did, or a [`Trapped`] with the engine's backtrace. It implements
//! proxy-wasm ABI 0.2.1 as far as the module imports it and as Envoy 1.40 behaves: shared data with its compare-and-swap (a
//! missing key is never compared, 0 never compares), queues, gRPC streams, metrics, properties, headers and buffers. Nothing
//! happens by itself: there is no thread and no clock but the test's. Any host call can be made to fail with any status, memory
//! can be refused beyond a bound, and the clock can go back.

mod calls;
mod faults;
mod process;
mod vm;

pub use faults::Faults;
pub use process::{Process, Sent, Stream, status, thread_time_ns};
pub use vm::{Action, Headers, RootId, Trapped, Vm};

/// The module as `make wasm` leaves it, or the one that `WARMROUTE_MODULE` names.
pub fn module_path() -> std::path::PathBuf {
    let built = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/warmroute.wasm").into();
    std::env::var_os("WARMROUTE_MODULE").map_or_else(built, Into::into)
}
