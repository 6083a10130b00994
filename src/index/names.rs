//! What the index says of names, and how what counts under them follows generations.
//!
//! A generation counts from when it is complete until it ends. What it holds counts under the names of its scopes for as
//! long: at once, although the blocks of one that has ended stay until the sweep.

use super::Index;
use super::dictionary::Replica;
use crate::observation::{Observation, ReplicaSlot, Scope, ScopeSlot};

// === impl Index ===

impl Index {
    /// Whether nothing that counts is held at all; expired blocks count until the sweep.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether anything is held for this tenant.
    pub fn knows_tenant(&self, tenant_id: &str) -> bool {
        self.live.knows_tenant(tenant_id)
    }

    /// Whether anything is held of this model for this tenant.
    pub fn knows_model(&self, tenant_id: &str, model_id: &str) -> bool {
        self.live.knows_model(tenant_id, model_id)
    }

    /// The tenants for which anything is held, in no order.
    pub fn known_tenants(&self) -> impl Iterator<Item = &str> {
        self.live.tenants()
    }

    /// The tenant's models of which anything is held, in no order.
    pub fn known_models(&self, tenant_id: &str) -> impl Iterator<Item = &str> {
        self.live.models(tenant_id)
    }

    /// The hash schemes under which anything is held of a model, in no order.
    pub fn known_schemes(&self, tenant_id: &str, model_id: &str) -> impl Iterator<Item = &str> {
        self.live.schemes(tenant_id, model_id)
    }

    /// Replicas that hold at least one block under this scope's tenant, model and hash scheme, whatever the adapter;
    /// expired blocks count until the sweep. Oldest generation first.
    pub fn serving(&self, scope: &Scope) -> impl Iterator<Item = (ReplicaSlot, &Replica)> {
        self.live.replicas(scope).filter_map(|slot| Some((slot, self.dictionary.complete_replica(slot)?)))
    }

    /// Replicas that are up for this scope's tenant and model, whether or not they hold anything. Oldest generation first.
    pub fn members(&self, scope: &Scope) -> impl Iterator<Item = (ReplicaSlot, &Replica)> {
        self.members_of(&scope.tenant_id, &scope.model_id)
    }

    /// Replicas that are up for a tenant and a model, whether or not they hold anything. Oldest generation first.
    pub fn members_of(&self, tenant_id: &str, model_id: &str) -> impl Iterator<Item = (ReplicaSlot, &Replica)> {
        self.dictionary.members(tenant_id, model_id)
    }

    /// Takes in what is said of scopes and replicas, and what begins and ends to count by it.
    pub(super) fn announce(&mut self, observation: &Observation) {
        match observation {
            Observation::Scope { slot, scope } => return self.name(*slot, scope),
            Observation::ScopeGone { slot } => return self.unname(*slot),
            _ => {}
        }
        let turn = self.dictionary.apply(observation);
        for replica in turn.ended {
            self.scopes_of(replica).into_iter().for_each(|scope| self.discount(scope, replica));
            // A number that is announced anew, in a replay, keeps what it has.
            if self.dictionary.replica(replica).is_none() {
                self.runs.clear(replica);
                self.take_turns();
            }
        }
        match observation {
            Observation::ReplicaUp { replica, .. }
            | Observation::ReplicaComplete { replica }
            | Observation::Reasserted { replica, .. }
                if self.dictionary.replica(*replica).is_some() =>
            {
                self.set_standing(*replica);
            }
            _ => {}
        }
        if let Some(replica) = turn.begun {
            self.scopes_of(replica).into_iter().for_each(|scope| self.count(scope, replica));
        }
    }

    /// `slot` stands for `scope` from now on. What is held there counts under that name only.
    fn name(&mut self, slot: ScopeSlot, scope: &Scope) {
        let before = self.dictionary.scope(slot).is_some_and(|known| known != scope);
        let holding = if before || self.unnamed.contains(&slot) { self.complete_holding(slot) } else { Vec::new() };
        if before {
            holding.iter().for_each(|replica| self.discount(slot, *replica));
        }
        self.unnamed.remove(&slot);
        self.dictionary.apply(&Observation::Scope { slot, scope: scope.clone() });
        holding.iter().for_each(|replica| self.count(slot, *replica));
    }

    /// `slot` stands for nothing from now on: what is held there counts for nothing, and goes at the sweep.
    fn unname(&mut self, slot: ScopeSlot) {
        if self.keys_of(slot) > 0 {
            self.complete_holding(slot).into_iter().for_each(|replica| self.discount(slot, replica));
            self.unnamed.insert(slot);
        }
        self.dictionary.apply(&Observation::ScopeGone { slot });
    }

    /// The generations that count and hold something in a scope.
    fn complete_holding(&self, slot: ScopeSlot) -> Vec<ReplicaSlot> {
        let complete = |replica: &ReplicaSlot| self.dictionary.complete_replica(*replica).is_some();
        self.runs.holding(slot).map(|(replica, _)| replica).filter(complete).collect()
    }

    /// A generation that counts holds something in `scope`.
    pub(super) fn count(&mut self, scope: ScopeSlot, replica: ReplicaSlot) {
        match self.dictionary.scope(scope) {
            Some(scope) => self.live.add(scope, replica),
            None => {
                self.unnamed.insert(scope);
            }
        }
    }

    /// A generation holds nothing in `scope` any more, or no longer counts.
    pub(super) fn discount(&mut self, scope: ScopeSlot, replica: ReplicaSlot) {
        if let Some(scope) = self.dictionary.scope(scope) {
            self.live.remove(scope, replica);
        }
    }
}
