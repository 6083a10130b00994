//! Leading: what the VM that holds the lease does.
//!
//! A new leader first catches up with the log. Then it keeps the stream to the hub open, commits what it hears, rewrites
//! pages so that the ring can go on, mends what others wrote over, and renews the lease every tick. [`Deposed`] ends it.

use super::credits::{Inbox, Outbox};
use super::eviction::{Evictor, counts_hits};
use super::follower::Follower;
use super::ingest::{Heard, Ingest, Refused};
use super::keys::Keys;
use super::lease::{Checkpoint, Deposed, Lease, set_position};
use super::metrics::{self, Refusal, Undercount};
use super::models::keeper::Keeper;
use super::observer::Observer;
use super::pager::Pager;
use super::scrub::Scrub;
use crate::config::{FilterConfig, Limits};
use crate::host::{Host, Level, StreamToken};
use crate::index::log::{Head, Incarnation};
use crate::observation::{Scope, Subscription};
use crate::wire;

/// Ticks without progress after which a leader gives a log up that it cannot read.
const UNREADABLE_TICKS: u32 = 50;
/// Stands for any time at which the hub was heard and that is too long ago.
const LONG_AGO_MS: u64 = 1;
/// A VM may have 1 GiB; beyond this much nothing more is taken in, so that what requests need is left.
const MAX_VM_BYTES: u64 = 960 * 1024 * 1024;
/// A page is looked at with every tick for so many that there are.
const PAGES_A_LOOK: u32 = 2_048;
/// Pairs of a few messages.
const AHEAD_PAIRS: u64 = 16_384;
/// A committed message's worth of changes waits at most until the next tick; alone, it is committed at once if the last
/// commit was this long ago.
const COMMIT_PAUSE_MS: u64 = 10;
/// After a longer silence the hub is asked for everything: what it re-asserted meanwhile may have expired here, and would not be
/// told again. Re-assertions come every 30 s. A clock that is set is a silence too, forward or back.
const RESUME_WITHIN_MS: u64 = 60_000;

/// A VM that holds the lease.
#[derive(Debug)]
pub struct Leader {
    lease: Lease,
    stage: LeadStage,
    inbox: Inbox,
}

#[derive(Debug)]
enum LeadStage {
    CatchingUp { ticks_without_progress: u32, applied: u64 },
    Ready(Box<Ready>),
}

/// A leader that has caught up.
#[derive(Debug)]
struct Ready {
    checkpoint: Checkpoint,
    scrub: Scrub,
    /// The log cannot be read up to here: it must begin after it, once every page covers it.
    unreadable_to: u64,
    ingest: Ingest,
    pager: Pager,
    evictor: Evictor,
    observer: Observer,
    keeper: Keeper,
    committed_ms: u64,
    /// When the hub was last heard.
    heard_ms: u64,
    /// When the clock was last looked at.
    looked_ms: u64,
    refused: Refused,
}

// === impl Leader ===

impl Leader {
    /// Leads with a lease just claimed; the log has to be caught up with first.
    pub fn new(lease: Lease) -> Leader {
        Leader { lease, stage: LeadStage::beginning(), inbox: Inbox::default() }
    }

    /// The proxy closed a stream.
    pub fn on_stream_closed(&mut self, host: &impl Host, token: StreamToken) {
        if let LeadStage::Ready(ready) = &mut self.stage {
            ready.observer.closed(host, token);
        }
    }

