//! To come.
use crate::observation::BlockKey;
/// x
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBlock {
    /// x
    pub key: BlockKey,
    /// x
    pub tokens: u32,
}
/// x
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChain {
    /// x
    Exact {
        /// x
        key: BlockKey,
        /// x
        token_count: u32,
    },
    /// x
    Chain(Vec<ChainBlock>),
}
/// x
#[derive(Clone, Debug, PartialEq)]
pub struct LookupRequest {
    /// x
    pub scope: crate::observation::Scope,
    /// x
    pub chain: RequestChain,
    /// x
    pub effective_tokens: u32,
    /// x
    pub slo_ttft_ms: Option<u32>,
}
