//! Replays: what was missed is asked for, round by round, until the publisher has nothing more.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use super::Source;
use crate::native::hub::clock::hub_ms;
use crate::native::hub::continuity::{Place, Seen};
use crate::native::hub::transport::{Fault, Transport};

/// The most requests in one catch-up; an engine's ring of 10,000 batches takes about ten if its socket drops answers.
const MAX_ROUNDS: usize = 64;

/// So many times a catch-up clears what it has applied where the publisher itself has lost messages. Each time is a line in the
/// log and a change that filters are told.
const MAX_HOLES: u32 = 2;

/// How one request for a replay went.
enum Round {
    /// Everything up to the publisher's latest message is applied.
    Complete,
    /// Some was applied, and more is to come.
    Partial,
    /// Too many are missing in between: it goes on after the last of them that is known, from this number.
    From(u64),
    /// The publisher does not have what was applied last.
    Disproved,
    /// No usable answer.
    Failed(Fault),
}

// === impl Source ===

impl<T: Transport> Source<T> {
    /// Applies what the publisher's ring has after the last message applied. False if that cannot be had; what was
    /// applied is then still there, but nothing is certain.
    ///
    /// Until `doubt_ends` it may be proved that the publisher is the one that was followed. Once it is, or nothing was
    /// followed, the rest of the ring takes the time that it takes.
    pub(super) async fn catch_up(&mut self, doubt_ends: Option<Instant>) -> bool {
        if !self.transport.replays() {
            // Without a replay only a publisher that was not followed before can be trusted.
            return self.continuity.last().is_none();
        }
        if self.replay_not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        if self.continuity.last().is_none() {
            self.renew();
        }
        let is_whole = self.ask(doubt_ends).await;
        self.transport.end_replay();
        self.end_renewal(is_whole);
        if is_whole {
            self.replay_works = true;
            self.replay_not_before = None;
            self.unanswered = false;
            self.proved_at = Some(Instant::now());
            self.presence.heard(Instant::now());
        } else {
            self.unanswered = true;
            self.metrics.replays_failed.inc();
            if doubt_ends.is_none() {
                self.replay_not_before = Some(Instant::now() + self.events.replay_cooldown);
            }
        }
        is_whole
    }

    /// Builds a replica that nothing is known of from what the ring has.
    pub(super) async fn build(&mut self) {
        if !self.catch_up(None).await {
            self.behind = self.transport.replays();
        }
    }

    /// What is replayed from here on does not count before all of it is there: what it says to be held may be taken back
    /// by the rest.
    fn renew(&mut self) {
        self.state.renew(self.publisher.index);
        self.is_renewed = true;
    }

    /// What was replayed counts, if that is all. Of a replay that failed nothing is kept.
    fn end_renewal(&mut self, is_whole: bool) {
        if !std::mem::take(&mut self.is_renewed) {
            return;
        }
        if !is_whole {
            self.give_up("the replay is incomplete");
        }
        self.behind = !is_whole;
        self.state.complete(self.publisher.index);
    }

    async fn ask(&mut self, mut doubt_ends: Option<Instant>) -> bool {
        let (mut holes, mut from) = (0, None);
        for _ in 0..MAX_ROUNDS {
            self.metrics.replays.inc();
            let asked_ms = hub_ms();
            let before = self.continuity.last();
            match self.round(doubt_ends.take(), from.take(), &mut holes).await {
                Round::Complete if self.falls_short(before) => {}
                Round::Complete => {
                    self.known(asked_ms);
                    if holes > MAX_HOLES {
                        warn!(
                            replica = self.publisher.name,
                            "the engine has lost event messages {holes} times in what it has"
                        );
                    }
                    if holes > 0 {
                        self.note_loss();
                    }
                    return true;
                }
                Round::Partial => {}
                Round::From(sequence) => from = Some(sequence),
                Round::Disproved => {
                    self.restarted();
                    self.renew();
                }
                Round::Failed(fault) if self.unanswered => {
                    debug!(replica = self.publisher.name, "replay failed again: {fault}");
                    return false;
                }
                Round::Failed(fault) => {
                    warn!(replica = self.publisher.name, "replay failed: {fault}");
                    return false;
                }
            }
        }
        warn!(replica = self.publisher.name, "replay given up after {MAX_ROUNDS} requests");
        false
    }

    /// Whether a replay, which brought something since `before`, ended before what came live already: the socket dropped
    /// answers and not the end. One that brought nothing more is of an engine that has started over.
    fn falls_short(&mut self, before: Option<Seen>) -> bool {
        let last = self.continuity.last();
        let sequence = last.map(|last| last.sequence);
        let is_short = sequence < self.newest;
        if is_short && last == before {
            self.newest = sequence;
        }
        is_short && last != before
    }

    /// Asks once: from the last message applied, or else `from` where nothing is followed.
    async fn round(&mut self, doubt_ends: Option<Instant>, from: Option<u64>, holes: &mut u32) -> Round {
        let mut unproved = self.continuity.last();
        let first = unproved.map_or(from.unwrap_or(0), |last| last.sequence);
        let limit = self.limit(unproved.and(doubt_ends));
        if let Err(fault) = self.transport.request_replay(first, limit).await {
            return Round::Failed(fault);
        }
        let mut advanced = false;
        loop {
            let limit = self.limit(unproved.and(doubt_ends));
            let message = match self.transport.next_replayed(limit).await {
                Ok(Some(message)) => message,
                Ok(None) if unproved.is_some() => return Round::Disproved,
                Ok(None) => return Round::Complete,
                // The socket drops answers when it is full, the last one too.
                Err(_) if advanced => return Round::Partial,
                Err(fault) => return Round::Failed(fault),
            };
            let seen = Seen::of(message.sequence, &message.payload);
            if let Some(last) = unproved.take() {
                if seen != last {
                    return Round::Disproved;
                }
                continue;
            }
            match self.continuity.place(seen) {
                Place::Duplicate => continue,
                Place::Restarted => return Round::Disproved,
                Place::Gap if advanced => return Round::Partial,
                // Right after a message that the ring has: the publisher itself has lost these.
                Place::Gap => {
                    *holes += 1;
                    self.give_up("the engine has lost event messages");
                    self.renew();
                    if *holes > MAX_HOLES {
                        return self.after_the_last_hole(seen.sequence, holes).await;
                    }
                }
                Place::Next => {}
            }
            self.apply(&message, seen, Some(hub_ms()));
            advanced = true;
        }
    }

    /// Reads the rest of a replay and applies none of it. Where it can go on: after the last messages that are missing, the
    /// first of which come before number `from`.
    async fn after_the_last_hole(&mut self, mut from: u64, holes: &mut u32) -> Round {
        let mut last = from;
        loop {
            match self.transport.next_replayed(self.limit(None)).await {
                Ok(Some(message)) if message.sequence > last.saturating_add(1) => {
                    *holes = holes.saturating_add(1);
                    (from, last) = (message.sequence, message.sequence);
                }
                Ok(Some(message)) => last = last.max(message.sequence),
                // Whatever ended it, what there is more of comes with the next request.
                Ok(None) | Err(_) => return Round::From(from),
            }
        }
    }

    fn limit(&self, doubt_ends: Option<Instant>) -> Duration {
        let left = doubt_ends.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        self.events.replay_timeout.min(left)
    }
}
