//! A request's prompt, from the forms it can come in to the keys that are looked up.
//!
//! In: what the request gave, the policy's strategy, the block size, a tokenizer. Out: a [`RequestChain`] with the tokens
//! that it covers, or why there is none. The order of the forms is that of the public LookupRoute contract: explicit
//! keys, then token ids, then text. With chain matching switched off a prefix hash is the only explicit key, and of a
//! derived chain the last block's key is looked up alone. An input that is present and malformed is not passed over for
//! the next one.

use super::{ChainBlock, MAX_TOKENS, RequestChain};
use crate::fingerprint::{BlockSize, prefix_hashes};
use crate::observation::BlockKey;
use crate::routing::policy::{ChainOrigin, Strategy};
use crate::routing::reason::Detail;

/// The longest `prompt_text`, in bytes; the contract's cap.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// What a request says of its prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptInput {
    /// The key of the whole prefix.
    pub prefix_hash: Option<BlockKey>,
    /// Tokens that `prefix_hash` covers; 0 if the client did not say.
    pub prefix_token_count: i32,
    /// The keys of its blocks.
    pub chain: WireChain,
    /// What keys can be derived from.
    pub source: PromptSource,
    /// Whether `source` is the first of several prompts.
    pub of_several: bool,
}

/// A block chain as the client sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WireChain {
    /// None.
    #[default]
    Absent,
    /// One key a block, from the start of the prompt; at least one.
    Chain(Vec<ChainBlock>),
    /// Hashes and counts that do not go together.
    Malformed,
}

/// What keys can be derived from: the first form that the request has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PromptSource {
    /// Nothing.
    #[default]
    Absent,
    /// Token ids, at least one.
    TokenIds(Vec<u32>),
    /// Text, of which the model's tokenizer makes token ids.
    Text(TextPrompt),
    /// Something from which no keys can be derived.
    Refused(Detail),
}

/// Text in the forms that it comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPrompt {
    /// One message of a user, through the model's template with the generation prompt: the contract's `prompt_text`.
    User(String),
    /// The text as it stands.
    Plain {
        /// The text.
        text: String,
        /// Whether the tokenizer's post-processor adds its tokens, as `add_special_tokens` means it.
        add_special_tokens: bool,
    },
    /// A conversation, through the model's template.
    Chat {
        /// What the body's fields mean.
        api: ChatApi,
        /// The request's body, JSON.
        body: Vec<u8>,
    },
}

/// An API whose body holds a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatApi {
    /// OpenAI's `/v1/chat/completions`.
    ChatCompletions,
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

/// Token ids of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// The ids.
    pub ids: Vec<u32>,
    /// Whether they are those of the whole prompt; else they are exactly the first ones of it.
    pub complete: bool,
}

/// Keys to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The keys.
    pub chain: RequestChain,
    /// Tokens that they cover; 0 where a prefix hash came without a count.
    pub effective_tokens: i64,
    /// The ids of a text that was tokenized here.
    pub tokenized: Option<Tokenized>,
    /// Whether they are those of the first of several prompts.
    pub first_of_several: bool,
}

/// No keys to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Why.
    pub detail: Detail,
    /// The ids of a text that was tokenized here.
    pub tokenized: Option<Tokenized>,
}

/// Turns text into token ids as the model's engine does.
pub trait Tokenizer {
    /// The ids of a prompt, or of as much of it as is exact and within bounds.
    ///
    /// # Errors
    /// When the ids cannot be known.
    fn tokenize(&self, model_id: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError>;
}

/// Why a text has no token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizeError {
    /// There is no tokenizer for the model.
    Unavailable,
    /// There is a tokenizer for the model, and it is not here yet.
    Arriving,
    /// The model has no chat template, or the conversation is one that the engine renders without it.
    NoTemplate,
    /// The body is no conversation, or the template or the tokenizer refused it.
    Failed,
    /// The engine's key for this prompt depends on more than its tokens.
    UnsupportedKey,
    /// It takes more work than one request may.
    OverBudget,
    /// As many texts are being tokenized as may be.
    Saturated,
}

/// Knows no model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoTokenizer;

// === impl PromptInput ===

impl PromptInput {
    /// Whether the input satisfies a policy that requires chains.
    pub fn has_required_chain(&self, origin: ChainOrigin) -> bool {
        match (&self.chain, &self.source) {
            (WireChain::Chain(_), _) => true,
            (WireChain::Absent, PromptSource::TokenIds(_) | PromptSource::Text(_)) => {
                origin == ChainOrigin::Derived && self.prefix_hash.is_none()
            }
            _ => false,
        }
    }

    /// With token ids and block chains cut to their first `max_tokens`, which are exact: what is left is the prompt's
    /// beginning. Of a chain at least one block is left.
    pub(super) fn cut(mut self, max_tokens: usize) -> PromptInput {
        if let PromptSource::TokenIds(ids) = &mut self.source {
            ids.truncate(max_tokens);
        }
        if let WireChain::Chain(blocks) = &mut self.chain {
            let mut left = i64::try_from(max_tokens).unwrap_or(i64::MAX);
            let fitting = blocks.iter().take_while(|block| {
                left = left.saturating_sub(block.tokens.into());
                left >= 0
            });
            let fitting = fitting.count();
            blocks.truncate(fitting.max(1));
        }
        self
    }

    /// Whether the block chain, if there is one, is well-formed.
    pub fn is_well_formed(&self) -> bool {
        self.chain != WireChain::Malformed
    }

