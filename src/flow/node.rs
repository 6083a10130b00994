//! A VM's part in the shared log of one domain: follower or leader.
//!
//! A VM leads when nobody does: the head does not exist, or its number has not changed for `lease_ticks` of this VM's
//! ticks (three times as many if it serves requests, so that the VM on the main thread, which never does, comes first). A
//! leader that serves requests is relieved by a VM that does not. A new leader first takes the term, then catches up
//! with the log, and only then opens the stream to the hub and writes.
//!
//! Several root contexts of a VM can belong to one domain, for example the old and the new one during a configuration
//! update: one of them drives the node, and hands over when it is done.

use super::follower::{Follower, View};
use super::ingest::{Heard, Ingest, Refused};
use super::keys::Keys;
use super::leader::{Checkpoint, Deposed, Lease, set_position};
use super::metrics;
use super::observer::Observer;
use super::scrub::Scrub;
use crate::config::{FilterConfig, Limits};
use crate::host::{Cas, Host, Level, SharedValue, StreamToken};
use crate::index::log::{Head, Incarnation};
use crate::observation::{Scope, Subscription};
use crate::wire;

/// How long one background step may take.
const STEP_NS: u64 = 1_000_000;
/// Ticks without progress after which a leader gives a log up that it cannot read.
const UNREADABLE_TICKS: u32 = 50;
/// Stands for any time at which the hub was heard and that is too long ago.
const LONG_AGO_MS: u64 = 1;
/// Every shard is swept once in this time.
const SWEEP_MS: u64 = 30_000;
/// A committed message's worth of changes waits at most until the next tick; alone, it is committed at once if the last
/// commit was this long ago.
const COMMIT_PAUSE_MS: u64 = 10;

/// A VM's part in the shared log of one domain.
#[derive(Debug)]
pub struct Node {
    keys: Keys,
    follower: Follower,
    role: Role,
    /// This VM has been asked by a request.
    serves: bool,
    driver: Option<u32>,
    /// That of the last head that the view covers.
    heard_ms: Option<u64>,
}

#[derive(Debug)]
enum Role {
    /// The head's number as last seen, and for how many ticks it has been that.
    Following {
        seen: Option<Cas>,
        unchanged_ticks: u32,
    },
    Leading(Box<Leading>),
}

#[derive(Debug)]
struct Leading {
    lease: Lease,
    stage: LeadStage,
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
    observer: Observer,
    committed_ms: u64,
    refused: Refused,
}

/// What a node knows when a request asks.
#[derive(Debug)]
pub struct Knowledge<'a> {
    /// What there is to look at.
    pub view: View<'a>,
    /// When the leader heard the hub say the newest of what is in the view, Unix time in ms; none if nobody ever led or
    /// heard it.
    pub heard_ms: Option<u64>,
}

// === impl Knowledge ===

impl Knowledge<'_> {
    /// Whether the hub has been silent for more than `stale_after_ms`.
    pub fn is_stale(&self, stale_after_ms: u64, now_ms: u64) -> bool {
        self.heard_ms.is_some_and(|heard_ms| now_ms.saturating_sub(heard_ms) > stale_after_ms)
    }
}

// === impl Node ===

impl Node {
    /// A node of `domain` that knows nothing yet.
    pub fn new(domain: &str) -> Node {
        Node {
            keys: Keys::new(domain),
            follower: Follower::default(),
            role: Role::Following { seen: None, unchanged_ticks: 0 },
            serves: false,
            driver: None,
            heard_ms: None,
        }
    }

