//! The hub of a history: what it says in observations, and what rebuilds all that it knows. It keeps no limits.

use std::collections::BTreeMap;

use warmroute::observation::{Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock};
use warmroute::routing::policy::Policy;

use crate::bounded::{Bounded, Bounds, Flaw};
use crate::history::{BLOCKS, REPLICAS, Report, Said, TOKENS, key, member, scope};
use crate::reference::Block;

/// What the hub knows.
#[derive(Debug)]
pub struct Hub {
    known: Bounded,
    /// But for the eviction.
    policy: Policy,
    policies: BTreeMap<Option<String>, Policy>,
    /// By chain.
    scopes: BTreeMap<usize, ScopeSlot>,
    /// The last numbers given.
    last_scope: u32,
    last_replica: u32,
}

// === impl Hub ===

impl Hub {
    /// Knows nothing, and publishes policies that differ from this one in their eviction.
    pub fn new(policy: Policy) -> Hub {
        Hub {
            known: Bounded::new(Bounds::default(), policy.clone(), Flaw::None),
            policy,
            policies: BTreeMap::new(),
            scopes: BTreeMap::new(),
            last_scope: 0,
            last_replica: 0,
        }
    }

    /// The number of a chain's scope.
    pub fn scope(&self, chain: usize) -> Option<ScopeSlot> {
        self.scopes.get(&chain).copied()
    }

    /// Says something at `now_s`; nothing where it would make no sense.
    pub fn say(&mut self, said: &Said, now_s: u64) -> Vec<Observation> {
        let observations = self.observations(said, now_s);
        observations.iter().for_each(|observation| self.known.apply(observation));
        observations
    }

    /// Forgets its numbers, and what has expired at `now_ms`.
    pub fn restart(&mut self, now_ms: u64) {
        self.known.settle(now_ms);
        let state = self.state();
        let mut renumbered = Hub::new(self.policy.clone());
        (renumbered.last_scope, renumbered.last_replica) = (100, 100);
        let mut scopes = BTreeMap::new();
        let mut replicas = BTreeMap::new();
        for observation in state {
            let observation = renumbered.renumber(observation, &mut scopes, &mut replicas);
            if let Observation::Policy { tenant_id, policy } = &observation {
                renumbered.policies.insert(tenant_id.clone(), policy.clone());
            }
            renumbered.known.apply(&observation);
        }
        renumbered.scopes = self.scopes.iter().map(|(chain, slot)| (*chain, scopes[slot])).collect();
        *self = renumbered;
    }

    /// Observations that rebuild all that it knows.
    pub fn state(&self) -> Vec<Observation> {
        let named = self.scopes.iter().map(|(chain, slot)| Observation::Scope { slot: *slot, scope: scope(*chain) });
        let policies = self
            .policies
            .iter()
            .map(|(tenant_id, policy)| Observation::Policy { tenant_id: tenant_id.clone(), policy: policy.clone() });
        let mut state: Vec<Observation> = named.chain(policies).collect();
        for name in 0..REPLICAS {
            for replica in self.known.held.generations(&member(name)) {
                self.rebuild(name, replica, &mut state);
            }
        }
        state
    }

    fn rebuild(&self, name: usize, replica: ReplicaSlot, out: &mut Vec<Observation>) {
        let Some((member, complete)) = self.known.held.generation(replica) else { return };
        out.push(Observation::ReplicaUp {
            replica,
            member: member.clone(),
            address: address(name),
            data_parallel_rank: None,
        });
        for block in self.known.held.blocks().into_iter().filter(|block| block.replica == replica) {
            let Block { scope, key, tier, token_count, last_seen_ms, .. } = block;
            let blocks = vec![StoredBlock { key, token_count }];
            out.push(Observation::Stored(Stored { replica, scope, tier, last_seen_ms, blocks, ..Stored::default() }));
        }
        let reasserted_ms = self.known.reasserted_ms(replica);
        out.extend(reasserted_ms.map(|at_ms| Observation::Reasserted { replica, at_ms }));
        if complete {
            out.push(Observation::ReplicaComplete { replica });
        }
    }

    fn renumber(
        &mut self,
        observation: Observation,
        scopes: &mut BTreeMap<ScopeSlot, ScopeSlot>,
        replicas: &mut BTreeMap<ReplicaSlot, ReplicaSlot>,
    ) -> Observation {
        match observation {
            Observation::Scope { slot, scope } => {
                let slot = *scopes.entry(slot).or_insert_with(|| self.next_scope());
                Observation::Scope { slot, scope }
            }
            Observation::ReplicaUp { replica, member, address, data_parallel_rank } => {
                let replica = *replicas.entry(replica).or_insert_with(|| self.next_replica());
                Observation::ReplicaUp { replica, member, address, data_parallel_rank }
            }
            Observation::Stored(stored) => {
                let (replica, scope) = (replicas[&stored.replica], scopes[&stored.scope]);
                Observation::Stored(Stored { replica, scope, ..stored })
            }
            Observation::ReplicaComplete { replica } => Observation::ReplicaComplete { replica: replicas[&replica] },
            Observation::Reasserted { replica, at_ms } => {
                Observation::Reasserted { replica: replicas[&replica], at_ms }
            }
            other => other,
        }
    }

