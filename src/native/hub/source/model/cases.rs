//! One thing that goes wrong at a time.

use super::*;

const EVENTS: &str = "replay_timeout_ms: 400, replay_cooldown_ms: 2000, verify_idle_ms: 1000, gone_after_ms: 4000, \
                      continuity_grace_ms: 1000";

fn following(faults: Faults) -> Followed {
    Followed::start(world(faults), EVENTS, None)
}

/// With an engine that never clears its cache, so that whoever does is the hub.
fn world(faults: Faults) -> World {
    let mut world = World::new(5, Faults { replays: true, ring: 10_000, ..faults });
    world.engine.clears = false;
    world
}

async fn publish(followed: &Followed, messages: usize) {
    for _ in 0..messages {
        followed.world(|world| world.publish(false, false, false));
        sleep(Duration::from_millis(1)).await;
    }
}

fn is_exact(followed: &Followed) -> bool {
    followed.check_quiet().unwrap() && !followed.held().is_empty()
}

#[test]
fn a_replay_that_fails_in_a_silence_costs_a_healthy_replica_nothing() {
    in_virtual_time(async {
        let followed = following(Faults::default());
        publish(&followed, 50).await;
        sleep(Duration::from_secs(2)).await;
        assert!(is_exact(&followed));
        let clears = followed.metrics.clears.get();
        followed.world(|world| world.faults.replay_stops = 1);
        for _ in 0..10 {
            sleep(Duration::from_secs(2)).await;
            followed.scraped.note(Instant::now());
            assert!(is_exact(&followed));
        }
        assert_eq!(followed.metrics.reassert_suspended.get(), 1, "but nothing is said of it");
        publish(&followed, 5).await;
        assert!(is_exact(&followed), "it goes on as if nothing had been");
        assert_eq!((followed.metrics.clears.get(), followed.metrics.connections_lost.get()), (clears, 0));
        assert!(followed.metrics.replays_failed.get() > 3);
    });
}

