//! The leader's stream to the hub: opening, acknowledging, giving up, coming back.
//!
//! A stream is opened from a tick only. It is given up when the hub has been silent for too long or has broken the
//! contract; the next one is opened after a jittered, exponentially growing pause.
//!
//! Of several hubs, the first that can be heard is observed for as long as it is. One whose stream ends is asked once more
//! if that stream was a good one, since it may resume it; then, and at once after a silence, it is the next one's turn, and
//! after the last the first's. The pause grows once a round. Another hub has another epoch and so begins with a reset.

use std::num::NonZeroUsize;

use super::metrics;
use crate::config::{HubToken, Hubs};
use crate::host::{Host, Level, StreamToken};
use crate::observation::{SubscriberMessage, Subscription};
use crate::wire;

/// The first pause after a stream ended.
const FIRST_PAUSE_MS: u64 = 100;
/// The longest pause.
const LONGEST_PAUSE_MS: u64 = 3_000;
/// A stream that was heard for this long was a good one: the next pause is short again.
const GOOD_STREAM_MS: u64 = 5_000;

/// The stream to the hub.
#[derive(Debug)]
pub struct Observer {
    link: Link,
    /// Streams that ended without having been good, in a row.
    failures: u32,
    /// The place of the hub whose turn it is, as of the last tick among so many.
    turn: usize,
    hubs: NonZeroUsize,
    /// The hub that was last heard.
    heard_from: Option<usize>,
    /// The hubs of which it has been said that Envoy opens no stream to them.
    told: Vec<usize>,
}

#[derive(Debug)]
enum Link {
    Down {
        since_ms: u64,
        pause_ms: u64,
    },
    /// `answers`: something was heard over it.
    Up {
        token: StreamToken,
        opened_ms: u64,
        heard_ms: u64,
        acknowledged: u64,
        answers: bool,
    },
}

// === impl Observer ===

impl Observer {
    /// No stream yet; one is opened at the next tick.
    pub fn new() -> Observer {
        Observer {
            link: Link::Down { since_ms: 0, pause_ms: 0 },
            failures: 0,
            turn: 0,
            hubs: NonZeroUsize::MIN,
            heard_from: None,
            told: Vec::new(),
        }
    }

    /// The open stream.
    pub fn token(&self) -> Option<StreamToken> {
        match self.link {
            Link::Up { token, .. } => Some(token),
            Link::Down { .. } => None,
        }
    }

    /// Opens a stream if there is none and the pause is over. Gives one up that has been silent for `stale_after_ms`, or
    /// for half of that if there is another hub: that one is to be heard before what is known is stale.
    pub fn tick(
        &mut self,
        host: &impl Host,
        hubs: &Hubs,
        stale_after_ms: u64,
        subscription: impl FnOnce() -> Subscription,
    ) {
        self.hubs = NonZeroUsize::new(hubs.clusters.len()).unwrap_or(NonZeroUsize::MIN);
        let silence_ms = if self.hubs > NonZeroUsize::MIN { stale_after_ms / 2 } else { stale_after_ms };
        let now_ms = host.now_ms();
        match &mut self.link {
            Link::Up { token, heard_ms, .. } if now_ms.saturating_sub(*heard_ms) > silence_ms => {
                host.cancel(*token);
                self.pause(host, true);
            }
            // A clock that was set back must not stretch a silence or a pause.
            Link::Up { heard_ms, .. } => *heard_ms = now_ms.min(*heard_ms),
            Link::Down { since_ms, pause_ms }
                if now_ms.checked_sub(*since_ms).is_none_or(|waited| waited >= *pause_ms) =>
            {
                self.open(host, hubs, subscription());
            }
            _ => {}
        }
        let answers = matches!(self.link, Link::Up { answers: true, .. });
        host.gauge(metrics::STREAM_CONNECTED, u64::from(answers));
    }