    fn next_scope(&mut self) -> ScopeSlot {
        self.last_scope += 1;
        ScopeSlot(self.last_scope)
    }

    fn next_replica(&mut self) -> ReplicaSlot {
        self.last_replica += 1;
        ReplicaSlot(self.last_replica)
    }

    fn newest(&self, replica: usize) -> Option<ReplicaSlot> {
        self.known.held.generations(&member(replica)).pop()
    }

    fn observations(&mut self, said: &Said, now_s: u64) -> Vec<Observation> {
        let newest = |hub: &Hub, replica: &usize| hub.newest(*replica);
        match said {
            Said::Stored(report) => self.stored(report, now_s).unwrap_or_default(),
            Said::Removed { replica, chain, blocks: (from, to) } => {
                let (Some(replica), Some(scope)) = (newest(self, replica), self.scope(*chain)) else { return vec![] };
                let keys = (*from..=*to).map(|block| key(*chain, block)).collect();
                vec![Observation::Removed { replica, scope, keys }]
            }
            // A replica that holds nothing has said all.
            Said::Cleared { replica } => newest(self, replica).into_iter().flat_map(cleared).collect(),
            Said::Up { replica: name, complete } => {
                let replica = self.next_replica();
                let up = Observation::ReplicaUp {
                    replica,
                    member: member(*name),
                    address: address(*name),
                    data_parallel_rank: None,
                };
                let complete = complete.then_some(Observation::ReplicaComplete { replica });
                [up].into_iter().chain(complete).collect()
            }
            Said::Complete { replica } => {
                newest(self, replica).map(|replica| Observation::ReplicaComplete { replica }).into_iter().collect()
            }
            Said::Gone { replica } => {
                newest(self, replica).map(|replica| Observation::ReplicaGone { replica }).into_iter().collect()
            }
            Said::ScopeGone { chain } => self.scope_gone(*chain).unwrap_or_default(),
            Said::Policy { tenant_id, eviction } => {
                let policy = Policy { eviction: *eviction, ..self.policy.clone() };
                let tenant_id = tenant_id.map(str::to_owned);
                self.policies.insert(tenant_id.clone(), policy.clone());
                vec![Observation::Policy { tenant_id, policy }]
            }
            Said::PolicyGone { tenant_id } => {
                let tenant_id = tenant_id.map(str::to_owned);
                let gone = self.policies.remove(&tenant_id);
                gone.map(|_| Observation::PolicyGone { tenant_id }).into_iter().collect()
            }
            Said::Reasserted { replica, mark_ms } => {
                let Some(replica) = newest(self, replica) else { return vec![] };
                let at_ms = now_s * 1_000 + mark_ms;
                vec![Observation::Reasserted { replica, at_ms }]
            }
        }
    }

    fn stored(&mut self, report: &Report, now_s: u64) -> Option<Vec<Observation>> {
        let Report { chain, blocks: (from, to), tier, age_s, mark_ms, parent, .. } = *report;
        let replica = self.newest(report.replica)?;
        let named = self.scope(chain);
        let slot = named.unwrap_or_else(|| self.next_scope());
        self.scopes.insert(chain, slot);
        let announced = named.is_none().then(|| Observation::Scope { slot, scope: scope(chain) });
        // A report of what was seen before the replica was re-asserted would count from then.
        let then_ms = (now_s - age_s) * 1_000 + mark_ms;
        let is_older = self.known.reasserted_ms(replica).is_some_and(|at_ms| then_ms < at_ms);
        let stored = Observation::Stored(Stored {
            replica,
            scope: slot,
            tier,
            last_seen_ms: if is_older { now_s * 1_000 + mark_ms } else { then_ms },
            parent: (parent && from > 1).then(|| key(chain, from - 1)),
            blocks: (from..=to.min(BLOCKS))
                .map(|block| StoredBlock { key: key(chain, block), token_count: block as u32 * TOKENS })
                .collect(),
            ..Stored::default()
        });
        Some(announced.into_iter().chain([stored]).collect())
    }

    fn scope_gone(&mut self, chain: usize) -> Option<Vec<Observation>> {
        let scope = self.scopes.remove(&chain)?;
        let mut observations = Vec::new();
        for Block { key, replica, .. } in self.known.held.blocks().into_iter().filter(|block| block.scope == scope) {
            observations.push(Observation::Removed { replica, scope, keys: vec![key] });
        }
        observations.push(Observation::ScopeGone { slot: scope });
        Some(observations)
    }
}

fn cleared(replica: ReplicaSlot) -> [Observation; 2] {
    [Observation::Cleared { replica }, Observation::ReplicaComplete { replica }]
}

fn address(name: usize) -> String {
    format!("10.0.0.{name}:8000")
}
