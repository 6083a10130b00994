//! What there was before a reset, and how it ends.
//!
//! A reset takes nothing back before it is complete. What it does not announce again ends then; a generation that it does
//! ends with its successor's completion, or when that has taken too long.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};

use super::Ingest;
use super::unused::UnusedScopes;
use crate::index::Index;
use crate::observation::{Member, Observation, ReplicaSlot};

/// What a reset has to announce again or end.
#[derive(Debug, Default)]
pub(super) struct Before {
    pub(super) generations: HashMap<ReplicaSlot, Member>,
    pub(super) policies: BTreeSet<Option<String>>,
    pub(super) models: BTreeSet<String>,
}

// === impl Ingest ===

impl Ingest {
    /// A generation whose replica was announced again ends with the new one's completion, which may come later.
    pub(super) fn end_what_is_not_announced_again(&mut self, before: Before) -> Vec<Observation> {
        let announced: HashSet<&Member> = self.replicas.values().map(|published| &published.member).collect();
        let unannounced = before.policies.difference(&self.policies);
        let mut ended: Vec<Observation> =
            unannounced.map(|tenant_id| Observation::PolicyGone { tenant_id: tenant_id.clone() }).collect();
        let without = before.models.difference(&self.models);
        ended.extend(without.map(|model_id| Observation::ModelGone { model_id: model_id.clone() }));
        for (replica, member) in before.generations {
            if announced.contains(&member) {
                self.replaced.entry(replica).or_insert(self.confirmed_ms);
            } else {
                ended.push(Observation::ReplicaGone { replica });
                self.ending.insert(replica);
            }
        }
        ended
    }

    /// A successor that does not get complete must not keep its predecessor's blocks credited.
    pub(super) fn end_what_waits_too_long(&mut self, now_ms: u64, out: &mut Vec<Observation>) {
        self.replaced.retain(|replica, since_ms| {
            *since_ms = now_ms.min(*since_ms);
            let waits = now_ms - *since_ms <= self.replace_within_ms;
            if !waits {
                out.push(Observation::ReplicaGone { replica: *replica });
                self.ending.insert(*replica);
            }
            waits
        });
    }

    /// What exists now ends when the reset is complete, unless its replica is announced again.
    pub(super) fn begin_reset(&mut self, index: &Index) {
        let mut before = self.resetting.take().unwrap_or_default();
        let committed = index.dictionary().replicas().map(|(slot, replica)| (slot, replica.member.clone()));
        let queued = self.replicas.values().map(|published| (published.slot, published.member.clone()));
        before.generations.extend(committed.chain(queued));
        before.policies.append(&mut self.policies);
        before.models.append(&mut self.models);
        self.resetting = Some(before);
        self.position = None;
        // Which are unused is seen when the reset is complete.
        self.unused = UnusedScopes::default();
        self.scopes.clear();
        self.replicas.clear();
    }
}
