//! warmroute: a prefix-cache router for LLM replicas, as one WebAssembly module for Envoy.
//!
//! A hub listens to the engines' KV events and publishes [observations](observation) of who holds which blocks. One
//! of Envoy's VMs, the leader, receives them and commits them to a log in shared data; every VM that serves requests
//! follows that log into its own [index]. A request, its text made into [token ids](tokenize), is turned into a
//! [chain of block keys](fingerprint), the index says which replicas hold the longest leading run of it, and [routing]
//! ranks them.
//!
//! ```text
//! native (hub, engines) ─► wire ─► core
//! filter ─► flow ─► wire, config ─► core = observation, fingerprint, request, template, tokenize, index, routing,
//!                                            publisher
//! ```
//!
//! The core takes time and configuration as arguments and knows no host, clock, I/O or randomness. The `filter`
//! feature adds the proxy-wasm module (wasm32 only), the `native` feature the hub, the fake engine and the load
//! generator.

#![cfg_attr(
    not(test),
    deny(clippy::get_unwrap, clippy::panic_in_result_fn, clippy::string_slice, clippy::unwrap_in_result)
)]

pub mod config;
pub mod fingerprint;
pub mod index;
pub mod model;
pub mod observation;
pub mod publisher;
pub mod request;
pub mod routing;
pub mod template;
pub mod tokenize;
pub mod wire;

mod memo;

pub mod flow;
pub mod host;

#[cfg(all(feature = "filter", target_arch = "wasm32"))]
mod filter;

#[cfg(feature = "native")]
pub mod native;
