//! What an engine holds for long is said to be held still, as long as that is known.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rmpv::Value;
use warmroute::native::hub::Hub;

use crate::hub_support::{Engine, Framing, Observer, free_port, get, observed, ready, stored, tokens};

const EVERY: &str = "reassert: {every_ms: 200}";

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn times(observer: &Observer) -> &[u64] {
    observer.reasserted.get("r0").map_or(&[], Vec::as_slice)
}

/// When the replica's only block was last known to be held.
fn last_seen_ms(observer: &Observer) -> u64 {
    let stored = observer.stored.iter().map(|stored| stored.last_seen_ms);
    stored.chain(times(observer).iter().copied()).max().unwrap()
}

async fn suspended(hub: &Hub) -> bool {
    let (_, metrics) = get(hub, "/metrics").await;
    let line = |value| metrics.contains(&format!("warmroute_hub_reassert_suspended{{replica=\"r0\"}} {value}\n"));
    assert!(line(0) || line(1), "{metrics}");
    line(1)
}

#[tokio::test]
async fn a_replica_is_re_asserted_while_its_engine_is_there_and_not_while_it_is_gone() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], &format!("{EVERY}\nevents: {{continuity_grace_ms: 600000}}")).await;
    let start_ms = now_ms();
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    observer.until("four of them without an event", |seen| times(seen).len() >= 4).await;
    assert!(times(&observer).is_sorted_by(|one, next| one < next), "{:?}", times(&observer));
    assert!(now_ms() - start_ms >= 400, "about one each 200 ms");
    assert!(!suspended(&hub).await);

    // The block is kept for as long as it may turn out that nothing was missed, but nothing is known of it.
    let (events, replay) = engine.kill().await;
    let killed_ms = now_ms();
    observer.listen(Duration::from_millis(300)).await;
    let before = times(&observer).len();
    observer.listen(Duration::from_millis(900)).await;
    assert_eq!(times(&observer).len(), before);
    assert!(*times(&observer).last().unwrap() <= killed_ms);
    assert!(observer.holds("r0", &tokens(0..4)) && observer.clears == 0);
    assert!(suspended(&hub).await);
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(times(&late), &times(&observer)[before - 1..], "a reset has the last one");

    let engine = Engine::start_on(events, replay, Some(Framing::Two)).await;
    observer.until("another", |seen| times(seen).len() > before + 1).await;
    assert_eq!(observer.clears, 1, "of another process");
    assert!(*times(&observer).last().unwrap() > killed_ms && !suspended(&hub).await);
    let (_, metrics) = get(&hub, "/metrics").await;
    let counted = metrics.lines().find(|line| line.starts_with("warmroute_hub_reassertions_total")).unwrap();
    let counted: usize =
        counted.strip_prefix("warmroute_hub_reassertions_total{replica=\"r0\"} ").unwrap().parse().unwrap();
    // The observer came when some were made already.
    assert!((times(&observer).len()..times(&observer).len() + 20).contains(&counted), "{counted}");
    drop(engine);
    hub.shutdown().await;
}

#[tokio::test]
async fn without_replays_only_events_prove_that_none_was_missed() {
    let mut engine = Engine::start_on(free_port(), free_port(), None).await;
    let settings = format!("{EVERY}\nevents: {{replay_timeout_ms: 50}}");
    let (hub, mut observer) = observed(&[&engine], &settings).await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    observer.listen(Duration::from_millis(600)).await;
    assert!(times(&observer).is_empty() && suspended(&hub).await);
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    let published_ms = now_ms();
    observer.until("one for the event", |seen| times(seen).len() == 1).await;
    assert!(times(&observer)[0] <= published_ms, "known when the event came, and not since");
    observer.listen(Duration::from_millis(700)).await;
    assert!(times(&observer).len() == 1 && suspended(&hub).await);
    engine.publish(vec![stored(&[2], Some(1), &tokens(4..8))]).await;
    observer.until("one for the next event", |seen| times(seen).len() == 2).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_block_is_known_to_be_held_beyond_its_time_to_live_or_not_as_configured() {
    const TTL: Duration = Duration::from_millis(1_200);
    for (settings, outlives) in [(EVERY, true), ("reassert: {enabled: false}", false)] {
        let mut engine = Engine::start(Framing::Two).await;
        let (hub, mut observer) = observed(&[&engine], settings).await;
        ready(&hub).await;
        engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
        observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
        observer.listen(TTL + Duration::from_millis(200)).await;
        let age = Duration::from_millis(now_ms() - last_seen_ms(&observer));
        assert_eq!((age < TTL, !times(&observer).is_empty()), (outlives, outlives), "{settings}: {age:?}");
        assert!(!suspended(&hub).await);
        hub.shutdown().await;
    }
}

#[tokio::test]
async fn after_an_event_of_an_unknown_kind_nothing_is_re_asserted_until_the_cache_is_empty() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], EVERY).await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("re-assertions", |seen| times(seen).len() >= 2).await;
    let evicted = Value::Array(vec!["BlocksEvicted".into(), Value::Array(vec![1.into()])]);
    engine.publish(vec![evicted, stored(&[2], Some(1), &tokens(4..8))]).await;
    observer.until("the block beside it", |seen| seen.holds("r0", &tokens(0..8))).await;
    let before = times(&observer).len();
    engine.publish(vec![stored(&[3], Some(2), &tokens(8..12))]).await;
    observer.until("a later one", |seen| seen.holds("r0", &tokens(0..12))).await;
    observer.listen(Duration::from_millis(900)).await;
    assert!(times(&observer).len() <= before + 1 && suspended(&hub).await, "what is understood later proves nothing");
    engine.publish(vec![Value::Array(vec!["AllBlocksCleared".into()]), stored(&[4], None, &tokens(20..24))]).await;
    let before = times(&observer).len();
    observer.until("more of them", |seen| times(seen).len() > before + 2).await;
    assert!(!suspended(&hub).await && !observer.holds("r0", &tokens(0..4)));
}
