//! The demo's tokenizers and chat templates give the ids of the reference, natively and on wasm32.
//!
//! `scripts/train_tokenizer.py` makes `demo_models/cases.jsonl` with PyPI `tokenizers`, `transformers` and Jinja2.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

use serde::Deserialize;
use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::request::{ChatApi, TextPrompt};
use warmroute::template::{LocalTime, TokenizerConfig};
use warmroute::tokenize::{Workspace, compile};

const CASES: &str = include_str!("demo_models/cases.jsonl");
const CLOCK: LocalTime = LocalTime { unix_seconds: 0, utc_offset_seconds: 0 };
const UNLIMITED: TextLimits =
    TextLimits { max_prompt_bytes: usize::MAX, max_tokens: usize::MAX, max_symbols: usize::MAX };

/// Files of a model: tokenizer, its configuration, chat template.
macro_rules! model {
    ($name:literal) => {
        Model {
            name: $name,
            tokenizer: include_str!(concat!("../demo/models/", $name, "/tokenizer.json")),
            config: include_str!(concat!("../demo/models/", $name, "/tokenizer_config.json")),
            template: include_str!(concat!("../demo/models/", $name, "/chat_template.jinja")),
        }
    };
}

struct Model {
    name: &'static str,
    tokenizer: &'static str,
    config: &'static str,
    template: &'static str,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    text: Option<String>,
    #[serde(default)]
    add_special_tokens: bool,
    /// JSON: its order counts.
    body: Option<String>,
    ids: Vec<u32>,
}

#[cfg_attr(target_arch = "wasm32", wasm_bindgen_test::wasm_bindgen_test)]
#[cfg_attr(not(target_arch = "wasm32"), test)]
fn ids_of_texts_and_chats_are_those_of_the_reference() {
    let cases: Vec<Case> = CASES.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (model, chats) in [(model!("demo-bytes"), 9), (model!("demo-chars"), 9)] {
        let loaded = model.load();
        let mut workspace = Workspace::new(1 << 20);
        let of_this: Vec<&Case> = cases.iter().filter(|case| case.model == model.name).collect();
        assert!(of_this.len() >= 30, "{}: {} cases", model.name, of_this.len());
        assert_eq!(of_this.iter().filter(|case| case.body.is_some()).count(), chats, "{}", model.name);
        for (place, case) in of_this.into_iter().enumerate() {
            let tokenized = loaded.tokenize(&case.prompt(), CLOCK, &UNLIMITED, &mut workspace);
            let tokenized = tokenized.unwrap_or_else(|error| panic!("{} case {place}: {error:?}", model.name));
            assert!(tokenized.complete, "{} case {place}", model.name);
            assert_eq!(tokenized.ids, case.ids, "{} case {place}", model.name);
        }
    }
}

// === impl Model ===

impl Model {
    fn load(&self) -> LoadedModel {
        let bytes = self.tokenizer.len() + self.config.len() + self.template.len();
        assert!(bytes < 300_000, "{} takes {bytes} bytes", self.name);
        let config = TokenizerConfig::parse(self.config.as_bytes()).unwrap();
        let package = Package {
            artifact: compile(self.tokenizer.as_bytes()).unwrap(),
            chat_template: Some(self.template.to_owned()),
            tool_chat_template: None,
            special_tokens: config.special,
        };
        LoadedModel::load(package).unwrap()
    }
}

// === impl Case ===

impl Case {
    fn prompt(&self) -> TextPrompt {
        match (&self.text, &self.body) {
            (Some(text), None) => TextPrompt::Plain { text: text.clone(), add_special_tokens: self.add_special_tokens },
            (None, Some(body)) => TextPrompt::Chat { api: ChatApi::ChatCompletions, body: body.clone().into_bytes() },
            _ => panic!("a case has a text or a body"),
        }
    }
}
