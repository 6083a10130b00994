//! What operators see: `/state`, `inspect`, and metrics of engines that say too little.

use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use warmroute::native::hub::report::HubReport;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::observation::Subscription;

use super::hub_support::{BLOCK, Engine, Framing, Observer, free_port, get, observed, stored, tokens};

async fn report(hub: &Hub) -> HubReport {
    serde_json::from_str(&get(hub, "/state").await.1).unwrap()
}

/// Polls the report until it holds.
async fn until(hub: &Hub, what: &str, holds: impl Fn(&HubReport) -> bool) -> HubReport {
    let limit = Instant::now() + Duration::from_secs(20);
    loop {
        let report = report(hub).await;
        if holds(&report) {
            return report;
        }
        assert!(Instant::now() < limit, "{what}: {report:#?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn inspect(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || Command::new(env!("CARGO_BIN_EXE_warmroute-hub")).arg("inspect").args(arguments).output();
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_state_has_replicas_streams_and_memory_and_inspect_shows_them() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
    engine.publish(vec![stored(&[9], Some(8), &tokens(0..BLOCK as u32))]).await;
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    let named = Subscription { node_id: "envoy-7".into(), ..Subscription::default() };
    let mut other = Observer::subscribe(&hub, named).await;
    other.until("the state", |seen| seen.kinds.contains(&"reset_complete")).await;
    let report = until(&hub, "both streams and the dropped block", |report| {
        report.streams.iter().any(|stream| stream.node_id == "envoy-7" && stream.position > 0)
            && report.replicas[0].drops.get("unknown_parent") == Some(&1)
    })
    .await;
    let replica = &report.replicas[0];
    assert_eq!((replica.id.as_str(), replica.model.as_str(), replica.engine.as_str()), ("r0", "m0", "auto"));
    assert!(replica.connected && replica.complete && replica.address.is_some());
    assert_eq!((replica.blocks, replica.blocks_by_tier["T1"]), (2, 2));
    assert_eq!((replica.event_sequence, replica.gaps, replica.restarts), (1, 0, 0));
    assert!(replica.replays > 0 && replica.lag_ms.is_some() && replica.last_message_ago_ms.is_some(), "{replica:?}");
    assert_eq!((replica.pressure, replica.last_scrape_ago_ms), (None, None), "it has no metrics");
    assert_eq!((report.subscribers, report.streams.len(), report.memory.followed_blocks), (2, 2, 2));
    assert!(report.sequence > 0 && report.epoch > 0 && report.complete);
    assert!(report.memory.index_bytes > 0 && report.memory.resume_buffer_bytes > 0);
    assert!(!cfg!(target_os = "linux") || report.memory.resident_bytes.is_some_and(|bytes| bytes > 1 << 20));

    let url = format!("http://{}", hub.http_address());
    let table = inspect(&["--hub", &url]).await;
    let text = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.status.code(), Some(0), "{text}");
    for part in ["REPLICA", "BLOCKS", "SEQUENCE", "GAPS", "DROPS", "LAG", "r0", "unknown_parent", "envoy-7", "memory"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = inspect(&["--hub", &url, "--json"]).await;
    let same: HubReport = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((same.epoch, same.replicas[0].blocks), (report.epoch, 2));
    drop(other);
    until(&hub, "the stream to leave", |report| report.streams.len() == 1).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn where_no_hub_is_inspect_says_so() {
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let output = inspect(&["--hub", &nowhere]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains(&nowhere) && said.contains("refused"), "{said}");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/state", axum::routing::get(|| async { "hello" }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let output = inspect(&["--hub", &other]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not the state of a hub"), "{said}");
    assert_eq!(inspect(&["--hub", "127.0.0.1:8081"]).await.status.code(), Some(2));
    assert_eq!(inspect(&["--hub", &other, "--token-file", "/nonexistent"]).await.status.code(), Some(2));
}

#[tokio::test]
async fn inspect_shows_the_token_that_it_is_given() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = |headers: axum::http::HeaderMap| async move {
        match headers.get("authorization").is_some_and(|value| value == "Bearer s3cret-0123456789") {
            true => (axum::http::StatusCode::OK, "{\"version\": \"9\", \"unknown\": []}"),
            false => (axum::http::StatusCode::UNAUTHORIZED, ""),
        }
    };
    let router = axum::Router::new().route("/state", axum::routing::get(state));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let refused = inspect(&["--hub", &url]).await;
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("401"), "{said}");
    let file = std::env::temp_dir().join(format!("warmroute-token-{}", std::process::id()));
    std::fs::write(&file, "# the one to show\ns3cret-0123456789\n\nretired-0123456789\n").unwrap();
    let shown = inspect(&["--hub", &url, "--token-file", file.to_str().unwrap()]).await;
    assert_eq!(shown.status.code(), Some(0));
    assert!(String::from_utf8(shown.stdout).unwrap().starts_with("hub 9 "));
}

#[tokio::test]
async fn a_metric_that_is_missing_is_counted_by_reason_and_never_a_zero() {
    const WHOLE: &str = "vllm:num_requests_running 64\nvllm:num_requests_waiting 64\n\
        vllm:kv_cache_usage_perc 0.5\nvllm:prefix_cache_hits 1\nvllm:prefix_cache_queries 2\n";
    let text = Arc::new(Mutex::new(WHOLE.replace("vllm:num_requests_waiting", "vllm:num_requests_queued")));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Arc::clone(&text);
    let router = axum::Router::new()
        .route("/metrics", axum::routing::get(move || async move { served.lock().unwrap().clone() }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nscrape_interval_ms: 50\nreplicas: [{{id: r0, \
         address: '{address}', kv_events: 'tcp://127.0.0.1:{}', model: m}}]",
        free_port()
    );
    let hub = Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap();
    let failed = |reason: &str| format!("warmroute_hub_scrapes_failed_total{{replica=\"r0\",reason=\"{reason}\"}}");
    let seen = until(&hub, "the fault", |report| report.replicas[0].scrape_fault.is_some()).await;
    assert_eq!(seen.replicas[0].scrape_fault.as_deref(), Some("missing_load"));
    assert_eq!((seen.replicas[0].pressure, seen.replicas[0].running), (None, Some(64.0)));
    let (_, metrics) = get(&hub, "/metrics").await;
    assert!(metrics.contains(&failed("missing_load")) && !metrics.contains("warmroute_hub_pressure{"), "{metrics}");

    *text.lock().unwrap() = WHOLE.to_owned();
    let seen = until(&hub, "the load", |report| report.replicas[0].pressure.is_some()).await;
    assert_eq!((seen.replicas[0].pressure, seen.replicas[0].cache_usage), (Some(0.5), Some(0.5)));
    until(&hub, "no fault", |report| report.replicas[0].scrape_fault.is_none()).await;
    *text.lock().unwrap() = WHOLE.replace("prefix_cache_hits", "hits");
    let seen = until(&hub, "the other fault", |report| report.replicas[0].scrape_fault.is_some()).await;
    assert_eq!(seen.replicas[0].scrape_fault.as_deref(), Some("missing_hit_rate"));
    let (_, metrics) = get(&hub, "/metrics").await;
    assert!(metrics.contains(&failed("missing_hit_rate")) && metrics.contains("warmroute_hub_pressure{"), "{metrics}");
    assert!(metrics.contains("warmroute_hub_cache_usage{replica=\"r0\"} 0.5"), "{metrics}");
    hub.shutdown().await;
}
