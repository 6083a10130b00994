//! Requests that go on while something goes wrong, each looked at closely when it is answered.
//!
//! Each is answered by an engine, which says what it got (`x-received-xxh3`) and what it sent (`x-sent-xxh3`): both must be
//! what the client sent and got. Six kinds take turns, for two tenants in turn:
//!
//! | Kind | May be hinted | The engine's answer |
//! |---|---|---|
//! | a prompt that one engine of the tenant holds, in the body | to that engine | 404: the path is none of its own |
//! | the same as hashes in headers | to that engine | 404 |
//! | a prompt that nobody has asked | never | a completion, as a whole |
//! | the same, streamed | never | events |
//! | a prompt that an engine of the other tenant holds | never | 404 |
//! | a body that is cut off | never, and says so whatever else is wrong | 400 |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hyper::header::{CONNECTION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use warmroute::native::fake::request_log::digest;
use warmroute::native::load::client::{Answer, Client};
use warmroute::native::load::envoy_config::MODEL;
use warmroute::native::load::stack::eventually;

use crate::pool::{probe_head, tokens};
use crate::world::{HELD_TOKENS, TENANTS, Tenant, UNSERVED};

/// No request takes longer. The filter waits for nothing, so that what a request takes is what Envoy, the engine and the
/// client need of two cores that everything shares; a request that waited for a hub that is paused, or for a lease, would
/// take longer than this.
pub const BOUND: Duration = Duration::from_secs(5);
/// Clients, each with a connection of its own and one request at a time.
const CLIENTS: usize = 4;
/// A client's pause after each request.
const PAUSE: Duration = Duration::from_millis(10);
/// Tokens of a prompt that nobody has asked: three blocks.
const FRESH_TOKENS: usize = 48;
const COMPLETION_TOKENS: usize = 3;
/// Faults that are told; more are only counted.
const FAULTS_TOLD: usize = 5;

/// The requests under way.
pub struct Load {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    tally: Arc<Mutex<Tally>>,
}

/// What came of them.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub sent: u64,
    /// By an engine, and as they should be.
    pub answered: u64,
    pub slowest: Duration,
    /// How many came to what: `NO_HINT/miss`, `PREFIX_MATCH`.
    pub decisions: BTreeMap<String, u64>,
    pub faults: Vec<String>,
    /// Which engine's how-manieth completion each was.
    completions: BTreeSet<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Held,
    HeldByHashes,
    Fresh,
    FreshStreamed,
    OfTheOther,
    CutOff,
}

const KINDS: [Kind; 6] =
    [Kind::Held, Kind::Fresh, Kind::HeldByHashes, Kind::FreshStreamed, Kind::OfTheOther, Kind::CutOff];

/// One request.
struct Ask {
    kind: Kind,
    tenant: &'static Tenant,
    prompt: Vec<u32>,
}

// === impl Load ===

impl Load {
    /// Begins to send to `url`, over connections that are kept.
    pub fn start(url: &str) -> Load {
        Load::begin(url, false)
    }

    /// The same, with a connection for each request.
    pub fn start_with_a_connection_each(url: &str) -> Load {
        Load::begin(url, true)
    }

    fn begin(url: &str, closes: bool) -> Load {
        let stop = CancellationToken::new();
        let tally = Arc::new(Mutex::new(Tally::default()));
        let numbers = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            tasks.spawn(ask_on(url.to_owned(), closes, Arc::clone(&numbers), Arc::clone(&tally), stop.clone()));
        }
        Load { stop, tasks, tally }
    }

    /// Waits until `decision` is seen anew, as often as there are clients twice over.
    pub async fn sees(&self, decision: &str, within: Duration) {
        let before = self.tally().count(decision);
        let enough = before + 2 * CLIENTS as u64;
        let seen = eventually(within, async || self.tally().count(decision) >= enough).await;
        assert!(seen, "{decision} was not seen within {within:?}: {:?}", self.tally());
    }

    /// Goes on for a while, in which requests are answered all the time.
    pub async fn goes_on(&self, during: Duration) {
        let before = self.tally().answered;
        tokio::time::sleep(during).await;
        assert!(self.tally().answered > before, "{:?}", self.tally());
    }

    /// What came of the requests so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap()
    }

    /// Ends, once what is under way is answered.
    pub async fn stop(mut self) -> Tally {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.tally.lock().unwrap().clone()
    }
}

async fn ask_on(url: String, closes: bool, numbers: Arc<AtomicU32>, tally: Arc<Mutex<Tally>>, stop: CancellationToken) {
    let client = Client::default();
    while !stop.is_cancelled() {
        let ask = Ask::new(numbers.fetch_add(1, Ordering::Relaxed));
        let (head, path, body) = ask.request();
        let head = if closes { head.header(CONNECTION, "close") } else { head };
        tally.lock().unwrap().sent += 1;
        let started = Instant::now();
        let answer = client.request(&format!("{url}{path}"), head, body.clone().into()).await;
        let took = started.elapsed();
        let verdict = answer.map_err(|failed| failed.to_string()).and_then(|answer| {
            let decision = ask.judge(&answer, body.as_bytes())?;
            Ok((decision, ask.completion(&answer)?))
        });
        tally.lock().unwrap().add(&ask, took, verdict);
        tokio::time::sleep(PAUSE).await;
    }
}

// === impl Tally ===

impl Tally {
    /// How many came to this.
    pub fn count(&self, decision: &str) -> u64 {
        self.decisions.get(decision).copied().unwrap_or(0)
    }

