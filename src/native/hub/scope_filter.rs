//! Which observations a subscriber asked for.
//!
//! In: a subscription's models and tenants, then observations in order. Out: whether the subscriber gets each. What is not
//! of a scope, such as a replica's announcement and load, goes to everybody. Pure.

use std::collections::HashSet;

use crate::observation::{Observation, Scope, ScopeSlot, Stored, Subscription};

/// The scopes a subscriber asked for.
#[derive(Debug, Default)]
pub struct ScopeFilter {
    models: Vec<String>,
    tenants: Vec<String>,
    /// Scopes it did not ask for.
    others: HashSet<ScopeSlot>,
}

// === impl ScopeFilter ===

impl ScopeFilter {
    /// The filter that `subscription` describes.
    pub fn new(subscription: &Subscription) -> ScopeFilter {
        ScopeFilter {
            models: subscription.models.clone(),
            tenants: subscription.tenants.clone(),
            others: HashSet::new(),
        }
    }

    /// Takes note of a scope before anything of it is looked at.
    pub fn learn(&mut self, slot: ScopeSlot, scope: &Scope) {
        let asked_for = |wanted: &[String], value: &String| wanted.is_empty() || wanted.contains(value);
        if !(asked_for(&self.models, &scope.model_id) && asked_for(&self.tenants, &scope.tenant_id)) {
            self.others.insert(slot);
        }
    }

    /// Whether the subscriber gets this observation.
    pub fn admits(&mut self, observation: &Observation) -> bool {
        match observation {
            Observation::Scope { slot, scope } => {
                self.learn(*slot, scope);
                !self.others.contains(slot)
            }
            Observation::ScopeGone { slot } => !self.others.remove(slot),
            Observation::Stored(Stored { scope, .. }) | Observation::Removed { scope, .. } => {
                !self.others.contains(scope)
            }
            Observation::Model { model_id, .. } | Observation::ModelGone { model_id } => {
                self.models.is_empty() || self.models.contains(model_id)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ReplicaSlot;

    fn scope(slot: u32, tenant_id: &str, model_id: &str) -> Observation {
        let scope = Scope {
            tenant_id: tenant_id.into(),
            model_id: model_id.into(),
            hash_scheme: "vllm".into(),
            adapter_id: String::new(),
        };
        Observation::Scope { slot: ScopeSlot(slot), scope }
    }

    fn removed(slot: u32) -> Observation {
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(slot), keys: Vec::new() }
    }

    fn admitted(models: &[&str], tenants: &[&str]) -> Vec<bool> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let subscription = Subscription { models: owned(models), tenants: owned(tenants), ..Subscription::default() };
        let mut filter = ScopeFilter::new(&subscription);
        let observations = [scope(1, "t", "m"), scope(2, "t", "n"), removed(1), removed(2)];
        let of_all = Observation::Reasserted { replica: ReplicaSlot(1), at_ms: 1 };
        observations.iter().chain([&of_all]).map(|observation| filter.admits(observation)).collect()
    }

    #[test]
    fn a_scope_must_be_of_a_model_and_of_a_tenant_asked_for() {
        assert_eq!(admitted(&[], &[]), [true; 5]);
        assert_eq!(admitted(&["m"], &[]), [true, false, true, false, true]);
        assert_eq!(admitted(&["m", "n"], &["t"]), [true; 5]);
        assert_eq!(admitted(&["m"], &["u"]), [false, false, false, false, true]);
    }
}
