//! What a local stack is started with, and the configurations that come of it.

use std::path::PathBuf;

use serde_norway::Value;

use super::{StackError, engine_id};
use crate::native::load::envoy_config::{self, Addresses, EngineAddresses, MODEL};
use crate::native::load::ports::{NoFreePort, free_address};
use crate::native::load::programs::Programs;

/// A change to a configuration file before it is written.
pub type Edit = Box<dyn FnOnce(&mut Value, &Addresses) + Send>;

/// What to start.
pub struct StackOptions {
    /// The programs.
    pub programs: Programs,
    /// How many engines.
    pub engines: usize,
    /// The text of the Envoy sample that the stack runs; `envoy/envoy.yaml` unless told otherwise.
    pub sample: &'static str,
    /// What each engine is like.
    pub engine: EngineOptions,
    /// What the engines serve: the first one the first of these, and round again. The hub and the filter are told the ids.
    pub models: Vec<ServedModel>,
    /// The hub's directory of models; none has no tokenizers.
    pub models_directory: Option<PathBuf>,
    /// Envoy's worker threads.
    pub workers: u32,
    /// Arguments for Envoy beside those that it always gets.
    pub envoy_arguments: Vec<String>,
    /// JSON merge patch for the plugin configuration.
    pub plugin: serde_json::Value,
    /// Whether the hub is started; if not, `Child::start` does so later.
    pub with_hub: bool,
    /// Whether the hub gives way to Envoy where both want a core.
    pub hub_yields: bool,
    /// Whether the engines are started; if not, their addresses are the caller's to serve.
    pub with_engines: bool,
    /// Whether Envoy has a second listener without the filter.
    pub plain_listener: bool,
    /// Applied to Envoy's configuration last.
    pub edit_envoy: Option<Edit>,
    /// Applied to the hub's configuration last.
    pub edit_hub: Option<Edit>,
}

/// A model that engines serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// What requests call it.
    pub id: String,
    /// The folder that the engines have its tokenizer and template from; none makes every byte a token.
    pub model_dir: Option<PathBuf>,
}

/// What a fake engine is like; each field is one of its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Capacity of the block cache, in blocks of 16 tokens.
    pub blocks: u32,
    /// `array` or `map`.
    pub event_encoding: String,
    /// Time to compute one prompt token that is not cached.
    pub prefill_us_per_token: u64,
    /// Time to first token of a prompt that is wholly cached.
    pub base_ttft_us: u64,
    /// Time to generate one token.
    pub decode_us_per_token: u64,
    /// LoRA adapters on the model.
    pub loras: Vec<String>,
}

// === impl StackOptions ===

impl StackOptions {
    /// Three engines of the sample's model, two workers, a hub, and the sample's plugin configuration.
    pub fn new(programs: Programs) -> StackOptions {
        StackOptions {
            programs,
            engines: 3,
            sample: envoy_config::SHIPPED,
            engine: EngineOptions::default(),
            models: vec![ServedModel { id: MODEL.to_owned(), model_dir: None }],
            models_directory: None,
            workers: 2,
            envoy_arguments: Vec::new(),
            plugin: serde_json::json!({}),
            with_hub: true,
            hub_yields: false,
            with_engines: true,
            plain_listener: false,
            edit_envoy: None,
            edit_hub: None,
        }
    }

    pub(super) fn addresses(&self) -> Result<Addresses, NoFreePort> {
        let engine =
            |_| Ok(EngineAddresses { http: free_address()?, kv_events: free_address()?, kv_replay: free_address()? });
        Ok(Addresses {
            envoy: free_address()?,
            plain: free_address()?,
            admin: free_address()?,
            hub_grpc: free_address()?,
            hub_http: free_address()?,
            engines: (0..self.engines).map(engine).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn envoy_yaml(&mut self, addresses: &Addresses) -> Result<String, StackError> {
        let mut config = envoy_config::of_sample(self.sample, addresses, &self.programs.module)?;
        envoy_config::patch_plugin(&mut config, &self.plugin_models())?;
        envoy_config::patch_plugin(&mut config, &self.plugin)?;
        if self.plain_listener {
            envoy_config::add_plain_listener(&mut config, addresses.plain)?;
        }
        if let Some(edit) = self.edit_envoy.take() {
            edit(&mut config, addresses);
        }
        Ok(serde_norway::to_string(&config)?)
    }

    pub(super) fn hub_yaml(&mut self, addresses: &Addresses) -> Result<String, StackError> {
        let mut config = serde_norway::to_value(self.hub_config(addresses))?;
        if let Some(edit) = self.edit_hub.take() {
            edit(&mut config, addresses);
        }
        Ok(serde_norway::to_string(&config)?)
    }

    /// The model of an engine.
    pub(super) fn model_of(&self, place: usize) -> ServedModel {
        let sample = || ServedModel { id: MODEL.to_owned(), model_dir: None };
        self.models.iter().cycle().nth(place).cloned().unwrap_or_else(sample)
    }

    fn plugin_models(&self) -> serde_json::Value {
        let model = |model: &ServedModel| serde_json::json!({ "model_id": model.id });
        serde_json::json!({ "models": self.models.iter().map(model).collect::<Vec<_>>() })
    }

    fn hub_config(&self, addresses: &Addresses) -> serde_json::Value {
        let replica = |(place, engine): (usize, &EngineAddresses)| {
            serde_json::json!({
                "id": engine_id(place),
                "address": engine.http.to_string(),
                "kv_events": format!("tcp://{}", engine.kv_events),
                "kv_replay": format!("tcp://{}", engine.kv_replay),
                "model": self.model_of(place).id,
                "tenant": "default",
                "hash_scheme": "vllm",
            })
        };
        let replicas: Vec<serde_json::Value> = addresses.engines.iter().enumerate().map(replica).collect();
        let mut config = serde_json::json!({
            "listen": { "grpc": addresses.hub_grpc.to_string(), "http": addresses.hub_http.to_string() },
            "replicas": replicas,
        });
        if let (Some(directory), Some(config)) = (&self.models_directory, config.as_object_mut()) {
            config.insert("tokenizers".to_owned(), serde_json::json!({ "directory": directory, "poll_ms": 100 }));
        }
        config
    }
}

// === impl EngineOptions ===

impl Default for EngineOptions {
    /// Room for 16,384 tokens, and fast enough for tests.
    fn default() -> EngineOptions {
        EngineOptions {
            blocks: 1024,
            event_encoding: "array".into(),
            prefill_us_per_token: 20,
            base_ttft_us: 1_000,
            decode_us_per_token: 100,
            loras: Vec::new(),
        }
    }
}

impl EngineOptions {
    pub(super) fn arguments(&self, id: &str, model: &ServedModel, addresses: &EngineAddresses) -> Vec<String> {
        let loras = self.loras.iter().map(|name| ("--lora", name.clone()));
        let model_dir = model.model_dir.iter().map(|folder| ("--model-dir", folder.display().to_string()));
        [
            ("--id", id.to_owned()),
            ("--model", model.id.clone()),
            ("--listen", addresses.http.to_string()),
            ("--kv-events", format!("tcp://{}", addresses.kv_events)),
            ("--kv-replay", format!("tcp://{}", addresses.kv_replay)),
            ("--blocks", self.blocks.to_string()),
            ("--event-encoding", self.event_encoding.clone()),
            ("--prefill-us-per-token", self.prefill_us_per_token.to_string()),
            ("--base-ttft-us", self.base_ttft_us.to_string()),
            ("--decode-us-per-token", self.decode_us_per_token.to_string()),
        ]
        .into_iter()
        .chain(loras)
        .chain(model_dir)
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }
}
