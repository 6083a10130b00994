//! The hub from its sockets: real ZeroMQ publishers on one side, real gRPC subscribers on the other.
#![cfg(feature = "native")]

#[cfg(test)]
#[path = "hub/discovery.rs"]
mod discovery;
#[cfg(test)]
#[path = "hub/documented.rs"]
mod documented;
#[cfg(test)]
#[path = "hub/engines.rs"]
mod engines;
#[cfg(test)]
mod hub_support;
#[cfg(test)]
#[path = "hub/models.rs"]
mod models;
#[cfg(test)]
#[path = "hub/name_server.rs"]
mod name_server;
#[cfg(test)]
#[path = "hub/operations.rs"]
mod operations;
#[cfg(test)]
#[path = "hub/ranks.rs"]
mod ranks;
#[cfg(test)]
#[path = "hub/reassertions.rs"]
mod reassertions;
#[cfg(test)]
#[path = "hub/runs.rs"]
mod runs;
#[cfg(test)]
#[path = "hub/silent.rs"]
mod silent;
#[cfg(test)]
#[path = "hub/streams.rs"]
mod streams;

use std::time::{Duration, Instant};

use bytes::Bytes;
use hub_support::{
    BLOCK, Engine, Framing, Observer, RawStream, get, hub, keys_of, observed, ready, removed, stored, tokens,
};
use tokio::time::sleep;
use warmroute::observation::Subscription;
use warmroute::wire::MAX_UNACKNOWLEDGED_BYTES;

#[tokio::test]
async fn stored_and_removed_blocks_reach_the_subscriber_as_prefix_hashes() {
    let mut engine = Engine::start(Framing::Two).await;
    let hub = hub(&[&engine], "").await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    assert!(["127.0.0.1:8000", "[::1]:8000"].contains(&observer.addresses["r0"].as_str()));

    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    engine.publish(vec![stored(&[3], Some(2), &tokens(8..12))]).await;
    observer.until("the third block", |seen| seen.holds("r0", &tokens(0..12))).await;
    engine.publish(vec![removed(&[3])]).await;
    observer.until("its removal", |seen| seen.holds("r0", &tokens(0..8))).await;
    engine.publish(vec![rmpv::Value::Array(vec!["AllBlocksCleared".into()])]).await;
    observer.until("the clear", |seen| seen.holds("r0", &[])).await;
    assert_eq!(observer.clears, 1);
    hub.shutdown().await;
}

#[tokio::test]
async fn an_unknown_parent_is_never_a_root_and_is_counted() {
    let mut engine = Engine::start(Framing::Three).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[9], Some(8), &tokens(0..4))]).await;
    engine.publish(vec![stored(&[1], None, &tokens(50..54))]).await;
    observer.until("the other block", |seen| seen.holds("r0", &tokens(50..54))).await;
    let (_, metrics) = get(&hub, "/metrics").await;
    let line = "warmroute_hub_skipped_total{replica=\"r0\",reason=\"unknown_parent\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    hub.shutdown().await;
}

#[tokio::test]
async fn what_was_published_before_the_hub_came_is_replayed() {
    for framing in [Framing::Two, Framing::Three] {
        let mut engine = Engine::start(framing).await;
        engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
        engine.publish(vec![stored(&[2], Some(1), &tokens(4..8))]).await;
        let (hub, mut observer) = observed(&[&engine], "").await;
        observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
        assert!(observer.holds("r0", &tokens(0..8)));
        assert_eq!(observer.kinds[..3], ["reset", "chunk", "reset_complete"]);
        hub.shutdown().await;
    }
}

#[tokio::test]
async fn a_replay_whose_answers_are_dropped_is_asked_for_until_it_is_whole() {
    let mut engine = Engine::start_with_full_socket(5).await;
    for key in 0..30_u64 {
        let start = 4 * key as u32;
        engine.publish(vec![stored(&[key], key.checked_sub(1), &tokens(start..start + 4))]).await;
    }
    let hub = hub(&[&engine], "events: {replay_timeout_ms: 100, continuity_grace_ms: 5000}").await;
    let mut observer = Observer::new(&hub).await;
    observer.until("all blocks", |seen| seen.holds("r0", &tokens(0..120))).await;
    assert_eq!(observer.clears, 0);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_gap_is_filled_by_replay() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the first block", |seen| seen.holds("r0", &tokens(0..4))).await;
    engine.lose_live(vec![stored(&[2], Some(1), &tokens(4..8))]);
    engine.publish(vec![stored(&[3], Some(2), &tokens(8..12))]).await;
    observer.until("all three blocks", |seen| seen.holds("r0", &tokens(0..12))).await;
    assert_eq!(observer.clears, 0);
    assert!(get(&hub, "/metrics").await.1.contains("warmroute_hub_gaps_total{replica=\"r0\"} 1"));
    hub.shutdown().await;
}

