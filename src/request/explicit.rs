//! Explicit keys: hashes that the client computed, in hex, with the tokens they cover.
//!
//! Keys are opaque. All have the width that the model's configuration gives them, counts are from 1 to `i32::MAX` (the
//! contract's fields are int32), and so is their sum. Anything else is `malformed_chain`. A missing
//! `prefix_token_count` is allowed, as in the contract: the prefix then counts as 0 tokens.

use super::{ChainBlock, PromptInput, PromptSource, WireChain, names};
use crate::config::ModelConfig;
use crate::fingerprint::BlockSize;
use crate::observation::BlockKey;
use crate::routing::reason::Detail;

/// Explicit keys as given; their width is checked once the model is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Explicit {
    pub prefix_hash: Option<Vec<u8>>,
    pub prefix_token_count: Option<u32>,
    pub block_hashes: Option<Hashes>,
    pub block_token_counts: Option<Vec<u32>>,
    pub block_size: Option<BlockSize>,
}

/// The keys of a chain, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hashes {
    pub bytes: Vec<u8>,
    /// Width in bytes, if the client separated them.
    pub width: Option<usize>,
}

/// Explicit input that does not hold together.
pub(super) const MALFORMED: Detail = Detail::MalformedChain;

// === impl Explicit ===

impl Explicit {
    /// What the input headers give; `None` if there are no keys among them.
    pub(super) fn from_headers<'a>(
        get: impl Fn(&'static str) -> Result<Option<&'a str>, Detail>,
    ) -> Result<Option<Explicit>, Detail> {
        let explicit = Explicit {
            prefix_hash: get(names::PREFIX_HASH)?.map(hex).transpose()?,
            prefix_token_count: get(names::PREFIX_TOKEN_COUNT)?.map(parse_count).transpose()?,
            block_hashes: get(names::BLOCK_HASHES)?.map(Hashes::concatenated).transpose()?,
            block_token_counts: get(names::BLOCK_TOKEN_COUNTS)?.map(parse_counts).transpose()?,
            block_size: get(names::BLOCK_SIZE)?.map(parse_block_size).transpose()?,
        };
        Ok(explicit.if_present())
    }

    /// `None` if there are no keys. As in the contract, counts of blocks are enough to make it explicit (and malformed),
    /// a count of prefix tokens or a block size is not.
    pub(super) fn if_present(self) -> Option<Explicit> {
        let present = self.prefix_hash.is_some() || self.block_hashes.is_some() || self.block_token_counts.is_some();
        present.then_some(self)
    }

    /// The keys of a prompt for `model`, whose other forms are `source`.
    ///
    /// # Errors
    /// When the prefix hash does not have the width of the model's keys.
    pub(super) fn prompt(&self, model: &ModelConfig, source: PromptSource) -> Result<PromptInput, Detail> {
        let chain = match (&self.block_hashes, &self.block_token_counts) {
            (None, None) => WireChain::Absent,
            (Some(hashes), counts) => {
                self.block_chain(hashes, counts.as_deref(), model).unwrap_or(WireChain::Malformed)
            }
            (None, Some(_)) => WireChain::Malformed,
        };
        let prefix_hash = self.prefix_hash.as_deref().map(|hash| prefix_key(hash, model)).transpose()?;
        let prefix_token_count = self.prefix_token_count.map_or(Ok(0), i32::try_from).map_err(|_| MALFORMED)?;
        Ok(PromptInput { prefix_hash, prefix_token_count, chain, source, of_several: false })
    }

