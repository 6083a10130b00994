//! Delivered hits on their way from the VMs that serve to the leader, which counts them for LFU.
//!
//! A credit is one hit of one block at one replica. A VM collects what its requests delivered in an [`Outbox`], and sends
//! one bounded batch a tick through a shared queue while a leader lives. The leader's [`Inbox`] takes the batches out,
//! makes absolute counts of them, and commits those like any other record: what is committed is counted exactly once.
//! Credits are worth less than a request's time or the proxy's memory: whatever finds no room on this way is dropped,
//! and counted.

mod inbox;
mod outbox;

pub use inbox::Inbox;
pub use outbox::{Hit, Outbox};

/// The most bytes of one batch in the queue.
pub const MAX_BATCH_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
