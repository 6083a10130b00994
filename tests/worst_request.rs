//! What the worst request takes: at the limits that a filter has by default, no request takes more memory than what
//! SECURITY.md says. `benches/worst_request.rs` has the times.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a failing test says so by panicking, helpers included; the allocator counts"
)]

#[path = "support/allocations.rs"]
mod allocations;
#[path = "support/small_stack.rs"]
mod small_stack;
#[path = "support/worst.rs"]
mod worst;

use small_stack::on_a_small_stack;
use worst::{BODY_BYTES, Filter, requests};

/// Bytes at a time that a request may take beside what stays: so many for each of its body's. Pointers are
/// twice as long here as in a module.
const BYTES_A_BYTE: usize = 16;

#[test]
fn no_request_takes_more_memory_than_is_promised() {
    let test = || {
        let filter = Filter::new();
        for request in requests() {
            let mut keys = 0;
            let peak = allocations::peak_of(|| keys = filter.read(&request));
            println!("{:>28}: {:>6} KiB, {keys} keys", request.name, peak / 1_024);
            assert!(peak as usize <= BYTES_A_BYTE * BODY_BYTES, "{} takes {peak} bytes", request.name);
        }
    };
    on_a_small_stack(test);
}
