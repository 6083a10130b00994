//! A model with a tokenizer and a chat template: the demo's, as the hub sends it.

use std::sync::LazyLock;

use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::observation::{MODEL_PART_BYTES, ModelPart, ModelVersion};
use warmroute::request::{ChatApi, TextPrompt};
use warmroute::template::{LocalTime, TokenizerConfig};
use warmroute::tokenize::{Workspace, compile};

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!("../../../../../demo/models/demo-bytes/", $name))
    };
}

/// A package, and what the filters ask for.
pub struct Model {
    pub version: ModelVersion,
    pub parts: Vec<ModelPart>,
    loaded: LoadedModel,
}

pub static MODEL: LazyLock<Model> = LazyLock::new(Model::made);

// === impl Model ===

impl Model {
    fn made() -> Model {
        let config = TokenizerConfig::parse(file!("tokenizer_config.json").as_bytes()).unwrap();
        let package = Package {
            artifact: compile(file!("tokenizer.json").as_bytes()).unwrap(),
            chat_template: Some(file!("chat_template.jinja").to_owned()),
            tool_chat_template: None,
            special_tokens: config.special,
        };
        let bytes = package.encode().unwrap();
        let version = Package::version(&bytes).unwrap();
        let part = |(number, contents): (u32, &[u8])| ModelPart {
            digest: version.digest,
            number,
            contents: contents.to_vec(),
        };
        let parts = (0..).zip(bytes.chunks(MODEL_PART_BYTES)).map(part).collect();
        Model { version, parts, loaded: LoadedModel::load(package).unwrap() }
    }

    /// The token ids of a conversation's body.
    pub fn ids(&self, body: &[u8]) -> Vec<u32> {
        let clock = LocalTime { unix_seconds: 0, utc_offset_seconds: 0 };
        let limits = TextLimits { max_prompt_bytes: usize::MAX, max_tokens: usize::MAX, max_symbols: usize::MAX };
        let prompt = TextPrompt::Chat { api: ChatApi::ChatCompletions, body: body.to_vec() };
        self.loaded.tokenize(&prompt, clock, &limits, &mut Workspace::new(1 << 20)).unwrap().ids
    }
}
