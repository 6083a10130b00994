//! Metrics of engines behind TLS.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::native::load::certificates::{Authority, Identity};

use crate::client::*;
use crate::hub_support::{free_port, get};

const TEXT: &str = "vllm:num_requests_running 64\nvllm:num_requests_waiting 64\nvllm:prefix_cache_hits 1\n\
    vllm:prefix_cache_queries 2\n";

/// A server of these metrics with this certificate; its port.
async fn engine(identity: &Identity) -> u16 {
    let chain = vec![CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(socket).await else { return };
                let _ = stream.read(&mut [0; 4_096]).await;
                let answer =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{TEXT}", TEXT.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

async fn follow(port: u16, more: &str) -> Hub {
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nscrape_interval_ms: 50\n{more}\nreplicas: [{{id: r0, \
         address: '127.0.0.1:1', metrics: 'https://localhost:{port}/metrics', kv_events: 'tcp://127.0.0.1:{}', model: m}}]",
        free_port()
    );
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

async fn replica(hub: &Hub) -> serde_json::Value {
    let state: serde_json::Value = serde_json::from_str(&get(hub, "/state").await.1).unwrap();
    state["replicas"][0].clone()
}

#[tokio::test]
async fn they_are_read_from_whom_the_configuration_trusts_and_from_nobody_else() {
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let ca = folder.write("ca.pem", &ours.pem());
    let known = follow(engine(&ours.issue("engine").unwrap()).await, &format!("metrics_ca: {ca}")).await;
    eventually("the load", async || replica(&known).await["pressure"] == 0.5).await;
    assert!(replica(&known).await["scrape_fault"].is_null());
    known.shutdown().await;

    let stranger = follow(engine(&theirs.issue("engine").unwrap()).await, &format!("metrics_ca: {ca}")).await;
    let untold = follow(engine(&ours.issue("engine").unwrap()).await, "").await;
    for hub in [stranger, untold] {
        eventually("the fault", async || replica(&hub).await["scrape_fault"] == "no_connection").await;
        assert!(replica(&hub).await["pressure"].is_null());
        hub.shutdown().await;
    }
    let yaml = "reports: {}\nmetrics_ca: /nowhere\nlisten: {grpc: '127.0.0.1:0', http: '127.0.0.1:0'}";
    let failed = Hub::start(HubConfig::from_yaml(yaml).unwrap()).await.err().unwrap().to_string();
    assert!(failed.starts_with("metrics_ca: /nowhere: cannot be read"), "{failed}");
}
