//! A TCP relay that can be shut, and that holds still after so many bytes.
//!
//! It stands between Envoy and the hub, so that a stream can be kept away, or cut, at a chosen place: bytes from the
//! server to the client are counted, and at the limit nothing passes any more until the relay is opened anew.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bytes that pass in one piece.
const PIECE: u64 = 16 * 1024;

/// The relay. Dropped, it ends with all its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    gate: watch::Sender<Gate>,
    passed: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

/// What may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Shut,
    /// Up to `limit` bytes from `to`.
    Open {
        to: SocketAddr,
        limit: u64,
    },
}

// === impl Relay ===

impl Relay {
    /// Listens on a free loopback port, shut.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn start() -> std::io::Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (gate, seen) = watch::channel(Gate::Shut);
        let passed = Arc::new(AtomicU64::new(0));
        let accepting = tokio::spawn(accept(listener, seen, Arc::clone(&passed)));
        Ok(Relay { address, gate, passed, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every connection, and each new one at once.
    pub fn shut(&self) {
        self.gate.send_replace(Gate::Shut);
    }

    /// Connects clients with `to`. After `limit` bytes from there, counted from now on, it holds still.
    pub fn open(&self, to: SocketAddr, limit: Option<u64>) {
        self.passed.store(0, Ordering::Relaxed);
        self.gate.send_replace(Gate::Open { to, limit: limit.unwrap_or(u64::MAX) });
    }

    /// Bytes that came from the server since the relay was opened.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Whether the limit is reached.
    pub fn holds_still(&self) -> bool {
        matches!(*self.gate.borrow(), Gate::Open { limit, .. } if self.passed() >= limit)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Connections end when the gate's sender is gone.
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, gate: watch::Receiver<Gate>, passed: Arc<AtomicU64>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        tokio::spawn(serve(client, gate.clone(), Arc::clone(&passed)));
    }
}

async fn serve(client: TcpStream, mut gate: watch::Receiver<Gate>, passed: Arc<AtomicU64>) {
    let Gate::Open { to, .. } = *gate.borrow() else { return };
    let Ok(server) = TcpStream::connect(to).await else { return };
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let counted = count(from_server, to_client, gate.clone(), passed);
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        () = counted => {}
        _ = gate.wait_for(|gate| *gate == Gate::Shut) => {}
    }
}

/// Passes bytes on as far as the gate lets them.
async fn count(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut gate: watch::Receiver<Gate>,
    passed: Arc<AtomicU64>,
) {
    let mut piece = vec![0; PIECE as usize];
    loop {
        let may_pass =
            gate.wait_for(|gate| matches!(gate, Gate::Open { limit, .. } if passed.load(Ordering::Relaxed) < *limit));
        if may_pass.await.is_err() {
            return;
        }
        let Ok(bytes @ 1..) = from.read(&mut piece).await else { return };
        passed.fetch_add(bytes as u64, Ordering::Relaxed);
        let Some(read) = piece.get(..bytes) else { return };
        if to.write_all(read).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::native::load::stack::eventually;

    /// A server that says 100,000 bytes to whoever comes.
    async fn talker() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.write_all(&[7; 100_000]).await;
            }
        });
        address
    }

    async fn read_all(address: SocketAddr) -> usize {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes.len()
    }

    #[tokio::test]
    async fn it_is_shut_then_holds_still_then_lets_all_pass() {
        let relay = Relay::start().await.unwrap();
        assert_eq!(read_all(relay.address()).await, 0);
        let server = talker().await;
        relay.open(server, Some(30_000));
        let reading = tokio::spawn(read_all(relay.address()));
        assert!(eventually(Duration::from_secs(5), async || relay.holds_still()).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(relay.passed() < 30_000 + PIECE && !reading.is_finished());
        relay.shut();
        assert!(reading.await.unwrap() < 30_000 + PIECE as usize);
        relay.open(server, None);
        assert_eq!(read_all(relay.address()).await, 100_000);
    }
}
