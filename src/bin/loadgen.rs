//! `loadgen demo`: a workload on a local stack, routed in two ways, side by side. `loadgen scale`: a pool of 64 replicas on
//! a local stack, under load. `loadgen chats`: the demo's chats at an Envoy that runs already. `loadgen probe`: a health check
//! where there is no shell.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use warmroute::native::load::chats::ChatsOptions;
use warmroute::native::load::client::Client;
use warmroute::native::load::scale::ScaleOptions;
use warmroute::native::load::{chats, demo, scale};

/// Load on Envoy, hub and fake engines.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play one workload with round robin, then with the filter, and compare.
    Demo {
        /// Leave the stack up until Ctrl-C, and print what to try.
        #[arg(long)]
        keep: bool,
    },
    /// Measure Envoy with the filter at the size of a large pool, and say what holds.
    Scale(ScaleOptions),
    /// Play the demo's chats at an Envoy that runs already, and print a line a request.
    Chats(ChatsOptions),
    /// Fetch a URL once, and succeed if its status is 200 to 299.
    Probe {
        /// The URL, plain HTTP.
        url: String,
    },
}

/// Why a command did not succeed.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let mut runtime = Builder::new_multi_thread();
    if matches!(command, Command::Scale(_)) {
        // Only this thread starts programs, so Envoy is not among what yields.
        runtime.on_thread_start(scale::yield_to_envoy);
    }
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(follow(command)),
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn follow(command: Command) -> ExitCode {
    let chats = matches!(command, Command::Chats(_));
    let keep = chats || matches!(command, Command::Demo { keep: true });
    // A signal ends the run from within, so that the stack's processes and files go with it.
    let result = tokio::select! {
        result = run(command) => result,
        _ = tokio::signal::ctrl_c() => return if keep { ExitCode::SUCCESS } else { ExitCode::from(130) },
        () = terminated() => return if chats { ExitCode::SUCCESS } else { ExitCode::from(143) },
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo { keep } => demo::run(keep).await?,
        Command::Scale(options) => {
            if !scale::run(&options).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Chats(options) => chats::run(&options).await?,
        Command::Probe { url } => {
            let status = Client::default().get(&url).await?.status;
            if !status.is_success() {
                return Err(format!("{url}: status {status}").into());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for SIGTERM; for ever where it cannot be waited for.
async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_) => std::future::pending().await,
    }
}
