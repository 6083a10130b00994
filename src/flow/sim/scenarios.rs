//! One thing after another, each with its outcome.

mod full;
mod hubs;
mod metered;
mod models;
mod new_log;
mod steady;
mod widths;

use std::rc::Rc;

use super::{DOMAIN, START_NS, SimHost, scope};
use crate::config::FilterConfig;
use crate::flow::follower::View;
use crate::flow::keys::Keys;
use crate::flow::metrics;
use crate::flow::node::Node;
use crate::host::{Cas, Host, SharedValue, SharedWrite, StreamToken};
use crate::index::log::Head;
use crate::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ReplicaStats, ScopeSlot, Stored, StoredBlock, StreamBody,
    StreamMessage, SubscriberMessage, Subscription, Tier,
};
use crate::request::{ChainBlock, RequestChain};
use crate::routing::policy::Policy;
use crate::wire;
use prost::Message;

/// A hub of one replica, and the VMs that follow it.
pub(super) struct Pool {
    pub(super) host: SimHost,
    pub(super) config: FilterConfig,
    pub(super) vms: Vec<Node>,
    number: u64,
    epoch: u64,
    sequence: u64,
}

// === impl Pool ===

impl Pool {
    pub(super) fn new(vms: usize) -> Pool {
        let json = br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}],
                        "limits": {"pages": 4, "log_segments": 8, "lease_ticks": 3}}"#;
        Pool {
            host: SimHost(Rc::default()),
            config: FilterConfig::from_json(json).unwrap(),
            vms: (0..vms).map(|_| Node::new(DOMAIN)).collect(),
            number: 0,
            epoch: 7,
            sequence: 0,
        }
    }

    pub(super) fn tick(&mut self, vm: usize) {
        let world = &self.host.0;
        world.elapsed_ns.set(world.elapsed_ns.get() + 100_000_000);
        self.vms[vm].tick(&self.host, 1, &self.config);
    }

    pub(super) fn tick_all(&mut self, times: usize) {
        for _ in 0..times {
            (0..self.vms.len()).for_each(|vm| self.tick(vm));
        }
    }

    /// The subscription and the acknowledged number of the only open stream.
    fn stream(&self) -> (StreamToken, Subscription, u64) {
        let streams = self.host.0.streams.borrow();
        assert_eq!(streams.len(), 1, "one VM observes");
        let (token, sent) = streams.iter().next().unwrap();
        let Some(SubscriberMessage::Subscribe(subscription)) = sent.first() else { panic!("no subscription") };
        let acknowledged = sent.iter().map(|message| match message {
            SubscriberMessage::Acknowledge(number) => *number,
            SubscriberMessage::Subscribe(_) | SubscriberMessage::WantModel { .. } => 0,
        });
        (StreamToken(*token), subscription.clone(), acknowledged.max().unwrap())
    }

    /// What the stream asks for that is opened after the next pause.
    fn subscription_after_a_pause(&mut self) -> Subscription {
        self.tick(0);
        while self.host.0.streams.borrow().is_empty() {
            self.tick(0);
        }
        self.number = 0;
        self.stream().1
    }

    /// Says something over the open stream to whichever VM holds it.
    fn say(&mut self, body: StreamBody) {
        let (token, ..) = self.stream();
        self.number += 1;
        let message = StreamMessage { number: self.number, epoch: self.epoch, sequence: self.sequence, body };
        let bytes = wire::stream_message_to_proto(&message).encode_to_vec();
        for vm in &mut self.vms {
            vm.on_stream_message(&self.host, token, &bytes, &self.config);
        }
    }

    pub(super) fn delta(&mut self, observations: Vec<Observation>) {
        self.sequence += 1;
        self.say(StreamBody::Delta { first_sequence: self.sequence, observations });
    }

    pub(super) fn reset(&mut self, keys: &[u64]) {
        self.number = 0;
        self.say(StreamBody::Reset);
        self.say(StreamBody::Chunk(vec![
            Observation::Scope { slot: ScopeSlot(1), scope: scope() },
            up(1, "a", "10.0.0.1:80"),
            stored(keys),
            Observation::ReplicaComplete { replica: ReplicaSlot(1) },
        ]));
        self.say(StreamBody::ResetComplete);
    }

    /// Tokens that a VM would credit the replica with, for the chain 1, 2, 3, …; none while it catches up.
    fn credited(&mut self, vm: usize) -> Option<i64> {
        let known = self.vms[vm].ask(&self.host, 5_000_000);
        let View::Index(index) = known.view else { return None };
        let chain = (1..=200).map(|key| ChainBlock { key: BlockKey::Hash64(key), tokens: 16 }).collect();
        let Some(slot) = index.dictionary().scope_slot(&scope()) else { return Some(0) };
        let runs = index.leading_runs(slot, &RequestChain::Chain(chain), 0);
        assert!(runs.len() <= 1, "one replica, one generation");
        Some(runs.first().map_or(0, |run| run.matched_tokens))
    }

    pub(super) fn head(&self) -> Head {
        match self.host.shared_get(&Keys::new(DOMAIN).head()) {
            SharedValue::Present { bytes, .. } => Head::decode(&bytes).unwrap(),
            SharedValue::Absent => panic!("no head"),
        }
    }
}

