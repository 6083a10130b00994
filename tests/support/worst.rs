//! Requests that are out to take as much time and memory as they can, at the limits that a filter has by default; and one
//! through all that a request's body goes through.

use std::cell::RefCell;

use warmroute::config::FilterConfig;
use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::request::{
    HeadVerdict, LookupRequest, NoAdapters, RequestHead, TextPrompt, TokenizeError, Tokenized, Tokenizer, read_body,
    read_head,
};
use warmroute::routing::policy::Policy;
use warmroute::template::{LocalTime, SpecialTokens};
use warmroute::tokenize::{Workspace, compile};

/// As long as a body may be by default.
pub const BODY_BYTES: usize = 1_000_000;
const CONFIG: &str = r#"{"hub_cluster": "hub", "models": [{"model_id": "m"}]}"#;
const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
/// With NFC, which takes the most.
const TOKENIZER: &[u8] = include_bytes!("../tokenizers/small/qwen35.json");
const TEMPLATE: &str = include_str!("../templates/chatml.jinja");

/// A filter's model and limits.
pub struct Filter {
    config: FilterConfig,
    model: LoadedModel,
    workspace: RefCell<Workspace>,
}

/// A request.
pub struct Request {
    /// What it does.
    pub name: &'static str,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

// === impl Filter ===

impl Filter {
    pub fn new() -> Filter {
        let package = Package {
            artifact: compile(TOKENIZER).unwrap(),
            chat_template: Some(TEMPLATE.to_owned()),
            tool_chat_template: None,
            special_tokens: SpecialTokens::new(Some("<s>"), Some("</s>")),
        };
        let config = FilterConfig::from_json(CONFIG.as_bytes()).unwrap();
        let workspace = RefCell::new(Workspace::new(config.limits.memo_bytes));
        Filter { model: LoadedModel::load(package).unwrap(), config, workspace }
    }

    /// All that is done with a request before its keys are looked up; how many keys there are.
    pub fn read(&self, request: &Request) -> usize {
        let head = RequestHead { headers: &request.headers };
        let (inputs, verdict) = read_head(&head, None, &self.config, &mut NoAdapters);
        match verdict {
            HeadVerdict::Ready(request) => self.resolve(&request),
            HeadVerdict::Hold { .. } => {
                let read = read_body(request.body.clone(), &inputs, &self.config, &mut NoAdapters);
                read.map_or(0, |request| self.resolve(&request))
            }
            HeadVerdict::Release(_) => 0,
        }
    }

    fn resolve(&self, request: &LookupRequest) -> usize {
        let strategy = Policy::default().strategy;
        let resolved = request.prompt.resolve(strategy, request.block_size, &request.scope.model_id, self);
        resolved.map_or(0, |resolved| resolved.chain.len())
    }
}

impl Tokenizer for Filter {
    fn tokenize(&self, _: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        let limits = &self.config.limits;
        let limits = TextLimits {
            max_prompt_bytes: limits.max_prompt_bytes,
            max_tokens: limits.max_match_tokens,
            max_symbols: limits.max_merge_symbols,
        };
        self.model.tokenize(prompt, CLOCK, &limits, &mut self.workspace.borrow_mut())
    }
}

// === impl Request ===

impl Request {
    /// A body that begins and ends so, with as many of `item` in between as there is room for.
    fn new(name: &'static str, path: &str, (begin, item, end): (&str, &str, &str)) -> Request {
        let room = BODY_BYTES - begin.len() - end.len();
        let mut body = format!("{begin}{}", item.repeat(room / item.len())).into_bytes();
        if end.starts_with([']', '}']) && body.last() == Some(&b',') {
            body.pop();
        }
        body.extend_from_slice(end.as_bytes());
        Request::of(name, path, body)
    }

