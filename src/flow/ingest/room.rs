//! How many pairs more the index takes while a message is read.
//!
//! What is queued and what the message brought so far counts as if it were in it. What a newer generation is about to
//! end takes no room from what replaces it.

use super::Ingest;
use super::queue::pairs_of;
use crate::index::Index;
use crate::observation::Observation;

/// The room that is left; less than nothing where the index holds more than it may.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    left: i64,
    /// Otherwise there is at least so much: to know more takes a look at every replica.
    is_exact: bool,
}

// === impl Room ===

impl Room {
    /// A generation that held so many pairs takes none from now on.
    pub(super) fn add(&mut self, pairs: u64) {
        self.left = self.left.saturating_add(signed(pairs));
    }
}

// === impl Ingest ===

impl Ingest {
    /// The room before anything of a message is read.
    pub(super) fn room(&self, index: &Index) -> Room {
        if self.evicts {
            return Room { left: i64::MAX, is_exact: true };
        }
        let taken = index.pairs().saturating_add(self.queue.pairs());
        Room { left: signed(self.max_pairs).saturating_sub(signed(taken)), is_exact: false }
    }

    /// Takes room for `wanted` pairs, or what there is, after `records` of the same message.
    pub(super) fn take_room(&self, room: &mut Room, wanted: u64, index: &Index, records: &[Observation]) -> u64 {
        if !room.is_exact && signed(wanted) > room.left {
            let held = self.replicas.current().map(|slot| index.pairs_of(slot)).fold(0, u64::saturating_add);
            let taken = held.saturating_add(self.queue.pairs()).saturating_add(pairs_of(records));
            *room = Room { left: signed(self.max_pairs).saturating_sub(signed(taken)), is_exact: true };
        }
        let taken = wanted.min(u64::try_from(room.left).unwrap_or(0));
        room.left = room.left.saturating_sub(signed(taken));
        taken
    }
}

fn signed(pairs: u64) -> i64 {
    i64::try_from(pairs).unwrap_or(i64::MAX)
}
