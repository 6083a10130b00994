//! Follows one replica's event publisher into the hub's state.
//!
//! In: the replica's publisher and its replay socket. Effects: the replica is announced, its events are applied in order,
//! each once, and whenever it is not certain that none was missed, the replica is cleared.
//!
//! A replay always starts at the last message applied, not after it: if that comes back unchanged, the publisher is
//! still the same one and everything after it follows; if not, the engine started over or the message has left the
//! publisher's ring, and the replica is cleared and built anew from whatever the ring holds. While a replay runs, live
//! messages wait in the socket; those it already brought are recognized by number and digest.
//!
//! A replay is asked for on every connection, at a gap, when numbers go back, when the engine's process is found to be
//! another one, and after some silence, since the last messages before a silence can be lost too.
//!
//! Each message that goes on from the one before it, and each replay that ends, proves that none was missed so far. At
//! intervals that is passed on: the replica still holds what it held, as of the latest proof. Without one since the last
//! time a replay is asked for; where there is none to be had, nothing is said until the next message.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::clock::unix_ms;
use super::config::{EventsConfig, HubConfig, ReplicaConfig};
use super::continuity::{Continuity, Place, Seen};
use super::event_reader::EventReader;
use super::followed::ReplicaIndex;
use super::metrics::ReplicaMetrics;
use super::reassert::Reassertion;
use super::sockets::{Fault, Published, Replay, Subscriber};
use super::state::HubState;
use crate::native::engine::{Dialect, SkipReason, decode};

/// How long one attempt to connect may take, the name lookup included.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long after a connection the first check is made that no event was missed.
const SETTLED: Duration = Duration::from_millis(250);
/// The most requests in one catch-up; an engine's ring of 10,000 batches takes about ten if its socket drops answers.
const MAX_ROUNDS: usize = 64;

/// The process behind the replica's metrics is another one than before.
#[derive(Clone, Copy, Debug)]
pub struct ProcessChanged;

/// Follows one replica until it is stopped.
pub struct Source {
    index: ReplicaIndex,
    config: ReplicaConfig,
    events: EventsConfig,
    state: Arc<HubState>,
    metrics: ReplicaMetrics,
    continuity: Continuity,
    reassertion: Reassertion,
    reader: EventReader,
    /// No replay is asked for before this.
    replay_not_before: Option<Instant>,
    /// Whether a replay was answered on this connection, so that silence means something.
    replay_works: bool,
}

/// How one request for a replay went.
enum Round {
    /// Everything up to the publisher's latest message is applied.
    Complete,
    /// Some was applied, and more is to come.
    Partial,
    /// The publisher does not have what was applied last.
    Disproved,
    /// No usable answer.
    Failed(Fault),
}

// === impl Source ===

impl Source {
    /// A source of `config`'s replica in `hub` that has not seen anything yet.
    pub fn new(
        index: ReplicaIndex,
        config: ReplicaConfig,
        hub: &HubConfig,
        state: Arc<HubState>,
        metrics: ReplicaMetrics,
    ) -> Source {
        metrics.reassert_suspended.set(i64::from(hub.reassert.enabled));
        let reader = EventReader::new(&config.id, metrics.clone());
        Source {
            index,
            config,
            events: hub.events.clone(),
            state,
            metrics,
            continuity: Continuity::default(),
            reassertion: Reassertion::new(&hub.reassert, Instant::now()),
            reader,
            replay_not_before: None,
            replay_works: false,
        }
    }

