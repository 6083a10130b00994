//! From a request to the keys that are looked up, without holding anybody up.
//!
//! Tokenizing and hashing a long prompt takes too long for a task that others wait for, so it goes to a thread of its own;
//! at the deadline nobody waits for it any more. At most [`MAX_TOKENIZING`] texts are tokenized at once, those that are
//! waited for no more included: tokenizing cannot be stopped half-way.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;
use tracing::error;

use super::deadline::Deadline;
use super::heavy::{FEW_BLOCKS, Heavy};
use crate::request::{
    LookupRequest, PromptSource, Resolved, TextPrompt, TokenizeError, Tokenized, Tokenizer, WireChain,
};
use crate::routing::lookup::{Answer, resolve_prompt};
use crate::routing::policy::{Policy, Ranking, Strategy};
use crate::routing::reason::ReasonCode;

/// The most texts that are tokenized at once; the contract's number.
pub const MAX_TOKENIZING: usize = 64;
/// Fewer token ids are hashed where they are: it takes less than handing them over.
const FEW_TOKENS: usize = 8_192;

/// A tokenizer that the hub's tasks share.
pub type SharedTokenizer = Arc<dyn Tokenizer + Send + Sync>;

/// Turns requests into keys.
pub struct Preparing {
    heavy: Heavy,
    tokenizer: SharedTokenizer,
    slots: Arc<Semaphore>,
}

/// Has no slot left for another text.
struct Saturated;

/// What keys are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    /// Little: it is done at once.
    Little,
    /// Many token ids are hashed, or many keys taken over.
    Hashing,
    /// Text is tokenized.
    Tokenizing,
}

// === impl Preparing ===

impl Preparing {
    /// With this tokenizer, and no text under way.
    pub fn new(tokenizer: SharedTokenizer, heavy: Heavy) -> Preparing {
        Preparing { heavy, tokenizer, slots: Arc::new(Semaphore::new(MAX_TOKENIZING)) }
    }

    /// The keys of `request`, which is handed back with them.
    ///
    /// # Errors
    /// The answer, where there are no keys to look up or the time is up.
    pub async fn resolve(
        &self,
        request: LookupRequest,
        policy: &Arc<Policy>,
        ranking: &Arc<Ranking>,
        deadline: Deadline,
    ) -> Result<(LookupRequest, Resolved), Answer> {
        let is_late = move || deadline.has_passed();
        let effort = Effort::of(&request, policy.strategy);
        let slot = match effort {
            Effort::Tokenizing => Arc::clone(&self.slots).try_acquire_owned().ok(),
            _ => None,
        };
        if effort == Effort::Little || (effort == Effort::Tokenizing && slot.is_none()) {
            let resolved = resolve_prompt(&request, policy, ranking, &Saturated, &is_late)?;
            return Ok((request, resolved));
        }
        if effort == Effort::Hashing {
            let (policy, ranking) = (Arc::clone(policy), Arc::clone(ranking));
            let hashing = move || {
                let resolved = resolve_prompt(&request, &policy, &ranking, &Saturated, &is_late);
                Ok((request, resolved?))
            };
            return self.heavy.run(deadline, hashing).await?;
        }
        let (policy, ranking, tokenizer) = (Arc::clone(policy), Arc::clone(ranking), Arc::clone(&self.tokenizer));
        let resolving = spawn_blocking(move || {
            let resolved = resolve_prompt(&request, &policy, &ranking, tokenizer.as_ref(), &is_late);
            drop(slot);
            Ok((request, resolved?))
        });
        let resolved = match deadline.0 {
            Some(deadline) => {
                timeout_at(deadline, resolving).await.map_err(|_| Answer::refused(ReasonCode::Timeout))?
            }
            None => resolving.await,
        };
        // A tokenizer that panicked: the request fails open.
        resolved.unwrap_or_else(|panicked| {
            error!("a prompt was not resolved: {panicked}");
            Err(Answer::refused(ReasonCode::NoHint))
        })
    }
}

