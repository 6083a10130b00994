//! Follows the event publisher of one replica, or of one rank of it, into the hub's state.
//!
//! In: the publisher's messages, live and replayed, as a [`Transport`] brings them. Effects: the replica is announced, its
//! events are applied in order, each once, and whenever it is not certain that none was missed, the replica is cleared.
//!
//! A replay always starts at the last message applied, not after it: if that comes back unchanged, the publisher is
//! still the same one and everything after it follows; if not, the engine started over or the message has left the
//! publisher's ring, and the replica is cleared and built anew from whatever the ring holds. While a replay runs, live
//! messages wait in the socket; those it already brought are recognized by number and digest.
//!
//! A replay is asked for on every connection, at a gap, when numbers go back, when the engine's process is found to be
//! another one, and after some silence, since the last messages before a silence can be lost too. One that fails while the
//! connection lasts takes nothing back: the next message tells whether any was missed.
//!
//! Messages that cannot be had at all, such as one that the engine could not encode, cost the replica all that it held. If
//! that happens again before long, nothing of it is applied for a while, and then it is built anew from the ring: neither
//! replays nor clears come more often than that.
//!
//! Each message that goes on from the one before it, and each replay that ends, proves that none was missed so far. At
//! intervals that is passed on: the replica still holds what it held, as of the latest proof. Without one since the last
//! time a replay is asked for; where there is none to be had, nothing is said until the next message.
//!
//! A replica of which nothing was heard for long, neither events nor metrics, or whose name has no address any more, is
//! announced as gone. It comes back, as another generation, when it is heard of again.

mod fold;
mod presence;
mod repair;

#[cfg(test)]
mod model;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::config::{EventsConfig, HubConfig};
use super::continuity::{Continuity, Place, Seen};
use super::event_reader::EventReader;
use super::followed::ReplicaIndex;
use super::metrics::ReplicaMetrics;
use super::reassert::Reassertion;
use super::state::HubState;
use super::transport::{Fault, Published, Transport};
use crate::native::engine::SkipReason;
use presence::Presence;

pub use presence::LastScrape;

/// How long one attempt to connect may take, the name lookup included.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long after a connection the first check is made that no event was missed.
const SETTLED: Duration = Duration::from_millis(250);
/// For so long after a replay has proved that the publisher is the one that was followed, messages older than all that are
/// remembered are late ones.
const PROOF_LASTS: Duration = Duration::from_millis(100);

/// How often it is logged that a publisher cannot be reached.
const UNCONNECTED_LOG: Duration = Duration::from_secs(10);

/// The process behind the replica's metrics is another one than before.
#[derive(Clone, Copy, Debug)]
pub struct ProcessChanged;

/// Which publisher a source follows.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// The replica's number in the hub's state.
    pub index: ReplicaIndex,
    /// Its name in logs.
    pub name: String,
    /// The rank of data parallelism, where the replica has several.
    pub rank: Option<u32>,
}

/// Follows one publisher until it is stopped.
pub struct Source<T> {
    publisher: Publisher,
    transport: T,
    events: EventsConfig,
    state: Arc<HubState>,
    metrics: ReplicaMetrics,
    continuity: Continuity,
    reassertion: Reassertion,
    presence: Presence,
    reader: EventReader,
    /// No replay is asked for before this.
    replay_not_before: Option<Instant>,
    /// Whether a replay was answered on this connection, so that silence means something.
    replay_works: bool,
    /// Whether the last replay failed, and no message came since.
    unanswered: bool,
    /// When a replay last proved that the publisher is the one that was followed.
    proved_at: Option<Instant>,
    /// Whether what is replayed is of a generation that does not count yet.
    is_renewed: bool,
    /// Whether what the ring held could not be had on this connection.
    behind: bool,
    /// Checks in a row that found messages which did not come live.
    deaf_checks: u32,
    /// When messages were last missing that could not be had.
    lost_at: Option<Instant>,
    /// Nothing is applied before this.
    suspended_until: Option<Instant>,
    /// The highest number that came live on this connection, in this life of the engine.
    newest: Option<u64>,
    /// The same since nothing is applied.
    newest_suspended: Option<u64>,
    /// Whether all that the replica holds is known: it was followed from its first message, or from when it was empty.
    whole: bool,
    /// Whether an event of an unknown kind came, which may have said that blocks are gone, and nothing that cleared them since.
    uncertain: bool,
}

// === impl Source ===

impl<T: Transport> Source<T> {
    /// A source in `hub` that has not seen anything yet.
    pub fn new(
        publisher: Publisher,
        transport: T,
        hub: &HubConfig,
        state: Arc<HubState>,
        metrics: ReplicaMetrics,
        scraped: LastScrape,
    ) -> Source<T> {
        metrics.reassert_suspended.set(i64::from(hub.reassert.enabled));
        metrics.incomplete.set(1);
        let now = Instant::now();
        let reader = EventReader::new(&publisher.name, metrics.clone());
        Source {
            publisher,
            transport,
            events: hub.events.clone(),
            state,
            metrics,
            continuity: Continuity::default(),
            reassertion: Reassertion::new(&hub.reassert, now),
            presence: Presence::new(hub.events.gone_after, scraped, now),
            reader,
            replay_not_before: None,
            replay_works: false,
            unanswered: false,
            proved_at: None,
            is_renewed: false,
            behind: false,
            deaf_checks: 0,
            lost_at: None,
            suspended_until: None,
            newest: None,
            newest_suspended: None,
            whole: false,
            uncertain: false,
        }
    }