    /// Catches up as far as `budget_ns` allows and says what is known.
    pub fn ask(&mut self, host: &impl Host, budget_ns: u64) -> Knowledge<'_> {
        self.serves = true;
        let head = read_head(host, &self.keys).and_then(|(head, _)| head);
        let mut newest_ms = None;
        if let Some(head) = &head {
            let until_ns = host.now_ns().saturating_add(budget_ns);
            self.follower.follow(host, &self.keys, head, || host.now_ns() >= until_ns);
            newest_ms = Some(head.heard_ms).filter(|heard_ms| *heard_ms > 0);
            // State that cannot follow goes stale, as if the hub were silent.
            if self.follower.serves_up_to(head) {
                self.heard_ms = newest_ms.or(self.heard_ms);
            }
        }
        match self.follower.view() {
            View::Index(index) if self.heard_ms.is_some() || newest_ms.is_none() => {
                Knowledge { view: View::Index(index), heard_ms: self.heard_ms }
            }
            _ => Knowledge { view: View::CatchingUp, heard_ms: newest_ms.or(self.heard_ms) },
        }
    }

    /// A root context's tick. Only the driver's does anything; without one, this context becomes it.
    pub fn tick(
        &mut self,
        host: &impl Host,
        context: u32,
        config: &FilterConfig,
        expired: &dyn Fn(&Scope, u64) -> bool,
    ) {
        if *self.driver.get_or_insert(context) != context {
            return;
        }
        let now_ms = host.now_ms();
        self.heard_ms = self.heard_ms.map(|heard_ms| aged(heard_ms, now_ms, config.freshness.stale_after_ms));
        let head = read_head(host, &self.keys);
        match &mut self.role {
            Role::Following { .. } => self.tick_following(host, head, config, expired),
            Role::Leading(leading) => {
                let ticked = leading.tick(host, &self.keys, &mut self.follower, self.serves, config, expired);
                self.step_down_if(host, ticked);
            }
        }
    }

    /// A message came over a stream.
    pub fn on_stream_message(&mut self, host: &impl Host, token: StreamToken, bytes: &[u8], config: &FilterConfig) {
        if let Role::Leading(leading) = &mut self.role {
            let heard = leading.hear(host, &self.keys, &mut self.follower, token, bytes, config);
            self.step_down_if(host, heard);
        }
    }

    /// The proxy closed a stream.
    pub fn on_stream_closed(&mut self, host: &impl Host, token: StreamToken) {
        if let Role::Leading(leading) = &mut self.role
            && let LeadStage::Ready(ready) = &mut leading.stage
        {
            ready.observer.closed(host, token);
        }
    }

    /// A root context is done: if it drove the node, another may. The stream goes with it.
    pub fn on_done(&mut self, host: &impl Host, context: u32) {
        if self.driver != Some(context) {
            return;
        }
        self.driver = None;
        if let Role::Leading(leading) = &mut self.role
            && let LeadStage::Ready(ready) = &mut leading.stage
        {
            ready.observer.give_up(host);
            // What was heard and not committed is asked for again.
            leading.stage = LeadStage::CatchingUp { ticks_without_progress: 0, applied: 0 };
        }
    }

    fn tick_following(
        &mut self,
        host: &impl Host,
        head: Option<(Option<Head>, Cas)>,
        config: &FilterConfig,
        expired: &dyn Fn(&Scope, u64) -> bool,
    ) {
        if let Some((Some(head), _)) = &head
            && self.serves
        {
            let until_ns = host.now_ns().saturating_add(STEP_NS);
            self.follower.follow(host, &self.keys, head, || host.now_ns() >= until_ns);
            sweep(&mut self.follower, head, &config.limits, expired);
        }
        if let Some(claim) = self.claim(host, &head, &config.limits) {
            let (head, cas) = claim;
            if let Ok(lease) = Lease::claim(host, &self.keys, head, cas) {
                host.count(metrics::LEADER_CHANGES, 1);
                let stage = LeadStage::CatchingUp { ticks_without_progress: 0, applied: 0 };
                self.role = Role::Leading(Box::new(Leading { lease, stage }));
            }
        }
    }

    /// The head to write, and in place of which, if this VM should lead now.
    fn claim(&mut self, host: &impl Host, head: &Option<(Option<Head>, Cas)>, limits: &Limits) -> Option<(Head, Cas)> {
        let Role::Following { seen, unchanged_ticks } = &mut self.role else { return None };
        let Some((head, cas)) = head else {
            return Some((new_log(host, 1, limits), Cas::ABSENT));
        };
        *unchanged_ticks = if *seen == Some(*cas) { unchanged_ticks.saturating_add(1) } else { 0 };
        *seen = Some(*cas);
        let patience = limits.lease_ticks.saturating_mul(if self.serves { 3 } else { 1 });
        let abandoned = *unchanged_ticks >= patience;
        match head {
            Some(head) if abandoned || (head.leader_serves && !self.serves) => {
                let next = Head { term: head.term.wrapping_add(1), leader_serves: self.serves, ..head.clone() };
                Some((next, *cas))
            }
            // Something else stands in the head's place: the log is lost.
            None if abandoned => Some((new_log(host, 1, limits), *cas)),
            _ => None,
        }
    }

    fn step_down_if(&mut self, host: &impl Host, outcome: Result<(), Deposed>) {
        if outcome == Err(Deposed)
            && let Role::Leading(leading) = &mut self.role
        {
            if let LeadStage::Ready(ready) = &mut leading.stage {
                ready.observer.give_up(host);
            }
            self.role = Role::Following { seen: None, unchanged_ticks: 0 };
        }
    }
}

