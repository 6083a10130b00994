//! One lookup from its input to its answer, in the order of the public LookupRoute contract.
//!
//! In: the request as it came, the index, the policy, a tokenizer, and a way to ask whether the time is up. Out: an
//! [`Answer`]; there is no input without one. Whoever asks says what "the time is up" means: the filter measures from
//! the end of the request's input, the hub from its arrival.

use super::decision::{Decision, Foreknown, Question, decide};
use super::policy::{Policy, Ranking};
use super::reason::{Detail, ReasonCode};
use crate::index::Index;
use crate::request::{LookupRequest, RequestChain, Resolved, Tokenized, Tokenizer};

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
    pub tokenized: Option<Tokenized>,
}

/// Answers `request`.
pub fn lookup_route(lookup: &Lookup, request: &LookupRequest) -> Answer {
    let Lookup { policy, ranking, tokenizer, is_late, .. } = *lookup;
    match resolve_prompt(request, policy, ranking, tokenizer, is_late) {
        Ok(prompt) => answer_resolved(lookup, request, prompt, &Foreknown::default()),
        Err(answer) => answer,
    }
}

/// The first part of [`lookup_route`], which asks no index: the keys to look up.
///
/// # Errors
/// The answer, where there are no keys to look up.
pub fn resolve_prompt(
    request: &LookupRequest,
    policy: &Policy,
    ranking: &Ranking,
    tokenizer: &dyn Tokenizer,
    is_late: &dyn Fn() -> bool,
) -> Result<Resolved, Answer> {
    if is_late() {
        return Err(Answer::refused(ReasonCode::Timeout));
    }
    if policy.strategy.require_chain && !request.prompt.has_required_chain(ranking.require_chain) {
        return Err(Answer::refused(ReasonCode::PolicyRequiresChain));
    }
    let model_id = &request.scope.model_id;
    let resolved = request.prompt.resolve(policy.strategy, request.block_size, model_id, tokenizer);
    if is_late() {
        let tokenized = resolved.map_or_else(|unresolved| unresolved.tokenized, |resolved| resolved.tokenized);
        return Err(Answer { tokenized, ..Answer::refused(ReasonCode::Timeout) });
    }
    resolved.map_err(|unresolved| Answer::no_hint(unresolved.detail, unresolved.tokenized))
}

/// The second part of [`lookup_route`]: what `prompt`, resolved from `request`, is answered, where some of it may be known
/// already.
pub fn answer_resolved(
    lookup: &Lookup,
    request: &LookupRequest,
    mut prompt: Resolved,
    foreknown: &Foreknown,
) -> Answer {
    let Lookup { index, policy, ranking, now_ms, is_late, .. } = *lookup;
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
        foreknown,
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
    /// No hint, for a reason that has a code of its own.
    pub fn refused(reason: ReasonCode) -> Answer {
        Answer { decision: Decision::refused(reason), chain: None, tokenized: None }
    }

    fn no_hint(detail: Detail, tokenized: Option<Tokenized>) -> Answer {
        Answer { decision: Decision::no_hint(detail), chain: None, tokenized }
    }
}
