//! The whole on a real Envoy: the module, the hub, and fake engines that speak vLLM's events over ZeroMQ.
//!
//! Needs `make wasm wasm-faults` before; `make test` does that.
#![cfg(feature = "native")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod affinity;
mod bodies;
mod codes;
mod dumps;
mod gateway;
mod hints;
mod hub_faults;
mod hubs;
mod istio;
mod labels;
mod leadership;
mod lfu;
mod manifests;
mod policies;
mod pool;
mod producer;
mod ranks;
mod released;

mod reset_killed;
mod samples;
mod text;
mod trust;
mod usage;
