//! An engine's publisher, with what goes wrong between it and the hub; and the transport to it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::engine::{Engine, Moment, Random};
use crate::fingerprint::PrefixHash;
use crate::native::engine::Batch;
use crate::native::hub::transport::{Fault, Published, Transport};

/// Messages of a replay that its socket always holds.
const SOCKET_HOLDS: usize = 4;

/// What goes wrong, about once in so many times; 0: never.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Whether replays can be asked for.
    pub replays: bool,
    /// Messages that the publisher keeps.
    pub ring: usize,
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    /// Numbers taken for a message that cannot be encoded.
    pub used_up: u64,
    pub restarts: u64,
    pub disconnects: u64,
    pub refused: u64,
    pub replay_refused: u64,
    /// Replays that stop half way, without an end.
    pub replay_stops: u64,
    /// Messages left out of a replay, as by a socket that is full: never of the first.
    pub replay_drops: u64,
    /// Messages of a replay that take a while.
    pub replay_waits: u64,
    /// How long those take.
    pub replay_wait: Duration,
    pub unresolved: bool,
    /// Whether live messages are numbered as they come, so that nobody can tell that some are missing or come again.
    pub renumbers: bool,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub events: u64,
    pub batches: u64,
    pub lost: u64,
    pub doubled: u64,
    pub late: u64,
    pub used_up: u64,
    pub restarts: u64,
    pub restarts_on_one_connection: u64,
    pub disconnects: u64,
    pub connections: u64,
    pub replays: u64,
    pub replays_refused: u64,
    pub replays_stopped: u64,
    pub replay_drops: u64,
    pub overruns: u64,
}

pub struct World {
    random: Random,
    pub faults: Faults,
    pub engine: Engine,
    pub counts: Counts,
    batches: Vec<Batch>,
    ring: VecDeque<(u64, Bytes)>,
    live: VecDeque<Live>,
    /// Messages that come again once so many more have come.
    doubles: VecDeque<(u64, Moment, Published)>,
    /// Messages that went live.
    sent: u64,
    connected: bool,
    /// The first message of a life on a connection of the life before it has to arrive.
    protects_next: bool,
    /// The message that the source is dealing with, and the latest with which it is done.
    dealing_with: Option<Moment>,
    dealt_with: Moment,
}

enum Live {
    Message(Moment, Published),
    End,
}

/// A connection to a world.
#[derive(Clone)]
pub struct Line {
    world: Arc<Mutex<World>>,
    came: Arc<Notify>,
    replay: Option<Replay>,
}

#[derive(Clone)]
struct Replay {
    life: u64,
    messages: VecDeque<Published>,
    ends: bool,
}

// === impl Faults ===

impl Faults {
    pub fn random(random: &mut Random) -> Faults {
        let mut rate = |most: u64| if random.one_in(3) { 0 } else { most / 4 + random.below(most) };
        Faults {
            lost: rate(60),
            doubled: rate(60),
            late: rate(80),
            used_up: rate(900),
            restarts: rate(600),
            disconnects: rate(400),
            refused: rate(6),
            replay_refused: rate(8),
            replay_stops: rate(8),
            replay_drops: rate(60),
            replay_waits: rate(20),
            replay_wait: Duration::from_millis(5),
            replays: !random.one_in(6),
            ring: 1 << random.below(8),
            unresolved: false,
            renumbers: false,
        }
    }
}

// === impl Counts ===

impl Counts {
    fn all(&mut self) -> [&mut u64; 15] {
        let Counts { events, batches, lost, doubled, late, used_up, restarts, restarts_on_one_connection, .. } = self;
        let Counts { disconnects, connections, replays, replays_refused, replays_stopped, .. } = self;
        let Counts { replay_drops, overruns, .. } = self;
        [
            events,
            batches,
            lost,
            doubled,
            late,
            used_up,
            restarts,
            restarts_on_one_connection,
            disconnects,
            connections,
            replays,
            replays_refused,
            replays_stopped,
            replay_drops,
            overruns,
        ]
    }

    pub fn add(&mut self, other: &Counts) {
        let mut other = other.clone();
        self.all().into_iter().zip(other.all()).for_each(|(count, more)| *count += *more);
    }

