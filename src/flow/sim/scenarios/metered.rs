//! What the metrics say of all this.

use super::*;
use crate::flow::metrics::{Evicted, Refusal, Undercount};
use crate::routing::policy::Eviction;

// === impl Pool ===

impl Pool {
    fn gauged(&self, metric: &str) -> Option<u64> {
        self.host.0.gauges.borrow().get(metric).copied()
    }

    fn recorded(&self, metric: &str) -> Vec<u64> {
        self.host.0.recorded.borrow().get(metric).cloned().unwrap_or_default()
    }

    /// The bytes of the shared values whose key has this in it, and how many there are.
    fn shared(&self, part: &str) -> (u64, u64) {
        let shared = self.host.0.shared.borrow();
        let sizes = shared.iter().filter(|(key, _)| key.contains(part)).map(|(_, (bytes, _))| bytes.len() as u64);
        sizes.fold((0, 0), |(sum, values), size| (sum + size, values + 1))
    }

    fn period(&self, vm: usize) -> u64 {
        self.vms[vm].tick_period_ms(1, &self.config)
    }
}

#[test]
fn a_catch_up_is_counted_once_begun_and_once_completed_with_its_time() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    // So long a log is not read without the pages.
    for key in 0..70 {
        pool.delta(vec![stored(&[100 + key])]);
        pool.tick(0);
    }
    let leaders = pool.counted(metrics::CATCH_UPS_BEGUN);
    assert_eq!((leaders, pool.counted(metrics::CATCH_UPS_COMPLETED)), (1, 1), "the leader's own");
    // A look at the clock takes as long as a request may: one value a request, and one a tick.
    pool.host.0.look_ns.set(6_000_000);
    let begun_ns = pool.host.0.elapsed_ns.get();
    assert_eq!(pool.credited(1), None);
    assert_eq!(pool.counted(metrics::CATCH_UPS_BEGUN), leaders + 1);
    assert_eq!(pool.counted(metrics::CATCH_UPS_COMPLETED), 1);
    assert!(pool.recorded(metrics::LAG_SEGMENTS).is_empty(), "nothing to compare yet");
    let ticks = (1..50).find(|_| {
        pool.tick(1);
        pool.counted(metrics::CATCH_UPS_COMPLETED) == 2
    });
    assert!(ticks.is_some_and(|ticks| ticks > 1), "{ticks:?}");
    let took_ms = (pool.host.0.elapsed_ns.get() - begun_ns) / 1_000_000;
    let recorded = *pool.recorded(metrics::CATCH_UP_MS).last().unwrap();
    assert!((took_ms - 30..=took_ms).contains(&recorded), "{recorded} of {took_ms} ms");
    pool.tick(1);
    assert_eq!((pool.counted(metrics::CATCH_UPS_BEGUN), pool.counted(metrics::CATCH_UPS_COMPLETED)), (2, 2));
    assert_eq!(pool.credited(1), Some(48));
}

#[test]
fn a_vm_in_a_hurry_ticks_faster_until_it_has_caught_up_and_is_no_less_patient() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1]);
    pool.tick_all(1);
    pool.credited(1);
    pool.tick_all(1);
    for key in 2..7 {
        pool.delta(vec![stored(&[key])]);
        pool.tick(0);
    }
    let limits = pool.config.limits.clone();
    assert_eq!([pool.period(0), pool.period(1)], [limits.tick_ms; 2]);
    // Every look at the clock is longer than a step: one segment a tick.
    pool.host.0.look_ns.set(2_000_000);
    pool.tick(1);
    assert_eq!(pool.period(1), limits.catch_up_tick_ms);
    let first = pool.recorded(metrics::LAG_SEGMENTS).last().copied().unwrap();
    assert!(first >= 3, "{first}");
    let changes = pool.counted(metrics::LEADER_CHANGES);
    // The leader is silent meanwhile, for fewer than `lease_ticks` whole ticks.
    let fast = (1..=20).find(|_| {
        pool.tick(1);
        pool.period(1) == limits.tick_ms
    });
    assert_eq!(fast, Some(first as usize + 1), "a segment each, and one that finds nothing new");
    assert_eq!(pool.counted(metrics::LEADER_CHANGES), changes, "it was {fast:?} of its ticks, but not its lease");
    assert_eq!(pool.recorded(metrics::LAG_SEGMENTS).last(), Some(&first), "only whole ticks say so");
    pool.tick(1);
    assert_eq!(pool.recorded(metrics::LAG_SEGMENTS).last(), Some(&0));
    // Nobody else leads: after three times `lease_ticks` of its whole ticks it does.
    let slow = (1..100).find(|_| {
        pool.tick(1);
        pool.counted(metrics::LEADER_CHANGES) > changes
    });
    assert!(slow.is_some_and(|ticks| ticks >= 3 * limits.lease_ticks as usize - 2), "{slow:?}");
}