    fn block_chain(&self, hashes: &Hashes, counts: Option<&[u32]>, model: &ModelConfig) -> Result<WireChain, Detail> {
        let same = u32::try_from(self.block_size.unwrap_or(model.block_size).tokens()).map_err(|_| MALFORMED)?;
        let keys = hashes.keys(model.key_bytes)?;
        if counts.is_some_and(|counts| counts.len() != keys.len()) {
            return Err(MALFORMED);
        }
        let mut counts = counts.map(|counts| counts.iter().copied());
        let mut total: u32 = 0;
        let mut blocks = Vec::with_capacity(keys.len());
        for bytes in keys {
            let tokens = counts.as_mut().map_or(Some(same), Iterator::next).ok_or(MALFORMED)?;
            total = total.checked_add(tokens).filter(|total| i32::try_from(*total).is_ok()).ok_or(MALFORMED)?;
            let tokens = i32::try_from(tokens).map_err(|_| MALFORMED)?;
            blocks.push(ChainBlock { key: BlockKey::from_bytes(bytes).map_err(|_| MALFORMED)?, tokens });
        }
        if blocks.is_empty() { Err(MALFORMED) } else { Ok(WireChain::Chain(blocks)) }
    }
}

// === impl Hashes ===

impl Hashes {
    /// Keys in one run of hex digits.
    pub(super) fn concatenated(digits: &str) -> Result<Hashes, Detail> {
        Ok(Hashes { bytes: hex(digits)?, width: None })
    }

    /// Adds one key in hex; all must have the same width.
    pub(super) fn push(&mut self, digits: &str) -> Result<(), Detail> {
        let before = self.bytes.len();
        push_hex(digits, &mut self.bytes)?;
        let width = self.bytes.len().saturating_sub(before);
        if width == 0 || self.width.is_some_and(|other| other != width) {
            return Err(MALFORMED);
        }
        self.width = Some(width);
        Ok(())
    }

    fn keys(&self, width: usize) -> Result<std::slice::ChunksExact<'_, u8>, Detail> {
        let fits = width > 0 && self.bytes.len().is_multiple_of(width) && self.width.is_none_or(|own| own == width);
        if fits { Ok(self.bytes.chunks_exact(width)) } else { Err(MALFORMED) }
    }
}

fn prefix_key(hash: &[u8], model: &ModelConfig) -> Result<BlockKey, Detail> {
    BlockKey::from_bytes(hash).ok().filter(|_| hash.len() == model.key_bytes).ok_or(MALFORMED)
}

/// A count of tokens.
pub(super) fn count(number: u64) -> Result<u32, Detail> {
    i32::try_from(number)
        .ok()
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or(MALFORMED)
}

/// A block size.
pub(super) fn block_size(number: u64) -> Result<BlockSize, Detail> {
    BlockSize::try_new(number).map_err(|_| MALFORMED)
}

/// The bytes that hex digits, two each, stand for.
pub(super) fn hex(digits: &str) -> Result<Vec<u8>, Detail> {
    let mut bytes = Vec::with_capacity(digits.len() / 2);
    push_hex(digits, &mut bytes)?;
    Ok(bytes)
}

fn push_hex(digits: &str, bytes: &mut Vec<u8>) -> Result<(), Detail> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(MALFORMED);
    }
    let start = bytes.len();
    let mut valid = true;
    bytes.extend(pairs.iter().map(|[high, low]| {
        let (high, low) = (nibble(*high), nibble(*low));
        valid &= (high | low) < 16;
        (high << 4) | (low & 15)
    }));
    if valid {
        return Ok(());
    }
    bytes.truncate(start);
    Err(MALFORMED)
}

/// A hex digit's value; 16 for anything else.
fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit.wrapping_sub(b'0'),
        b'a'..=b'f' => digit.wrapping_sub(b'a' - 10),
        b'A'..=b'F' => digit.wrapping_sub(b'A' - 10),
        _ => 16,
    }
}

/// Digits only: `str::parse` would take a sign.
fn parse_number(text: &str) -> Result<u64, Detail> {
    let text = text.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().map_err(|_| MALFORMED) } else { Err(MALFORMED) }
}

fn parse_count(text: &str) -> Result<u32, Detail> {
    parse_number(text).and_then(count)
}

fn parse_counts(text: &str) -> Result<Vec<u32>, Detail> {
    text.split(',').map(parse_count).collect()
}

fn parse_block_size(text: &str) -> Result<BlockSize, Detail> {
    parse_number(text).and_then(block_size)
}