    pub fn each_happened(&self) -> bool {
        self.clone().all().into_iter().all(|count| *count > 0)
    }
}

// === impl World ===

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        World {
            random: Random::new(seed ^ 0x3040),
            faults,
            engine: Engine::new(seed),
            counts: Counts::default(),
            batches: Vec::new(),
            ring: VecDeque::new(),
            live: VecDeque::new(),
            doubles: VecDeque::new(),
            sent: 0,
            connected: false,
            protects_next: false,
            dealing_with: None,
            dealt_with: Moment::default(),
        }
    }

    /// Whether the hub may still credit a block that the engine gave up: it was not told, or is just being told.
    pub fn may_be_credited(&self, hash: PrefixHash) -> bool {
        self.engine.given_up(hash).is_some_and(|moment| self.dealt_with < moment)
    }

    /// The engine does something, and something may go wrong. True if it started over.
    pub fn step(&mut self) -> bool {
        let restarts = self.random.one_in(self.faults.restarts);
        if restarts {
            let disconnects = self.random.one_in(2);
            self.restart(disconnects);
        } else if self.random.one_in(self.faults.disconnects) {
            self.disconnect();
        }
        let protects = std::mem::take(&mut self.protects_next);
        let is_lost = !protects && self.random.one_in(self.faults.lost);
        let is_used_up = !protects && self.random.one_in(self.faults.used_up);
        self.publish(is_used_up, is_lost, protects);
        restarts
    }

    pub fn restart(&mut self, disconnects: bool) {
        self.counts.restarts += 1;
        self.engine.restart();
        self.ring.clear();
        if disconnects {
            self.disconnect();
        } else {
            self.counts.restarts_on_one_connection += 1;
            self.protects_next = true;
        }
    }

    pub fn disconnect(&mut self) {
        self.counts.disconnects += 1;
        if std::mem::take(&mut self.connected) {
            self.live.push_back(Live::End);
        }
    }

    pub fn publish(&mut self, is_used_up: bool, is_lost: bool, is_first: bool) {
        let (moment, batch) = self.engine.step();
        self.counts.batches += 1;
        self.counts.events += batch.events.len() as u64;
        if is_used_up {
            self.counts.used_up += 1;
            return;
        }
        let payload = Bytes::copy_from_slice(&(self.batches.len() as u64).to_be_bytes());
        self.batches.push(batch);
        if self.ring.len() >= self.faults.ring {
            self.counts.overruns += 1;
            self.ring.pop_front();
        }
        self.ring.push_back((moment.sequence, payload.clone()));
        if is_lost {
            self.counts.lost += 1;
            return;
        }
        if self.connected {
            self.deliver(moment, Published { sequence: moment.sequence, payload }, is_first);
        }
    }

    fn deliver(&mut self, moment: Moment, message: Published, is_first: bool) {
        let batches = self.counts.batches;
        while let Some((_, of, double)) = self.doubles.pop_front_if(|(due, ..)| *due <= batches) {
            if of.life == moment.life {
                self.counts.doubled += 1;
                self.send(of, double);
            }
        }
        if self.random.one_in(self.faults.doubled) {
            let due = self.counts.batches + self.random.below(4);
            self.doubles.push_back((due, moment, message.clone()));
        }
        self.send(moment, message);
        let last = self.live.len() - 1;
        if !is_first && self.random.one_in(self.faults.late) {
            let earlier = last.saturating_sub(1 + self.random.below(3) as usize);
            let all_of_one_life = self
                .live
                .range(earlier..)
                .all(|live| matches!(live, Live::Message(other, _) if other.life == moment.life && other.sequence > 0));
            if all_of_one_life && earlier < last {
                self.counts.late += 1;
                self.live.swap(earlier, last);
            }
        }
    }

    fn send(&mut self, moment: Moment, mut message: Published) {
        if self.faults.renumbers {
            message.sequence = self.sent;
        }
        self.sent += 1;
        self.live.push_back(Live::Message(moment, message));
    }

    fn take(&mut self) -> Option<Result<Published, Fault>> {
        self.dealt_with = self.dealing_with.take().map_or(self.dealt_with, |moment| moment.max(self.dealt_with));
        match self.live.pop_front()? {
            Live::Message(moment, message) => {
                self.dealing_with = Some(moment);
                Some(Ok(message))
            }
            Live::End => Some(Err(Fault::Lost("the connection ended".into()))),
        }
    }

    fn replay(&mut self, first: u64) -> Result<Replay, Fault> {
        self.counts.replays += 1;
        if self.random.one_in(self.faults.replay_refused) {
            self.counts.replays_refused += 1;
            return Err(Fault::Lost("refused".into()));
        }
        let mut messages = VecDeque::new();
        for (sequence, payload) in self.ring.iter().filter(|(sequence, _)| *sequence >= first) {
            if messages.len() >= SOCKET_HOLDS && self.random.one_in(self.faults.replay_drops) {
                self.counts.replay_drops += 1;
            } else {
                messages.push_back(Published { sequence: *sequence, payload: payload.clone() });
            }
        }
        let stops = self.random.one_in(self.faults.replay_stops);
        if stops {
            self.counts.replays_stopped += 1;
            messages.truncate(self.random.below(messages.len() as u64 + 1) as usize);
        }
        Ok(Replay { life: self.engine.life, messages, ends: !stops })
    }
}

