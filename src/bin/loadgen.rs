//! `loadgen demo`: a workload on a local stack, routed in two ways, side by side.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use warmroute::native::load::demo;

/// Load on a local stack of Envoy, hub and fake engines.
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
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Demo { keep } = Arguments::parse().command;
    // A signal ends the demo from within, so that the stack's processes and files go with it.
    let result = tokio::select! {
        result = demo::run(keep) => result,
        _ = tokio::signal::ctrl_c() => return if keep { ExitCode::SUCCESS } else { ExitCode::from(130) },
        () = terminated() => return ExitCode::from(143),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for SIGTERM; for ever where it cannot be waited for.
async fn terminated() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => drop(terminate.recv().await),
        Err(_) => std::future::pending().await,
    }
}