    fn add(&mut self, ask: &Ask, took: Duration, verdict: Result<(String, Option<(String, String)>), String>) {
        self.slowest = self.slowest.max(took);
        let problem = match verdict {
            Ok((decision, completion)) => {
                *self.decisions.entry(decision).or_default() += 1;
                self.answered += 1;
                let is_own = completion.is_none_or(|completion| self.completions.insert(completion));
                (!is_own).then(|| "somebody else's completion".to_owned())
            }
            Err(problem) => Some(problem),
        };
        if let Some(problem) = problem
            && self.faults.len() < FAULTS_TOLD
        {
            self.faults.push(format!("{:?} of {} after {took:?}: {problem}", ask.kind, ask.tenant.id));
        }
    }
}

// === impl Ask ===

impl Ask {
    fn new(number: u32) -> Ask {
        let kind = KINDS[number as usize % KINDS.len()];
        let tenant = number as usize / KINDS.len() % TENANTS.len();
        let prompt = match kind {
            Kind::Held | Kind::HeldByHashes => TENANTS[tenant].held(),
            Kind::OfTheOther => TENANTS[1 - tenant].held(),
            Kind::Fresh | Kind::FreshStreamed | Kind::CutOff => tokens(1_000 + number, FRESH_TOKENS),
        };
        Ask { kind, tenant: &TENANTS[tenant], prompt }
    }

    fn request(&self) -> (Builder, &'static str, String) {
        let head = || {
            Request::builder()
                .method(Method::POST)
                .header("x-tenant", self.tenant.id)
                .header(CONTENT_TYPE, "application/json")
        };
        let mut body = json!({
            "model": MODEL, "prompt": self.prompt, "max_tokens": COMPLETION_TOKENS, "return_token_ids": true,
        });
        match self.kind {
            Kind::HeldByHashes => {
                (probe_head(&self.prompt).header("x-tenant", self.tenant.id), "/probe", String::new())
            }
            Kind::Held | Kind::OfTheOther => (head(), UNSERVED, body.to_string()),
            Kind::CutOff => (head(), "/v1/completions", body.to_string()[..60].to_owned()),
            Kind::Fresh => (head(), "/v1/completions", body.to_string()),
            Kind::FreshStreamed => {
                body["stream"] = true.into();
                (head(), "/v1/completions", body.to_string())
            }
        }
    }

    /// What the request came to, if it and its answer are as they should be.
    fn judge(&self, answer: &Answer, sent: &[u8]) -> Result<String, String> {
        let engine = answer.header("x-engine-id");
        let status = match self.kind {
            Kind::Held | Kind::HeldByHashes | Kind::OfTheOther => 404,
            Kind::CutOff => 400,
            Kind::Fresh | Kind::FreshStreamed => 200,
        };
        let is_whole = self.kind == Kind::FreshStreamed || answer.header("x-sent-xxh3") == digest(&answer.body);
        let faults = [
            (engine.is_empty(), "no engine answered"),
            (answer.status != status, "another status"),
            (answer.header("x-received-xxh3") != digest(sent), "the engine got another body"),
            (!is_whole, "the engine sent another body"),
        ];
        let reason = answer.header("x-inferencecache-reason-code");
        let detail = answer.header("x-inferencecache-detail");
        let replica = answer.header("x-inferencecache-replica-id");
        let matched = answer.header("x-inferencecache-matched-tokens");
        let may_match = matches!(self.kind, Kind::Held | Kind::HeldByHashes);
        let is_hinted = reason == "PREFIX_MATCH";
        let is_right = (replica, matched) == (self.tenant.holder, &HELD_TOKENS.to_string()) && engine == replica;
        let hints = [
            (is_hinted && !may_match, "nobody holds it"),
            (is_hinted && may_match && !is_right, "another replica, or not all of it, or not followed"),
            (!is_hinted && (replica, matched) != ("", "0"), "a replica without a match"),
            (self.kind == Kind::CutOff && detail != "malformed_json", "another detail"),
        ];
        match faults.iter().chain(&hints).find(|(is_so, _)| *is_so) {
            Some((_, problem)) => {
                let body: String = answer.text().chars().take(200).collect();
                Err(format!("{problem}: {} {engine} {reason}/{detail} {replica} {matched} {body}", answer.status))
            }
            None if detail.is_empty() => Ok(reason.to_owned()),
            None => Ok(format!("{reason}/{detail}")),
        }
    }

    /// Which engine's which completion it is, if it is one, and one of this prompt.
    fn completion(&self, answer: &Answer) -> Result<Option<(String, String)>, String> {
        let text = answer.text();
        let events: Vec<Value> = match self.kind {
            Kind::Fresh => vec![serde_json::from_str(&text).map_err(|error| error.to_string())?],
            Kind::FreshStreamed => {
                let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect::<Vec<_>>();
                let (last, events) = data.split_last().ok_or("no events")?;
                if *last != "[DONE]" {
                    return Err("the events are not complete".to_owned());
                }
                events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
            }
            _ => return Ok(None),
        };
        let choices: Vec<&Value> = events.iter().filter_map(|event| event["choices"].get(0)).collect();
        let generated: usize = choices.iter().filter_map(|choice| Some(choice["token_ids"].as_array()?.len())).sum();
        if choices.first().map(|choice| &choice["prompt_token_ids"]) != Some(&json!(self.prompt)) {
            return Err(format!("a completion of another prompt: {text}"));
        }
        if generated != COMPLETION_TOKENS {
            return Err(format!("{generated} tokens: {text}"));
        }
        let id = events[0]["id"].as_str().unwrap_or_default();
        Ok(Some((answer.header("x-engine-id").to_owned(), id.to_owned())))
    }
}
