//! One connection of a ZeroMQ SUB or DEALER socket, with bounds on what the peer may send.
//!
//! In: an endpoint, `tcp://host:port`. Out: whole messages, as the list of their frames, and the loss of the connection at once. It
//! speaks ZMTP 3.0 with the NULL mechanism (<https://rfc.zeromq.org/spec/23/>), which every libzmq since 4.0 does; what is
//! later in the protocol is not asked for. The library that the fake engine uses makes room for whatever length a frame's header
//! claims, so that eight bytes from a peer could end the process; here a message has at most [`MAX_MESSAGE_BYTES`] and [`MAX_FRAMES`].

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::transport::Fault;

/// The longest message, all frames together.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// The most frames of a message.
pub const MAX_FRAMES: usize = 16;

/// What is read at a time, at least.
const READ_BYTES: usize = 64 * 1024;
const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What this end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketType {
    /// Subscribes to a publisher.
    Sub,
    /// Asks a router.
    Dealer,
}

/// A connection, made once.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    /// Frames of a message of which more come.
    frames: Vec<Bytes>,
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    flags: u8,
    body: Bytes,
}

// === impl Connection ===

impl Connection {
    /// Connects, and waits until the peer has said what it is.
    ///
    /// # Errors
    /// [`Fault::Silent`] when that takes longer than `limit`; [`Fault::Lost`] when the peer refuses, or is no socket that goes
    /// with this one.
    pub async fn open(endpoint: &str, kind: SocketType, limit: Duration) -> Result<Connection, Fault> {
        timeout(limit, Connection::shaken(endpoint, kind)).await.unwrap_or(Err(Fault::Silent))
    }

    async fn shaken(endpoint: &str, kind: SocketType) -> Result<Connection, Fault> {
        let address =
            endpoint.strip_prefix("tcp://").ok_or_else(|| Fault::Lost(format!("`{endpoint}` is not tcp://")))?;
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut connection = Connection { stream, buffer: BytesMut::new(), frames: Vec::new() };
        connection.stream.write_all(&greeting()).await.map_err(lost)?;
        while connection.buffer.len() < GREETING_BYTES {
            connection.read().await?;
        }
        check_greeting(&connection.buffer.split_to(GREETING_BYTES))?;
        connection.send_frame(COMMAND, &ready(kind)).await?;
        let command = loop {
            if let Some(frame) = next_frame(&mut connection.buffer)? {
                break frame;
            }
            connection.read().await?;
        };
        check_ready(&command, kind)?;
        Ok(connection)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`Fault::Lost`] when the connection is.
    pub async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Fault> {
        for (place, frame) in frames.iter().enumerate() {
            let flags = if place + 1 < frames.len() { MORE } else { 0 };
            self.send_frame(flags, frame).await?;
        }
        Ok(())
    }

