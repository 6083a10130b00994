//! What a request should come to, weighed against how complete and fresh the index is.
//!
//! A state that must not be looked at counts as an index without anything in it: a request's own faults, the policy's
//! demands and the time limit are named all the same, and what is left is the state's own detail. From an index that is
//! no longer confirmed, where `when_stale` is `serve`, only what replicas hold is said: that nothing is known of a
//! tenant, model or hash scheme may have ceased to be true, and so may the set of replicas that a prompt's hash picks
//! from. Nor is it said while the state of a replica that could have it is still arriving.

use std::sync::Arc;

use super::compare::Foretold;
use crate::config::{FilterConfig, WhenStale};
use crate::flow::credits::Hit;
use crate::flow::follower::View;
use crate::flow::node::Knowledge;
use crate::index::Index;
use crate::index::dictionary::Standing;
use crate::model::{TextLimits, Texts};
use crate::observation::{Member, ModelVersion};
use crate::request::LookupRequest;
use crate::routing::decision::{Decision, RankedReplica};
use crate::routing::lookup::{Answer, Lookup, lookup_route};
use crate::routing::policy::{Eviction, Policy};
use crate::routing::reason::{Detail, ReasonCode};
use crate::template::LocalTime;

/// What a request is decided with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub known: &'a Knowledge<'a>,
    pub config: &'a FilterConfig,
    pub request: &'a LookupRequest,
    /// Unix time in ms.
    pub now_ms: u64,
}

/// What a request came to.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub decision: Decision,
    /// What it hit, if the tenant's hits count.
    pub hit: Option<Hit>,
    /// What it foretells of the response, if that is to be compared.
    pub foretold: Option<Foretold>,
}

