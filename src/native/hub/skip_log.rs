//! What was not credited, in the log: a line for each cause, and not too many.
//!
//! In: tallies of one replica, and the time. Out: the lines that are due, each with the count since its last one. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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
    said_at: Option<Instant>,
    count: u64,
}

// === impl SkipLog ===

impl SkipLog {
    /// Takes in what was skipped, and gives what is to be said of it at `now`.
    pub fn lines(&mut self, tally: &Tally, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        for (reason, count) in &tally.skipped {
            let cause = self.causes.entry(reason.as_str()).or_insert(Cause { said_at: None, count: 0 });
            cause.count = cause.count.saturating_add(*count);
            if cause.said_at.is_none_or(|said_at| now.saturating_duration_since(said_at) >= INTERVAL) {
                cause.said_at = Some(now);
                lines.push(Line { reason: *reason, count: std::mem::take(&mut cause.count) });
            }
        }
        lines.sort_unstable_by_key(|line| line.reason.as_str());
        lines
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