    /// Counts what was delivered here and in the other VMs, after the rest of a tick.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn count_hits(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        outbox: &mut Outbox,
        limits: &Limits,
    ) -> Result<(), Deposed> {
        self.inbox.tick(host, keys);
        match self.stage {
            LeadStage::CatchingUp { .. } => Ok(()),
            LeadStage::Ready(_) => self.inbox.commit(host, keys, &mut self.lease, follower, outbox, limits),
        }
    }

    /// Whether there is work that the last step had no time for: the log, or what was heard.
    pub fn has_work_left(&self) -> bool {
        match &self.stage {
            LeadStage::CatchingUp { ticks_without_progress, .. } => *ticks_without_progress == 0,
            LeadStage::Ready(ready) => {
                ready.ingest.queued_bytes() > 0
                    || ready.keeper.has_work_left()
                    || ready.oldest_page_is_due(self.lease.head())
            }
        }
    }

    /// The head of the log as this leader last wrote it.
    pub fn head(&self) -> &Head {
        self.lease.head()
    }

    /// Gives the stream up, and the orders of what goes. What was heard and not committed is asked for again.
    pub fn stop_observing(&mut self, host: &impl Host, follower: &mut Follower) {
        self.inbox.give_up(host);
        follower.stop_journal();
        if let LeadStage::Ready(ready) = &mut self.stage {
            ready.observer.give_up(host);
            self.stage = LeadStage::beginning();
        }
    }

    /// A tick: renews the lease, commits what was heard, keeps pages and stream in order.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn tick(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        serves: bool,
        config: &FilterConfig,
    ) -> Result<(), Deposed> {
        let until_ns = host.now_ns().saturating_add(config.limits.max_step_ns() / 2);
        match &mut self.stage {
            LeadStage::CatchingUp { .. } => {
                let now_ms = host.now_ms();
                self.lease.renew(host, keys, |head| {
                    head.leader_serves = serves;
                    head.heard_ms = aged(head.heard_ms, now_ms, config.freshness.stale_after_ms);
                })?;
                self.catch_up(host, keys, follower, config, until_ns)
            }
            LeadStage::Ready(ready) => {
                ready.keep_time(host, config.freshness.stale_after_ms);
                ready.keep_observing(host, config);
                ready.commit_queued(host, keys, &mut self.lease, follower, config, until_ns)?;
                follower.serve_what_is_built(self.lease.head());
                ready.scrub(host, keys, &mut self.lease, follower)?;
                let step_ns = config.limits.max_step_ns();
                ready.checkpoint(host, keys, &mut self.lease, follower, (step_ns, until_ns))?;
                if let Some(index) = follower.index_of(self.lease.head()) {
                    ready.keeper.tick(host, keys, &self.lease, index.dictionary(), &ready.observer)?;
                }
                ready.renew(host, keys, &mut self.lease, serves, config.freshness.stale_after_ms)?;
                ready.report(host, &self.lease, follower);
                Ok(())
            }
        }
    }

    fn catch_up(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        config: &FilterConfig,
        until_ns: u64,
    ) -> Result<(), Deposed> {
        let LeadStage::CatchingUp { ticks_without_progress, applied } = &mut self.stage else { return Ok(()) };
        let head = self.lease.head();
        if follower.follow(host, keys, head, || host.now_ns() >= until_ns)
            && let Some(index) = follower.index_of(head)
        {
            let ready = Ready {
                checkpoint: Checkpoint::new(index, head),
                scrub: Scrub::default(),
                unreadable_to: 0,
                ingest: Ingest::new(head, index, ceiling(&config.limits), config.freshness.stale_after_ms),
                pager: Pager::new(index.pages(), config.limits.max_index_entries as u64),
                evictor: Evictor::default(),
                observer: Observer::new(),
                keeper: Keeper::default(),
                committed_ms: 0,
                heard_ms: head.heard_ms,
                looked_ms: host.now_ms(),
                refused: Refused::default(),
            };
            self.stage = LeadStage::Ready(Box::new(ready));
            return Ok(());
        }
        let progress = follower.progress();
        // Beginning again and again, because a page is missing that the log cannot make up for, is no progress.
        *ticks_without_progress = if progress > *applied { 0 } else { *ticks_without_progress + 1 };
        *applied = progress.max(*applied);
        if *ticks_without_progress < UNREADABLE_TICKS {
            return Ok(());
        }
        host.count(metrics::LOG_RESTARTS, 1);
        host.log(Level::Warn, "the shared log cannot be read: beginning a new one");
        let term = head.term.wrapping_add(1);
        let fresh = new_log(host, term, &config.limits);
        self.stage = LeadStage::beginning();
        self.lease.renew(host, keys, |head| *head = fresh)
    }

    /// A message came over a stream.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn hear(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        token: StreamToken,
        bytes: &[u8],
        config: &FilterConfig,
    ) -> Result<(), Deposed> {
        let LeadStage::Ready(ready) = &mut self.stage else { return Ok(()) };
        // Reading the message counts.
        let until_ns = host.now_ns().saturating_add(config.limits.max_step_ns() / 2);
        let now_ms = host.now_ms();
        let heard = Heard { stream: token, at_ms: now_ms };
        let Some(index) = follower.index_of(self.lease.head()) else { return Ok(()) };
        ready.keep_time(host, config.freshness.stale_after_ms);
        if !ready.observer.heard(host, token) {
            return Ok(());
        }
        let could_resume = ready.ingest.position().is_some();
        let accepted = wire::decode_stream_message(bytes)
            .map_err(|malformed| malformed.to_string())
            .and_then(|message| ready.ingest.accept(message, index, heard).map_err(|violation| violation.to_string()));
        let is_refused = accepted.is_err();
        if let Err(problem) = accepted {
            host.count(metrics::STREAM_REFUSED, 1);
            host.log(Level::Warn, &format!("the hub's stream is given up and begun anew: {problem}"));
            ready.ingest.start_over();
            ready.observer.give_up(host);
        }
        // A message that is refused, or a reset instead of what was asked for: something was missed.
        if could_resume && ready.ingest.position().is_none() {
            host.count(&metrics::known_undercount(Undercount::Gap), 1);
        }
        if is_refused {
            return Ok(());
        }
        ready.heard_ms = now_ms;
        let due = now_ms.saturating_sub(ready.committed_ms) >= COMMIT_PAUSE_MS;
        if due || ready.ingest.queued_bytes() >= config.limits.segment_bytes {
            ready.commit_queued(host, keys, &mut self.lease, follower, config, until_ns)?;
        }
        Ok(())
    }
}

