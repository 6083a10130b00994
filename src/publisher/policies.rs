//! Policies and quotas: what operators say.

use std::collections::BTreeMap;

use super::Publisher;
use super::entries::Prefix;
use crate::observation::Observation;
use crate::routing::policy::{Eviction, Policies, Policy};

// === impl Publisher ===

impl Publisher {
    /// Replaces the policies, where nobody says whether the default is meant: one that is the contract's own is not
    /// published, and whoever has another one keeps it.
    pub fn set_policies(&mut self, policies: Policies) {
        let default = Some(policies.default).filter(|policy| *policy != Policy::default());
        self.set_given_policies(default, policies.by_tenant);
    }

    /// Replaces the policies by those that are given; what differs from before becomes a change. A default that is given is
    /// published, whatever it is.
    pub fn set_given_policies(&mut self, given_default: Option<Policy>, by_tenant: BTreeMap<String, Policy>) {
        let default = given_default.as_ref().map(|policy| (None, policy));
        let policies = Policies { default: given_default.clone().unwrap_or_default(), by_tenant };
        let own = policies.by_tenant.iter().map(|(tenant_id, policy)| (Some(tenant_id.as_str()), policy));
        let wanted: BTreeMap<Option<&str>, &Policy> = default.into_iter().chain(own).collect();
        let published = self.index.dictionary();
        let gone: Vec<Observation> = published
            .policies()
            .filter(|(tenant_id, _)| !wanted.contains_key(tenant_id))
            .map(|(tenant_id, _)| Observation::PolicyGone { tenant_id: tenant_id.map(str::to_owned) })
            .collect();
        let changed: Vec<Observation> = wanted
            .into_iter()
            .filter(|(tenant_id, policy)| published.policy(*tenant_id) != Some(*policy))
            .map(|(tenant_id, policy)| Observation::Policy {
                tenant_id: tenant_id.map(str::to_owned),
                policy: policy.clone(),
            })
            .collect();
        gone.into_iter().chain(changed).for_each(|change| self.commit(change));
        self.policies = policies;
        self.recount();
    }

    /// Replaces the quotas: for each tenant the most distinct blocks; without an entry there is no limit. What is beyond
    /// one goes at the tenant's next report or the next sweep.
    pub fn set_quotas(&mut self, quotas: BTreeMap<String, u64>) {
        let is_new = self.entries.set_quotas(&quotas);
        self.limits.quotas = quotas;
        if is_new {
            let limited = self.entries.iter().filter(|entry| self.entries.has_quota(&entry.scope.scope.tenant_id));
            let prefixes: Vec<Prefix> = limited
                .filter_map(|entry| {
                    let newest_ms = self.rank(&entry.replica, &entry.scope, &entry.key.0).newest_ms?;
                    Some(Prefix { newest_ms, scope: entry.scope.clone(), key: entry.key.clone() })
                })
                .collect();
            prefixes.into_iter().for_each(|prefix| self.entries.add_prefix(prefix));
        }
    }

    /// Orders the entries by the policies of the moment.
    fn recount(&mut self) {
        let Publisher { policies, index, entries, .. } = self;
        entries.recount(|entry| match policies.for_tenant(&entry.scope.scope.tenant_id).eviction {
            Eviction::Lru => 0,
            Eviction::Lfu => {
                index.holder(entry.scope.slot, &entry.key.0, entry.replica.slot).map_or(0, |holder| holder.access_count)
            }
        });
    }
}
