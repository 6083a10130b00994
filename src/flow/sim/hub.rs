//! A hub that keeps its side of the Observe stream's contract, and remembers what it knew when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::packages::{LARGE, packages};
use super::{START_NS, scope};
use crate::observation::{
    BlockKey, Member, ModelDigest, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock, StreamBody, StreamMessage,
    SubscriberMessage, Tier,
};
use crate::wire;
use prost::Message;

pub const KEYS: u64 = 10;
pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Of which the VMs' configuration names the first.
pub const MODELS: [&str; 2] = ["m", "n"];

/// A hub that keeps its side of the contract.
pub struct Hub {
    pub epoch: u64,
    pub sequence: u64,
    pub next_number: u32,
    /// The number of the one scope; none while nothing needs it.
    pub scope: Option<ScopeSlot>,
    pub next_scope: u32,
    pub generations: BTreeMap<u32, Generation>,
    pub retained: VecDeque<(u64, Vec<Observation>)>,
    pub links: BTreeMap<u32, Link>,
    /// When the hub last knew a replica to hold a block; `u64::MAX` while it does.
    pub held: BTreeMap<(usize, u64), u64>,
    /// The package of each model that has one.
    pub models: BTreeMap<&'static str, usize>,
    /// When a model last had a package; `u64::MAX` while it does.
    pub had: BTreeMap<(&'static str, usize), u64>,
}

pub struct Generation {
    pub name: usize,
    pub complete: bool,
    pub blocks: BTreeSet<u64>,
}

#[derive(Default)]
pub struct Link {
    pub number: u64,
    /// When each message was sent, and its bytes.
    pub under_way: VecDeque<(u64, Vec<u8>)>,
    /// How many of the subscriber's messages were heard.
    pub heard: usize,
}

/// A 64-bit generator (splitmix64, public domain, by Sebastiano Vigna).
pub struct Random(pub u64);

// === impl Random ===

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

// === impl Hub ===

impl Hub {
    pub fn new() -> Hub {
        let mut hub = Hub {
            epoch: 0,
            sequence: 0,
            next_number: 1,
            scope: None,
            next_scope: 1,
            generations: BTreeMap::new(),
            retained: VecDeque::new(),
            links: BTreeMap::new(),
            held: BTreeMap::new(),
            models: BTreeMap::new(),
            had: BTreeMap::new(),
        };
        hub.restart(0);
        hub
    }

    pub fn restart(&mut self, now_ns: u64) {
        self.epoch += 1;
        self.sequence = 0;
        self.next_number = 1;
        self.next_scope = 1;
        self.generations.clear();
        self.retained.clear();
        self.links.clear();
        self.name_scope(now_ns);
    }

    /// The scope is needed, under a number of its own.
    pub fn name_scope(&mut self, now_ns: u64) {
        let slot = ScopeSlot(self.next_scope);
        self.next_scope += 1;
        self.scope = Some(slot);
        self.change(now_ns, vec![Observation::Scope { slot, scope: scope() }]);
    }

    /// Every replica loses all that it holds, and with it the scope goes.
    pub fn end_scope(&mut self, now_ns: u64) {
        let Some(scope) = self.scope.take() else { return };
        let lost = |(number, generation): (&u32, &mut Generation)| {
            let keys = std::mem::take(&mut generation.blocks).into_iter().map(BlockKey::Hash64).collect();
            Observation::Removed { replica: ReplicaSlot(*number), scope, keys }
        };
        let mut observations: Vec<Observation> = self.generations.iter_mut().map(lost).collect();
        observations.push(Observation::ScopeGone { slot: scope });
        self.change(now_ns, observations);
    }

    pub fn change(&mut self, now_ns: u64, observations: Vec<Observation>) {
        self.sequence += 1;
        self.retained.push_back((self.sequence, observations.clone()));
        if self.retained.len() > 15 {
            self.retained.pop_front();
        }
        let body = StreamBody::Delta { first_sequence: self.sequence, observations };
        let tokens: Vec<u32> = self.links.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.send(now_ns, token, body.clone()));
        self.note(now_ns);
    }

    pub fn send(&mut self, now_ns: u64, token: u32, body: StreamBody) {
        let (epoch, sequence) = (self.epoch, self.sequence);
        let link = self.links.entry(token).or_default();
        link.number += 1;
        let message = StreamMessage { number: link.number, epoch, sequence, body };
        link.under_way.push_back((now_ns, wire::stream_message_to_proto(&message).encode_to_vec()));
    }

