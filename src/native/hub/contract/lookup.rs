//! `LookupRoute`: the contract's handler, step by step.
//!
//! In: a request, whatever it is. Out: a response, always. The order is the contract's: the reserved tenant, the deadline,
//! the policy's demands, the keys, the index, the deadline again; then hits are credited and the call is counted. No lock
//! is held but while the index is asked, and that is asked piece by piece where the chain is long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Request;

use super::adapters::Adapters;
use super::deadline::{Arrived, Deadline, caller_timeout};
use super::heavy::{FEW_BLOCKS, Heavy};
use super::matching;
use super::messages::v1alpha1::{LookupRouteRequest, LookupRouteResponse};
use super::messages::{lookup_bytes, lookup_request, lookup_response};
use super::metrics::ContractMetrics;
use super::preparing::{Preparing, SharedTokenizer, needs_text};
use crate::fingerprint::BlockSize;
use crate::native::hub::clock::hub_ms;
use crate::native::hub::config::{HubConfig, ModelBlocks};
use crate::native::hub::state::HubState;
use crate::observation::RESERVED_TENANT;
use crate::request::{LookupRequest, NoTokenizer, RequestChain, Resolved};
use crate::routing::decision::Foreknown;
use crate::routing::lookup::{Answer, Lookup, answer_resolved};
use crate::routing::policy::{Eviction, Policy, Ranking};
use crate::routing::reason::ReasonCode;

/// Answers lookups.
pub struct Lookups {
    state: Arc<HubState>,
    ranking: Arc<Ranking>,
    preparing: Preparing,
    heavy: Heavy,
    block_sizes: BlockSizes,
    adapters: Adapters,
    metrics: Arc<ContractMetrics>,
}

/// The block sizes that the configuration gives, by model and then by hash scheme.
struct BlockSizes(HashMap<String, HashMap<Option<String>, BlockSize>>);

/// A lookup whose keys are known.
struct Prepared {
    request: LookupRequest,
    prompt: Resolved,
    policy: Arc<Policy>,
    ranking: Arc<Ranking>,
    deadline: Deadline,
}

// === impl Lookups ===

impl Lookups {
    /// Over `state`.
    pub fn new(
        state: &Arc<HubState>,
        ranking: Arc<Ranking>,
        tokenizer: SharedTokenizer,
        config: &HubConfig,
        metrics: Arc<ContractMetrics>,
        heavy: Heavy,
    ) -> Lookups {
        Lookups {
            state: Arc::clone(state),
            ranking,
            preparing: Preparing::new(tokenizer, heavy.clone()),
            heavy,
            block_sizes: BlockSizes::new(&config.models),
            adapters: Adapters::new(config),
            metrics,
        }
    }

    /// The response to a request that has [arrived](Arrived).
    pub async fn answer(&self, request: Request<LookupRouteRequest>) -> LookupRouteResponse {
        let Arrived(arrived) = request.extensions().get().copied().unwrap_or_else(Arrived::now);
        let caller = caller_timeout(request.metadata());
        let mut request = request.into_inner();
        let is_reserved = request.tenant_id == RESERVED_TENANT;
        if !is_reserved {
            self.state.read(|publisher| self.adapters.resolve(&mut request, publisher.index().dictionary()));
        }
        let (model_id, adapter_id) = (request.model_id.clone(), request.adapter_id.clone());
        let answer = if is_reserved {
            Answer::refused(ReasonCode::NoHint)
        } else {
            self.decide(request, arrived, caller).await.unwrap_or_else(|answer| answer)
        };
        let took = arrived.elapsed();
        let (reason, has_hint) = (answer.decision.reason, !answer.decision.ranked.is_empty());
        self.metrics.answered(&model_id, reason, has_hint, took, &self.state);
        let lookup_latency_us = if is_reserved { 0 } else { i64::try_from(took.as_micros()).unwrap_or(i64::MAX) };
        LookupRouteResponse { lookup_latency_us, ..lookup_response(answer, &adapter_id) }
    }

