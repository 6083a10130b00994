//! The hub's side of the Observe stream: changes, numbered, to whoever subscribes.
//!
//! Every change is kept, so that a subscriber that names a position of this lifetime goes on from there. Any other gets a
//! reset, in pieces of a few observations.

use std::collections::BTreeMap;

use prost::Message;
use warmroute::host::StreamToken;
use warmroute::observation::{Observation, StreamBody, StreamMessage, SubscriberMessage};
use warmroute::wire;

use super::proxy::Proxy;

/// Observations in one piece of a reset.
const PIECE: usize = 3;

/// What is published.
#[derive(Debug)]
pub struct Observed {
    epoch: u64,
    /// The changes so far; a change's sequence is its place, from 1.
    changes: Vec<Observation>,
    links: BTreeMap<u32, Link>,
}

/// A subscriber's stream.
#[derive(Debug, Default)]
struct Link {
    /// Messages sent and acknowledged.
    sent: u64,
    acknowledged: u64,
}

// === impl Observed ===

impl Observed {
    /// Nothing yet, in the first lifetime.
    pub fn new() -> Observed {
        Observed { epoch: 1, changes: Vec::new(), links: BTreeMap::new() }
    }

    /// A new lifetime: subscribers lose their streams, and no position of before means anything.
    pub fn restart(&mut self) -> Vec<StreamToken> {
        self.epoch += 1;
        self.changes.clear();
        std::mem::take(&mut self.links).into_keys().map(StreamToken).collect()
    }

    /// Changes, in one message.
    pub fn publish(&mut self, proxy: &Proxy, observations: Vec<Observation>) {
        let first_sequence = self.sequence() + 1;
        self.changes.extend(observations.iter().cloned());
        let body = StreamBody::Delta { first_sequence, observations };
        self.send_to_all(proxy, &body);
    }

    /// A sign of life.
    pub fn heartbeat(&mut self, proxy: &Proxy) {
        self.send_to_all(proxy, &StreamBody::Heartbeat);
    }

    /// Hears what subscribers have sent; `state` rebuilds all there is.
    pub fn serve(&mut self, proxy: &Proxy, state: &dyn Fn() -> Vec<Observation>) {
        for (token, message) in proxy.take_sent() {
            match message {
                SubscriberMessage::Acknowledge(number) => {
                    self.links.entry(token.0).or_default().acknowledged = number;
                }
                // No models are announced here.
                SubscriberMessage::WantModel { .. } => {}
                SubscriberMessage::Subscribe(subscription) => {
                    self.links.insert(token.0, Link::default());
                    if (subscription.epoch, true) == (self.epoch, subscription.sequence <= self.sequence()) {
                        self.resume(proxy, token, subscription.sequence);
                    } else {
                        self.reset(proxy, token, &state());
                    }
                }
            }
        }
        let open = proxy.streams();
        self.links.retain(|token, _| open.contains(&StreamToken(*token)));
    }

    /// Whether one of those that `wanted` accepts listens, and all of them have committed all that was said.
    pub fn is_heard(&self, wanted: impl Fn(StreamToken) -> bool) -> bool {
        let mut wanted = self.links.iter().filter(|(token, _)| wanted(StreamToken(**token))).peekable();
        wanted.peek().is_some() && wanted.all(|(_, link)| link.acknowledged == link.sent)
    }

    fn sequence(&self) -> u64 {
        self.changes.len() as u64
    }

    fn resume(&mut self, proxy: &Proxy, token: StreamToken, sequence: u64) {
        self.send(proxy, token, sequence, StreamBody::Resumed);
        let missed: Vec<Observation> = self.changes.iter().skip(sequence as usize).cloned().collect();
        if !missed.is_empty() {
            let body = StreamBody::Delta { first_sequence: sequence + 1, observations: missed };
            self.send(proxy, token, self.sequence(), body);
        }
    }

    fn reset(&mut self, proxy: &Proxy, token: StreamToken, state: &[Observation]) {
        let sequence = self.sequence();
        self.send(proxy, token, sequence, StreamBody::Reset);
        for piece in state.chunks(PIECE) {
            self.send(proxy, token, sequence, StreamBody::Chunk(piece.to_vec()));
        }
        self.send(proxy, token, sequence, StreamBody::ResetComplete);
    }

    fn send_to_all(&mut self, proxy: &Proxy, body: &StreamBody) {
        let sequence = self.sequence();
        let tokens: Vec<u32> = self.links.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.send(proxy, StreamToken(token), sequence, body.clone()));
    }

    fn send(&mut self, proxy: &Proxy, token: StreamToken, sequence: u64, body: StreamBody) {
        let link = self.links.entry(token.0).or_default();
        let message = StreamMessage { number: link.sent + 1, epoch: self.epoch, sequence, body };
        if proxy.reply(token, wire::stream_message_to_proto(&message).encode_to_vec()) {
            link.sent += 1;
        } else {
            self.links.remove(&token.0);
        }
    }
}
