//! `LookupRoute`: the contract's handler, step by step.
//!
//! In: a request, whatever it is. Out: a response, always. The order is the contract's: the reserved tenant, the deadline,
//! the policy's demands, the keys, the index, the deadline again; then hits are credited and the call is counted. No lock
//! is held but while the index is asked.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;
use tonic::Request;

use super::deadline::{Arrived, Deadline, caller_timeout};
use super::messages::v1alpha1::{LookupRouteRequest, LookupRouteResponse};
use super::messages::{lookup_request, lookup_response};
use super::metrics::ContractMetrics;
use super::preparing::{Preparing, SharedTokenizer, needs_text};
use crate::fingerprint::BlockSize;
use crate::native::hub::clock::unix_ms;
use crate::native::hub::config::ModelBlocks;
use crate::native::hub::state::HubState;
use crate::observation::RESERVED_TENANT;
use crate::request::{LookupRequest, NoTokenizer, Resolved};
use crate::routing::lookup::{Answer, Lookup, answer_resolved};
use crate::routing::policy::{Eviction, Policy, Ranking};
use crate::routing::reason::ReasonCode;

/// Answers lookups.
pub struct Lookups {
    state: Arc<HubState>,
    ranking: Arc<Ranking>,
    preparing: Preparing,
    block_sizes: BlockSizes,
    metrics: Arc<ContractMetrics>,
}

/// The block sizes that the configuration gives, by model and then by hash scheme.
struct BlockSizes(HashMap<String, HashMap<Option<String>, BlockSize>>);

// === impl Lookups ===

impl Lookups {
    /// Over `state`.
    pub fn new(
        state: &Arc<HubState>,
        ranking: Arc<Ranking>,
        tokenizer: SharedTokenizer,
        models: &[ModelBlocks],
        metrics: Arc<ContractMetrics>,
    ) -> Lookups {
        let preparing = Preparing::new(tokenizer);
        Lookups { state: Arc::clone(state), ranking, preparing, block_sizes: BlockSizes::new(models), metrics }
    }

    /// The response to a request that has [arrived](Arrived).
    pub async fn answer(&self, request: Request<LookupRouteRequest>) -> LookupRouteResponse {
        let Arrived(arrived) = request.extensions().get().copied().unwrap_or_else(Arrived::now);
        let caller = caller_timeout(request.metadata());
        let request = request.into_inner();
        let (model_id, adapter_id) = (request.model_id.clone(), request.adapter_id.clone());
        let is_reserved = request.tenant_id == RESERVED_TENANT;
        let answer = if is_reserved {
            Answer::refused(ReasonCode::NoHint)
        } else {
            let block_size = self.block_size(&model_id, &request.hash_scheme);
            self.decide(lookup_request(request, block_size), arrived, caller).await
        };
        let took = arrived.elapsed();
        let (reason, has_hint) = (answer.decision.reason, !answer.decision.ranked.is_empty());
        self.metrics.answered(&model_id, reason, has_hint, took, &self.state);
        let lookup_latency_us = if is_reserved { 0 } else { i64::try_from(took.as_micros()).unwrap_or(i64::MAX) };
        LookupRouteResponse { lookup_latency_us, ..lookup_response(answer, &adapter_id) }
    }

    async fn decide(&self, request: LookupRequest, arrived: Instant, caller: Option<std::time::Duration>) -> Answer {
        let policy = self.state.read(|publisher| publisher.policies().for_tenant(&request.scope.tenant_id).clone());
        let policy = Arc::new(policy);
        let needs_text = needs_text(&request, policy.strategy);
        let deadline = Deadline::new(arrived, caller, policy.lookup_timeout_ms, needs_text);
        match self.preparing.resolve(request, &policy, &self.ranking, deadline).await {
            Ok((request, prompt)) => self.look_up(&request, prompt, &policy, deadline),
            Err(answer) => answer,
        }
    }

    /// Asks the index, and credits what is delivered.
    fn look_up(&self, request: &LookupRequest, prompt: Resolved, policy: &Policy, deadline: Deadline) -> Answer {
        let answer = self.state.read(|publisher| {
            let lookup = Lookup {
                index: publisher.index(),
                policy,
                ranking: &self.ranking,
                tokenizer: &NoTokenizer,
                now_ms: unix_ms(),
                is_late: &|| deadline.has_passed(),
            };
            answer_resolved(&lookup, request, prompt)
        });
        if policy.eviction == Eviction::Lfu
            && answer.decision.reason == ReasonCode::PrefixMatch
            && let Some(chain) = &answer.chain
        {
            self.state.change(|publisher| publisher.credit(&request.scope, chain, &answer.decision.ranked));
        }
        answer
    }

    /// Tokens in a block of this model: as configured, else as followed replicas have it, else the contract's default.
    fn block_size(&self, model_id: &str, hash_scheme: &str) -> BlockSize {
        self.block_sizes
            .get(model_id, hash_scheme)
            .or_else(|| self.state.block_size(model_id, hash_scheme))
            .unwrap_or(BlockSize::DEFAULT)
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