#[test]
fn what_cannot_be_read_is_not_looked_at_more_often() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2]);
    pool.tick_all(1);
    pool.credited(1);
    pool.delta(vec![removed(&[2])]);
    pool.tick(0);
    let head = pool.head();
    pool.host.shared_set(&Keys::new(DOMAIN).log(head.last, head.ring), b"garbage", Cas(0));
    pool.tick(1);
    assert_eq!(pool.period(1), pool.config.limits.tick_ms);
    assert_eq!(pool.recorded(metrics::LAG_SEGMENTS).last(), Some(&1));
}

#[test]
fn the_sizes_of_pages_and_log_are_those_in_shared_data() {
    let mut pool = Pool::new(1);
    pool.tick_all(3);
    pool.reset(&(1..100).collect::<Vec<u64>>());
    for key in 100..120 {
        pool.delta(vec![stored(&[key])]);
        pool.tick(0);
    }
    // Once round the ring, and once through the pages.
    pool.tick_all(10);
    let (log_bytes, _) = pool.shared("/log/");
    let (page_bytes, pages) = pool.shared("/page/");
    assert!(log_bytes > 0 && pages == 5, "{log_bytes} in the log, {pages} pages");
    assert_eq!(pool.gauged(metrics::PAGE_BYTES), Some(page_bytes));
    assert_eq!(pool.gauged(metrics::PAGES), Some(pages));
    assert_eq!(pool.gauged(metrics::LOG_SEQUENCE), Some(pool.head().last));
    let told = pool.gauged(metrics::LOG_BYTES).unwrap();
    assert!(told <= log_bytes && told * 10 >= log_bytes * 7, "{told} of {log_bytes}: one slot is out of range");
}

#[test]
fn a_handover_within_a_vm_is_a_change_of_leader() {
    let mut pool = Pool::new(1);
    pool.tick_all(3);
    assert_eq!(pool.counted(metrics::LEADER_CHANGES), 1);
    pool.vms[0].on_done(&pool.host, 1);
    pool.vms[0].tick(&pool.host, 2, &pool.config);
    pool.vms[0].tick(&pool.host, 2, &pool.config);
    assert_eq!(pool.counted(metrics::LEADER_CHANGES), 2);
    assert_eq!(pool.vms[0].tick_period_ms(1, &pool.config), 100, "the old one rests");
}

#[test]
fn what_is_missed_and_what_is_refused_is_known() {
    let mut pool = Pool::new(1);
    pool.config.limits.max_index_entries = 2;
    pool.tick_all(3);
    // What is too much for the cap goes; what is more than the index takes meanwhile is refused.
    let most = 2 + 16_384;
    pool.reset(&(1..=most + 3).collect::<Vec<_>>());
    pool.tick_all(1);
    let missing = |pool: &Pool, undercount| pool.counted(&metrics::known_undercount(undercount));
    let full = Undercount::Refused(Refusal::Full);
    assert_eq!((missing(&pool, full), missing(&pool, Undercount::Gap)), (3, 0), "a first reset misses nothing");
    assert_eq!(pool.counted(&metrics::blocks_refused(Refusal::Full)), 3);
    pool.reset(&[1, 2]);
    pool.tick_all(1);
    assert_eq!(missing(&pool, Undercount::Gap), 1, "a reset where it could have gone on");
    pool.sequence += 1;
    pool.delta(vec![]);
    assert_eq!(missing(&pool, Undercount::Gap), 2, "a delta that does not follow on");
    assert_eq!((missing(&pool, full), pool.counted(metrics::STREAM_REFUSED)), (3, 1));
}