#[tokio::test]
async fn a_message_lost_before_a_silence_is_found_without_traffic() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "events: {verify_idle_ms: 200}").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    engine.lose_live(vec![removed(&[1])]);
    observer.until("its removal", |seen| seen.holds("r0", &[])).await;
    assert_eq!(observer.clears, 0);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_gap_that_cannot_be_filled_clears_the_replica() {
    let mut engine = Engine::start(Framing::Three).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    engine.lose();
    engine.publish(vec![stored(&[5], None, &tokens(90..94)), stored(&[3], Some(2), &tokens(8..12))]).await;
    observer.until("only the new block", |seen| seen.holds("r0", &tokens(90..94))).await;
    assert_eq!(observer.clears, 1);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_gap_without_a_replay_answer_clears_and_goes_on_live() {
    let mut engine = Engine::start_on(hub_support::free_port(), hub_support::free_port(), None).await;
    let (hub, mut observer) = observed(&[&engine], "events: {replay_timeout_ms: 100}").await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    sleep(Duration::from_millis(300)).await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    engine.lose();
    engine.publish(vec![stored(&[5], None, &tokens(90..94))]).await;
    observer.until("only the new block", |seen| seen.holds("r0", &tokens(90..94))).await;
    assert_eq!(observer.clears, 1);
    engine.publish(vec![stored(&[6], Some(5), &tokens(94..98))]).await;
    observer.until("its child", |seen| seen.holds("r0", &tokens(90..98))).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_restarted_in_place_is_cleared_without_traffic() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;

    let (events, replay) = engine.kill().await;
    let mut engine = Engine::start_on(events, replay, Some(Framing::Two)).await;
    let restarted = Instant::now();
    observer.until("the clear", |seen| seen.holds("r0", &[])).await;
    assert!(restarted.elapsed() < Duration::from_secs(2), "{:?}", restarted.elapsed());
    // The number 0 again, for something else.
    engine.publish(vec![stored(&[7], None, &tokens(70..74))]).await;
    observer.until("the new block", |seen| seen.holds("r0", &tokens(70..74))).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_restarted_engine_is_known_even_when_it_is_already_ahead() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    let (events, replay) = engine.kill().await;
    let mut engine = Engine::start_on(events, replay, Some(Framing::Two)).await;
    for key in 0..5 {
        let start = 100 * key as u32;
        engine.publish(vec![stored(&[key], None, &tokens(start..start + 4))]).await;
    }
    let expected = (0..5).flat_map(|key| keys_of(&tokens(100 * key..100 * key + 4))).collect();
    observer.until("the new process's blocks", |seen| seen.held["r0"] == expected).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn numbers_that_go_back_on_one_connection_clear_the_replica() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    engine.publish(vec![stored(&[2], Some(1), &tokens(4..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    engine.forget_ring();
    engine.next = 0;
    engine.publish(vec![stored(&[3], None, &tokens(30..34))]).await;
    observer.until("only the new block", |seen| seen.holds("r0", &tokens(30..34))).await;
    assert!(get(&hub, "/metrics").await.1.contains("warmroute_hub_restarts_total{replica=\"r0\"} 1"));
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_stays_away_is_cleared() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "events: {continuity_grace_ms: 300}").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    engine.kill().await;
    observer.until("the clear", |seen| seen.holds("r0", &[])).await;
    assert!(get(&hub, "/state").await.1.contains("\"connected\":false"));
    hub.shutdown().await;
}

#[tokio::test]
async fn garbage_is_counted_and_survived() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    for garbage in [&b"\xc1\xff garbage"[..], b"", &[0x91; 200]] {
        engine.send(Bytes::copy_from_slice(garbage)).await;
    }
    engine.publish(vec![5.into(), stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    let (_, metrics) = get(&hub, "/metrics").await;
    for line in ["reason=\"malformed_batch\"} 3", "reason=\"unknown_event\"} 1"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    hub.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_comes_back_gets_only_what_it_missed() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    // Beyond the first reset, inside of which there is no position to come back to.
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4)) && seen.sequence > 0).await;
    let (epoch, sequence) = (observer.epoch, observer.sequence);
    drop(observer);
    engine.publish(vec![stored(&[2], Some(1), &tokens(4..8))]).await;
    engine.publish(vec![stored(&[9], None, &tokens(4..8))]).await;
    let mut other = Observer::new(&hub).await;
    other.until("all", |seen| seen.held.get("r0").is_some_and(|held| held.len() == 3)).await;

    let back = Subscription { epoch, sequence, ..Subscription::default() };
    let mut observer = RawStream::open(&hub, back).await;
    let kinds = observer.kinds(2).await;
    assert_eq!(kinds, ["resumed", "delta"]);

    for (epoch, sequence) in [(epoch + 1, sequence), (epoch, sequence + 1_000), (epoch, 0), (0, 0)] {
        let unknown = Subscription { epoch, sequence, ..Subscription::default() };
        let kinds = RawStream::open(&hub, unknown).await.kinds(3).await;
        assert_eq!(kinds, ["reset", "chunk", "reset_complete"], "epoch {epoch}, sequence {sequence}");
    }
    hub.shutdown().await;
}

const MANY: u32 = 20_000;

fn many_blocks() -> Vec<u32> {
    tokens(0..MANY * BLOCK as u32)
}

#[tokio::test]
async fn many_blocks_come_in_small_messages_live_and_in_a_reset() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut live) = observed(&[&engine], "").await;
    live.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let keys: Vec<u64> = (1..=u64::from(MANY)).collect();
    engine.publish(vec![stored(&keys, None, &many_blocks())]).await;
    // Every message's length is checked by the observer.
    live.until("all blocks live", |seen| seen.held["r0"].len() == MANY as usize).await;
    let mut late = Observer::new(&hub).await;
    late.until("all blocks in a reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(late.held, live.held);
    assert!(late.holds("r0", &many_blocks()));
    engine.publish(vec![removed(&keys)]).await;
    late.until("all removed", |seen| seen.holds("r0", &[])).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_acknowledges_nothing_gets_one_window_and_is_closed() {
    let mut engine = Engine::start(Framing::Two).await;
    let hub = hub(&[&engine], "acknowledge_timeout_ms: 1500").await;
    ready(&hub).await;
    let keys: Vec<u64> = (1..=u64::from(2 * MANY)).collect();
    engine.publish(vec![stored(&keys, None, &tokens(0..2 * MANY * BLOCK as u32))]).await;
    let mut acknowledging = Observer::new(&hub).await;
    let all = 2 * MANY as usize;
    acknowledging.until("all", |seen| seen.held.get("r0").is_some_and(|held| held.len() == all)).await;
    assert!(acknowledging.bytes > 3 * MAX_UNACKNOWLEDGED_BYTES / 2, "{} bytes", acknowledging.bytes);

    let mut silent = Observer::new(&hub).await;
    silent.acknowledges = false;
    silent.listen(Duration::from_secs(1)).await;
    let taken = silent.bytes;
    assert!(taken <= MAX_UNACKNOWLEDGED_BYTES && taken > MAX_UNACKNOWLEDGED_BYTES / 2, "{taken} bytes");
    let status = loop {
        if let Err(status) = silent.step().await {
            break status;
        }
    };
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    assert_eq!(silent.bytes, taken);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_falls_off_the_buffer_is_told_to_subscribe_again() {
    let mut engine = Engine::start(Framing::Two).await;
    let hub = hub(&[&engine], "resume_buffer_bytes: 100000").await;
    ready(&hub).await;
    let mut slow = Observer::new(&hub).await;
    slow.acknowledges = false;
    slow.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let mut fast = Observer::new(&hub).await;
    for round in 0..20 {
        let keys: Vec<u64> = (1..=4_000).map(|key| round * 10_000 + key).collect();
        let start = round as u32 * 100_000;
        engine.publish(vec![stored(&keys, None, &tokens(start..start + 4_000 * BLOCK as u32))]).await;
        let held = 4_000 * (round as usize + 1);
        fast.until("a round", |seen| seen.held.get("r0").is_some_and(|keys| keys.len() == held)).await;
    }
    // Room again: the next changes wanted are gone.
    slow.acknowledges = true;
    let status = loop {
        if let Err(status) = slow.step().await {
            break status;
        }
    };
    assert_eq!(status.code(), tonic::Code::OutOfRange);
    hub.shutdown().await;
}

#[tokio::test]
async fn only_the_scopes_asked_for_are_sent_and_the_position_moves_on() {
    let mut first = Engine::start(Framing::Two).await;
    let mut second = Engine::start(Framing::Three).await;
    let hub = hub(&[&first, &second], "").await;
    ready(&hub).await;
    let wanted = Subscription { models: vec!["m1".into()], ..Subscription::default() };
    let mut observer = Observer::subscribe(&hub, wanted).await;
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let start = observer.sequence;
    first.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the position", |seen| seen.sequence > start).await;
    assert!(observer.holds("r0", &[]));
    second.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r1", &tokens(0..4))).await;
    assert!(observer.holds("r0", &[]));
    hub.shutdown().await;
}

#[tokio::test]
async fn heartbeats_come_while_nothing_happens() {
    let engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    observer.listen(Duration::from_millis(1_100)).await;
    let heartbeats = observer.kinds.iter().filter(|kind| **kind == "heartbeat").count();
    assert!((3..=5).contains(&heartbeats), "{heartbeats} in 1.1 s at one each 0.2 s");
    hub.shutdown().await;
}

#[tokio::test]
async fn load_is_published_and_a_new_process_is_noticed_through_its_metrics() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let started = Arc::new(AtomicU64::new(1_000));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics_address = listener.local_addr().unwrap();
    let (start_time, reads) = (Arc::clone(&started), AtomicU64::new(0));
    let reads = Arc::new(reads);
    let text = move || async move {
        let hits = reads.fetch_add(1, Ordering::Relaxed);
        format!(
            "vllm:num_requests_running 30\nvllm:num_requests_waiting 34\nvllm:prefix_cache_hits_total {hits}\n\
             vllm:prefix_cache_queries_total {}\nprocess_start_time_seconds {}\n",
            4 * hits,
            start_time.load(Ordering::Relaxed)
        )
    };
    let router = axum::Router::new().route("/metrics", axum::routing::get(text));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let mut engine = Engine::start(Framing::Two).await;
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nscrape_interval_ms: 50\nreplicas: [{{id: r0, \
         address: '{metrics_address}', kv_events: 'tcp://127.0.0.1:{}', kv_replay: 'tcp://127.0.0.1:{}', model: m}}]",
        engine.events_port, engine.replay_port
    );
    let config = warmroute::native::hub::HubConfig::from_yaml(&yaml).unwrap();
    let hub = warmroute::native::hub::Hub::start(config).await.unwrap();
    let mut observer = Observer::new(&hub).await;
    observer.until("the hits", |seen| seen.stats.get("r0").is_some_and(|stats| stats.hit_rate > 0.0)).await;
    assert_eq!((observer.stats["r0"].pressure, observer.stats["r0"].hit_rate), (0.25, 0.25));
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;

    engine.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the block", |seen| seen.holds("r0", &tokens(0..4))).await;
    // The same events under another process: nothing was missed, nothing is cleared.
    started.store(2_000, Ordering::Relaxed);
    observer.listen(Duration::from_millis(300)).await;
    assert!(observer.holds("r0", &tokens(0..4)));
    // Another process without these events behind a connection that never broke.
    engine.forget_ring();
    started.store(3_000, Ordering::Relaxed);
    observer.until("the clear", |seen| seen.holds("r0", &[])).await;
    hub.shutdown().await;
}

#[test]
fn a_bad_configuration_is_exit_code_2_and_a_line_for_each_problem() {
    let output = hub_support::run_binary(
        "heartbeat_ms: 0\nreplicas: [{id: a, address: 'h', kv_events: 'tcp://h:1', model: m, metrics: 'http://h/'}]",
    )
    .wait_with_output()
    .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let lines = String::from_utf8(output.stderr).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.contains("heartbeat_ms is `0`, allowed is 50 to 60000"), "{lines}");
}

#[tokio::test]
async fn sigterm_is_exit_code_0_within_a_second() {
    let (grpc, http) = (hub_support::free_port(), hub_support::free_port());
    let mut child = hub_support::run_binary(&format!(
        "listen: {{grpc: '127.0.0.1:{grpc}', http: '127.0.0.1:{http}'}}\n\
         replicas: [{{id: a, address: '127.0.0.1:1', kv_events: 'tcp://127.0.0.1:1', model: m}}]"
    ));
    while tokio::net::TcpStream::connect(("127.0.0.1", http)).await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    let stopped = Instant::now();
    let terminated = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(terminated.success());
    let status = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
}

#[tokio::test]
async fn a_shutdown_ends_streams_with_a_reason_within_a_second() {
    let engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let stopped = Instant::now();
    let (status, ()) = tokio::join!(
        async {
            loop {
                if let Err(status) = observer.step().await {
                    break status;
                }
            }
        },
        hub.shutdown()
    );
    assert!(stopped.elapsed() < Duration::from_secs(1), "{:?}", stopped.elapsed());
    assert_eq!(status.code(), tonic::Code::Unavailable);
}
