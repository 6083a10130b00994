//! The Observe streams that are open, as operators see them.
//!
//! In: what a stream says of itself. Out: a view of all. A stream is on the list from its start to its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::hub_ms;

/// As many characters of a subscriber's name as are kept.
const MAX_NAME_CHARACTERS: usize = 128;

/// All streams.
#[derive(Debug, Default)]
pub struct Roster {
    next: AtomicU64,
    seats: Mutex<BTreeMap<u64, Arc<Standing>>>,
}

/// A stream's place on the list, which it leaves when this is dropped.
#[derive(Debug)]
pub struct Seat {
    roster: Arc<Roster>,
    number: u64,
    standing: Arc<Standing>,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamView {
    /// Who subscribed, cut to a bounded length; empty before it said so.
    pub node_id: String,
    /// When the stream was opened, in the hub's own ms.
    pub since_ms: u64,
    /// The sequence it has once it applied all that was sent.
    pub position: u64,
    /// Bytes sent and not acknowledged.
    pub unacknowledged_bytes: usize,
}

#[derive(Debug)]
struct Standing {
    node_id: Mutex<String>,
    since_ms: u64,
    position: AtomicU64,
    unacknowledged_bytes: AtomicUsize,
}

// === impl Roster ===

impl Roster {
    /// A stream begins.
    pub fn join(roster: &Arc<Roster>) -> Seat {
        let number = roster.next.fetch_add(1, Ordering::Relaxed);
        let standing = Arc::new(Standing {
            node_id: Mutex::default(),
            since_ms: hub_ms(),
            position: AtomicU64::new(0),
            unacknowledged_bytes: AtomicUsize::new(0),
        });
        roster.seats().insert(number, Arc::clone(&standing));
        Seat { roster: Arc::clone(roster), number, standing }
    }

    /// The first `limit` streams, the oldest first, and how many there are.
    pub fn view(&self, limit: usize) -> (Vec<StreamView>, usize) {
        let seats = self.seats();
        (seats.values().take(limit).map(|standing| standing.view()).collect(), seats.len())
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Standing>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Seat ===

impl Seat {
    /// The subscriber said who it is.
    pub fn named(&self, node_id: &str) {
        let name = node_id.chars().take(MAX_NAME_CHARACTERS).collect();
        *self.standing.node_id.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    /// Something was sent or acknowledged.
    pub fn moved(&self, position: u64, unacknowledged_bytes: usize) {
        self.standing.position.store(position, Ordering::Relaxed);
        self.standing.unacknowledged_bytes.store(unacknowledged_bytes, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.seats().remove(&self.number);
    }
}

// === impl Standing ===

impl Standing {
    fn view(&self) -> StreamView {
        StreamView {
            node_id: self.node_id.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            since_ms: self.since_ms,
            position: self.position.load(Ordering::Relaxed),
            unacknowledged_bytes: self.unacknowledged_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_listed_until_it_ends() {
        let roster = Arc::new(Roster::default());
        let (first, second) = (Roster::join(&roster), Roster::join(&roster));
        first.named(&"n".repeat(1_000));
        second.moved(7, 42);
        let (views, count) = roster.view(10);
        assert_eq!((views.len(), count, views[0].node_id.len()), (2, 2, MAX_NAME_CHARACTERS));
        assert_eq!((views[1].position, views[1].unacknowledged_bytes), (7, 42));
        assert_eq!((roster.view(1).0.len(), roster.view(1).1), (1, 2));
        drop(first);
        assert_eq!(roster.view(10).0, &views[1..]);
    }
}
