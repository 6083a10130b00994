//! The state machines behind the callbacks, over a [host](crate::host).
//!
//! [`exchange`] is one request. [`node`] is a VM's part in the shared log: it [follows](follower) the log into an index,
//! and one node at a time [leads](leader) under a [lease]: it [observes](observer) the hub, [renumbers](ingest) what it hears, and
//! commits it. What requests hit goes the other way, as [credits]. What turns text into token ids comes beside the log, as
//! [models]' packages.

pub mod credits;
pub mod eviction;
pub mod exchange;
pub mod follower;
pub mod ingest;
pub mod keys;
pub mod leader;
pub mod lease;
pub mod metrics;
pub mod models;
pub mod node;
pub mod observer;
pub mod pace;
pub mod pager;
pub mod scrub;
pub mod sizes;
pub mod sweep;

#[cfg(test)]
mod defect;

#[cfg(test)]
mod sim;
