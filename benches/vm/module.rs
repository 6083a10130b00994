//! The operations as a WebAssembly module without imports, for `benches/vm/run.py`. Empty on other targets.
#![cfg(target_arch = "wasm32")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]
#![allow(
    unsafe_code,
    reason = "an export needs a name of its own, and only the compiler's say that they are no other's"
)]

mod decisions;
mod growing;
mod operations;
#[path = "../support/ours.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod ours;
#[path = "../support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

use std::cell::RefCell;

use operations::{Bench, operations};

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

macro_rules! export {
    ($($name:ident($($argument:ident),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: u32),*) -> u32 {
                BENCH.with_borrow_mut(|bench| bench.$name($($argument),*))
            }
        )*
    };
}

operations!(export);
