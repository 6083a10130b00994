//! Hundreds of subscribers: each is told everything, and those that do not keep up hold nobody back.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tonic::transport::Channel;
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::contract::messages::v1alpha1::{CacheStateUpdate, PrefixEntry};
use warmroute::observation::{SubscriberMessage, Subscription};
use warmroute::wire::v1::observe_response::Kind;
use warmroute::wire::{self, v1};

use crate::client::*;

const SUBSCRIBERS: usize = 300;
const ROUNDS: u64 = 12;
const BLOCKS: u64 = 400;

/// Reports so many blocks that nobody has reported yet.
async fn report(channel: &Channel, round: u64) {
    let hash = |block: u64| Bytes::copy_from_slice(&(round << 32 | block).to_be_bytes());
    let prefixes =
        (0..BLOCKS).map(|block| PrefixEntry { prefix_hash: hash(block), token_count: 16, ..Default::default() });
    let update = CacheStateUpdate {
        replica_id: "127.0.0.1:8000".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        prefixes: prefixes.collect(),
        ..CacheStateUpdate::default()
    };
    let ack =
        InferenceCacheClient::new(channel.clone()).report_cache_state(tokio_stream::iter([update])).await.unwrap();
    assert!(ack.into_inner().accepted);
}

/// Blocks that a message says are stored.
fn stored(response: v1::ObserveResponse) -> usize {
    use warmroute::observation::{Observation, StreamBody};
    let message = wire::stream_message_from_proto(response).unwrap();
    let (StreamBody::Chunk(observations) | StreamBody::Delta { observations, .. }) = message.body else { return 0 };
    let of = |observation: &Observation| match observation {
        Observation::Stored(stored) => stored.blocks.len(),
        _ => 0,
    };
    observations.iter().map(of).sum()
}

/// How much memory this process has, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_subscribers_are_told_everything_whatever_the_slow_ones_do() {
    let hub = hub("acknowledge_timeout_ms: 2000\nresume_buffer_bytes: 4194304\n").await;
    let producer = channel(&hub, None).await.unwrap();
    for round in 0..ROUNDS / 2 {
        report(&producer, round).await;
    }
    let before = resident();
    // One that never reads, one that acknowledges nothing, one that reads a byte a second.
    let mut silent = observe(&channel(&hub, None).await.unwrap(), None).await.unwrap();
    let deaf = observe(&channel(&hub, None).await.unwrap(), None).await.unwrap();
    let trickle = tokio::spawn(read_a_byte_a_second(hub.grpc_address()));
    eventually("all three", async || metric(&hub, "warmroute_hub_subscribers").await == 3.0).await;
    let mut readers = JoinSet::new();
    for _ in 0..SUBSCRIBERS {
        let channel = channel(&hub, None).await.unwrap();
        readers.spawn(async move {
            let mut observed = observe(&channel, None).await.unwrap();
            let mut blocks = 0;
            let all = (ROUNDS * BLOCKS) as usize;
            observed
                .until(|response| {
                    blocks += stored(response.clone());
                    blocks >= all
                })
                .await
                .unwrap();
            assert_eq!(blocks, all, "each block once");
            // The connection stays open until all are done.
            (observed, channel)
        });
    }
    for round in ROUNDS / 2..ROUNDS {
        report(&producer, round).await;
        sleep(Duration::from_millis(50)).await;
    }
    let mut done = Vec::new();
    let all_told = async {
        while let Some(reader) = readers.join_next().await {
            done.push(reader.unwrap());
        }
    };
    timeout(Duration::from_secs(120), all_told).await.expect("all are told everything");
    assert_eq!(done.len(), SUBSCRIBERS);
    let grown = resident().saturating_sub(before);
    println!("{} KiB for both ends of a connection", grown / 1_024 / SUBSCRIBERS as u64);
    assert!(grown < 400 * 1024 * 1024, "{grown} bytes for both ends of {SUBSCRIBERS} connections");

    drop(done);
    // Further changes do not fit the slow ones' windows: they are reset, and their memory goes.
    for round in ROUNDS..ROUNDS + 200 {
        report(&producer, round).await;
    }
    eventually("the slow ones' end", async || metric(&hub, "warmroute_hub_subscribers_dropped_total").await >= 2.0)
        .await;
    let mut bytes = 0;
    let ended = loop {
        match silent.responses.message().await {
            Ok(Some(response)) => bytes += response.encoded_len(),
            Ok(None) => break None,
            Err(status) => break Some(status.code()),
        }
    };
    assert!(matches!(ended, None | Some(Code::DeadlineExceeded | Code::OutOfRange)), "{ended:?}");
    assert!(bytes <= wire::MAX_UNACKNOWLEDGED_BYTES, "{bytes} were sent ahead");
    drop(deaf);
    // The one that reads a byte a second is closed like the others, or because it answers no ping.
    eventually("nobody", async || metric(&hub, "warmroute_hub_subscribers").await == 0.0).await;
    trickle.abort();
    hub.shutdown().await;
}

/// Speaks HTTP/2 itself, so that nothing reads ahead: subscribes, then reads a byte a second.
async fn read_a_byte_a_second(address: std::net::SocketAddr) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let subscription = Subscription { node_id: "slow".into(), ..Subscription::default() };
    let subscribe = wire::subscriber_message_to_proto(&SubscriberMessage::Subscribe(subscription)).encode_to_vec();
    // Literal headers without indexing; names and values are shorter than 127 bytes.
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/warmroute.v1.Observation/Observe"),
        (":authority", "hub"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let block: Vec<u8> = headers
        .iter()
        .flat_map(|(name, value)| {
            [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
        })
        .collect();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let message = [&[0], &(subscribe.len() as u32).to_be_bytes()[..], &subscribe].concat();
    let hello = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &block),
        frame(0, 0, 1, &message),
    ];
    socket.write_all(&hello.concat()).await.unwrap();
    let mut byte = [0];
    while socket.read_exact(&mut byte).await.is_ok() {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_acknowledges_slowly_is_told_again_from_the_beginning_when_the_ring_has_passed() {
    let hub = hub("resume_buffer_bytes: 65536\n").await;
    let producer = channel(&hub, None).await.unwrap();
    for round in 0..300 {
        report(&producer, round).await;
    }
    let mut slow = observe(&channel(&hub, None).await.unwrap(), None).await.unwrap();
    // In the midst of its reset, which is far more than the window, everything changes.
    let first = slow.responses.message().await.unwrap().unwrap();
    assert!(matches!(first.kind, Some(Kind::Reset(_))));
    for round in 300..420 {
        report(&producer, round).await;
    }
    let limit = Instant::now() + Duration::from_secs(60);
    let ended = timeout(limit - Instant::now(), slow.until(|_| false)).await.expect("it ends");
    assert_eq!(ended.unwrap_err().code(), Code::OutOfRange, "nothing could follow that state");
    // Once it keeps up, it is told all there is.
    let mut again = observe(&channel(&hub, None).await.unwrap(), None).await.unwrap();
    let mut blocks = 0;
    again
        .until(|response| {
            blocks += stored(response.clone());
            matches!(response.kind, Some(Kind::ResetComplete(_)))
        })
        .await
        .unwrap();
    assert_eq!(blocks as u64, 420 * BLOCKS);
    hub.shutdown().await;
}