// === impl LeadStage ===

impl LeadStage {
    fn beginning() -> LeadStage {
        LeadStage::CatchingUp { ticks_without_progress: 0, applied: 0 }
    }
}

// === impl Ready ===

impl Ready {
    /// Asks the hub for everything where time says nothing of what may have expired: with every look, so that nothing that is
    /// heard hides that the clock was set.
    fn keep_time(&mut self, host: &impl Host, stale_after_ms: u64) {
        let now_ms = host.now_ms();
        let looked_ms = std::mem::replace(&mut self.looked_ms, now_ms);
        // Who trusts a silent hub for longer does not mind a longer leap.
        let leaps = now_ms.saturating_sub(looked_ms) > RESUME_WITHIN_MS.max(stale_after_ms);
        let is_back = looked_ms.max(self.heard_ms).saturating_sub(now_ms) > RESUME_WITHIN_MS;
        if leaps || is_back {
            host.log(Level::Info, "the clock was set, or stood still: the hub is asked for everything");
            self.observer.give_up(host);
        } else if self.observer.token().is_some() || now_ms.saturating_sub(self.heard_ms) <= RESUME_WITHIN_MS {
            return;
        }
        if self.ingest.position().is_some() {
            host.count(&metrics::known_undercount(Undercount::Gap), 1);
        }
        self.ingest.start_over();
        self.heard_ms = self.heard_ms.min(now_ms);
    }

    fn keep_observing(&mut self, host: &impl Host, config: &FilterConfig) {
        let ingest = &self.ingest;
        self.observer.tick(host, &config.hubs, config.freshness.stale_after_ms, || {
            let position = ingest.position();
            Subscription {
                node_id: String::from("envoy"),
                version: String::from(env!("CARGO_PKG_VERSION")),
                epoch: position.map_or(0, |position| position.epoch),
                sequence: position.map_or(0, |position| position.sequence),
                models: config.subscribe.models.clone(),
                tenants: config.subscribe.tenants.clone(),
            }
        });
    }

