//! Replicas from pods, through an API server that lists and watches as a real one does.
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failing test says so by panicking, helpers included"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::sleep;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use warmroute::native::hub::{Hub, HubConfig};

/// However slow the machine is: the watcher waits up to half a minute between attempts.
const LONG: Duration = Duration::from_secs(60);

/// An API server with pods in one namespace.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Pods>>);

#[derive(Default)]
struct Pods {
    pods: BTreeMap<String, Value>,
    version: u64,
    /// Events with their versions, for watches that begin in the past.
    events: Vec<(u64, String)>,
    /// Watches that begin before this are told that it is gone.
    oldest: u64,
    watches: Vec<UnboundedSender<String>>,
    is_down: bool,
    lists: usize,
    begun_watches: usize,
}

impl Api {
    async fn start() -> (Api, String) {
        let api = Api::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(pods).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (api, url)
    }

    fn change(&self, change: impl FnOnce(&mut Pods)) {
        change(&mut self.0.lock().unwrap());
    }

    /// A pod is there, or is as this now.
    fn set(&self, name: &str, ip: &str, ready: bool, annotations: Value) {
        self.change(|pods| {
            let kind = if pods.pods.contains_key(name) { "MODIFIED" } else { "ADDED" };
            let pod = pods.pod(name, ip, ready, annotations);
            pods.pods.insert(name.to_owned(), pod.clone());
            pods.tell(kind, pod);
        });
    }

    fn delete(&self, name: &str) {
        self.change(|pods| {
            pods.version += 1;
            let mut pod = pods.pods.remove(name).unwrap();
            pod["metadata"]["resourceVersion"] = json!(pods.version.to_string());
            pods.tell("DELETED", pod);
        });
    }

    /// Tells where the history is.
    fn bookmark(&self) {
        self.change(|pods| {
            let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": pods.version.to_string(),
                "creationTimestamp": null}, "spec": {"containers": null}, "status": {}});
            let line = json!({"type": "BOOKMARK", "object": object}).to_string();
            pods.send(&line);
        });
    }

    /// Ends all watches, as the end of a connection does.
    fn cut(&self) {
        self.change(|pods| pods.watches.clear());
    }
}

impl Pods {
    fn pod(&mut self, name: &str, ip: &str, ready: bool, annotations: Value) -> Value {
        self.version += 1;
        let status = if ready { "True" } else { "False" };
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "llm", "uid": name, "resourceVersion": self.version.to_string(),
                         "labels": {"app": "vllm", "model": "llama"}, "annotations": annotations},
            "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": status}]},
        })
    }

    fn tell(&mut self, kind: &str, pod: Value) {
        let line = json!({"type": kind, "object": pod}).to_string();
        self.events.push((self.version, line.clone()));
        self.send(&line);
    }

    fn send(&mut self, line: &str) {
        self.watches.retain(|watch| watch.send(format!("{line}\n")).is_ok());
    }
}

async fn pods(State(api): State<Api>, uri: Uri, headers: HeaderMap) -> Response {
    assert_eq!(uri.path(), "/api/v1/namespaces/llm/pods");
    assert_eq!(headers[header::AUTHORIZATION], "Bearer a-token");
    let query = uri.query().unwrap_or_default();
    assert!(query.contains("labelSelector=app%3Dvllm"), "{query}");
    let mut pods = api.0.lock().unwrap();
    if pods.is_down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    if parameter("watch").is_none_or(|watch| watch != "true") {
        pods.lists += 1;
        let items: Vec<&Value> = pods.pods.values().collect();
        let metadata = json!({"resourceVersion": pods.version.to_string()});
        return json_response(json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}));
    }
    pods.begun_watches += 1;
    let from: u64 = parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let (sender, receiver) = unbounded_channel();
    if from < pods.oldest {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410,
            "message": format!("too old resource version: {from}"), "reason": "Expired"});
        sender.send(format!("{}\n", json!({"type": "ERROR", "object": status}))).unwrap();
    } else {
        for (_, line) in pods.events.iter().filter(|(version, _)| *version > from) {
            sender.send(format!("{line}\n")).unwrap();
        }
        pods.watches.push(sender);
    }
    let lines = UnboundedReceiverStream::new(receiver).map(|line| Ok::<_, std::io::Error>(Bytes::from(line)));
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