    pub fn note(&mut self, now_ns: u64) {
        for at in self.held.values_mut().filter(|at| **at == u64::MAX) {
            *at = now_ns;
        }
        for Generation { name, blocks, .. } in self.generations.values() {
            self.held.extend(blocks.iter().map(|key| ((*name, *key), u64::MAX)));
        }
        for at in self.had.values_mut().filter(|at| **at == u64::MAX) {
            *at = now_ns;
        }
        self.had.extend(self.models.iter().map(|had| ((*had.0, *had.1), u64::MAX)));
    }

    /// A model gets a package, a large one once in so many times, or has none any more.
    pub fn live_models(&mut self, now_ns: u64, random: &mut Random, one_in: u64) {
        let model_id = MODELS[random.below(MODELS.len() as u64) as usize];
        if random.one_in(4) {
            self.models.remove(model_id);
            return self.change(now_ns, vec![Observation::ModelGone { model_id: model_id.to_owned() }]);
        }
        let package = if random.one_in(one_in) { LARGE } else { random.below(LARGE as u64) as usize };
        self.models.insert(model_id, package);
        self.change(now_ns, vec![announcement(model_id, package)]);
    }

    /// Sends the parts that subscribers asked for since it last looked; where it is `flaky`, not all of them, or others.
    pub fn send_parts(
        &mut self,
        now_ns: u64,
        streams: &BTreeMap<u32, Vec<SubscriberMessage>>,
        mut flaky: Option<&mut Random>,
    ) {
        for (token, sent) in streams {
            let Some(link) = self.links.get_mut(token) else { continue };
            let heard = std::mem::replace(&mut link.heard, sent.len());
            for message in sent.iter().skip(heard) {
                let SubscriberMessage::WantModel { digest, first_part } = message else { continue };
                let Some(made) = packages().iter().find(|made| made.version.digest == *digest) else { continue };
                for part in made.parts.iter().skip(*first_part as usize) {
                    let mut part = part.clone();
                    match flaky.as_mut().map_or(u64::MAX, |random| random.below(12)) {
                        0 => continue,
                        1 => part.number += made.version.parts(),
                        2 => part.digest = ModelDigest(1),
                        3 => part.contents.truncate(7),
                        4 => self.send(now_ns, *token, StreamBody::ModelPart(part.clone())),
                        _ => {}
                    }
                    self.send(now_ns, *token, StreamBody::ModelPart(part));
                }
            }
        }
    }

    /// Answers a subscription.
    pub fn subscribed(&mut self, now_ns: u64, token: u32, epoch: u64, sequence: u64) {
        self.links.insert(token, Link::default());
        let oldest = self.retained.front().map_or(self.sequence, |(sequence, _)| sequence - 1);
        if epoch == self.epoch && (oldest..=self.sequence).contains(&sequence) {
            // Each message carries its own position, so they are sent as if they happened now.
            let here = self.sequence;
            self.sequence = sequence;
            self.send(now_ns, token, StreamBody::Resumed);
            let missed: Vec<_> = self.retained.iter().filter(|(at, _)| *at > sequence).cloned().collect();
            for (at, observations) in missed {
                self.sequence = at;
                self.send(now_ns, token, StreamBody::Delta { first_sequence: at, observations });
            }
            self.sequence = here;
            return;
        }
        self.send(now_ns, token, StreamBody::Reset);
        let named = self.scope.map(|slot| Observation::Scope { slot, scope: scope() });
        let models = self.models.iter().map(|(model_id, package)| announcement(model_id, *package));
        let first = models.chain(named).collect();
        self.send(now_ns, token, StreamBody::Chunk(first));
        let chunks = self.generations.iter().map(|(number, generation)| generation.chunk(*number, self.scope));
        let chunks: Vec<_> = chunks.collect();
        chunks.into_iter().for_each(|chunk| self.send(now_ns, token, StreamBody::Chunk(chunk)));
        self.send(now_ns, token, StreamBody::ResetComplete);
    }

    pub fn newest(&self, name: usize) -> Option<u32> {
        self.generations.iter().rfind(|(_, generation)| generation.name == name).map(|(number, _)| *number)
    }

