//! Batches of KV events out over ZeroMQ, as vLLM's publisher does.
//!
//! In: batches, in the order in which the cache changed. Out: on a PUB socket `[topic, sequence, payload]`, the sequence
//! 8 bytes big-endian and counted from 0; on a ROUTER socket the batches still buffered, to whoever asks. One task
//! owns the sequence, the buffer and both sockets, so what is replayed and what is published never disagree.
//!
//! A replay request is `[identity, "", start]`; anything else is logged and gets no reply. Replies, after the identity
//! and an empty frame, one message per batch and one to end: as [the layout's release](super::events::EventEncoding) does,
//! `[sequence, payload]` and `[FF x 8, ""]` (vLLM up to 0.25) or `[topic, sequence, payload]` and `["", FF x 8, ""]` (from
//! 0.26).

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::events::{EventFormat, KvEvent};

/// What ends a replay, in place of a sequence.
const END_OF_REPLAY: [u8; 8] = [0xFF; 8];
/// How long one replay may hold up live batches. A client that does not read is given up.
const REPLAY_LIMIT: Duration = Duration::from_secs(1);

/// Where events go; cheap to clone. Without a publisher they are dropped.
#[derive(Clone, Debug)]
pub struct EventSink(Option<UnboundedSender<Command>>);

/// The sockets, bound, before the first batch.
pub struct Publisher {
    events: PubSocket,
    replay: Option<RouterSocket>,
    topic: Bytes,
    format: EventFormat,
    next_sequence: u64,
    buffer: VecDeque<(u64, Bytes)>,
    buffer_limit: usize,
    faults: PublisherFaults,
    /// Batches so far, over all restarts.
    batches: u64,
}

/// What a [`Publisher`] is started with.
pub struct PublisherOptions<'a> {
    /// Endpoint of the PUB socket.
    pub events_endpoint: &'a str,
    /// Endpoint of the ROUTER socket.
    pub replay_endpoint: Option<&'a str>,
    /// The topic of every batch.
    pub topic: &'a str,
    /// How events are written.
    pub format: EventFormat,
    /// Batches kept for replay.
    pub replay_buffer: NonZeroUsize,
    /// What goes wrong.
    pub faults: PublisherFaults,
}

/// What goes wrong with every nth batch; 0 for nothing.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct PublisherFaults {
    /// Every so many batches one is kept for replay and not published.
    #[arg(long, default_value_t = 0)]
    pub drop_every: u64,
    /// Every so many batches one is published twice.
    #[arg(long, default_value_t = 0)]
    pub duplicate_every: u64,
    /// Every so many batches one uses up its number and is neither published nor kept, as if it could not be encoded.
    #[arg(long, default_value_t = 0)]
    pub use_up_every: u64,
}

/// The endpoints as bound, their ports resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The PUB socket's.
    pub events: String,
    /// The ROUTER socket's.
    pub replay: Option<String>,
}

/// An endpoint that could not be bound.
#[derive(Debug)]
pub struct BindError {
    /// The option that names it.
    pub option: &'static str,
    /// The endpoint.
    pub endpoint: String,
    /// Why not.
    pub source: ZmqError,
}

/// What the engine tells its publisher.
#[derive(Debug)]
enum Command {
    Publish(Batch),
    Restart,
}

/// The events of one step.
#[derive(Debug)]
struct Batch {
    at: SystemTime,
    events: Vec<KvEvent>,
}

// === impl EventSink ===

impl EventSink {
    /// A sink that drops everything.
    pub fn none() -> EventSink {
        EventSink(None)
    }

    /// Hands over the events of one step; a step without events makes no batch.
    pub fn publish(&self, events: Vec<KvEvent>) {
        if let Some(sender) = self.0.as_ref().filter(|_| !events.is_empty()) {
            // Fails only once the publisher has stopped, and the engine with it.
            let _ = sender.send(Command::Publish(Batch { at: SystemTime::now(), events }));
        }
    }

