//! What a message does to the replica, and what becomes of the replica where one is missing.

use tokio::time::Instant;
use tracing::{info, warn};

use super::Source;
use crate::native::engine::{Batch, EventFault, KvEvent, Missed, SkipReason};
use crate::native::hub::clock::hub_ms;
use crate::native::hub::continuity::Seen;
use crate::native::hub::transport::{Fault, Published, Transport};

// === impl Source ===

impl<T: Transport> Source<T> {
    /// Applies a message as it comes. All before it were applied, or given up with what they may have said.
    pub(super) fn apply_live(&mut self, message: &Published, seen: Seen) {
        self.apply(message, seen, None);
        self.known(hub_ms());
    }

    /// Something came that is no message. It may have been one.
    pub(super) fn apply_malformed(&mut self) {
        let sequence = self.continuity.last().map_or(0, |last| last.sequence);
        let batch = self.reader.read(sequence, Err(Fault::Malformed.to_string()));
        self.apply_batch(batch, None);
        self.doubt();
    }

    /// Applies a message; one that is replayed as of the time the engine made it.
    pub(super) fn apply(&mut self, message: &Published, seen: Seen, replayed_at_ms: Option<u64>) {
        if self.continuity.last().is_none() && seen.sequence == 0 {
            self.whole = true;
        }
        self.continuity.applied(seen);
        self.metrics.last_sequence.set(i64::try_from(seen.sequence).unwrap_or(i64::MAX));
        let batch = match self.transport.decode(&message.payload) {
            Ok(batch) if !self.is_of_this_rank(&batch) => {
                self.reader.skip(SkipReason::OtherRank);
                // It is this publisher's all the same, and may have said that blocks are gone.
                Batch { events: vec![KvEvent::Missed(Missed::Anything)], ..Batch::default() }
            }
            decoded => self.reader.read(seen.sequence, decoded),
        };
        self.apply_batch(batch, replayed_at_ms);
    }

    /// Engines without ranks state any.
    fn is_of_this_rank(&self, batch: &Batch) -> bool {
        match (self.publisher.rank, batch.data_parallel_rank) {
            (Some(rank), Some(stated)) => stated == i64::from(rank),
            _ => true,
        }
    }

    fn apply_batch(&mut self, batch: Batch, replayed_at_ms: Option<u64>) {
        let made_ms = batch.timestamp.map(|seconds| (seconds * 1_000.0) as u64).filter(|made_ms| *made_ms > 0);
        let made_ms = made_ms.map(|made_ms| self.state.wall().to_hub_ms(made_ms));
        made_ms.iter().for_each(|made_ms| self.metrics.made(*made_ms, replayed_at_ms.is_none()));
        let seen_ms = match replayed_at_ms {
            Some(now_ms) => made_ms.unwrap_or(now_ms).min(now_ms),
            None => hub_ms(),
        };
        for event in &batch.events {
            match event {
                KvEvent::AllBlocksCleared => self.whole = true,
                KvEvent::Missed(_) => self.whole = false,
                _ => {}
            }
            if matches!(event, KvEvent::AllBlocksCleared | KvEvent::Missed(Missed::Anything)) {
                self.uncertain = false;
            }
        }
        self.uncertain |= batch.faults.iter().any(|(fault, _)| *fault == EventFault::UnknownTag);
        let tally = self.state.apply(self.publisher.index, &batch.events, seen_ms);
        self.reader.applied(&tally);
        self.metrics.incomplete.set(i64::from(!self.whole));
    }

    /// No event that the engine published before `at_ms`, in the hub's own ms, was missed. Where one was not understood, that says
    /// nothing of what is held still.
    pub(super) fn known(&mut self, at_ms: u64) {
        if self.uncertain {
            return self.doubt();
        }
        self.reassertion.known(at_ms);
        self.metrics.reassert_suspended.set(0);
    }

    /// Events may have been missed.
    pub(super) fn doubt(&mut self) {
        self.reassertion.doubt();
        self.metrics.reassert_suspended.set(i64::from(self.reassertion.due().is_some()));
    }

    pub(super) fn restarted(&mut self) {
        info!(replica = self.publisher.name, "the publisher started over, or its ring has moved on");
        self.metrics.restarts.inc();
        self.give_up("the publisher started over");
    }

    /// Forgets what the replica held and what was followed; it is built anew from what comes next.
    pub(super) fn give_up(&mut self, why: &str) {
        if self.continuity.last().is_some() {
            warn!(replica = self.publisher.name, "cleared: {why}");
            self.metrics.count(&self.state.clear(self.publisher.index));
        }
        self.forget();
        self.doubt();
    }

    /// Nothing is known of what the replica holds, and nothing is said of it any more.
    pub(super) fn forget(&mut self) {
        self.continuity.reset();
        self.whole = false;
        self.uncertain = false;
        self.metrics.incomplete.set(1);
        self.metrics.last_sequence.set(-1);
    }

    /// Messages were missing that cannot be had, and the replica was cleared. Where that keeps happening, it is let be.
    pub(super) fn note_loss(&mut self) {
        let now = Instant::now();
        let before = self.lost_at.replace(now);
        if before.is_some_and(|before| now.duration_since(before) < self.events.replay_cooldown) {
            self.suspend();
        }
    }

    /// Applies nothing for a while.
    pub(super) fn suspend(&mut self) {
        warn!(replica = self.publisher.name, "not followed for a while: too many event messages are missing");
        self.give_up("too many event messages are missing");
        self.metrics.suspensions.inc();
        self.suspended_until = Some(Instant::now() + self.events.replay_cooldown);
        self.newest_suspended = None;
    }

    /// Messages are applied again. If all that came meanwhile have lower numbers, the engine has started over.
    pub(super) fn resume(&mut self) {
        self.suspended_until = None;
        self.newest = self.newest_suspended.take().or(self.newest);
    }

    /// The replica is not there any more.
    pub(super) fn leave(&mut self) {
        self.presence.left();
        if self.state.gone(self.publisher.index) {
            warn!(replica = self.publisher.name, "gone: nothing was heard of it for too long");
            self.metrics.gone.inc();
        }
        self.forget();
        self.doubt();
    }
}