#[test]
fn the_first_catch_up_may_take_longer_than_doubt_lasts() {
    in_virtual_time(async {
        // A ring of 200 messages that take 20 ms each, a fifth of them left out each time.
        let mut world = world(Faults::default());
        (0..200).for_each(|_| world.publish(false, false, false));
        world.faults = Faults { replay_drops: 40, replay_waits: 1, ..world.faults };
        world.faults.replay_wait = Duration::from_millis(20);
        let followed = Followed::start(world, EVENTS, None);
        let start = Instant::now();
        while !followed.state.is_complete() {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
        assert!(is_exact(&followed));
        assert_eq!((followed.metrics.clears.get(), followed.metrics.replays_failed.get()), (0, 0));
    });
}

#[test]
fn a_number_that_was_used_up_costs_one_clear() {
    in_virtual_time(async {
        let followed = following(Faults::default());
        publish(&followed, 20).await;
        followed.world(|world| world.publish(true, false, false));
        publish(&followed, 20).await;
        followed.check_quiet().unwrap();
        assert_eq!((followed.metrics.clears.get(), followed.metrics.incomplete.get()), (1, 1));
        assert_eq!((followed.metrics.suspensions.get(), followed.metrics.replays_failed.get()), (0, 0));
        sleep(Duration::from_secs(60)).await;
        followed.check_quiet().unwrap();
        assert_eq!(followed.metrics.clears.get(), 1);
    });
}

#[test]
fn however_many_holes_a_ring_has_a_catch_up_clears_a_few_times_and_takes_what_follows_the_last() {
    in_virtual_time(async {
        let mut world = world(Faults::default());
        (0..5).for_each(|_| world.publish(false, false, false));
        for _ in 0..200 {
            world.publish(true, false, false);
            (0..4).for_each(|_| world.publish(false, false, false));
        }
        let followed = Followed::start(world, EVENTS, None);
        sleep(Duration::from_millis(200)).await;
        assert!(followed.state.is_complete());
        followed.check_quiet().unwrap();
        assert_eq!(followed.metrics.clears.get(), 3);
        assert!(followed.metrics.replays.get() <= 6, "{}", followed.metrics.replays.get());
        // From the last hole on it is followed like any other.
        let before = followed.held().len();
        publish(&followed, 30).await;
        followed.check_quiet().unwrap();
        assert!(followed.held().len() > before, "{before}");
        assert_eq!((followed.metrics.clears.get(), followed.metrics.gaps.get()), (3, 0));
    });
}

#[test]
fn numbers_that_are_used_up_all_the_time_cost_neither_replays_nor_clears_all_the_time() {
    in_virtual_time(async {
        let followed = following(Faults { used_up: 3, ..Faults::default() });
        followed.world(|world| world.faults.ring = 100);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(40) {
            followed.world(World::step);
            sleep(Duration::from_millis(5)).await;
            followed.check().unwrap();
        }
        let clears = followed.metrics.clears.get();
        assert!(followed.world(|world| world.counts.used_up) > 1_000);
        // One suspension of 2 s after the other: each begins and ends with a few.
        assert!((10..=22).contains(&followed.metrics.suspensions.get()), "{}", followed.metrics.suspensions.get());
        assert!(followed.metrics.replays.get() < 22 * 64, "{}", followed.metrics.replays.get());
        assert!(clears < 22 * 64, "{clears}");
        // As soon as it stops, the replica is followed again.
        followed.world(|world| world.faults.used_up = 0);
        sleep(Duration::from_secs(3)).await;
        publish(&followed, 150).await;
        followed.check_quiet().unwrap();
        assert!(!followed.held().is_empty());
    });
}

#[test]
fn a_replica_that_goes_away_is_gone_in_time_and_comes_back_clean() {
    in_virtual_time(async {
        let followed = following(Faults::default());
        publish(&followed, 50).await;
        followed.world(|world| {
            world.faults.refused = 1;
            world.faults.replay_refused = 1;
            world.disconnect();
        });
        let left = Instant::now();
        let address = |followed: &Followed| followed.state.view()[followed.index.0].address.clone();
        while address(&followed).is_some() {
            sleep(Duration::from_millis(20)).await;
            assert!(left.elapsed() < Duration::from_millis(4_100), "{:?}", left.elapsed());
        }
        assert!(left.elapsed() >= Duration::from_millis(3_900), "{:?}", left.elapsed());
        assert_eq!((followed.metrics.gone.get(), followed.state.is_complete()), (1, true));
        sleep(Duration::from_secs(60)).await;
        assert_eq!((followed.metrics.gone.get(), address(&followed)), (1, None), "a name alone brings nobody back");
        followed.world(|world| {
            world.restart(true);
            world.faults.refused = 0;
            world.faults.replay_refused = 0;
        });
        sleep(Duration::from_secs(3)).await;
        publish(&followed, 30).await;
        assert!(is_exact(&followed) && address(&followed).is_some());
    });
}

#[test]
fn a_replica_whose_metrics_are_read_is_not_gone_and_one_without_an_address_is() {
    in_virtual_time(async {
        let followed = following(Faults::default());
        publish(&followed, 50).await;
        followed.world(|world| {
            world.faults.refused = 1;
            world.disconnect();
        });
        for _ in 0..20 {
            sleep(Duration::from_secs(1)).await;
            followed.scraped.note(Instant::now());
        }
        assert_eq!(followed.metrics.gone.get(), 0);
        followed.world(|world| world.faults.unresolved = true);
        for _ in 0..6 {
            sleep(Duration::from_secs(1)).await;
            followed.scraped.note(Instant::now());
        }
        assert_eq!(followed.metrics.gone.get(), 1);
        followed.world(|world| world.faults = Faults { refused: 0, unresolved: false, ..world.faults.clone() });
        sleep(Duration::from_secs(3)).await;
        assert!(is_exact(&followed));
    });
}

#[test]
fn what_could_not_be_replayed_at_first_is_made_up_for_later() {
    in_virtual_time(async {
        let mut world = world(Faults::default());
        (0..50).for_each(|_| world.publish(false, false, false));
        world.faults.replay_refused = 1;
        let followed = Followed::start(world, EVENTS, None);
        sleep(Duration::from_millis(1_500)).await;
        publish(&followed, 10).await;
        assert!(!followed.check_quiet().unwrap());
        followed.world(|world| world.faults.replay_refused = 0);
        sleep(Duration::from_secs(5)).await;
        assert!(is_exact(&followed));
    });
}

#[test]
fn a_connection_on_which_nothing_comes_any_more_is_made_anew() {
    in_virtual_time(async {
        let followed = following(Faults::default());
        publish(&followed, 20).await;
        for _ in 0..5 {
            followed.world(|world| world.publish(false, true, false));
            sleep(Duration::from_millis(1_500)).await;
            followed.check_quiet().unwrap();
        }
        assert!(is_exact(&followed));
        assert_eq!(followed.metrics.clears.get(), 0);
        assert!(followed.metrics.connections_lost.get() > 0);
    });
}
