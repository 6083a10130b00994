//! A vLLM replica as far as routing can see: runs one fake engine until SIGTERM or SIGINT.

use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use warmroute::native::fake::{Engine, EngineOptions};

/// A fake vLLM engine: a real block cache with KV events over ZeroMQ, and an OpenAI completions API without a model.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: EngineOptions,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,zeromq=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match run(arguments.options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: EngineOptions) -> Result<(), Box<dyn std::error::Error>> {
    // Before the start, so that a signal right after it is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let engine = Engine::start(options).await?;
    if let Some(endpoint) = engine.kv_events() {
        tracing::info!("KV events at {endpoint}, replay at {}", engine.kv_replay().unwrap_or("no endpoint"));
    }
    tracing::info!("listening on {}", engine.address());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    engine.shutdown().await;
    Ok(())
}
