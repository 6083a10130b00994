//! What was not credited, in the log: a line for each cause, and not too many.
//!
//! In: tallies of one replica, and the time. Out: the lines that are due, each with the count since its last one; the last
//! count too, once its time has come. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::native::engine::SkipReason;

use super::replica_cache::Tally;

/// A cause has one line in this time.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// The log of one replica.
#[derive(Debug, Default)]
pub struct SkipLog {
    causes: BTreeMap<&'static str, Cause>,
}

/// A line that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The cause.
    pub reason: SkipReason,
    /// Blocks, events or batches since its last line.
    pub count: u64,
}

#[derive(Debug)]
struct Cause {
    reason: SkipReason,
    said_at: Option<Instant>,
    count: u64,
}

// === impl SkipLog ===

impl SkipLog {
    /// Takes in what was skipped, and gives what is to be said of it at `now`.
    pub fn lines(&mut self, tally: &Tally, now: Instant) -> Vec<Line> {
        for (reason, count) in &tally.skipped {
            let none = Cause { reason: *reason, said_at: None, count: 0 };
            let cause = self.causes.entry(reason.as_str()).or_insert(none);
            cause.count = cause.count.saturating_add(*count);
        }
        self.due_lines(now)
    }

    /// What is to be said at `now`, whether or not anything was skipped.
    pub fn due_lines(&mut self, now: Instant) -> Vec<Line> {
        let due =
            self.causes.values_mut().filter(|cause| cause.due().is_some_and(|due| due.is_none_or(|at| at <= now)));
        due.map(|cause| {
            cause.said_at = Some(now);
            Line { reason: cause.reason, count: std::mem::take(&mut cause.count) }
        })
        .collect()
    }

    /// When there is something to say, if nothing else is skipped until then.
    pub fn due(&self) -> Option<Instant> {
        self.causes.values().filter_map(|cause| cause.due()?).min()
    }
}

// === impl Cause ===

impl Cause {
    /// When it is to be said, if there is anything; `Some(None)` is at once.
    fn due(&self) -> Option<Option<Instant>> {
        (self.count > 0).then(|| self.said_at.map(|said_at| said_at + INTERVAL))
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not credited: {} ({} {})", self.reason.cause(), self.reason.as_str(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(skipped: &[(SkipReason, u64)]) -> Tally {
        Tally { skipped: skipped.iter().copied().collect(), ..Tally::default() }
    }

    #[test]
    fn a_cause_has_one_line_a_minute_with_all_that_came_since() {
        let (mut log, start) = (SkipLog::default(), Instant::now());
        let lines = log.lines(&tally(&[(SkipReason::Salted, 2), (SkipReason::Group, 1)]), start);
        let expected = [Line { reason: SkipReason::Group, count: 1 }, Line { reason: SkipReason::Salted, count: 2 }];
        assert_eq!(lines, expected);
        for second in 1..60 {
            let now = start + Duration::from_secs(second);
            assert_eq!(log.lines(&tally(&[(SkipReason::Salted, 3)]), now), []);
        }
        let lines = log.lines(&tally(&[(SkipReason::Salted, 1)]), start + INTERVAL);
        assert_eq!(lines, [Line { reason: SkipReason::Salted, count: 3 * 59 + 1 }]);
        assert_eq!(log.lines(&Tally::default(), start + INTERVAL * 9), []);
    }

    #[test]
    fn the_last_count_is_told_when_its_time_has_come_though_nothing_follows() {
        let (mut log, start) = (SkipLog::default(), Instant::now());
        assert_eq!(log.due(), None);
        log.lines(&tally(&[(SkipReason::Salted, 1)]), start);
        assert_eq!(log.due(), None, "all was said");
        log.lines(&tally(&[(SkipReason::Salted, 5)]), start + INTERVAL / 2);
        assert_eq!(log.due(), Some(start + INTERVAL));
        assert_eq!(log.due_lines(start + INTERVAL - Duration::from_millis(1)), []);
        assert_eq!(log.due_lines(start + INTERVAL), [Line { reason: SkipReason::Salted, count: 5 }]);
        assert_eq!((log.due(), log.due_lines(start + INTERVAL * 3)), (None, Vec::new()));
    }

    #[test]
    fn a_line_says_cause_and_count() {
        let line = Line { reason: SkipReason::Salted, count: 7 };
        assert_eq!(line.to_string(), "not credited: keys depend on a salt (salted 7)");
    }

    #[test]
    fn every_reason_has_a_label_and_a_cause_of_its_own() {
        for text in [SkipReason::as_str, SkipReason::cause] {
            let texts: std::collections::BTreeSet<_> = SkipReason::ALL.into_iter().map(text).collect();
            assert_eq!(texts.len(), SkipReason::ALL.len());
        }
    }
}