fn json_response(value: Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn hub(url: &str, name: &str) -> Hub {
    let directory = std::env::temp_dir().join(format!("warmroute-kubernetes-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let kubeconfig = directory.join(name);
    let text = format!(
        "{{apiVersion: v1, kind: Config, clusters: [{{name: c, cluster: {{server: '{url}'}}}}], users: [{{name: u, \
         user: {{token: a-token}}}}], contexts: [{{name: x, context: {{cluster: c, user: u, namespace: llm}}}}], \
         current-context: x}}"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\ndiscovery: {{initial_timeout_ms: 600000, kubernetes: \
         [{{label_selector: app=vllm, port: 8000, model_label: model, tenant_from_namespace: true, kubeconfig: '{}', \
         replica: {{kv_replay_port: 5558}}}}]}}",
        kubeconfig.display()
    );
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

async fn get(hub: &Hub, path: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let url = format!("http://{}{path}", hub.http_address()).parse().unwrap();
    let response = client.get(url).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn replicas(hub: &Hub) -> Vec<Value> {
    let state: Value = serde_json::from_str(&get(hub, "/state").await.1).unwrap();
    state["replicas"].as_array().unwrap().clone()
}

async fn until(hub: &Hub, expected: &[&str]) {
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    let limit = Instant::now() + LONG;
    loop {
        let found = replicas(hub).await;
        let ids: BTreeSet<&str> = found.iter().map(|replica| replica["id"].as_str().unwrap()).collect();
        if ids == expected {
            return;
        }
        assert!(Instant::now() < limit, "{ids:?} are followed, not {expected:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn ready_pods_are_followed_as_the_api_says() {
    let (api, url) = Api::start().await;
    api.set("p-0", "127.0.0.7", true, json!({}));
    api.set("p-1", "127.0.0.8", false, json!({}));
    let hub = hub(&url, "follow").await;
    until(&hub, &["p-0"]).await;
    let found = replicas(&hub).await.remove(0);
    assert_eq!((found["tenant"].as_str(), found["model"].as_str()), (Some("llm"), Some("llama")));

    api.set("p-1", "127.0.0.8", true, json!({}));
    api.set("p-2", "127.0.0.9", true, json!({"warmroute.io/engine": "sglang", "warmroute.io/model": "qwen"}));
    until(&hub, &["p-0", "p-1", "p-2"]).await;
    let found = replicas(&hub).await;
    let other = found.iter().find(|replica| replica["id"] == "p-2").unwrap();
    assert_eq!((other["engine"].as_str(), other["model"].as_str()), (Some("sglang"), Some("qwen")));
    api.set("p-3", "127.0.0.10", true, json!({"warmroute.io/port": "http"}));
    api.set("p-0", "127.0.0.7", false, json!({}));
    until(&hub, &["p-1", "p-2"]).await;
    api.delete("p-2");
    until(&hub, &["p-1"]).await;
    api.change(|pods| assert_eq!(pods.lists, 1, "all that came over the watch"));
    hub.shutdown().await;
}

#[tokio::test]
async fn a_watch_of_pods_that_ends_goes_on_and_one_that_is_gone_is_listed_anew() {
    let (api, url) = Api::start().await;
    api.set("p-0", "127.0.0.7", true, json!({}));
    let hub = hub(&url, "ends").await;
    until(&hub, &["p-0"]).await;

    // The end of a connection: what happened meanwhile comes with the next watch.
    api.cut();
    api.set("p-1", "127.0.0.8", true, json!({}));
    until(&hub, &["p-0", "p-1"]).await;
    api.change(|pods| assert_eq!(pods.lists, 1));

    // Other objects' changes move the version on: with the bookmark the watch can still go on from there.
    api.change(|pods| pods.version += 100);
    api.bookmark();
    sleep(Duration::from_millis(200)).await;
    api.change(|pods| pods.oldest = pods.version);
    api.cut();
    api.set("p-2", "127.0.0.9", true, json!({}));
    until(&hub, &["p-0", "p-1", "p-2"]).await;
    api.change(|pods| assert_eq!(pods.lists, 1));

    // 410 Gone: a pod went while nobody looked.
    api.change(|pods| {
        pods.watches.clear();
        pods.pods.remove("p-0");
        pods.version += 100;
        pods.oldest = pods.version;
        pods.events.clear();
    });
    until(&hub, &["p-1", "p-2"]).await;
    api.change(|pods| assert!(pods.lists >= 2));
    api.set("p-3", "127.0.0.10", true, json!({}));
    until(&hub, &["p-1", "p-2", "p-3"]).await;
    let (_, metrics) = get(&hub, "/metrics").await;
    assert!(metrics.contains("discovery_failures_total{source=\"kubernetes:/app=vllm\"} 0"), "{metrics}");
    hub.shutdown().await;
}

#[tokio::test]
async fn pods_stay_known_while_the_api_is_down_which_holds_readiness_up_at_the_start() {
    let (api, url) = Api::start().await;
    api.change(|pods| pods.is_down = true);
    let hub = hub(&url, "down").await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(get(&hub, "/readyz").await, (503, "replicas are being looked for\n".to_owned()));
    let failures = "warmroute_hub_discovery_failures_total{source=\"kubernetes:/app=vllm\"}";
    let failed =
        |text: &str| text.lines().find_map(|line| line.strip_prefix(failures)?.trim().parse::<u64>().ok()).unwrap_or(0);
    let limit = Instant::now() + LONG;
    while failed(&get(&hub, "/metrics").await.1) == 0 {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(20)).await;
    }
    api.set("p-0", "127.0.0.7", true, json!({}));
    api.change(|pods| pods.is_down = false);
    until(&hub, &["p-0"]).await;

    let before = failed(&get(&hub, "/metrics").await.1);
    api.change(|pods| pods.is_down = true);
    api.cut();
    let limit = Instant::now() + LONG;
    while failed(&get(&hub, "/metrics").await.1) == before {
        assert!(Instant::now() < limit);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(replicas(&hub).await.len(), 1);
    hub.shutdown().await;
}
