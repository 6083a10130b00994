//! The two ZeroMQ sockets of an engine's publisher, as seen by one that follows it.
//!
//! Out: messages, and the loss of the [connection](super::zmtp) as soon as it is known: what was published in between has to be
//! found out before anything else is applied.
//!
//! Wire: live `[topic, sequence, payload]`; the request for a replay `["", first sequence]`; its answers, after an empty
//! delimiter, `[sequence, payload]` or (from vLLM 0.26) `[topic, sequence, payload]`, the last with the sequence
//! [`END_OF_REPLAY`]. Sequences are 8 bytes, big-endian.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::config::ReplicaConfig;
use super::transport::{Fault, Published, Resolved, Transport};
use super::zmtp::{Connection, SocketType};
use crate::native::engine::{Batch, Dialect, decode};

/// The byte before the topic in a message that subscribes.
const SUBSCRIBE: u8 = 1;
/// The sequence of the message that ends a replay.
pub const END_OF_REPLAY: u64 = u64::MAX;

/// What an endpoint begins with.
const TCP: &str = "tcp://";

/// The publisher of one replica, or of one rank of it.
pub struct Sockets {
    resolved: Resolved,
    events_endpoint: String,
    replay_endpoint: Option<String>,
    topic: String,
    dialect: Dialect,
    subscriber: Option<Subscriber>,
    replay: Option<Replay>,
}

/// A subscription, connected once.
struct Subscriber(Connection);

/// A replay under way.
struct Replay(Connection);

// === impl Sockets ===

impl Sockets {
    /// Those of `replica`, of this rank if it has several, each at ports of its own.
    pub fn new(replica: &ReplicaConfig, rank: Option<u32>) -> Sockets {
        Sockets {
            resolved: Resolved::of(&replica.address),
            events_endpoint: replica.endpoint(&replica.kv_events, rank),
            replay_endpoint: replica.kv_replay.as_ref().map(|endpoint| replica.endpoint(endpoint, rank)),
            topic: replica.topic.clone(),
            dialect: Dialect::of(replica.engine),
            subscriber: None,
            replay: None,
        }
    }
}

impl Transport for Sockets {
    fn replays(&self) -> bool {
        self.replay_endpoint.is_some()
    }

    async fn resolve(&mut self) -> Result<String, Fault> {
        self.resolved.look_up().await
    }

    async fn connect(&mut self, limit: Duration) -> Result<(), Fault> {
        self.subscriber = None;
        let mut last = Fault::Silent;
        let places = self.resolved.places(authority(&self.events_endpoint));
        let limit = limit / u32::try_from(places.len()).unwrap_or(u32::MAX).max(1);
        for place in places {
            match Subscriber::connect(&format!("{TCP}{place}"), &self.topic, limit).await {
                Ok(subscriber) => {
                    self.resolved.reached(&place);
                    self.subscriber = Some(subscriber);
                    return Ok(());
                }
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    fn reached(&self) -> Option<String> {
        self.resolved.first()
    }

    async fn next(&mut self) -> Result<Published, Fault> {
        match &mut self.subscriber {
            Some(subscriber) => subscriber.next().await,
            None => Err(Fault::Lost("not connected".into())),
        }
    }

    async fn request_replay(&mut self, first: u64, limit: Duration) -> Result<(), Fault> {
        self.replay = None;
        let Some(endpoint) = &self.replay_endpoint else {
            return Err(Fault::Lost("there is no replay endpoint".into()));
        };
        // Where the events come from, if that is the same host.
        let place = self.resolved.places(authority(endpoint)).into_iter().next().unwrap_or_default();
        self.replay = Some(Replay::request(&format!("{TCP}{place}"), first, limit).await?);
        Ok(())
    }

    async fn next_replayed(&mut self, limit: Duration) -> Result<Option<Published>, Fault> {
        match &mut self.replay {
            Some(replay) => replay.next(limit).await,
            None => Err(Fault::Lost("no replay is under way".into())),
        }
    }

    fn end_replay(&mut self) {
        self.replay = None;
    }

    fn decode(&self, payload: &Bytes) -> Result<Batch, String> {
        decode(payload, &self.dialect).map_err(|error| error.to_string())
    }
}

/// `host:port` of an endpoint.
fn authority(endpoint: &str) -> &str {
    endpoint.strip_prefix(TCP).unwrap_or(endpoint)
}

// === impl Subscriber ===

impl Subscriber {
    /// Connects and subscribes to the topics that start with `topic`.
    ///
    /// # Errors
    /// When there is no connection within `limit`.
    async fn connect(endpoint: &str, topic: &str, limit: Duration) -> Result<Subscriber, Fault> {
        let mut connection = Connection::open(endpoint, SocketType::Sub, limit).await?;
        connection.send(&[&[&[SUBSCRIBE], topic.as_bytes()].concat()]).await?;
        Ok(Subscriber(connection))
    }

    /// The next message. Nothing is lost when this is dropped before it is done.
    ///
    /// # Errors
    /// [`Fault::Lost`] once; [`Fault::Malformed`] for a message that can be skipped.
    async fn next(&mut self) -> Result<Published, Fault> {
        let message = self.0.receive().await?;
        if message.len() == 3 { published(&message) } else { Err(Fault::Malformed) }
    }
}

// === impl Replay ===

impl Replay {
    /// Asks for every message from `first` on.
    ///
    /// # Errors
    /// When there is no connection within `limit`.
    async fn request(endpoint: &str, first: u64, limit: Duration) -> Result<Replay, Fault> {
        let mut connection = Connection::open(endpoint, SocketType::Dealer, limit).await?;
        connection.send(&[b"", &first.to_be_bytes()]).await?;
        Ok(Replay(connection))
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// When nothing comes within `limit`, the connection ends, or a message is malformed.
    async fn next(&mut self, limit: Duration) -> Result<Option<Published>, Fault> {
        let message = timeout(limit, self.0.receive()).await.map_err(|_| Fault::Silent)??;
        if !(2..=4).contains(&message.len()) {
            return Err(Fault::Malformed);
        }
        let published = published(&message)?;
        Ok(Some(published).filter(|published| published.sequence != END_OF_REPLAY))
    }
}

/// In every framing the last two frames are the sequence and the payload.
fn published(message: &[Bytes]) -> Result<Published, Fault> {
    let [.., sequence, payload] = message else { return Err(Fault::Malformed) };
    let sequence = <[u8; 8]>::try_from(sequence.as_ref()).map_err(|_| Fault::Malformed)?;
    Ok(Published { sequence: u64::from_be_bytes(sequence), payload: payload.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(frames: &[&[u8]]) -> Vec<Bytes> {
        frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    #[test]
    fn every_framing_ends_in_sequence_and_payload() {
        let sequence = 5_u64.to_be_bytes();
        for frames in [vec![&b""[..], &sequence, b"p"], vec![b"", b"topic", &sequence, b"p"], vec![&sequence, b"p"]] {
            let published = published(&message(&frames)).unwrap();
            assert_eq!((published.sequence, published.payload.as_ref()), (5, &b"p"[..]));
        }
        for frames in [vec![&b""[..], &[0xFF; 8], b""], vec![b"", b"", &[0xFF; 8], b""]] {
            assert_eq!(published(&message(&frames)).unwrap().sequence, END_OF_REPLAY);
        }
        assert!(matches!(published(&message(&[b"", b"short", b"p"])), Err(Fault::Malformed)));
        assert!(matches!(published(&message(&[b"one"])), Err(Fault::Malformed)));
    }
}
