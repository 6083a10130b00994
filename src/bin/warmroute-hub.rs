//! Follows engines' KV events and publishes who holds which blocks. See `warmroute::native::hub`.
//!
//! Exit codes: 0 after SIGTERM or SIGINT, 1 if it could not start, 2 for a bad command line or configuration. Those of its
//! tools are in `warmroute::native::tools`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;
use warmroute::native::hub::models::ModelsDirectory;
use warmroute::native::hub::policies::PolicyDirectory;
use warmroute::native::hub::{Hub, HubConfig, discovery_problems};
use warmroute::native::tools::{self, Tool, say};

/// The exit code for a configuration that is not valid.
const BAD_CONFIG: u8 = 2;

/// What is logged unless `RUST_LOG` says otherwise: the ZeroMQ library tells what the hub tells already.
const DEFAULT_LOG: &str = "info,zeromq=warn";

/// Follows engines' KV events and serves the Observe stream to filters.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    warmroute-hub --config hub.yaml\n  \
    warmroute-hub --config hub.yaml --check\n  \
    warmroute-hub compile-tokenizer models/org/name\n  \
    warmroute-hub tokenize models/org/name --text 'Hello, world'\n  \
    warmroute-hub verify --engine http://10.0.0.7:8000 --model org/name models/org/name\n  \
    warmroute-hub inspect --hub http://10.0.0.2:8081")]
struct Arguments {
    /// The configuration, YAML.
    #[arg(long, required = true)]
    config: Option<PathBuf>,
    /// Check the configuration, files of replicas, the CachePolicies and the models' directories, and exit.
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    tool: Option<Tool>,
}

fn main() -> ExitCode {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(error);
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(told());
    // A tokenizer that is being compiled does not hold up the end.
    runtime.shutdown_background();
    code
}

/// Does what the command line says.
async fn told() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(tool) = arguments.tool {
        return tools::run(tool).await;
    }
    let path = arguments.config.unwrap_or_default();
    let config = match read_config(&path) {
        Ok(config) => config,
        Err(problems) => {
            for problem in problems {
                say(format_args!("{}: {problem}", path.display()));
            }
            return ExitCode::from(BAD_CONFIG);
        }
    };
    if arguments.check {
        return check(&config);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let colours = std::io::stderr().is_terminal();
    // Where nobody reads the log any more, the hub serves on.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).log_internal_errors(false);
    log.with_writer(std::io::stderr).init();
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn read_config(path: &Path) -> Result<HubConfig, Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![format!("cannot be read: {error}")])?;
    HubConfig::from_yaml(&text).map_err(|invalid| invalid.problems)
}

/// Says what is wrong with the files of replicas, the CachePolicies and the models' directories, and what is not used, which
/// is not wrong.
fn check(config: &HubConfig) -> ExitCode {
    let (mut problems, mut notes) = (discovery_problems(&config.discovery), Vec::new());
    if let Some(policies) = &config.policies {
        let reading = PolicyDirectory::new(&policies.directory).read();
        problems.extend(reading.problems);
        notes.extend(reading.unused);
    }
    if let Some(tokenizers) = &config.tokenizers {
        let reading = ModelsDirectory::new(tokenizers.clone()).read();
        problems.extend(reading.problems);
        notes.extend(reading.notes);
    }
    for line in problems.iter().chain(&notes) {
        say(line);
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIG) }
}

async fn run(config: HubConfig) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hub = Hub::start(config).await?;
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM"),
        _ = interrupt.recv() => info!("SIGINT"),
    }
    hub.shutdown().await;
    Ok(())
}
