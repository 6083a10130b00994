//! Follows engines' KV events and publishes who holds which blocks. See `warmroute::native::hub`.
//!
//! Exit codes: 0 after SIGTERM or SIGINT, 1 if it could not start, 2 for a bad command line or configuration.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;
use warmroute::native::hub::policies::PolicyDirectory;
use warmroute::native::hub::{Hub, HubConfig};

/// The exit code for a configuration that is not valid.
const BAD_CONFIG: u8 = 2;

/// What is logged unless `RUST_LOG` says otherwise: the ZeroMQ library tells what the hub tells already.
const DEFAULT_LOG: &str = "info,zeromq=warn";

/// Follows engines' KV events and serves the Observe stream to filters.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration, YAML.
    #[arg(long)]
    config: PathBuf,
    /// Check the configuration and the CachePolicies, and exit.
    #[arg(long)]
    check: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match read_config(&arguments.config) {
        Ok(config) => config,
        Err(problems) => {
            for problem in problems {
                eprintln!("{}: {problem}", arguments.config.display());
            }
            return ExitCode::from(BAD_CONFIG);
        }
    };
    if arguments.check {
        return check_policies(&config);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn read_config(path: &Path) -> Result<HubConfig, Vec<String>> {
    let text = std::fs::read_to_string(path).map_err(|error| vec![format!("cannot be read: {error}")])?;
    HubConfig::from_yaml(&text).map_err(|invalid| invalid.problems)
}

/// Says what is wrong with the CachePolicies, and which of them are not used, which is not wrong.
fn check_policies(config: &HubConfig) -> ExitCode {
    let Some(policies) = &config.policies else { return ExitCode::SUCCESS };
    let reading = PolicyDirectory::new(&policies.directory).read();
    for line in reading.problems.iter().chain(&reading.unused) {
        eprintln!("{line}");
    }
    if reading.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BAD_CONFIG) }
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
