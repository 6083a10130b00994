//! How the messages of one publisher reach a [`Source`](super::source::Source).
//!
//! A transport brings live messages in the order in which they were published, some of which may be missing, and on
//! request those that the publisher still has, from a number on. It proves nothing itself: what a message is to those
//! before it is for the source to find out.

use std::time::Duration;

use bytes::Bytes;

use crate::native::engine::Batch;

/// One message of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its number.
    pub sequence: u64,
    /// The encoded batch.
    pub payload: Bytes,
}

/// Why nothing more comes.
#[derive(Debug)]
pub enum Fault {
    /// The connection ended, or the socket failed.
    Lost(String),
    /// Nothing came in time.
    Silent,
    /// A message that is not framed as expected.
    Malformed,
}

/// The connection to one publisher, at most one at a time, and the replay under way, if one is.
pub trait Transport: Send + 'static {
    /// Whether replays can be asked for.
    fn replays(&self) -> bool;

    /// The replica's address as Envoy writes it, looked up now.
    fn resolve(&mut self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Connects, in place of any earlier connection, or fails within `limit`.
    fn connect(&mut self, limit: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The next live message. Nothing is lost when this is dropped before it is done. After [`Fault::Malformed`] others can
    /// follow, after any other fault none.
    fn next(&mut self) -> impl Future<Output = Result<Published, Fault>> + Send;

    /// Asks for every message from `first` on, in place of any earlier replay.
    fn request_replay(&mut self, first: u64, limit: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The next message of the replay; `None` at its end.
    fn next_replayed(&mut self, limit: Duration) -> impl Future<Output = Result<Option<Published>, Fault>> + Send;

    /// The rest of the replay is not needed.
    fn end_replay(&mut self);

    /// The batch in a message's payload.
    ///
    /// # Errors
    /// In words, when there is none in it.
    fn decode(&self, payload: &Bytes) -> Result<Batch, String>;
}

/// The first address of `host:port`, as Envoy writes it.
///
/// # Errors
/// [`Fault::Lost`] when it has none.
pub async fn resolve(address: &str) -> Result<String, Fault> {
    let mut addresses = tokio::net::lookup_host(address)
        .await
        .map_err(|error| Fault::Lost(format!("address `{address}` cannot be resolved: {error}")))?;
    let first = addresses.next().ok_or_else(|| Fault::Lost(format!("address `{address}` has no IP address")))?;
    Ok(first.to_string())
}

// === impl Fault ===

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Lost(why) => f.write_str(why),
            Fault::Silent => f.write_str("no answer in time"),
            Fault::Malformed => f.write_str("a message is not framed as [topic, 8-byte sequence, payload]"),
        }
    }
}

impl std::error::Error for Fault {}
