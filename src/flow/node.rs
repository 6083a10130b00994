//! A VM's part in the shared log of one domain: follower or leader.
//!
//! A VM leads when nobody does: the head does not exist, or its number has not changed for `lease_ticks` of this VM's
//! ticks (three times as many if it serves requests, so that the VM on the main thread, which never does, comes first). A
//! leader that serves requests is relieved by a VM that does not. A new leader first takes the term, then catches up
//! with the log, and only then opens the stream to the hub and writes.
//!
//! Several root contexts of a VM can belong to one domain, for example the old and the new one during a configuration
//! update: one of them drives the node, and hands over when it is done.

use super::credits::{Hit, Outbox};
use super::follower::{CatchUps, Follower, View};
use super::keys::Keys;
use super::leader::{Leader, aged, new_log};
use super::lease::{Deposed, Lease};
use super::metrics::{self, Evicted};
use super::models::collector::Collector;
use super::pace::Pace;
use super::sweep::Sweeper;
use crate::config::{FilterConfig, Limits};
use crate::host::{Cas, Host, SharedValue, StreamToken};
use crate::index::log::{Head, Incarnation};
use crate::model::Models;

/// How long a request may read the log where there is something to answer from already.
pub const ASK_NS: u64 = 250_000;
/// The time between two measurements of the index, in ms.
const MEASURE_MS: u64 = 10_000;

/// A VM's part in the shared log of one domain.
#[derive(Debug)]
pub struct Node {
    keys: Keys,
    follower: Follower,
    role: Role,
    /// This VM has been asked by a request.
    serves: bool,
    driver: Option<u32>,
    pace: Pace,
    sweeper: Sweeper,
    catching_up: CatchingUp,
    /// When the index was last measured, Unix time in ms.
    measured_ms: u64,
    /// That of the last head that was served up to, and whose log that is: another log's says nothing of this one's.
    heard: Option<(Incarnation, u64)>,
    /// What this VM's requests hit.
    outbox: Outbox,
    /// What turns text into token ids.
    models: Collector,
}

#[derive(Debug)]
enum Role {
    /// The head's number as last seen, for how many ticks it has been that, and whether it ever changed: somebody leads.
    Following {
        seen: Option<Cas>,
        unchanged_ticks: u32,
        has_changed: bool,
    },
    Leading(Box<Leader>),
}

/// What has been said of the follower's catching up, and since when the present one goes on, Unix time in ns.
#[derive(Debug, Default)]
struct CatchingUp {
    told: CatchUps,
    since_ns: Option<u64>,
}

