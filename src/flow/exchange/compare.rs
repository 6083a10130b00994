//! What was foretold of a prompt, held against what the engine says of it.
//!
//! Two things can be wrong. The engine had more or less of the prompt in its cache than the index said of the replica that
//! answered; by up to a block that is nothing, since an engine computes the last block of a prompt that it has in whole
//! again, and may keep parts of blocks. Or the prompt had another number of tokens than were counted here: then its ids are
//! others, and none of its blocks will ever match.

use crate::config::FilterConfig;
use crate::flow::metrics;
use crate::host::HttpHost;
use crate::request::{LookupRequest, RequestChain};
use crate::routing::decision::Decision;
use crate::routing::lookup::Answer;
use crate::routing::reason::{Detail, ReasonCode};

use super::notices::Notices;
use super::usage::{Framing, Scanner, Usage};

/// The most of a body that is copied at once, in bytes.
const PIECE_BYTES: usize = 32 * 1_024;

/// What is foretold when a request is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foretold {
    /// The model's label.
    model: String,
    /// The number of the prompt's token ids, where all of them were made here.
    prompt_tokens: Option<u64>,
    cached: Cached,
    /// Tokens in a block.
    block_tokens: u64,
}

/// What is said of the engines' caches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cached {
    /// Nothing.
    Unknown,
    /// Nobody has any of the prompt.
    Nobody,
    /// So many tokens each replica in the destination header, in its order.
    Replicas(Vec<u64>),
}

/// The same once it is known who answers.
#[derive(Clone, Debug)]
struct Claim {
    model: String,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    block_tokens: u64,
}

/// A response that is read.
#[derive(Debug)]
pub(super) struct Reading {
    claim: Claim,
    scanner: Scanner,
}

/// How what was cached compares with what was foretold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Within a block of each other.
    AsPredicted,
    /// The engine had less.
    Fewer,
    /// The engine had more.
    More,
}

// === impl Foretold ===

impl Foretold {
    /// What `answer` foretells of `request`; nothing if responses are not read, or there is nothing to hold against them.
    /// The decision's replicas are those that are sent. Of several prompts, of which the first decides, the engine counts all.
    pub(super) fn new(config: &FilterConfig, request: &LookupRequest, answer: &Answer) -> Option<Foretold> {
        let whole = answer.tokenized.as_ref().filter(|tokenized| tokenized.complete);
        let prompt_tokens = whole.map(|tokenized| tokenized.ids.len() as u64);
        let cached = Cached::new(&answer.decision, answer.chain.as_ref());
        let is_none = request.prompt.of_several || (prompt_tokens.is_none() && cached == Cached::Unknown);
        if is_none || !config.read_usage {
            return None;
        }
        let model = request.scope.model_id.clone();
        Some(Foretold { model, prompt_tokens, cached, block_tokens: block_tokens(request, answer.chain.as_ref()) })
    }

    /// Begins to read a response that the `place`th of the replicas gives, or another if there is no place. None if there
    /// is nothing in it to read.
    pub(super) fn read(self, host: &impl HttpHost, place: Option<usize>) -> Option<Reading> {
        let cached_tokens = match self.cached {
            Cached::Unknown => None,
            Cached::Nobody => Some(0),
            Cached::Replicas(tokens) => place.and_then(|place| tokens.get(place).copied()),
        };
        if self.prompt_tokens.is_none() && cached_tokens.is_none() {
            return None;
        }
        let scanner = Scanner::new(framing(host)?);
        let Foretold { model, prompt_tokens, block_tokens, .. } = self;
        Some(Reading { claim: Claim { model, prompt_tokens, cached_tokens, block_tokens }, scanner })
    }
}

/// The tokens of the largest block looked up.
fn block_tokens(request: &LookupRequest, chain: Option<&RequestChain>) -> u64 {
    let own = match chain {
        Some(RequestChain::Chain(blocks)) => blocks.iter().map(|block| i64::from(block.tokens)).max().unwrap_or(0),
        Some(RequestChain::Prefixes { block_size, .. }) => return block_size.tokens() as u64,
        _ => 0,
    };
    u64::try_from(own).unwrap_or(0).max(request.block_size.tokens() as u64)
}

// === impl Cached ===

