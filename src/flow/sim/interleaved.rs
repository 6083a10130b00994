//! Several VMs whose host calls interleave in every way a seed comes to: another VM may run between any two of them.
//!
//! Each VM is a coroutine that is suspended before every host call. The schedule decides who makes the next call, lets
//! VMs stall in the middle of what they do for longer than a lease, drops them there, starts new ones, and replaces
//! their root contexts. A VM may credit a replica only with blocks that the hub knew it to hold not longer ago than
//! staleness allows; once the faults have ended, every VM knows exactly what the hub knows, block by block, and has counted
//! the same hits as the others, of none more than there were, and uses the package that the hub has for the model, as no VM
//! uses one that it has not had for longer than that. The last test
//! removes one protection after the other and shows that this is seen.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::hits::{Hits, hit};
use super::hub::{Hub, KEYS, MODELS, NAMES, Random};
use super::packages::used;
use super::{DOMAIN, SimHost, World, scope};
use crate::config::FilterConfig;
use crate::flow::defect::{self, Defect};
use crate::flow::follower::View;
use crate::flow::keys::Keys;
use crate::flow::node::Node;
use crate::host::{Cas, Host, Level, QueueToken, SharedValue, SharedWrite, StreamToken};
use crate::index::log::{Head, Incarnation};
use crate::observation::{BlockKey, StreamBody, SubscriberMessage};
use crate::request::{RequestChain, TokenizeError};

/// Once is enough: the hub's features change nothing here.
const SCHEDULES: u64 = if cfg!(feature = "native") { 500 } else { 10_000 };
/// Within these each missing protection is noticed.
const SEARCHED: u64 = 2_000;
const STEPS: usize = 1_500;
const QUIET_MS: u64 = 14_000;
const TICK_NS: u64 = 100_000_000;
const STALE_AFTER_MS: u64 = 2_000;
/// What may pass until a VM knows that its state is stale: an ask that stalls, a message under way, a tick.
const SLACK_NS: u64 = 1_500_000_000;
const LONGEST_STALL_MS: u64 = 2_000;
const MOST_VMS: usize = 4;
/// More than there ever are, and so few that pages have a share of some blocks only.
const MOST_PAIRS: u64 = 60;

type Task = Coroutine<Option<Order>, Paused, ()>;

/// What a VM is told to do.
enum Order {
    Tick { context: u32 },
    Hear { token: u32, bytes: Vec<u8> },
    Closed { token: u32 },
    Done { context: u32 },
    Ask,
}

/// Where a VM is suspended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paused {
    BeforeHostCall,
    Idle,
}

struct Sim {
    world: Rc<World>,
    random: Random,
    hub: Hub,
    config: Rc<FilterConfig>,
    vms: Vec<Vm>,
    next_vm: u64,
    /// Which VM opened a stream.
    owners: Rc<RefCell<BTreeMap<u32, u64>>>,
    answers: Rc<RefCell<Vec<Answer>>>,
    hits: Rc<RefCell<Hits>>,
    next_heartbeat_ns: u64,
    is_quiet: bool,
    log: Witness,
}

/// What was seen of the log so far.
#[derive(Default)]
struct Witness {
    /// Values written when it last looked.
    writes: u32,
    incarnation: Option<Incarnation>,
    last: u64,
    /// Committed segments that can still be read, by sequence.
    committed: BTreeMap<u64, Vec<u8>>,
}

struct Vm {
    number: u64,
    task: Task,
    at: Paused,
    contexts: Vec<u32>,
    next_tick_ns: u64,
    stalled_until_ns: u64,
}

/// What a VM would have told a request.
struct Answer {
    vm: u64,
    at_ns: u64,
    /// None if it says nothing: it catches up, or is stale.
    credited: Option<BTreeSet<(String, u64)>>,
    /// What it has counted.
    hits: Hits,
    /// Which package it makes token ids of the model's text with.
    used: Result<usize, TokenizeError>,
    /// Models that it has loaded.
    loaded: usize,
}

/// The simulated proxy, for one VM: suspended before every call.
struct Interruptible<'a> {
    host: SimHost,
    vm: u64,
    owners: Rc<RefCell<BTreeMap<u32, u64>>>,
    yielder: &'a Yielder<Option<Order>, Paused>,
}

// === impl Interruptible ===

impl Interruptible<'_> {
    fn pause(&self) -> &SimHost {
        self.yielder.suspend(Paused::BeforeHostCall);
        &self.host
    }
}

