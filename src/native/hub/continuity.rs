//! Whether the next message of a publisher continues what was applied so far.
//!
//! In: sequence numbers and the payloads' digests. Out: what a message is: the next one, one applied already, one after a
//! gap, or one of a publisher that started over. A payload carries the engine's clock, so two publishers do not send the
//! same payload under the same number: the last message, seen again with the same digest in a replay, proves that the
//! publisher is still the one that was followed. Pure.

use std::collections::VecDeque;

use xxhash_rust::xxh3::xxh3_64;

/// Messages that are remembered: those that can arrive live after a replay has already brought them.
const REMEMBERED: usize = 4096;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its sequence number.
    pub sequence: u64,
    /// The digest of its payload.
    pub digest: u64,
}

/// What a message is to what was applied so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first one, or the one after the last.
    Next,
    /// Applied already.
    Duplicate,
    /// Messages before it are missing.
    Gap,
    /// Its number was used for something else: the publisher started over.
    Restarted,
}

/// The messages applied so far.
#[derive(Debug, Default)]
pub struct Continuity {
    /// The latest ones, ascending.
    seen: VecDeque<Seen>,
    /// A fault in judgement, for tests of tests.
    #[cfg(test)]
    pub planted: Option<fn(Place) -> Place>,
}

// === impl Seen ===

impl Seen {
    /// A message with this number and payload.
    pub fn of(sequence: u64, payload: &[u8]) -> Seen {
        Seen { sequence, digest: xxh3_64(payload) }
    }
}

// === impl Continuity ===

impl Continuity {
    /// The last message applied.
    pub fn last(&self) -> Option<Seen> {
        self.seen.back().copied()
    }

    /// What `message` is.
    pub fn place(&self, message: Seen) -> Place {
        let place = self.judge(message);
        #[cfg(test)]
        let place = self.planted.map_or(place, |planted| planted(place));
        place
    }

    fn judge(&self, message: Seen) -> Place {
        let Some(last) = self.last() else { return Place::Next };
        if message.sequence > last.sequence {
            return if message.sequence - last.sequence == 1 { Place::Next } else { Place::Gap };
        }
        match self.seen.binary_search_by_key(&message.sequence, |seen| seen.sequence) {
            Ok(at) if self.seen.get(at) == Some(&message) => Place::Duplicate,
            _ => Place::Restarted,
        }
    }

    /// Whether `message` is older than all that are remembered of many.
    pub fn is_forgotten(&self, message: Seen) -> bool {
        self.seen.len() == REMEMBERED && self.seen.front().is_some_and(|oldest| message.sequence < oldest.sequence)
    }

    /// `message` was applied.
    pub fn applied(&mut self, message: Seen) {
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(message);
    }

    /// Nothing is known of the publisher any more.
    pub fn reset(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(sequences: impl IntoIterator<Item = u64>) -> Continuity {
        let mut continuity = Continuity::default();
        for sequence in sequences {
            continuity.applied(Seen::of(sequence, &sequence.to_be_bytes()));
        }
        continuity
    }

    #[test]
    fn a_message_is_told_by_number_and_payload() {
        let continuity = followed(5..=7);
        assert_eq!(continuity.place(Seen::of(8, b"any")), Place::Next);
        assert_eq!(continuity.place(Seen::of(9, b"any")), Place::Gap);
        assert_eq!(continuity.place(Seen::of(6, &6_u64.to_be_bytes())), Place::Duplicate);
        assert_eq!(continuity.place(Seen::of(6, b"other")), Place::Restarted);
        assert_eq!(continuity.place(Seen::of(0, b"first")), Place::Restarted);
    }

    #[test]
    fn the_first_message_can_have_any_number() {
        assert_eq!(followed([]).place(Seen::of(41, b"any")), Place::Next);
    }

    #[test]
    fn numbers_that_were_lost_are_not_duplicates() {
        let continuity = followed([1, 4]);
        assert_eq!(continuity.place(Seen::of(2, &2_u64.to_be_bytes())), Place::Restarted);
    }

    #[test]
    fn memory_is_bounded() {
        let continuity = followed(0..10_000);
        assert_eq!(continuity.seen.len(), REMEMBERED);
        assert_eq!(continuity.place(Seen::of(9_999, &9_999_u64.to_be_bytes())), Place::Duplicate);
        assert!(continuity.is_forgotten(Seen::of(3, b"any")) && !followed(5..8).is_forgotten(Seen::of(3, b"any")));
    }
}