// === impl Leading ===

impl Leading {
    fn tick(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        serves: bool,
        config: &FilterConfig,
        expired: &dyn Fn(&Scope, u64) -> bool,
    ) -> Result<(), Deposed> {
        let until_ns = host.now_ns().saturating_add(STEP_NS);
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
                ready.keep_observing(host, config);
                ready.commit_queued(host, keys, &mut self.lease, follower, &config.limits, until_ns)?;
                follower.serve_what_is_built(self.lease.head());
                ready.scrub(host, keys, &mut self.lease, follower)?;
                ready.checkpoint(host, keys, &mut self.lease, follower, until_ns)?;
                ready.renew(host, keys, &mut self.lease, serves, config.freshness.stale_after_ms)?;
                ready.report(host, &self.lease, follower);
                sweep(follower, self.lease.head(), &config.limits, expired);
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
                ingest: Ingest::new(
                    head,
                    index,
                    config.limits.max_index_entries as u64,
                    config.freshness.stale_after_ms,
                ),
                observer: Observer::new(),
                committed_ms: 0,
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
        self.stage = LeadStage::CatchingUp { ticks_without_progress: 0, applied: 0 };
        self.lease.renew(host, keys, |head| *head = fresh)
    }

    fn hear(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        token: StreamToken,
        bytes: &[u8],
        config: &FilterConfig,
    ) -> Result<(), Deposed> {
        let LeadStage::Ready(ready) = &mut self.stage else { return Ok(()) };
        let now_ms = host.now_ms();
        let heard = Heard { stream: token, at_ms: now_ms };
        let Some(index) = follower.index_of(self.lease.head()) else { return Ok(()) };
        if !ready.observer.heard(token, now_ms) {
            return Ok(());
        }
        let accepted = wire::decode_stream_message(bytes)
            .map_err(|malformed| malformed.to_string())
            .and_then(|message| ready.ingest.accept(message, index, heard).map_err(|violation| violation.to_string()));
        if let Err(problem) = accepted {
            host.count(metrics::STREAM_REFUSED, 1);
            host.log(Level::Warn, &format!("the hub's stream is given up and begun anew: {problem}"));
            ready.ingest.start_over();
            ready.observer.give_up(host);
            return Ok(());
        }
        let due = now_ms.saturating_sub(ready.committed_ms) >= COMMIT_PAUSE_MS;
        if due || ready.ingest.queued_bytes() >= config.limits.segment_bytes {
            let until_ns = host.now_ns().saturating_add(STEP_NS);
            ready.commit_queued(host, keys, &mut self.lease, follower, &config.limits, until_ns)?;
        }
        Ok(())
    }
}

// === impl Ready ===