#[test]
fn every_step_of_background_work_is_recorded_once_in_us() {
    let mut pool = Pool::new(1);
    pool.tick_all(3);
    pool.host.0.look_ns.set(100_000);
    let before = pool.recorded(metrics::BACKGROUND_STEP_US).len();
    assert_eq!(before, 3);
    pool.tick_all(1);
    pool.reset(&[1]);
    let steps = pool.recorded(metrics::BACKGROUND_STEP_US);
    assert_eq!(steps.len(), before + 4, "a tick and three messages");
    let spent_us: u64 = steps[before..].iter().sum();
    assert!(steps[before..].iter().all(|step| *step >= 100), "each looks at the clock: {steps:?}");
    assert!(spent_us < 10_000, "{steps:?}");
    // Another root context of the VM does no work of its own.
    pool.vms[0].tick(&pool.host, 2, &pool.config);
    assert_eq!(pool.recorded(metrics::BACKGROUND_STEP_US).len(), before + 4);
}

#[test]
fn what_the_leaders_index_holds_is_told_and_its_memory_now_and_then() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    pool.credited(1);
    // 10 s, in which each VM measures once more.
    pool.tick_all(101);
    assert_eq!((pool.gauged(metrics::INDEX_PAIRS), pool.gauged(metrics::INDEX_HOLDERS)), (Some(3), Some(1)));
    let size = |pool: &mut Pool, vm: usize| match pool.vms[vm].ask(&pool.host, 5_000_000).view {
        View::Index(index) => index.size().bytes,
        View::CatchingUp => panic!("it knows nothing"),
    };
    let (leader, other) = (size(&mut pool, 0), size(&mut pool, 1));
    assert!(leader > 0);
    assert_eq!(pool.gauged(metrics::INDEX_BYTES), Some(leader));
    let told = pool.recorded(metrics::VM_INDEX_KIB);
    assert!(told.contains(&(leader / 1_024)) && told.contains(&(other / 1_024)), "{told:?}");
    assert!((4..=8).contains(&told.len()), "two VMs, two or three times each: {told:?}");
    pool.reset(&[]);
    pool.tick_all(1);
    assert_eq!((pool.gauged(metrics::INDEX_PAIRS), pool.gauged(metrics::INDEX_HOLDERS)), (Some(0), Some(0)));
}

#[test]
fn what_is_too_old_is_told_by_the_leader_alone_and_by_algorithm() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1, 2, 3]);
    pool.tick_all(1);
    assert_eq!([0, 1].map(|vm| pool.credited(vm)), [Some(48); 2]);
    let of = |pool: &Pool, algorithm| pool.counted(&metrics::evictions(algorithm, Evicted::Ttl));
    let policy = |eviction, eviction_ttl_ms| Observation::Policy {
        tenant_id: Some("default".to_owned()),
        policy: Policy { eviction, eviction_ttl_ms, ..Policy::default() },
    };
    pool.delta(vec![policy(Eviction::Lfu, 100), removed(&[3])]);
    pool.tick_all(10);
    assert_eq!([0, 1].map(|vm| pool.credited(vm)), [Some(0); 2]);
    assert_eq!((of(&pool, Eviction::Lru), of(&pool, Eviction::Lfu)), (0, 2), "what was removed did not expire");
    pool.delta(vec![policy(Eviction::Lru, 100), stored(&[4])]);
    pool.tick_all(10);
    assert_eq!((of(&pool, Eviction::Lru), of(&pool, Eviction::Lfu)), (1, 2));
    // What ends with its replica is no eviction.
    pool.delta(vec![policy(Eviction::Lru, 3_600_000), stored(&[5])]);
    pool.tick_all(1);
    pool.delta(vec![Observation::ReplicaGone { replica: ReplicaSlot(1) }]);
    pool.tick_all(10);
    assert_eq!((of(&pool, Eviction::Lru), of(&pool, Eviction::Lfu)), (1, 2));
}
