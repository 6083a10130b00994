//! An index at its bounds, with a host that takes its time.

use super::*;

const CAP: u64 = 100;
const BLOCKS: u64 = 10;

/// The most pairs that the leader's index had while it was told of ten times its cap, and those in the end.
fn most_pairs(look_ns: u64, quotas: &str) -> (u64, u64) {
    let mut pool = Pool::new(1);
    let json = format!(
        r#"{{"hub_cluster": "hub", "models": [{{"model_id": "m"}}], "quotas": {{{quotas}}},
            "limits": {{"pages": 4, "log_segments": 64, "lease_ticks": 3, "max_index_entries": {CAP}}}}}"#
    );
    pool.config = FilterConfig::from_json(json.as_bytes()).unwrap();
    pool.tick_all(3);
    pool.reset(&[1, 2]);
    pool.tick_all(2);
    // Every look at the clock takes this long.
    pool.host.0.look_ns.set(look_ns);
    let mut most = 0;
    for round in 0..CAP {
        let keys: Vec<u64> = (0..BLOCKS).map(|key| 1_000 + round * BLOCKS + key).collect();
        pool.delta(vec![later(&keys, round)]);
        pool.tick_all(1);
        most = most.max(pool.pairs());
    }
    pool.host.0.look_ns.set(0);
    pool.tick_all(200);
    (most, pool.pairs())
}

fn later(keys: &[u64], ms: u64) -> Observation {
    let Observation::Stored(stored) = stored(keys) else { panic!("a report") };
    Observation::Stored(Stored { last_seen_ms: stored.last_seen_ms + ms, ..stored })
}

impl Pool {
    fn pairs(&self) -> u64 {
        self.gauged_now(metrics::INDEX_PAIRS).unwrap_or(0)
    }

    fn gauged_now(&self, metric: &str) -> Option<u64> {
        self.host.0.gauges.borrow().get(metric).copied()
    }
}

#[test]
fn what_is_too_much_goes_before_more_is_taken_in_however_slow_the_host_is() {
    let some = r#""a": 40, "b": 40, "c": 40, "default": 40"#;
    for (look_ns, quotas, kept) in [
        (0, "", CAP),
        (300_000, "", CAP),
        (1_100_000, "", CAP),
        (0, some, 40),
        (300_000, some, 40),
        (1_100_000, some, 40),
    ] {
        let (most, left) = most_pairs(look_ns, quotas);
        // What one message brings, and what was refused before the orders were there, come on top for a moment.
        assert!(most <= CAP + 2 * BLOCKS, "a look takes {look_ns} ns, quotas {quotas}: {most} pairs");
        assert_eq!(left, kept, "a look takes {look_ns} ns, quotas {quotas}");
    }
}

#[test]
fn blocks_of_an_ended_generation_cost_a_quota_nothing() {
    let mut pool = Pool::new(1);
    let json = br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}], "quotas": {"default": 100},
                    "limits": {"pages": 4, "log_segments": 64, "lease_ticks": 3}}"#;
    pool.config = FilterConfig::from_json(json).unwrap();
    pool.tick_all(3);
    pool.reset(&(1..=90).collect::<Vec<_>>());
    pool.tick_all(2);
    // The hub tells all anew: another generation, with other blocks.
    pool.reset(&(1_001..=1_090).collect::<Vec<_>>());
    pool.tick_all(5);
    assert_eq!(pool.pairs(), 90, "those of the old generation are gone, and count no more");
    let evicted = metrics::evictions(crate::routing::policy::Eviction::Lru, metrics::Evicted::Quota);
    assert_eq!(pool.counted(&evicted), 0);
}

#[test]
fn what_another_hub_filled_the_index_with_costs_the_state_that_follows_it_nothing() {
    let mut pool = Pool::new(1);
    let json = br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}],
                    "limits": {"pages": 4, "log_segments": 64, "lease_ticks": 3, "max_index_entries": 100}}"#;
    pool.config = FilterConfig::from_json(json).unwrap();
    pool.tick_all(3);
    // All of it is younger than what the next hub tells, and of another replica.
    let Observation::Stored(flood) = later(&(1_001..=1_100).collect::<Vec<_>>(), 5_000) else { panic!("a report") };
    pool.host.0.elapsed_ns.set(5_000_000_000);
    pool.reset(&[]);
    pool.delta(vec![up(2, "flood", "10.0.0.2:80"), Observation::Stored(Stored { replica: ReplicaSlot(2), ..flood })]);
    pool.delta(vec![Observation::ReplicaComplete { replica: ReplicaSlot(2) }]);
    pool.tick_all(10);
    assert_eq!(pool.pairs(), 100);
    (pool.epoch, pool.sequence) = (pool.epoch + 1, 0);
    pool.number = 0;
    pool.say(StreamBody::Reset);
    let announced = vec![Observation::Scope { slot: ScopeSlot(1), scope: scope() }, up(1, "a", "10.0.0.1:80")];
    pool.say(StreamBody::Chunk(announced));
    for key in 1..=50 {
        pool.say(StreamBody::Chunk(vec![stored(&[key])]));
        pool.tick_all(1);
    }
    pool.say(StreamBody::Chunk(vec![Observation::ReplicaComplete { replica: ReplicaSlot(1) }]));
    pool.say(StreamBody::ResetComplete);
    pool.tick_all(10);
    assert_eq!((pool.credited(0), pool.pairs()), (Some(50 * 16), 50));
}
