//! The functions that the proxy calls, by the proxy-wasm ABI 0.2.1: each goes to its context.
//!
//! The ABI is met here and not by the SDK, whose dispatcher panics at a context or a stream that it does not know: Envoy
//! calls `proxy_on_queue_ready` with the number of the root context that registered the queue, in whatever VM then runs on
//! that thread, and closes a stream whose opening has failed. Callbacks that are not exported are not called, which saves
//! the change into the VM.
//!
//! The proxy calls no callback while another one runs: what a host call leads to is told when that call has returned.
//! Only [`malloc`] is called within host calls.
//! (<https://github.com/proxy-wasm/spec/tree/main/abi-versions/v0.2.1>)
#![allow(unsafe_code, reason = "the proxy finds these functions by their names")]

use std::alloc::{Layout, alloc};
use std::{panic, ptr};

use super::contexts::{with_request, with_root};
use super::proxy_host::ProxyHost;
use super::{contexts, http};
use crate::flow::exchange::Next;
use crate::host::StreamToken;

const CONTINUE: u32 = 0;
const PAUSE: u32 = 1;
const YES: u32 = 1;

/// Names the version of the ABI.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Called once, before anything else. There is no panic that is known to be reached; if there is one all the same, the
/// proxy's log has it.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    panic::set_hook(Box::new(|panic| ProxyHost.log_panic(&panic.to_string())));
}

/// Memory that the proxy fills and gives up with the host call that asked for it. Null where there is none, which the
/// proxy answers with a status.
#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut u8 {
    match Layout::array::<u8>(size) {
        // SAFETY: the layout is not empty.
        Ok(layout) if size > 0 => unsafe { alloc(layout) },
        _ => ptr::null_mut(),
    }
}

/// A new context: of a request, or a root context where `root_id` is 0.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(id: u32, root_id: u32) {
    contexts::create(id, root_id);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(id: u32, size: usize) -> u32 {
    with_root(id, |root| root.on_configure(size));
    YES
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(id: u32) {
    with_root(id, |root| root.on_tick());
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(id: u32, token: u32, size: usize) {
    with_root(id, |root| root.on_stream_message(StreamToken(token), size));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(id: u32, token: u32, _status: u32) {
    with_root(id, |root| root.on_stream_closed(StreamToken(token)));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(id: u32, _count: usize, end_of_stream: u32) -> u32 {
    action(with_request(id, |request| request.on_request_headers(end_of_stream != 0)))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(id: u32, size: usize, end_of_stream: u32) -> u32 {
    action(with_request(id, |request| request.on_request_body(size, end_of_stream != 0)))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(id: u32, _count: usize) -> u32 {
    action(with_request(id, http::Http::on_request_trailers))
}

/// The response goes on in any case, and as it is.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(id: u32, _count: usize, end_of_stream: u32) -> u32 {
    with_request(id, |request| request.on_response_headers(end_of_stream != 0));
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(id: u32, size: usize, end_of_stream: u32) -> u32 {
    with_request(id, |request| request.on_response_body(size, end_of_stream != 0));
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(id: u32, _count: usize) -> u32 {
    with_request(id, http::Http::on_response_trailers);
    CONTINUE
}

/// A context's end, while its host calls still work.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_done(id: u32) -> u32 {
    contexts::done(id);
    YES
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(id: u32) {
    contexts::delete(id);
}

/// A request goes on unless it is to be held.
fn action(next: Option<Next>) -> u32 {
    match next {
        Some(Next::Hold) => PAUSE,
        Some(Next::Continue) | None => CONTINUE,
    }
}
