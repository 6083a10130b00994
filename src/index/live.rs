//! What counts, by name: who holds something under which tenant, model and hash scheme.
//!
//! A replica is here under a scope's names while its generation counts and it holds at least one block there; expired blocks
//! count until the sweep. A name is here as long as something is under it, so that whether one is known is a look-up.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::observation::{ReplicaSlot, Scope};

/// Replicas by tenant, model and hash scheme.
#[derive(Clone, Debug, Default)]
pub struct Live {
    tenants: HashMap<String, HashMap<String, HashMap<String, Replicas>>>,
}

/// In how many adapters each replica holds something.
type Replicas = BTreeMap<ReplicaSlot, u32>;

// === impl Live ===

impl Live {
    /// Nothing counts.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// `replica` begins to hold something in `scope`.
    pub fn add(&mut self, scope: &Scope, replica: ReplicaSlot) {
        let models = self.tenants.entry_ref(&scope.tenant_id).or_default();
        let schemes = models.entry_ref(&scope.model_id).or_default();
        *schemes.entry_ref(&scope.hash_scheme).or_default().entry(replica).or_default() += 1;
    }

    /// `replica`, which held something in `scope`, no longer does.
    pub fn remove(&mut self, scope: &Scope, replica: ReplicaSlot) {
        let Some(models) = self.tenants.get_mut(&scope.tenant_id) else { return };
        let Some(schemes) = models.get_mut(&scope.model_id) else { return };
        let Some(replicas) = schemes.get_mut(&scope.hash_scheme) else { return };
        if let Some(adapters) = replicas.get_mut(&replica) {
            *adapters = adapters.saturating_sub(1);
            if *adapters == 0 {
                replicas.remove(&replica);
            }
        }
        if replicas.is_empty() {
            schemes.remove(&scope.hash_scheme);
        }
        if schemes.is_empty() {
            models.remove(&scope.model_id);
        }
        if models.is_empty() {
            self.tenants.remove(&scope.tenant_id);
        }
    }

    /// Whether anything is under this tenant.
    pub fn knows_tenant(&self, tenant_id: &str) -> bool {
        self.tenants.contains_key(tenant_id)
    }

    /// Whether anything is under this model of the tenant.
    pub fn knows_model(&self, tenant_id: &str, model_id: &str) -> bool {
        self.tenants.get(tenant_id).is_some_and(|models| models.contains_key(model_id))
    }

    /// The tenants, in no order.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// The tenant's models, in no order.
    pub fn models(&self, tenant_id: &str) -> impl Iterator<Item = &str> {
        self.tenants.get(tenant_id).into_iter().flat_map(HashMap::keys).map(String::as_str)
    }

    /// The hash schemes of a model, in no order.
    pub fn schemes(&self, tenant_id: &str, model_id: &str) -> impl Iterator<Item = &str> {
        let models = self.tenants.get(tenant_id);
        models.and_then(|models| models.get(model_id)).into_iter().flat_map(HashMap::keys).map(String::as_str)
    }

    /// The replicas under the scope's tenant, model and hash scheme, in order.
    pub fn replicas(&self, scope: &Scope) -> impl Iterator<Item = ReplicaSlot> {
        let models = self.tenants.get(&scope.tenant_id);
        let schemes = models.and_then(|models| models.get(&scope.model_id));
        let replicas = schemes.and_then(|schemes| schemes.get(&scope.hash_scheme));
        replicas.into_iter().flat_map(|replicas| replicas.keys().copied())
    }
}
