//! Load on a local stack: Envoy with the module, a hub and fake engines as child processes, and clients for them.
//!
//! The stack runs the shipped `envoy/envoy.yaml` with its addresses moved to free loopback ports, so that what is
//! demonstrated and tested is what operators are given. Nothing here is reachable from other machines.

pub mod certificates;
pub mod chats;
pub mod child;
pub mod client;
pub mod demo;
pub mod envoy_config;
pub mod listeners;
pub mod ports;
pub mod programs;
pub mod prometheus;
pub mod relay;
pub mod scale;
pub mod stack;
pub mod workload;

mod chat_metrics;
mod report;
