//! HTTP/1.1 and HTTP/2 on the connections that the door has let in.
//!
//! A connection whose request's head does not come within the idle time, a first or a later one, is closed, and so is one over
//! HTTP/2 whose peer answers no ping, or makes no request for as long: nobody keeps a place without using it.

use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming as Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::debug;

use crate::native::hub::security::{Calls, Connection, Holding, Incoming};
use crate::native::hub::service::keepalive;

/// Serves `router` to all that come in, until stopped; requests under way are answered.
pub async fn serve(mut incoming: Incoming, router: Router, idle: Duration, stop: CancellationToken) {
    let connections = TaskTracker::new();
    while let Some(Some(connection)) = stop.run_until_cancelled(incoming.next()).await {
        connections.spawn(serve_one(connection, router.clone(), idle, stop.clone()));
    }
    connections.close();
    connections.wait().await;
}

async fn serve_one(connection: Connection, router: Router, idle: Duration, stop: CancellationToken) {
    let (calls, peer) = (Calls::default(), connection.peer());
    let counted = calls.clone();
    let service = service_fn(move |mut request: Request<Body>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let (answered, call) = (router.clone().oneshot(request.map(axum::body::Body::new)), counted.begin());
        async move { answered.await.map(|response| response.map(|body| Holding::new(body, call))) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle);
    let (interval, timeout) = keepalive(idle);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(interval).keep_alive_timeout(timeout);
    let served = builder.serve_connection(TokioIo::new(connection), service);
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = calls.idle_for(idle) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        debug!(peer = %peer.address, "an HTTP connection ended: {error}");
    }
}
