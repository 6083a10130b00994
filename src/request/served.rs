//! From the name that a request gives for its model to the model that serves it.
//!
//! A model may be served under further names. A request for a LoRA adapter names the adapter in place of the model. Such a
//! name is resolved by the configuration
//! first, then by what the engines reported; where both base models of an adapter are configured, none is guessed.

use crate::config::{FilterConfig, ModelConfig};
use crate::routing::reason::Detail;

/// Which models have which adapters, as the engines reported it.
pub trait KnownAdapters {
    /// The models that have this adapter for this tenant, in any order. Asked only about names that the configuration
    /// does not know.
    fn models_of(&mut self, tenant_id: &str, adapter_id: &str) -> Vec<String>;
}

/// Knows no adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoAdapters;

/// A model, and the adapter on it that a request named in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served<'a> {
    pub model: &'a ModelConfig,
    pub adapter_id: Option<&'a str>,
}

/// What serves `name` for a tenant, if that is known.
///
/// # Errors
/// `model_not_configured` if it is neither a configured model nor an adapter of one; `ambiguous_adapter` if it is one of
/// several.
pub(super) fn serving<'a>(
    name: &'a str,
    tenant_id: Option<&str>,
    config: &'a FilterConfig,
    known: &mut dyn KnownAdapters,
) -> Result<Served<'a>, Detail> {
    if let Some(model) = config.model(name) {
        return Ok(Served { model, adapter_id: None });
    }
    if let Some((model, adapter_id)) = config.adapter(name) {
        return Ok(Served { model, adapter_id: Some(adapter_id) });
    }
    let mut reported = tenant_id.map(|tenant_id| known.models_of(tenant_id, name)).unwrap_or_default();
    reported.sort_unstable();
    reported.dedup();
    let mut models = reported.iter().filter_map(|model_id| config.models.get(model_id));
    match (models.next(), models.next()) {
        (Some(model), None) => Ok(Served { model, adapter_id: Some(name) }),
        (Some(_), Some(_)) => Err(Detail::AmbiguousAdapter),
        (None, _) => Err(Detail::ModelNotConfigured),
    }
}

// === impl NoAdapters ===

impl KnownAdapters for NoAdapters {
    fn models_of(&mut self, _: &str, _: &str) -> Vec<String> {
        Vec::new()
    }
}
