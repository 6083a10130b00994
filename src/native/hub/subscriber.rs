//! One Observe stream, from the subscriber's first message to its end.
//!
//! In: the subscriber's messages and the hub's state. Out: the stream as `observation.proto` promises it: resumed or
//! reset, then deltas without gaps and heartbeats, with the parts of a model between them; messages of at most [`MAX_MESSAGE_BYTES`], and no more under way than
//! the [`Window`] allows. A subscriber whose position leaves the hub's ring while it is served is closed with
//! `OUT_OF_RANGE`, since only a new subscription may reset it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::info;

use super::metrics::Metrics;
use super::parts::Parts;
use super::resets::{Reset, Resets};
use super::ring::Numbered;
use super::roster::{Roster, Seat};
use super::scope_filter::ScopeFilter;
use super::state::HubState;
use super::window::Window;
use crate::observation::{Observation, StreamBody, StreamMessage, SubscriberMessage, Subscription};
use crate::wire::{MAX_MESSAGE_BYTES, facts_bytes, stream_message_to_proto, subscriber_message_from_proto, v1};

/// How long the first message may take.
const SUBSCRIBE_LIMIT: Duration = Duration::from_secs(10);
/// How long the status at the end may wait for room.
const LAST_WORD_LIMIT: Duration = Duration::from_millis(300);
/// What a message has besides its facts, at most: its numbers, and the headers of nested messages.
const MESSAGE_OVERHEAD_BYTES: usize = 64;
/// Room for facts in a message.
const FACTS_BYTES: usize = MAX_MESSAGE_BYTES - MESSAGE_OVERHEAD_BYTES;

/// What the stream to the subscriber takes.
pub type Outgoing = mpsc::Sender<Result<v1::ObserveResponse, Status>>;

/// How streams are served.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// The longest silence.
    pub heartbeat: Duration,
    /// The longest time without room in the window.
    pub acknowledge_timeout: Duration,
}

/// One stream.
pub struct Subscriber {
    state: Arc<HubState>,
    resets: Arc<Resets>,
    metrics: Arc<Metrics>,
    limits: StreamLimits,
    incoming: Streaming<v1::ObserveRequest>,
    outgoing: Outgoing,
    window: Window,
    filter: ScopeFilter,
    /// The contents that the subscriber waits for.
    wanted: Option<Parts>,
    /// The subscriber's position once it applied every message sent.
    position: u64,
    /// The last change that was looked at; those after the position were not asked for.
    looked_at: u64,
    heartbeat_at: Instant,
    /// On the list of streams.
    seat: Seat,
}

/// Observations of a reset on their way into a message.
#[derive(Debug, Default)]
struct ChunkBuilder {
    observations: Vec<Observation>,
    bytes: usize,
}

// === impl Subscriber ===

impl Subscriber {
    /// A stream that has not begun.
    pub fn new(
        state: Arc<HubState>,
        resets: Arc<Resets>,
        metrics: Arc<Metrics>,
        limits: StreamLimits,
        incoming: Streaming<v1::ObserveRequest>,
        outgoing: Outgoing,
    ) -> Subscriber {
        let seat = Roster::join(metrics.roster());
        Subscriber {
            seat,
            state,
            resets,
            metrics,
            limits,
            incoming,
            outgoing,
            window: Window::default(),
            filter: ScopeFilter::default(),
            wanted: None,
            position: 0,
            looked_at: 0,
            heartbeat_at: Instant::now() + limits.heartbeat,
        }
    }

    /// Serves the stream until it ends, `stop`, or `revoked`.
    pub async fn run(mut self, stop: CancellationToken, revoked: impl Future<Output = Status>) {
        self.metrics.subscriber_opened();
        let outgoing = self.outgoing.clone();
        let ended = tokio::select! {
            () = stop.cancelled() => Err(Status::unavailable("the hub is shutting down")),
            status = revoked => Err(status),
            () = outgoing.closed() => Ok(()),
            ended = self.serve() => ended,
        };
        self.metrics.subscriber_closed();
        if let Err(status) = ended {
            info!("stream ended: {} {}", status.code(), status.message());
            // A subscriber that does not read learns of the end from the connection's.
            let _ = timeout(LAST_WORD_LIMIT, outgoing.send(Err(status))).await;
        }
    }

    async fn serve(&mut self) -> Result<(), Status> {
        let subscription = self.subscription().await?;
        let mut sequence = self.state.watch();
        let mut told_anew = self.state.told_anew();
        self.filter = ScopeFilter::new(&subscription);
        self.begin(&subscription).await?;
        loop {
            self.send_changes().await?;
            // One part at a time: what changes meanwhile goes first.
            if self.send_part().await? {
                continue;
            }
            let next = tokio::select! {
                request = self.incoming.next() => self.heard(request).map(|more| more.then_some(())),
                changed = has_changed(&mut sequence, self.looked_at) => Ok(changed),
                () = sleep_until(self.heartbeat_at) => self.keep_alive().await.map(Some),
                Ok(()) = told_anew.changed() => Err(Status::out_of_range("the hub's clock was set: subscribe again")),
            };
            if next?.is_none() {
                return Ok(());
            }
        }
    }