/// What a node knows when a request asks.
#[derive(Debug)]
pub struct Knowledge<'a> {
    /// What there is to look at.
    pub view: View<'a>,
    /// When the leader heard the hub say the newest of what is in the view, Unix time in ms; none if nobody ever led or
    /// heard it.
    pub heard_ms: Option<u64>,
    /// Whether the view is all of the hub's state, as far as is known: otherwise what of a tenant has not come may be on its way.
    pub is_whole: bool,
    /// What turns text into token ids, as far as it is here.
    pub models: &'a Models,
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
            role: Role::following(),
            serves: false,
            driver: None,
            pace: Pace::default(),
            sweeper: Sweeper::default(),
            catching_up: CatchingUp::default(),
            measured_ms: 0,
            heard: None,
            outbox: Outbox::default(),
            models: Collector::default(),
        }
    }

    /// Catches up as far as `budget_ns` allows, [`ASK_NS`] at most once something is known, and says what is known.
    pub fn ask(&mut self, host: &impl Host, budget_ns: u64) -> Knowledge<'_> {
        self.serves = true;
        let head = read_head(host, &self.keys).and_then(|(head, _)| head);
        let mut newest_ms = None;
        if let Some(head) = &head {
            let started_ns = host.now_ns();
            // What is known serves: a request does little for what came since, the next tick does the rest.
            let budget_ns = match self.follower.view() {
                View::Index(_) => budget_ns.min(ASK_NS),
                View::CatchingUp => budget_ns,
            };
            let until_ns = started_ns.saturating_add(budget_ns);
            self.follower.follow(host, &self.keys, head, || host.now_ns() >= until_ns);
            newest_ms = Some(head.heard_ms).filter(|heard_ms| *heard_ms > 0);
            // State that cannot follow goes stale, as if the hub were silent.
            if self.follower.serves_up_to(head) {
                self.heard = newest_ms.map(|heard_ms| (head.incarnation, heard_ms));
            }
            self.catching_up.report(host, self.follower.catch_ups(), started_ns);
        }
        // While a reset is under way there is no position from which to go on.
        let is_whole = head.as_ref().is_none_or(|head| head.hub_epoch != 0 && self.follower.serves_up_to(head));
        let viewed = self.follower.viewed_incarnation();
        let heard_ms = self.heard.filter(|(log, _)| Some(*log) == viewed).map(|(_, heard_ms)| heard_ms);
        let models = self.models.models();
        match self.follower.view() {
            View::Index(index) if heard_ms.is_some() || newest_ms.is_none() => {
                Knowledge { view: View::Index(index), heard_ms, is_whole, models }
            }
            _ => Knowledge { view: View::CatchingUp, heard_ms: newest_ms.or(heard_ms), is_whole, models },
        }
    }

    /// What the last request that asked could look at.
    #[cfg(test)]
    pub(super) fn view(&self) -> View<'_> {
        self.follower.view()
    }

    /// The models that are here.
    #[cfg(test)]
    pub(super) fn models(&self) -> &Models {
        self.models.models()
    }

    /// A request that asked was told of what it hits, where hits count: the leader shall know.
    pub fn delivered(&mut self, hit: Hit) {
        if let Some(incarnation) = self.follower.viewed_incarnation() {
            self.outbox.add(incarnation, hit);
        }
    }

    /// A root context's tick. Only the driver's does anything; without one, this context becomes it.
    pub fn tick(&mut self, host: &impl Host, context: u32, config: &FilterConfig) {
        self.models.name(context, config);
        if !self.is_driven_by(host, context) {
            return;
        }
        let started_ns = host.now_ns();
        let passed_ms = self.pace.period_ms(&config.limits);
        let is_whole = self.pace.is_whole(&config.limits);
        let progress = self.follower.progress();
        let now_ms = host.now_ms();
        self.heard = self.heard.map(|(log, heard_ms)| (log, aged(heard_ms, now_ms, config.freshness.stale_after_ms)));
        let head = read_head(host, &self.keys);
        let work_is_left = match &mut self.role {
            Role::Following { .. } => {
                // What cannot be read gets no more readable by looking at it more often.
                self.tick_following(host, &head, config, is_whole) && self.follower.progress() > progress
            }
            Role::Leading(leading) => {
                let ticked = leading.tick(host, &self.keys, &mut self.follower, self.serves, config).and_then(|()| {
                    leading.count_hits(host, &self.keys, &mut self.follower, &mut self.outbox, &config.limits)
                });
                let work_is_left = leading.has_work_left();
                self.step_down_if(host, ticked);
                work_is_left
            }
        };
        let sweep_is_behind = self.sweep(host, head.and_then(|(head, _)| head), config, passed_ms, started_ns);
        self.outbox.report(host);
        let collects = self.collect(host, config, started_ns, is_whole);
        self.pace.rest(&config.limits, work_is_left || sweep_is_behind || collects);
        if is_whole {
            self.measure(host, now_ms);
        }
        self.catching_up.report(host, self.follower.catch_ups(), started_ns);
        record_step(host, started_ns);
    }

    /// How long after its last tick a root context wants the next, in ms: sooner while there is work left.
    pub fn tick_period_ms(&self, context: u32, config: &FilterConfig) -> u64 {
        if self.driver == Some(context) { self.pace.period_ms(&config.limits) } else { config.limits.tick_ms }
    }

    /// A message came over a stream.
    pub fn on_stream_message(&mut self, host: &impl Host, token: StreamToken, bytes: &[u8], config: &FilterConfig) {
        if let Role::Leading(leading) = &mut self.role {
            let started_ns = host.now_ns();
            let heard = leading.hear(host, &self.keys, &mut self.follower, token, bytes, config);
            self.step_down_if(host, heard);
            record_step(host, started_ns);
        }
    }

    /// The proxy closed a stream.
    pub fn on_stream_closed(&mut self, host: &impl Host, token: StreamToken) {
        if let Role::Leading(leading) = &mut self.role {
            let started_ns = host.now_ns();
            leading.on_stream_closed(host, token);
            record_step(host, started_ns);
        }
    }

    /// A root context is done: if it drove the node, another may. The stream goes with it.
    pub fn on_done(&mut self, host: &impl Host, context: u32) {
        self.models.forget(context);
        if self.driver != Some(context) {
            return;
        }
        self.driver = None;
        if let Role::Leading(leading) = &mut self.role {
            leading.stop_observing(host, &mut self.follower);
        }
    }

    /// Brings the models that requests need here a step further, if the step that began at `started_ns` has time left; a
    /// whole tick always does. True if there is more to do.
    fn collect(&mut self, host: &impl Host, config: &FilterConfig, started_ns: u64, is_whole: bool) -> bool {
        let View::Index(index) = self.follower.view() else { return false };
        // What nobody asks for here is not needed here.
        self.serves
            && (is_whole || host.now_ns().saturating_sub(started_ns) < config.limits.max_step_ns())
            && self.models.step(host, &self.keys, index.dictionary(), &config.limits)
    }

    /// Tells the memory that the index takes, now and then.
    fn measure(&mut self, host: &impl Host, now_ms: u64) {
        // A clock that was set back must not keep it waiting.
        if now_ms.checked_sub(self.measured_ms).is_some_and(|passed| passed < MEASURE_MS) {
            return;
        }
        if let View::Index(index) = self.follower.view() {
            self.measured_ms = now_ms;
            host.record(metrics::VM_INDEX_KIB, index.size().bytes / 1_024);
            let models = self.models.models();
            host.record(metrics::VM_MODELS, models.count() as u64);
            host.record(metrics::VM_MODEL_KIB, models.bytes() as u64 / 1_024);
        }
    }

    /// Whether it is this root context's ticks that count; without a driver, they do from now on.
    fn is_driven_by(&mut self, host: &impl Host, context: u32) -> bool {
        if self.driver.is_none() && matches!(self.role, Role::Leading(_)) {
            host.count(metrics::LEADER_CHANGES, 1);
        }
        *self.driver.get_or_insert(context) == context
    }

    /// Sweeps what is due, as of the head that was read, or that this VM wrote; true if it is behind.
    fn sweep(
        &mut self,
        host: &impl Host,
        read: Option<Head>,
        config: &FilterConfig,
        passed_ms: u64,
        started_ns: u64,
    ) -> bool {
        let (head, leads) = match &self.role {
            Role::Leading(leading) => (Some(leading.head()), true),
            Role::Following { .. } => (read.as_ref(), false),
        };
        let Some(head) = head else { return false };
        let expired = self.sweeper.step(host, &mut self.follower, head, config, (passed_ms, started_ns));
        if leads {
            expired.count(host, Evicted::Ttl);
        }
        self.sweeper.is_behind()
    }

    /// True if the log had something new. Only whole ticks count against a silent leader.
    fn tick_following(
        &mut self,
        host: &impl Host,
        head: &Option<(Option<Head>, Cas)>,
        config: &FilterConfig,
        is_whole: bool,
    ) -> bool {
        let mut is_behind = false;
        if let Some((Some(head), _)) = head
            && self.serves
        {
            let step_ns = config.limits.max_step_ns();
            let until_ns = host.now_ns().saturating_add(step_ns / 2);
            let before = self.follower.progress();
            self.follower.follow(host, &self.keys, head, || host.now_ns() >= until_ns);
            // While there is news, what comes next is looked for soon, so that requests find little left to read.
            is_behind = self.follower.progress() != before;
            if is_whole {
                self.follower.lag(head).into_iter().for_each(|lag| host.record(metrics::LAG_SEGMENTS, lag));
            }
        }
        if is_whole {
            self.claim_if_due(host, head, config);
        }
        is_behind
    }

    fn claim_if_due(&mut self, host: &impl Host, head: &Option<(Option<Head>, Cas)>, config: &FilterConfig) {
        if let Some(claim) = self.claim(host, head, &config.limits) {
            let (head, cas) = claim;
            if let Ok(lease) = Lease::claim(host, &self.keys, head, cas) {
                host.count(metrics::LEADER_CHANGES, 1);
                self.role = Role::Leading(Box::new(Leader::new(lease)));
            }
        } else if let Some((Some(head), _)) = &head
            && self.hears_a_leader(&config.limits)
        {
            self.outbox.send(host, &self.keys.credits(), head.incarnation);
        }
    }

    /// Whether the head was written lately, which only a leader does.
    fn hears_a_leader(&self, limits: &Limits) -> bool {
        match self.role {
            Role::Following { unchanged_ticks, has_changed, .. } => has_changed && unchanged_ticks < limits.lease_ticks,
            Role::Leading(_) => false,
        }
    }

    /// The head to write, and in place of which, if this VM should lead now.
    fn claim(&mut self, host: &impl Host, head: &Option<(Option<Head>, Cas)>, limits: &Limits) -> Option<(Head, Cas)> {
        let Role::Following { seen, unchanged_ticks, has_changed } = &mut self.role else { return None };
        let Some((head, cas)) = head else {
            return Some((new_log(host, 1, limits), Cas::ABSENT));
        };
        *has_changed |= seen.is_some_and(|seen| seen != *cas);
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
            leading.stop_observing(host, &mut self.follower);
            self.role = Role::following();
        }
    }
}

// === impl Role ===

impl Role {
    fn following() -> Role {
        Role::Following { seen: None, unchanged_ticks: 0, has_changed: false }
    }
}

// === impl CatchingUp ===

impl CatchingUp {
    /// Reports what the step that began at `started_ns` brought.
    fn report(&mut self, host: &impl Host, now: CatchUps, started_ns: u64) {
        if now == self.told {
            return;
        }
        if now.begun > self.told.begun {
            host.count(metrics::CATCH_UPS_BEGUN, now.begun - self.told.begun);
            self.since_ns.get_or_insert(started_ns);
        }
        if now.completed > self.told.completed {
            host.count(metrics::CATCH_UPS_COMPLETED, now.completed - self.told.completed);
            let since_ns = self.since_ns.take().unwrap_or(started_ns);
            host.record(metrics::CATCH_UP_MS, host.now_ns().saturating_sub(since_ns) / 1_000_000);
        }
        self.told = now;
    }
}

/// One record a step, of the time it took.
fn record_step(host: &impl Host, started_ns: u64) {
    host.record(metrics::BACKGROUND_STEP_US, host.now_ns().saturating_sub(started_ns) / 1_000);
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
