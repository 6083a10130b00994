//! Takes in what was read of one replica's messages, and tells operators what could not be used.
//!
//! In: decoded messages, in order. Out: events, with [`KvEvent::Missed`] where something was said that is not known. Effects: the
//! counters of what was skipped, a line in the log for each cause, and the gauge that says that nothing can be read.
//!
//! A message of which nothing can be read may have said anything, so that its replica is treated as holding nothing. A
//! message of which a part can be read shows that the encoding is known; its unknown events are counted, and cost only what
//! they said.

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::metrics::ReplicaMetrics;
use super::replica_cache::Tally;
use super::skip_log::SkipLog;
use crate::native::engine::{Batch, KvEvent, Missed, SkipReason};

/// Takes in the messages of one replica.
#[derive(Debug)]
pub struct EventReader {
    replica: String,
    metrics: ReplicaMetrics,
    log: SkipLog,
    is_unreadable: bool,
    /// What could not be read of the message that is being applied.
    unread: Tally,
}

// === impl EventReader ===

impl EventReader {
    /// Of the replica with this id.
    pub fn new(replica: &str, metrics: ReplicaMetrics) -> EventReader {
        EventReader {
            replica: replica.to_owned(),
            metrics,
            log: SkipLog::default(),
            is_unreadable: false,
            unread: Tally::default(),
        }
    }

    /// What is to be applied of a message; to be followed by [`EventReader::applied`].
    pub fn read(&mut self, sequence: u64, decoded: Result<Batch, String>) -> Batch {
        match decoded {
            Err(error) => {
                self.unread.skip(SkipReason::MalformedBatch, 1);
                self.cannot_read(sequence, &error);
                Batch { events: vec![KvEvent::Missed(Missed::Anything)], ..Batch::default() }
            }
            Ok(mut batch) => {
                for (fault, count) in &batch.faults {
                    self.unread.skip(fault.reason(), usize::try_from(*count).unwrap_or(usize::MAX));
                }
                match batch.faults.first() {
                    Some((fault, _)) if batch.read == 0 => {
                        self.cannot_read(sequence, &fault.to_string());
                        batch.events = vec![KvEvent::Missed(Missed::Anything)];
                    }
                    _ if batch.read > 0 => self.can_read(),
                    _ => {}
                }
                batch
            }
        }
    }

    /// The message is not to be applied, for this reason; to be followed by [`EventReader::applied`].
    pub fn skip(&mut self, reason: SkipReason) {
        self.unread.skip(reason, 1);
    }

    /// The message that was read last has been applied, with this outcome.
    pub fn applied(&mut self, tally: &Tally) {
        self.metrics.message(tally);
        let mut all = std::mem::take(&mut self.unread);
        for (reason, count) in &all.skipped {
            self.metrics.skip(*reason, *count);
        }
        for (reason, count) in &tally.skipped {
            all.skip(*reason, usize::try_from(*count).unwrap_or(usize::MAX));
        }
        for line in self.log.lines(&all, Instant::now()) {
            warn!(replica = self.replica, "{line}");
        }
    }

    /// When [`EventReader::say_due`] has something to say.
    pub fn due(&self) -> Option<Instant> {
        self.log.due()
    }

    /// Says what was skipped and is not said yet, if it is time.
    pub fn say_due(&mut self) {
        for line in self.log.due_lines(Instant::now()) {
            warn!(replica = self.replica, "{line}");
        }
    }

    fn cannot_read(&mut self, sequence: u64, why: &str) {
        self.metrics.unreadable.set(1);
        if !std::mem::replace(&mut self.is_unreadable, true) {
            error!(
                replica = self.replica,
                sequence, "its events cannot be read, so it counts as holding nothing: {why}"
            );
        }
    }

    fn can_read(&mut self) {
        self.metrics.unreadable.set(0);
        if std::mem::take(&mut self.is_unreadable) {
            info!(replica = self.replica, "its events can be read again");
        }
    }
}