    /// The keys to look up. Without any input that is the key that nobody holds.
    ///
    /// # Errors
    /// When the input that counts gives no keys.
    pub fn resolve(
        &self,
        strategy: Strategy,
        block_size: BlockSize,
        model_id: &str,
        tokenizer: &dyn Tokenizer,
    ) -> Result<Resolved, Unresolved> {
        if strategy.enable_chain_matching {
            match &self.chain {
                WireChain::Malformed => return Err(Unresolved::new(Detail::MalformedChain)),
                WireChain::Chain(blocks) if blocks.len() > MAX_TOKENS => {
                    return Err(Unresolved::new(Detail::TooManyTokens));
                }
                WireChain::Chain(blocks) => return Ok(Resolved::chain(blocks.clone())),
                WireChain::Absent => {}
            }
        }
        if let Some(key) = &self.prefix_hash {
            return Ok(Resolved::exact(key.clone(), self.prefix_token_count.into()));
        }
        match &self.source {
            PromptSource::TokenIds(ids) => {
                let resolved = derived(ids, strategy, block_size).map_err(Unresolved::new)?;
                Ok(Resolved { first_of_several: self.of_several, ..resolved })
            }
            PromptSource::Text(text) => {
                let ids = tokenized(text, model_id, tokenizer).map_err(Unresolved::new)?;
                match derived(&ids.ids, strategy, block_size) {
                    Ok(resolved) => {
                        Ok(Resolved { tokenized: Some(ids), first_of_several: self.of_several, ..resolved })
                    }
                    // Of a prompt that is longer than what is certain of it nobody can say that it is short.
                    Err(Detail::ShortPrompt) if !ids.complete => {
                        Err(Unresolved { detail: Detail::Budget, tokenized: Some(ids) })
                    }
                    Err(detail) => Err(Unresolved { detail, tokenized: Some(ids) }),
                }
            }
            PromptSource::Refused(detail) => Err(Unresolved::new(*detail)),
            PromptSource::Absent if self.chain == WireChain::Absent => {
                Ok(Resolved::exact(BlockKey::of_request(&[]), self.prefix_token_count.into()))
            }
            PromptSource::Absent => Err(Unresolved::new(Detail::ChainsDisabled)),
        }
    }
}

/// The keys of the full blocks of `ids`.
fn derived(ids: &[u32], strategy: Strategy, block_size: BlockSize) -> Result<Resolved, Detail> {
    if ids.len() > MAX_TOKENS {
        return Err(Detail::TooManyTokens);
    }
    let tokens = i32::try_from(block_size.tokens()).map_err(|_| Detail::ShortPrompt)?;
    let hashes: Vec<u64> = prefix_hashes(ids, block_size, None).map(|hash| hash.0).collect();
    let last = hashes.last().copied().ok_or(Detail::ShortPrompt)?;
    let effective_tokens = (hashes.len() as i64).saturating_mul(tokens.into());
    if !strategy.enable_chain_matching {
        return Ok(Resolved::exact(BlockKey::Hash64(last), effective_tokens));
    }
    Ok(Resolved::of(RequestChain::Prefixes { hashes, block_size }, effective_tokens))
}

fn tokenized(prompt: &TextPrompt, model_id: &str, tokenizer: &dyn Tokenizer) -> Result<Tokenized, Detail> {
    // The contract's cap is for its own field. The others are bounded by the body's length, and by what the tokenizer takes.
    if matches!(prompt, TextPrompt::User(text) if text.len() > MAX_TEXT_BYTES) {
        return Err(Detail::TooMuchText);
    }
    let tokenized = tokenizer.tokenize(model_id, prompt).map_err(TokenizeError::detail)?;
    match tokenized.ids.len() {
        0 => Err(Detail::NoPrompt),
        1..=MAX_TOKENS => Ok(tokenized),
        _ => Err(Detail::TooManyTokens),
    }
}

// === impl TokenizeError ===

impl TokenizeError {
    /// What a decision says of it.
    pub fn detail(self) -> Detail {
        match self {
            TokenizeError::Unavailable => Detail::NoTokenizer,
            TokenizeError::Arriving => Detail::CatchingUp,
            TokenizeError::NoTemplate => Detail::NoTemplate,
            TokenizeError::Failed => Detail::NotTokenized,
            TokenizeError::UnsupportedKey => Detail::UnsupportedKey,
            TokenizeError::OverBudget | TokenizeError::Saturated => Detail::Budget,
        }
    }
}

// === impl Resolved ===

impl Resolved {
    fn exact(key: BlockKey, effective_tokens: i64) -> Resolved {
        Resolved::of(RequestChain::Exact { key }, effective_tokens)
    }

    fn chain(blocks: Vec<ChainBlock>) -> Resolved {
        let effective_tokens = blocks.iter().map(|block| i64::from(block.tokens)).sum();
        Resolved::of(RequestChain::Chain(blocks), effective_tokens)
    }

    fn of(chain: RequestChain, effective_tokens: i64) -> Resolved {
        Resolved { chain, effective_tokens, tokenized: None, first_of_several: false }
    }
}

// === impl Unresolved ===

impl Unresolved {
    fn new(detail: Detail) -> Unresolved {
        Unresolved { detail, tokenized: None }
    }
}

// === impl NoTokenizer ===

impl Tokenizer for NoTokenizer {
    fn tokenize(&self, _: &str, _: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        Err(TokenizeError::Unavailable)
    }
}