    /// Notes that the hub was heard. False if `token` is not the open stream.
    pub fn heard(&mut self, host: &impl Host, token: StreamToken) -> bool {
        match &mut self.link {
            Link::Up { token: open, heard_ms, answers, .. } if *open == token => {
                *heard_ms = host.now_ms();
                *answers = true;
            }
            _ => return false,
        }
        if self.heard_from.replace(self.turn).is_some_and(|before| before != self.turn) {
            host.count(metrics::HUB_CHANGES, 1);
            host.log(Level::Warn, &format!("another hub is observed now: hub_clusters[{}]", self.turn));
        }
        true
    }

    /// Acknowledges all messages of `stream` up to `number`, if that is the open stream: each has numbers of its own.
    pub fn acknowledge(&mut self, host: &impl Host, stream: StreamToken, number: u64) {
        let Link::Up { token, acknowledged, .. } = &mut self.link else { return };
        if *token == stream && number > *acknowledged {
            *acknowledged = number;
            let message = wire::encode_subscriber_message(&SubscriberMessage::Acknowledge(number));
            // A send to a stream that is gone is followed by its close.
            host.send(*token, &message);
        }
    }

    /// Asks the hub for something over the open stream, if there is one.
    pub fn ask(&self, host: &impl Host, message: &SubscriberMessage) {
        if let Some(token) = self.token() {
            // As with an acknowledgement.
            host.send(token, &wire::encode_subscriber_message(message));
        }
    }

    /// The proxy closed `token`; of interest only if it is the open stream.
    pub fn closed(&mut self, host: &impl Host, token: StreamToken) {
        if self.token() == Some(token) {
            self.pause(host, false);
        }
    }

    /// Gives the stream up; another is opened after a pause.
    pub fn give_up(&mut self, host: &impl Host) {
        if let Some(token) = self.token() {
            host.cancel(token);
            self.pause(host, false);
        }
    }

    fn open(&mut self, host: &impl Host, hubs: &Hubs, subscription: Subscription) {
        let now_ms = host.now_ms();
        // There may be fewer hubs than before.
        self.turn %= self.hubs;
        let cluster = hubs.clusters.get(self.turn).map(String::as_str).unwrap_or_default();
        let authorization = hubs.token.as_ref().map(HubToken::authorization);
        let metadata: Vec<(&str, &str)> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        let Some(token) = host.open_stream(cluster, wire::SERVICE, wire::METHOD, &metadata) else {
            if !self.told.contains(&self.turn) {
                self.told.push(self.turn);
                let problem = "Envoy opens no stream to the hub: is hub_cluster";
                host.log(Level::Warn, &format!("{problem}, which is {cluster:?}, one of its clusters?"));
            }
            return self.pause(host, false);
        };
        host.count(metrics::STREAM_OPENED, 1);
        self.link = Link::Up { token, opened_ms: now_ms, heard_ms: now_ms, acknowledged: 0, answers: false };
        let subscribe = SubscriberMessage::Subscribe(subscription);
        if !host.send(token, &wire::encode_subscriber_message(&subscribe)) {
            self.give_up(host);
        }
    }

    fn pause(&mut self, host: &impl Host, was_silent: bool) {
        let now_ns = host.now_ns();
        let good = match self.link {
            Link::Up { opened_ms, heard_ms, .. } => heard_ms.saturating_sub(opened_ms) >= GOOD_STREAM_MS,
            Link::Down { .. } => false,
        };
        self.failures = if good { 0 } else { self.failures.saturating_add(1) };
        if was_silent || !good {
            self.turn = (self.turn + 1) % self.hubs;
        }
        let rounds = self.failures as usize / self.hubs;
        let pause_ms = (FIRST_PAUSE_MS << rounds.min(8)).min(LONGEST_PAUSE_MS);
        // From half to the whole pause. The clock's low digits differ enough between VMs that fail together.
        let jitter_ms = (now_ns / 1_000) % (pause_ms / 2 + 1);
        self.link = Link::Down { since_ms: now_ns / 1_000_000, pause_ms: pause_ms / 2 + jitter_ms };
    }
}

impl Default for Observer {
    fn default() -> Observer {
        Observer::new()
    }
}
