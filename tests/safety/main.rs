//! Who may talk to the hub and how much, over real sockets: TLS, certificates, tokens, limits, slow subscribers, bounded
//! memory; and the command line.
#![cfg(feature = "native")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod client;
mod command;
mod engine_metrics;
mod given_up;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../hub_support/mod.rs"]
mod hub_support;
mod idle;
mod inspect;
mod limits;
mod subscribers;
mod tls;
mod tokens;
