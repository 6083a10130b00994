//! The bench on a real Envoy at production size: 64 replicas, up to 4 M (block, replica) pairs.
//!
//! Five parts, each on a stack of its own or after another one, each with a table and a verdict:
//!
//! | Part | What is shown |
//! |---|---|
//! | `flow` | requests while tens of thousands of blocks change a second, beside those on an idle index |
//! | `killed` | the hub killed in the middle of a reset: no request fails, and nothing is credited wrongly afterwards |
//! | `shrunk` | most replicas leave: the index gives back what they held, and takes in as much again |
//! | `late` | a VM that starts at full size: how long until it answers from the whole index |
//! | `memory` | what Envoy takes, by pairs and workers |
//!
//! Clients, replicas and hub [give way](yield_to_envoy) to Envoy: they stand in for other machines, and where they take the
//! cores that Envoy wants, waiting for those is measured and not what Envoy does.
//!
//! The replicas are this process's [pool], over ZeroMQ; the rest is the stack that operators run. A part that does not
//! come to its end is an error; a figure that misses its limit is a verdict, and the bench goes on.

pub mod ask;
pub mod content;
pub mod holder;
pub mod measure;
pub mod options;
pub mod pool;
pub mod site;
pub mod traffic;

mod flow;
pub mod killed;
mod late;
mod machine;
mod seen;
mod shrunk;
mod verdict;

pub use options::{Part, ScaleOptions};
use site::{Site, SiteOptions};
use verdict::Verdicts;

use super::child::YIELDING;
use super::client::RequestFailed;
use super::stack::StackError;

/// Room in the index beyond what is loaded, as a share.
const HEADROOM: f64 = 1.25;

/// A part of the bench that did not come to its end.
#[derive(Debug)]
pub enum ScaleError {
    /// The stack did not start, or a program of it cannot be handled.
    Stack(StackError),
    /// A request got no response.
    Request(RequestFailed),
    /// Something else; says what.
    Failed(String),
}

/// Makes the thread that calls give way to Envoy, if it may.
pub fn yield_to_envoy() {
    // Without it the figures are worse.
    let _ = rustix::process::nice(YIELDING);
}

/// Runs the bench and prints its report; whether every figure was met.
///
/// # Errors
/// When a part does not come to its end.
pub async fn run(options: &ScaleOptions) -> Result<bool, ScaleError> {
    let mut verdicts = Verdicts::default();
    println!("{}", machine::describe());
    println!("options: {options}\n");
    if options.has(Part::Flow) || options.has(Part::Killed) || options.has(Part::Shrunk) {
        let mut site = site(options, options.workers, options.pairs).await?;
        load(&site, options, options.pairs).await?;
        if options.has(Part::Flow) {
            flow::run(&site, options, &mut verdicts).await?;
        }
        if options.has(Part::Killed) {
            killed::run(&mut site, options, &mut verdicts).await?;
        }
        if options.has(Part::Shrunk) {
            shrunk::run(&site, options, &mut verdicts).await?;
        }
    }
    if options.has(Part::Late) || options.has(Part::Memory) {
        late::run(options, &mut verdicts).await?;
    }
    println!("{verdicts}");
    Ok(verdicts.are_met())
}

async fn site(options: &ScaleOptions, workers: u32, pairs: usize) -> Result<Site, ScaleError> {
    let max_index_entries = (pairs as f64 * HEADROOM) as usize;
    Site::start(&SiteOptions { replicas: options.replicas, workers, max_index_entries }).await
}

/// Fills the pool up to `pairs` and waits until everybody knows.
async fn load(site: &Site, options: &ScaleOptions, pairs: usize) -> Result<(), ScaleError> {
    let before = site.pool.blocks();
    let start = std::time::Instant::now();
    let replicas = site.pool.len();
    site.pool.fill(0..replicas, pairs.div_ceil(replicas.max(1))).await?;
    let hub = site.hub_knows(options.load_limit()).await?;
    site.all_known(options.load_limit()).await?;
    let (blocks, took) = (site.pool.blocks(), start.elapsed().as_secs_f64());
    println!(
        "loaded: {blocks} blocks on {replicas} replicas, {:.0} a second until all is in the index ({took:.1} s; the hub {:.1} s)",
        (blocks - before) as f64 / took,
        hub.as_secs_f64(),
    );
    Ok(())
}

// === impl ScaleError ===

impl ScaleError {
    /// What went wrong.
    pub fn new(problem: impl std::fmt::Display) -> ScaleError {
        ScaleError::Failed(problem.to_string())
    }
}

impl std::fmt::Display for ScaleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ScaleError::Stack(error) => error.fmt(f),
            ScaleError::Request(error) => error.fmt(f),
            ScaleError::Failed(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for ScaleError {}

impl From<StackError> for ScaleError {
    fn from(error: StackError) -> ScaleError {
        ScaleError::Stack(error)
    }
}

impl From<RequestFailed> for ScaleError {
    fn from(error: RequestFailed) -> ScaleError {
        ScaleError::Request(error)
    }
}

impl From<std::io::Error> for ScaleError {
    fn from(error: std::io::Error) -> ScaleError {
        ScaleError::Stack(StackError::Io(error))
    }
}