fn up(number: u32, replica_id: &str, address: &str) -> Observation {
    Observation::ReplicaUp {
        replica: ReplicaSlot(number),
        member: Member::new("t", "m", replica_id),
        address: address.into(),
        data_parallel_rank: None,
    }
}

pub(super) fn stored(keys: &[u64]) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(1),
        tier: Tier::T1,
        last_seen_ms: START_NS / 1_000_000,
        blocks: keys.iter().map(|key| StoredBlock { key: BlockKey::Hash64(*key), token_count: 16 }).collect(),
        ..Stored::default()
    })
}

fn removed(keys: &[u64]) -> Observation {
    Observation::Removed {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(1),
        keys: keys.iter().map(|key| BlockKey::Hash64(*key)).collect(),
    }
}

#[test]
fn one_vm_leads_and_all_see_what_it_commits() {
    let mut pool = Pool::new(3);
    pool.tick_all(3);
    let (_, subscription, _) = pool.stream();
    assert_eq!((subscription.epoch, subscription.sequence), (0, 0));
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    assert_eq!([0, 1, 2].map(|vm| pool.credited(vm)), [Some(48); 3]);
    pool.delta(vec![removed(&[3])]);
    pool.tick_all(1);
    assert_eq!([0, 1, 2].map(|vm| pool.credited(vm)), [Some(32); 3]);
    pool.delta(vec![Observation::Cleared { replica: ReplicaSlot(1) }]);
    pool.tick_all(1);
    assert_eq!([0, 1, 2].map(|vm| pool.credited(vm)), [Some(0); 3]);
    pool.delta(vec![stored(&[1])]);
    pool.tick_all(1);
    assert_eq!([0, 1, 2].map(|vm| pool.credited(vm)), [Some(16); 3]);
    let (.., acknowledged) = pool.stream();
    assert_eq!(acknowledged, pool.number);
}

#[test]
fn a_vm_that_does_not_serve_relieves_a_leader_that_does() {
    let mut pool = Pool::new(2);
    pool.tick(0);
    pool.tick(1);
    pool.credited(0);
    pool.tick_all(4);
    assert!(!pool.head().leader_serves);
    pool.credited(1);
    pool.tick_all(20);
    assert!(pool.head().leader_serves, "where all serve, one of them leads on");
    pool.stream();
}

#[test]
fn a_new_leader_resumes_where_the_log_ends() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2]);
    pool.delta(vec![
        stored(&[3]),
        Observation::Stats {
            replica: ReplicaSlot(1),
            stats: ReplicaStats { pressure: 0.5, hit_rate: 0.0, reported_ms: 1 },
        },
    ]);
    pool.tick_all(1);
    // The leader's plugin is removed: its stream ends, and its VM ticks no more.
    pool.vms[0].on_done(&pool.host, 1);
    for _ in 0..6 {
        pool.tick(1);
    }
    let (_, subscription, _) = pool.stream();
    assert_eq!((subscription.epoch, subscription.sequence), (7, 1));
    pool.number = 0;
    pool.say(StreamBody::Resumed);
    pool.delta(vec![removed(&[2])]);
    pool.tick(1);
    assert_eq!(pool.credited(1), Some(16));
}

