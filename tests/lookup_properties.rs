//! What holds of every lookup, over random reports and requests.
//!
//! [`reports`]: a replica is never credited with what it did not report, and neither the order of replicas nor how
//! reports are cut changes an answer. [`answers`]: whatever is asked is answered, in a shape that can be relied on.
//! [`settings`]: each setting that differs from the contract does what it says.

#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "lookup_properties/answers.rs"]
mod answers;
#[path = "lookup_properties/arbitrary.rs"]
mod arbitrary;
#[path = "support/cases/mod.rs"]
mod cases;
#[path = "conformance/core.rs"]
mod core;
#[path = "lookup_properties/oracle.rs"]
mod oracle;
#[path = "lookup_properties/reports.rs"]
mod reports;
#[path = "lookup_properties/settings.rs"]
mod settings;