    /// Follows the publisher until `stop`.
    pub async fn run(mut self, mut changed: mpsc::Receiver<ProcessChanged>, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow_forever(&mut changed) => {}
        }
    }

    async fn follow_forever(&mut self, changed: &mut mpsc::Receiver<ProcessChanged>) {
        let mut pause = self.events.reconnect_min;
        let mut doubt_ends = Some(Instant::now() + self.events.continuity_grace);
        let mut told_at = Instant::now();
        loop {
            match self.connect(doubt_ends).await {
                Ok(()) => {
                    info!(replica = self.publisher.name, "connected");
                    pause = self.events.reconnect_min;
                    self.establish(doubt_ends).await;
                    self.metrics.connected.set(1);
                    let fault = self.follow(changed).await;
                    warn!(replica = self.publisher.name, "connection lost: {fault}");
                    self.doubt();
                    self.metrics.connections_lost.inc();
                    self.metrics.connected.set(0);
                    doubt_ends = Some(Instant::now() + self.events.continuity_grace);
                }
                Err(fault) if told_at.elapsed() > UNCONNECTED_LOG => {
                    told_at = Instant::now();
                    warn!(replica = self.publisher.name, "still not connected: {fault}");
                }
                Err(fault) => debug!(replica = self.publisher.name, "not connected: {fault}"),
            }
            doubt_ends = self.wait(pause, doubt_ends).await;
            pause = (pause * 2).min(self.events.reconnect_max);
        }
    }

    /// Pauses; settles the doubt and announces the replica as gone if it is time for that meanwhile.
    async fn wait(&mut self, pause: Duration, mut doubt_ends: Option<Instant>) -> Option<Instant> {
        let resume = Instant::now() + pause;
        loop {
            if doubt_ends.is_none() {
                self.state.complete(self.publisher.index);
            }
            let next = [doubt_ends, self.presence.ends()].into_iter().flatten().fold(resume, Instant::min);
            sleep_until(next).await;
            self.reader.say_due();
            let now = Instant::now();
            if doubt_ends.is_some_and(|end| end <= now) {
                self.give_up("not proved in time that no event was missed");
                doubt_ends = None;
                continue;
            }
            if self.presence.has_ended(now) {
                self.leave();
            } else if now >= resume {
                return doubt_ends;
            }
        }
    }

    /// Connects, and announces the replica where its name points now. One that is gone has to be heard of first.
    async fn connect(&mut self, doubt_ends: Option<Instant>) -> Result<(), Fault> {
        let limit = [doubt_ends, self.presence.ends()].into_iter().flatten();
        let limit = limit.fold(Instant::now() + CONNECT_LIMIT, Instant::min);
        let resolved = timeout_at(limit, self.transport.resolve()).await.unwrap_or(Err(Fault::Silent));
        let address = resolved.inspect_err(|_| self.presence.unresolved(Instant::now()))?;
        self.presence.resolved();
        let is_there = !self.presence.is_gone() || self.presence.is_scraped(Instant::now());
        if is_there {
            self.announce(&address);
        }
        timeout_at(limit, self.transport.connect(CONNECT_LIMIT)).await.unwrap_or(Err(Fault::Silent))?;
        self.presence.heard(Instant::now());
        // What requests are to reach is what was reached.
        let reached = self.transport.reached().unwrap_or(address);
        self.announce(&reached);
        Ok(())
    }

    fn announce(&mut self, address: &str) {
        self.presence.is_back();
        if self.state.announce(self.publisher.index, address) {
            self.forget();
        }
    }

    /// Makes the state true after a connection: by a replay, else by giving up what cannot be proved.
    async fn establish(&mut self, doubt_ends: Option<Instant>) {
        self.replay_works = false;
        self.unanswered = false;
        self.deaf_checks = 0;
        self.suspended_until = None;
        self.newest = None;
        self.behind = false;
        if !self.catch_up(doubt_ends).await {
            self.give_up("not proved after connecting that no event was missed");
            self.state.complete(self.publisher.index);
            self.build().await;
        }
        self.state.complete(self.publisher.index);
    }

    /// Applies live messages until the connection is lost.
    async fn follow(&mut self, changed: &mut mpsc::Receiver<ProcessChanged>) -> Fault {
        // The publisher may have taken note of the subscription only after the replay ended.
        let mut verify_at = Instant::now() + SETTLED;
        loop {
            let reassert_at = self.reassertion.due();
            let verify_due = self.verify_due(verify_at);
            let (suspended_until, say_at) = (self.suspended_until, self.reader.due());
            // Where no replay can be asked for, a silence of events and metrics both is all that there is to go by.
            let is_silent = self.unanswered || (!self.transport.replays() && self.presence.was_scraped());
            let ends = self.presence.ends().filter(|_| is_silent);
            tokio::select! {
                biased;
                () = until(reassert_at) => {
                    self.reassert().await;
                    // Not a message: what is to be verified still is.
                    continue;
                }
                message = self.transport.next() => match message {
                    Ok(message) => self.live(message).await,
                    Err(Fault::Malformed) => {
                        self.apply_malformed();
                        // It proves nothing of those that are messages.
                        continue;
                    }
                    Err(fault) => {
                        self.presence.heard(Instant::now());
                        return fault;
                    }
                },
                Some(ProcessChanged) = changed.recv() => self.process_changed().await,
                () = until(say_at) => {
                    self.reader.say_due();
                    continue;
                }
                () = until(suspended_until) => {
                    self.resume();
                    self.build().await;
                }
                () = until(verify_due) => {
                    self.verify().await;
                    if self.deaf_checks > 1 {
                        return Fault::Silent;
                    }
                }
                () = until(ends) => {
                    if self.presence.has_ended(Instant::now()) {
                        self.leave();
                        return Fault::Silent;
                    }
                    continue;
                }
            }
            verify_at = Instant::now() + self.events.verify_idle;
        }
    }

    async fn live(&mut self, message: Published) {
        self.presence.heard(Instant::now());
        self.unanswered = false;
        self.deaf_checks = 0;
        if self.suspended_until.is_some() {
            self.newest_suspended = self.newest_suspended.max(Some(message.sequence));
            return self.metrics.skip(SkipReason::Suspended, 1);
        }
        let seen = Seen::of(message.sequence, &message.payload);
        let place = self.place(seen);
        self.newest = self.newest.max(Some(seen.sequence));
        match place {
            Place::Duplicate => return,
            Place::Next => return self.apply_live(&message, seen),
            Place::Restarted if self.is_proved() && self.continuity.is_forgotten(seen) => return,
            Place::Restarted => {}
            Place::Gap => {
                self.doubt();
                info!(replica = self.publisher.name, sequence = seen.sequence, "event messages are missing");
                self.metrics.gaps.inc();
            }
        }
        let caught_up = self.catch_up(None).await;
        if self.suspended_until.is_none() {
            self.place_again(&message, seen, caught_up);
        }
    }

    /// What becomes of a message out of order after what was missing was asked for.
    fn place_again(&mut self, message: &Published, seen: Seen, caught_up: bool) {
        match self.place(seen) {
            Place::Duplicate => {}
            Place::Next => self.apply_live(message, seen),
            Place::Gap => {
                self.give_up("missing event messages cannot be had");
                self.note_loss();
                if self.suspended_until.is_none() {
                    self.apply_live(message, seen);
                }
            }
            // The publisher is proved to be the one that was followed: the message is late.
            Place::Restarted if caught_up => {}
            Place::Restarted => {
                self.restarted();
                if seen.sequence == 0 {
                    self.newest = Some(0);
                    self.apply_live(message, seen);
                } else {
                    // It may be late all the same, and what came after it would be undone.
                    self.suspend();
                }
            }
        }
    }

    /// What a live message is. Where nothing is followed any message can be the first, but none that is late.
    fn place(&self, seen: Seen) -> Place {
        let is_late = self.continuity.last().is_none() && seen.sequence > 0 && Some(seen.sequence) < self.newest;
        if is_late { Place::Restarted } else { self.continuity.place(seen) }
    }

    async fn process_changed(&mut self) {
        info!(replica = self.publisher.name, "the engine's process is another one");
        if self.suspended_until.is_some() {
            self.resume();
            self.build().await;
        } else if !self.catch_up(None).await {
            self.give_up("the engine's process is another one");
            self.behind = self.transport.replays();
        }
    }

    /// When it is to be checked that no event was missed; none where that cannot be.
    fn verify_due(&self, verify_at: Instant) -> Option<Instant> {
        let is_possible = self.transport.replays() && self.suspended_until.is_none();
        is_possible.then(|| self.replay_not_before.map_or(verify_at, |not_before| not_before.max(verify_at)))
    }

    /// Checks in a silence that nothing was missed, and makes up for what could not be had before.
    async fn verify(&mut self) {
        let before = self.continuity.last();
        if !self.catch_up(None).await {
            self.doubt();
        } else if std::mem::take(&mut self.behind) && before.is_some() {
            self.give_up("it is built anew, with what could not be had before");
            self.build().await;
        } else if before.is_some() && self.continuity.last() != before {
            self.deaf_checks += 1;
        }
    }

    /// Says that the replica still holds what it held, if that is known.
    async fn reassert(&mut self) {
        if !self.reassertion.is_known() && self.replay_works && self.suspended_until.is_none() {
            self.catch_up(None).await;
        }
        match self.reassertion.take(Instant::now()) {
            Some(known_ms) => {
                self.state.reassert(self.publisher.index, known_ms);
                self.metrics.reassertions.inc();
            }
            None => self.doubt(),
        }
    }

    fn is_proved(&self) -> bool {
        self.proved_at.is_some_and(|at| at.elapsed() < PROOF_LASTS)
    }
}

/// Waits for a time that there may not be.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