    async fn decide(
        &self,
        request: LookupRouteRequest,
        arrived: Instant,
        caller: Option<Duration>,
    ) -> Result<Answer, Answer> {
        let policy = self.state.read(|publisher| publisher.policies().for_tenant(&request.tenant_id).clone());
        let policy = Arc::new(policy);
        let message_bytes = lookup_bytes(&request);
        let deadline_of =
            |needs_text| Deadline::new(arrived, caller, message_bytes, policy.lookup_timeout_ms, needs_text);
        let block_size = self.block_size(&request.model_id, &request.hash_scheme);
        let request = if request.block_hashes.len().max(request.block_token_counts.len()) > FEW_BLOCKS {
            self.heavy.run(deadline_of(false), move || lookup_request(request, block_size)).await?
        } else {
            lookup_request(request, block_size)
        };
        let deadline = deadline_of(needs_text(&request, policy.strategy));
        let (request, prompt) = self.preparing.resolve(request, &policy, &self.ranking, deadline).await?;
        let is_long = prompt.chain.len() > FEW_BLOCKS;
        let prepared = Prepared { request, prompt, policy, ranking: Arc::clone(&self.ranking), deadline };
        if !is_long {
            return Ok(prepared.look_up(&self.state, &Foreknown::default()));
        }
        let state = Arc::clone(&self.state);
        Ok(self.heavy.run(deadline, move || prepared.look_up_in_pieces(&state)).await?)
    }

    /// Tokens in a block of this model: as configured, else as followed replicas have it, else the contract's default.
    fn block_size(&self, model_id: &str, hash_scheme: &str) -> BlockSize {
        self.block_sizes
            .get(model_id, hash_scheme)
            .or_else(|| self.state.block_size(model_id, hash_scheme))
            .unwrap_or(BlockSize::DEFAULT)
    }
}

// === impl Prepared ===

impl Prepared {
    /// Asks the index, and credits what is delivered.
    fn look_up(self, state: &HubState, foreknown: &Foreknown) -> Answer {
        let Prepared { request, prompt, policy, ranking, deadline } = self;
        let answer = state.read(|publisher| {
            let lookup = Lookup {
                index: publisher.index(),
                policy: &policy,
                ranking: &ranking,
                tokenizer: &NoTokenizer,
                now_ms: hub_ms(),
                is_late: &|| deadline.has_passed(),
            };
            answer_resolved(&lookup, &request, prompt, foreknown)
        });
        if policy.eviction == Eviction::Lfu
            && answer.decision.reason == ReasonCode::PrefixMatch
            && let Some(chain) = &answer.chain
        {
            matching::credit(state, &request.scope, chain, &answer.decision.ranked);
        }
        answer
    }

    /// The same for a long chain.
    fn look_up_in_pieces(self, state: &HubState) -> Answer {
        let settings = (&*self.policy, &*self.ranking);
        let scope = &self.request.scope;
        match matching::foreknown(state, scope, &self.prompt.chain, settings, self.deadline) {
            // The response says that there was a chain, and nothing of it.
            Some(foreknown) => {
                let answer = self.look_up(state, &foreknown);
                Answer { chain: answer.chain.map(|_| RequestChain::Chain(Vec::new())), ..answer }
            }
            None => Answer::refused(ReasonCode::Timeout),
        }
    }
}

// === impl BlockSizes ===

impl BlockSizes {
    fn new(models: &[ModelBlocks]) -> BlockSizes {
        let mut sizes: HashMap<String, HashMap<Option<String>, BlockSize>> = HashMap::new();
        for model in models {
            sizes.entry(model.model_id.clone()).or_default().insert(model.hash_scheme.clone(), model.block_size);
        }
        BlockSizes(sizes)
    }

    fn get(&self, model_id: &str, hash_scheme: &str) -> Option<BlockSize> {
        let of_model = self.0.get(model_id)?;
        of_model.get(&Some(hash_scheme.to_owned())).or_else(|| of_model.get(&None)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_of_its_own_comes_before_the_models() {
        let blocks = |hash_scheme: Option<&str>, tokens| ModelBlocks {
            model_id: "m".into(),
            hash_scheme: hash_scheme.map(str::to_owned),
            block_size: BlockSize::try_new(tokens).unwrap(),
        };
        let sizes = BlockSizes::new(&[blocks(None, 32), blocks(Some("sglang"), 64)]);
        let tokens = |model_id, hash_scheme| sizes.get(model_id, hash_scheme).map(BlockSize::tokens);
        assert_eq!(tokens("m", "sglang"), Some(64));
        assert_eq!(tokens("m", "vllm"), Some(32));
        assert_eq!(tokens("n", "vllm"), None);
    }
}
