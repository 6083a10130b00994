//! The demo's chats against an Envoy that runs already, a line a request.
//!
//! Each round plays the workload once, with conversations of its own on the same system prompts. A request that fails ends
//! its lane's round, is said and counted, and the next round goes on. What the chats took can be read as metrics.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;

use super::chat_metrics::{ChatMetrics, serve};
use super::client::Client;
use super::demo::{Destination, MODEL, play_lane};
use super::report::{LINE_HEAD, Pass, Served};
use super::workload::Workload;

/// What to play, and where.
#[derive(Clone, Debug, clap::Args)]
pub struct ChatsOptions {
    /// Envoy's URL, without a path.
    #[arg(long, default_value = "http://127.0.0.1:10000")]
    pub envoy: String,
    /// The model to ask for.
    #[arg(long, default_value = MODEL)]
    pub model: String,
    /// Rounds of 68 requests; without it until a signal.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// The pause between two rounds, in milliseconds.
    #[arg(long, default_value = "1000")]
    pub pause_ms: u64,
    /// Where to serve /metrics (ip:port); not served without it.
    #[arg(long)]
    pub metrics: Option<SocketAddr>,
}

/// Chats that did not come to their end.
#[derive(Debug)]
pub enum ChatsError {
    /// The metrics cannot be served.
    Metrics(std::io::Error),
    /// So many requests failed.
    Failed(usize),
}

/// Plays the rounds.
///
/// # Errors
/// When the metrics cannot be served, or, at the end of the rounds, if a request of theirs failed.
pub async fn run(options: &ChatsOptions) -> Result<(), ChatsError> {
    let metrics = Arc::new(ChatMetrics::default());
    tokio::select! {
        served = serve_metrics(options.metrics, Arc::clone(&metrics)) => match served {
            Ok(never) => match never {},
            Err(error) => Err(ChatsError::Metrics(error)),
        },
        result = play(options, &metrics) => result,
    }
}

/// Without an address, for ever and nothing.
async fn serve_metrics(address: Option<SocketAddr>, metrics: Arc<ChatMetrics>) -> std::io::Result<Infallible> {
    if let Some(address) = address {
        serve(address, metrics).await?;
    }
    std::future::pending().await
}

async fn play(options: &ChatsOptions, metrics: &ChatMetrics) -> Result<(), ChatsError> {
    let client = Client::default();
    let to = Destination { client: &client, base: options.envoy.trim_end_matches('/'), model: &options.model };
    println!("chats of model {} at {}\n{LINE_HEAD}", to.model, to.base);
    let mut failed = 0;
    for round in 0..options.rounds.unwrap_or(usize::MAX) {
        if round > 0 {
            tokio::time::sleep(Duration::from_millis(options.pause_ms)).await;
        }
        failed += play_round(to, round, metrics).await;
    }
    if failed == 0 { Ok(()) } else { Err(ChatsError::Failed(failed)) }
}

/// Plays one round, and says how it went; how many requests failed.
async fn play_round(to: Destination<'_>, round: usize, metrics: &ChatMetrics) -> usize {
    let pass = Mutex::new(Pass::default());
    let keep = |served: Served| {
        println!("{served}");
        metrics.served(&served);
        pass.lock().unwrap_or_else(PoisonError::into_inner).0.push(served);
    };
    let workload = Workload::of_round(round);
    let lanes = workload.lanes.into_iter().map(|lane| play_lane(to, lane, &keep));
    let failures = join_all(lanes).await.into_iter().filter_map(Result::err);
    let failed = failures.inspect(|error| eprintln!("loadgen: {error}")).inspect(|_| metrics.failed()).count();
    let pass = pass.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{}", summary(round, &pass, failed));
    failed
}

fn summary(round: usize, pass: &Pass, failed: usize) -> String {
    let milliseconds = |percent| pass.time_to_first_token(percent).as_millis();
    let reasons = pass.count(|served| &served.reason_code);
    let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    format!(
        "round {}: {} answered, {failed} failed, {:.1} % of prompt tokens from cache, time to first token p50 {} ms, p90 {} \
         ms; {}",
        round.saturating_add(1),
        pass.0.len(),
        pass.cached_percent(),
        milliseconds(50),
        milliseconds(90),
        reasons.join(", "),
    )
}

// === impl ChatsError ===

impl std::fmt::Display for ChatsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChatsError::Metrics(error) => write!(f, "the metrics cannot be served: {error}"),
            ChatsError::Failed(requests) => write!(f, "{requests} requests failed"),
        }
    }
}

impl std::error::Error for ChatsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_fail_are_counted_and_end_in_an_error() {
        // A port that nothing listens on any more.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let options = ChatsOptions {
            envoy: format!("http://{address}/"),
            model: MODEL.into(),
            rounds: Some(2),
            pause_ms: 0,
            metrics: None,
        };
        let error = run(&options).await.unwrap_err();
        // Each of the four lanes ends with its first request, in both rounds.
        assert_eq!(error.to_string(), "8 requests failed");
    }
}
