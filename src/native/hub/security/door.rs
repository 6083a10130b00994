//! A listener with a limit, and with TLS where that is configured.
//!
//! In: sockets. Out: [`Connection`]s, to the gRPC server as a stream, to the HTTP server as its listener. A handshake runs
//! beside the others and for [`HANDSHAKE_LIMIT`] at most. A connection has its place until it is dropped; one on which nothing
//! moves for the idle time fails its server's next read, by which it ends.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use rustls::Error as TlsError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::Connected;

use super::refusals::{Refusal, Refusals};
use super::{Security, ServerConfig};

/// How long TLS may take to come about.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// A pause after the system refused to accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that wait for the server.
const WAITING: usize = 64;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it has shown a certificate that is valid here.
    pub certified: bool,
}

/// A listener.
pub struct Door {
    /// Where it listens.
    pub listener: TcpListener,
    /// How it takes TLS.
    pub security: Arc<Security>,
    /// Whether this is the gRPC side.
    pub is_grpc: bool,
    /// The most connections.
    pub limit: usize,
    /// How long nothing may move on one.
    pub idle: Duration,
    /// Who was not let in.
    pub refusals: Arc<Refusals>,
    /// Ends it.
    pub stop: CancellationToken,
}

/// Connections that have come in.
pub struct Incoming {
    connections: mpsc::Receiver<Connection>,
}

/// An open connection.
pub struct Connection {
    socket: Socket,
    peer: Peer,
    idle: IdleTimer,
    gone: CancellationToken,
    _end: DropGuard,
    _place: Place,
}

/// When a connection on which nothing moves is given up.
struct IdleTimer {
    limit: Duration,
    ends: Pin<Box<Sleep>>,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A place among as many as there may be.
struct Place {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

// === impl Door ===

impl Door {
    /// Lets them in, until stopped.
    pub fn open(self) -> Incoming {
        let (sender, connections) = mpsc::channel(WAITING);
        tokio::spawn(self.accept_all(sender));
        Incoming { connections }
    }

    async fn accept_all(self, sender: mpsc::Sender<Connection>) {
        let places = Arc::new(Semaphore::new(self.limit.min(Semaphore::MAX_PERMITS)));
        while let Some(accepted) = self.stop.run_until_cancelled(self.listener.accept()).await {
            let Ok((socket, address)) = accepted else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&places).try_acquire_owned() else {
                let limit = format!("limits.max_connections is {}", self.limit);
                self.refusals.note(Refusal::TooManyConnections, address, &limit);
                continue;
            };
            let place = Place::new(permit, self.refusals.metrics().connections());
            // Without it small messages wait for nothing; that it cannot be set is no reason to refuse.
            let _ = socket.set_nodelay(true);
            let tls = if self.is_grpc { self.security.grpc_tls() } else { self.security.http_tls() };
            match tls {
                None => {
                    let peer = Peer { address, certified: false };
                    let connection = Connection::new(Socket::Plain(socket), peer, self.idle, place);
                    if sender.send(connection).await.is_err() {
                        return;
                    }
                }
                Some(tls) => {
                    let shaken =
                        shake_hands(tls, socket, address, self.idle, place, Arc::clone(&self.refusals), sender.clone());
                    let stop = self.stop.clone();
                    tokio::spawn(async move { stop.run_until_cancelled_owned(shaken).await });
                }
            }
        }
    }
}

async fn shake_hands(
    tls: Arc<ServerConfig>,
    socket: TcpStream,
    address: SocketAddr,
    idle: Duration,
    place: Place,
    refusals: Arc<Refusals>,
    sender: mpsc::Sender<Connection>,
) {
    let stream = match timeout(HANDSHAKE_LIMIT, TlsAcceptor::from(tls).accept(socket)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return refusals.note(reason(&error), address, &error.to_string()),
        Err(_) => return refusals.note(Refusal::TlsTimeout, address, "no handshake"),
    };
    let certified = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
    let peer = Peer { address, certified };
    // Where the server is gone, so is the connection.
    let _ = sender.send(Connection::new(Socket::Tls(Box::new(stream)), peer, idle, place)).await;
}

fn reason(error: &io::Error) -> Refusal {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    match tls {
        Some(TlsError::NoCertificatesPresented) => Refusal::NoCertificate,
        Some(TlsError::InvalidCertificate(_)) => Refusal::Certificate,
        _ => Refusal::Tls,
    }
}

// === impl Incoming ===

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        self.connections.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

impl Incoming {
    /// The next one; none once the door is shut.
    pub async fn next(&mut self) -> Option<Connection> {
        self.connections.recv().await
    }
}

// === impl Place ===

impl Place {
    fn new(permit: OwnedSemaphorePermit, open: &Gauge) -> Place {
        open.inc();
        Place { open: open.clone(), _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

// === impl IdleTimer ===

impl IdleTimer {
    fn new(limit: Duration) -> IdleTimer {
        IdleTimer { limit, ends: Box::pin(sleep(limit)) }
    }

    /// Something moved.
    fn moved(&mut self) {
        self.ends.as_mut().reset(Instant::now() + self.limit);
    }

    /// Nothing has come; an error where that has lasted for too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.ends.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

// === impl Connection ===

impl Connection {
    fn new(socket: Socket, peer: Peer, idle: Duration, place: Place) -> Connection {
        let gone = CancellationToken::new();
        let end = gone.clone().drop_guard();
        Connection { socket, peer, idle: IdleTimer::new(idle), gone, _end: end, _place: place }
    }

    /// Cancelled when the connection is no more.
    pub fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Peer {
        self.peer
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_read(context, into),
            Socket::Tls(stream) => Pin::new(stream).poll_read(context, into),
        };
        match read {
            Poll::Pending => self.idle.wait(context),
            Poll::Ready(read) => {
                self.idle.moved();
                Poll::Ready(read)
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        if written.is_ready() {
            self.idle.moved();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_flush(context),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        };
        if written.is_ready() {
            self.idle.moved();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(socket) => socket.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
