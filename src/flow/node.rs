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
use super::keys::Keys;
use super::leader::{Leader, STEP_NS, aged, new_log, sweep};
use super::lease::{Deposed, Lease};
use super::metrics;
use crate::config::{FilterConfig, Limits};
use crate::host::{Cas, Host, SharedValue, StreamToken};
use crate::index::log::Head;

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
    Leading(Box<Leader>),
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
    pub fn tick(&mut self, host: &impl Host, context: u32, config: &FilterConfig) {
        if *self.driver.get_or_insert(context) != context {
            return;
        }
        let now_ms = host.now_ms();
        self.heard_ms = self.heard_ms.map(|heard_ms| aged(heard_ms, now_ms, config.freshness.stale_after_ms));
        let head = read_head(host, &self.keys);
        match &mut self.role {
            Role::Following { .. } => self.tick_following(host, head, config),
            Role::Leading(leading) => {
                let ticked = leading.tick(host, &self.keys, &mut self.follower, self.serves, config);
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
        if let Role::Leading(leading) = &mut self.role {
            leading.on_stream_closed(host, token);
        }
    }

    /// A root context is done: if it drove the node, another may. The stream goes with it.
    pub fn on_done(&mut self, host: &impl Host, context: u32) {
        if self.driver != Some(context) {
            return;
        }
        self.driver = None;
        if let Role::Leading(leading) = &mut self.role {
            leading.stop_observing(host);
        }
    }

    fn tick_following(&mut self, host: &impl Host, head: Option<(Option<Head>, Cas)>, config: &FilterConfig) {
        if let Some((Some(head), _)) = &head
            && self.serves
        {
            let until_ns = host.now_ns().saturating_add(STEP_NS);
            self.follower.follow(host, &self.keys, head, || host.now_ns() >= until_ns);
            sweep(host, &mut self.follower, head, config, until_ns.saturating_add(STEP_NS / 4));
        }
        if let Some(claim) = self.claim(host, &head, &config.limits) {
            let (head, cas) = claim;
            if let Ok(lease) = Lease::claim(host, &self.keys, head, cas) {
                host.count(metrics::LEADER_CHANGES, 1);
                self.role = Role::Leading(Box::new(Leader::new(lease)));
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
            leading.stop_observing(host);
            self.role = Role::Following { seen: None, unchanged_ticks: 0 };
        }
    }
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