    /// Follows the replica until `stop`.
    pub async fn run(mut self, mut changed: mpsc::Receiver<ProcessChanged>, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow_forever(&mut changed) => {}
        }
    }

    async fn follow_forever(&mut self, changed: &mut mpsc::Receiver<ProcessChanged>) {
        let mut pause = self.events.reconnect_min;
        let mut doubt_ends = Some(Instant::now() + self.events.continuity_grace);
        loop {
            match self.connect(doubt_ends).await {
                Ok(mut subscriber) => {
                    info!(replica = self.config.id, endpoint = self.config.kv_events, "connected");
                    pause = self.events.reconnect_min;
                    self.establish(doubt_ends).await;
                    self.metrics.connected.set(1);
                    let fault = self.follow(&mut subscriber, changed).await;
                    warn!(replica = self.config.id, "connection lost: {fault}");
                    self.doubt();
                    self.metrics.connections_lost.inc();
                    self.metrics.connected.set(0);
                    doubt_ends = Some(Instant::now() + self.events.continuity_grace);
                }
                Err(fault) => debug!(replica = self.config.id, "not connected: {fault}"),
            }
            doubt_ends = self.wait(pause, doubt_ends).await;
            pause = (pause * 2).min(self.events.reconnect_max);
        }
    }

    /// Pauses, and settles the doubt if it ends meanwhile.
    async fn wait(&mut self, pause: Duration, doubt_ends: Option<Instant>) -> Option<Instant> {
        let resume = Instant::now() + pause;
        if let Some(end) = doubt_ends.filter(|end| *end <= resume) {
            sleep_until(end).await;
            self.give_up("not proved in time that no event was missed");
            self.state.complete(self.index);
            sleep_until(resume).await;
            return None;
        }
        if doubt_ends.is_none() {
            self.state.complete(self.index);
        }
        sleep(pause).await;
        doubt_ends
    }

    /// Announces the replica where its name points now, and subscribes.
    async fn connect(&mut self, doubt_ends: Option<Instant>) -> Result<Subscriber, Fault> {
        let limit = Instant::now() + CONNECT_LIMIT;
        let limit = doubt_ends.map_or(limit, |end| limit.min(end));
        let connecting = async {
            let address = resolve(&self.config.address).await?;
            if self.state.announce(self.index, &address) {
                self.continuity.reset();
            }
            Subscriber::connect(&self.config.kv_events, &self.config.topic, CONNECT_LIMIT).await
        };
        timeout_at(limit, connecting).await.unwrap_or(Err(Fault::Silent))
    }

    /// Makes the state true after a connection: by a replay, else by giving up what cannot be proved.
    async fn establish(&mut self, doubt_ends: Option<Instant>) {
        self.replay_works = false;
        if !self.catch_up(doubt_ends).await {
            self.give_up("not proved after connecting that no event was missed");
            self.state.complete(self.index);
            self.catch_up(None).await;
        }
        self.state.complete(self.index);
    }

    /// Applies live messages until the connection is lost.
    async fn follow(&mut self, subscriber: &mut Subscriber, changed: &mut mpsc::Receiver<ProcessChanged>) -> Fault {
        // The publisher may have taken note of the subscription only after the replay ended.
        let mut verify_at = Instant::now() + SETTLED;
        loop {
            let reassert_at = self.reassertion.due();
            tokio::select! {
                biased;
                () = sleep_until(reassert_at.unwrap_or(verify_at)), if reassert_at.is_some() => {
                    if !self.reassert().await {
                        return Fault::Silent;
                    }
                    // Not a message: what is to be verified still is.
                    continue;
                }
                message = subscriber.next() => match message {
                    Ok(message) => self.live(message).await,
                    Err(Fault::Malformed) => {
                        self.doubt();
                        self.metrics.skip(SkipReason::MalformedBatch, 1);
                    }
                    Err(fault) => return fault,
                },
                Some(ProcessChanged) = changed.recv() => {
                    info!(replica = self.config.id, "the engine's process is another one");
                    if !self.catch_up(None).await {
                        self.give_up("the engine's process is another one");
                    }
                }
                () = sleep_until(verify_at), if self.replay_works => {
                    if !self.catch_up(None).await {
                        return Fault::Silent;
                    }
                }
            }
            verify_at = Instant::now() + self.events.verify_idle;
        }
    }

    async fn live(&mut self, message: Published) {
        let seen = Seen::of(message.sequence, &message.payload);
        match self.continuity.place(seen) {
            Place::Duplicate => return,
            Place::Next => return self.apply_live(&message, seen),
            Place::Gap => {
                self.doubt();
                info!(replica = self.config.id, sequence = seen.sequence, "event messages are missing");
                self.metrics.gaps.inc();
            }
            Place::Restarted => self.restarted(),
        }
        self.catch_up(None).await;
        match self.continuity.place(seen) {
            Place::Duplicate => {}
            Place::Next => self.apply_live(&message, seen),
            Place::Gap | Place::Restarted => {
                self.give_up("missing event messages cannot be had");
                self.apply_live(&message, seen);
            }
        }
    }

    /// Says that the replica still holds what it held. False if it should be possible to know that, and is not.
    async fn reassert(&mut self) -> bool {
        let is_up_to_date = self.reassertion.is_known() || !self.replay_works || self.catch_up(None).await;
        match self.reassertion.take(Instant::now()) {
            Some(known_ms) => {
                self.state.reassert(self.index, known_ms);
                self.metrics.reassertions.inc();
            }
            None => self.doubt(),
        }
        is_up_to_date
    }

    /// No event that the engine published before `at_ms`, Unix time in ms, was missed.
    fn known(&mut self, at_ms: u64) {
        self.reassertion.known(at_ms);
        self.metrics.reassert_suspended.set(0);
    }

    /// Events may have been missed.
    fn doubt(&mut self) {
        self.reassertion.doubt();
        self.metrics.reassert_suspended.set(i64::from(self.reassertion.due().is_some()));
    }

    /// Applies what the publisher's ring has after the last message applied. False if that cannot be had; what was
    /// applied is then still there, but nothing is certain.
    async fn catch_up(&mut self, doubt_ends: Option<Instant>) -> bool {
        let Some(endpoint) = self.config.kv_replay.clone() else {
            // Without a replay only a publisher that was not followed before can be trusted.
            return self.continuity.last().is_none();
        };
        if self.replay_not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return false;
        }
        for _ in 0..MAX_ROUNDS {
            self.metrics.replays.inc();
            let asked_ms = unix_ms();
            match self.round(&endpoint, doubt_ends).await {
                Round::Complete => {
                    self.known(asked_ms);
                    self.replay_works = true;
                    self.replay_not_before = None;
                    return true;
                }
                Round::Partial => {}
                Round::Disproved => self.restarted(),
                Round::Failed(fault) => {
                    warn!(replica = self.config.id, endpoint, "replay failed: {fault}");
                    break;
                }
            }
        }
        self.metrics.replays_failed.inc();
        if doubt_ends.is_none() {
            self.replay_not_before = Some(Instant::now() + self.events.replay_cooldown);
        }
        false
    }

    async fn round(&mut self, endpoint: &str, doubt_ends: Option<Instant>) -> Round {
        let mut unproved = self.continuity.last();
        let first = unproved.map_or(0, |last| last.sequence);
        let limit = self.limit(unproved.and(doubt_ends));
        let mut replay = match Replay::request(endpoint, first, limit).await {
            Ok(replay) => replay,
            Err(fault) => return Round::Failed(fault),
        };
        let mut advanced = false;
        loop {
            let message = match replay.next(self.limit(unproved.and(doubt_ends))).await {
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
                Place::Gap => self.give_up("the engine has lost event messages"),
                Place::Next => {}
            }
            self.apply(&message, seen, Some(unix_ms()));
            advanced = true;
        }
    }

    fn limit(&self, doubt_ends: Option<Instant>) -> Duration {
        let left = doubt_ends.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        self.events.replay_timeout.min(left)
    }

    /// Applies a message as it comes. All before it were applied, or given up with what they may have said.
    fn apply_live(&mut self, message: &Published, seen: Seen) {
        self.apply(message, seen, None);
        self.known(unix_ms());
    }

    /// Applies a message; one that is replayed as of the time the engine made it.
    fn apply(&mut self, message: &Published, seen: Seen, replayed_at_ms: Option<u64>) {
        self.continuity.applied(seen);
        self.metrics.last_sequence.set(i64::try_from(seen.sequence).unwrap_or(i64::MAX));
        let decoded = decode(&message.payload, &Dialect::of(self.config.engine)).map_err(|error| error.to_string());
        let batch = self.reader.read(seen.sequence, decoded);
        let made_ms = batch.timestamp.map(|seconds| (seconds * 1_000.0) as u64).filter(|made_ms| *made_ms > 0);
        made_ms.iter().for_each(|made_ms| self.metrics.made(*made_ms, replayed_at_ms.is_none()));
        let seen_ms = match replayed_at_ms {
            Some(now_ms) => made_ms.unwrap_or(now_ms).min(now_ms),
            None => unix_ms(),
        };
        let tally = self.state.apply(self.index, &batch.events, seen_ms);
        self.reader.applied(&tally);
    }

    fn restarted(&mut self) {
        info!(replica = self.config.id, "the publisher started over, or its ring has moved on");
        self.metrics.restarts.inc();
        self.give_up("the publisher started over");
    }

    /// Forgets what the replica held and what was followed; it is built anew from what comes next.
    fn give_up(&mut self, why: &str) {
        if self.continuity.last().is_some() {
            warn!(replica = self.config.id, "cleared: {why}");
            self.metrics.count(&self.state.clear(self.index));
        }
        self.continuity.reset();
        self.doubt();
        self.metrics.last_sequence.set(-1);
    }
}

/// The first address of `host:port`, as Envoy writes it.
async fn resolve(address: &str) -> Result<String, Fault> {
    let mut addresses = tokio::net::lookup_host(address)
        .await
        .map_err(|error| Fault::Lost(format!("address `{address}` cannot be resolved: {error}")))?;
    let first = addresses.next().ok_or_else(|| Fault::Lost(format!("address `{address}` has no IP address")))?;
    Ok(first.to_string())
}
