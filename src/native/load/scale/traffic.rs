//! Requests at a steady rate over a few connections, each sent when the one before is answered.
//!
//! Four kinds take turns: token ids in the body, block hashes in the headers, the same body to a listener without the
//! filter, which shares Envoy's workers, and the same past Envoy, which shares only the machine. Prompts are spread over
//! all replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::ask::{Decision, by_hashes, replica_id};
use super::content::{BLOCK_TOKENS, Conversation, SYSTEM_BLOCKS};
use super::measure::Latencies;
use super::pool::Pool;
use crate::native::load::client::Client;
use crate::native::load::envoy_config::MODEL;

/// Tokens that every replica holds of every prompt.
const SHARED_TOKENS: usize = SYSTEM_BLOCKS * BLOCK_TOKENS;

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// The listener with the filter.
    pub filtered: String,
    /// The listener without it.
    pub plain: String,
    /// An engine.
    pub direct: String,
    /// Connections.
    pub connections: usize,
    /// Requests a second, over all connections.
    pub per_second: f64,
}

/// What came of a while of requests.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests sent.
    pub sent: usize,
    /// Answered with 200.
    pub answered: usize,
    /// Hinted to the replica that holds the conversation.
    pub hinted: usize,
    /// Hinted to a replica with tokens that no engine said it holds.
    pub wrong: usize,
    /// Of requests with token ids in the body.
    pub body: Latencies,
    /// Of requests with hashes in their headers.
    pub hashes: Latencies,
    /// Of requests past the filter.
    pub plain: Latencies,
    /// Of requests past Envoy.
    pub direct: Latencies,
    /// The first failure.
    pub failure: Option<String>,
}

/// Requests under way, until they are stopped.
pub struct Traffic {
    stop: CancellationToken,
    tasks: JoinSet<Outcome>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Body,
    Hashes,
    Plain,
    Direct,
}

// === impl Traffic ===

impl Traffic {
    /// Begins.
    pub fn start(target: &Target, pool: &Arc<Pool>) -> Traffic {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let numbers = Arc::new(AtomicU64::new(0));
        for _ in 0..target.connections {
            tasks.spawn(ask_steadily(target.clone(), Arc::clone(pool), Arc::clone(&numbers), stop.clone()));
        }
        Traffic { stop, tasks }
    }

    /// Ends, once what is under way is answered.
    pub async fn stop(self) -> Outcome {
        self.stop.cancel();
        let outcomes = self.tasks.join_all().await;
        outcomes.into_iter().reduce(Outcome::and).unwrap_or_default()
    }

    /// Goes on for `during`, then ends.
    pub async fn stop_after(self, during: Duration) -> Outcome {
        tokio::time::sleep(during).await;
        self.stop().await
    }
}

async fn ask_steadily(target: Target, pool: Arc<Pool>, numbers: Arc<AtomicU64>, stop: CancellationToken) -> Outcome {
    let client = Client::default();
    let mut outcome = Outcome::default();
    let mut turns = interval(Duration::from_secs_f64(target.connections as f64 / target.per_second.max(0.1)));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        tokio::select! {
            _ = turns.tick() => {}
            () = stop.cancelled() => break,
        }
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let Some(conversation) = pool.some_held(number) else { continue };
        let kind = match number % 4 {
            0 => Kind::Body,
            1 => Kind::Hashes,
            2 => Kind::Plain,
            _ => Kind::Direct,
        };
        ask(&client, &target, kind, &conversation, &mut outcome).await;
    }
    outcome
}

async fn ask(client: &Client, target: &Target, kind: Kind, conversation: &Conversation, outcome: &mut Outcome) {
    let (head, body) =
        if kind == Kind::Hashes { (by_hashes(conversation), Bytes::new()) } else { by_ids(conversation) };
    let base = match kind {
        Kind::Body | Kind::Hashes => &target.filtered,
        Kind::Plain => &target.plain,
        Kind::Direct => &target.direct,
    };
    let url = format!("{base}/v1/completions");
    outcome.sent += 1;
    let start = Instant::now();
    let answer = client.request(&url, head, body).await;
    let took = start.elapsed();
    match answer {
        Ok(answer) if answer.status == StatusCode::OK => {
            outcome.answered += 1;
            match kind {
                Kind::Body => outcome.body.add(took),
                Kind::Hashes => outcome.hashes.add(took),
                Kind::Plain => return outcome.plain.add(took),
                Kind::Direct => return outcome.direct.add(took),
            }
            outcome.judge(&Decision::of(&answer), conversation);
        }
        Ok(answer) => drop(outcome.failure.get_or_insert_with(|| format!("status {}", answer.status))),
        Err(failed) => drop(outcome.failure.get_or_insert_with(|| failed.to_string())),
    }
}

fn by_ids(conversation: &Conversation) -> (hyper::http::request::Builder, Bytes) {
    let body = json!({ "model": MODEL, "prompt": conversation.token_ids(), "max_tokens": 1 }).to_string();
    let head = Request::builder().method(Method::POST).header(CONTENT_TYPE, "application/json");
    (head, Bytes::from(body))
}

// === impl Outcome ===

impl Outcome {
    /// Both.
    pub fn and(mut self, other: Outcome) -> Outcome {
        self.sent += other.sent;
        self.answered += other.answered;
        self.hinted += other.hinted;
        self.wrong += other.wrong;
        self.body.extend(other.body);
        self.hashes.extend(other.hashes);
        self.plain.extend(other.plain);
        self.direct.extend(other.direct);
        self.failure = self.failure.or(other.failure);
        self
    }

    /// Of all requests through the filter.
    pub fn filtered(&self) -> Latencies {
        let mut all = self.body.clone();
        all.extend(self.hashes.clone());
        all
    }

    /// A prompt's own part is on one replica only, and is never longer than it is.
    fn judge(&mut self, decision: &Decision, conversation: &Conversation) {
        if decision.matched_tokens <= SHARED_TOKENS {
            return;
        }
        let home = decision.replica == replica_id(conversation.replica);
        if home && decision.matched_tokens <= conversation.tokens() {
            self.hinted += 1;
        } else {
            self.wrong += 1;
        }
    }
}
