//! Seeded random schedules of everything that can happen to the VMs of one Envoy.
//!
//! At any time, a VM may credit a replica only with blocks that the hub knew it to hold not longer ago than staleness
//! allows, and use only a package that the hub had for the model then. Once the faults have ended for a while, every VM
//! credits exactly what the hub knows, and uses the package that the hub has.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::hub::{Hub, KEYS, MODELS, NAMES, Random, stored};
use super::packages::{packages, used};
use super::{DOMAIN, SimHost, scope};
use crate::config::FilterConfig;
use crate::flow::follower::View;
use crate::flow::keys::Keys;
use crate::flow::node::Node;
use crate::host::{Cas, Host, SharedValue, StreamToken};
use crate::index::log::Head;
use crate::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot, StreamBody, SubscriberMessage};
use crate::request::{ChainBlock, RequestChain, TokenizeError};

const SCHEDULES: u64 = 500;
const ROUNDS: usize = 60;
/// Long enough for a log to be given up as unreadable, and for the longest pause between streams.
const QUIET_ROUNDS: usize = 140;
const ROUND_NS: u64 = 100_000_000;
const STALE_AFTER_MS: u64 = 2_000;
/// How long a message is under way at most.
const UNDER_WAY_NS: u64 = 1_000_000_000;
/// What else may pass until a VM knows that its state is stale, in the proxy's time.
const SLACK_NS: u64 = 500_000_000;
/// How long nobody may notice that the clock was set back: a lease must run out, with VMs asleep.
const UNNOTICED_NS: u64 = 6_000_000_000;
const MOST_VMS: usize = 4;

struct Sim {
    host: SimHost,
    config: FilterConfig,
    random: Random,
    vms: Vec<Vm>,
    hub: Hub,
    /// Which VM opened a stream.
    owners: BTreeMap<u32, u64>,
    next_vm: u64,
    set_back_at_ns: Vec<u64>,
    is_quiet: bool,
}

struct Vm {
    number: u64,
    node: Node,
    context: u32,
    asleep_rounds: u64,
}

