//! When it may be said of a followed replica that it still holds what it was reported to hold.
//!
//! Engines announce a block once, so that what is held for long would become too old to count. In: when it was known that
//! no event was missed so far, and when that is in doubt. Out: about as often as configured, the latest such time, once.
//! While there is none there is nothing to say, and what was said before ages. No I/O.

use std::time::Duration;

use tokio::time::Instant;

use super::config::ReassertConfig;

/// What is known of one replica's events.
#[derive(Debug)]
pub struct Reassertion {
    /// None where nothing is to be said.
    every: Option<Duration>,
    due: Instant,
    /// When it was last known that no event was missed, in the hub's own ms; none once that was said, or is in doubt.
    known_ms: Option<u64>,
}

// === impl Reassertion ===

impl Reassertion {
    /// Nothing is known yet.
    pub fn new(config: &ReassertConfig, now: Instant) -> Reassertion {
        let every = config.enabled.then_some(config.every);
        Reassertion { every, due: now + config.every, known_ms: None }
    }

    /// When something is to be said, if there is something to say by then; none: never.
    pub fn due(&self) -> Option<Instant> {
        self.every.map(|_| self.due)
    }

    /// Every event that the engine published before `at_ms`, in the hub's own ms, was applied.
    pub fn known(&mut self, at_ms: u64) {
        self.known_ms = self.known_ms.max(Some(at_ms));
    }

    /// Events may have been missed.
    pub fn doubt(&mut self) {
        self.known_ms = None;
    }

    /// Whether something is known that was not said.
    pub fn is_known(&self) -> bool {
        self.known_ms.is_some()
    }

    /// What to say at `now`: when it was last known, unless that was said or is in doubt. It is due again after a while.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let every = self.every?;
        self.due = now + every;
        self.known_ms.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(30);

    fn reassertion(enabled: bool, now: Instant) -> Reassertion {
        Reassertion::new(&ReassertConfig { enabled, every: EVERY }, now)
    }

    #[test]
    fn what_is_known_is_said_once_and_not_sooner_than_it_is_due_again() {
        let start = Instant::now();
        let mut replica = reassertion(true, start);
        assert_eq!(replica.due(), Some(start + EVERY));
        assert_eq!(replica.take(start + EVERY), None, "nothing is known");
        replica.known(5);
        replica.known(9);
        replica.known(7);
        assert_eq!(replica.due(), Some(start + 2 * EVERY));
        assert_eq!(replica.take(start + 3 * EVERY), Some(9), "the latest time");
        assert_eq!(replica.due(), Some(start + 4 * EVERY));
        assert!(!replica.is_known());
        assert_eq!(replica.take(start + 4 * EVERY), None, "it was said");
    }

    #[test]
    fn a_doubt_lasts_until_something_is_known_again() {
        let start = Instant::now();
        let mut replica = reassertion(true, start);
        replica.known(5);
        replica.doubt();
        assert_eq!(replica.take(start + EVERY), None);
        replica.known(6);
        assert_eq!(replica.take(start + 2 * EVERY), Some(6));
    }

    #[test]
    fn where_it_is_off_nothing_is_ever_due() {
        let start = Instant::now();
        let mut replica = reassertion(false, start);
        replica.known(5);
        assert_eq!((replica.due(), replica.take(start + EVERY)), (None, None));
    }
}
