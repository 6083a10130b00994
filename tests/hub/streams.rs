//! Engines that offer their events as a gRPC stream, on a real server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::post;
use futures::future::{Ready, ready};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::server::{Grpc, ServerStreamingService};
use tonic::{Response, Status};
use tonic_prost::ProstCodec;
use warmroute::native::engine::smg::wire::kv_cache_event::Data;
use warmroute::native::engine::smg::wire::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch, SubscribeKvEventsRequest,
};
use warmroute::native::hub::{Hub, HubConfig};

use crate::hub_support::{BLOCK, Observer, get, keys_of, tokens};

const SERVICES: [(&str, &str); 3] = [
    ("vllm", "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"),
    ("sglang", "/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents"),
    ("tensorrt_llm", "/trtllm.TrtllmService/SubscribeKvEvents"),
];

type Sender = UnboundedSender<Result<KvEventBatch, Status>>;

#[derive(Default)]
struct Published {
    ring: Vec<KvEventBatch>,
    next: u64,
    subscribers: Vec<Sender>,
    starts: Vec<u64>,
    resends: bool,
}

#[derive(Clone)]
struct StreamEngine {
    published: Arc<Mutex<Published>>,
    port: u16,
    server: Arc<JoinHandle<()>>,
}

impl Drop for StreamEngine {
    fn drop(&mut self) {
        if Arc::strong_count(&self.server) == 1 {
            self.server.abort();
        }
    }
}

#[derive(Clone)]
struct Subscribe(Arc<Mutex<Published>>);

impl ServerStreamingService<SubscribeKvEventsRequest> for Subscribe {
    type Response = KvEventBatch;
    type ResponseStream = UnboundedReceiverStream<Result<KvEventBatch, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<SubscribeKvEventsRequest>) -> Self::Future {
        let start = request.into_inner().start_sequence_number;
        let mut published = self.0.lock().unwrap();
        let (sender, receiver) = unbounded_channel();
        published.starts.push(start);
        for batch in published.ring.iter().filter(|batch| published.resends && batch.sequence_number >= start) {
            sender.send(Ok(batch.clone())).unwrap();
        }
        published.subscribers.push(sender);
        ready(Ok(Response::new(UnboundedReceiverStream::new(receiver))))
    }
}

impl StreamEngine {
    async fn start(path: &'static str, resends: bool) -> StreamEngine {
        let published = Arc::new(Mutex::new(Published { resends, ..Published::default() }));
        let subscribe = Subscribe(Arc::clone(&published));
        let handler = async move |request: Request<Body>| {
            let mut grpc = Grpc::new(ProstCodec::<KvEventBatch, SubscribeKvEventsRequest>::default());
            grpc.server_streaming(subscribe, request).await.map(Body::new).into_response()
        };
        // As servers answer for a method that they do not have.
        let unimplemented = async || ([("content-type", "application/grpc"), ("grpc-status", "12")], "");
        let router = axum::Router::new().route(path, post(handler)).fallback(unimplemented);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
        StreamEngine { published, port, server }
    }

    fn act<T>(&self, act: impl FnOnce(&mut Published) -> T) -> T {
        act(&mut self.published.lock().unwrap())
    }

    fn publish(&self, rank: Option<i32>, events: Vec<Data>) {
        self.act(|published| published.publish(rank, events, true));
    }

    /// Streams end; the engine goes on.
    fn disconnect(&self) {
        self.act(|published| published.subscribers.clear());
    }

    fn starts(&self) -> Vec<u64> {
        self.act(|published| published.starts.clone())
    }
}

impl Published {
    fn publish(&mut self, dp_rank: Option<i32>, events: Vec<Data>, live: bool) {
        let events = events.into_iter().map(|data| KvCacheEvent { event_id: 9, data: Some(data) }).collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let batch = KvEventBatch { sequence_number: self.next, timestamp: now.as_secs_f64(), events, dp_rank };
        self.next += 1;
        self.ring.push(batch.clone());
        if live {
            self.subscribers.retain(|subscriber| subscriber.send(Ok(batch.clone())).is_ok());
        }
    }

    fn restart(&mut self) {
        self.ring.clear();
        self.next = 0;
    }
}

fn stored(hashes: &[i64], parent: Option<i64>, first: u32) -> Data {
    let block = |(at, hash): (usize, &i64)| KvBlock {
        block_hash: *hash,
        token_ids: tokens(first + (at * BLOCK) as u32..first + ((at + 1) * BLOCK) as u32),
        block_size: BLOCK as i32,
        lora_id: None,
        cache_level: Some(0),
    };
    Data::Stored(KvBlocksStored { blocks: hashes.iter().enumerate().map(block).collect(), parent_block_hash: parent })
}

fn removed(hash: i64) -> Data {
    Data::Removed(KvBlocksRemoved { block_hashes: vec![hash], cache_level: Some(0) })
}

async fn hub(engine: &StreamEngine, more: &str, events: &str) -> Hub {
    let yaml = format!(
        "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\nevents: {{{events}}}\n\
         replicas: [{{id: r0, address: '127.0.0.1:8000', kv_events: 'grpc://127.0.0.1:{}', model: m0{more}}}]",
        engine.port
    );
    Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
}

