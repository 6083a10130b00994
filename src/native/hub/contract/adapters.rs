//! LoRA adapters that a request names in place of the model, as in the filter.
//!
//! In: a request. Out: the same with the base model and the adapter, where the name is no model of which anything is
//! known, the request names no adapter, and it is clear whose adapter it is: by `models[].adapters`, else by what was
//! reported of exactly one base model.

use std::collections::{BTreeMap, HashSet};

use super::messages::v1alpha1::LookupRouteRequest;
use crate::config::Adapter;
use crate::index::dictionary::Dictionary;
use crate::native::hub::config::HubConfig;

/// Knows which names are adapters.
pub struct Adapters {
    listed: BTreeMap<String, Adapter>,
    /// The models that the configuration names.
    models: HashSet<String>,
}

// === impl Adapters ===

impl Adapters {
    /// What the configuration says.
    pub fn new(config: &HubConfig) -> Adapters {
        let listed = config.models.iter().map(|model| model.model_id.clone());
        let followed = config.replicas.iter().map(|replica| replica.model.clone());
        Adapters { listed: config.adapters.clone(), models: listed.chain(followed).collect() }
    }

    /// Puts the base model and its adapter where the request names the adapter as the model.
    pub fn resolve(&self, request: &mut LookupRouteRequest, known: &Dictionary) {
        let (tenant_id, name) = (&request.tenant_id, &request.model_id);
        let is_model = self.models.contains(name) || known.members(tenant_id, name).next().is_some();
        if !request.adapter_id.is_empty() || name.is_empty() || is_model {
            return;
        }
        if let Some(Adapter { model_id, adapter_id }) = self.listed.get(name) {
            (request.model_id, request.adapter_id) = (model_id.clone(), adapter_id.clone());
            return;
        }
        let models: Vec<&str> = known.models_of_adapter(tenant_id, name).take(2).collect();
        if let [model_id] = *models {
            request.adapter_id = std::mem::replace(&mut request.model_id, model_id.to_owned());
        }
    }
}