#[test]
fn a_head_that_somebody_overwrote_begins_a_new_log_and_hints_go_on() {
    let mut pool = Pool::new(3);
    pool.tick_all(3);
    pool.reset(&[1, 2]);
    pool.tick_all(1);
    assert_eq!(pool.credited(2), Some(32));
    let before = pool.head().incarnation;
    let key = Keys::new(DOMAIN).head();
    assert_eq!(pool.host.shared_set(&key, b"not a head", Cas(0)), SharedWrite::Stored);
    pool.tick_all(1);
    assert_eq!(pool.credited(2), Some(32), "until the new log is complete");
    pool.tick_all(12);
    assert_ne!(pool.head().incarnation, before);
    assert_eq!(pool.credited(2), Some(32));
    let (_, subscription, _) = pool.stream();
    assert_eq!((subscription.epoch, subscription.sequence), (0, 0));
    pool.reset(&[1]);
    pool.tick_all(2);
    assert_eq!([0, 1, 2].map(|vm| pool.credited(vm)), [Some(16); 3]);
}

#[test]
fn a_vm_that_slept_through_the_ring_loads_the_pages() {
    let mut pool = Pool::new(3);
    pool.tick_all(3);
    pool.reset(&[1]);
    pool.tick_all(1);
    assert_eq!(pool.credited(2), Some(16));
    for key in 2..=60 {
        pool.delta(vec![stored(&[key])]);
        pool.tick(0);
        pool.tick(1);
    }
    assert!(pool.head().first > 1, "the ring has gone round");
    assert_eq!(pool.credited(2), Some(60 * 16));
    assert_eq!(pool.credited(1), Some(60 * 16), "from nothing");
}

#[test]
fn a_hub_that_restarts_takes_its_old_state_along_only_until_the_reset_is_complete() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    let (token, ..) = pool.stream();
    pool.host.0.streams.borrow_mut().clear();
    pool.vms.iter_mut().for_each(|vm| vm.on_stream_closed(&pool.host, token));
    pool.tick_all(4);
    pool.epoch = 8;
    pool.sequence = 0;
    pool.number = 0;
    pool.say(StreamBody::Reset);
    pool.say(StreamBody::Chunk(vec![
        Observation::Scope { slot: ScopeSlot(1), scope: scope() },
        up(1, "a", "10.0.0.1:80"),
    ]));
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(48), "old entries serve until the replica is complete");
    pool.say(StreamBody::ResetComplete);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(48), "even when that comes after the reset");
    pool.delta(vec![stored(&[1]), Observation::ReplicaComplete { replica: ReplicaSlot(1) }]);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(16));
}

#[test]
fn a_replica_that_a_reset_does_not_name_is_gone_with_its_completion() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    pool.say(StreamBody::Reset);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(48));
    pool.say(StreamBody::ResetComplete);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(0));
}

#[test]
fn a_gap_or_an_unknown_number_begins_the_stream_anew() {
    for bad in [
        StreamBody::Delta { first_sequence: 5, observations: vec![] },
        StreamBody::Delta { first_sequence: 1, observations: vec![Observation::Cleared { replica: ReplicaSlot(9) }] },
        StreamBody::Chunk(vec![]),
    ] {
        let mut pool = Pool::new(2);
        pool.tick_all(3);
        pool.reset(&[1]);
        pool.tick_all(1);
        let (token, ..) = pool.stream();
        pool.say(bad.clone());
        assert!(pool.host.0.streams.borrow().is_empty(), "{bad:?}");
        pool.tick_all(4);
        let (again, subscription, _) = pool.stream();
        assert_ne!(token, again);
        assert_eq!((subscription.epoch, subscription.sequence), (0, 0));
        assert_eq!(pool.credited(1), Some(16), "what was known stays");
    }
}