impl Host for Interruptible<'_> {
    fn now_ns(&self) -> u64 {
        self.pause().now_ns()
    }

    fn shared_get(&self, key: &str) -> SharedValue {
        self.pause().shared_get(key)
    }

    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite {
        let unchecked = match defect::present() {
            Defect::NoPutIfAbsent => cas == Cas::ABSENT,
            Defect::NoSlotCas => key.contains("/log/"),
            _ => false,
        };
        self.pause().shared_set(key, value, if unchecked { Cas(0) } else { cas })
    }

    fn register_queue(&self, name: &str) -> Option<QueueToken> {
        self.pause().register_queue(name)
    }

    fn find_queue(&self, name: &str) -> Option<QueueToken> {
        self.pause().find_queue(name)
    }

    fn enqueue(&self, queue: QueueToken, message: &[u8]) -> bool {
        self.pause().enqueue(queue, message)
    }

    fn dequeue(&self, queue: QueueToken) -> Option<Vec<u8>> {
        self.pause().dequeue(queue)
    }

    fn open_stream(
        &self,
        cluster: &str,
        service: &str,
        method: &str,
        metadata: &[(&str, &str)],
    ) -> Option<StreamToken> {
        let token = self.pause().open_stream(cluster, service, method, metadata)?;
        self.owners.borrow_mut().insert(token.0, self.vm);
        Some(token)
    }

    fn send(&self, stream: StreamToken, message: &[u8]) -> bool {
        self.pause().send(stream, message)
    }

    fn cancel(&self, stream: StreamToken) {
        self.pause().cancel(stream);
    }

    fn count(&self, metric: &str, by: u64) {
        self.host.count(metric, by);
    }

    fn gauge(&self, _metric: &str, _value: u64) {}

    fn record(&self, _metric: &str, _value: u64) {}

    fn log(&self, level: Level, message: &str) {
        self.host.log(level, message);
    }
}

// === impl Vm ===

impl Vm {
    fn new(sim: &Sim, number: u64) -> Vm {
        let (world, owners) = (Rc::clone(&sim.world), Rc::clone(&sim.owners));
        let (config, answers, all_hits) = (Rc::clone(&sim.config), Rc::clone(&sim.answers), Rc::clone(&sim.hits));
        let task = Coroutine::new(move |yielder, first: Option<Order>| {
            let host = Interruptible { host: SimHost(world), vm: number, owners, yielder };
            let mut node = Node::new(DOMAIN);
            let mut next = first;
            loop {
                match next {
                    Some(Order::Tick { context }) => node.tick(&host, context, &config),
                    Some(Order::Hear { token, bytes }) => {
                        node.on_stream_message(&host, StreamToken(token), &bytes, &config);
                    }
                    Some(Order::Closed { token }) => node.on_stream_closed(&host, StreamToken(token)),
                    Some(Order::Done { context }) => node.on_done(&host, context),
                    Some(Order::Ask) => {
                        let credited = credited(&mut node, &host);
                        let at_ns = host.host.0.elapsed_ns.get();
                        let hits = hit(&mut node, &mut all_hits.borrow_mut());
                        let used = used(node.view(), node.models(), MODELS[0]);
                        let loaded = node.models().count();
                        answers.borrow_mut().push(Answer { vm: number, at_ns, credited, hits, used, loaded });
                    }
                    None => {}
                }
                next = yielder.suspend(Paused::Idle);
            }
        });
        let next_tick_ns = sim.world.elapsed_ns.get();
        Vm { number, task, at: Paused::Idle, contexts: vec![1], next_tick_ns, stalled_until_ns: 0 }
    }

    fn resume(&mut self, order: Option<Order>) {
        if let CoroutineResult::Yield(at) = self.task.resume(order) {
            self.at = at;
        }
    }
}

/// What a VM credits, block by block; none if it would say nothing.
fn credited(node: &mut Node, host: &impl Host) -> Option<BTreeSet<(String, u64)>> {
    let known = node.ask(host, 5_000_000);
    let View::Index(index) = known.view else { return None };
    if known.heard_ms.is_none() || known.is_stale(STALE_AFTER_MS, host.now_ms()) {
        return None;
    }
    let mut credited = BTreeSet::new();
    let Some(slot) = index.dictionary().scope_slot(&scope()) else { return Some(credited) };
    for key in 1..=KEYS {
        for run in index.leading_runs(slot, &RequestChain::Exact { key: BlockKey::Hash64(key) }, 0) {
            let replica = index.dictionary().complete_replica(run.replica)?;
            credited.insert((replica.replica_id.to_string(), key));
        }
    }
    Some(credited)
}

// === impl Witness ===

