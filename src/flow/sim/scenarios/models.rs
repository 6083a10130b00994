//! Models' packages, from what the hub announces to what requests tokenize with.

use super::super::packages::{LARGE, Made, packages, used};
use super::*;
use crate::index::log::ModelList;
use crate::observation::{ModelDigest, ModelPart, ModelVersion};
use crate::request::TokenizeError;

/// One part.
const SMALL: usize = 0;
/// Another one of one part.
const OTHER: usize = 1;
const ARRIVING: Result<usize, TokenizeError> = Err(TokenizeError::Arriving);
const UNAVAILABLE: Result<usize, TokenizeError> = Err(TokenizeError::Unavailable);

// === impl Pool ===

impl Pool {
    /// Three VMs of which the first leads and the others serve; nothing is announced.
    fn serving() -> Pool {
        let mut pool = Pool::new(3);
        pool.tick_all(3);
        pool.reset(&[1]);
        pool.tick_all(1);
        assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2]);
        pool.tick_all(1);
        pool
    }

    /// The same with a package that both use.
    fn using(package: usize) -> Pool {
        let mut pool = Pool::serving();
        pool.announce("m", package);
        pool.tick_all(1);
        pool.send(package, 0..packages()[package].parts.len());
        pool.tick_all(5);
        assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(package); 2]);
        pool
    }

    fn announce(&mut self, model_id: &str, package: usize) {
        self.delta(vec![announcement(model_id, packages()[package].version)]);
    }

    fn send(&mut self, package: usize, parts: impl IntoIterator<Item = usize>) {
        parts.into_iter().for_each(|at| self.send_part(packages()[package].parts[at].clone()));
    }

    fn send_part(&mut self, part: ModelPart) {
        self.say(StreamBody::ModelPart(part));
    }

    /// What was asked for over the open stream.
    fn wanted(&self) -> Vec<(ModelDigest, u32)> {
        let streams = self.host.0.streams.borrow();
        let sent = streams.values().flatten();
        let wants = sent.filter_map(|message| match message {
            SubscriberMessage::WantModel { digest, first_part } => Some((*digest, *first_part)),
            SubscriberMessage::Subscribe(_) | SubscriberMessage::Acknowledge(_) => None,
        });
        wants.collect()
    }

    fn used(&mut self, vm: usize, model_id: &str) -> Result<usize, TokenizeError> {
        let known = self.vms[vm].ask(&self.host, 5_000_000);
        used(known.view, known.models, model_id)
    }

    /// The stream ends; the hub that is there next has a life of its own.
    fn restart_hub(&mut self) {
        let (token, ..) = self.stream();
        self.host.0.streams.borrow_mut().clear();
        self.vms.iter_mut().for_each(|vm| vm.on_stream_closed(&self.host, token));
        self.epoch += 1;
        self.sequence = 0;
        self.tick_all(2);
    }

    fn reset_announcing(&mut self, announced: &[(&str, usize)]) {
        self.number = 0;
        self.say(StreamBody::Reset);
        let announced = announced.iter();
        let announced = announced.map(|(model_id, package)| announcement(model_id, packages()[*package].version));
        self.say(StreamBody::Chunk(announced.collect()));
        self.say(StreamBody::ResetComplete);
    }

    /// Ticks for a while, with heartbeats.
    fn pass(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.say(StreamBody::Heartbeat);
            self.tick_all(1);
        }
    }

    /// Bytes of each part's value; none where there is no value.
    fn stored(&self, version: ModelVersion) -> Vec<Option<usize>> {
        let size = |number| match self.host.shared_get(&Keys::new(DOMAIN).model_part(version.digest, number)) {
            SharedValue::Present { bytes, .. } => Some(bytes.len()),
            SharedValue::Absent => None,
        };
        (0..version.parts()).map(size).collect()
    }

    fn listed(&self) -> Vec<ModelVersion> {
        match self.host.shared_get(&Keys::new(DOMAIN).model_list()) {
            SharedValue::Present { bytes, .. } => ModelList::decode(&bytes).unwrap().0,
            SharedValue::Absent => Vec::new(),
        }
    }

    fn overwrite(&self, package: usize, part: u32, value: &[u8]) {
        let key = Keys::new(DOMAIN).model_part(packages()[package].version.digest, part);
        assert_eq!(self.host.shared_set(&key, value, Cas(0)), SharedWrite::Stored);
    }

    fn warnings(&self) -> usize {
        self.host.0.logged.borrow().iter().filter(|line| line.contains("model package")).count()
    }

    fn name(&mut self, model_ids: &[&str]) {
        let models: Vec<String> = model_ids.iter().map(|id| format!(r#"{{"model_id": "{id}"}}"#)).collect();
        let json = format!(
            r#"{{"hub_cluster": "hub", "models": [{}], "limits": {{"pages": 4, "log_segments": 8, "lease_ticks": 3}}}}"#,
            models.join(",")
        );
        self.config = FilterConfig::from_json(json.as_bytes()).unwrap();
    }
}

fn announcement(model_id: &str, version: ModelVersion) -> Observation {
    Observation::Model { model_id: model_id.to_owned(), version }
}

fn refused(kind: &str) -> String {
    format!("warmroute_model_packages_refused_total.kind.={kind}.;")
}

fn parts_refused(kind: &str) -> String {
    format!("warmroute_model_parts_refused_total.kind.={kind}.;")
}

#[test]
fn what_is_announced_is_asked_for_and_loaded_where_requests_are() {
    let mut pool = Pool::serving();
    let version = packages()[LARGE].version;
    pool.announce("m", LARGE);
    pool.tick_all(1);
    assert_eq!(pool.wanted(), [(version.digest, 0)]);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [ARRIVING; 2]);
    pool.send(LARGE, 0..3);
    pool.tick(0);
    assert_eq!(pool.stream().2, pool.number, "parts are acknowledged in their turn");
    pool.tick(1);
    pool.tick(1);
    assert_eq!(pool.used(1, "m"), ARRIVING, "a part a step");
    pool.tick(1);
    assert_eq!(pool.used(1, "m"), Ok(LARGE));
    pool.tick_all(3);
    assert_eq!(pool.used(2, "m"), Ok(LARGE));
    assert_eq!(pool.wanted().len(), 1);
    assert_eq!(pool.listed(), [version]);
    assert_eq!(pool.vms[0].models().count(), 0, "the leader serves nothing");
    let gauges = pool.host.0.gauges.borrow();
    assert_eq!(gauges.get(metrics::MODELS_ANNOUNCED), Some(&1));
    assert_eq!(gauges.get(metrics::MODEL_VERSIONS_STORED), Some(&1));
    assert_eq!(gauges.get(metrics::MODEL_BYTES), Some(&u64::from(version.length)));
    assert_eq!(pool.counted(metrics::MODEL_PARTS_STORED), 3);
}