    /// Something happens at a replica.
    pub fn live(&mut self, now_ns: u64, random: &mut Random) {
        let Some(scope) = self.scope else {
            if random.one_in(3) {
                self.name_scope(now_ns);
            }
            return;
        };
        if random.one_in(30) {
            return self.end_scope(now_ns);
        }
        let name = random.below(NAMES.len() as u64) as usize;
        let Some(number) = self.newest(name).filter(|_| !random.one_in(10)) else {
            return self.announce(now_ns, name, random.one_in(3));
        };
        let from = 1 + random.below(KEYS);
        let keys: Vec<u64> = (from..=KEYS.min(from + random.below(5))).collect();
        let replica = ReplicaSlot(number);
        let Some(generation) = self.generations.get_mut(&number) else { return };
        let observation = match random.below(20) {
            0..11 => {
                let keys = if random.one_in(2) { (1..=keys[0]).collect() } else { keys };
                generation.blocks.extend(&keys);
                stored(number, scope, &keys)
            }
            11..16 => {
                generation.blocks.retain(|key| !keys.contains(key));
                let keys = keys.into_iter().map(BlockKey::Hash64).collect();
                Observation::Removed { replica, scope, keys }
            }
            16 => {
                generation.blocks.clear();
                self.complete(number);
                Observation::Cleared { replica }
            }
            17 => {
                self.generations.retain(|_, generation| generation.name != name);
                Observation::ReplicaGone { replica }
            }
            _ => {
                self.complete(number);
                Observation::ReplicaComplete { replica }
            }
        };
        self.change(now_ns, vec![observation]);
    }

    pub fn announce(&mut self, now_ns: u64, name: usize, at_once: bool) {
        let number = self.next_number;
        self.next_number += 1;
        self.generations.insert(number, Generation { name, complete: false, blocks: BTreeSet::new() });
        let mut observations = vec![up(number, name)];
        if at_once {
            self.complete(number);
            observations.push(Observation::ReplicaComplete { replica: ReplicaSlot(number) });
        }
        self.change(now_ns, observations);
    }

    pub fn complete(&mut self, number: u32) {
        let Some(generation) = self.generations.get_mut(&number) else { return };
        generation.complete = true;
        let name = generation.name;
        self.generations.retain(|other, generation| generation.name != name || *other >= number);
    }

    pub fn complete_all(&mut self, now_ns: u64) {
        for name in 0..NAMES.len() {
            if let Some(number) = self.newest(name) {
                self.complete(number);
                self.change(now_ns, vec![Observation::ReplicaComplete { replica: ReplicaSlot(number) }]);
            }
        }
    }

    /// What every complete replica holds, block by block.
    pub fn held_now(&self) -> BTreeSet<(String, u64)> {
        let complete = self.generations.values().filter(|generation| generation.complete);
        let held = |generation: &Generation| {
            let name = NAMES[generation.name].to_owned();
            generation.blocks.iter().map(move |key| (name.clone(), *key)).collect::<Vec<_>>()
        };
        complete.flat_map(held).collect()
    }

    /// Leading blocks by replica.
    pub fn leading(&self) -> BTreeMap<String, u64> {
        let complete = self.generations.values().filter(|generation| generation.complete);
        let leading = complete.map(|generation| {
            let blocks = (1..=KEYS).take_while(|key| generation.blocks.contains(key)).count() as u64;
            (NAMES[generation.name].to_owned(), blocks)
        });
        leading.filter(|(_, blocks)| *blocks > 0).collect()
    }
}

// === impl Generation ===

impl Generation {
    pub fn chunk(&self, number: u32, scope: Option<ScopeSlot>) -> Vec<Observation> {
        let keys: Vec<u64> = self.blocks.iter().copied().collect();
        let mut observations = vec![up(number, self.name)];
        observations.extend(scope.map(|scope| stored(number, scope, &keys)));
        if self.complete {
            observations.push(Observation::ReplicaComplete { replica: ReplicaSlot(number) });
        }
        observations
    }
}

fn announcement(model_id: &str, package: usize) -> Observation {
    Observation::Model { model_id: model_id.to_owned(), version: packages()[package].version }
}

pub fn up(number: u32, name: usize) -> Observation {
    let address = format!("10.0.0.{name}:80");
    Observation::ReplicaUp {
        replica: ReplicaSlot(number),
        member: Member::new("t", "m", NAMES[name]),
        address,
        data_parallel_rank: None,
    }
}

pub fn stored(number: u32, scope: ScopeSlot, keys: &[u64]) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(number),
        scope,
        tier: Tier::T1,
        last_seen_ms: START_NS / 1_000_000,
        blocks: keys.iter().map(|key| StoredBlock { key: BlockKey::Hash64(*key), token_count: 16 }).collect(),
        ..Stored::default()
    })
}
