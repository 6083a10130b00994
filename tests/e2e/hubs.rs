//! Several hubs, and hubs that ask who is there: Envoy's upstream TLS, client certificates, and the filter's token.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use serde_norway::Value as Yaml;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::native::load::certificates::Authority;
use warmroute::native::load::envoy_config::{self, MODEL};
use warmroute::native::load::ports::free_address;
use warmroute::native::load::stack::{Stack, eventually};

use crate::pool::*;

const LIMIT: Duration = Duration::from_secs(30);

/// The sample's cluster of the hub, under another name and perhaps elsewhere.
fn add_cluster(config: &mut Yaml, name: &str, address: SocketAddr) {
    let clusters = &mut config["static_resources"]["clusters"];
    let mut cluster = envoy_config::named(clusters, "warmroute_hub").unwrap().clone();
    cluster["name"] = name.into();
    cluster["load_assignment"]["cluster_name"] = name.into();
    let endpoint = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
    envoy_config::set_socket_address(&mut endpoint["address"], address).unwrap();
    clusters.as_sequence_mut().unwrap().push(cluster);
}

/// Another hub of the same engines.
async fn another_hub(stack: &Stack, grpc: SocketAddr) -> Hub {
    let replicas = stack.addresses.engines.iter().enumerate().map(|(place, engine)| {
        json!({
            "id": stack.replica_id(place),
            "address": engine.http.to_string(),
            "kv_events": format!("tcp://{}", engine.kv_events),
            "kv_replay": format!("tcp://{}", engine.kv_replay),
            "model": MODEL,
        })
    });
    let listen = json!({ "grpc": grpc.to_string(), "http": "127.0.0.1:0" });
    let config = json!({ "listen": listen, "replicas": replicas.collect::<Vec<_>>() });
    Hub::start(HubConfig::from_yaml(&config.to_string()).unwrap()).await.unwrap()
}

