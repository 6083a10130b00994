//! Follows engines' KV events and publishes who holds which blocks. See `warmroute::native::hub`.
//!
//! Exit codes: 0 after SIGTERM or SIGINT, 1 if it could not start, 2 for a bad command line or configuration. Those of its
//! tools are in `warmroute::native::tools`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::native::tools::check_config::{check, read_config};
use warmroute::native::tools::{self, Tool, say};

/// The exit code for a configuration that is not valid.
const BAD_CONFIG: u8 = 2;

/// What is logged unless `RUST_LOG` says otherwise: the ZeroMQ library tells what the hub tells already.
const DEFAULT_LOG: &str = "info,zeromq=warn";

/// Follows engines' KV events and serves the Observe stream to filters.
#[derive(Parser)]
#[command(name = "warmroute-hub", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:\n  \
    warmroute-hub --config hub.yaml\n  \
    warmroute-hub --config hub.yaml --log-format json\n  \
    warmroute-hub check-config hub.yaml\n  \
    warmroute-hub compile-tokenizer models/org/name\n  \
    warmroute-hub tokenize models/org/name --text 'Hello, world'\n  \
    warmroute-hub verify --engine http://10.0.0.7:8000 --model org/name models/org/name\n  \
    warmroute-hub inspect --hub http://10.0.0.2:8081")]
struct Arguments {
    /// The configuration, YAML.
    #[arg(long, required = true)]
    config: Option<PathBuf>,
    /// As check-config: check the configuration and what it names, and exit.
    #[arg(long)]
    check: bool,
    /// What log lines look like: text, or a JSON object each.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    tool: Option<Tool>,
}

/// What log lines look like.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
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
    let format = arguments.log_format;
    if format == LogFormat::Json {
        begin_log(format);
    }
    let config = match read_config(&arguments.config.unwrap_or_default()) {
        Ok(config) => config,
        Err(problems) => return refuse(format, &problems),
    };
    if arguments.check {
        return match check(&config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problems) => refuse(format, &problems),
        };
    }
    if format == LogFormat::Text {
        begin_log(format);
    }
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            refuse(format, &[error.to_string()]);
            ExitCode::FAILURE
        }
    }
}

/// Says what keeps the hub from starting.
fn refuse(format: LogFormat, problems: &[String]) -> ExitCode {
    for problem in problems {
        match format {
            LogFormat::Text => say(problem),
            LogFormat::Json => error!("{problem}"),
        }
    }
    ExitCode::from(BAD_CONFIG)
}

/// Where nobody reads the log any more, the hub serves on.
fn begin_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
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
