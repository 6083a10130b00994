//! The hub is not on the request path: without it, requests are answered, and hints come back by themselves.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmroute::native::load::stack::eventually;

use crate::pool::*;

/// What the issue allows from the hub's return to the first hint.
const COMES_BACK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn without_a_hub_every_request_is_answered() {
    let mut stack = stack(|options| options.with_hub = false).await;
    let prompt = tokens(1, 160);
    for _ in 0..6 {
        let answer = complete(&stack, &prompt, 1).await;
        assert_eq!(answer.header("x-inferencecache-detail"), "cold");
    }
    stack.hub.start().unwrap();
    let hinted = eventually(COMES_BACK, async || probe(&stack, &tokens(2, 160)).await.detail == "miss").await;
    assert!(hinted, "{:?}", probe(&stack, &tokens(2, 160)).await);
    // The engines had computed the prompt before the hub was there: replay tells.
    let known = eventually(SOON, async || probe(&stack, &prompt).await.detail == "below_routing_floor").await;
    assert!(known, "{:?}", probe(&stack, &prompt).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_killed_and_restarted_brings_the_hints_back() {
    let mut stack = stack(|options| options.plugin["stale_after_ms"] = 1_500.into()).await;
    let prompt = tokens(1, 160);
    warm(&stack, 1, &prompt).await;
    credited(&stack, &prompt, 160).await;
    stack.hub.kill().await.unwrap();
    let stale = eventually(COMES_BACK, async || {
        let answer = complete(&stack, &tokens(3, 160), 1).await;
        answer.header("x-inferencecache-detail") == "stale"
    })
    .await;
    assert!(stale, "the index is not confirmed any more");
    // While nobody listens, the engine forgets: the hint that comes back must not be the old one.
    assert_eq!(stack.reset_prefix_cache(1).await.unwrap().status, 200);
    warm(&stack, 2, &prompt).await;
    stack.hub.restart().await.unwrap();
    let back = eventually(COMES_BACK, async || {
        let decided = probe(&stack, &prompt).await;
        assert_ne!(decided.replica, "engine-1", "what was forgotten is not credited");
        decided.replica == "engine-2"
    })
    .await;
    assert!(back, "{:?}", probe(&stack, &prompt).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_speaks_garbage_does_no_harm() {
    let mut stack = stack(|options| options.with_hub = false).await;
    let listener = TcpListener::bind(stack.addresses.hub_grpc).await.unwrap();
    let garbage = tokio::spawn(async move {
        let mut connections = 0_u32;
        loop {
            let Ok((mut socket, _)) = listener.accept().await else { continue };
            connections += 1;
            // A proper HTTP/2 beginning for every other one, so that the nonsense reaches different layers.
            let settings: &[u8] = if connections.is_multiple_of(2) { &[0, 0, 0, 4, 0, 0, 0, 0, 0] } else { b"" };
            let _ = socket.write_all(settings).await;
            let mut start = [0; 256];
            let _ = tokio::time::timeout(Duration::from_millis(100), socket.read(&mut start)).await;
            let noise: Vec<u8> = (0..4_096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let _ = socket.write_all(&noise).await;
        }
    });
    let prompt = tokens(1, 160);
    for _ in 0..40 {
        let answer = complete(&stack, &prompt, 1).await;
        assert_eq!(answer.header("x-inferencecache-reason-code"), "NO_HINT");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let opened = stack.metrics().await.unwrap().sum("warmroute_stream_opened_total", &[]);
    assert!(opened >= 2.0, "the filter tried {opened} times");
    garbage.abort();
    let _ = garbage.await;
    stack.hub.start().unwrap();
    let hinted = eventually(COMES_BACK, async || probe(&stack, &tokens(2, 160)).await.detail == "miss").await;
    assert!(hinted, "{:?}", probe(&stack, &tokens(2, 160)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_speaks_grpc_but_not_ours_is_refused() {
    let mut stack = stack(|options| options.with_hub = false).await;
    // In a runtime of its own, so that its connections end with it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(serve_nonsense(stack.addresses.hub_grpc));
    let refused = eventually(COMES_BACK, async || {
        complete(&stack, &tokens(1, 160), 1).await;
        stack.metrics().await.unwrap().sum("warmroute_stream_refused_messages_total", &[]) >= 2.0
    })
    .await;
    assert!(refused, "{}", stack.envoy.log_tail());
    runtime.shutdown_background();
    stack.hub.start().unwrap();
    let hinted = eventually(COMES_BACK, async || probe(&stack, &tokens(2, 160)).await.detail == "miss").await;
    assert!(hinted, "{:?}", probe(&stack, &tokens(2, 160)).await);
}

/// Serves `Observe` with well-framed gRPC messages whose bytes are nonsense, or break the stream's contract.
async fn serve_nonsense(address: std::net::SocketAddr) {
    use tonic::{Request, Response, Status, Streaming};
    use warmroute::wire::v1::observation_server::{Observation, ObservationServer};
    use warmroute::wire::v1::{Chunk, ObserveRequest, ObserveResponse, observe_response::Kind};

    struct Nonsense;

    #[tonic::async_trait]
    impl Observation for Nonsense {
        type ObserveStream = tokio_stream::wrappers::ReceiverStream<Result<ObserveResponse, Status>>;

        async fn observe(
            &self,
            _request: Request<Streaming<ObserveRequest>>,
        ) -> Result<Response<Self::ObserveStream>, Status> {
            let (sender, receiver) = tokio::sync::mpsc::channel(4);
            // A chunk before any reset, in an epoch that must not be.
            let chunk = ObserveResponse { number: 9, epoch: 0, sequence: 3, kind: Some(Kind::Chunk(Chunk::default())) };
            sender.send(Ok(chunk)).await.map_err(|_| Status::internal("closed"))?;
            tokio::spawn(async move {
                // Kept open: it is the filter that has to give up.
                tokio::time::sleep(Duration::from_secs(60)).await;
                drop(sender);
            });
            Ok(Response::new(tokio_stream::wrappers::ReceiverStream::new(receiver)))
        }
    }

    let listener = TcpListener::bind(address).await.unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(ObservationServer::new(Nonsense));
    server.serve_with_incoming(incoming).await.unwrap();
}
