//! Replicas that come and go while the hub runs: from files and from name servers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use warmroute::native::hub::{Hub, HubConfig};

use super::hub_support::{Engine, Framing, Observer, free_port, get, ready, stored, tokens};
use super::name_server::{NameServer, a, srv};

/// However slow the machine is.
const LONG: Duration = Duration::from_secs(20);

/// A file of replicas.
struct ReplicaFile(PathBuf);

impl ReplicaFile {
    fn new(name: &str, text: &str) -> ReplicaFile {
        let directory = std::env::temp_dir().join(format!("warmroute-replicas-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = ReplicaFile(directory.join(format!("{name}.yaml")));
        file.write(text);
        file
    }

    /// Replaces the file as a whole, as a good writer does.
    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

fn entry(id: &str, engine: &Engine) -> String {
    format!(
        "- {{id: {id}, address: 'localhost:{}', kv_events: 'tcp://127.0.0.1:{}', kv_replay: 'tcp://127.0.0.1:{}', \
         model: 'm-{id}', metrics: 'http://127.0.0.1:{}/metrics'}}\n",
        engine.events_port,
        engine.events_port,
        engine.replay_port,
        free_port()
    )
}

async fn start(discovery: &str) -> Hub {
    let yaml = format!("listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\n{discovery}");
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

async fn ids(hub: &Hub) -> BTreeSet<String> {
    let state: serde_json::Value = serde_json::from_str(&get(hub, "/state").await.1).unwrap();
    let replicas = state["replicas"].as_array().unwrap().iter();
    replicas.map(|replica| replica["id"].as_str().unwrap().to_owned()).collect()
}

async fn until_ids(hub: &Hub, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|id| (*id).to_owned()).collect();
    let limit = Instant::now() + LONG;
    while ids(hub).await != expected {
        assert!(Instant::now() < limit, "{:?} are followed, not {expected:?}", ids(hub).await);
        sleep(Duration::from_millis(20)).await;
    }
}

async fn until_metrics(hub: &Hub, what: &str, holds: impl Fn(&str) -> bool) {
    let limit = Instant::now() + LONG;
    loop {
        let (_, text) = get(hub, "/metrics").await;
        if holds(&text) {
            return;
        }
        assert!(Instant::now() < limit, "{what}: {text}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn value(text: &str, series: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[tokio::test]
async fn replicas_of_a_file_come_and_go_without_a_reset_and_without_reconnecting_the_others() {
    let (mut one, mut other) = (Engine::start(Framing::Two).await, Engine::start(Framing::Two).await);
    let third = Engine::start(Framing::Two).await;
    let (first, second, last) = (entry("one", &one), entry("other", &other), entry("third", &third));
    let file = ReplicaFile::new("come-and-go", &first);
    let path = file.0.display();
    let hub = start(&format!("discovery: {{files: [{{path: '{path}', poll_ms: 50}}]}}")).await;
    ready(&hub).await;
    let mut observer = Observer::new(&hub).await;
    one.publish(vec![stored(&[1], None, &tokens(0..4))]).await;
    observer.until("the first block", |seen| seen.held.contains_key("one") && seen.holds("one", &tokens(0..4))).await;

    file.write(&format!("{first}{second}"));
    observer.until("the second replica", |seen| seen.complete.contains("other")).await;
    other.publish(vec![stored(&[2], None, &tokens(8..12))]).await;
    observer.until("its block", |seen| seen.holds("other", &tokens(8..12))).await;
    assert!(observer.holds("one", &tokens(0..4)));
    file.write(&format!("{first}{second}{last}"));
    observer.until("the third replica", |seen| seen.complete.contains("third")).await;
    file.write("- {id: one, adress: x}");
    let failures = format!("warmroute_hub_discovery_failures_total{{source=\"file:{path}\"}}");
    until_metrics(&hub, "the bad file is counted", |text| value(text, &failures).is_some_and(|count| count > 0)).await;
    until_ids(&hub, &["one", "other", "third"]).await;
    file.write(&second);
    observer.until("the others to be gone", |seen| seen.held.len() == 1).await;
    until_ids(&hub, &["other"]).await;

    assert!(observer.holds("other", &tokens(8..12)));
    let resets = observer.kinds.iter().filter(|kind| **kind == "reset").count();
    assert_eq!(resets, 1, "{:?}", observer.kinds);
    other.publish(vec![stored(&[3], None, &tokens(20..24))]).await;
    observer.until("a new block", |seen| seen.held["other"].len() == 2).await;
    let (_, after) = get(&hub, "/metrics").await;
    for series in ["connections_lost", "restarts", "clears"] {
        let series = format!("warmroute_hub_{series}_total{{replica=\"other\"}}");
        assert_eq!(value(&after, &series), Some(0), "{series}");
    }
    until_metrics(&hub, "what is gone has no series", |text| {
        !text.contains("replica=\"one\"") && !text.contains("replica=\"third\"") && text.contains("replica=\"other\"")
    })
    .await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_file_that_is_not_there_yet_holds_readiness_up_for_a_bounded_time() {
    let file = ReplicaFile::new("late", "[]");
    std::fs::remove_file(&file.0).unwrap();
    let path = file.0.display();
    let discovery = |timeout: u64| {
        format!("discovery: {{initial_timeout_ms: {timeout}, files: [{{path: '{path}', poll_ms: 50}}]}}")
    };
    let hub = start(&discovery(500)).await;
    assert_eq!(get(&hub, "/readyz").await, (503, "replicas are being looked for\n".to_owned()));
    ready(&hub).await;
    assert_eq!(ids(&hub).await.len(), 0);
    hub.shutdown().await;

    let hub = start(&discovery(600_000)).await;
    let mut observer = Observer::new(&hub).await;
    observer.listen(Duration::from_millis(300)).await;
    assert_eq!(observer.kinds, [""; 0], "no state is told that lacks what only was not found yet");
    assert_eq!(get(&hub, "/readyz").await.0, 503);
    file.write("[]");
    observer.until("the state", |seen| seen.kinds.contains(&"reset_complete")).await;
    ready(&hub).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn addresses_of_a_name_are_replicas_and_stay_for_a_while_when_nobody_answers() {
    let server = NameServer::start().await;
    server.set("vllm.test.", vec![a("vllm.test.", "127.0.0.2", 0), a("vllm.test.", "127.0.0.3", 0)]);
    let hub = start(&format!(
        "discovery: {{dns: [{{name: vllm.test, port: 8000, min_ttl_ms: 50, keep_ms: 1500, \
         name_servers: ['{}'], replica: {{model: m}}}}]}}",
        server.address
    ))
    .await;
    until_ids(&hub, &["127.0.0.2:8000", "127.0.0.3:8000"]).await;
    server.set("vllm.test.", vec![a("vllm.test.", "127.0.0.3", 0), a("vllm.test.", "127.0.0.4", 0)]);
    until_ids(&hub, &["127.0.0.3:8000", "127.0.0.4:8000"]).await;

    server.fail(true);
    let failures = "warmroute_hub_discovery_failures_total{source=\"dns:vllm.test\"}";
    until_metrics(&hub, "failures are counted", |text| value(text, failures).is_some_and(|count| count > 0)).await;
    assert_eq!(ids(&hub).await.len(), 2, "what is known stays");
    until_ids(&hub, &[]).await;
    server.fail(false);
    until_ids(&hub, &["127.0.0.3:8000", "127.0.0.4:8000"]).await;
    server.set("vllm.test.", vec![]);
    until_ids(&hub, &[]).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_long_ttl_is_kept_to_and_more_addresses_than_fit_a_datagram_come_over_tcp() {
    let server = NameServer::start().await;
    let addresses = |count: u8| (1..=count).map(|at| a("many.test.", &format!("127.0.1.{at}"), 3_600)).collect();
    server.set("many.test.", addresses(200));
    let hub = start(&format!(
        "discovery: {{dns: [{{name: many.test, port: 80, min_ttl_ms: 50, max_ttl_ms: 3600000, \
         name_servers: ['{}'], replica: {{model: m}}}}]}}",
        server.address
    ))
    .await;
    let limit = Instant::now() + LONG;
    while ids(&hub).await.len() != 200 {
        assert!(Instant::now() < limit, "{} are followed", ids(&hub).await.len());
        sleep(Duration::from_millis(50)).await;
    }
    let asked = server.asked();
    server.set("many.test.", addresses(1));
    sleep(Duration::from_millis(500)).await;
    assert_eq!((server.asked(), ids(&hub).await.len()), (asked, 200));
    hub.shutdown().await;
}

#[tokio::test]
async fn targets_of_a_service_are_replicas_by_their_names() {
    let server = NameServer::start().await;
    server.set(
        "_http._tcp.vllm.test.",
        vec![srv("_http._tcp.vllm.test.", "p-0.vllm.test.", 8_000), {
            srv("_http._tcp.vllm.test.", "p-1.vllm.test.", 8_001)
        }],
    );
    server.set("p-0.vllm.test.", vec![a("p-0.vllm.test.", "127.0.0.7", 0)]);
    let hub = start(&format!(
        "discovery: {{dns: [{{name: _http._tcp.vllm.test, type: SRV, min_ttl_ms: 50, keep_ms: 8000, name_servers: ['{}'], \
         replica: {{model: m, kv_replay_port: 5558}}}}]}}",
        server.address
    ))
    .await;
    until_ids(&hub, &["p-0.vllm.test:8000"]).await;
    server.set("p-1.vllm.test.", vec![a("p-1.vllm.test.", "127.0.0.8", 0)]);
    until_ids(&hub, &["p-0.vllm.test:8000", "p-1.vllm.test:8001"]).await;

    // The record of a target stands while its own name has no address any more.
    server.set("p-1.vllm.test.", vec![]);
    let failures = "warmroute_hub_discovery_failures_total{source=\"dns:_http._tcp.vllm.test\"}";
    let before = value(&get(&hub, "/metrics").await.1, failures).unwrap();
    until_metrics(&hub, "it is counted", |text| value(text, failures).is_some_and(|count| count > before)).await;
    assert_eq!(ids(&hub).await.len(), 2, "what is known of it stays");
    until_ids(&hub, &["p-0.vllm.test:8000"]).await;
    server.set("p-1.vllm.test.", vec![a("p-1.vllm.test.", "127.0.0.9", 0)]);
    until_ids(&hub, &["p-0.vllm.test:8000", "p-1.vllm.test:8001"]).await;
    hub.shutdown().await;
}
