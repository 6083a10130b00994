#![no_main]

#[path = "../../tests/support/fuzz/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::policies(bytes));