impl Cached {
    /// A single key that nobody has says nothing of shorter prefixes.
    fn new(decision: &Decision, chain: Option<&RequestChain>) -> Cached {
        if decision.reason == ReasonCode::PrefixMatch {
            return Cached::Replicas(decision.ranked.iter().map(|replica| replica.matched_tokens.into()).collect());
        }
        let is_chain = matches!(chain, Some(RequestChain::Chain(_) | RequestChain::Prefixes { .. }));
        let is_miss = matches!(decision.reason, ReasonCode::NoHint | ReasonCode::AffinityHint);
        if is_chain && is_miss && decision.detail == Detail::Miss { Cached::Nobody } else { Cached::Unknown }
    }
}

/// What the response is made of; none if it is no success, or nothing that can be read as it passes.
fn framing(host: &impl HttpHost) -> Option<Framing> {
    if !host.response_header(":status")?.starts_with(b"2") {
        return None;
    }
    let encoding = host.response_header("content-encoding").unwrap_or_default();
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity") {
        return None;
    }
    let content_type = host.response_header("content-type")?;
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |name: &str| media_type.eq_ignore_ascii_case(name.as_bytes());
    if is("text/event-stream") {
        return Some(Framing::Events);
    }
    is("application/json").then_some(Framing::Json)
}

// === impl Reading ===

impl Reading {
    /// The body's next `size` bytes are here. False if they cannot be had: then what follows cannot be read either.
    pub(super) fn read(&mut self, host: &impl HttpHost, size: usize) -> bool {
        let mut start = 0;
        while start < size {
            let piece = host.response_body(start, PIECE_BYTES.min(size - start)).unwrap_or_default();
            if piece.is_empty() {
                return false;
            }
            self.scanner.read(&piece);
            start = start.saturating_add(piece.len());
        }
        true
    }

    /// The response has ended, or has been broken off. Of one that was broken off, only what was read already counts.
    pub(super) fn end(self, host: &impl HttpHost, notices: &mut Notices, is_whole: bool) {
        let Reading { claim, scanner } = self;
        let usage = scanner.usage();
        if is_whole {
            claim.count_prompt(host, notices, usage);
        }
        claim.count_cached(host, notices, usage, is_whole);
    }
}

// === impl Claim ===

impl Claim {
    fn count_prompt(&self, host: &impl HttpHost, notices: &mut Notices, usage: Usage) {
        let (Some(here), Some(there)) = (self.prompt_tokens, usage.prompt_tokens()) else { return };
        if !usage.agrees_with(here) {
            host.count(&metrics::prompt_tokens_mismatch(&self.model), 1);
            notices.drift.miscounted(host, &self.model, here, there);
        }
    }

    fn count_cached(&self, host: &impl HttpHost, notices: &mut Notices, usage: Usage, is_whole: bool) {
        let Some(predicted) = self.cached_tokens else { return };
        if usage.cached_tokens().is_some() {
            notices.drift.reports_cached(&self.model);
        }
        // An engine that does say what was cached may leave it out where that is nothing.
        let nothing =
            || (is_whole && usage.prompt_tokens().is_some() && notices.drift.is_reported(&self.model)).then_some(0);
        let Some(actual) = usage.cached_tokens().or_else(nothing) else {
            if is_whole {
                host.count(&metrics::usage_compared(&self.model, "no_usage"), 1);
            }
            return;
        };
        let verdict = Verdict::new(predicted, actual, self.block_tokens);
        host.record(&metrics::predicted_tokens(&self.model), predicted);
        host.record(&metrics::cached_tokens(&self.model), actual);
        host.count(&metrics::usage_compared(&self.model, verdict.as_str()), 1);
        if verdict.is_failure(predicted) {
            host.count(&metrics::prediction_failures(&self.model), 1);
        }
        notices.drift.compared(host, &self.model, verdict, predicted, actual);
    }
}

// === impl Verdict ===

impl Verdict {
    fn new(predicted: u64, actual: u64, block_tokens: u64) -> Verdict {
        match predicted.abs_diff(actual) {
            apart if apart <= block_tokens => Verdict::AsPredicted,
            _ if actual < predicted => Verdict::Fewer,
            _ => Verdict::More,
        }
    }

    /// Whether a prediction has failed: what was foretold is not there, or is there although nobody was to have any. That
    /// an engine has more of what it was to have is a prediction that is behind.
    pub(super) fn is_failure(self, predicted: u64) -> bool {
        match self {
            Verdict::AsPredicted => false,
            Verdict::Fewer => true,
            Verdict::More => predicted == 0,
        }
    }

    /// The label's value.
    fn as_str(self) -> &'static str {
        match self {
            Verdict::AsPredicted => "as_predicted",
            Verdict::Fewer => "fewer",
            Verdict::More => "more",
        }
    }
}

#[cfg(test)]
mod tests;
