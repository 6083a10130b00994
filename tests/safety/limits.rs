//! Too much of everything is refused, said and counted.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::contract::messages::v1alpha1::{LookupRouteRequest, StreamEventsRequest};

use crate::client::*;

#[tokio::test]
async fn subscribers_and_streams_beyond_the_limit_are_told_which_limit_it_is() {
    let hub = hub("limits: {max_subscribers: 2, max_streams: 4}").await;
    let channel = channel(&hub, None).await.unwrap();
    let mut held = vec![observe(&channel, None).await.unwrap(), observe(&channel, None).await.unwrap()];
    let third = observe(&channel, None).await.err().unwrap();
    assert_eq!(
        (third.code(), third.message().contains("limits.max_subscribers is 2")),
        (Code::ResourceExhausted, true)
    );
    // Two more streams of another kind, then not even a lookup has a place.
    let mut contract = InferenceCacheClient::new(channel.clone());
    let events = contract.stream_cache_events(StreamEventsRequest::default()).await.unwrap();
    let more = contract.stream_cache_events(StreamEventsRequest::default()).await.unwrap();
    let lookup = contract.lookup_route(LookupRouteRequest::default()).await.unwrap_err();
    assert_eq!((lookup.code(), lookup.message().contains("limits.max_streams is 4")), (Code::ResourceExhausted, true));
    assert_eq!(metric(&hub, "warmroute_hub_streams").await, 4.0);
    assert_eq!((refused(&hub, "too_many_subscribers").await, refused(&hub, "too_many_streams").await), (1.0, 1.0));
    // Who ends gives the place back.
    drop((events, more, held.pop()));
    eventually("a place", async || observe(&channel, None).await.is_ok()).await;
    held[0].reset().await.unwrap();
    hub.shutdown().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_the_others_go_on() {
    let hub = hub("limits: {max_connections: 8}").await;
    let one = channel(&hub, None).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..7 {
        idle.push(TcpStream::connect(hub.grpc_address()).await.unwrap());
    }
    // And one to the HTTP side.
    eventually("all of them", async || metric(&hub, "warmroute_hub_connections").await >= 9.0).await;
    let mut third = TcpStream::connect(hub.grpc_address()).await.unwrap();
    let mut heard = Vec::new();
    assert!(matches!(third.read_to_end(&mut heard).await, Ok(0) | Err(_)));
    assert_eq!(try_all(&one, None).await, Outcome::all(Code::Ok));
    assert!(refused(&hub, "too_many_connections").await >= 1.0);
    drop(idle);
    eventually("a place", async || match channel(&hub, None).await {
        Ok(channel) => try_all(&channel, None).await == Outcome::all(Code::Ok),
        Err(_) => false,
    })
    .await;
    hub.shutdown().await;
}

#[tokio::test]
async fn messages_and_headers_have_a_limit() {
    let hub = hub("limits: {max_message_bytes: 4096, max_metadata_bytes: 4096}").await;
    let mut contract = InferenceCacheClient::new(channel(&hub, None).await.unwrap());
    let of = |bytes: usize| LookupRouteRequest { prompt_text: "x".repeat(bytes), ..LookupRouteRequest::default() };
    assert!(contract.lookup_route(of(4_000)).await.is_ok());
    assert_eq!(contract.lookup_route(of(4_097)).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(refused(&hub, "message_too_large").await, 1.0);
    let mut large = tonic::Request::new(of(1));
    large.metadata_mut().insert("x-large", "x".repeat(8_000).parse().unwrap());
    assert!(contract.lookup_route(large).await.is_err());
    assert!(contract.lookup_route(of(1)).await.is_ok());
    hub.shutdown().await;
}

#[tokio::test]
async fn streams_of_one_connection_beyond_the_limit_wait_and_those_of_another_do_not() {
    let hub = hub("limits: {max_streams_per_connection: 2}").await;
    let full = channel(&hub, None).await.unwrap();
    let mut held = vec![observe(&full, None).await.unwrap(), observe(&full, None).await.unwrap()];
    for observed in &mut held {
        observed.reset().await.unwrap();
    }
    let mut third = Box::pin(observe(&full, None));
    assert!(timeout(Duration::from_millis(300), &mut third).await.is_err());
    assert!(observe(&channel(&hub, None).await.unwrap(), None).await.is_ok());
    drop(held.pop());
    let mut third = timeout(Duration::from_secs(30), third).await.expect("its turn comes").unwrap();
    third.reset().await.unwrap();
    hub.shutdown().await;
}