async fn changes(stack: &Stack) -> f64 {
    stack.metrics().await.unwrap().sum("warmroute_hub_changes_total", &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_hub_is_killed_hints_go_on_and_events_come_through_the_other_one() {
    let second = free_address().unwrap();
    let mut stack = stack(|options| {
        options.plugin["hub_cluster"] = Value::Null;
        options.plugin["hub_clusters"] = json!(["warmroute_hub", "hub_b"]);
        options.edit_envoy = Some(Box::new(move |config, _| add_cluster(config, "hub_b", second)));
    })
    .await;
    let hub_b = another_hub(&stack, second).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    assert_eq!(credited(&stack, &prompt, 160).await, "engine-1");
    stack.hub.kill().await.unwrap();
    // No request in between goes without what both hubs hold.
    let moved = eventually(LIMIT, async || {
        assert_eq!(probe(&stack, &prompt).await.matched_tokens, 160);
        changes(&stack).await == 1.0
    })
    .await;
    assert!(moved, "{}", stack.envoy.log_tail());
    let other = tokens(2, 160);
    warm(&stack, 2, &other).await;
    assert_eq!(credited(&stack, &other, 160).await, "engine-2");
    assert_eq!(credited(&stack, &prompt, 160).await, "engine-1");
    assert_eq!(stack.reset_prefix_cache(1).await.unwrap().status, 200);
    forgotten(&stack, &prompt, LIMIT).await;

    // The first one is back: the second stays the one that is heard, until it goes as well.
    stack.hub.restart().await.unwrap();
    stack.hub_ready().await.unwrap();
    let third = tokens(3, 160);
    warm(&stack, 0, &third).await;
    credited(&stack, &third, 160).await;
    assert_eq!(changes(&stack).await, 1.0);
    hub_b.shutdown().await;
    let back = eventually(LIMIT, async || {
        assert_eq!(probe(&stack, &other).await.matched_tokens, 160);
        changes(&stack).await == 2.0
    })
    .await;
    assert!(back, "{}", stack.envoy.log_tail());
    warm(&stack, 1, &prompt).await;
    assert_eq!(credited(&stack, &prompt, 160).await, "engine-1");
}

/// How a cluster of Envoy talks TLS, with a client certificate or without.
fn upstream_tls(ca: &str, identity: Option<&(String, String)>) -> Yaml {
    let certificates = identity
        .map(|(cert, key)| json!({ "certificate_chain": { "filename": cert }, "private_key": { "filename": key } }));
    let context = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "sni": "localhost",
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_certificates": certificates.into_iter().collect::<Vec<_>>(),
                "validation_context": {
                    "trusted_ca": { "filename": ca },
                    "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": "localhost" } }],
                },
            },
        },
    });
    serde_norway::to_value(context).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_shows_a_certificate_and_the_filter_a_token_and_without_either_there_is_no_stream() {
    const TOKEN: &str = "filter-token-0123456789";
    let folder = std::env::temp_dir().join(format!("warmroute-hubs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        // Whole or not at all: the hub may read at any time.
        let (new, path) = (folder.join(format!("{name}.new")), folder.join(name));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &path).unwrap();
        path.display().to_string()
    };
    let authority = Authority::new("ours").unwrap();
    let ca = write("ca.pem", &authority.pem());
    let [hub, envoy] = ["hub", "envoy"].map(|name| {
        let identity = authority.issue(name).unwrap();
        (write(&format!("{name}.pem"), &identity.cert), write(&format!("{name}.key"), &identity.key))
    });
    let tokens_file = write("tokens", TOKEN);
    let security = json!({
        "tls": { "cert": hub.0, "key": hub.1, "client_ca": ca },
        "tokens": [{ "file": tokens_file, "allow": ["observers"] }],
        "reload_ms": 100,
    });
    let stack = stack(|options| {
        options.plugin["hub_cluster"] = Value::Null;
        options.plugin["hub_clusters"] = json!(["no_certificate", "warmroute_hub"]);
        options.plugin["hub_token"] = TOKEN.into();
        options.edit_hub =
            Some(Box::new(move |config, _| config["security"] = serde_norway::to_value(security).unwrap()));
        options.edit_envoy = Some(Box::new(move |config, addresses| {
            add_cluster(config, "no_certificate", addresses.hub_grpc);
            let clusters = &mut config["static_resources"]["clusters"];
            let tls = |name: &str| upstream_tls(&ca, (name == "warmroute_hub").then_some(&envoy));
            for name in ["no_certificate", "warmroute_hub"] {
                envoy_config::named(clusters, name).unwrap()["transport_socket"] = tls(name);
            }
        }));
    })
    .await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    assert_eq!(credited(&stack, &prompt, 160).await, "engine-1");
    let refused = async |reason: &str| {
        let url = format!("http://{}/metrics", stack.addresses.hub_http);
        let line = format!("warmroute_hub_refused_total{{reason=\"{reason}\"}} ");
        let text = stack.client.get(&url).await.unwrap().text();
        text.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    assert!(refused("no_certificate").await > 0, "the first cluster was tried");

    // Another token: the stream ends, and none comes about; requests go on.
    write("tokens", "another-token-0123456789");
    assert!(eventually(LIMIT, async || refused("wrong_token").await > 1).await, "{}", stack.hub.log_tail());
    assert_eq!(refused("revoked").await, 1);
    complete(&stack, &tokens(2, 160), 1).await;
    write("tokens", &format!("another-token-0123456789\n{TOKEN}\n"));
    let next = tokens(3, 160);
    warm(&stack, 2, &next).await;
    let known = eventually(LIMIT, async || probe(&stack, &next).await.matched_tokens == 160).await;
    assert!(known, "{}", stack.envoy.log_tail());
    assert!(!stack.envoy.log_text().contains(TOKEN) && !stack.hub.log_text().contains(TOKEN));
    let _ = std::fs::remove_dir_all(&folder);
}
