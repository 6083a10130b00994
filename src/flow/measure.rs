//! How much memory the index takes, found out in small steps: there is a run for every few pairs, and each has to be asked.

use crate::index::Index;

/// Runs that one step goes over.
const STEP_RUNS: u32 = 8_192;
/// The time between two beginnings, in ms.
const PASS_MS: u64 = 10_000;

/// A measurement that is under way, or was.
#[derive(Debug, Default)]
pub struct Measure {
    /// The run to go on with; none while there is no measurement.
    next: Option<u32>,
    bytes: u64,
    begun_ms: Option<u64>,
}

// === impl Measure ===

impl Measure {
    /// Goes on; bytes where that was the last step. A measurement begins once in 10 s at most. Where another index takes the
    /// place of the one that it began with, its result is neither's.
    pub fn step(&mut self, index: &Index, now_ms: u64) -> Option<u64> {
        let from = match self.next {
            Some(next) => next,
            None if !self.is_due(now_ms) => return None,
            None => {
                self.begun_ms = Some(now_ms);
                self.bytes = 0;
                0
            }
        };
        let (bytes, next) = index.bytes_from(from, STEP_RUNS);
        self.bytes = self.bytes.saturating_add(bytes);
        self.next = next;
        next.is_none().then_some(self.bytes)
    }

    fn is_due(&self, now_ms: u64) -> bool {
        // A clock that was set back must not keep it waiting.
        let passed = |begun_ms| now_ms.checked_sub(begun_ms).is_none_or(|passed| passed >= PASS_MS);
        self.begun_ms.is_none_or(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock};

    #[test]
    fn the_parts_are_together_what_the_index_says_at_once() {
        let mut index = Index::new(4);
        for key in 0..u64::from(STEP_RUNS) + 100 {
            index.apply(
                key + 1,
                Observation::Stored(Stored {
                    replica: ReplicaSlot(1),
                    // What is stored apart, by scope, is not put into one run.
                    scope: ScopeSlot(key as u32),
                    last_seen_ms: 1,
                    blocks: vec![StoredBlock { key: BlockKey::Hash64(key), token_count: 16 }],
                    ..Stored::default()
                }),
            );
        }
        assert!(index.size().runs > u64::from(STEP_RUNS), "{:?}", index.size());
        let mut measure = Measure::default();
        let steps: Vec<Option<u64>> = (0..6).map(|tick| measure.step(&index, 50_000 + tick * 100)).collect();
        let ended = steps.iter().position(Option::is_some).unwrap();
        assert!(ended > 0, "it takes more than one step");
        assert_eq!(steps[ended], Some(index.size().bytes));
        assert_eq!(steps.iter().flatten().count(), 1, "the next begins later");
        assert_eq!(measure.step(&index, 59_999), None);
        assert_eq!(measure.step(&Index::new(4), 60_000), Some(Index::new(4).size().bytes));
        assert!(measure.step(&Index::new(4), 1_000).is_some(), "the clock was set back");
    }
}
