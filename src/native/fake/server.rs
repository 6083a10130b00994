//! Connections: HTTP/1.1, and HTTP/2 with prior knowledge, on one port.
//!
//! Goes on until it is told to stop. Then it closes the listener at once and idle connections with it, lets requests
//! that are under way finish for `GRACE`, and cuts what is left.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long requests may take to finish after the stop.
const GRACE: Duration = Duration::from_millis(500);
/// Largest header block over HTTP/2; the library's 16 KiB are less than what Envoy forwards.
const MAX_HEADER_BYTES: u32 = 1024 * 1024;
/// Pause after an accept that failed, which is for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, router.clone(), stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finished).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve_connection(stream: TcpStream, router: Router, stop: CancellationToken) {
    // Without it tokens of a stream wait for the peer's delayed ACK. A connection works without it too.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().max_header_list_size(MAX_HEADER_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection broken off");
    }
}