impl Witness {
    /// A log lives on, its end only moves forward, and what is committed stays as it is.
    fn look(&mut self, host: &SimHost) -> Result<(), String> {
        if std::mem::replace(&mut self.writes, host.0.next_cas.get()) == host.0.next_cas.get() {
            return Ok(());
        }
        let keys = Keys::new(DOMAIN);
        let SharedValue::Present { bytes, .. } = host.shared_get(&keys.head()) else { return Ok(()) };
        let head = Head::decode(&bytes).map_err(|_| String::from("the head cannot be read"))?;
        if self.incarnation.is_some_and(|incarnation| incarnation != head.incarnation) {
            return Err(String::from("a log that lived was replaced by another"));
        }
        if head.last < self.last {
            return Err(format!("the log's end went back from {} to {}", self.last, head.last));
        }
        (self.incarnation, self.last) = (Some(head.incarnation), head.last);
        self.committed.retain(|sequence, _| *sequence >= head.first);
        for sequence in head.first.max(1)..=head.last {
            let SharedValue::Present { bytes, .. } = host.shared_get(&keys.log(sequence, head.ring)) else {
                return Err(format!("segment {sequence} is committed and not there"));
            };
            if *self.committed.entry(sequence).or_insert_with(|| bytes.clone()) != bytes {
                return Err(format!("segment {sequence} changed after it was committed"));
            }
        }
        Ok(())
    }
}

