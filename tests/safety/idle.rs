//! Connections that nobody uses: they give their places back, and those in use stay.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tonic::Code;
use warmroute::native::hub::Hub;
use warmroute::native::load::certificates::Authority;

use crate::client::*;

const LONG: Duration = Duration::from_secs(30);
/// The preface of HTTP/2 and empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection on which `bytes` are sent and then nothing.
async fn silent_after(address: std::net::SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

/// What is still heard until the hub closes it.
async fn until_closed(mut socket: TcpStream) -> Vec<u8> {
    let mut heard = Vec::new();
    // A reset closes it as well.
    let _ = timeout(LONG, socket.read_to_end(&mut heard)).await.expect("it stays open");
    heard
}

async fn open_connections(hub: &Hub) -> f64 {
    metric(hub, "warmroute_hub_connections ").await
}

#[tokio::test]
async fn connections_that_say_nothing_or_half_of_it_are_closed_on_both_sides() {
    let hub = hub("limits: {idle_timeout_ms: 600}").await;
    let (http, grpc) = (hub.http_address(), hub.grpc_address());
    let begun = Instant::now();
    let sockets = [
        silent_after(http, b"").await,
        silent_after(http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n").await,
        silent_after(http, PREFACE).await,
        silent_after(grpc, b"").await,
        silent_after(grpc, b"PRI * HTTP").await,
        // It answers no ping.
        silent_after(grpc, PREFACE).await,
    ];
    for socket in sockets {
        let heard = until_closed(socket).await;
        assert!(!heard.starts_with(b"HTTP/1.1 200"), "{heard:?}");
    }
    assert!(begun.elapsed() >= Duration::from_millis(200), "none before its time: {:?}", begun.elapsed());
    // One that was used is closed once it is not any more, and not before its answer.
    let used = silent_after(http, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let heard = String::from_utf8(until_closed(used).await).unwrap();
    assert!(heard.starts_with("HTTP/1.1 200") && heard.ends_with("ok\n"), "{heard}");
    eventually("the places", async || open_connections(&hub).await <= 1.0).await;
    hub.shutdown().await;
}

#[tokio::test]
async fn they_do_not_keep_others_out() {
    let hub = hub("limits: {max_connections: 3, idle_timeout_ms: 500}").await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(silent_after(hub.grpc_address(), b"").await);
        idle.push(silent_after(hub.http_address(), b"").await);
    }
    eventually("a place on the gRPC side", async || match channel(&hub, None).await {
        Ok(channel) => try_all(&channel, None).await == Outcome::all(Code::Ok),
        Err(_) => false,
    })
    .await;
    let ask = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    eventually("a place on the HTTP side", async || {
        let mut socket = TcpStream::connect(hub.http_address()).await.unwrap();
        let _ = socket.write_all(ask).await;
        until_closed(socket).await.starts_with(b"HTTP/1.1 200")
    })
    .await;
    hub.shutdown().await;
}

#[tokio::test]
async fn a_stream_on_which_nothing_happens_stays_and_so_does_a_connection_that_answers() {
    let folder = Folder::new();
    let authority = Authority::new("ours").unwrap();
    let (cert, key) = folder.write_identity("hub", &authority.issue("hub").unwrap());
    for security in [String::new(), format!("security: {{tls: {{cert: {cert}, key: {key}}}}}\n")] {
        // Heartbeats are farther apart than the idle time.
        let listen = "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0'}\nheartbeat_ms: 30000\nreports: {}\n";
        let yaml = format!("{listen}{security}limits: {{idle_timeout_ms: 4500}}");
        let config = warmroute::native::hub::HubConfig::from_yaml(&yaml).unwrap();
        let hub = Hub::start(config).await.unwrap();
        let tls = (!security.is_empty()).then(|| tls(&authority, None));
        let channel = channel(&hub, tls.as_ref()).await.unwrap();
        let mut stream = observe(&channel, None).await.unwrap();
        stream.reset().await.unwrap();
        let more = timeout(Duration::from_secs(7), stream.until(|_| true)).await;
        assert!(more.is_err(), "neither an end nor a message: {more:?}");
        // The same connection still carries calls.
        assert_eq!(try_all(&channel, None).await, Outcome::all(Code::Ok));
        hub.shutdown().await;
    }
}

/// Empty SETTINGS, and their acknowledgement.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
const MOMENT: Duration = Duration::from_millis(20);
/// Types of frames, and the flag of an answer.
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// A client over HTTP/2 that answers pings and makes no call, until the hub ends it: pings answered, and whether it was told that
/// the connection ends before that was cut. Who does not part answers only signs of life, not the ping behind which the hub
/// waits before it ends the connection, and goes on to send what means nothing.
async fn answer_pings(address: std::net::SocketAddr, parts: bool) -> (usize, bool) {
    let (mut reading, mut writing) = TcpStream::connect(address).await.unwrap().into_split();
    let (frames, mut queued) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
    frames.send([&PREFACE[..24], SETTINGS].concat()).unwrap();
    // Ends with the connection.
    tokio::spawn(async move {
        let unknown = || [0, 0, 0, 0xfa, 0, 0, 0, 0, 0].to_vec();
        loop {
            let next = if parts { Ok(queued.recv().await) } else { timeout(MOMENT, queued.recv()).await };
            let Some(frame) = next.unwrap_or_else(|_| Some(unknown())) else { return };
            if writing.write_all(&frame).await.is_err() {
                return;
            }
        }
    });
    let (mut sign_of_life, mut answered, mut told) = (None, 0, false);
    loop {
        let mut head = [0; 9];
        if reading.read_exact(&mut head).await.is_err() {
            return (answered, told);
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        if reading.read_exact(&mut payload).await.is_err() {
            return (answered, told);
        }
        told |= head[3] == GOAWAY;
        let is_ping = head[3] == PING && head[4] & ACK == 0;
        if is_ping && (parts || *sign_of_life.get_or_insert_with(|| payload.clone()) == payload) {
            answered += 1;
            let answer = [&[0, 0, 8, PING, ACK, 0, 0, 0, 0], &payload[..]].concat();
            // It may be gone by now, which is read next.
            let _ = frames.send(answer);
        }
    }
}

#[tokio::test]
async fn who_answers_pings_and_calls_nothing_is_told_to_go_and_gives_its_place_back() {
    let hub = hub("limits: {max_connections: 2, idle_timeout_ms: 900}").await;
    let used = channel(&hub, None).await.unwrap();
    let mut stream = observe(&used, None).await.unwrap();
    stream.reset().await.unwrap();
    for address in [hub.grpc_address(), hub.http_address()] {
        let begun = Instant::now();
        let (answered, told) = timeout(LONG, answer_pings(address, true)).await.expect("it stays open");
        assert!(told && answered > 0, "{answered} pings answered; told: {told}");
        assert!(begun.elapsed() >= Duration::from_millis(700), "before its time: {:?}", begun.elapsed());
    }
    // A place is free again for another, and the stream that says nothing keeps its own.
    eventually("a place on the gRPC side", async || match channel(&hub, None).await {
        Ok(channel) => try_all(&channel, None).await == Outcome::all(Code::Ok),
        Err(_) => false,
    })
    .await;
    assert_eq!(try_all(&used, None).await, Outcome::all(Code::Ok));
    hub.shutdown().await;
}

#[tokio::test]
async fn who_is_told_to_go_and_does_not_loses_the_connection() {
    let hub = hub("limits: {idle_timeout_ms: 600}").await;
    for address in [hub.grpc_address(), hub.http_address()] {
        let (answered, told) = timeout(LONG, answer_pings(address, false)).await.expect("it stays open");
        assert!(told && answered > 0, "{answered} pings answered; told: {told}");
    }
    eventually("the places", async || open_connections(&hub).await <= 1.0).await;
    hub.shutdown().await;
}