impl Ready {
    fn keep_observing(&mut self, host: &impl Host, config: &FilterConfig) {
        let ingest = &self.ingest;
        self.observer.tick(host, &config.hub_cluster, config.freshness.stale_after_ms, || {
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
        limits: &Limits,
        until_ns: u64,
    ) -> Result<(), Deposed> {
        while lease.has_room()
            && let Some(batch) = self.ingest.take_batch(limits.segment_bytes)
        {
            let (next_replica, next_scope) = self.ingest.next_numbers();
            let change = |head: &mut Head| {
                set_position(head, batch.position, batch.heard.at_ms);
                head.next_replica = next_replica;
                head.next_scope = next_scope;
            };
            if batch.records.is_empty() {
                lease.renew(host, keys, change)?;
            } else {
                lease.commit(host, keys, follower, batch.records, change)?;
            }
            self.committed_ms = host.now_ms();
            self.observer.acknowledge(host, batch.heard.stream, batch.number);
            if host.now_ns() >= until_ns {
                break;
            }
        }
        Ok(())
    }

    /// Looks at one page and one segment, and mends what is not as this leader or one before it wrote it.
    fn scrub(&mut self, host: &impl Host, keys: &Keys, lease: &mut Lease, follower: &Follower) -> Result<(), Deposed> {
        let Some(index) = follower.index_of(lease.head()) else { return Ok(()) };
        if let Some(sequence) = self.scrub.lost_segment(host, keys, lease.head()) {
            host.count(metrics::SHARED_UNREADABLE, 1);
            self.unreadable_to = self.unreadable_to.max(sequence);
        }
        let lost_page = self.scrub.lost_page(host, keys, lease.head(), self.checkpoint.as_of());
        if let Some(number) = lost_page.filter(|_| lease.head().last > 0) {
            host.count(metrics::SHARED_UNREADABLE, 1);
            lease.write_page(host, keys, index, &mut self.checkpoint, number)?;
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
        until_ns: u64,
    ) -> Result<(), Deposed> {
        let unreadable_to = self.unreadable_to;
        let due = |checkpoint: &Checkpoint, head: &Head| {
            let oldest = checkpoint.oldest_as_of();
            oldest < unreadable_to || head.last.saturating_sub(oldest) > u64::from(head.ring / 2)
        };
        let mut wrote = 0;
        while due(&self.checkpoint, lease.head()) && (wrote == 0 || host.now_ns() < until_ns) {
            let Some(index) = follower.index_of(lease.head()) else { break };
            if !lease.write_oldest_page(host, keys, index, &mut self.checkpoint)? {
                break;
            }
            wrote += 1;
        }
        Ok(())
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
        if let Some(index) = follower.index_of(lease.head()) {
            host.gauge(metrics::INDEX_PAIRS, index.pairs());
        }
        let refused = self.ingest.take_refused();
        if refused.full > 0 {
            host.count(&metrics::blocks_refused("full"), refused.full);
            if self.refused.full == 0 {
                host.log(Level::Warn, "the index is full (limits.max_index_entries): new blocks are not taken");
            }
            self.refused.full += refused.full;
        }
        if refused.scopes > 0 {
            host.count(&metrics::blocks_refused("too_many_scopes"), refused.scopes);
        }
        if refused.future > 0 {
            host.count(&metrics::blocks_refused("future_time"), refused.future);
        }
    }
}

/// Keeps a clock that is set back from making the hub look as if it had been heard later than it was: a time ahead of
/// the clock is taken back to it, and what has once been stale stays so until the hub is heard again.
fn aged(heard_ms: u64, now_ms: u64, stale_after_ms: u64) -> u64 {
    match now_ms.checked_sub(heard_ms) {
        None => now_ms,
        Some(silent_ms) if silent_ms > stale_after_ms => heard_ms.min(LONG_AGO_MS),
        Some(_) => heard_ms,
    }
}

fn new_log(host: &impl Host, term: u64, limits: &Limits) -> Head {
    Head::new(Incarnation(host.now_ns()), term, limits.pages.saturating_add(1), limits.log_segments)
}

/// The head, unless it does not parse, and its number; none if there is no head.
fn read_head(host: &impl Host, keys: &Keys) -> Option<(Option<Head>, Cas)> {
    match host.shared_get(&keys.head()) {
        SharedValue::Present { bytes, cas } => {
            let head = Head::decode(&bytes).ok();
            if head.is_none() {
                host.count(metrics::SHARED_UNREADABLE, 1);
            }
            Some((head, cas))
        }
        SharedValue::Absent => None,
    }
}

fn sweep(follower: &mut Follower, head: &Head, limits: &Limits, expired: &dyn Fn(&Scope, u64) -> bool) {
    if let Some(index) = follower.sweepable(head) {
        let shards = u64::from(head.pages).saturating_mul(limits.tick_ms).div_ceil(SWEEP_MS);
        for _ in 0..shards {
            index.sweep_next(expired);
        }
    }
}