#[tokio::test]
async fn each_service_is_followed_whether_it_is_named_or_found() {
    for (name, path) in SERVICES {
        for more in ["", &format!(", engine: {name}")] {
            let engine = StreamEngine::start(path, true).await;
            engine.publish(None, vec![stored(&[-7, i64::MIN], None, 0)]);
            let hub = hub(&engine, more, "").await;
            let mut observer = Observer::new(&hub).await;
            observer.until("what was before", |seen| seen.holds("r0", &tokens(0..8))).await;
            engine.publish(None, vec![stored(&[3], Some(i64::MIN), 8)]);
            observer.until("a third block", |seen| seen.holds("r0", &tokens(0..12))).await;
            engine.publish(None, vec![removed(3)]);
            observer.until("its removal", |seen| seen.holds("r0", &tokens(0..8))).await;
            assert_eq!(observer.clears, 0);
            engine.publish(None, vec![Data::Cleared(KvCacheCleared {})]);
            observer.until("the clear", |seen| seen.holds("r0", &[])).await;
            hub.shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_is_resumed_without_a_clear() {
    let engine = StreamEngine::start(SERVICES[0].1, true).await;
    let hub = hub(&engine, "", "").await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    engine.publish(None, vec![stored(&[1], None, 0)]);
    engine.publish(None, vec![stored(&[2], Some(1), 4)]);
    observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
    engine.act(|published| {
        published.subscribers.clear();
        published.publish(None, vec![stored(&[3], Some(2), 8)], false);
    });
    observer.until("what came meanwhile", |seen| seen.holds("r0", &tokens(0..12))).await;
    // A number that the server skipped on this stream only.
    engine.act(|published| published.publish(None, vec![removed(3)], false));
    engine.publish(None, vec![stored(&[9], None, 90)]);
    let expected = keys_of(&tokens(0..8)).union(&keys_of(&tokens(90..94))).cloned().collect();
    observer.until("both", |seen| seen.held["r0"] == expected).await;
    assert_eq!(observer.clears, 0);
    assert!(engine.starts().contains(&1) && engine.starts().contains(&2), "{:?}", engine.starts());
    hub.shutdown().await;
}

#[tokio::test]
async fn an_engine_that_starts_over_is_built_anew() {
    for ends_streams in [true, false] {
        let engine = StreamEngine::start(SERVICES[1].1, true).await;
        let hub = hub(&engine, "", "").await;
        let mut observer = Observer::new(&hub).await;
        observer.until("the replica", |seen| seen.complete.contains("r0")).await;
        for hash in 0..5 {
            engine.publish(None, vec![stored(&[hash], None, 100 * hash as u32)]);
        }
        observer.until("five blocks", |seen| seen.held["r0"].len() == 5).await;
        engine.act(Published::restart);
        if ends_streams {
            engine.disconnect();
        }
        engine.publish(None, vec![stored(&[70], None, 700)]);
        observer.until("the new life's block", |seen| seen.holds("r0", &tokens(700..704))).await;
        hub.shutdown().await;
    }
}

#[tokio::test]
async fn an_engine_that_sends_nothing_again_is_followed_from_what_comes_next() {
    let engine = StreamEngine::start(SERVICES[2].1, false).await;
    engine.publish(None, vec![stored(&[1], None, 0)]);
    let hub = hub(&engine, "", "replay_timeout_ms: 200, verify_idle_ms: 300").await;
    let mut observer = Observer::new(&hub).await;
    observer.until("the replica", |seen| seen.complete.contains("r0")).await;
    engine.publish(None, vec![stored(&[2], None, 40)]);
    observer.until("the next block", |seen| seen.holds("r0", &tokens(40..44))).await;
    sleep(Duration::from_millis(900)).await;
    engine.publish(None, vec![stored(&[3], Some(2), 44)]);
    observer.until("its child", |seen| seen.holds("r0", &tokens(40..48))).await;
    assert_eq!(observer.clears, 0);
    // What was missed is not sent again: nothing is known any more.
    engine.act(|published| published.publish(None, vec![removed(2)], false));
    engine.publish(None, vec![stored(&[9], None, 90)]);
    observer.until("only what is certain", |seen| seen.holds("r0", &tokens(90..94))).await;
    assert!(get(&hub, "/metrics").await.1.contains("warmroute_hub_incomplete{replica=\"r0\"} 1"));
    hub.shutdown().await;
}

#[tokio::test]
async fn one_stream_has_the_batches_of_all_ranks() {
    let engine = StreamEngine::start(SERVICES[0].1, true).await;
    let hub = hub(&engine, ", data_parallel_size: 2", "").await;
    let mut observer = Observer::new(&hub).await;
    observer.until("both ranks", |seen| seen.complete.len() == 2).await;
    for (rank, first) in [(0, 0), (1, 100), (0, 4)] {
        let parent = (first == 4).then_some(0);
        engine.publish(Some(rank), vec![stored(&[i64::from(first)], parent, first)]);
    }
    observer.until("rank 0", |seen| seen.holds("r0/dp0", &tokens(0..8))).await;
    observer.until("rank 1", |seen| seen.holds("r0/dp1", &tokens(100..104))).await;
    assert_eq!(observer.clears, 0);
    hub.shutdown().await;
}
