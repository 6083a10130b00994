//! The scopes and replicas that an index knows, by number.
//!
//! A number is never reused, so a block whose replica is not in here belongs to a generation that has ended, and
//! counts for nothing.

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
            Observation::ReplicaUp { replica, member, address } => return self.up(*replica, member, address),
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

    fn up(&mut self, slot: ReplicaSlot, member: &Member, address: &str) -> Turn {
        let ended = self.end(slot).into_iter().collect();
        self.generations.entry_ref(member).or_default().insert(slot);
        let replica = Replica {
            replica_id: member.replica_id.as_str().into(),
            member: member.clone(),
            address: address.into(),
            standing: Standing::Arriving,
            stats: None,
            reasserted_ms: 0,
            published: None,
        };
        self.replicas.insert(slot, replica);
        Turn { begun: None, ended }
    }

    /// A complete generation ends the others of the same replica, but for those that are still arriving: they are newer.
    fn complete(&mut self, slot: ReplicaSlot) -> Turn {
        let Some(replica) = self.replicas.get_mut(&slot) else { return Turn::default() };
        let before = std::mem::replace(&mut replica.standing, Standing::Complete);
        let member = replica.member.clone();
        let begun = (before == Standing::Arriving).then_some(slot);
        if begun.is_some() {
            let models = self.members.entry_ref(&member.tenant_id).or_default();
            models.entry_ref(&member.model_id).or_default().insert(slot);
        }
        let is_newer = |other| other > slot && self.complete_replica(other).is_none();
        let others: Vec<_> = self.generations(&member).filter(|other| *other != slot && !is_newer(*other)).collect();
        Turn { begun, ended: others.into_iter().filter_map(|other| self.end(other)).collect() }
    }

    /// An older generation that waited for this one to be complete has nothing left to wait for.
    fn gone(&mut self, slot: ReplicaSlot) -> Turn {
        let Some(gone) = self.replicas.get(&slot) else { return Turn::default() };
        let older: Vec<_> = self.generations(&gone.member).filter(|other| *other <= slot).collect();
        Turn { begun: None, ended: older.into_iter().filter_map(|other| self.end(other)).collect() }
    }

    /// Ends a generation; its number if it counted.
    fn end(&mut self, slot: ReplicaSlot) -> Option<ReplicaSlot> {
        let Replica { member, standing, .. } = self.replicas.remove(&slot)?;
        if let Some(generations) = self.generations.get_mut(&member) {
            generations.remove(&slot);
            if generations.is_empty() {
                self.generations.remove(&member);
            }
        }
        if standing == Standing::Arriving {
            return None;
        }
        if let Some(models) = self.members.get_mut(&member.tenant_id) {
            if let Some(members) = models.get_mut(&member.model_id) {
                members.remove(&slot);
                if members.is_empty() {
                    models.remove(&member.model_id);
                }
            }
            if models.is_empty() {
                self.members.remove(&member.tenant_id);
            }
        }
        Some(slot)
    }
}

// === impl Replica ===

impl Replica {
    fn to_observations(&self, slot: ReplicaSlot, out: &mut Vec<Observation>) {
        out.push(Observation::ReplicaUp {
            replica: slot,
            member: self.member.clone(),
            address: self.address.to_string(),
        });
        out.extend(self.published.map(|published| Observation::PublishedReplica { replica: slot, published }));
        out.extend(self.stats.map(|stats| Observation::Stats { replica: slot, stats }));
        if self.reasserted_ms > 0 {
            out.push(Observation::Reasserted { replica: slot, at_ms: self.reasserted_ms });
        }
        if self.standing == Standing::Complete {
            out.push(Observation::ReplicaComplete { replica: slot });
        }
    }
}

