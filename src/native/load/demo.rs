//! The demo: one workload, played with plain round robin and then with the filter, on one local stack.
//!
//! It is text, as chat messages and as it stands, which the engines and the filter tokenize with the small model in
//! `demo/models`. Both passes start alike: every engine's cache is emptied and then filled with the shared system prompts, as
//! after a while of running, so a system prompt alone speaks for no engine. A line is printed for every request and one table
//! at the end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use hyper::StatusCode;

use super::client::{Client, Completion, Prompt, RequestFailed};
use super::programs::{MissingProgram, Programs};
use super::report::{LINE_HEAD, Pass, Served, Table};
use super::stack::{EngineOptions, ServedModel, Stack, StackError, StackOptions, eventually};
use super::workload::{Lane, Step, Workload};

/// The model that the engines serve, byte-level BPE with a template of turns and tools.
pub(super) const MODEL: &str = "demo-bytes";
/// Tokens generated in each turn.
const MAX_TOKENS: u32 = 48;
/// How long an engine may refuse to empty its cache.
const EMPTIED_WITHIN: Duration = Duration::from_secs(2);
/// How long the filter may take to learn what the engines hold.
const LEARNT_WITHIN: Duration = Duration::from_secs(15);

/// A demo that did not come to its end.
#[derive(Debug)]
pub enum DemoError {
    /// The stack did not start.
    Stack(StackError),
    /// A request got no response.
    Request(RequestFailed),
    /// A request got another status than 200.
    Refused {
        /// The request.
        name: String,
        /// The status.
        status: StatusCode,
    },
    /// The filter does not see the system prompts on every engine.
    NotLearnt {
        /// Its last answer.
        answer: String,
        /// What Envoy wrote last.
        log_tail: String,
    },
    /// No request got a hint.
    NoHints,
}

/// Plays the demo; with `keep`, leaves the stack up until the caller drops this future.
///
/// # Errors
/// When the stack does not start, a request fails, or no request gets a hint.
pub async fn run(keep: bool) -> Result<(), DemoError> {
    let stack = Stack::start(options()?).await?;
    let workload = Workload::default();
    println!("{} requests twice, on Envoy, a hub and {} engines\n", workload.requests(), stack.engines.len());

    println!("round robin: {}\n{LINE_HEAD}", stack.plain_url());
    fill_caches(&stack, &workload).await?;
    let round_robin = play(&stack.client, &stack.plain_url(), &workload).await?;

    println!("\nwarmroute: {}\n{LINE_HEAD}", stack.envoy_url());
    fill_caches(&stack, &workload).await?;
    wait_until_learnt(&stack, &workload).await?;
    let warmroute = play(&stack.client, &stack.envoy_url(), &workload).await?;

    println!("\n{}", Table { round_robin: &round_robin, warmroute: &warmroute });
    if !warmroute.0.iter().any(|served| served.reason_code == "PREFIX_MATCH") {
        return Err(DemoError::NoHints);
    }
    if keep {
        print_what_to_try(&stack);
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Caches too small for every conversation at once, prompts that take visible time, and answers that say why.
fn options() -> Result<StackOptions, DemoError> {
    let programs = Programs::find()?;
    let engine = EngineOptions {
        blocks: 640,
        prefill_us_per_token: 100,
        base_ttft_us: 5_000,
        decode_us_per_token: 2_000,
        ..EngineOptions::default()
    };
    let plugin = serde_json::json!({ "output": { "response_headers": true } });
    let models = models_directory();
    Ok(StackOptions {
        engine,
        models: vec![ServedModel { id: MODEL.to_owned(), model_dir: Some(models.join(MODEL)) }],
        models_directory: Some(models),
        plugin,
        plain_listener: true,
        ..StackOptions::new(programs)
    })
}

/// The demo's models, each in a folder of its name.
pub fn models_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/models")
}

/// Empties every engine's cache, then has each compute every system prompt.
async fn fill_caches(stack: &Stack, workload: &Workload) -> Result<(), DemoError> {
    for place in 0..stack.engines.len() {
        empty_cache(stack, place).await?;
        for opening in &workload.openings {
            let prompt = Prompt::Chat(opening.clone());
            let completion = stack.client.complete(&stack.engine_url(place), MODEL, &prompt, 1).await?;
            accepted("system prompt", completion.status)?;
        }
    }
    Ok(())
}

/// Empties an engine's cache, which it refuses for a moment after its last answer, while that request's blocks are in use.
async fn empty_cache(stack: &Stack, place: usize) -> Result<(), DemoError> {
    let mut status = StatusCode::OK;
    let emptied = eventually(EMPTIED_WITHIN, async || {
        let answer = stack.reset_prefix_cache(place).await;
        status = answer.map_or(StatusCode::SERVICE_UNAVAILABLE, |answer| answer.status);
        status == StatusCode::OK
    });
    if emptied.await { Ok(()) } else { accepted(&format!("reset of {}", stack.replica_id(place)), status) }
}

/// Waits until the filter sees every system prompt on every engine, which is when it has no hint for it.
async fn wait_until_learnt(stack: &Stack, workload: &Workload) -> Result<(), DemoError> {
    let mut answer = String::new();
    for opening in &workload.openings {
        let prompt = Prompt::Chat(opening.clone());
        let learnt = eventually(LEARNT_WITHIN, async || {
            answer = match stack.client.complete(&stack.envoy_url(), MODEL, &prompt, 1).await {
                Ok(completion) => decision(&completion),
                Err(error) => error.to_string(),
            };
            answer == "NO_HINT below_routing_floor"
        });
        if !learnt.await {
            return Err(DemoError::NotLearnt { answer, log_tail: stack.envoy.log_tail() });
        }
    }
    Ok(())
}

fn decision(completion: &Completion) -> String {
    let header = |name| completion.header(name);
    format!("{} {}", header("x-inferencecache-reason-code"), header("x-inferencecache-detail"))
}

/// Plays all lanes at once.
async fn play(client: &Client, base: &str, workload: &Workload) -> Result<Pass, DemoError> {
    let served = Arc::new(Mutex::new(Vec::new()));
    let keep = |one: Served| {
        println!("{one}");
        served.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    };
    let to = Destination { client, base, model: MODEL };
    let lanes = workload.lanes.iter().map(|lane| play_lane(to, lane.clone(), &keep));
    join_all(lanes).await.into_iter().collect::<Result<(), DemoError>>()?;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Pass(served))
}

