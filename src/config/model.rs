//! The models that are routed.

use std::collections::BTreeMap;

use serde_json::Value;

use super::defaults;
use super::section::{Problems, Section};
use crate::fingerprint::BlockSize;

/// What is known of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    /// The id that requests name.
    pub model_id: String,
    /// The tag under which its keys are looked up, unless a request names another.
    pub hash_scheme: String,
    /// The engines' block size.
    pub block_size: BlockSize,
    /// Width of an explicit key, in bytes.
    pub key_bytes: usize,
}

/// `models`: a list without duplicates, at least one.
pub(super) fn read_models(root: &mut Section, problems: &mut Problems) -> BTreeMap<String, ModelConfig> {
    let mut models = BTreeMap::new();
    let listed = root.take("models");
    let Some(values) = listed.and_then(Value::as_array).filter(|values| !values.is_empty()) else {
        problems.note("models", listed, "a list of at least one model");
        return models;
    };
    for (place, value) in values.iter().enumerate() {
        let section = Section::at(format!("models[{place}]"), Some(value), problems);
        let model = ModelConfig::read(section, problems);
        if models.contains_key(&model.model_id) {
            problems.note(format!("models[{place}].model_id"), value.get("model_id"), "an id that is not listed yet");
        }
        if !model.model_id.is_empty() {
            models.insert(model.model_id.clone(), model);
        }
    }
    models
}

// === impl ModelConfig ===

impl ModelConfig {
    fn read(mut section: Section, problems: &mut Problems) -> ModelConfig {
        let block_sizes = 1..=u64::from(BlockSize::MAX);
        let block_size = section.integer("block_size", block_sizes, defaults::BLOCK_SIZE_TOKENS, problems);
        let key_bytes = section.integer("key_bytes", defaults::KEY_BYTES_RANGE, defaults::KEY_BYTES, problems);
        let scheme = section.text("hash_scheme", problems);
        let model = ModelConfig {
            model_id: section.required_text("model_id", problems),
            hash_scheme: scheme.unwrap_or_else(|| defaults::HASH_SCHEME.to_owned()),
            block_size: BlockSize::try_new(block_size).unwrap_or(BlockSize::DEFAULT),
            key_bytes: usize::try_from(key_bytes).unwrap_or(usize::MAX),
        };
        section.finish(problems);
        model
    }
}