    /// The next message. Nothing is lost when this is dropped before it is done.
    ///
    /// # Errors
    /// [`Fault::Lost`] when the connection is, or the peer sends what is no message or more than one may have.
    pub async fn receive(&mut self) -> Result<Vec<Bytes>, Fault> {
        loop {
            while let Some(Frame { flags, body }) = next_frame(&mut self.buffer)? {
                if flags & COMMAND != 0 {
                    // Of version 3.0 there is none after the first.
                    continue;
                }
                let so_far: usize = self.frames.iter().map(Bytes::len).sum();
                if self.frames.len() == MAX_FRAMES || so_far + body.len() > MAX_MESSAGE_BYTES {
                    return Err(Fault::Lost(format!(
                        "a message has more than {MAX_FRAMES} frames or {MAX_MESSAGE_BYTES} bytes"
                    )));
                }
                self.frames.push(body);
                if flags & MORE == 0 {
                    return Ok(std::mem::take(&mut self.frames));
                }
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<(), Fault> {
        self.buffer.reserve(READ_BYTES);
        match self.stream.read_buf(&mut self.buffer).await.map_err(lost)? {
            0 => Err(Fault::Lost("disconnected".into())),
            _ => Ok(()),
        }
    }

    async fn send_frame(&mut self, flags: u8, body: &[u8]) -> Result<(), Fault> {
        let mut bytes = Vec::with_capacity(9 + body.len());
        match u8::try_from(body.len()) {
            Ok(length) => bytes.extend([flags, length]),
            Err(_) => {
                bytes.push(flags | LONG);
                bytes.extend((body.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(body);
        self.stream.write_all(&bytes).await.map_err(lost)
    }
}

/// Signature, version 3.0, mechanism NULL, client.
fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    for (slot, byte) in bytes.iter_mut().zip(*b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL") {
        *slot = byte;
    }
    bytes
}

fn check_greeting(bytes: &[u8]) -> Result<(), Fault> {
    let is_zmtp = bytes.first() == Some(&0xff) && bytes.get(9) == Some(&0x7f);
    match (is_zmtp, bytes.get(10), bytes.get(12..32)) {
        (true, Some(3..), Some(mechanism)) if mechanism.starts_with(b"NULL\0") => Ok(()),
        (true, Some(3..), _) => Err(Fault::Lost("the peer wants another security mechanism than NULL".into())),
        (true, ..) => Err(Fault::Lost("the peer speaks ZMTP before 3.0".into())),
        (false, ..) => Err(Fault::Lost("the peer does not speak ZMTP".into())),
    }
}

/// The command READY, which says what this end is.
fn ready(kind: SocketType) -> Vec<u8> {
    let name = match kind {
        SocketType::Sub => "SUB",
        SocketType::Dealer => "DEALER",
    };
    let mut body = b"\x05READY".to_vec();
    for (property, value) in [("Socket-Type", name), ("Identity", "")] {
        body.push(property.len() as u8);
        body.extend(property.as_bytes());
        body.extend((value.len() as u32).to_be_bytes());
        body.extend(value.as_bytes());
    }
    body
}

fn check_ready(frame: &Frame, kind: SocketType) -> Result<(), Fault> {
    let mut body = frame.body.clone();
    if frame.flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
        return Err(Fault::Lost("the peer does not say what it is".into()));
    }
    body.advance(6);
    let peer = socket_type(body).ok_or_else(|| Fault::Lost("the peer does not say which socket it is".into()))?;
    let fits: &[&[u8]] = match kind {
        SocketType::Sub => &[b"PUB", b"XPUB"],
        SocketType::Dealer => &[b"ROUTER", b"DEALER", b"REP"],
    };
    if fits.contains(&peer.as_ref()) {
        return Ok(());
    }
    Err(Fault::Lost(format!("the peer is a {} socket", String::from_utf8_lossy(peer.get(..16).unwrap_or(&peer)))))
}

/// The property of that name.
fn socket_type(mut properties: Bytes) -> Option<Bytes> {
    while properties.has_remaining() {
        let name = usize::from(properties.get_u8());
        let name = (properties.len() >= name).then(|| properties.split_to(name))?;
        let value = (properties.len() >= 4).then(|| properties.get_u32())? as usize;
        let value = (properties.len() >= value).then(|| properties.split_to(value))?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
    }
    None
}

/// Takes the next frame, if it is all there.
fn next_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, Fault> {
    let Some((&flags, rest)) = buffer.split_first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(Fault::Lost("the peer sends what is no frame".into()));
    }
    let (header, length) = if flags & LONG == 0 {
        let Some(length) = rest.first() else { return Ok(None) };
        (2, u64::from(*length))
    } else {
        let Some(length) = rest.first_chunk::<8>() else { return Ok(None) };
        (9, u64::from_be_bytes(*length))
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_MESSAGE_BYTES);
    let length = length.ok_or_else(|| Fault::Lost(format!("a frame has more than {MAX_MESSAGE_BYTES} bytes")))?;
    if buffer.len() < header + length {
        return Ok(None);
    }
    buffer.advance(header);
    Ok(Some(Frame { flags, body: buffer.split_to(length).freeze() }))
}

fn lost(error: io::Error) -> Fault {
    Fault::Lost(error.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// What becomes of a connection to a publisher that sends this once it is connected.
    async fn sent(bytes: Vec<u8>) -> Result<Vec<Bytes>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let peer = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB".to_vec();
            ready[1] = (ready.len() - 2) as u8;
            stream.write_all(&greeting()).await.unwrap();
            stream.write_all(&ready).await.unwrap();
            let _ = stream.write_all(&bytes).await;
            // Until the other end has gone.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        let mut connection =
            Connection::open(&endpoint, SocketType::Sub, LIMIT).await.map_err(|fault| fault.to_string())?;
        let message = timeout(LIMIT, connection.receive()).await.unwrap().map_err(|fault| fault.to_string());
        drop(connection);
        peer.await.unwrap();
        message
    }

    #[tokio::test]
    async fn messages_come_frame_by_frame() {
        let mut bytes = b"\x01\x01t\x01\x00".to_vec();
        bytes.extend([LONG, 0, 0, 0, 0, 0, 0, 1, 0]);
        bytes.extend([7; 256]);
        let message = sent(bytes).await.unwrap();
        assert_eq!(message, [Bytes::from_static(b"t"), Bytes::new(), Bytes::from(vec![7; 256])]);
    }

    #[tokio::test]
    async fn what_is_too_much_is_not_waited_for() {
        for length in [1 << 46, u64::MAX, MAX_MESSAGE_BYTES as u64 + 1] {
            let header = [&[LONG][..], &length.to_be_bytes()].concat();
            assert_eq!(sent(header).await.unwrap_err(), "a frame has more than 67108864 bytes");
        }
        let endless = [MORE, 1, b'x'].repeat(MAX_FRAMES + 1);
        assert_eq!(sent(endless).await.unwrap_err(), "a message has more than 16 frames or 67108864 bytes");
        assert_eq!(sent(vec![0xf0, 0]).await.unwrap_err(), "the peer sends what is no frame");
    }

    #[tokio::test]
    async fn a_peer_that_is_none_is_refused() {
        for (says, why) in [
            (
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
                "does not speak ZMTP",
            ),
            ([&greeting()[..], b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"].concat(), "is a ROUTER socket"),
            ([&greeting()[..], b"\x00\x01x"].concat(), "does not say what it is"),
            (b"\xff".to_vec(), "disconnected"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
            let peer = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&says).await.unwrap();
                stream.shutdown().await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
            let fault = Connection::open(&endpoint, SocketType::Sub, LIMIT).await.unwrap_err().to_string();
            assert!(fault.contains(why), "{fault}, not {why}");
            peer.await.unwrap();
        }
    }

    #[test]
    fn whatever_the_bytes_they_are_frames_or_refused() {
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut buffer = BytesMut::new();
            for _ in 0..state % 40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                buffer.extend_from_slice(&[(state >> 60) as u8]);
            }
            state = state.wrapping_add(7);
            let before = buffer.len();
            let mut taken = 0;
            while let Ok(Some(frame)) = next_frame(&mut buffer) {
                taken += frame.body.len() + 2;
            }
            assert!(taken <= before + 7 && buffer.len() <= before);
            let _ = socket_type(buffer.freeze());
        }
    }
}