    fn commit_queued(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        config: &FilterConfig,
        until_ns: u64,
    ) -> Result<(), Deposed> {
        self.evict(host, keys, lease, follower, config, until_ns)?;
        // What brings no records needs no room: that the hub is heard is told whatever the ring is like.
        while (lease.has_room() || self.ingest.next_is_empty())
            && follower.index_of(lease.head()).is_some()
            && !self.evictor.is_behind()
            && let Some(batch) = self.ingest.take_batch(if lease.has_room() { config.limits.segment_bytes } else { 0 })
        {
            let (next_replica, next_scope) = self.ingest.next_numbers();
            let change = |head: &mut Head| {
                set_position(head, batch.position, batch.heard.at_ms);
                head.next_replica = next_replica;
                head.next_scope = next_scope;
            };
            if let Some(part) = &batch.part {
                self.keeper.store(host, keys, lease, part)?;
            } else if batch.records.is_empty() {
                lease.renew(host, keys, change)?;
            } else {
                let Some(index) = follower.index_of(lease.head()) else { break };
                let counts_hits = |scope: &Scope| counts_hits(index.dictionary(), config, scope);
                let records = self.pager.name_pages(index, batch.records, counts_hits);
                self.evictor.committed(&records);
                lease.commit(host, keys, follower, records, change)?;
                self.evict(host, keys, lease, follower, config, until_ns)?;
            }
            self.committed_ms = host.now_ms();
            self.observer.acknowledge(host, batch.heard.stream, batch.number);
            if host.now_ns() >= until_ns {
                break;
            }
        }
        Ok(())
    }

    fn evict(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &mut Follower,
        config: &FilterConfig,
        until_ns: u64,
    ) -> Result<(), Deposed> {
        let Some(index) = follower.index_of(lease.head()) else { return Ok(()) };
        // Whatever is about to end matters only near a bound.
        let superseded = if self.evictor.is_needed(index, config) { self.ingest.superseded(index) } else { Vec::new() };
        self.evictor.step(host, keys, lease, follower, (config, &superseded), until_ns)?;
        self.ingest.evicts(self.evictor.is_ready());
        let bytes = follower.index_of(lease.head()).map_or(0, |index| index.size().bytes);
        let bound = config.limits.max_index_bytes as u64;
        let too_large = bytes > bound.saturating_add(bound / 8);
        self.ingest.set_out_of_memory(too_large || host.memory_bytes() > MAX_VM_BYTES);
        Ok(())
    }

    /// Looks at one page and one segment, and mends what is not as this leader or one before it wrote it.
    fn scrub(&mut self, host: &impl Host, keys: &Keys, lease: &mut Lease, follower: &Follower) -> Result<(), Deposed> {
        let Some(index) = follower.index_of(lease.head()) else { return Ok(()) };
        if let Some(sequence) = self.scrub.lost_segment(host, keys, lease.head()) {
            host.count(metrics::SHARED_UNREADABLE, 1);
            self.unreadable_to = self.unreadable_to.max(sequence);
        }
        for _ in 0..lease.head().pages.div_ceil(PAGES_A_LOOK) {
            let lost_page = self.scrub.lost_page(host, keys, lease.head(), self.checkpoint.as_of());
            if let Some(number) = lost_page.filter(|_| lease.head().last > 0) {
                host.count(metrics::SHARED_UNREADABLE, 1);
                lease.write_page(host, keys, index, &mut self.checkpoint, number)?;
            }
        }
        Ok(())
    }

    /// Rewrites pages while the log has used more than half of its ring since the oldest was written, or while what
    /// they do not cover cannot be read.
    fn checkpoint(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        follower: &Follower,
        (max_step_ns, until_ns): (u64, u64),
    ) -> Result<(), Deposed> {
        // Whatever commits took of the step: a ring that pages do not keep up with lets nothing through in the end.
        let until_ns = until_ns.max(host.now_ns().saturating_add(max_step_ns / 8));
        while self.oldest_page_is_due(lease.head()) {
            let Some(index) = follower.index_of(lease.head()) else { break };
            if !lease.write_oldest_page(host, keys, index, &mut self.checkpoint)? || host.now_ns() >= until_ns {
                break;
            }
        }
        Ok(())
    }

