//! Certificates: whose client gets through the door, and what others learn.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::native::load::certificates::{Authority, Identity};

use crate::client::*;

/// A hub with a certificate of `authority`, and whatever else.
async fn with_certificate(folder: &Folder, authority: &Authority, more: &str) -> Hub {
    let (cert, key) = folder.write_identity("hub", &authority.issue("hub").unwrap());
    let ca = folder.write("ca.pem", &authority.pem());
    let tls = format!("tls: {{cert: {cert}, key: {key}, client_ca: {ca}}}");
    hub(&format!("security: {{{tls}, reload_ms: 100, {more}}}")).await
}

#[tokio::test]
async fn a_client_of_the_authority_gets_through_and_others_do_not() {
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let hub = with_certificate(&folder, &ours, "").await;
    let known = tls(&ours, Some(&ours.issue("filter").unwrap()));
    assert_eq!(try_all(&channel(&hub, Some(&known)).await.unwrap(), None).await, Outcome::all(Code::Ok));

    let nobody = tls(&ours, None);
    let stranger = tls(&ours, Some(&theirs.issue("filter").unwrap()));
    for (config, reason) in [(&nobody, "no_certificate"), (&stranger, "certificate")] {
        // With TLS 1.3 the client hears of it when it reads.
        if let Ok(channel) = channel(&hub, Some(config)).await {
            let outcome = try_all(&channel, None).await;
            assert!(![&outcome.producer, &outcome.observer, &outcome.lookup].contains(&&Code::Ok), "{outcome:?}");
        }
        eventually(reason, async || refused(&hub, reason).await >= 1.0).await;
    }
    // Who does not trust the hub's authority goes away, and who speaks no TLS hears nothing.
    assert!(tls_stream(hub.grpc_address(), &tls(&theirs, None)).await.is_err());
    let mut plain = TcpStream::connect(hub.grpc_address()).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard).await;
    assert!(heard.len() < 16 && heard.first() != Some(&0), "a TLS alert at most: {heard:?}");
    eventually("tls", async || refused(&hub, "tls").await >= 2.0).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart_and_a_wrong_one_is_not() {
    let folder = Folder::new();
    let authority = Authority::new("ours").unwrap();
    let hub = with_certificate(&folder, &authority, "").await;
    let client = tls(&authority, Some(&authority.issue("filter").unwrap()));
    let shown = async || {
        let stream = tls_stream(hub.grpc_address(), &client).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    // A key that does not go with the certificate: half of a change, or a mistake.
    let next = authority.issue("hub").unwrap();
    folder.write("hub.key", &next.key);
    eventually("the problem", async || metric(&hub, "warmroute_hub_security_problems").await == 1.0).await;
    assert_eq!(shown().await, first);
    folder.write("hub.pem", &next.cert);
    eventually("the new certificate", async || shown().await != first).await;
    eventually("no problem", async || metric(&hub, "warmroute_hub_security_problems").await == 0.0).await;
    // Another authority for clients: those of the first are refused from now on.
    let other = Authority::new("other").unwrap();
    folder.write("ca.pem", &other.pem());
    let newcomer = tls(&authority, Some(&other.issue("filter").unwrap()));
    eventually("the new authority", async || match channel(&hub, Some(&newcomer)).await {
        Ok(channel) => try_all(&channel, None).await == Outcome::all(Code::Ok),
        Err(_) => false,
    })
    .await;
    hub.shutdown().await;
}

#[tokio::test]
async fn files_that_are_wrong_keep_the_hub_from_starting() {
    let folder = Folder::new();
    let authority = Authority::new("ours").unwrap();
    let (cert, key) = folder.write_identity("hub", &authority.issue("hub").unwrap());
    let empty = folder.write("empty.pem", "");
    let other = folder.write("other.key", &authority.issue("hub").unwrap().key);
    let problem = async |security: &str| match Hub::start(config(&format!("security: {{{security}}}"))).await {
        Ok(_) => panic!("it started with {security}"),
        Err(error) => error.to_string(),
    };
    let missing = problem(&format!("tls: {{cert: {cert}, key: /nowhere/key}}")).await;
    assert!(missing.starts_with("/nowhere/key: cannot be read: "), "{missing}");
    let none = problem(&format!("tls: {{cert: {empty}, key: {empty}}}")).await;
    assert!(none.contains("empty.pem: no certificate") && none.contains("empty.pem: no private key"), "{none}");
    let apart = problem(&format!("tls: {{cert: {cert}, key: {other}}}")).await;
    assert!(apart.contains("hub.pem: does not go with ") && apart.contains("other.key"), "{apart}");
    let ca = problem(&format!("tls: {{cert: {cert}, key: {key}, client_ca: {key}}}")).await;
    assert!(ca.contains("hub.key: no certificate"), "{ca}");
    let beyond = HubConfig::from_yaml("listen: {grpc: '0.0.0.0:0', http: '127.0.0.1:0'}\nreports: {}").unwrap_err();
    assert!(beyond.to_string().contains("security.insecure: true"), "{beyond}");
}

#[tokio::test]
async fn the_http_side_takes_tls_and_shows_the_rest_for_a_certificate_or_a_token() {
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    let file = folder.write("operators", TOKEN);
    let more = format!("operations: {{tls: true}}, tokens: [{{file: {file}, allow: [operators]}}]");
    let hub = with_certificate(&folder, &ours, &more).await;
    // The first line of the answer over HTTP/1.1; an error where there is no connection.
    let ask = async |identity: Option<&Identity>, path: &str, token: &str| {
        let mut config = (*tls(&ours, identity)).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut stream = tls_stream(hub.http_address(), &Arc::new(config)).await?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        Ok::<_, std::io::Error>(line)
    };
    let (known, stranger) = (ours.issue("operator").unwrap(), theirs.issue("operator").unwrap());
    let shown = format!("authorization: Bearer {TOKEN}\r\n");
    for (identity, path, token, expected) in [
        (None, "/healthz", "", "HTTP/1.1 200 OK"),
        (None, "/metrics", "", "HTTP/1.1 401 Unauthorized"),
        (None, "/metrics", "authorization: Bearer x\r\n", "HTTP/1.1 401 Unauthorized"),
        (None, "/metrics", shown.as_str(), "HTTP/1.1 200 OK"),
        (Some(&known), "/state", "", "HTTP/1.1 200 OK"),
    ] {
        assert_eq!(ask(identity, path, token).await.unwrap(), expected, "{path} {token}");
    }
    assert!(ask(Some(&stranger), "/healthz", "").await.is_err());
    let mut plain = TcpStream::connect(hub.http_address()).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: hub\r\n\r\n").await.unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard).await;
    assert!(heard.len() < 16, "a TLS alert at most: {heard:?}");
    hub.shutdown().await;
}
