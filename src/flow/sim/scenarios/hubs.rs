//! Several hubs: one is observed, another takes over.

use super::*;
use crate::config::Hubs;

fn pool() -> Pool {
    let mut pool = Pool::new(2);
    let json = br#"{"hub_clusters": ["a", "b"], "hub_token": "s3cret", "models": [{"model_id": "m"}]}"#;
    pool.config.hubs = FilterConfig::from_json(json).unwrap().hubs;
    pool.tick_all(3);
    pool
}

/// The hub that the only open stream goes to.
fn observed(pool: &Pool) -> String {
    let (token, ..) = pool.stream();
    pool.host.0.opened.borrow()[&token.0].0.clone()
}

fn close(pool: &mut Pool) {
    let (token, ..) = pool.stream();
    pool.host.0.streams.borrow_mut().clear();
    pool.vms.iter_mut().for_each(|vm| vm.on_stream_closed(&pool.host, token));
}

/// The hub is heard for so many ticks.
fn beats(pool: &mut Pool, ticks: usize) {
    for _ in 0..ticks {
        pool.say(StreamBody::Heartbeat);
        pool.tick_all(1);
    }
}

fn changes(pool: &Pool) -> Option<u64> {
    pool.host.0.counts.borrow().get(metrics::HUB_CHANGES).copied()
}

#[test]
fn a_stream_is_connected_once_the_hub_was_heard_over_it() {
    let mut pool = pool();
    let connected = |pool: &Pool| pool.host.0.gauges.borrow().get(metrics::STREAM_CONNECTED).copied();
    assert_eq!((pool.host.0.streams.borrow().len(), connected(&pool)), (1, Some(0)), "it may be hung");
    pool.reset(&[1]);
    pool.tick_all(1);
    assert_eq!(connected(&pool), Some(1));
    close(&mut pool);
    pool.tick_all(1);
    assert_eq!(connected(&pool), Some(0));
}

/// Another hub answers with its own numbers: 1 is another replica there.
fn reset_elsewhere(pool: &mut Pool, keys: &[u64]) -> [Option<i64>; 3] {
    let before = pool.credited(1);
    (pool.epoch, pool.sequence, pool.number) = (pool.epoch + 1, 0, 0);
    let Observation::Stored(stored) = stored(keys) else { panic!() };
    pool.say(StreamBody::Reset);
    pool.say(StreamBody::Chunk(vec![
        Observation::Scope { slot: ScopeSlot(1), scope: scope() },
        up(1, "z", "10.0.0.9:80"),
        Observation::ReplicaComplete { replica: ReplicaSlot(1) },
        up(2, "a", "10.0.0.1:80"),
        Observation::Stored(Stored { replica: ReplicaSlot(2), ..stored }),
        Observation::ReplicaComplete { replica: ReplicaSlot(2) },
    ]));
    pool.tick_all(1);
    let meanwhile = pool.credited(1);
    pool.say(StreamBody::ResetComplete);
    pool.tick_all(1);
    [before, meanwhile, pool.credited(1)]
}

#[test]
fn a_hub_that_is_gone_is_asked_once_more_then_the_next_one_takes_over_and_stays() {
    let mut pool = pool();
    assert_eq!(observed(&pool), "a");
    pool.reset(&[1, 2, 3]);
    pool.delta(vec![stored(&[4])]);
    beats(&mut pool, 40);
    close(&mut pool);
    pool.tick_all(3);
    let (_, subscription, _) = pool.stream();
    assert_eq!((observed(&pool).as_str(), subscription.epoch, subscription.sequence), ("a", 7, 1), "it may resume");
    close(&mut pool);
    pool.tick_all(3);
    assert_eq!((observed(&pool).as_str(), changes(&pool)), ("b", None));
    // The engine has removed what only the first hub was told of.
    let [before, meanwhile, after] = reset_elsewhere(&mut pool, &[1, 2]);
    assert_eq!((before, after, changes(&pool)), (Some(64), Some(32), Some(1)));
    assert!(meanwhile == before || meanwhile == after, "{meanwhile:?} is what neither holds");
    let Observation::Stored(more) = stored(&[3]) else { panic!() };
    pool.delta(vec![Observation::Stored(Stored { replica: ReplicaSlot(2), ..more })]);
    beats(&mut pool, 40);
    assert_eq!((pool.credited(0), observed(&pool).as_str()), (Some(48), "b"), "it stays where it works");
    assert_eq!(changes(&pool), Some(1));
}

#[test]
fn a_hub_that_is_silent_is_left_before_what_is_known_is_stale() {
    let mut pool = pool();
    pool.reset(&[1, 2, 3]);
    beats(&mut pool, 40);
    let heard_ms = pool.head().heard_ms;
    let mut ticks = 0;
    while observed_if_any(&pool).as_deref() != Some("b") {
        pool.tick_all(1);
        ticks += 1;
        assert!(ticks < 45, "9 seconds");
    }
    assert!(pool.host.now_ms() - heard_ms > pool.config.freshness.stale_after_ms / 2 - 1_000);
    let [before, _, after] = reset_elsewhere(&mut pool, &[1]);
    assert_eq!((before, after), (Some(48), Some(16)));
    assert!(pool.head().heard_ms > heard_ms);
}

fn observed_if_any(pool: &Pool) -> Option<String> {
    let token = *pool.host.0.streams.borrow().keys().next()?;
    Some(pool.host.0.opened.borrow()[&token].0.clone())
}

#[test]
fn while_no_hub_answers_all_are_tried_in_turn_ever_more_seldom() {
    let mut pool = pool();
    for _ in 0..200 {
        if observed_if_any(&pool).is_some() {
            close(&mut pool);
        }
        pool.tick_all(1);
    }
    let tried: Vec<String> = pool.host.0.opened.borrow().values().map(|(hub, _)| hub.clone()).collect();
    assert!((10..60).contains(&tried.len()), "{} times in 40 s", tried.len());
    assert!(tried.chunks_exact(2).all(|pair| pair == ["a", "b"]), "{tried:?}");
}

#[test]
fn the_token_goes_with_every_stream_and_is_told_to_nobody_else() {
    let pool = pool();
    let (token, ..) = pool.stream();
    assert_eq!(pool.host.0.opened.borrow()[&token.0].1, ["authorization: Bearer s3cret"]);
    assert!(!format!("{:?} {:?}", pool.config, pool.host.0.logged).contains("s3cret"));
    let without = Hubs { clusters: vec!["a".into()], token: None };
    let mut pool = Pool::new(1);
    pool.config.hubs = without;
    pool.tick_all(3);
    assert!(pool.host.0.opened.borrow().values().all(|(_, shown)| shown.is_empty()));
}
