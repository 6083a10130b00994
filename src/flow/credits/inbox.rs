//! The leader's end of the queue.
//!
//! What is in the queue outlives the leader: the next one registers the same queue and finds what the last one did not
//! take. So that it cannot grow while nobody keeps up with it, a queue that has not been found empty for
//! [`PATIENCE_TICKS`] is emptied.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::outbox::{Outbox, credits_of};
use crate::config::Limits;
use crate::flow::follower::Follower;
use crate::flow::keys::Keys;
use crate::flow::lease::{Deposed, Lease};
use crate::flow::metrics;
use crate::host::{Host, QueueToken};
use crate::index::Index;
use crate::index::log::{Credits, Incarnation};
use crate::observation::{BlockKey, Counted, Observation, ReplicaSlot, ScopeSlot};

/// Ticks from when the queue was found empty until it is looked into again: a commit takes a slot of the ring.
const PAUSE_TICKS: u32 = 10;
/// Ticks without its being found empty after which the queue is emptied.
const PATIENCE_TICKS: u32 = 30;
/// How long a tick may take credits out and commit them, but for what one part takes and one commit.
const COUNT_NS: u64 = 300_000;
/// How long a tick may empty the queue.
const EMPTY_NS: u64 = 500_000;
/// Bytes that a part takes in a segment beside its keys and counts, about.
const PART_BYTES: usize = 48;

/// What a leader has of the workers' credits.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Once it is registered.
    queue: Option<QueueToken>,
    /// Since the queue was last found empty.
    ticks: u32,
    /// Taken out and not committed, of this life of the log.
    taken: VecDeque<Counted>,
    incarnation: Option<Incarnation>,
}

/// Counts to commit together.
#[derive(Debug, Default)]
struct Counting {
    records: Vec<Observation>,
    /// Hits in `records` that the index does not have yet.
    ahead: HashMap<(ScopeSlot, ReplicaSlot), HashMap<BlockKey, u32>>,
    bytes: usize,
    credits: u64,
}

enum Next {
    /// A part to count.
    Part(Counted),
    /// A batch that is of no use; there may be more.
    Dropped,
    /// There is no more.
    Nothing,
}

// === impl Inbox ===

impl Inbox {
    /// The root context that registered the queue is done: another must.
    pub fn unregister(&mut self) {
        self.queue = None;
    }

    /// Once a tick: registers the queue, and keeps it from growing.
    pub fn tick(&mut self, host: &impl Host, keys: &Keys) {
        self.ticks = self.ticks.saturating_add(1);
        self.queue = self.queue.or_else(|| host.register_queue(&keys.credits()));
        if self.ticks <= PATIENCE_TICKS {
            return;
        }
        let until_ns = host.now_ns().saturating_add(EMPTY_NS);
        let mut dropped = 0;
        while host.now_ns() < until_ns {
            if self.queue.and_then(|queue| host.dequeue(queue)).is_none() {
                self.ticks = 0;
                break;
            }
            dropped += 1;
        }
        if dropped > 0 {
            host.count(&metrics::credit_batches_dropped("too_many"), dropped);
        }
    }

    /// Commits what the queue and this VM's own `outbox` have, as far as a tick's time allows.
    ///
    /// # Errors
    /// When another VM leads; what was about to be committed is lost.
    pub fn commit(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        outbox: &mut Outbox,
        limits: &Limits,
    ) -> Result<(), Deposed> {
        self.belongs_to(host, lease.head().incarnation);
        if self.ticks < PAUSE_TICKS {
            return Ok(());
        }
        let until_ns = host.now_ns().saturating_add(COUNT_NS);
        let mut is_over = false;
        while !is_over && lease.has_room() {
            let Some(index) = follower.index_of(lease.head()) else { break };
            let mut counting = Counting::default();
            let mut lost = 0;
            while !is_over && counting.bytes < limits.segment_bytes {
                match self.next(host, outbox, lease.head().incarnation) {
                    Next::Part(part) => lost += counting.add(index, &part),
                    Next::Dropped => {}
                    Next::Nothing => is_over = true,
                }
                is_over |= host.now_ns() >= until_ns;
            }
            if lost > 0 {
                host.count(&metrics::credits_lost("not_held"), lost);
            }
            if counting.records.is_empty() {
                continue;
            }
            if lease.commit(host, keys, follower, counting.records, |_| {}).is_err() {
                host.count(&metrics::credits_lost("deposed"), counting.credits);
                return Err(Deposed);
            }
            host.count(metrics::CREDITS, counting.credits);
        }
        Ok(())
    }

    /// The next part: of the batch at hand, else of this VM's own, else out of the queue.
    fn next(&mut self, host: &impl Host, outbox: &mut Outbox, incarnation: Incarnation) -> Next {
        if self.taken.is_empty() {
            self.taken.extend(outbox.take_own(incarnation));
        }
        if let Some(part) = self.taken.pop_front() {
            return Next::Part(part);
        }
        let Some(bytes) = self.queue.and_then(|queue| host.dequeue(queue)) else {
            self.ticks = 0;
            return Next::Nothing;
        };
        match Credits::decode(&bytes) {
            Ok(batch) if batch.incarnation == incarnation => self.taken.extend(batch.hits),
            Ok(_) => host.count(&metrics::credit_batches_dropped("other_log"), 1),
            Err(_) => host.count(&metrics::credit_batches_dropped("unreadable"), 1),
        }
        self.taken.pop_front().map_or(Next::Dropped, Next::Part)
    }

    /// Drops what is in the numbers of another life of the log.
    fn belongs_to(&mut self, host: &impl Host, incarnation: Incarnation) {
        if self.incarnation.replace(incarnation) != Some(incarnation) && !self.taken.is_empty() {
            let lost = self.taken.drain(..).map(|part| credits_of(&part)).sum();
            host.count(&metrics::credits_lost("other_log"), lost);
        }
    }
}

// === impl Counting ===

impl Counting {
    /// Adds the counts that `part` makes of those in the index and those added before. Returns how many credits are for
    /// what is no longer held.
    fn add(&mut self, index: &Index, part: &Counted) -> u64 {
        let asked = credits_of(part);
        let by = part.replicas.iter().flat_map(|at| &at.counts).copied().next().unwrap_or(0);
        let hits: Vec<(ReplicaSlot, usize)> = part.replicas.iter().map(|at| (at.replica, at.counts.len())).collect();
        let Some(mut counted) = index.counted(part.scope, &part.keys, &hits, by) else { return asked };
        let mut credits = 0;
        for at in &mut counted.replicas {
            let ahead = self.ahead.entry((counted.scope, at.replica)).or_default();
            for (key, count) in counted.keys.iter().zip(&mut at.counts).filter(|(_, count)| **count > 0) {
                match ahead.get_mut(key) {
                    Some(ahead) => {
                        *count = count.saturating_add(*ahead);
                        *ahead = ahead.saturating_add(by);
                    }
                    None => {
                        ahead.insert(key.clone(), by);
                    }
                }
                credits += u64::from(by);
            }
            self.bytes += at.counts.len();
        }
        self.bytes += PART_BYTES + counted.keys.iter().map(BlockKey::width).sum::<usize>();
        self.credits += credits;
        self.records.push(Observation::Counted(counted));
        asked.saturating_sub(credits)
    }
}