/// Where a workload is played.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    /// What sends it.
    pub client: &'a Client,
    /// The server's URL, without a path.
    pub base: &'a str,
    /// The model asked for.
    pub model: &'a str,
}

/// Plays one lane, up to the first request that fails; each that does not is given to `served`.
pub(super) async fn play_lane(to: Destination<'_>, lane: Lane, served: &impl Fn(Served)) -> Result<(), DemoError> {
    let Lane { mut conversations, steps } = lane;
    for step in steps {
        let one = match step {
            Step::OneOff { name, prompt } => {
                let completion = ask(to, &name, &prompt).await?;
                Served::new(name, None, &completion)
            }
            Step::Turn(place) => {
                let Some(conversation) = conversations.get_mut(place) else { continue };
                let prompt = conversation.ask();
                let completion = ask(to, &conversation.name, &prompt).await?;
                conversation.answered(&completion.text);
                Served::new(conversation.name.clone(), Some(conversation.turn), &completion)
            }
        };
        served(one);
    }
    Ok(())
}

async fn ask(to: Destination<'_>, name: &str, prompt: &Prompt) -> Result<Completion, DemoError> {
    let completion = to.client.complete(to.base, to.model, prompt, MAX_TOKENS).await?;
    accepted(name, completion.status)?;
    Ok(completion)
}

fn accepted(name: &str, status: StatusCode) -> Result<(), DemoError> {
    if status == StatusCode::OK { Ok(()) } else { Err(DemoError::Refused { name: name.to_owned(), status }) }
}

fn print_what_to_try(stack: &Stack) {
    let (envoy, hub) = (stack.envoy_url(), stack.addresses.hub_http);
    println!("It stays up until Ctrl-C. Ask twice, the second time there is a replica that holds the prompt:\n");
    println!(
        "  curl -si {envoy}/v1/chat/completions -H 'content-type: application/json' -d \\\n    '{{\"model\": \"{MODEL}\", \
         \"max_tokens\": 8, \"messages\": [{{\"role\": \"user\", \"content\": \"'\"$(seq -s' ' 1 160)\"'\"}}]}}'\n"
    );
    println!("What the filter counts, what the hub knows, what an engine was asked, what Envoy logs:\n");
    println!("  curl -s {} | grep -E '^(inferencecache|warmroute)'", stack.admin_url("/stats/prometheus"));
    println!("  curl -s http://{hub}/state");
    println!("  curl -s {}/debug/requests", stack.engine_url(0));
    println!("  tail -f {}\n", stack.folder().join("envoy.log").display());
    println!("Forget what an engine holds, and ask again:\n");
    println!("  curl -s -X POST {}/reset_prefix_cache", stack.engine_url(0));
}

// === impl DemoError ===

impl std::fmt::Display for DemoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DemoError::Stack(error) => error.fmt(f),
            DemoError::Request(error) => error.fmt(f),
            DemoError::Refused { name, status } => write!(f, "{name}: status {status}, expected 200"),
            DemoError::NotLearnt { answer, log_tail } => {
                write!(
                    f,
                    "after {LEARNT_WITHIN:?} the filter does not see the system prompts on every engine; its last answer is \
                     \"{answer}\", expected NO_HINT below_routing_floor; Envoy wrote last:\n{log_tail}"
                )
            }
            DemoError::NoHints => write!(f, "no request got a hint: expected PREFIX_MATCH from the second turns on"),
        }
    }
}

impl std::error::Error for DemoError {}

impl From<StackError> for DemoError {
    fn from(error: StackError) -> DemoError {
        DemoError::Stack(error)
    }
}

impl From<MissingProgram> for DemoError {
    fn from(error: MissingProgram) -> DemoError {
        DemoError::Stack(StackError::Missing(error))
    }
}

impl From<RequestFailed> for DemoError {
    fn from(error: RequestFailed) -> DemoError {
        DemoError::Request(error)
    }
}