#[test]
fn a_vm_never_uses_a_version_that_is_not_the_announced_one() {
    let mut pool = Pool::using(LARGE);
    pool.announce("m", OTHER);
    pool.tick_all(1);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [ARRIVING; 2]);
    pool.send(OTHER, 0..1);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(OTHER); 2]);
    assert_eq!(pool.stored(packages()[LARGE].version), [Some(0); 3], "nobody needs them");
    assert_eq!(pool.listed(), [packages()[OTHER].version]);
    // And back, once it has been emptied.
    pool.announce("m", LARGE);
    pool.tick_all(1);
    pool.send(LARGE, 0..3);
    pool.tick_all(5);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2]);
}

#[test]
fn a_model_that_is_gone_has_no_tokenizer_and_its_parts_are_emptied() {
    let mut pool = Pool::using(LARGE);
    pool.announce("n", LARGE);
    pool.delta(vec![Observation::ModelGone { model_id: "m".into() }]);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2]);
    assert!(!pool.stored(packages()[LARGE].version).contains(&Some(0)), "another model has the same contents");
    pool.delta(vec![Observation::ModelGone { model_id: "n".into() }]);
    pool.tick_all(3);
    assert_eq!(pool.stored(packages()[LARGE].version), [Some(0); 3]);
    assert_eq!(pool.listed(), []);
    assert_eq!([1, 2].map(|vm| pool.vms[vm].models().count()), [0; 2]);
}

#[test]
fn a_new_leader_asks_from_the_first_part_that_is_missing() {
    let mut pool = Pool::serving();
    pool.announce("m", LARGE);
    pool.tick_all(1);
    pool.send(LARGE, 0..1);
    pool.vms[0].on_done(&pool.host, 1);
    for _ in 0..20 {
        pool.tick(1);
        pool.tick(2);
    }
    assert_eq!(pool.wanted().first(), Some(&(packages()[LARGE].version.digest, 1)));
    pool.number = 0;
    pool.say(StreamBody::Resumed);
    pool.send(LARGE, 1..3);
    pool.tick_all(5);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2]);
    assert_eq!(pool.counted(metrics::MODEL_PARTS_STORED), 3);
}

