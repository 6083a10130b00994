//! The scopes and replicas that an index knows, by number.
//!
//! A number is never reused, so a block whose replica is not in here belongs to a generation that has ended, and
//! counts for nothing.

mod generations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::observation::{Member, ModelVersion, Observation, ReplicaSlot, ReplicaStats, Scope, ScopeSlot};
use crate::routing::policy::Policy;

/// Whether a replica's generation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its state is still arriving.
    Arriving,
    /// Its state is complete.
    Complete,
}

/// A generation of a replica.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The replica's id, and the tenant and model it serves under this number.
    pub member: Member,
    /// The replica's id.
    pub replica_id: Arc<str>,
    /// `ip:port` as Envoy knows it.
    pub address: Arc<str>,
    /// The rank of data parallelism that it is, where the engine at the address has several.
    pub data_parallel_rank: Option<u32>,
    /// Whether it counts.
    pub standing: Standing,
    /// Its load, if it reported any.
    pub stats: Option<ReplicaStats>,
    /// When it was last known that it holds all that was reported of it before, Unix time in ms; 0 for never.
    pub reasserted_ms: u64,
    published: Option<ReplicaSlot>,
}

/// Scopes and replicas by number.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    scopes: HashMap<ScopeSlot, KnownScope>,
    by_scope: HashMap<Arc<Scope>, ScopeSlot>,
    by_tenant: HashMap<String, BTreeSet<ScopeSlot>>,
    /// The models that an adapter has scopes of, with how many, by tenant and adapter.
    adapters: HashMap<String, HashMap<String, BTreeMap<String, u32>>>,
    replicas: HashMap<ReplicaSlot, Replica>,
    generations: HashMap<Member, BTreeSet<ReplicaSlot>>,
    /// The generations that count, by tenant and model.
    members: HashMap<String, HashMap<String, BTreeSet<ReplicaSlot>>>,
    /// The publisher's policies, by tenant.
    policies: BTreeMap<Option<String>, Policy>,
    /// What turns the models' text into token ids.
    models: BTreeMap<String, ModelVersion>,
    /// What the hub's numbers stand for.
    published_scopes: HashMap<ScopeSlot, ScopeSlot>,
    published_replicas: HashMap<ReplicaSlot, ReplicaSlot>,
}

/// What begins and ends to count with an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Generations that count from now on.
    pub begun: Option<ReplicaSlot>,
    /// Generations that counted and no longer do.
    pub ended: Vec<ReplicaSlot>,
}

#[derive(Clone, Debug)]
struct KnownScope {
    scope: Arc<Scope>,
    published: Option<ScopeSlot>,
}

// === impl Dictionary ===

