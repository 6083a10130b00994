//! Real requests and what they come to: one file of `tests/requests/` for each oddity.
//!
//! A file gives what differs from a plain POST of its body to `/v1/completions`: `headers` are added, in place of the
//! plain ones of that name, and those named in `without` are left out; the `config` fields replace those of the base
//! configuration; no model has a tokenizer; `reported` are the adapters that engines reported, as tenant, adapter and model; `chain_matching` is
//! the policy's `enableChainMatching`. Keys that come from token ids are golden vectors of the public contract, not of
//! this code's making.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "requests/agents.rs"]
mod agents;
#[path = "requests/fuzz.rs"]
mod fuzz;
#[path = "requests/naive.rs"]
mod naive;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use warmroute::config::FilterConfig;
use warmroute::observation::BlockKey;
use warmroute::request::{
    ChatApi, HeadVerdict, HeaderInputs, KnownAdapters, LookupRequest, NoAdapters, NoTokenizer, PromptSource,
    RequestChain, RequestHead, Resolved, TextPrompt, read_body, read_head,
};
use warmroute::routing::policy::Strategy;
use warmroute::routing::reason::Detail;

/// A path of each API.
const PATHS: [&str; 6] =
    ["/v1/completions", "/generate", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    about: String,
    #[serde(default)]
    config: Map<String, Value>,
    tenant_property: Option<String>,
    #[serde(default)]
    reported: Reported,
    chain_matching: Option<bool>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    without: Vec<String>,
    body: Option<String>,
    body_hex: Option<String>,
    expect: Expected,
}

/// Tenant, adapter and model, as the engines reported them.
#[derive(Clone, Default, Deserialize)]
struct Reported(Vec<[String; 3]>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// `release`, `hold` or `ready`: what the headers decide.
    head: String,
    /// Why there are no keys; absent if there are some.
    detail: Option<String>,
    /// The model that the refusal names.
    model: Option<String>,
    /// The text that a tokenizer is asked for; absent if none is.
    text: Option<Text>,
    /// Whether the prompt is the first of several.
    #[serde(default)]
    first_of_several: bool,
    /// Tenant, model, hash scheme, adapter.
    scope: Option<[String; 4]>,
    /// A chain's keys in hex, and each block's tokens.
    keys: Option<Vec<String>>,
    tokens: Option<Vec<i32>>,
    /// The key and token count of an exact request.
    exact: Option<(String, i64)>,
    effective_tokens: Option<i64>,
    slo_ttft_ms: Option<u32>,
}

/// A text prompt.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", untagged)]
enum Text {
    User { user: String },
    Plain { plain: String, add_special_tokens: bool },
    Chat { chat: String },
}