#[test]
fn a_new_leader_empties_what_the_last_one_left() {
    let mut pool = Pool::using(LARGE);
    // The leader ends before it hears that nobody needs the parts.
    pool.vms[0].on_done(&pool.host, 1);
    for _ in 0..20 {
        pool.tick(1);
        pool.tick(2);
    }
    pool.reset_announcing(&[]);
    pool.tick_all(3);
    assert_eq!(pool.stored(packages()[LARGE].version), [Some(0); 3]);
    assert_eq!(pool.listed(), []);
}

#[test]
fn a_hub_that_restarts_with_the_same_contents_is_asked_for_nothing() {
    let mut pool = Pool::using(LARGE);
    pool.restart_hub();
    pool.say(StreamBody::Reset);
    pool.tick_all(2);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2], "it is not taken back yet");
    pool.reset_announcing(&[("m", LARGE)]);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2]);
    assert_eq!(pool.wanted(), []);
    pool.restart_hub();
    pool.reset_announcing(&[]);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2], "it was not announced again");
    assert_eq!(pool.stored(packages()[LARGE].version), [Some(0); 3]);
}

#[test]
fn parts_that_others_wrote_over_are_asked_for_again() {
    let mut pool = Pool::using(LARGE);
    let digest = packages()[LARGE].version.digest;
    let garbage = [b"garbage".to_vec(), Vec::new(), packages()[LARGE].parts[0].encode()];
    for (times, value) in (2..).zip(garbage) {
        pool.overwrite(LARGE, 1, &value);
        pool.pass(8);
        assert_eq!(pool.wanted().len(), times);
        assert_eq!(pool.wanted().last(), Some(&(digest, 1)));
        pool.send(LARGE, 1..3);
        pool.pass(3);
    }
    assert_eq!(pool.counted(metrics::MODEL_PARTS_STORED), 6, "the parts after it were there");
    // Who comes late has all of it.
    pool.vms.push(Node::new(DOMAIN));
    pool.used(3, "m").unwrap_err();
    pool.tick_all(4);
    assert_eq!(pool.used(3, "m"), Ok(LARGE));
}

#[test]
fn a_list_that_others_wrote_over_is_written_again() {
    let mut pool = Pool::using(SMALL);
    assert_eq!(pool.host.shared_set(&Keys::new(DOMAIN).model_list(), b"garbage", Cas(0)), SharedWrite::Stored);
    pool.pass(4);
    assert_eq!(pool.listed(), [packages()[SMALL].version]);
}

#[test]
fn a_hub_that_stops_sending_is_asked_again_and_for_the_next_version() {
    let mut pool = Pool::serving();
    let [small, large] = [SMALL, LARGE].map(|package| packages()[package].version.digest);
    pool.announce("m", LARGE);
    pool.announce("n", SMALL);
    pool.pass(2);
    let [first, second] = if small < large { [small, large] } else { [large, small] };
    assert_eq!(pool.wanted(), [(first, 0)]);
    pool.pass(11);
    assert_eq!(pool.wanted(), [(first, 0), (second, 0)]);
    pool.pass(11);
    assert_eq!(pool.wanted(), [(first, 0), (second, 0), (first, 0)]);
    // Parts of what was asked for before come late.
    pool.send(LARGE, 0..2);
    pool.pass(22);
    assert_eq!(pool.wanted().iter().filter(|wanted| **wanted == (large, 2)).count(), 1);
    pool.send(LARGE, 2..3);
    pool.pass(5);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2]);
}

#[test]
fn parts_late_twice_and_out_of_order_do_no_harm() {
    let mut pool = Pool::serving();
    pool.announce("m", LARGE);
    pool.tick_all(1);
    pool.send(LARGE, [2, 0, 0, 2, 1, 1]);
    pool.tick_all(5);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(LARGE); 2]);
    assert_eq!(pool.counted(metrics::MODEL_PARTS_STORED), 3);
    pool.announce("m", OTHER);
    pool.tick_all(3);
    pool.send(LARGE, 0..3);
    pool.send(OTHER, 0..1);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(OTHER); 2]);
    assert_eq!(pool.stored(packages()[LARGE].version), [Some(0); 3], "nobody wants them any more");
    assert_eq!(pool.counted(&parts_refused("not_asked_for")), 3);
}

#[test]
fn a_part_that_nobody_asked_for_or_of_another_length_is_ignored() {
    let mut pool = Pool::serving();
    pool.announce("m", LARGE);
    pool.tick_all(1);
    let sequence = pool.sequence;
    let part = packages()[LARGE].parts[1].clone();
    let shorter = ModelPart { contents: part.contents[1..].to_vec(), ..part.clone() };
    let beyond = ModelPart { number: 3, ..part };
    [shorter, beyond].into_iter().for_each(|part| pool.send_part(part));
    pool.send(OTHER, 0..1);
    pool.tick_all(1);
    assert_eq!(pool.counted(&parts_refused("malformed")), 2);
    assert_eq!(pool.counted(&parts_refused("not_asked_for")), 1);
    assert_eq!(pool.counted(metrics::MODEL_PARTS_STORED), 0);
    let (.., acknowledged) = pool.stream();
    assert_eq!((acknowledged, pool.head().hub_sequence), (pool.number, sequence));
    // The stream is what it was.
    pool.delta(vec![stored(&[2])]);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(32));
    assert_eq!(pool.counted(metrics::STREAM_REFUSED), 0);
}