    async fn subscription(&mut self) -> Result<Subscription, Status> {
        let first = timeout(SUBSCRIBE_LIMIT, self.incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no `subscribe` came"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the stream ended before `subscribe`"))?;
        match subscriber_message_from_proto(first) {
            Ok(SubscriberMessage::Subscribe(subscription)) => Ok(subscription),
            Ok(SubscriberMessage::Acknowledge(_)) => {
                Err(Status::invalid_argument("the first message is `acknowledge`, must be `subscribe`"))
            }
            Ok(SubscriberMessage::WantModel { .. }) => {
                Err(Status::invalid_argument("the first message is `want_model`, must be `subscribe`"))
            }
            Err(malformed) => Err(Status::invalid_argument(malformed.to_string())),
        }
    }

    /// Resumes where the subscriber stopped, if that is in this history and still in the ring; else resets.
    async fn begin(&mut self, subscription: &Subscription) -> Result<(), Status> {
        let position = subscription.sequence;
        // At 0 a reset may have been cut off, with replicas still to be told gone.
        // Before the clock was set, times were told that are others now.
        let is_told = position > 0 && position >= *self.state.told_anew().borrow();
        let resumes = subscription.epoch == self.state.epoch() && is_told && self.state.after(position, 0).is_ok();
        let Subscription { node_id, version, epoch, .. } = subscription;
        self.seat.named(node_id);
        info!(node_id, version, epoch, position, resumes, "subscribed");
        if resumes {
            self.metrics.resumed();
            // A later scope is told when its announcement passes.
            self.state.scopes().iter().for_each(|(slot, scope)| self.filter.learn(*slot, scope));
            (self.position, self.looked_at) = (position, position);
            return self.send(StreamBody::Resumed).await;
        }
        // A state without models that only were not read yet would have the subscriber drop those that it has.
        self.state.models_read().await;
        self.metrics.reset();
        let reset = self.resets.current(&self.state).await;
        let reset = reset.map_err(|error| Status::internal(error.to_string()))?;
        (self.position, self.looked_at) = (reset.sequence, reset.sequence);
        self.send_reset(&reset).await
    }

    async fn send_reset(&mut self, reset: &Reset) -> Result<(), Status> {
        self.send(StreamBody::Reset).await?;
        let mut chunk = ChunkBuilder::default();
        for observation in &reset.first {
            self.send_in_chunks(observation, &mut chunk).await?;
        }
        for replica in &reset.replicas {
            let observations = replica.observations().await.map_err(|error| Status::internal(error.to_string()))?;
            for observation in observations {
                self.send_in_chunks(observation, &mut chunk).await?;
            }
        }
        for observation in &reset.reported {
            self.send_in_chunks(observation, &mut chunk).await?;
        }
        if let Some(last) = chunk.take() {
            self.send(last).await?;
        }
        self.send(StreamBody::ResetComplete).await
    }

    /// Adds an observation to the chunk, which is sent first if it is full.
    async fn send_in_chunks(&mut self, observation: &Observation, chunk: &mut ChunkBuilder) -> Result<(), Status> {
        if !self.filter.admits(observation) {
            return Ok(());
        }
        let bytes = facts_bytes(observation);
        if chunk.bytes + bytes > FACTS_BYTES
            && let Some(full) = chunk.take()
        {
            self.send(full).await?;
            // Nothing could follow what has left the ring meanwhile: the copy of the state need not be kept for it.
            self.state.after(self.position, 0).map_err(|_| self.passed())?;
        }
        chunk.bytes += bytes;
        chunk.observations.push(observation.clone());
        Ok(())
    }

    /// Sends what has changed, in as few messages as possible.
    async fn send_changes(&mut self) -> Result<(), Status> {
        loop {
            let changes = self.state.after(self.looked_at, FACTS_BYTES).map_err(|_| self.passed())?;
            if changes.is_empty() {
                return Ok(());
            }
            let observations = self.admitted(&changes);
            if !observations.is_empty() {
                self.send_delta(observations).await?;
            }
        }
    }

    /// The subscriber is too slow.
    fn passed(&self) -> Status {
        self.metrics.subscriber_dropped();
        Status::out_of_range("the position has left the hub's buffer: subscribe again")
    }

    /// The changes that the subscriber asked for, as many as fit a message.
    fn admitted(&mut self, changes: &[Arc<Numbered>]) -> Vec<Observation> {
        let mut observations = Vec::new();
        let mut bytes = 0;
        for change in changes {
            if self.filter.admits(&change.observation) {
                bytes += change.bytes;
                if bytes > FACTS_BYTES && !observations.is_empty() {
                    break;
                }
                observations.push(change.observation.clone());
            }
            self.looked_at = change.sequence;
        }
        observations
    }

    /// Sends a delta from the position to the last change looked at.
    async fn send_delta(&mut self, observations: Vec<Observation>) -> Result<(), Status> {
        let first_sequence = self.position + 1;
        self.position = self.looked_at;
        self.send(StreamBody::Delta { first_sequence, observations }).await
    }

    /// Sends the next part of what the subscriber waits for, if there is room; whether there was one.
    async fn send_part(&mut self) -> Result<bool, Status> {
        let Some(part) = self.wanted.as_mut().and_then(|wanted| wanted.next(&self.window)) else { return Ok(false) };
        if self.wanted.as_ref().is_some_and(Parts::is_empty) {
            self.wanted = None;
        }
        self.send(StreamBody::ModelPart(part)).await.map(|()| true)
    }

    /// A sign of life. Where only changes passed that were not asked for, it moves the position past them.
    async fn keep_alive(&mut self) -> Result<(), Status> {
        if self.looked_at > self.position {
            return self.send_delta(Vec::new()).await;
        }
        self.send(StreamBody::Heartbeat).await
    }

    /// Sends one message, as soon as the window has room for it.
    async fn send(&mut self, mut body: StreamBody) -> Result<(), Status> {
        if let StreamBody::Chunk(observations) | StreamBody::Delta { observations, .. } = &mut body {
            observations.iter_mut().for_each(|observation| self.state.wall().tell(observation));
        }
        let sequence = match body {
            // A subscriber cut off here must not be resumed: it would miss the rest of the state.
            StreamBody::Reset | StreamBody::Chunk(_) => 0,
            _ => self.position,
        };
        let is_part = matches!(body, StreamBody::ModelPart(_));
        let message = StreamMessage { number: self.window.next_number(), epoch: self.state.epoch(), sequence, body };
        let message = stream_message_to_proto(&message);
        let bytes = message.encoded_len();
        let give_up_at = Instant::now() + self.limits.acknowledge_timeout;
        while !self.window.fits(bytes) {
            tokio::select! {
                request = self.incoming.next() => {
                    if !self.heard(request)? {
                        return Err(Status::cancelled("the subscriber ended the stream"));
                    }
                }
                () = sleep_until(give_up_at) => {
                    self.metrics.subscriber_dropped();
                    return Err(Status::deadline_exceeded("nothing was acknowledged for too long"));
                }
            }
        }
        self.window.sent(bytes);
        self.seat.moved(self.position, self.window.bytes());
        // Parts say nothing of what is known, so that signs of life come beside them as ever.
        if !is_part {
            self.heartbeat_at = Instant::now() + self.limits.heartbeat;
        }
        // There can be no room in the connection although everything was acknowledged: by one that does not read.
        let sent = timeout_at(give_up_at, self.outgoing.send(Ok(message))).await.map_err(|_| {
            self.metrics.subscriber_dropped();
            Status::deadline_exceeded("nothing was read for too long")
        })?;
        sent.map_err(|_| Status::cancelled("the subscriber is gone"))
    }

    /// Takes in what the subscriber said; false if it will say no more.
    fn heard(&mut self, request: Option<Result<v1::ObserveRequest, Status>>) -> Result<bool, Status> {
        let Some(request) = request else { return Ok(false) };
        match subscriber_message_from_proto(request?) {
            Ok(SubscriberMessage::Acknowledge(number)) => {
                let not_sent = |_| Status::invalid_argument(format!("acknowledge.number {number} was not sent"));
                self.window.acknowledged(number).map_err(not_sent)?;
                self.seat.moved(self.position, self.window.bytes());
                Ok(true)
            }
            Ok(SubscriberMessage::WantModel { digest, first_part }) => {
                let model = self.state.models().contents(digest);
                self.wanted = model.map(|model| Parts::new(model, first_part));
                Ok(true)
            }
            Ok(SubscriberMessage::Subscribe(_)) => Err(Status::invalid_argument("`subscribe` came twice")),
            Err(malformed) => Err(Status::invalid_argument(malformed.to_string())),
        }
    }
}

/// Waits until the hub's sequence is beyond `position`; `None` when the hub is gone.
async fn has_changed(sequence: &mut watch::Receiver<u64>, position: u64) -> Option<()> {
    sequence.wait_for(|sequence| *sequence > position).await.ok().map(|_| ())
}

// === impl ChunkBuilder ===

impl ChunkBuilder {
    /// What there is, if there is something; empty afterwards.
    fn take(&mut self) -> Option<StreamBody> {
        let ChunkBuilder { observations, .. } = std::mem::take(self);
        (!observations.is_empty()).then_some(StreamBody::Chunk(observations))
    }
}