    fn of(name: &'static str, path: &str, body: Vec<u8>) -> Request {
        let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let length = body.len().to_string();
        let headers = [
            (":method", "POST"),
            (":path", path),
            ("content-type", "application/json"),
            ("content-length", length.as_str()),
        ];
        Request { name, headers: headers.iter().map(|(name, value)| header(name, value)).collect(), body }
    }
}

/// All of them.
pub fn requests() -> Vec<Request> {
    const TEXT: &str = "/v1/completions";
    const CHAT: &str = "/v1/chat/completions";
    let text = |name, item| Request::new(name, TEXT, (r#"{"model":"m","prompt":""#, item, r#""}"#));
    let content = |name, item| {
        Request::new(name, CHAT, (r#"{"model":"m","messages":[{"role":"user","content":""#, item, r#""}]}"#))
    };
    let call = r#"{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":["#;
    let in_calls = |name, item: &str| {
        let one = format!("{call}{}1]}}\"}}}},", item.repeat(30_000));
        let begin = r#"{"model":"m","messages":[{"role":"assistant","tool_calls":["#;
        Request::new(name, CHAT, (begin, &one, r#"]},{"role":"user","content":"x"}]}"#))
    };
    let nested = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    let mut many_headers = Request::new("10,000 headers", TEXT, (r#"{"model":"m","prompt":["#, "7,", "7]}"));
    many_headers.headers.extend((0..10_000).map(|at| (format!("x-inferencecache-{at}"), b"v".to_vec())));
    let mut state = 7_u64;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    let letters: String = (0..BODY_BYTES / 2).map(|_| char::from(b'a' + random(26) as u8)).collect();
    let chinese: String = (0..BODY_BYTES / 4).filter_map(|_| char::from_u32(0x4e00 + random(20_000))).collect();
    vec![
        Request::new("deep arrays", TEXT, (r#"{"model":"m","x":"#, "[", "")),
        Request::new("deep objects", CHAT, (r#"{"model":"m","messages":"#, r#"{"a":"#, "")),
        Request::new("a million tokens", TEXT, (r#"{"model":"m","prompt":["#, "1,", "1]}")),
        Request::new(
            "tokens of a stated prompt",
            TEXT,
            (r#"{"model":"m","inference_cache":{"token_ids":["#, "1,", "1]}}"),
        ),
        Request::new(
            "block hashes",
            TEXT,
            (r#"{"model":"m","inference_cache":{"block_hashes":["#, r#""0123456789abcdef","#, "]}}"),
        ),
        text("one letter", "a"),
        Request::new("random letters", TEXT, (r#"{"model":"m","prompt":""#, &letters, r#""}"#)),
        Request::new(
            "random Chinese",
            CHAT,
            (r#"{"model":"m","messages":[{"role":"user","content":""#, &chinese, r#""}]}"#),
        ),
        text("spaces", " "),
        text("combining marks", "\u{301}"),
        text("lone surrogates", r"\ud800"),
        text("escaped NULs", r"\u0000"),
        text("raw NULs", "\0"),
        content("a long message", "word "),
        content("a long message of escapes", r"\n"),
        Request::new("duplicate keys", TEXT, ("{", r#""model":"m","prompt":"x","#, r#""model":"m"}"#)),
        Request::new(
            "duplicate conversations",
            CHAT,
            (r#"{"model":"m","#, r#""messages":[{"role":"user","content":"x"}],"#, r#""n":1}"#),
        ),
        Request::new(
            "small values",
            CHAT,
            (r#"{"model":"m","messages":[{"role":"user","content":"x"}],"x":["#, "{},", "1]}"),
        ),
        Request::new(
            "fewer small values",
            CHAT,
            (
                r#"{"model":"m","messages":[{"role":"user","content":"x"}],"x":["#,
                &format!("{{\"{}\":1}},", "a".repeat(55)),
                "1]}",
            ),
        ),
        in_calls("small values in calls", "{},"),
        Request::new(
            "nested values",
            CHAT,
            (r#"{"model":"m","messages":[{"role":"user","content":"x"}],"x":["#, &format!("{nested},"), "1]}"),
        ),
        Request::new(
            "messages",
            CHAT,
            (r#"{"model":"m","messages":["#, r#"{"role":"user","content":""},"#, r#"{"role":"user","content":"x"}]}"#),
        ),
        Request::new(
            "some messages",
            CHAT,
            (
                r#"{"model":"m","messages":["#,
                r#"{"role":"user","content":"some text that is as long as some text is, and then some more, up to a hundred"},"#,
                r#"{"role":"user","content":"x"}]}"#,
            ),
        ),
        Request::new(
            "parts",
            CHAT,
            (
                r#"{"model":"m","messages":[{"role":"user","content":["#,
                &format!(r#"{{"type":"text","text":"{}"}},"#, "a ".repeat(35)),
                r#"{"type":"text","text":"a"}]}]}"#,
            ),
        ),
        Request::new(
            "tools",
            CHAT,
            (
                r#"{"model":"m","messages":[{"role":"user","content":"x"}],"tools":["#,
                &format!(
                    r#"{{"type":"function","function":{{"name":"f","parameters":{{"type":"object","properties":{{"a":{{"type":"{}"}}}}}}}}}},"#,
                    "s".repeat(200)
                ),
                r#"{"type":"function","function":{"name":"f"}}]}"#,
            ),
        ),
        Request::new(
            "items",
            "/v1/responses",
            (
                r#"{"model":"m","input":["#,
                &format!(r#"{{"role":"user","content":"{}"}},"#, "a ".repeat(35)),
                r#"{"role":"user","content":"a"}]}"#,
            ),
        ),
        Request::new(
            "blocks",
            "/v1/messages",
            (
                r#"{"model":"m","max_tokens":1,"messages":["#,
                &format!(r#"{{"role":"user","content":[{{"type":"text","text":"{}"}}]}},"#, "a ".repeat(65)),
                r#"{"role":"user","content":"a"}]}"#,
            ),
        ),
        many_headers,
    ]
}