#[test]
fn a_leader_that_slept_writes_nothing_once_another_leads() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1]);
    pool.tick_all(1);
    let (old, ..) = pool.stream();
    for _ in 0..6 {
        pool.tick(1);
    }
    assert_eq!(pool.host.0.streams.borrow().len(), 2, "the sleeper does not know yet");
    // A message for the sleeper, as if it had been on its way.
    let message = StreamMessage {
        number: 4,
        epoch: 7,
        sequence: 1,
        body: StreamBody::Delta { first_sequence: 1, observations: vec![stored(&[2])] },
    };
    let bytes = wire::stream_message_to_proto(&message).encode_to_vec();
    let before = pool.head();
    pool.vms[0].on_stream_message(&pool.host, old, &bytes, &pool.config);
    pool.tick(0);
    assert_eq!((pool.head().term, pool.head().last), (before.term, before.last));
    let (token, ..) = pool.stream();
    assert_ne!(token, old, "the sleeper has given its stream up");
    assert_eq!(pool.credited(0), Some(16));
}

#[test]
fn a_log_that_cannot_be_read_is_begun_anew() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1]);
    pool.tick_all(1);
    let before = pool.head();
    let key = Keys::new(DOMAIN).log(before.last, before.ring);
    *pool.host.0.broken.borrow_mut() = Some(key);
    for _ in 0..70 {
        pool.tick(1);
    }
    assert_ne!(pool.head().incarnation, before.incarnation);
    // The new log overwrites the slot that was broken.
    *pool.host.0.broken.borrow_mut() = None;
    pool.tick(1);
    pool.tick(0);
    pool.number = 0;
    pool.reset(&[1, 2]);
    pool.tick_all(2);
    assert_eq!(pool.credited(0), Some(32));
}

#[test]
fn a_page_that_somebody_overwrote_is_rewritten_though_the_hub_says_nothing() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1]);
    for key in 2..=40 {
        pool.delta(vec![stored(&[key])]);
        pool.tick_all(1);
    }
    assert!(pool.head().first > 1, "the pages are needed");
    for page in 0..5 {
        pool.host.shared_set(&Keys::new(DOMAIN).page(page), b"garbage", Cas(0));
    }
    pool.vms.push(Node::new(DOMAIN));
    assert_eq!(pool.credited(2), None);
    pool.tick_all(8);
    assert_eq!(pool.credited(2), Some(40 * 16));
}

#[test]
fn a_vm_behind_a_segment_that_cannot_be_read_goes_stale_and_the_leader_takes_it_out() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(48));
    pool.delta(vec![removed(&[3])]);
    pool.tick(0);
    let head = pool.head();
    let slot = Keys::new(DOMAIN).log(head.last, head.ring);
    pool.host.shared_set(&slot, b"garbage", Cas(0));
    let known = pool.vms[1].ask(&pool.host, 5_000_000);
    assert!(known.heard_ms.is_some_and(|heard_ms| heard_ms < head.heard_ms), "it has not seen what the hub said then");
    for _ in 0..8 {
        pool.tick(0);
    }
    assert!(pool.head().first > head.last);
    assert_eq!(pool.credited(1), Some(32));
}

#[test]
fn a_clock_that_is_set_back_by_an_hour_keeps_no_stream_from_being_opened() {
    let mut pool = Pool::new(1);
    pool.tick_all(3);
    let (token, ..) = pool.stream();
    pool.host.0.streams.borrow_mut().clear();
    pool.vms[0].on_stream_closed(&pool.host, token);
    pool.host.0.skew_ns.set(-3_600_000_000_000);
    pool.tick_all(1);
    pool.stream();
}

/// What expired by the wrong time is told again.
#[test]
fn after_the_clock_was_an_hour_ahead_what_is_held_is_known_again() {
    // The hub may be heard before the leader looks at the clock by itself.
    for is_heard_first in [false, true] {
        let mut pool = Pool::new(1);
        pool.tick_all(3);
        pool.reset(&[1, 2, 3]);
        pool.tick_all(1);
        assert_eq!(pool.credited(0), Some(48));
        for (skew_ns, credited) in [(3_600_000_000_000, 0), (0, 48)] {
            pool.host.0.skew_ns.set(skew_ns);
            if is_heard_first {
                pool.say(StreamBody::Heartbeat);
            }
            let subscription = pool.subscription_after_a_pause();
            assert_eq!((subscription.epoch, subscription.sequence), (0, 0), "everything is asked for");
            pool.reset(&[1, 2, 3]);
            // Beyond the sweep.
            for _ in 0..700 {
                pool.tick(0);
                pool.say(StreamBody::Heartbeat);
            }
            assert_eq!(pool.credited(0), Some(credited));
        }
        assert_eq!(pool.host.0.counts.borrow()[&metrics::known_undercount(metrics::Undercount::Gap).to_string()], 2);
    }
}

