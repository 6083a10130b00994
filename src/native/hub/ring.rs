//! The latest changes, for subscribers that follow and for those that come back.
//!
//! In: observations, each with the sequence it got. Out: what follows a position, or that the position has passed. The
//! ring is bounded by the bytes its changes take on the wire; the oldest go first. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::observation::Observation;
use crate::wire::facts_bytes;

/// One observation at its place in the hub's history.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbered {
    /// Its sequence.
    pub sequence: u64,
    /// The observation.
    pub observation: Observation,
    /// The bytes it takes in a message.
    pub bytes: usize,
}

/// The position asked for is older than anything kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed;

/// Bounded changes with consecutive sequences.
#[derive(Debug)]
pub struct Ring {
    changes: VecDeque<Arc<Numbered>>,
    bytes: usize,
    limit_bytes: usize,
    last: u64,
}

// === impl Ring ===

impl Ring {
    /// An empty ring at sequence 0.
    pub fn new(limit_bytes: usize) -> Ring {
        Ring { changes: VecDeque::new(), bytes: 0, limit_bytes, last: 0 }
    }

    /// The sequence of the latest change; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The bytes of all changes in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a change, as the next sequence.
    pub fn push(&mut self, observation: Observation) {
        self.last += 1;
        let bytes = facts_bytes(&observation);
        self.changes.push_back(Arc::new(Numbered { sequence: self.last, observation, bytes }));
        self.bytes += bytes;
        // The newest stays whatever its size: a subscriber that is up to date must be able to go on.
        while self.bytes > self.limit_bytes && self.changes.len() > 1 {
            if let Some(oldest) = self.changes.pop_front() {
                self.bytes -= oldest.bytes;
            }
        }
    }

    /// Whether `sequence` is in the newer half of what is kept: who is there now has time to follow.
    pub fn is_recent(&self, sequence: u64) -> bool {
        self.last.checked_sub(sequence).is_some_and(|behind| behind <= self.changes.len() as u64 / 2)
    }

    /// The changes after `sequence`, at least one if there is any, and at most `limit_bytes` of them.
    ///
    /// # Errors
    /// When `sequence` has passed or is yet to come.
    pub fn after(&self, sequence: u64, limit_bytes: usize) -> Result<Vec<Arc<Numbered>>, Passed> {
        let first = self.last + 1 - self.changes.len() as u64;
        if sequence > self.last || sequence + 1 < first {
            return Err(Passed);
        }
        let skip = usize::try_from(sequence + 1 - first).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let fits = |change: &&Arc<Numbered>| {
            let is_first = bytes == 0;
            bytes += change.bytes;
            is_first || bytes <= limit_bytes
        };
        Ok(self.changes.iter().skip(skip).take_while(fits).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ReplicaSlot;

    fn filled(count: u32, limit_bytes: usize) -> Ring {
        let mut ring = Ring::new(limit_bytes);
        for slot in 1..=count {
            ring.push(Observation::Cleared { replica: ReplicaSlot(slot) });
        }
        ring
    }

    fn sequences(ring: &Ring, after: u64) -> Result<Vec<u64>, Passed> {
        Ok(ring.after(after, usize::MAX)?.iter().map(|change| change.sequence).collect())
    }

    #[test]
    fn changes_follow_a_position_without_gaps() {
        let ring = filled(5, 1_000);
        assert_eq!(sequences(&ring, 0), Ok(vec![1, 2, 3, 4, 5]));
        assert_eq!(sequences(&ring, 3), Ok(vec![4, 5]));
        assert_eq!(sequences(&ring, 5), Ok(vec![]));
        assert_eq!(sequences(&ring, 6), Err(Passed));
    }

    #[test]
    fn the_oldest_go_first_and_a_position_before_them_has_passed() {
        let one = filled(1, 1_000).bytes;
        let ring = filled(10, 3 * one);
        assert_eq!(sequences(&ring, 6), Err(Passed));
        assert_eq!(sequences(&ring, 7), Ok(vec![8, 9, 10]));
        assert_eq!(sequences(&filled(3, 0), 2), Ok(vec![3]));
        assert_eq!(sequences(&Ring::new(0), 0), Ok(vec![]));
    }

    #[test]
    fn the_newer_half_is_recent() {
        let ring = filled(10, 1_000_000);
        assert_eq!([4, 5, 10, 11].map(|sequence| ring.is_recent(sequence)), [false, true, true, false]);
        assert!(Ring::new(0).is_recent(0) && filled(3, 0).is_recent(3) && !filled(3, 0).is_recent(2));
    }

    #[test]
    fn a_piece_has_at_least_one_change_and_fits_otherwise() {
        let one = filled(1, 1_000).bytes;
        let ring = filled(5, 1_000);
        assert_eq!(ring.after(0, 2 * one).unwrap().len(), 2);
        assert_eq!(ring.after(0, 0).unwrap().len(), 1);
    }
}
