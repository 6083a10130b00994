//! What the bench is started with. The command line's flags are the fields' names.

use std::time::Duration;

/// Options of the bench.
#[derive(Clone, Debug, clap::Args)]
pub struct ScaleOptions {
    /// The parts to run; all without it.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub part: Vec<Part>,
    /// Replicas.
    #[arg(long, default_value_t = 64)]
    pub replicas: usize,
    /// Replicas that stay where most leave.
    #[arg(long, default_value_t = 8)]
    pub left: usize,
    /// (block, replica) pairs for `flow`, `killed` and `shrunk`, and the first row of `memory`.
    #[arg(long, default_value_t = 1_000_000)]
    pub pairs: usize,
    /// Pairs for `late`, and the second row of `memory`.
    #[arg(long, default_value_t = 4_000_000)]
    pub many_pairs: usize,
    /// Envoy's workers for `flow`, `killed` and `shrunk`.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Envoy's workers for `late` and `memory`, one stack after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4])]
    pub memory_workers: Vec<u32>,
    /// Seconds of each idle and each busy phase.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Idle and busy phases, in turn, so many pairs of them.
    #[arg(long, default_value_t = 2)]
    pub rounds: usize,
    /// Block changes a second in busy phases, half of them removals.
    #[arg(long, default_value_t = 50_000)]
    pub changes: usize,
    /// Requests a second.
    #[arg(long, default_value_t = 150.0)]
    pub rate: f64,
    /// Connections that send them.
    #[arg(long, default_value_t = 8)]
    pub connections: usize,
    /// Prompts that are compared with the hub's own lookups.
    #[arg(long, default_value_t = 3_000)]
    pub prompts: usize,
    /// Seconds that loading may take.
    #[arg(long, default_value_t = 300)]
    pub load_seconds: u64,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Requests beside a flow of changes.
    Flow,
    /// The hub killed during a reset.
    Killed,
    /// Most replicas leave.
    Shrunk,
    /// A VM that starts late.
    Late,
    /// Memory by pairs and workers.
    Memory,
}

// === impl ScaleOptions ===

impl ScaleOptions {
    /// Whether this part runs.
    pub fn has(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    /// How long a phase is.
    pub fn phase(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// How long loading may take.
    pub fn load_limit(&self) -> Duration {
        Duration::from_secs(self.load_seconds)
    }
}

impl std::fmt::Display for ScaleOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ScaleOptions { replicas, pairs, workers, seconds, rounds, changes, rate, connections, .. } = self;
        write!(
            f,
            "{replicas} replicas, {pairs} pairs, {workers} workers, {rounds} x (idle, busy) of {seconds} s with {changes} \
             changes a second, {rate} requests a second over {connections} connections"
        )
    }
}