fn forget_number<Number: PartialEq>(published: &mut Option<Number>, number: Number) {
    if published.as_ref() == Some(&number) {
        *published = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(slot: u32) -> Observation {
        let member = Member { tenant_id: "t".into(), model_id: "m".into(), replica_id: "a".into() };
        Observation::ReplicaUp { replica: ReplicaSlot(slot), member, address: "10.0.0.1:80".into() }
    }

    fn complete(slot: u32) -> Observation {
        Observation::ReplicaComplete { replica: ReplicaSlot(slot) }
    }

    fn known(observations: &[Observation]) -> Vec<(u32, Standing)> {
        let mut dictionary = Dictionary::default();
        for observation in observations {
            dictionary.apply(observation);
        }
        let mut known: Vec<_> = dictionary.replicas().map(|(slot, replica)| (slot.0, replica.standing)).collect();
        known.sort_unstable_by_key(|(slot, _)| *slot);
        known
    }

    #[test]
    fn an_older_generation_counts_until_the_newer_is_complete() {
        assert_eq!(known(&[up(1), complete(1), up(2)]), [(1, Standing::Complete), (2, Standing::Arriving)]);
        assert_eq!(known(&[up(1), complete(1), up(2), complete(2)]), [(2, Standing::Complete)]);
    }

    #[test]
    fn completing_again_keeps_a_newer_arrival() {
        assert_eq!(
            known(&[up(1), complete(1), up(2), complete(1)]),
            [(1, Standing::Complete), (2, Standing::Arriving)]
        );
    }

    #[test]
    fn a_replica_that_goes_takes_its_older_generations_along_and_leaves_newer_ones() {
        let gone = |slot| Observation::ReplicaGone { replica: ReplicaSlot(slot) };
        assert_eq!(known(&[up(1), complete(1), up(2), gone(2)]), []);
        assert_eq!(known(&[up(1), complete(1), up(2), gone(1)]), [(2, Standing::Arriving)]);
    }

    #[test]
    fn observations_rebuild_the_dictionary() {
        let scope = Scope {
            tenant_id: "t".into(),
            model_id: "m".into(),
            hash_scheme: "vllm".into(),
            adapter_id: String::new(),
        };
        let facts = vec![
            Observation::Scope { slot: ScopeSlot(4), scope: scope.clone() },
            Observation::PublishedScope { slot: ScopeSlot(4), published: ScopeSlot(1) },
            up(1),
            Observation::PublishedReplica { replica: ReplicaSlot(1), published: ReplicaSlot(9) },
            Observation::Stats {
                replica: ReplicaSlot(1),
                stats: ReplicaStats { pressure: 0.5, hit_rate: 0.1, reported_ms: 3 },
            },
            complete(1),
            up(2),
        ];
        let mut dictionary = Dictionary::default();
        for fact in &facts {
            dictionary.apply(fact);
        }
        assert_eq!(dictionary.to_observations(), facts);
        assert_eq!(dictionary.scope_slot(&scope), Some(ScopeSlot(4)));
        assert_eq!(dictionary.published_replicas().collect::<Vec<_>>(), [(ReplicaSlot(9), ReplicaSlot(1))]);
    }
    #[test]
    fn members_are_the_generations_that_count() {
        let mut dictionary = Dictionary::default();
        let turns = [up(1), complete(1), complete(1), up(2), complete(2), up(2)].map(|fact| dictionary.apply(&fact));
        let began = |slot| Turn { begun: Some(ReplicaSlot(slot)), ended: Vec::new() };
        let first_ended = Turn { begun: Some(ReplicaSlot(2)), ended: vec![ReplicaSlot(1)] };
        let arrives_again = Turn { begun: None, ended: vec![ReplicaSlot(2)] };
        assert_eq!(turns, [Turn::default(), began(1), Turn::default(), Turn::default(), first_ended, arrives_again]);
        assert_eq!(dictionary.members("t", "m").count(), 0);
        dictionary.apply(&complete(2));
        assert_eq!(dictionary.members("t", "m").map(|(slot, _)| slot.0).collect::<Vec<_>>(), [2]);
        assert_eq!(dictionary.members("m", "t").count(), 0);
        assert_eq!(dictionary.generations(&Member::new("t", "m", "a")).collect::<Vec<_>>(), [ReplicaSlot(2)]);
    }

    #[test]
    fn an_adapter_has_the_models_that_it_was_seen_with() {
        let mut dictionary = Dictionary::default();
        let scopes = [("m", "vllm", "lora"), ("m", "sglang", "lora"), ("n", "vllm", "lora"), ("n", "vllm", "")];
        for (slot, (model_id, hash_scheme, adapter_id)) in scopes.into_iter().enumerate() {
            let scope = Scope {
                tenant_id: "t".into(),
                model_id: model_id.into(),
                hash_scheme: hash_scheme.into(),
                adapter_id: adapter_id.into(),
            };
            dictionary.apply(&Observation::Scope { slot: ScopeSlot(slot as u32), scope });
        }
        assert_eq!(dictionary.models_of_adapter("t", "lora").collect::<Vec<_>>(), ["m", "n"]);
        assert_eq!(dictionary.models_of_adapter("t", "").count(), 0);
        assert_eq!(dictionary.models_of_adapter("u", "lora").count(), 0);
    }

    #[test]
    fn nothing_is_left_of_a_scope_that_is_gone() {
        let scope = |hash_scheme: &str| Scope {
            tenant_id: "t".into(),
            model_id: "m".into(),
            hash_scheme: hash_scheme.into(),
            adapter_id: "lora".into(),
        };
        let mut dictionary = Dictionary::default();
        for (slot, hash_scheme) in [(1, "vllm"), (2, "sglang"), (2, "sglang")] {
            dictionary.apply(&Observation::Scope { slot: ScopeSlot(slot), scope: scope(hash_scheme) });
            dictionary.apply(&Observation::PublishedScope { slot: ScopeSlot(slot), published: ScopeSlot(slot + 10) });
        }
        dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(2) });
        assert_eq!((dictionary.scope_slot(&scope("sglang")), dictionary.scope(ScopeSlot(2))), (None, None));
        assert_eq!(dictionary.scope_slot(&scope("vllm")), Some(ScopeSlot(1)));
        assert_eq!(dictionary.published_scopes().collect::<Vec<_>>(), [(ScopeSlot(11), ScopeSlot(1))]);
        assert_eq!(dictionary.models_of_adapter("t", "lora").collect::<Vec<_>>(), ["m"], "under another scheme");
        dictionary.apply(&Observation::Scope { slot: ScopeSlot(3), scope: scope("vllm") });
        dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(1) });
        assert_eq!(dictionary.scope_slot(&scope("vllm")), Some(ScopeSlot(3)), "it has a newer number");
        dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(3) });
        assert_eq!(dictionary.models_of_adapter("t", "lora").count(), 0);
        assert!(dictionary.adapters.is_empty() && dictionary.published_scopes.is_empty());
        assert_eq!(dictionary.to_observations(), []);
    }
}
