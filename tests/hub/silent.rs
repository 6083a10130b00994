//! An engine that cannot be asked whether events were missed, and of which nothing more is heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use warmroute::native::hub::{Hub, HubConfig};

use crate::hub_support::{Engine, Framing, Observer, get, keys_of, stored, tokens};

const LONG: Duration = Duration::from_secs(60);

/// Metrics that can be kept from answering; where they are.
async fn metrics(hang: &Arc<AtomicBool>) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hang = Arc::clone(hang);
    let text = move || async move {
        while hang.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(50)).await;
        }
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    };
    let router = axum::Router::new().route("/metrics", axum::routing::get(text));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn gone(hub: &Hub) -> u64 {
    let (_, text) = get(hub, "/metrics").await;
    let line = text.lines().find_map(|line| line.strip_prefix("warmroute_hub_gone_total{replica=\"r0\"}"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn without_replays_it_is_there_while_its_metrics_are_and_gone_with_them_and_comes_back_clean() {
    let hang = Arc::new(AtomicBool::new(false));
    let address = metrics(&hang).await;
    let mut engine = Engine::start(Framing::Two).await;
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nscrape_interval_ms: 50\nheartbeat_ms: 200\n\
         events: {{gone_after_ms: 4000}}\nreplicas: [{{id: r0, address: '{address}', \
         kv_events: 'tcp://127.0.0.1:{}', model: m}}]",
        engine.events_port
    );
    let hub = Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap();
    let mut observer = Observer::new(&hub).await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    observer.until("its load", |seen| seen.stats.contains_key("r0")).await;
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;

    // No events for longer than that: its process answers.
    observer.listen(Duration::from_secs(6)).await;
    assert!(observer.holds("r0", &tokens(0..8)));
    assert_eq!(gone(&hub).await, 0);

    // Its connection stays open and says nothing, as of a machine that has lost its network.
    hang.store(true, Ordering::Relaxed);
    let silent_at = Instant::now();
    observer.until("it to be gone", |seen| seen.held.get("r0").is_none_or(|held| held.is_empty())).await;
    assert!(silent_at.elapsed() >= Duration::from_secs(3), "{:?}", silent_at.elapsed());
    assert!(gone(&hub).await >= 1);

    hang.store(false, Ordering::Relaxed);
    let fresh = tokens(100..104);
    let limit = Instant::now() + LONG;
    // What is published before it is connected again is lost to whoever cannot ask for it.
    while observer.held.get("r0") != Some(&keys_of(&fresh)) {
        assert!(Instant::now() < limit, "{:?}", observer.held);
        engine.publish(vec![stored(&[50], None, &fresh)]).await;
        observer.listen(Duration::from_millis(300)).await;
    }
    hub.shutdown().await;
}
