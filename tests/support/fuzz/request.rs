//! A request: a path, headers, a body.

use std::cell::RefCell;

use warmroute::config::FilterConfig;
use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::request::{
    HeadVerdict, LookupRequest, NoAdapters, RequestHead, TextPrompt, TokenizeError, Tokenized, Tokenizer, read_body,
    read_head,
};
use warmroute::routing::policy::Strategy;
use warmroute::template::{LocalTime, SpecialTokens};
use warmroute::tokenize::{Workspace, compile};

const CONFIG: &str = r#"{"hub_cluster": "hub", "hold_chunked": true, "tenant": {"header": "x-tenant"}, "models":
    [{"model_id": "m", "block_size": 4, "aliases": ["n"], "adapters": {"a": "b"}}, {"model_id": "k", "key_bytes": 3}],
    "limits": {"max_match_tokens": 1000}}"#;
const TOKENIZER: &[u8] = include_bytes!("../../tokenizers/small/cl100k.json");
const TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}<assistant>";
const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const MAX_TOKENS: usize = 1_000;

struct Model {
    config: FilterConfig,
    model: LoadedModel,
    workspace: RefCell<Workspace>,
}

thread_local! {
    static MODEL: Model = Model::new();
}

/// The first line is the path, those up to an empty one are headers, the rest is the body. Of a prompt no more is looked
/// up than is configured, and never less than a block.
pub fn request(bytes: &[u8]) {
    let mut headers = vec![(":method".to_owned(), b"POST".to_vec())];
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        if line.is_empty() {
            break;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b' ') {
            Some(at) if headers.len() > 1 => (String::from_utf8_lossy(&line[..at]).into_owned(), &line[at + 1..]),
            _ => (":path".to_owned(), line),
        };
        headers.push((name, value.to_vec()));
    }
    MODEL.with(|model| {
        let config = &model.config;
        let (inputs, verdict) = read_head(&RequestHead { headers: &headers }, None, config, &mut NoAdapters);
        match verdict {
            HeadVerdict::Ready(request) => model.resolve(&request),
            HeadVerdict::Hold { .. } => {
                if let Ok(request) = read_body(rest.to_vec(), &inputs, config, &mut NoAdapters) {
                    model.resolve(&request);
                }
            }
            HeadVerdict::Release(_) => {}
        }
    });
}

// === impl Model ===

impl Model {
    fn new() -> Model {
        let package = Package {
            artifact: compile(TOKENIZER).unwrap(),
            chat_template: Some(TEMPLATE.to_owned()),
            tool_chat_template: None,
            special_tokens: SpecialTokens::default(),
        };
        Model {
            config: FilterConfig::from_json(CONFIG.as_bytes()).unwrap(),
            model: LoadedModel::load(package).unwrap(),
            workspace: RefCell::new(Workspace::new(1 << 16)),
        }
    }

    fn resolve(&self, request: &LookupRequest) {
        let block_size = request.block_size;
        for enable_chain_matching in [false, true] {
            let strategy = Strategy { enable_chain_matching, require_chain: false, enable_tenant_hot: true };
            let model_id = &request.scope.model_id;
            let Ok(resolved) = request.prompt.resolve(strategy, block_size, model_id, self) else { continue };
            assert!(!resolved.chain.is_empty());
            assert!(resolved.chain.len() <= MAX_TOKENS);
            assert!(resolved.tokenized.is_none_or(|found| (1..=MAX_TOKENS).contains(&found.ids.len())));
        }
    }
}

impl Tokenizer for Model {
    fn tokenize(&self, _: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        let limits = TextLimits { max_prompt_bytes: 1 << 16, max_tokens: MAX_TOKENS, max_symbols: 10_000 };
        self.model.tokenize(prompt, CLOCK, &limits, &mut self.workspace.borrow_mut())
    }
}
