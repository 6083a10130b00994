//! One lookup from its input to its answer, in the order of the public LookupRoute contract.
//!
//! In: the request as it came, the index, the policy, a tokenizer, and a way to ask whether the time is up. Out: an
//! [`Answer`]; there is no input without one. Whoever asks says what "the time is up" means: the filter measures from
//! the end of the request's input, the hub from its arrival.

use super::decision::{Decision, Question, decide};
use super::policy::{Policy, Ranking};
use super::reason::{Detail, ReasonCode};
use crate::index::Index;
use crate::request::{LookupRequest, RequestChain, Tokenizer};

/// What a lookup is made with.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// Who holds what.
    pub index: &'a Index,
    /// The tenant's policy.
    pub policy: &'a Policy,
    /// The constants of the score.
    pub ranking: &'a Ranking,
    /// Turns text into token ids.
    pub tokenizer: &'a dyn Tokenizer,
    /// Unix time in ms.
    pub now_ms: u64,
    /// Whether the time is up. Asked at the start, after tokenizing, and at the end.
    pub is_late: &'a dyn Fn() -> bool,
}

/// What came of a lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Where the request should go, and why.
    pub decision: Decision,
    /// The keys that were looked up, if it got that far.
    pub chain: Option<RequestChain>,
    /// The ids of a text that was tokenized.
    pub tokenized: Option<Vec<u32>>,
}

/// Answers `request`.
pub fn lookup_route(lookup: &Lookup, request: &LookupRequest) -> Answer {
    let Lookup { index, policy, ranking, tokenizer, now_ms, is_late } = *lookup;
    if is_late() {
        return Answer::refused(ReasonCode::Timeout);
    }
    if policy.strategy.require_chain && !request.prompt.has_required_chain(ranking.require_chain) {
        return Answer::refused(ReasonCode::PolicyRequiresChain);
    }
    let model_id = &request.scope.model_id;
    let resolved = request.prompt.resolve(policy.strategy, request.block_size, model_id, tokenizer);
    if is_late() {
        let tokenized = resolved.map_or_else(|unresolved| unresolved.tokenized, |resolved| resolved.tokenized);
        return Answer { tokenized, ..Answer::refused(ReasonCode::Timeout) };
    }
    let mut prompt = match resolved {
        Ok(resolved) => resolved,
        Err(unresolved) => return Answer::no_hint(unresolved.detail, unresolved.tokenized),
    };
    let tokenized = prompt.tokenized.take();
    let question = Question {
        index,
        scope: &request.scope,
        prompt: &prompt,
        well_formed: request.prompt.is_well_formed(),
        slo_ttft_ms: request.slo_ttft_ms,
        policy,
        ranking,
        now_ms,
    };
    // With affinity the index is asked all the same: an unknown scope outranks the length.
    if question.is_short() && !policy.affinity_routing {
        return Answer::no_hint(Detail::BelowMinimumPrefix, tokenized);
    }
    let decision = decide(&question);
    if is_late() {
        return Answer { tokenized, ..Answer::refused(ReasonCode::Timeout) };
    }
    Answer { decision, chain: Some(prompt.chain), tokenized }
}

// === impl Answer ===

impl Answer {
    fn refused(reason: ReasonCode) -> Answer {
        Answer { decision: Decision::refused(reason), chain: None, tokenized: None }
    }

    fn no_hint(detail: Detail, tokenized: Option<Vec<u32>>) -> Answer {
        Answer { decision: Decision::no_hint(detail), chain: None, tokenized }
    }
}
