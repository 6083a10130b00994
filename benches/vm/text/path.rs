//! From a body to a block chain, as the filter goes, and its parts.

use std::cell::RefCell;

use warmroute::config::FilterConfig;
use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::model::{LoadedModel, TextLimits};
use warmroute::request::{
    HeadVerdict, HeaderInputs, NoAdapters, RequestHead, TextPrompt, TokenizeError, Tokenized, Tokenizer, read_body,
    read_head,
};
use warmroute::routing::policy::Strategy;
use warmroute::template::LocalTime;
use warmroute::tokenize::Workspace;
use xxhash_rust::xxh3::xxh3_64;

const CONFIG: &[u8] = br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}]}"#;
const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const NO_LIMITS: TextLimits =
    TextLimits { max_prompt_bytes: usize::MAX, max_tokens: usize::MAX, max_symbols: usize::MAX };
const BLOCK_TOKENS: u64 = 16;

pub struct Path {
    model: Keeping,
    config: FilterConfig,
    inputs: HeaderInputs,
}

/// A model, its memory, and the ids that it gave last.
struct Keeping {
    model: LoadedModel,
    workspace: RefCell<Workspace>,
    limits: TextLimits,
    last: RefCell<Tokenized>,
}

impl Path {
    pub fn new(model: LoadedModel) -> Path {
        let config = FilterConfig::from_json(CONFIG).unwrap();
        let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let headers = [
            header(":method", "POST"),
            header(":path", "/v1/chat/completions"),
            header("content-type", "application/json"),
            header("content-length", "100000"),
        ];
        let (inputs, verdict) = read_head(&RequestHead { headers: &headers }, None, &config, &mut NoAdapters);
        assert!(matches!(verdict, HeadVerdict::Hold { .. }), "{verdict:?}");
        let limits = TextLimits {
            max_prompt_bytes: config.limits.max_prompt_bytes,
            max_tokens: config.limits.max_match_tokens,
            max_symbols: config.limits.max_merge_symbols,
        };
        let workspace = RefCell::new(Workspace::new(config.limits.memo_bytes));
        let model = Keeping { model, workspace, limits, last: RefCell::default() };
        Path { model, config, inputs }
    }

    pub fn forget(&mut self, _: &[u8]) {
        self.model.workspace = RefCell::new(Workspace::new(self.config.limits.memo_bytes));
    }

    pub fn chain(&mut self, body: &[u8]) -> u32 {
        let request = read_body(body.to_vec(), &self.inputs, &self.config, &mut NoAdapters).unwrap();
        let resolved = request.prompt.resolve(Strategy::default(), request.block_size, "m", &self.model).unwrap();
        *self.model.last.borrow_mut() = resolved.tokenized.unwrap();
        resolved.chain.len() as u32
    }

    pub fn encode(&mut self, text: &[u8]) -> u32 {
        let text = std::str::from_utf8(text).unwrap().to_owned();
        let prompt = TextPrompt::Plain { text, add_special_tokens: false };
        // The general crate knows no bound of work.
        let limits = std::mem::replace(&mut self.model.limits, NO_LIMITS);
        let ids = self.model.tokenize("m", &prompt).unwrap();
        self.model.limits = limits;
        let count = ids.ids.len() as u32;
        *self.model.last.borrow_mut() = ids;
        count
    }

    pub fn bounded(&mut self, text: &[u8]) -> u32 {
        let text = std::str::from_utf8(text).unwrap().to_owned();
        let ids = self.model.tokenize("m", &TextPrompt::Plain { text, add_special_tokens: false }).unwrap_or_default();
        let count = ids.ids.len() as u32;
        *self.model.last.borrow_mut() = ids;
        count
    }

    pub fn ids_hash(&mut self, _: &[u8]) -> u64 {
        let last = self.model.last.borrow();
        let bytes: Vec<u8> = last.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        if last.complete { xxh3_64(&bytes) } else { !xxh3_64(&bytes) }
    }

    pub fn scan(&mut self, body: &[u8]) -> u32 {
        u32::from(read_body(body.to_vec(), &self.inputs, &self.config, &mut NoAdapters).is_ok())
    }

    pub fn hash(&mut self, _: &[u8]) -> u32 {
        let block_size = BlockSize::try_new(BLOCK_TOKENS).unwrap();
        prefix_hashes(&self.model.last.borrow().ids, block_size, None).map(|hash| hash.0 as u32 & 1).sum()
    }
}

impl Tokenizer for Keeping {
    fn tokenize(&self, _: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        self.model.tokenize(prompt, CLOCK, &self.limits, &mut self.workspace.borrow_mut())
    }
}
