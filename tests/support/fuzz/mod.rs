//! The bodies of the fuzz targets: any bytes, as one kind of outside input. None may panic, take more memory than its
//! input pays for, or break what the target says of it.
//!
//! `fuzz/` runs them under libFuzzer, `tests/fuzz_corpora.rs` over the kept corpora and mutations of them.

#![allow(dead_code, reason = "each fuzz target includes this for one of them")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a finding says so by panicking"
)]

mod config;
#[cfg(feature = "native")]
mod engine_events;
mod package;
#[cfg(feature = "native")]
mod policies;
mod request;
mod shared_data;
mod stream;
mod template;
mod tokenizer;
mod usage;

#[path = "../vms/mod.rs"]
pub mod vms;

pub use config::config;
#[cfg(feature = "native")]
pub use engine_events::engine_events;
pub use package::package;
#[cfg(feature = "native")]
pub use policies::policies;
pub use request::request;
pub use shared_data::shared_data;
pub use stream::stream;
pub use template::template;
pub use tokenizer::tokenizer;
pub use usage::usage;

/// What is before the first byte that no UTF-8 text has, and what is after it.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.iter().position(|byte| *byte == 0xff).unwrap_or(bytes.len());
    (&bytes[..at], bytes.get(at + 1..).unwrap_or_default())
}

/// Pieces with their lengths before them, two bytes each, little-endian; the last may be cut off.
fn pieces(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (piece, after) = rest.split_at(length);
        pieces.push(piece);
        bytes = after;
    }
    pieces
}