// === impl Sim ===

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut random = Random(seed);
        let json = format!(
            r#"{{"hub_cluster": "hub", "models": [{{"model_id": "m"}}], "stale_after_ms": {STALE_AFTER_MS},
                "limits": {{"pages": {}, "log_segments": {}, "lease_ticks": 3, "max_index_entries": {MOST_PAIRS}}}}}"#,
            1 + random.below(4),
            4 + random.below(5)
        );
        let mut sim = Sim {
            world: Rc::default(),
            random,
            hub: Hub::new(),
            config: Rc::new(FilterConfig::from_json(json.as_bytes()).unwrap()),
            vms: Vec::new(),
            next_vm: 1,
            owners: Rc::default(),
            answers: Rc::default(),
            hits: Rc::default(),
            next_heartbeat_ns: 0,
            is_quiet: false,
            log: Witness::default(),
        };
        for _ in 0..2 + sim.random.below(2) {
            sim.add_vm();
        }
        sim
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..3 => self.fault(),
                3..6 => {
                    let now_ns = self.world.elapsed_ns.get();
                    self.hub.live(now_ns, &mut self.random);
                    if self.random.one_in(8) {
                        self.hub.live_models(now_ns, &mut self.random, 20);
                    }
                }
                _ => self.step(),
            }
            self.check()?;
        }
        self.quiet()
    }

    /// Without faults everybody ends up knowing what the hub knows.
    fn quiet(&mut self) -> Result<(), String> {
        self.vms.iter_mut().for_each(|vm| vm.stalled_until_ns = 0);
        self.is_quiet = true;
        self.hub.complete_all(self.world.elapsed_ns.get());
        // Who was never asked has no models.
        for at in 0..self.vms.len() {
            self.finish(at);
            self.vms[at].resume(Some(Order::Ask));
            self.finish(at);
        }
        let end_ns = self.world.elapsed_ns.get() + QUIET_MS * 1_000_000;
        while self.world.elapsed_ns.get() < end_ns {
            self.step();
            self.check()?;
        }
        let expected = self.hub.held_now();
        // Nobody leads on between two answers.
        (0..self.vms.len()).for_each(|at| self.finish(at));
        let mut counted: Option<Hits> = None;
        for at in 0..self.vms.len() {
            self.vms[at].resume(Some(Order::Ask));
            self.finish(at);
            let Some(Answer { credited, hits, used, loaded, .. }) = self.answers.borrow_mut().pop() else {
                return Err(format!("VM {at} does not answer"));
            };
            let package = self.hub.models.get(MODELS[0]).copied();
            if used != package.ok_or(TokenizeError::Unavailable) || loaded != usize::from(package.is_some()) {
                let counts = self.world.counts.borrow();
                return Err(format!("VM {at} uses {used:?} of {loaded} at the end, not {package:?}; {counts:?}"));
            }
            if credited.as_ref() != Some(&expected) {
                let counts = self.world.counts.borrow();
                return Err(format!("VM {at} knows {credited:?} at the end, the hub {expected:?}; {counts:?}"));
            }
            let most = self.hits.borrow();
            if hits.iter().any(|(at, count)| *count > most.get(at).copied().unwrap_or(0)) {
                return Err(format!("VM {at} has counted {hits:?} at the end, of {most:?}"));
            }
            let others = counted.get_or_insert_with(|| hits.clone());
            if *others != hits {
                return Err(format!("VM {at} has counted {hits:?} at the end, another {others:?}"));
            }
        }
        Ok(())
    }

    /// Lets a VM come to the end of what it does.
    fn finish(&mut self, at: usize) {
        while self.vms[at].at == Paused::BeforeHostCall {
            self.vms[at].resume(None);
        }
    }

    /// One VM makes one host call, or begins with something.
    fn step(&mut self) {
        self.listen();
        let now_ns = self.world.elapsed_ns.get();
        if now_ns >= self.next_heartbeat_ns {
            self.next_heartbeat_ns = now_ns + 300_000_000;
            let tokens: Vec<u32> = self.hub.links.keys().copied().collect();
            tokens.into_iter().for_each(|token| self.hub.send(now_ns, token, StreamBody::Heartbeat));
        }
        let awake: Vec<usize> = (0..self.vms.len()).filter(|at| self.vms[*at].stalled_until_ns <= now_ns).collect();
        let busy: Vec<usize> = awake.iter().copied().filter(|at| self.vms[*at].at == Paused::BeforeHostCall).collect();
        if !busy.is_empty() && !self.random.one_in(4) {
            let at = busy[self.random.below(busy.len() as u64) as usize];
            for _ in 0..=self.random.below(4) {
                if self.vms[at].at == Paused::BeforeHostCall {
                    self.vms[at].resume(None);
                }
            }
            return;
        }
        let idle: Vec<usize> = awake.into_iter().filter(|at| self.vms[*at].at == Paused::Idle).collect();
        let begun = !idle.is_empty() && {
            let at = idle[self.random.below(idle.len() as u64) as usize];
            self.begin(at)
        };
        if !begun {
            self.world.elapsed_ns.set(now_ns + 1_000_000 + self.random.below(25_000_000));
        }
    }

    /// An idle VM begins with what is due. False if nothing is.
    fn begin(&mut self, at: usize) -> bool {
        let now_ns = self.world.elapsed_ns.get();
        let number = self.vms[at].number;
        let owned = self
            .owners
            .borrow()
            .iter()
            .find(|(token, owner)| {
                **owner == number && self.hub.links.get(token).is_some_and(|link| !link.under_way.is_empty())
            })
            .map(|(token, _)| *token);
        let vm = &mut self.vms[at];
        let order = if vm.next_tick_ns <= now_ns {
            vm.next_tick_ns = now_ns + TICK_NS;
            let context = vm.contexts[self.random.below(vm.contexts.len() as u64) as usize];
            Order::Tick { context }
        } else if let Some(token) = owned.filter(|_| self.random.one_in(2)) {
            let Some((_, bytes)) = self.hub.links.get_mut(&token).and_then(|link| link.under_way.pop_front()) else {
                return false;
            };
            Order::Hear { token, bytes }
        } else if self.random.one_in(12) {
            Order::Ask
        } else {
            return false;
        };
        vm.resume(Some(order));
        true
    }

    /// The hub sees which streams there are.
    fn listen(&mut self) {
        let now_ns = self.world.elapsed_ns.get();
        let streams = self.world.streams.borrow();
        self.hub.links.retain(|token, _| streams.contains_key(token));
        for (token, sent) in streams.iter() {
            if let (Some(SubscriberMessage::Subscribe(subscription)), false) =
                (sent.first(), self.hub.links.contains_key(token))
            {
                self.hub.subscribed(now_ns, *token, subscription.epoch, subscription.sequence);
            }
        }
        self.hub.send_parts(now_ns, &streams, (!self.is_quiet).then_some(&mut self.random));
    }

    fn fault(&mut self) {
        let at = self.random.below(self.vms.len() as u64) as usize;
        let now_ns = self.world.elapsed_ns.get();
        match self.random.below(10) {
            0 => self.add_vm(),
            1 if self.vms.len() > 2 => self.crash(at),
            2 => self.close_all(),
            3 => {
                self.close_all();
                self.hub.restart(now_ns);
            }
            4 => self.replace_context(at),
            _ => {
                // Best in the middle of something.
                let busy: Vec<usize> =
                    (0..self.vms.len()).filter(|at| self.vms[*at].at == Paused::BeforeHostCall).collect();
                let at = busy.get(self.random.below(busy.len().max(1) as u64) as usize).copied().unwrap_or(at);
                let stall_ns = self.random.below(LONGEST_STALL_MS) * 1_000_000;
                self.vms[at].stalled_until_ns = now_ns + stall_ns;
            }
        }
    }

    fn add_vm(&mut self) {
        if self.vms.len() < MOST_VMS {
            let vm = Vm::new(self, self.next_vm);
            self.vms.push(vm);
            self.next_vm += 1;
        }
    }

    /// The VM ends in the middle of what it does; its streams end with it.
    fn crash(&mut self, at: usize) {
        let number = self.vms[at].number;
        // The coroutine is unwound, as no VM is: its host calls must not count.
        let kept = self.world.shared.borrow().clone();
        drop(self.vms.remove(at));
        *self.world.shared.borrow_mut() = kept;
        let owners = self.owners.borrow();
        self.world.streams.borrow_mut().retain(|token, _| owners.get(token) != Some(&number));
    }

    fn close_all(&mut self) {
        self.world.streams.borrow_mut().clear();
        self.hub.links.clear();
        for at in 0..self.vms.len() {
            let tokens: Vec<u32> = {
                let number = self.vms[at].number;
                let owners = self.owners.borrow();
                owners.iter().filter(|(_, owner)| **owner == number).map(|(token, _)| *token).collect()
            };
            for token in tokens {
                // A VM is told between two of its callbacks, never inside one.
                self.finish(at);
                self.vms[at].resume(Some(Order::Closed { token }));
            }
            self.finish(at);
        }
        self.owners.borrow_mut().clear();
    }

    /// A configuration update: a new root context beside the old one, which is done a little later.
    fn replace_context(&mut self, at: usize) {
        self.finish(at);
        let vm = &mut self.vms[at];
        if vm.contexts.len() > 1 {
            let context = vm.contexts.remove(0);
            vm.resume(Some(Order::Done { context }));
        } else {
            let newest = vm.contexts.iter().max().copied().unwrap_or(0);
            vm.contexts.push(newest + 1);
        }
    }

    /// Nobody may have credited what is long gone, and the log is as it was committed.
    fn check(&mut self) -> Result<(), String> {
        self.log.look(&SimHost(Rc::clone(&self.world)))?;
        for Answer { vm, at_ns, credited, used, .. } in self.answers.borrow_mut().drain(..) {
            // A generation that waits for its successor, a hub that falls silent, and stalls: of the VM that hears, of the
            // one that leads, and of the one that asks.
            let window_ns = (2 * STALE_AFTER_MS + 3 * LONGEST_STALL_MS) * 1_000_000 + SLACK_NS;
            let oldest_ns = at_ns.saturating_sub(window_ns);
            if let (Some(_), Ok(package)) = (&credited, used) {
                let had_ns = self.hub.had.get(&(MODELS[0], package)).copied().unwrap_or(0);
                if had_ns < oldest_ns {
                    let ago_ms = at_ns.saturating_sub(had_ns) / 1_000_000;
                    return Err(format!("VM {vm} uses package {package}, gone for {ago_ms} ms"));
                }
            }
            for (replica_id, key) in credited.into_iter().flatten() {
                let name = NAMES.iter().position(|name| *name == replica_id).unwrap();
                let held_ns = self.hub.held.get(&(name, key)).copied().unwrap_or(0);
                if held_ns < oldest_ns {
                    let ago_ms = at_ns.saturating_sub(held_ns) / 1_000_000;
                    return Err(format!("VM {vm} credits {replica_id} with block {key}, gone for {ago_ms} ms"));
                }
            }
        }
        Ok(())
    }
}

/// The first of these schedules that goes wrong, and how.
fn first_failure(seeds: impl Iterator<Item = u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| Sim::new(seed).run().err().map(|problem| format!("seed {seed}: {problem}")))
}

#[test]
fn every_interleaving_keeps_what_followers_see_true_and_all_recover() {
    let halves =
        [0, 1].map(|half| std::thread::spawn(move || first_failure((0..SCHEDULES).filter(|seed| seed % 2 == half))));
    for half in halves {
        let failure = half.join().unwrap();
        assert!(failure.is_none(), "{}", failure.unwrap_or_default());
    }
}

#[test]
fn each_protection_is_needed() {
    for removed in [Defect::NoPutIfAbsent, Defect::NoSlotCas, Defect::ApplyBeforeCommit, Defect::NoRingRule] {
        defect::plant(removed);
        let found = first_failure(0..SEARCHED);
        defect::plant(Defect::None);
        assert!(found.is_some(), "{removed:?} goes unnoticed");
    }
}
