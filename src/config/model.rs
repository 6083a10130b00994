//! The models that are routed, the further names that they are served under, and their LoRA adapters.

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

/// A LoRA adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The base model.
    pub model_id: String,
    /// The id under which the engines report its blocks.
    pub adapter_id: String,
}

/// What a request's `model` may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The models, by id.
    pub models: BTreeMap<String, ModelConfig>,
    /// The ids of models, by a further name of theirs.
    pub aliases: BTreeMap<String, String>,
    /// The adapters of all models, by served name.
    pub adapters: BTreeMap<String, Adapter>,
}

/// What stands behind a name that is no model's id.
enum Named {
    /// The model of this id.
    Model(String),
    Adapter(Adapter),
}

/// The names read so far: the place in the configuration, the name, what it stands for.
type Listed = Vec<(String, String, Named)>;

/// `models`: a list without duplicates, at least one.
pub(super) fn read_models(root: &mut Section, problems: &mut Problems) -> Served {
    let mut served = Served::default();
    let models = &mut served.models;
    let mut names = Listed::new();
    let listed = root.take("models");
    let Some(values) = listed.and_then(Value::as_array).filter(|values| !values.is_empty()) else {
        problems.note("models", listed, "a list of at least one model");
        return served;
    };
    for (place, value) in values.iter().enumerate() {
        let section = Section::at(format!("models[{place}]"), Some(value), problems);
        let model = ModelConfig::read(section, &mut names, problems);
        if models.contains_key(&model.model_id) {
            problems.note(format!("models[{place}].model_id"), value.get("model_id"), "an id that is not listed yet");
        }
        if !model.model_id.is_empty() {
            models.insert(model.model_id.clone(), model);
        }
    }
    served.take_names(names, problems);
    served
}

/// `adapters`: a list of names, each also the adapter's id, or an object from name to id.
fn read_adapters(section: &mut Section, model_id: &str, listed: &mut Listed, problems: &mut Problems) {
    let path = section.path_of("adapters");
    let mut add = |path: String, name: &str, adapter_id: &Value| match adapter_id.as_str() {
        Some(adapter_id) if !adapter_id.is_empty() && !name.is_empty() => {
            let adapter = Adapter { model_id: model_id.to_owned(), adapter_id: adapter_id.to_owned() };
            listed.push((path, name.to_owned(), Named::Adapter(adapter)));
        }
        _ => problems.note(path, Some(adapter_id), "a name and an id that are not empty"),
    };
    match section.take("adapters") {
        None => {}
        Some(Value::Array(names)) => {
            for (place, name) in names.iter().enumerate() {
                add(format!("{path}[{place}]"), name.as_str().unwrap_or_default(), name);
            }
        }
        Some(Value::Object(ids)) => {
            for (name, adapter_id) in ids {
                add(format!("{path}.{name}"), name, adapter_id);
            }
        }
        Some(value) => problems.note(path, Some(value), "a list of names, or an object from names to adapter ids"),
    }
}

/// `aliases`: a list of further names of the model, as `--served-model-name` has them.
fn read_aliases(section: &mut Section, model_id: &str, listed: &mut Listed, problems: &mut Problems) {
    let path = section.path_of("aliases");
    let Some(names) = section.list("aliases", "a list of names", problems) else { return };
    for (place, name) in names.iter().enumerate() {
        let path = format!("{path}[{place}]");
        match name.as_str() {
            Some(text) if !text.is_empty() => {
                listed.push((path, text.to_owned(), Named::Model(model_id.to_owned())));
            }
            _ => problems.note(path, Some(name), "a name that is not empty"),
        }
    }
}

// === impl Served ===

impl Served {
    /// A request's `model` must name one thing: each name is listed once, and is no model's id.
    fn take_names(&mut self, listed: Listed, problems: &mut Problems) {
        for (path, name, named) in listed {
            let is_taken = self.models.contains_key(&name)
                || self.aliases.contains_key(&name)
                || self.adapters.contains_key(&name);
            match named {
                _ if is_taken => {
                    problems.note(path, Some(&Value::String(name)), "a name that is neither listed yet nor a model_id");
                }
                Named::Model(model_id) => drop(self.aliases.insert(name, model_id)),
                Named::Adapter(adapter) => drop(self.adapters.insert(name, adapter)),
            }
        }
    }
}

// === impl ModelConfig ===

impl ModelConfig {
    fn read(mut section: Section, listed: &mut Listed, problems: &mut Problems) -> ModelConfig {
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
        read_adapters(&mut section, &model.model_id, listed, problems);
        read_aliases(&mut section, &model.model_id, listed, problems);
        section.finish(problems);
        model
    }
}