#[test]
fn a_package_that_does_not_fit_is_said_so_once_and_another_may_fit() {
    let mut pool = Pool::serving();
    pool.name(&["m", "n"]);
    pool.config.limits.max_model_bytes = packages()[LARGE].version.length as usize - 1;
    pool.announce("m", LARGE);
    pool.announce("n", SMALL);
    for package in [LARGE, SMALL] {
        pool.pass(12);
        pool.send(package, 0..packages()[package].parts.len());
    }
    pool.pass(12);
    [LARGE, SMALL].into_iter().for_each(|package| pool.send(package, 0..packages()[package].parts.len()));
    pool.pass(6);
    for vm in [1, 2] {
        assert_eq!([pool.used(vm, "m"), pool.used(vm, "n")], [UNAVAILABLE, Ok(SMALL)]);
    }
    assert_eq!((pool.counted(&refused("too_large")), pool.warnings()), (2, 2), "once a VM");
    // There is more room.
    pool.config.limits.max_model_bytes *= 2;
    pool.pass(5);
    for vm in [1, 2] {
        assert_eq!([pool.used(vm, "m"), pool.used(vm, "n")], [Ok(LARGE), Ok(SMALL)]);
    }
    assert_eq!(pool.counted(&refused("too_large")), 2);
}

#[test]
fn contents_that_are_not_what_was_announced_are_refused_until_the_version_changes() {
    let mut pool = Pool::serving();
    let mut damaged = packages()[LARGE].parts.clone();
    damaged[1].contents[9] ^= 1;
    pool.announce("m", LARGE);
    pool.tick_all(1);
    damaged.into_iter().for_each(|part| pool.send_part(part));
    pool.pass(10);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2]);
    assert_eq!((pool.counted(&refused("damaged")), pool.warnings()), (2, 2), "once a VM");
    pool.announce("m", SMALL);
    pool.tick_all(1);
    pool.send(SMALL, 0..1);
    pool.tick_all(3);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [Ok(SMALL); 2]);
}

#[test]
fn contents_that_are_no_package_are_refused() {
    let mut pool = Pool::serving();
    let nonsense = Made::of(&[7; 100]);
    pool.delta(vec![announcement("m", nonsense.version)]);
    pool.tick_all(1);
    nonsense.parts.into_iter().for_each(|part| pool.send_part(part));
    pool.pass(10);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2]);
    assert_eq!((pool.counted(&refused("invalid")), pool.warnings()), (2, 2), "once a VM");
}

#[test]
fn a_version_that_is_longer_than_a_package_can_be_is_never_asked_for() {
    let mut pool = Pool::serving();
    pool.delta(vec![announcement("m", ModelVersion { digest: ModelDigest(1), length: u32::MAX })]);
    pool.pass(5);
    assert_eq!(pool.wanted(), []);
    assert_eq!([1, 2].map(|vm| pool.used(vm, "m")), [UNAVAILABLE; 2]);
}

#[test]
fn each_root_context_of_a_vm_has_the_models_that_its_configuration_names() {
    let mut pool = Pool::serving();
    pool.name(&["n"]);
    let other = pool.config.clone();
    pool.name(&["m"]);
    for (model_id, package) in [("m", LARGE), ("n", SMALL), ("unnamed", OTHER)] {
        pool.announce(model_id, package);
        pool.pass(12);
        pool.send(package, 0..packages()[package].parts.len());
        pool.pass(4);
    }
    assert_eq!([pool.used(1, "m"), pool.used(1, "n")], [Ok(LARGE), ARRIVING]);
    for _ in 0..3 {
        pool.tick(1);
        pool.vms[1].tick(&pool.host, 2, &other);
    }
    assert_eq!([pool.used(1, "m"), pool.used(1, "n")], [Ok(LARGE), Ok(SMALL)]);
    pool.vms[1].on_done(&pool.host, 1);
    pool.vms[1].tick(&pool.host, 2, &other);
    assert_eq!([pool.used(1, "m"), pool.used(1, "n")], [ARRIVING, Ok(SMALL)]);
    assert_eq!(pool.vms[1].models().count(), 1);
}
