//! One HTTP request to one LookupRoute request.
//!
//! In: the request's headers, then its body if [`read_head`] asked to hold it. Out: a [`LookupRequest`], or the
//! [`Detail`] that says why there is none. [`PromptInput::resolve`] turns its prompt into keys under a policy. Nothing is
//! changed, no input can make it panic, time is linear in the input and memory bounded by it.
//!
//! What is used, in this order, as in the public `inferencecache.v1alpha1` contract:
//!
//! 1. explicit keys: from the [input headers](names), else from the body's `inference_cache` object;
//! 2. `token_ids` of that object, else its `prompt_text`, which is the message of a user;
//! 3. what the path's [API](crate::config::BodyApi) has: token ids, else text, for which a tokenizer is needed.
//!
//! | API | Token ids | Text |
//! |---|---|---|
//! | completions, generate | `prompt`, `input_ids` | `prompt`, `text`, `messages` |
//! | chat | `input_ids` | `messages` |
//! | responses | | `input` |
//! | messages | | `messages` |
//! | tokens_in | `token_ids` | |
//!
//! Of a list of prompts the first one counts: a request has one destination. Of token ids and chains only the first
//! `limits.max_match_tokens` tokens are looked up. A field that makes the engine's key depend on more than the prompt is
//! `unsupported_key`; so is one that keeps the engine from looking the prompt up.
//!
//! An input that is present and malformed is not passed over for the next one: guessing would credit a replica with
//! a prompt that the client did not send. Where both a prefix hash and a block chain are given, the chain decides. An
//! empty header, list or text of the explicit input is absent, as it is in protobuf.

mod body;
mod explicit;
mod fields;
mod head;
mod hints;
mod hold;
mod inputs;
mod json;
pub mod names;
mod prompt;
mod served;
mod tokens;

use crate::fingerprint::BlockSize;
use crate::observation::{BlockKey, Scope};
use crate::routing::reason::Detail;

pub use body::read_body;
pub use head::{HeadVerdict, RequestHead, read_head};
pub use inputs::HeaderInputs;
pub(crate) use json::{copy_plain, plain_length};
pub use prompt::{
    ChatApi, MAX_TEXT_BYTES, NoTokenizer, PromptInput, PromptSource, Resolved, TextPrompt, TokenizeError, Tokenized,
    Tokenizer, Unresolved, WireChain,
};
pub use served::{KnownAdapters, NoAdapters};

/// The most tokens that a prompt may have; the contract's cap.
pub const MAX_TOKENS: usize = 1 << 20;

/// What to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupRequest {
    /// What the keys are relative to.
    pub scope: Scope,
    /// The prompt.
    pub prompt: PromptInput,
    /// The block size of chains that are derived here.
    pub block_size: BlockSize,
    /// The time to first token that the client asks for, in ms.
    pub slo_ttft_ms: Option<u32>,
}

/// The keys of a request's prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChain {
    /// One key for the whole prefix; one without bytes is held by nobody.
    Exact {
        /// The key.
        key: BlockKey,
    },
    /// One key a block, from the start of the prompt, as the request has them; at least one.
    Chain(Vec<ChainBlock>),
    /// The prefix hashes of the prompt's full blocks, computed here from its token ids; at least one.
    Prefixes {
        /// The [hashes](crate::fingerprint::PrefixHash).
        hashes: Vec<u64>,
        /// Tokens in a block.
        block_size: BlockSize,
    },
}

/// A block of a request's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainBlock {
    /// The key of everything up to and including this block.
    pub key: BlockKey,
    /// Tokens of this block alone. Read from HTTP it is at least 1; over gRPC it is whatever the client sent.
    pub tokens: i32,
}

/// A body that gives nothing to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyRefusal {
    /// Why.
    pub detail: Detail,
    /// The model that serves the request; where that is not known, what the request named. Any text: bound it before it
    /// becomes a metric label.
    pub model: Option<String>,
}

// === impl RequestChain ===

impl RequestChain {
    /// Number of keys.
    pub fn len(&self) -> usize {
        match self {
            RequestChain::Exact { .. } => 1,
            RequestChain::Chain(blocks) => blocks.len(),
            RequestChain::Prefixes { hashes, .. } => hashes.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` keys.
    pub fn keys(&self, count: usize) -> Vec<BlockKey> {
        match self {
            RequestChain::Exact { key } => std::iter::once(key).take(count).cloned().collect(),
            RequestChain::Chain(blocks) => blocks.iter().take(count).map(|block| block.key.clone()).collect(),
            RequestChain::Prefixes { hashes, .. } => {
                hashes.iter().take(count).map(|hash| BlockKey::Hash64(*hash)).collect()
            }
        }
    }

    /// The blocks of a part of it, as a chain of their own; of an exact key all.
    pub fn piece(&self, blocks: std::ops::Range<usize>) -> RequestChain {
        match self {
            RequestChain::Exact { .. } => self.clone(),
            RequestChain::Chain(all) => RequestChain::Chain(all.get(blocks).unwrap_or_default().to_vec()),
            RequestChain::Prefixes { hashes, block_size } => RequestChain::Prefixes {
                hashes: hashes.get(blocks).unwrap_or_default().to_vec(),
                block_size: *block_size,
            },
        }
    }
}
