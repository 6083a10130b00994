//! What an operator does at the command line: check a configuration; with a model's directory, compile it, try it, compare it
//! with an engine; with a hub that runs, look into it.
//!
//! Exit codes: 0 if all is well, 1 if an engine or a hub could not be asked, or an engine disagrees, 2 for a bad command line
//! or a directory that is not used.

mod cases;
pub mod check_config;
mod engine;
mod inspect;
mod opened;
mod table;
mod tokenize;
mod verify;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use opened::Opened;

/// The exit code for what cannot be used.
const REFUSED: u8 = 2;

/// A day, in minutes: no clock is further from UTC.
const DAY_MINUTES: i64 = 1_440;

/// The tools.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Check a configuration, the certificates, tokens, CachePolicies and models that it names
    #[command(after_help = "Example:\n  \
        warmroute-hub check-config hub.yaml\n\n\
        Exit code 0 if all is well, 2 with a line for each thing that is wrong. `--config FILE --check` does the same.")]
    CheckConfig(check_config::CheckConfigArguments),
    /// Compile and verify a model's directory, and say what it is
    #[command(after_help = "Examples:\n  \
        warmroute-hub compile-tokenizer models/org/name\n  \
        warmroute-hub compile-tokenizer models/org/name -o name.package")]
    CompileTokenizer(CompileArguments),
    /// Turn a text or a conversation into token ids, as the filter does
    #[command(after_help = "Examples:\n  \
        warmroute-hub tokenize models/org/name --text 'Hello, world'\n  \
        echo -n 'Hello, world' | warmroute-hub tokenize models/org/name --json\n  \
        warmroute-hub tokenize models/org/name --chat request.json\n\n\
        A conversation is the body of a request, such as {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}.")]
    Tokenize(tokenize::TokenizeArguments),
    /// Compare token ids with those of an engine's /tokenize, over a set of texts and conversations
    #[command(after_help = "Example:\n  \
        warmroute-hub verify --engine http://10.0.0.7:8000 --model org/name models/org/name\n\n\
        Exit code 0 only if all agree.")]
    Verify(verify::VerifyArguments),
    /// Show what a hub that runs knows: replicas, blocks held, sequences, gaps, drops, lag, subscribers
    #[command(after_help = "Examples:\n  \
        warmroute-hub inspect\n  \
        warmroute-hub inspect --hub http://10.0.0.2:8081 --json\n  \
        warmroute-hub inspect --hub https://hub:8081 --ca ca.pem --token-file operators.tokens\n\n\
        Exit code 1 if there is no hub.")]
    Inspect(inspect::InspectArguments),
}

/// A model's directory, and how it is read.
#[derive(Args, Debug)]
pub struct ModelArguments {
    /// The model's directory, with tokenizer.json
    directory: PathBuf,
    /// Take the chat template also of a model that engines do not usually render with it
    #[arg(long)]
    force_chat_template: bool,
}

/// The arguments of `compile-tokenizer`.
#[derive(Args, Debug)]
pub struct CompileArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Where to write the package
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Why a tool ended without success.
#[derive(Debug)]
pub enum Failure {
    /// The directory, a file or an argument is not used.
    Refused(String),
    /// The engine disagrees, or could not be asked.
    Disagrees(String),
    /// The hub could not be asked.
    NoAnswer(String),
}

/// Runs a tool.
pub async fn run(tool: Tool) -> ExitCode {
    let mut out = io::stdout().lock();
    let ended = match tool {
        Tool::CheckConfig(arguments) => check_config::run(&arguments),
        Tool::CompileTokenizer(arguments) => compile(&arguments, &mut out),
        Tool::Tokenize(arguments) => tokenize::run(&arguments, &mut out),
        Tool::Verify(arguments) => verify::run(&arguments, &mut out).await,
        Tool::Inspect(arguments) => inspect::run(&arguments, &mut out).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure);
            match failure {
                Failure::Refused(_) => ExitCode::from(REFUSED),
                Failure::Disagrees(_) | Failure::NoAnswer(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Says a line on standard error. Where nobody listens any more, that is no failure.
pub fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn compile(arguments: &CompileArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let opened = Opened::open(&arguments.model)?;
    let model = &opened.model;
    let outline = &model.outline;
    let (version, parts) = (model.version, model.version.parts());
    let template = if model.has_chat_template { "yes" } else { "none" };
    writeln!(out, "kind           {}", outline.kind)?;
    writeln!(
        out,
        "vocabulary     {} tokens, {} merges, {} added tokens",
        outline.vocabulary, outline.merges, outline.added_tokens
    )?;
    writeln!(out, "chat template  {template}")?;
    writeln!(out, "package        {} bytes in {parts} parts", version.length)?;
    writeln!(out, "digest         {:032x}", version.digest.0)?;
    if let Some(path) = &arguments.output {
        let written = std::fs::write(path, &model.bytes);
        written.map_err(|error| Failure::Refused(format!("{} cannot be written: {error}", path.display())))?;
        writeln!(out, "written to     {}", path.display())?;
    }
    Ok(())
}

// === impl Failure ===

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Refused(format!("the output cannot be written: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(reason) | Failure::Disagrees(reason) | Failure::NoAnswer(reason) => f.write_str(reason),
        }
    }
}
