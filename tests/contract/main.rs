//! The public contract over real sockets: a tonic client on one side, the hub on the other, and where it matters a
//! subscriber of the Observe stream, or a client that speaks HTTP/2 without knowing gRPC.
#![cfg(feature = "native")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod client;
mod events;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../hub_support/mod.rs"]
mod hub_support;
mod inputs;
mod load;
mod lookups;
mod metrics;
mod published;
mod reassertions;
mod reports;
mod service;