    fn oldest_page_is_due(&self, head: &Head) -> bool {
        let oldest = self.checkpoint.oldest_as_of();
        oldest < self.unreadable_to || head.last.saturating_sub(oldest) > u64::from(head.ring / 2)
    }

    fn renew(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        lease: &mut Lease,
        serves: bool,
        stale_after_ms: u64,
    ) -> Result<(), Deposed> {
        let oldest_page = self.checkpoint.oldest_as_of();
        let first_readable = Some(self.unreadable_to + 1).filter(|first| *first <= oldest_page + 1);
        let now_ms = host.now_ms();
        lease.renew(host, keys, |head| {
            head.oldest_page = oldest_page;
            head.first = head.first.max(first_readable.unwrap_or(0));
            head.heard_ms = aged(head.heard_ms, now_ms, stale_after_ms);
            head.leader_serves = serves;
        })
    }

    fn report(&mut self, host: &impl Host, lease: &Lease, follower: &Follower) {
        host.gauge(metrics::LOG_SEQUENCE, lease.head().last);
        host.gauge(metrics::LOG_BYTES, self.scrub.log().bytes());
        host.gauge(metrics::PAGE_BYTES, self.scrub.pages().bytes());
        host.gauge(metrics::PAGES, self.scrub.pages().values());
        if let Some(index) = follower.index_of(lease.head()) {
            host.gauge(metrics::INDEX_PAIRS, index.pairs());
            host.gauge(metrics::INDEX_HOLDERS, index.replicas_holding() as u64);
            host.gauge(metrics::INDEX_BYTES, index.size().bytes);
        }
        let refused = self.ingest.take_refused();
        if refused.full > 0 && self.refused.full == 0 {
            host.log(Level::Warn, "the index is full (limits.max_index_entries): new blocks are not taken");
        }
        self.refused.full += refused.full;
        if refused.memory > 0 && self.refused.memory == 0 {
            host.log(Level::Warn, "no memory for more (limits.max_index_bytes, or the VM's): new blocks are not taken");
        }
        self.refused.memory += refused.memory;
        if refused.names > 0 && self.refused.names == 0 {
            let what = "scopes, replicas, policies or models of the hub's are not taken";
            host.log(Level::Warn, &format!("{what}: there are too many, or their names are longer than 512 bytes"));
        }
        self.refused.names += refused.names;
        metrics::count_names_refused(host, refused.names);
        metrics::count_refused(host, Refusal::Full, refused.full);
        metrics::count_refused(host, Refusal::Memory, refused.memory);
        metrics::count_refused(host, Refusal::TooManyScopes, refused.scopes);
        metrics::count_refused(host, Refusal::TooManyReplicas, refused.replicas);
        metrics::count_refused(host, Refusal::FutureTime, refused.future);
    }
}

/// Keeps a clock that is set back from making the hub look as if it had been heard later than it was: a time ahead of
/// the clock is taken back to it, and what has once been stale stays so until the hub is heard again.
pub fn aged(heard_ms: u64, now_ms: u64, stale_after_ms: u64) -> u64 {
    match now_ms.checked_sub(heard_ms) {
        None => now_ms,
        Some(silent_ms) if silent_ms > stale_after_ms => heard_ms.min(LONG_AGO_MS),
        Some(_) => heard_ms,
    }
}

/// Pairs that the index takes while what is too much cannot go yet: a quarter more than its cap, and what a few messages
/// bring.
fn ceiling(limits: &Limits) -> u64 {
    let cap = limits.max_index_entries as u64;
    cap.saturating_add(cap / 4).saturating_add(AHEAD_PAIRS)
}

/// The head of a log that begins now.
pub fn new_log(host: &impl Host, term: u64, limits: &Limits) -> Head {
    Head::new(Incarnation(host.now_ns()), term, limits.pages.saturating_add(1), limits.log_segments)
}
