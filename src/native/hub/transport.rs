//! How the messages of one publisher reach a [`Source`](super::source::Source).
//!
//! A transport brings live messages in the order in which they were published, some of which may be missing, and on
//! request those that the publisher still has, from a number on. It proves nothing itself: what a message is to those
//! before it is for the source to find out.

use std::net::{IpAddr, SocketAddr};
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

    /// The replica's address as Envoy writes it, looked up now. What is connected to afterwards is of the same look-up.
    fn resolve(&mut self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// Connects, in place of any earlier connection, or fails within `limit`.
    fn connect(&mut self, limit: Duration) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The replica's address as it was reached by the last connection, as Envoy writes it: another one than that of
    /// [`resolve`](Transport::resolve), where its name has several. None where that is not known.
    fn reached(&self) -> Option<String> {
        None
    }

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

/// The addresses of a replica's name, as of one look-up: for hints, and for all connections to the same name.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// `host:port` of the replica.
    address: String,
    /// Of its host, the one to use first.
    ips: Vec<IpAddr>,
}

// === impl Resolved ===

impl Resolved {
    /// Of the replica at `address`, `host:port`; nothing is looked up yet.
    pub fn of(address: &str) -> Resolved {
        Resolved { address: address.to_owned(), ips: Vec::new() }
    }

    /// Looks the name up. The address that was used last stays the first while the name has it.
    ///
    /// # Errors
    /// [`Fault::Lost`] when it has none.
    pub async fn look_up(&mut self) -> Result<String, Fault> {
        let found = tokio::net::lookup_host(self.address.as_str())
            .await
            .map(|found| found.map(|address| address.ip()).collect())
            .map_err(|error| Fault::Lost(format!("address `{}` cannot be resolved: {error}", self.address)))?;
        self.found(found);
        self.first().ok_or_else(|| Fault::Lost(format!("address `{}` has no IP address", self.address)))
    }

    fn found(&mut self, mut ips: Vec<IpAddr>) {
        if let Some(last) = self.ips.first()
            && let Some(at) = ips.iter().position(|ip| ip == last)
        {
            ips.swap(0, at);
        }
        self.ips = ips;
    }

    /// The replica's address to use, as Envoy writes it.
    pub fn first(&self) -> Option<String> {
        let (_, port) = self.address.rsplit_once(':')?;
        Some(SocketAddr::new(*self.ips.first()?, port.parse().ok()?).to_string())
    }

    /// Where `authority`, `host:port`, is to be reached, in the order in which to try: at the addresses that were looked up,
    /// if it is on the replica's host.
    pub fn places(&self, authority: &str) -> Vec<String> {
        let host = |authority: &str| authority.rsplit_once(':').map(|(host, _)| host.to_ascii_lowercase());
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        match port {
            Some(port) if !self.ips.is_empty() && host(authority) == host(&self.address) => {
                self.ips.iter().map(|ip| SocketAddr::new(*ip, port).to_string()).collect()
            }
            _ => vec![authority.to_owned()],
        }
    }

    /// One of the [`places`](Resolved::places) was reached, and is the one to use.
    pub fn reached(&mut self, place: &str) {
        let at = place.parse::<SocketAddr>().ok().and_then(|place| self.ips.iter().position(|ip| *ip == place.ip()));
        if let Some(at) = at {
            self.ips.swap(0, at);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_up(address: &str, ips: &[&str]) -> Resolved {
        let mut resolved = Resolved::of(address);
        resolved.found(ips.iter().map(|ip| ip.parse().unwrap()).collect());
        resolved
    }

    #[test]
    fn events_come_from_the_address_that_hints_name() {
        let mut resolved = looked_up("engine:8000", &["10.0.0.1", "fd00::1"]);
        assert_eq!(resolved.first().unwrap(), "10.0.0.1:8000");
        assert_eq!(resolved.places("Engine:5557"), ["10.0.0.1:5557", "[fd00::1]:5557"]);
        assert_eq!(resolved.places("other:5557"), ["other:5557"], "a host of its own");
        // What was reached is what is used, for as long as the name has it.
        resolved.reached("[fd00::1]:5557");
        assert_eq!(resolved.first().unwrap(), "[fd00::1]:8000");
        assert_eq!(resolved.places("engine:5558"), ["[fd00::1]:5558", "10.0.0.1:5558"]);
        resolved.found(["10.0.0.1", "10.0.0.2", "fd00::1"].map(|ip| ip.parse().unwrap()).into());
        assert_eq!(resolved.first().unwrap(), "[fd00::1]:8000");
        resolved.found(["10.0.0.2", "10.0.0.1"].map(|ip| ip.parse().unwrap()).into());
        assert_eq!(resolved.first().unwrap(), "10.0.0.2:8000");
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_lost() {
        let fault = Resolved::of("no-such-host.invalid:1").look_up().await.unwrap_err();
        assert!(fault.to_string().contains("cannot be resolved"), "{fault}");
        assert_eq!(Resolved::of("[::1]:80").look_up().await.unwrap(), "[::1]:80");
        assert_eq!(looked_up("[::1]:80", &["::1"]).places("[::1]:90"), ["[::1]:90"]);
    }
}
