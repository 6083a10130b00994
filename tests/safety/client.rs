//! A hub with files, and clients that come with or without what it asks for.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::contract::messages::v1alpha1::{CacheEvent, LookupRouteRequest, StreamEventsRequest};
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::native::load::certificates::{Authority, Identity};
use warmroute::observation::{SubscriberMessage, Subscription};
use warmroute::wire::{self, v1};

pub const TOKEN: &str = "token-0123456789abcdef";
pub const OTHER: &str = "other-0123456789abcdef";

/// A folder that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmroute-safety-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file as a whole, in place of what is there; its path.
    pub fn write(&self, name: &str, contents: &str) -> String {
        let new = self.path(&format!("{name}.new"));
        std::fs::write(&new, contents).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
        self.path(name).display().to_string()
    }

    pub fn write_identity(&self, name: &str, identity: &Identity) -> (String, String) {
        (self.write(&format!("{name}.pem"), &identity.cert), self.write(&format!("{name}.key"), &identity.key))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A hub that follows nobody.
pub async fn hub(more: &str) -> Hub {
    Hub::start(config(more)).await.unwrap()
}

pub fn config(more: &str) -> HubConfig {
    let listen = "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0'}\nheartbeat_ms: 200\nreports: {}\n";
    HubConfig::from_yaml(&format!("{listen}{more}")).unwrap()
}

/// What a client trusts and shows.
pub fn tls(authority: &Authority, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { cert, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

pub async fn tls_stream(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::clone(config)).connect(name, socket).await
}

/// A connection of its own.
pub async fn channel(hub: &Hub, tls: Option<&Arc<ClientConfig>>) -> Result<Channel, tonic::transport::Error> {
    let address = hub.grpc_address();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let Some(tls) = tls.cloned() else { return endpoint.connect().await };
    let connector = tower::service_fn(move |_| {
        let tls = Arc::clone(&tls);
        async move { tls_stream(address, &tls).await.map(hyper_util::rt::TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}

pub fn with_token<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

/// What comes of each kind of call with this token.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub producer: Code,
    pub observer: Code,
    pub lookup: Code,
}

impl Outcome {
    pub fn all(code: Code) -> Outcome {
        Outcome { producer: code, observer: code, lookup: code }
    }
}

pub async fn try_all(channel: &Channel, token: Option<&str>) -> Outcome {
    let mut contract = InferenceCacheClient::new(channel.clone());
    let event = CacheEvent { replica_id: "r".into(), ..CacheEvent::default() };
    let code = |status: Option<Status>| status.map_or(Code::Ok, |status| status.code());
    let producer = code(contract.publish_event(with_token(event, token)).await.err());
    let events = contract.stream_cache_events(with_token(StreamEventsRequest::default(), token)).await;
    let observer = code(observe(channel, token).await.err());
    let observer = if code(events.err()) == observer { observer } else { Code::Unknown };
    let lookup = code(contract.lookup_route(with_token(LookupRouteRequest::default(), token)).await.err());
    Outcome { producer, observer, lookup }
}

/// An Observe stream.
pub struct Observed {
    pub requests: mpsc::Sender<v1::ObserveRequest>,
    pub responses: Streaming<v1::ObserveResponse>,
}

impl Observed {
    /// Acknowledges what comes until `done` says so; an error of the stream ends it.
    pub async fn until(&mut self, mut done: impl FnMut(&v1::ObserveResponse) -> bool) -> Result<(), Status> {
        loop {
            let response = self.responses.message().await?.ok_or_else(|| Status::aborted("the stream ended"))?;
            let acknowledge = SubscriberMessage::Acknowledge(response.number);
            let _ = self.requests.send(wire::subscriber_message_to_proto(&acknowledge)).await;
            if done(&response) {
                return Ok(());
            }
        }
    }

    /// Until the reset is complete.
    pub async fn reset(&mut self) -> Result<(), Status> {
        self.until(|response| matches!(response.kind, Some(v1::observe_response::Kind::ResetComplete(_)))).await
    }
}

pub async fn observe(channel: &Channel, token: Option<&str>) -> Result<Observed, Status> {
    let (requests, receiver) = mpsc::channel(64);
    let subscribe = SubscriberMessage::Subscribe(Subscription { node_id: "test".into(), ..Subscription::default() });
    requests.send(wire::subscriber_message_to_proto(&subscribe)).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut client = v1::observation_client::ObservationClient::new(channel.clone());
    let responses = client.observe(with_token(stream, token)).await?.into_inner();
    Ok(Observed { requests, responses })
}

/// The value of a line of the hub's metrics; 0 without one.
pub async fn metric(hub: &Hub, line: &str) -> f64 {
    let (_, text) = crate::hub_support::get(hub, "/metrics").await;
    let value = text.lines().find_map(|found| found.strip_prefix(line)).map(|value| value.trim().parse().unwrap());
    value.unwrap_or(0.0)
}

pub async fn refused(hub: &Hub, reason: &str) -> f64 {
    metric(hub, &format!("warmroute_hub_refused_total{{reason=\"{reason}\"}}")).await
}

/// Waits for a condition, for half a minute at most.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(Instant::now() < limit, "{what} did not come");
        sleep(Duration::from_millis(20)).await;
    }
}