/// What a request came to, by the names that the files use.
struct Outcome {
    head: &'static str,
    /// The request and its keys, or why there are none, and the model.
    keys: Result<(LookupRequest, Resolved), (&'static str, Option<String>)>,
    text: Option<Text>,
    first_of_several: bool,
}

#[test]
fn every_request_comes_to_what_its_file_says() {
    let files = files();
    assert!(files.len() >= 25, "{} files", files.len());
    let mut failures = Vec::new();
    for file in &files {
        let case: Case = serde_json::from_slice(&std::fs::read(file).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if let Err(difference) = case.check() {
            failures.push(format!("{} ({}): {difference}", file.display(), case.about));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn one_token_more_than_the_contracts_cap_is_too_many() {
    let limits = json!({"limits": {"max_match_tokens": 1 << 20}});
    let config = config(limits.as_object().unwrap());
    let (inputs, _) = read_head(&RequestHead { headers: &[] }, None, &config, &mut NoAdapters);
    let body = |tokens: usize| format!(r#"{{"model":"llama","prompt":[{}]}}"#, vec!["1"; tokens].join(","));
    let at_cap = read_body(body(1 << 20).into_bytes(), &inputs, &config, &mut NoAdapters).unwrap();
    assert_eq!(resolve(&at_cap, Strategy::default()).unwrap().effective_tokens, 1 << 20);
    let above = read_body(body((1 << 20) + 1).into_bytes(), &inputs, &config, &mut NoAdapters).unwrap();
    assert_eq!(resolve(&above, Strategy::default()), Err(Detail::TooManyTokens));
}

// === impl Case ===

impl Case {
    fn check(&self) -> Result<(), String> {
        let outcome = self.run();
        if outcome.head != self.expect.head {
            return Err(format!("the head came to {}, not {}", outcome.head, self.expect.head));
        }
        same("text", &outcome.text, &self.expect.text)?;
        same("first_of_several", &outcome.first_of_several, &self.expect.first_of_several)?;
        match (&outcome.keys, &self.expect.detail) {
            (Err((detail, model)), Some(expected)) => {
                same("detail", detail, &expected.as_str())?;
                self.expect.model.as_ref().map_or(Ok(()), |expected| same("model", model, &Some(expected.clone())))
            }
            (Ok((request, resolved)), None) => self.expect.check(request, resolved),
            (found, expected) => Err(format!("came to {found:?}, not {expected:?}")),
        }
    }

    fn run(&self) -> Outcome {
        let config = config(&self.config);
        let body = match (&self.body, &self.body_hex) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(digits)) => bytes(digits),
            (None, None) => Vec::new(),
            (Some(_), Some(_)) => panic!("body and body_hex"),
        };
        let headers = headers(body.len(), &self.headers, &self.without);
        let head = RequestHead { headers: &headers };
        let mut known = self.reported.clone();
        let (inputs, verdict) = read_head(&head, self.tenant_property.as_deref(), &config, &mut known);
        match verdict {
            HeadVerdict::Release(detail) => Outcome::refused("release", detail, None),
            HeadVerdict::Ready(request) => self.outcome("ready", request, &body),
            HeadVerdict::Hold { .. } => match read_body(body.clone(), &inputs, &config, &mut known) {
                Ok(request) => self.outcome("hold", request, &body),
                Err(refusal) => Outcome::refused("hold", refusal.detail, refusal.model),
            },
        }
    }

    /// What the keys of `request`, read from `sent`, come to.
    fn outcome(&self, head: &'static str, request: LookupRequest, sent: &[u8]) -> Outcome {
        let contract = Strategy::default();
        let enable_chain_matching = self.chain_matching.unwrap_or(contract.enable_chain_matching);
        let resolved = resolve(&request, Strategy { enable_chain_matching, ..contract });
        let text = text_of(&request, sent).filter(|_| resolved.is_err());
        let first_of_several = resolved.as_ref().map_or(request.prompt.of_several, |keys| keys.first_of_several);
        let model = request.scope.model_id.clone();
        let keys = resolved.map(|resolved| (request, resolved)).map_err(|detail| (detail.as_str(), Some(model)));
        Outcome { head, keys, text, first_of_several }
    }
}

// === impl Outcome ===

impl Outcome {
    fn refused(head: &'static str, detail: Detail, model: Option<String>) -> Outcome {
        Outcome { head, keys: Err((detail.as_str(), model)), text: None, first_of_several: false }
    }
}

/// The text of a request whose body was `sent`; a conversation must be all of it.
fn text_of(request: &LookupRequest, sent: &[u8]) -> Option<Text> {
    let PromptSource::Text(prompt) = &request.prompt.source else { return None };
    Some(match prompt {
        TextPrompt::User(text) => Text::User { user: text.clone() },
        TextPrompt::Plain { text, add_special_tokens } => {
            Text::Plain { plain: text.clone(), add_special_tokens: *add_special_tokens }
        }
        TextPrompt::Chat { api, body } => {
            assert_eq!(body, sent, "the body of a conversation");
            let api = match api {
                ChatApi::ChatCompletions => "chat_completions",
                ChatApi::Responses => "responses",
                ChatApi::Messages => "messages",
            };
            Text::Chat { chat: api.to_owned() }
        }
    })
}

// === impl Reported ===

impl KnownAdapters for Reported {
    fn models_of(&mut self, tenant_id: &str, adapter_id: &str) -> Vec<String> {
        let of = |[tenant, adapter, _]: &&[String; 3]| tenant == tenant_id && adapter == adapter_id;
        self.0.iter().filter(of).map(|[.., model]| model.clone()).collect()
    }
}

// === impl Expected ===

impl Expected {
    fn check(&self, request: &LookupRequest, resolved: &Resolved) -> Result<(), String> {
        let scope = &request.scope;
        let scope = [&scope.tenant_id, &scope.model_id, &scope.hash_scheme, &scope.adapter_id].map(String::clone);
        self.scope.as_ref().map_or(Ok(()), |expected| same("scope", &scope, expected))?;
        same("effective_tokens", &Some(resolved.effective_tokens), &self.effective_tokens)?;
        same("slo_ttft_ms", &request.slo_ttft_ms, &self.slo_ttft_ms)?;
        let (keys, tokens, exact) = match &resolved.chain {
            RequestChain::Exact { key } => (None, None, Some((hex(key), resolved.effective_tokens))),
            RequestChain::Chain(blocks) => (
                Some(blocks.iter().map(|block| hex(&block.key)).collect()),
                Some(blocks.iter().map(|block| block.tokens).collect()),
                None,
            ),
            chain @ RequestChain::Prefixes { hashes, block_size } => (
                Some(chain.keys(hashes.len()).iter().map(hex).collect()),
                Some(vec![block_size.tokens() as i32; hashes.len()]),
                None,
            ),
        };
        same("keys", &keys, &self.keys)?;
        same("tokens", &tokens, &self.tokens)?;
        same("exact", &exact, &self.exact)
    }
}

/// What a plain request on this path says before its body.
fn inputs(path: &str) -> HeaderInputs {
    let headers = headers(10, &[(":path".to_owned(), path.to_owned())], &[]);
    read_head(&RequestHead { headers: &headers }, None, &config(&Map::new()), &mut NoAdapters).0
}

/// The keys that a request comes to.
fn resolve(request: &LookupRequest, strategy: Strategy) -> Result<Resolved, Detail> {
    let model_id = &request.scope.model_id;
    let resolved = request.prompt.resolve(strategy, request.block_size, model_id, &NoTokenizer);
    resolved.map_err(|unresolved| unresolved.detail)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found:?}, not {expected:?}")) }
}

fn config(fields: &Map<String, Value>) -> FilterConfig {
    let mut config = json!({
        "hub_cluster": "hub",
        "models": [
            {"model_id": "llama"},
            {"model_id": "tiny", "hash_scheme": "sglang", "block_size": 2},
            {"model_id": "wide", "key_bytes": 32}
        ]
    });
    config.as_object_mut().unwrap().extend(fields.clone());
    FilterConfig::from_json(config.to_string().as_bytes()).unwrap()
}

fn headers(body_bytes: usize, own: &[(String, String)], without: &[String]) -> Vec<(String, Vec<u8>)> {
    let length = body_bytes.to_string();
    let plain = [
        (":method", "POST"),
        (":path", "/v1/completions"),
        (":authority", "llm.example"),
        ("content-type", "application/json"),
        ("content-length", &length),
    ];
    let replaced = |name: &str| own.iter().any(|(other, _)| other == name) || without.iter().any(|other| other == name);
    let plain = plain.into_iter().filter(|(name, _)| !replaced(name));
    let plain = plain.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
    plain.chain(own.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes()))).collect()
}

fn hex(key: &BlockKey) -> String {
    let mut bytes = Vec::new();
    key.write_to(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// The cases' files, in order.
fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/requests");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    files.sort();
    files
}

/// The bodies of all cases.
fn bodies() -> impl Iterator<Item = Vec<u8>> {
    files().into_iter().filter_map(|file| {
        let case: Case = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        case.body.map(String::into_bytes).or(case.body_hex.map(|digits| bytes(&digits)))
    })
}