/// What may be said from the index.
#[derive(Clone, Copy, Debug)]
enum Trust<'a> {
    /// All that it says.
    Fresh(&'a Index),
    /// What replicas hold.
    Stale(&'a Index),
    /// Nothing, for this reason.
    Nothing(Detail),
}

// === impl Asked ===

impl<'a> Asked<'a> {
    /// The policy that the request's tenant has.
    pub(super) fn policy(&self) -> &'a Policy {
        self.config.policies.effective(&self.request.scope.tenant_id, |tenant_id| match self.known.view {
            View::Index(index) => index.dictionary().policy(tenant_id),
            View::CatchingUp => None,
        })
    }

    /// Where the request should go by its [`policy`](Asked::policy), and why. Only replicas that can be sent to are named, and
    /// only so many; all that can be sent to are hit.
    pub(super) fn decide(&self, policy: &Policy, is_late: &dyn Fn() -> bool) -> Outcome {
        let mut answer = match self.trust() {
            Trust::Fresh(index) => self.of_fresh(index, policy, is_late),
            Trust::Stale(index) => self.of_stale(index, policy, is_late),
            Trust::Nothing(state) => or_state(self.lookup(&Index::new(1), policy, is_late), state),
        };
        let ranked = &mut answer.decision.ranked;
        let had_replicas = !ranked.is_empty();
        ranked.retain(|replica| is_address(&replica.address));
        if had_replicas && ranked.is_empty() {
            answer.decision = Decision::no_hint(Detail::NoAddress);
        }
        let hit = self.hit(policy, &answer);
        one_of_each_address(&mut answer.decision.ranked);
        if !self.config.output.data_parallel_rank_header {
            answer.decision.ranked.iter_mut().for_each(|replica| replica.data_parallel_rank = None);
        }
        answer.decision.ranked.truncate(self.config.output.max_endpoints);
        let foretold = Foretold::new(self.config, self.request, &answer);
        Outcome { decision: answer.decision, hit, foretold }
    }

    fn hit(&self, policy: &Policy, answer: &Answer) -> Option<Hit> {
        if policy.eviction != Eviction::Lfu || answer.decision.reason != ReasonCode::PrefixMatch {
            return None;
        }
        let View::Index(index) = self.known.view else { return None };
        let scope = index.dictionary().scope_slot(&self.request.scope)?;
        Hit::new(scope, answer.chain.as_ref()?, &answer.decision.ranked)
    }

    /// As the index has it, unless what it has nothing of may just be arriving.
    fn of_fresh(&self, index: &Index, policy: &Policy, is_late: &dyn Fn() -> bool) -> Answer {
        let answer = self.lookup(index, policy, is_late);
        let scope = &self.request.scope;
        let reason = answer.decision.reason;
        let may_arrive = |member: &Member| match reason {
            ReasonCode::UnknownTenant => member.tenant_id == scope.tenant_id,
            ReasonCode::UnknownModel | ReasonCode::UnknownHashScheme => {
                (&member.tenant_id, &member.model_id) == (&scope.tenant_id, &scope.model_id)
            }
            _ => false,
        };
        let mut arriving = index.dictionary().replicas().filter(|(_, replica)| replica.standing == Standing::Arriving);
        if reason.is_unknown() && (!self.known.is_whole || arriving.any(|(_, replica)| may_arrive(&replica.member))) {
            return Answer { decision: Decision::no_hint(Detail::Miss), ..answer };
        }
        answer
    }

    fn trust(&self) -> Trust<'a> {
        if self.known.heard_ms.is_none() {
            return Trust::Nothing(Detail::Cold);
        }
        let View::Index(index) = self.known.view else { return Trust::Nothing(Detail::CatchingUp) };
        let freshness = &self.config.freshness;
        match freshness.when_stale {
            _ if !self.known.is_stale(freshness.stale_after_ms, self.now_ms) => Trust::Fresh(index),
            WhenStale::Serve => Trust::Stale(index),
            WhenStale::NoHint => Trust::Nothing(Detail::Stale),
        }
    }

    fn of_stale(&self, index: &Index, policy: &Policy, is_late: &dyn Fn() -> bool) -> Answer {
        let policy = Policy { affinity_routing: false, ..policy.clone() };
        let answer = self.lookup(index, &policy, is_late);
        if answer.decision.reason.is_unknown() {
            return Answer { decision: Decision::no_hint(Detail::Stale), ..answer };
        }
        or_state(answer, Detail::Stale)
    }

    fn lookup(&self, index: &Index, policy: &Policy, is_late: &dyn Fn() -> bool) -> Answer {
        let ranking = &self.config.ranking;
        let limits = &self.config.limits;
        let texts = Texts {
            models: self.known.models,
            version_of: &|model_id| self.version_of(model_id),
            clock: LocalTime {
                unix_seconds: i64::try_from(self.now_ms / 1_000).unwrap_or(i64::MAX),
                utc_offset_seconds: self.config.utc_offset_minutes.saturating_mul(60),
            },
            limits: TextLimits {
                max_prompt_bytes: limits.max_prompt_bytes,
                max_tokens: limits.max_match_tokens,
                max_symbols: limits.max_merge_symbols,
            },
        };
        let lookup = Lookup { index, policy, ranking, tokenizer: &texts, now_ms: self.now_ms, is_late };
        lookup_route(&lookup, self.request)
    }

    /// What is announced of a model's tokenizer, whatever may be said of the index.
    fn version_of(&self, model_id: &str) -> Option<ModelVersion> {
        match self.known.view {
            View::Index(index) => index.dictionary().model(model_id),
            View::CatchingUp => None,
        }
    }
}

/// Names the state in place of an index without anything in it, and of a tokenizer that is not known yet.
fn or_state(answer: Answer, state: Detail) -> Answer {
    let is_cold = match answer.decision.detail {
        Detail::Cold => true,
        Detail::NoTokenizer => matches!(state, Detail::Cold | Detail::CatchingUp),
        _ => false,
    };
    if is_cold { Answer { decision: Decision::no_hint(state), ..answer } } else { answer }
}

/// Ranks of one engine are at one address: only the best of them is named.
fn one_of_each_address(ranked: &mut Vec<RankedReplica>) {
    let mut named: Vec<Arc<str>> = Vec::with_capacity(ranked.len());
    ranked.retain(|replica| {
        let is_new = !named.contains(&replica.address);
        if is_new {
            named.push(Arc::clone(&replica.address));
        }
        is_new
    });
}

/// Only what an `ip:port` is made of may get into the destination header.
fn is_address(address: &str) -> bool {
    !address.is_empty()
        && address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':' | b'[' | b']'))
}