/// Whether `request` comes down to its text.
pub fn needs_text(request: &LookupRequest, strategy: Strategy) -> bool {
    Effort::of(request, strategy) == Effort::Tokenizing
}

// === impl Effort ===

impl Effort {
    fn of(request: &LookupRequest, strategy: Strategy) -> Effort {
        let prompt = &request.prompt;
        let chain_counts = strategy.enable_chain_matching && prompt.chain != WireChain::Absent;
        if chain_counts || prompt.prefix_hash.is_some() {
            let is_long = matches!(&prompt.chain, WireChain::Chain(blocks) if blocks.len() > FEW_BLOCKS);
            return if is_long { Effort::Hashing } else { Effort::Little };
        }
        match &prompt.source {
            PromptSource::Text(_) => Effort::Tokenizing,
            PromptSource::TokenIds(ids) if ids.len() > FEW_TOKENS => Effort::Hashing,
            _ => Effort::Little,
        }
    }
}

// === impl Saturated ===

impl Tokenizer for Saturated {
    fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        Err(TokenizeError::Saturated)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::fingerprint::BlockSize;
    use crate::observation::Scope;
    use crate::request::{NoTokenizer, PromptInput};

    struct Panics;

    impl Tokenizer for Panics {
        fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
            panic!("as a tokenizer of somebody else's might")
        }
    }

    fn request(source: PromptSource) -> LookupRequest {
        let scope =
            Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "s".into(), adapter_id: String::new() };
        let prompt = PromptInput { source, ..PromptInput::default() };
        LookupRequest { scope, prompt, block_size: BlockSize::DEFAULT, slo_ttft_ms: None }
    }

    async fn resolved(
        tokenizer: impl Tokenizer + Send + Sync + 'static,
        source: PromptSource,
        deadline: Deadline,
    ) -> Result<Resolved, ReasonCode> {
        let preparing = Preparing::new(Arc::new(tokenizer), Heavy::new());
        let resolved = preparing.resolve(request(source), &Arc::default(), &Arc::default(), deadline).await;
        resolved.map(|(_, resolved)| resolved).map_err(|answer| answer.decision.reason)
    }

    #[tokio::test]
    async fn a_deadline_that_has_passed_is_a_timeout_whatever_the_input() {
        let passed = Deadline(Some(Instant::now()));
        for source in [
            PromptSource::Absent,
            PromptSource::Text(TextPrompt::User("x".into())),
            PromptSource::TokenIds(vec![1; 20_000]),
        ] {
            assert_eq!(resolved(NoTokenizer, source, passed).await, Err(ReasonCode::Timeout));
        }
    }

    #[tokio::test]
    async fn many_ids_give_the_same_keys_as_few() {
        let in_time = Deadline(Some(Instant::now() + Duration::from_secs(60)));
        let keys = |count: u32| resolved(NoTokenizer, PromptSource::TokenIds((0..count).collect()), in_time);
        let (few, many) = (keys(1_600).await.unwrap().chain, keys(16_000).await.unwrap().chain);
        assert_eq!((few.len(), many.len()), (100, 1_000));
        assert_eq!(few, many.piece(0..100));
    }

    #[tokio::test]
    async fn a_tokenizer_that_panics_costs_the_hint_and_its_slot_comes_back() {
        let preparing = Preparing::new(Arc::new(Panics), Heavy::new());
        for _ in 0..2 * MAX_TOKENIZING {
            let request = request(PromptSource::Text(TextPrompt::User("x".into())));
            let answer = preparing.resolve(request, &Arc::default(), &Arc::default(), Deadline(None)).await;
            assert_eq!(answer.unwrap_err().decision.reason, ReasonCode::NoHint);
        }
        assert_eq!(preparing.slots.available_permits(), MAX_TOKENIZING);
    }
}