impl Dictionary {
    /// Takes in what `observation` says of scopes and replicas; anything else is left alone.
    pub fn apply(&mut self, observation: &Observation) -> Turn {
        match observation {
            Observation::Scope { slot, scope } => self.add_scope(*slot, scope),
            Observation::ScopeGone { slot } => self.remove_scope(*slot),
            Observation::ReplicaUp { replica, member, address, data_parallel_rank } => {
                return self.up(*replica, member, address, *data_parallel_rank);
            }
            Observation::ReplicaComplete { replica } => return self.complete(*replica),
            Observation::ReplicaGone { replica } => return self.gone(*replica),
            Observation::Stats { replica, stats } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.stats = Some(*stats);
                }
            }
            // A number that the hub gives anew, after a restart, no longer stands for what it did before.
            Observation::PublishedScope { slot, published } => {
                let before = self.published_scopes.insert(*published, *slot);
                if let Some(scope) = before.and_then(|before| self.scopes.get_mut(&before)) {
                    forget_number(&mut scope.published, *published);
                }
                if let Some(scope) = self.scopes.get_mut(slot) {
                    scope.published = Some(*published);
                }
            }
            Observation::PublishedReplica { replica, published } => {
                let before = self.published_replicas.insert(*published, *replica);
                if let Some(replica) = before.and_then(|before| self.replicas.get_mut(&before)) {
                    forget_number(&mut replica.published, *published);
                }
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.published = Some(*published);
                }
            }
            Observation::Policy { tenant_id, policy } => {
                self.policies.insert(tenant_id.clone(), policy.clone());
            }
            Observation::PolicyGone { tenant_id } => {
                self.policies.remove(tenant_id);
            }
            Observation::Model { model_id, version } => {
                self.models.insert(model_id.clone(), *version);
            }
            Observation::ModelGone { model_id } => {
                self.models.remove(model_id);
            }
            Observation::Reasserted { replica, at_ms } => {
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.reasserted_ms = replica.reasserted_ms.max(*at_ms);
                }
            }
            Observation::Stored(_)
            | Observation::Removed { .. }
            | Observation::Cleared { .. }
            | Observation::Counted(_) => {}
        }
        Turn::default()
    }

    /// The number of a scope.
    pub fn scope_slot(&self, scope: &Scope) -> Option<ScopeSlot> {
        self.by_scope.get(scope).copied()
    }

    /// The scope behind a number.
    pub fn scope(&self, slot: ScopeSlot) -> Option<&Scope> {
        self.scope_name(slot).map(|scope| &**scope)
    }

    /// The scope behind a number, to be kept.
    pub fn scope_name(&self, slot: ScopeSlot) -> Option<&Arc<Scope>> {
        self.scopes.get(&slot).map(|known| &known.scope)
    }

    /// Every scope.
    pub fn scopes(&self) -> impl Iterator<Item = (ScopeSlot, &Scope)> {
        self.scopes.iter().map(|(slot, known)| (*slot, &*known.scope))
    }

    /// The scopes of a tenant, in order.
    pub fn scopes_of(&self, tenant_id: &str) -> impl Iterator<Item = ScopeSlot> {
        self.by_tenant.get(tenant_id).into_iter().flatten().copied()
    }

    /// How many scopes there are.
    pub fn scope_count(&self) -> usize {
        self.scopes.len()
    }

    /// The base models that have a scope of this adapter for this tenant.
    pub fn models_of_adapter(&self, tenant_id: &str, adapter_id: &str) -> impl Iterator<Item = &str> {
        let models = self.adapters.get(tenant_id).and_then(|adapters| adapters.get(adapter_id));
        models.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// The generations of a member that have not ended, oldest first.
    pub fn generations(&self, member: &Member) -> impl Iterator<Item = ReplicaSlot> {
        self.generations.get(member).into_iter().flatten().copied()
    }

    /// The generations that count for a tenant and model, oldest first.
    pub fn members(&self, tenant_id: &str, model_id: &str) -> impl Iterator<Item = (ReplicaSlot, &Replica)> {
        let members = self.members.get(tenant_id).and_then(|models| models.get(model_id));
        members.into_iter().flatten().filter_map(|slot| Some((*slot, self.replica(*slot)?)))
    }

    /// The generation behind a number, while it lasts.
    pub fn replica(&self, slot: ReplicaSlot) -> Option<&Replica> {
        self.replicas.get(&slot)
    }

    /// The generation behind a number, if it counts.
    pub fn complete_replica(&self, slot: ReplicaSlot) -> Option<&Replica> {
        self.replica(slot).filter(|replica| replica.standing == Standing::Complete)
    }

    /// Every generation that has not ended.
    pub fn replicas(&self) -> impl Iterator<Item = (ReplicaSlot, &Replica)> {
        self.replicas.iter().map(|(slot, replica)| (*slot, replica))
    }

    /// The publisher's policy of this tenant itself; none for that of tenants without one of their own.
    pub fn policy(&self, tenant_id: Option<&str>) -> Option<&Policy> {
        self.policies.get(&tenant_id.map(str::to_owned))
    }

    /// Every policy of the publisher, by tenant.
    pub fn policies(&self) -> impl Iterator<Item = (Option<&str>, &Policy)> {
        self.policies.iter().map(|(tenant_id, policy)| (tenant_id.as_deref(), policy))
    }

    /// What turns this model's text into token ids.
    pub fn model(&self, model_id: &str) -> Option<ModelVersion> {
        self.models.get(model_id).copied()
    }

    /// Every model whose text can be turned into token ids.
    pub fn models(&self) -> impl Iterator<Item = (&str, ModelVersion)> {
        self.models.iter().map(|(model_id, version)| (model_id.as_str(), *version))
    }

    /// The hub's numbers for scopes, with ours.
    pub fn published_scopes(&self) -> impl Iterator<Item = (ScopeSlot, ScopeSlot)> {
        self.scopes.iter().filter_map(|(slot, known)| Some((known.published?, *slot)))
    }

    /// The hub's numbers for replicas, with ours.
    pub fn published_replicas(&self) -> impl Iterator<Item = (ReplicaSlot, ReplicaSlot)> {
        self.replicas.iter().filter_map(|(slot, replica)| Some((replica.published?, *slot)))
    }

    /// Observations that rebuild this dictionary.
    pub fn to_observations(&self) -> Vec<Observation> {
        let mut out = Vec::new();
        let mut scopes: Vec<_> = self.scopes.iter().collect();
        scopes.sort_unstable_by_key(|(slot, _)| **slot);
        for (slot, known) in scopes {
            out.push(Observation::Scope { slot: *slot, scope: Scope::clone(&known.scope) });
            out.extend(known.published.map(|published| Observation::PublishedScope { slot: *slot, published }));
        }
        let mut replicas: Vec<_> = self.replicas.iter().collect();
        replicas.sort_unstable_by_key(|(slot, _)| **slot);
        for (slot, replica) in replicas {
            replica.to_observations(*slot, &mut out);
        }
        out.extend(
            self.policies.iter().map(|(tenant_id, policy)| Observation::Policy {
                tenant_id: tenant_id.clone(),
                policy: policy.clone(),
            }),
        );
        let models = self.models.iter();
        out.extend(
            models.map(|(model_id, version)| Observation::Model { model_id: model_id.clone(), version: *version }),
        );
        out
    }

    fn add_scope(&mut self, slot: ScopeSlot, scope: &Scope) {
        self.remove_scope(slot);
        let name = Arc::new(scope.clone());
        self.by_scope.insert(Arc::clone(&name), slot);
        self.by_tenant.entry_ref(&scope.tenant_id).or_default().insert(slot);
        self.scopes.insert(slot, KnownScope { scope: name, published: None });
        if !scope.adapter_id.is_empty() {
            let adapters = self.adapters.entry_ref(&scope.tenant_id).or_default();
            let models = adapters.entry_ref(&scope.adapter_id).or_default();
            *models.entry(scope.model_id.clone()).or_default() += 1;
        }
    }

    fn remove_scope(&mut self, slot: ScopeSlot) {
        let Some(KnownScope { scope, published }) = self.scopes.remove(&slot) else { return };
        if self.by_scope.get(&scope) == Some(&slot) {
            self.by_scope.remove(&scope);
        }
        if let Some(scopes) = self.by_tenant.get_mut(&scope.tenant_id) {
            scopes.remove(&slot);
            if scopes.is_empty() {
                self.by_tenant.remove(&scope.tenant_id);
            }
        }
        if let Some(published) = published
            && self.published_scopes.get(&published) == Some(&slot)
        {
            self.published_scopes.remove(&published);
        }
        self.remove_adapter(&scope);
    }

    /// One scope less has this adapter.
    fn remove_adapter(&mut self, scope: &Scope) {
        let Some(adapters) = self.adapters.get_mut(&scope.tenant_id) else { return };
        let Some(models) = adapters.get_mut(&scope.adapter_id) else { return };
        if let Some(scopes) = models.get_mut(&scope.model_id) {
            *scopes = scopes.saturating_sub(1);
            if *scopes == 0 {
                models.remove(&scope.model_id);
            }
        }
        if models.is_empty() {
            adapters.remove(&scope.adapter_id);
        }
        if adapters.is_empty() {
            self.adapters.remove(&scope.tenant_id);
        }
    }
}

fn forget_number<Number: PartialEq>(published: &mut Option<Number>, number: Number) {
    if published.as_ref() == Some(&number) {
        *published = None;
    }
}

#[cfg(test)]
mod tests;