    /// Numbers begin again, and nothing is kept for replay, as after a restart of the process. Connections stay.
    pub fn restart(&self) {
        if let Some(sender) = &self.0 {
            let _ = sender.send(Command::Restart);
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// Binds the sockets.
    ///
    /// # Errors
    /// When an endpoint is malformed or cannot be bound.
    pub async fn bind(options: PublisherOptions<'_>) -> Result<(Publisher, Endpoints), BindError> {
        let mut events = PubSocket::new();
        let events_endpoint = bind(&mut events, "kv_events", options.events_endpoint).await?;
        let (mut replay, mut replay_endpoint) = (None, None);
        if let Some(endpoint) = options.replay_endpoint {
            let mut socket = RouterSocket::new();
            replay_endpoint = Some(bind(&mut socket, "kv_replay", endpoint).await?);
            replay = Some(socket);
        }
        let publisher = Publisher {
            events,
            replay,
            topic: Bytes::copy_from_slice(options.topic.as_bytes()),
            format: options.format,
            next_sequence: 0,
            buffer: VecDeque::new(),
            buffer_limit: options.replay_buffer.get(),
            faults: options.faults,
            batches: 0,
        };
        Ok((publisher, Endpoints { events: events_endpoint, replay: replay_endpoint }))
    }

    /// Starts the task that publishes what the sink is given, until `stop`. It has ended once both sockets are closed.
    pub fn start(self, stop: CancellationToken) -> (EventSink, tokio::task::JoinHandle<()>) {
        let (sender, receiver) = unbounded_channel();
        (EventSink(Some(sender)), tokio::spawn(self.run(receiver, stop)))
    }

    async fn run(mut self, mut commands: UnboundedReceiver<Command>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                command = commands.recv() => match command {
                    Some(Command::Publish(batch)) => self.publish(batch).await,
                    Some(Command::Restart) => {
                        self.next_sequence = 0;
                        self.buffer.clear();
                    }
                    None => break,
                },
                request = receive(&mut self.replay) => match request {
                    Ok(request) => self.answer(request).await,
                    Err(error) => {
                        tracing::error!(%error, "replay socket failed, replay is off");
                        self.replay = None;
                    }
                },
            }
        }
        self.events.close().await;
        if let Some(replay) = self.replay {
            replay.close().await;
        }
    }

    /// The sequence is taken first, as in vLLM: a batch that cannot be encoded leaves a gap.
    async fn publish(&mut self, batch: Batch) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.batches += 1;
        if is_nth(self.batches, self.faults.use_up_every) {
            return tracing::info!(sequence, "batch left out as if it could not be encoded");
        }
        let since_epoch = batch.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let payload = match self.format.at(sequence).encode_batch(since_epoch.as_secs_f64(), &batch.events) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => return tracing::error!(sequence, %error, "batch not encoded"),
        };
        let times = match self.faults {
            faults if is_nth(self.batches, faults.drop_every) => 0,
            faults if is_nth(self.batches, faults.duplicate_every) => 2,
            _ => 1,
        };
        for _ in 0..times {
            let message = message([self.topic.clone(), sequence_frame(sequence), payload.clone()]);
            if let Err(error) = self.events.send(message).await {
                tracing::warn!(sequence, %error, "batch not published");
            }
        }
        if self.buffer.len() >= self.buffer_limit {
            self.buffer.pop_front();
        }
        self.buffer.push_back((sequence, payload));
    }

    async fn answer(&mut self, request: ZmqMessage) {
        let Some((client, start)) = parse_replay_request(&request) else {
            return tracing::warn!(frames = request.len(), "replay request is not [identity, \"\", start], no reply");
        };
        match tokio::time::timeout(REPLAY_LIMIT, self.replay(client, start)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(start, %error, "replay broken off"),
            Err(_) => tracing::warn!(start, "replay broken off, the client does not read"),
        }
    }

    async fn replay(&mut self, client: Bytes, start: u64) -> Result<(), ZmqError> {
        let Some(socket) = self.replay.as_mut() else { return Ok(()) };
        let batches = self.buffer.iter().filter(|(sequence, _)| *sequence >= start);
        let batches =
            batches.map(|(sequence, payload)| (self.topic.clone(), sequence_frame(*sequence), payload.clone()));
        let end = (Bytes::new(), Bytes::from_static(&END_OF_REPLAY), Bytes::new());
        for (topic, sequence, payload) in batches.chain([end]) {
            let head = [client.clone(), Bytes::new()];
            socket
                .send(if self.format.encoding.replays_with_topic() {
                    message(head.into_iter().chain([topic, sequence, payload]))
                } else {
                    message(head.into_iter().chain([sequence, payload]))
                })
                .await?;
        }
        Ok(())
    }
}

