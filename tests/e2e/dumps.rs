//! All that the hub says is held, and all that a VM that starts now reads from Envoy's shared data.

use hyper::http::Request;
use proxy::Proxy;
use warmroute::flow::follower::{Follower, View};
use warmroute::flow::keys::Keys;
use warmroute::host::{Cas, Host, SharedWrite};
use warmroute::index::Index;
use warmroute::index::log::Head;
use warmroute::native::load::client::Client;
use warmroute::observation::{StreamBody, SubscriberMessage, Subscription};
use warmroute::wire::{self, v1};

#[path = "../support/vms/dump.rs"]
mod dump;
#[path = "../support/vms/proxy.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod proxy;

pub use dump::Row;

/// The full state that the hub at `address` sends to a subscriber that has nothing.
pub async fn of_the_hub(address: std::net::SocketAddr) -> Vec<Row> {
    let mut client = v1::observation_client::ObservationClient::connect(format!("http://{address}")).await.unwrap();
    let (requests, receiver) = tokio::sync::mpsc::channel(64);
    let say = |message: &SubscriberMessage| wire::subscriber_message_to_proto(message);
    let subscription = Subscription { node_id: "dump".into(), ..Subscription::default() };
    requests.send(say(&SubscriberMessage::Subscribe(subscription))).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut responses = client.observe(stream).await.unwrap().into_inner();
    let mut index = Index::new(1);
    loop {
        let message = responses.message().await.unwrap().expect("the reset has an end");
        let message = wire::stream_message_from_proto(message).unwrap();
        match message.body {
            StreamBody::Chunk(observations) => {
                observations.into_iter().for_each(|observation| index.apply(message.number, observation));
            }
            StreamBody::ResetComplete => return dump::rows(&index),
            _ => {}
        }
        requests.send(say(&SubscriberMessage::Acknowledge(message.number))).await.unwrap();
    }
}

/// What is in the shared data of the domain, read through the module that misbehaves and then as every VM reads it.
pub async fn of_shared_data(envoy_url: &str, domain: &str) -> Vec<Row> {
    let keys = Keys::new(domain);
    let proxy = Proxy::at(0);
    let bytes = read(envoy_url, &keys.head(), "").await;
    let [bytes] = bytes.as_slice() else { panic!("{} heads", bytes.len()) };
    let head = Head::decode(bytes).unwrap();
    let page = keys.page(0);
    let pages = (page.strip_suffix('0').unwrap(), format!("0-{}", head.pages - 1));
    let slot = keys.log(0, head.ring);
    let slots = (slot.strip_suffix('0').unwrap(), format!("0-{}", head.ring - 1));
    for (prefix, numbers) in [pages, slots] {
        for (number, bytes) in read(envoy_url, prefix, &numbers).await.into_iter().enumerate() {
            let is_there = !bytes.is_empty();
            let stored = is_there.then(|| proxy.shared_set(&format!("{prefix}{number}"), &bytes, Cas::ABSENT));
            assert!(stored.is_none_or(|stored| stored == SharedWrite::Stored));
        }
    }
    let mut follower = Follower::default();
    assert!(follower.follow(&proxy, &keys, &head, || false), "a VM that starts now would not get to the end");
    match follower.view() {
        View::Index(index) => dump::rows(index),
        View::CatchingUp => panic!("the state is not complete"),
    }
}

/// The values of a key, or of the keys that end in these numbers; empty where there is none.
async fn read(envoy_url: &str, key: &str, numbers: &str) -> Vec<Vec<u8>> {
    let request = Request::builder().method("GET").header("x-fault-read", key).header("x-fault-numbers", numbers);
    let answer = Client::default().request(&format!("{envoy_url}/health"), request, "".into()).await.unwrap();
    assert_eq!(answer.status, 200);
    let mut rest: &[u8] = &answer.body;
    let mut values = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (value, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        values.push(value.to_vec());
        rest = after;
    }
    values
}