/// The hub does not tell again what it re-asserted while nobody heard it.
#[test]
fn after_a_silence_of_more_than_a_minute_nothing_is_resumed() {
    for (silent_ticks, resumes) in [(300, true), (700, false)] {
        let mut pool = Pool::new(1);
        pool.tick_all(3);
        pool.reset(&[1, 2, 3]);
        pool.tick_all(1);
        let (token, ..) = pool.stream();
        pool.host.0.streams.borrow_mut().clear();
        pool.vms[0].on_stream_closed(&pool.host, token);
        pool.host.0.hub_down.set(true);
        pool.tick_all(silent_ticks);
        pool.host.0.hub_down.set(false);
        assert_eq!(pool.subscription_after_a_pause().epoch != 0, resumes, "after {silent_ticks} ticks");
    }
}

#[test]
fn the_sweep_of_every_vm_goes_by_the_hubs_policy() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3, 4, 5]);
    pool.tick_all(1);
    assert_eq!([0, 1].map(|vm| pool.credited(vm)), [Some(80); 2]);
    let short = |tenant_id: &str| Observation::Policy {
        tenant_id: Some(tenant_id.to_owned()),
        policy: Policy { eviction_ttl_ms: 2_000, ..Policy::default() },
    };
    pool.delta(vec![short("another")]);
    pool.tick_all(20);
    assert_eq!([0, 1].map(|vm| pool.credited(vm)), [Some(80); 2], "another tenant's");
    pool.delta(vec![short("default")]);
    pool.tick_all(5);
    assert_eq!([0, 1].map(|vm| pool.credited(vm)), [Some(0); 2]);
}

#[test]
fn a_log_of_many_empty_pages_is_looked_through_however_long_it_takes() {
    let mut pool = Pool::new(1);
    pool.config.limits.pages = 2_000;
    // A page a tick: more ticks than a log may take that cannot be read.
    pool.host.0.look_ns.set(2_000_000);
    pool.tick_all(2_100);
    pool.reset(&[1, 2]);
    pool.tick_all(1);
    assert_eq!(pool.credited(0), Some(32));
    assert_eq!(pool.host.0.counts.borrow().get(metrics::LOG_RESTARTS), None);
}

#[test]
fn who_no_longer_leads_notes_no_changes() {
    let mut pool = Pool::new(2);
    // A quota needs the order of what goes, and so the changes, from the beginning.
    pool.config.quotas.insert(String::from("default"), 1_000);
    pool.tick_all(3);
    pool.reset(&[1, 2]);
    pool.tick_all(2);
    let notes = |pool: &Pool| {
        [0, 1].map(|vm| match pool.vms[vm].view() {
            View::Index(index) => index.runs().keeps_journal(),
            View::CatchingUp => false,
        })
    };
    assert_eq!(notes(&pool), [true, false]);
    // The first serves from now on: the other relieves it.
    pool.credited(0);
    let term = pool.head().term;
    pool.tick_all(6);
    assert_eq!(pool.head().term, term + 1);
    assert_eq!(notes(&pool), [false, true]);
    for key in 3..20 {
        pool.delta(vec![stored(&[key])]);
        pool.tick_all(1);
    }
    assert_eq!(pool.credited(0), Some(19 * 16), "it follows");
    assert_eq!(notes(&pool), [false, true]);
    // A root context that is done gives the stream up, and with it the order.
    pool.vms[1].on_done(&pool.host, 1);
    assert_eq!(notes(&pool), [false, false]);
    pool.tick_all(2);
    assert_eq!(notes(&pool), [false, true], "another context drives it on");
}