fn is_nth(number: u64, every: u64) -> bool {
    every > 0 && number.is_multiple_of(every)
}

/// The endpoint of a rank: its port is that of rank 0 and the rank. A port of 0 stays: any free one.
pub fn endpoint_of_rank(endpoint: &str, rank: u16) -> String {
    match endpoint.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some((host, port)) if port > 0 => format!("{host}:{}", u32::from(port) + u32::from(rank)),
        _ => endpoint.to_owned(),
    }
}

/// The next request; never, without a replay socket.
async fn receive(socket: &mut Option<RouterSocket>) -> Result<ZmqMessage, ZmqError> {
    match socket {
        Some(socket) => socket.recv().await,
        None => std::future::pending().await,
    }
}

/// Who asks and from which sequence. vLLM reads a start of any length as one big-endian number.
fn parse_replay_request(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    let mut frames = request.iter();
    let (Some(client), Some(delimiter), Some(start), None) =
        (frames.next(), frames.next(), frames.next(), frames.next())
    else {
        return None;
    };
    let fold = |start: u64, byte: &u8| match start.checked_mul(256) {
        Some(shifted) => shifted | u64::from(*byte),
        None => u64::MAX,
    };
    delimiter.is_empty().then(|| (client.clone(), start.iter().fold(0, fold)))
}

fn sequence_frame(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

/// Binds and returns the endpoint with its port resolved. `*` is any IPv4 address, as in libzmq.
async fn bind(socket: &mut impl Socket, option: &'static str, endpoint: &str) -> Result<String, BindError> {
    let address = endpoint.replacen("://*:", "://0.0.0.0:", 1);
    match socket.bind(&address).await {
        Ok(bound) => Ok(bound.to_string()),
        Err(source) => Err(BindError { option, endpoint: endpoint.to_owned(), source }),
    }
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {:?}, a tcp://ip:port that is free is needed: {}", self.option, self.endpoint, self.source)
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(frames: &[&'static [u8]]) -> Option<(Bytes, u64)> {
        parse_replay_request(&message(frames.iter().map(|frame| Bytes::from_static(frame))))
    }

    #[test]
    fn a_start_of_any_length_is_one_number() {
        let id = Bytes::from_static(b"id");
        assert_eq!(request(&[b"id", b"", b""]), Some((id.clone(), 0)));
        assert_eq!(request(&[b"id", b"", &[1, 2]]), Some((id.clone(), 258)));
        assert_eq!(request(&[b"id", b"", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 7]]), Some((id.clone(), 7)));
        assert_eq!(request(&[b"id", b"", &[1; 9]]), Some((id, u64::MAX)));
    }

    #[test]
    fn ranks_are_at_the_ports_after_the_first() {
        assert_eq!(endpoint_of_rank("tcp://*:5557", 0), "tcp://*:5557");
        assert_eq!(endpoint_of_rank("tcp://127.0.0.1:5557", 3), "tcp://127.0.0.1:5560");
        assert_eq!(endpoint_of_rank("tcp://127.0.0.1:0", 3), "tcp://127.0.0.1:0");
    }

    #[test]
    fn other_requests_are_refused() {
        assert_eq!(request(&[b"id", b""]), None);
        assert_eq!(request(&[b"id", b"", b"\0", b""]), None);
        assert_eq!(request(&[b"id", b"x", b"\0"]), None);
    }
}
