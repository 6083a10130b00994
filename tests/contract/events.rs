//! StreamCacheEvents: who is told what, from when on, and until when.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use warmroute::native::hub::contract::messages::v1alpha1::cache_event::Type;
use warmroute::native::hub::contract::messages::v1alpha1::{CacheEvent, CacheStateUpdate, StreamEventsRequest};

use crate::client::{Client, connect, hub, publish, report, update};
use crate::hub_support::{self, Engine, Framing, keys_of, observed, tokens};

async fn follow(client: &mut Client, wanted: StreamEventsRequest) -> Streaming<CacheEvent> {
    client.stream_cache_events(wanted).await.unwrap().into_inner()
}

/// The next event; fails if none comes.
async fn next(events: &mut Streaming<CacheEvent>) -> CacheEvent {
    let event = timeout(Duration::from_secs(5), events.message()).await.expect("an event must come");
    event.unwrap().expect("the stream must go on")
}

async fn is_silent(events: &mut Streaming<CacheEvent>) -> bool {
    timeout(Duration::from_millis(200), events.message()).await.is_err()
}

#[tokio::test]
async fn what_happens_from_now_on_is_told_to_whoever_asked_for_it() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("a", &[b"before"])]).await;
    let mut all = follow(&mut client, StreamEventsRequest::default()).await;
    let evictions = StreamEventsRequest { types: vec![Type::PrefixEvicted.into()], ..StreamEventsRequest::default() };
    let mut evictions = follow(&mut client, evictions).await;
    let others = StreamEventsRequest { tenant_id: "u".into(), ..StreamEventsRequest::default() };
    let mut others = follow(&mut client, others).await;

    let timed =
        CacheStateUpdate { timestamp_us: 1_700_000_000_000_000, adapter_id: "lora".into(), ..update("a", &[b"p"]) };
    report(&mut client, vec![timed]).await;
    let added = next(&mut all).await;
    let expected = CacheEvent {
        r#type: Type::PrefixAdded.into(),
        replica_id: "a".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        prefix_hash: bytes::Bytes::from_static(b"p"),
        timestamp_us: 1_700_000_000_000_000,
        adapter_id: "lora".into(),
    };
    assert_eq!(added, expected);
    publish(&mut client, Type::PrefixEvicted, "a", b"p").await;
    let evicted = next(&mut all).await;
    assert_eq!((evicted.r#type(), evicted.prefix_hash.as_ref()), (Type::PrefixEvicted, &b"p"[..]));
    assert!(evicted.timestamp_us > added.timestamp_us, "now");
    let filtered = next(&mut evictions).await;
    assert_eq!((filtered.r#type(), filtered.prefix_hash.as_ref()), (Type::PrefixEvicted, &b"p"[..]));
    publish(&mut client, Type::AllCleared, "a", b"").await;
    assert_eq!(next(&mut all).await.r#type(), Type::AllCleared);
    assert!(is_silent(&mut evictions).await && is_silent(&mut others).await);
    hub.shutdown().await;
    let ended = timeout(Duration::from_secs(2), others.message()).await.unwrap();
    assert_eq!(ended.unwrap_err().code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn what_engines_say_is_told_too() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut observer) = observed(&[&engine], "").await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    let mut client = connect(&hub).await;
    let wanted = StreamEventsRequest { types: vec![Type::PrefixAdded.into()], ..StreamEventsRequest::default() };
    let mut events = follow(&mut client, wanted).await;
    engine.publish(vec![hub_support::stored(&[1, 2], None, &tokens(0..8))]).await;
    let mut told = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let event = next(&mut events).await;
        assert_eq!(
            (event.replica_id.as_str(), event.model_id.as_str(), event.tenant_id.as_str()),
            ("r0", "m0", "default")
        );
        told.insert(warmroute::observation::BlockKey::from_bytes(&event.prefix_hash).unwrap());
    }
    assert_eq!(told, keys_of(&tokens(0..8)));
    hub.shutdown().await;
}

#[tokio::test]
async fn a_client_that_reads_too_slowly_is_told_that_it_missed_events() {
    let hub = hub("resume_buffer_bytes: 100000").await;
    let mut client = connect(&hub).await;
    // A connection of its own: what it does not read holds up nobody.
    let mut events = follow(&mut connect(&hub).await, StreamEventsRequest::default()).await;
    for round in 0..400_u32 {
        let hashes: Vec<Vec<u8>> = (0..500_u32).map(|at| (round * 500 + at).to_le_bytes().to_vec()).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        report(&mut client, vec![update("a", &hashes)]).await;
    }
    let mut read = 0;
    let status = loop {
        match timeout(Duration::from_secs(10), events.message()).await.expect("the stream must end") {
            Ok(event) => read += usize::from(event.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), tonic::Code::OutOfRange);
    assert!(status.message().contains("more slowly"), "{status}");
    assert!(read < 200_000, "{read} of 200,000 events were read");
    hub.shutdown().await;
}
