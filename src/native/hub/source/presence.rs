//! Whether a replica is still there.
//!
//! In: when its publisher was heard, when its metrics were read, whether its name has an address. Out: when it counts as
//! gone, unless more is heard of it. No I/O.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// When a replica's metrics were last read; shared by who reads them and those that follow its publishers.
#[derive(Clone, Debug, Default)]
pub struct LastScrape(Arc<Mutex<Option<Instant>>>);

/// What was heard of a replica.
#[derive(Debug)]
pub(super) struct Presence {
    gone_after: Duration,
    scraped: LastScrape,
    heard_at: Instant,
    unresolved_since: Option<Instant>,
    is_gone: bool,
}

// === impl LastScrape ===

impl LastScrape {
    /// The metrics were read at `now`.
    pub fn note(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn at(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Presence ===

impl Presence {
    /// One that counts as gone `gone_after` from `now` if nothing is heard of it until then.
    pub(super) fn new(gone_after: Duration, scraped: LastScrape, now: Instant) -> Presence {
        Presence { gone_after, scraped, heard_at: now, unresolved_since: None, is_gone: false }
    }

    /// The publisher is there.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// The name has an address.
    pub(super) fn resolved(&mut self) {
        self.unresolved_since = None;
    }

    /// The name has no address.
    pub(super) fn unresolved(&mut self, now: Instant) {
        self.unresolved_since.get_or_insert(now);
    }

    /// Whether the metrics were read lately.
    pub(super) fn is_scraped(&self, now: Instant) -> bool {
        self.scraped.at().is_some_and(|at| now.saturating_duration_since(at) < self.gone_after)
    }

    /// Whether the metrics were ever read: one whose metrics cannot be is not silent because of that.
    pub(super) fn was_scraped(&self) -> bool {
        self.scraped.at().is_some()
    }

    /// When it counts as gone; none if it does already.
    pub(super) fn ends(&self) -> Option<Instant> {
        if self.is_gone {
            return None;
        }
        let heard_at = self.scraped.at().map_or(self.heard_at, |scraped| scraped.max(self.heard_at));
        let since = self.unresolved_since.map_or(heard_at, |since| since.min(heard_at));
        Some(since + self.gone_after)
    }

    /// Whether it counts as gone at `now`, which it did not so far.
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.ends().is_some_and(|end| end <= now)
    }

    /// Whether it counts as gone.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// It counts as gone from now on.
    pub(super) fn left(&mut self) {
        self.is_gone = true;
    }

    /// It is there again.
    pub(super) fn is_back(&mut self) {
        self.is_gone = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(15);

    #[test]
    fn it_is_gone_when_neither_events_nor_metrics_were_heard_of_for_long() {
        let start = Instant::now();
        let scraped = LastScrape::default();
        let mut presence = Presence::new(LIMIT, scraped.clone(), start);
        assert!(presence.ends() == Some(start + LIMIT) && !presence.has_ended(start + LIMIT / 2));
        presence.heard(start + LIMIT / 3);
        scraped.note(start + LIMIT / 2);
        assert_eq!(presence.ends(), Some(start + LIMIT / 2 + LIMIT));
        assert!(presence.has_ended(start + 2 * LIMIT));
        presence.left();
        assert!(presence.is_gone() && !presence.has_ended(start + 2 * LIMIT), "once");
        presence.is_back();
        assert!(!presence.is_gone());
    }

    #[test]
    fn a_name_without_an_address_is_gone_whatever_else_is_heard() {
        let start = Instant::now();
        let mut presence = Presence::new(LIMIT, LastScrape::default(), start);
        presence.unresolved(start);
        presence.unresolved(start + LIMIT / 2);
        presence.heard(start + LIMIT);
        assert!(presence.has_ended(start + LIMIT));
        presence.resolved();
        assert!(!presence.has_ended(start + LIMIT));
    }
}