// === impl Line ===

impl Line {
    pub fn new(world: World) -> Line {
        Line { world: Arc::new(Mutex::new(world)), came: Arc::new(Notify::new()), replay: None }
    }

    pub fn act<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let result = act(&mut self.lock());
        self.came.notify_one();
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A while passes, if it does for this message.
    async fn linger(&self) {
        let wait = {
            let mut world = self.lock();
            let waits = world.faults.replay_waits;
            world.random.one_in(waits).then_some(world.faults.replay_wait)
        };
        if let Some(wait) = wait {
            sleep(wait).await;
        }
    }
}

impl Transport for Line {
    fn replays(&self) -> bool {
        self.lock().faults.replays
    }

    async fn resolve(&mut self) -> Result<String, Fault> {
        match self.lock().faults.unresolved {
            true => Err(Fault::Lost("no such name".into())),
            false => Ok("10.0.0.1:80".into()),
        }
    }

    async fn connect(&mut self, _limit: Duration) -> Result<(), Fault> {
        let mut world = self.lock();
        let refused = world.faults.refused;
        if world.random.one_in(refused) {
            return Err(Fault::Lost("refused".into()));
        }
        world.counts.connections += 1;
        world.live.clear();
        world.doubles.clear();
        world.connected = true;
        world.protects_next = false;
        Ok(())
    }

    async fn next(&mut self) -> Result<Published, Fault> {
        loop {
            let taken = self.lock().take();
            match taken {
                Some(taken) => return taken,
                None => self.came.notified().await,
            }
        }
    }

    async fn request_replay(&mut self, first: u64, _limit: Duration) -> Result<(), Fault> {
        self.replay = None;
        self.linger().await;
        let replay = self.lock().replay(first)?;
        self.replay = Some(replay);
        Ok(())
    }

    async fn next_replayed(&mut self, limit: Duration) -> Result<Option<Published>, Fault> {
        self.linger().await;
        let life = self.lock().engine.life;
        let Some(replay) = &mut self.replay else { return Err(Fault::Lost("no replay".into())) };
        if replay.life != life {
            return Err(Fault::Lost("the engine has ended".into()));
        }
        match replay.messages.pop_front() {
            Some(message) => Ok(Some(message)),
            None if replay.ends => Ok(None),
            None => {
                sleep(limit).await;
                Err(Fault::Silent)
            }
        }
    }

    fn end_replay(&mut self) {
        self.replay = None;
    }

    fn decode(&self, payload: &Bytes) -> Result<Batch, String> {
        let number =
            <[u8; 8]>::try_from(payload.as_ref()).map(u64::from_be_bytes).map_err(|error| error.to_string())?;
        self.lock().batches.get(number as usize).cloned().ok_or_else(|| "no such batch".into())
    }
}