// === impl Sim ===

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut random = Random(seed);
        let json = format!(
            r#"{{"hub_cluster": "hub", "models": [{{"model_id": "m"}}], "stale_after_ms": {STALE_AFTER_MS},
                "policy": {{"evictionTTL": "500h"}}, "limits": {{"pages": {}, "log_segments": {}, "lease_ticks": 3}}}}"#,
            1 + random.below(5),
            4 + random.below(8)
        );
        let mut sim = Sim {
            host: SimHost(Rc::default()),
            config: FilterConfig::from_json(json.as_bytes()).unwrap(),
            random,
            vms: Vec::new(),
            hub: Hub::new(),
            owners: BTreeMap::new(),
            next_vm: 1,
            set_back_at_ns: Vec::new(),
            is_quiet: false,
        };
        for _ in 0..=sim.random.below(3) {
            sim.add_vm();
        }
        sim
    }

    fn now_ns(&self) -> u64 {
        self.host.0.elapsed_ns.get()
    }

    fn add_vm(&mut self) {
        if self.vms.len() < MOST_VMS {
            self.vms.push(Vm { number: self.next_vm, node: Node::new(DOMAIN), context: 1, asleep_rounds: 0 });
            self.next_vm += 1;
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for round in 0..ROUNDS {
            for _ in 0..self.random.below(4) {
                let now_ns = self.now_ns();
                self.hub.live(now_ns, &mut self.random);
                if self.random.one_in(10) {
                    self.hub.live_models(now_ns, &mut self.random, 8);
                }
            }
            if self.random.one_in(3) {
                self.fault();
            }
            self.round(round)?;
        }
        self.quiet()
    }

    fn quiet(&mut self) -> Result<(), String> {
        self.host.0.hub_down.set(false);
        self.host.0.look_ns.set(0);
        self.vms.iter_mut().for_each(|vm| vm.asleep_rounds = 0);
        self.is_quiet = true;
        self.hub.complete_all(self.host.0.elapsed_ns.get());
        for round in 0..QUIET_ROUNDS {
            self.round(round)?;
        }
        self.deliver(0);
        let expected = self.hub.leading();
        for at in 0..self.vms.len() {
            let credited = self.ask(at)?;
            if credited.as_ref() != Some(&expected) {
                let head = match self.host.shared_get(&Keys::new(DOMAIN).head()) {
                    SharedValue::Present { bytes, .. } => Head::decode(&bytes).ok(),
                    SharedValue::Absent => None,
                };
                return Err(format!(
                    "VM {at} credits {credited:?} at the end, the hub knows of {expected:?}; {head:?}, counts {:?}",
                    self.host.0.counts.borrow()
                ));
            }
            let node = &self.vms[at].node;
            let (used, loaded) = (used(node.view(), node.models(), MODELS[0]), node.models().count());
            let package = self.hub.models.get(MODELS[0]).copied();
            if used != package.ok_or(TokenizeError::Unavailable) || loaded != usize::from(package.is_some()) {
                let counts = self.host.0.counts.borrow();
                return Err(format!("VM {at} uses {used:?} of {loaded} at the end, not {package:?}; {counts:?}"));
            }
        }
        Ok(())
    }

    /// What happens in a tenth of a second.
    fn round(&mut self, round: usize) -> Result<(), String> {
        self.host.0.elapsed_ns.set(self.now_ns() + ROUND_NS);
        for at in 0..self.vms.len() {
            let vm = &mut self.vms[at];
            if vm.asleep_rounds > 0 {
                vm.asleep_rounds -= 1;
                continue;
            }
            vm.node.tick(&self.host, vm.context, &self.config);
            let opened: Vec<u32> = self.host.0.streams.borrow().keys().copied().collect();
            for token in opened {
                self.owners.entry(token).or_insert(vm.number);
            }
            self.listen();
            if self.random.one_in(2) {
                let under_way_ns = self.random.below(UNDER_WAY_NS);
                self.deliver(under_way_ns);
            }
        }
        if round.is_multiple_of(3) {
            let (now_ns, tokens) = (self.now_ns(), self.hub.links.keys().copied().collect::<Vec<u32>>());
            tokens.into_iter().for_each(|token| self.hub.send(now_ns, token, StreamBody::Heartbeat));
        }
        self.deliver(UNDER_WAY_NS - 2 * ROUND_NS);
        for at in 0..self.vms.len() {
            if self.vms[at].asleep_rounds == 0 && self.random.one_in(2) {
                self.ask(at)?;
            }
        }
        Ok(())
    }

    /// The hub sees which streams there are.
    fn listen(&mut self) {
        let now_ns = self.now_ns();
        let streams = self.host.0.streams.borrow();
        self.hub.links.retain(|token, _| streams.contains_key(token));
        for (token, sent) in streams.iter().filter(|(token, _)| self.owners.contains_key(*token)) {
            if let (Some(SubscriberMessage::Subscribe(subscription)), false) =
                (sent.first(), self.hub.links.contains_key(token))
            {
                self.hub.subscribed(now_ns, *token, subscription.epoch, subscription.sequence);
            }
        }
        self.hub.send_parts(now_ns, &streams, (!self.is_quiet).then_some(&mut self.random));
        for (token, sent) in streams.iter() {
            let acknowledged = sent.iter().map(|message| match message {
                SubscriberMessage::Acknowledge(number) => *number,
                SubscriberMessage::Subscribe(_) | SubscriberMessage::WantModel { .. } => 0,
            });
            let most = self.hub.links.get(token).map_or(0, |link| link.number);
            assert!(acknowledged.max().unwrap_or(0) <= most, "acknowledged what was never sent over this stream");
        }
    }

    /// Delivers what has been under way for at least this long.
    fn deliver(&mut self, under_way_ns: u64) {
        let now_ns = self.now_ns();
        let tokens: Vec<u32> = self.hub.links.keys().copied().collect();
        for token in tokens {
            let owner = self.owners.get(&token).copied();
            let Some(at) = self.vms.iter().position(|vm| Some(vm.number) == owner && vm.asleep_rounds == 0) else {
                continue;
            };
            while let Some(link) = self.hub.links.get_mut(&token)
                && link.under_way.front().is_some_and(|(sent_ns, _)| sent_ns + under_way_ns <= now_ns)
                && let Some((_, bytes)) = link.under_way.pop_front()
            {
                self.vms[at].node.on_stream_message(&self.host, StreamToken(token), &bytes, &self.config);
                self.listen();
            }
        }
    }

    fn close(&mut self, token: u32) {
        self.host.0.streams.borrow_mut().remove(&token);
        self.listen();
        self.vms.iter_mut().for_each(|vm| vm.node.on_stream_closed(&self.host, StreamToken(token)));
    }

    fn close_all(&mut self) {
        let tokens: Vec<u32> = self.host.0.streams.borrow().keys().copied().collect();
        tokens.into_iter().for_each(|token| self.close(token));
    }

    fn fault(&mut self) {
        let at = self.random.below(self.vms.len() as u64) as usize;
        match self.random.below(18) {
            0 => self.add_vm(),
            1 if self.vms.len() > 1 => self.remove_vm(at),
            2 => {
                let vm = &mut self.vms[at];
                vm.node.on_done(&self.host, vm.context);
                vm.context += 1;
                self.listen();
            }
            3 => self.vms[at].asleep_rounds = self.random.below(20),
            4 => self.overwrite(|_| Keys::new(DOMAIN).head()),
            5 | 6 => self.overwrite(|random| Keys::new(DOMAIN).page(random.below(6) as u32)),
            7..=9 => self.overwrite(|random| {
                let ring = 12;
                Keys::new(DOMAIN).log(random.below(ring), ring as u32)
            }),
            10 => self.set_clock(),
            11 => {
                self.close_all();
                let now_ns = self.now_ns();
                self.hub.restart(now_ns);
            }
            12 => {
                self.close_all();
                let down = self.host.0.hub_down.get();
                self.host.0.hub_down.set(!down);
            }
            13 => self.host.0.look_ns.set(self.random.below(3) * 150_000),
            14 => self.say_something_wrong(),
            15 => self.overwrite(|random| {
                let made = &packages()[random.below(packages().len() as u64) as usize];
                Keys::new(DOMAIN).model_part(made.version.digest, random.below(made.parts.len() as u64) as u32)
            }),
            16 => self.overwrite(|_| Keys::new(DOMAIN).model_list()),
            _ => self.close_all(),
        }
    }

    fn remove_vm(&mut self, at: usize) {
        let mut vm = self.vms.remove(at);
        if self.random.one_in(2) {
            vm.node.on_done(&self.host, vm.context);
        }
        let owned: Vec<u32> =
            self.owners.iter().filter(|(_, owner)| **owner == vm.number).map(|(token, _)| *token).collect();
        owned.into_iter().for_each(|token| self.close(token));
    }

    /// Somebody else writes: something else entirely, half of the value, or another value.
    fn overwrite(&mut self, key: impl Fn(&mut Random) -> String) {
        let (key, other) = (key(&mut self.random), key(&mut self.random));
        let SharedValue::Present { bytes, .. } = self.host.shared_get(&key) else { return };
        let garbage = match self.random.below(3) {
            0 => b"garbage".to_vec(),
            1 => bytes[..bytes.len() / 2].to_vec(),
            _ => match self.host.shared_get(&other) {
                SharedValue::Present { bytes, .. } if Head::decode(&bytes).is_err() => bytes,
                _ => Vec::new(),
            },
        };
        self.host.shared_set(&key, &garbage, Cas(0));
    }

    fn set_clock(&mut self) {
        let by_ns = (self.random.below(7_200_000) as i64 - 3_600_000) * 1_000_000;
        if by_ns < 0 {
            self.set_back_at_ns.push(self.now_ns());
        }
        self.host.0.skew_ns.set(self.host.0.skew_ns.get() + by_ns);
    }

    /// A message that breaks the contract, to whoever has a stream.
    fn say_something_wrong(&mut self) {
        let now_ns = self.now_ns();
        let Some(token) = self.hub.links.keys().copied().next_back() else { return };
        let wrong = match self.random.below(4) {
            0 => StreamBody::Delta { first_sequence: self.hub.sequence + 5, observations: vec![] },
            1 => StreamBody::ResetComplete,
            2 => StreamBody::Delta {
                first_sequence: self.hub.sequence,
                observations: vec![stored(999, ScopeSlot(1), &[1])],
            },
            _ => StreamBody::Chunk(vec![Observation::Cleared { replica: ReplicaSlot(998) }]),
        };
        self.hub.send(now_ns, token, wrong);
    }

    /// The oldest time at which a credited block may last have been held.
    fn oldest_allowed_ns(&self) -> u64 {
        // A generation that waits for its successor, and then a hub that falls silent.
        let window_ns = 2 * STALE_AFTER_MS * 1_000_000 + UNDER_WAY_NS + SLACK_NS;
        let mut oldest_ns = self.now_ns().saturating_sub(window_ns);
        // Setting the clock back begins a staleness anew.
        for set_back_ns in self.set_back_at_ns.iter().rev() {
            if oldest_ns.saturating_sub(UNNOTICED_NS) < *set_back_ns {
                oldest_ns = oldest_ns.min(set_back_ns.saturating_sub(window_ns));
            }
        }
        oldest_ns
    }

    /// What a VM credits, in blocks by replica; none if it would say nothing.
    fn ask(&mut self, at: usize) -> Result<Option<BTreeMap<String, u64>>, String> {
        let oldest_ns = self.oldest_allowed_ns();
        let now_ms = self.host.now_ms();
        let known = self.vms[at].node.ask(&self.host, 5_000_000);
        let View::Index(index) = known.view else { return Ok(None) };
        if known.heard_ms.is_none() || known.is_stale(STALE_AFTER_MS, now_ms) {
            return Ok(None);
        }
        if let Ok(package) = used(known.view, known.models, MODELS[0]) {
            let had_ns = self.hub.had.get(&(MODELS[0], package)).copied().unwrap_or(0);
            if had_ns < oldest_ns {
                let ago_ms = (self.host.0.elapsed_ns.get() - had_ns) / 1_000_000;
                return Err(format!("VM {at} uses package {package}, gone for {ago_ms} ms"));
            }
        }
        let Some(slot) = index.dictionary().scope_slot(&scope()) else { return Ok(Some(BTreeMap::new())) };
        let chain = (1..=KEYS).map(|key| ChainBlock { key: BlockKey::Hash64(key), tokens: 1 }).collect();
        let mut credited = BTreeMap::new();
        for run in index.leading_runs(slot, &RequestChain::Chain(chain), 0) {
            let Some(replica) = index.dictionary().complete_replica(run.replica) else { continue };
            let blocks = run.blocks as u64;
            let Some(name) = NAMES.iter().position(|name| *name == &*replica.replica_id) else { continue };
            for key in 1..=blocks {
                let held_ns = self.hub.held.get(&(name, key)).copied().unwrap_or(0);
                if held_ns < oldest_ns {
                    let ago_ms = (self.host.0.elapsed_ns.get() - held_ns) / 1_000_000;
                    return Err(format!("VM {at} credits {} with block {key}, gone for {ago_ms} ms", NAMES[name]));
                }
            }
            if credited.insert(replica.replica_id.to_string(), blocks).is_some() {
                return Err(format!("VM {at} credits {} twice", NAMES[name]));
            }
        }
        Ok(Some(credited))
    }
}

#[test]
fn no_schedule_makes_a_vm_credit_what_is_gone_and_all_recover() {
    for seed in 0..SCHEDULES {
        if let Err(problem) = Sim::new(seed).run() {
            panic!("seed {seed}: {problem}");
        }
    }
}
