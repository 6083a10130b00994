//! Prompt text to token ids, exactly as the engine's tokenizer does it.
//!
//! In: an artifact, which [`compile`] makes from a `tokenizer.json`, and a text. Out: the ids that Hugging Face
//! `tokenizers` gives for it. Byte-level BPE with the split patterns of GPT-2, cl100k, Llama-3, Qwen, o200k, tekken and
//! DeepSeek, and BPE over characters with or without byte fallback (Llama-2, Mistral, Gemma, Phi-3). Anything else is
//! refused when it is compiled, never approximated.
//!
//! An artifact is used in place: loading one takes milliseconds and a few kilobytes beside it. A text costs
//! O(n log n) time and at most about sixty bytes of memory a byte, whatever it holds; [`Limits`] bound it further.
//! Nothing recurses, and no artifact or text makes it panic. It knows no host, clock, I/O or randomness.
//!
//! Two differences from the reference are known. Character classes are those of Unicode 17, so a character that the
//! engine's older tables do not know may split a word elsewhere. And truncation and padding of a `tokenizer.json` are
//! ignored, as engines do.
//!
//! ```
//! use warmroute::tokenize::{Limits, Specials, Tokenizer, Workspace, compile};
//!
//! let json = br#"{"version": "1.0", "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
//!     "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": false},
//!     "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;
//! let tokenizer = Tokenizer::load(compile(json)?)?;
//! let mut workspace = Workspace::new(0);
//! let ids = tokenizer.encode("<s>abba", Specials::None, &Limits::default(), &mut workspace)?;
//! assert_eq!(ids, [3, 2, 1, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod added;
mod artifact;
mod bpe;
mod compile;
mod encode;
mod format;
mod memo;
mod normalize;
mod split;
mod starts;
mod tables;
mod words;

pub use artifact::{ArtifactError, SourceDigest, TokenizerDigest};
pub use compile::{CompileError, Unsupported, compile};

use added::Piece;
use artifact::Artifact;
use encode::{Encoding, Stopped};
use format::Section;
use memo::Units;
use split::Splitter;
use tables::word;
use words::WordEncoder;

use crate::template::KnownItems;

/// The longest text, whatever the limits: positions in it still fit 32 bits when a normalizer has made it longer.
const MAX_TEXT_BYTES: usize = 1 << 27;
/// The part of a workspace's memory that is for messages.
const ITEMS_SHARE: usize = 4;

/// A tokenizer, ready to encode.
pub struct Tokenizer {
    artifact: Artifact,
}

/// Memory that a text's way from a request's body to its ids uses and keeps: scratch buffers, words, units and messages seen
/// before.
///
/// Serves any number of tokenizers; the words are forgotten when another one uses it. One a thread.
pub struct Workspace {
    splitter: Splitter,
    words: WordEncoder,
    words_of: Option<TokenizerDigest>,
    units: Units,
    items: KnownItems,
    memo_bytes: usize,
}

/// How much of a text may be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text; never more than 128 MiB.
    pub max_bytes: usize,
    /// Ids, those of the post-processor included.
    pub max_tokens: usize,
    /// Symbols of all words that are neither tokens nor remembered, so have to be merged: characters or bytes. This
    /// bounds the time, which bytes alone do not: 100 KB of prose or code have up to some fifty thousand and take one
    /// or two milliseconds, 100 KB of letters without a blank have a hundred thousand and take twenty.
    pub max_symbols: usize,
}

/// Which of the ids that the post-processor adds are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// None: a rendered chat template brings its own.
    None,
    /// Those before the text: for a prefix that is cut off.
    Before,
    /// All: what `add_special_tokens` means.
    Around,
}

/// A text, and whether that is all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent<'t> {
    /// All of it.
    Whole(&'t str),
    /// Its beginning: something follows that is not known.
    Beginning(&'t str),
}

/// Ids that a text begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<u32>,
    /// Whether they are all of them.
    pub complete: bool,
}

/// A text was over a limit, so there are no ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// It is longer than [`Limits::max_bytes`].
    Bytes {
        /// Its length.
        found: usize,
        /// The limit.
        allowed: usize,
    },
    /// It gives more ids than [`Limits::max_tokens`].
    Tokens {
        /// The limit.
        allowed: usize,
    },
    /// Its words have more symbols to merge than [`Limits::max_symbols`].
    Symbols {
        /// The limit.
        allowed: usize,
    },
}

// === impl Tokenizer ===

impl Tokenizer {
    /// Takes an artifact over.
    ///
    /// # Errors
    /// When the bytes are not an artifact of this version, or are damaged.
    pub fn load(artifact: Vec<u8>) -> Result<Tokenizer, ArtifactError> {
        Artifact::load(artifact).map(|artifact| Tokenizer { artifact })
    }

    /// As [`Tokenizer::load`], of an artifact whose bytes are known to be undamaged: they are not hashed, which is nearly
    /// all the time that loading takes.
    ///
    /// # Errors
    /// When the bytes are not an artifact of this version.
    pub fn load_checked(artifact: Vec<u8>) -> Result<Tokenizer, ArtifactError> {
        Artifact::load_checked(artifact).map(|artifact| Tokenizer { artifact })
    }

    /// The ids of a text.
    ///
    /// # Errors
    /// When the text is over a limit. It is never cut: see [`Tokenizer::encode_leading`].
    pub fn encode(
        &self,
        text: &str,
        specials: Specials,
        limits: &Limits,
        workspace: &mut Workspace,
    ) -> Result<Vec<u32>, OverLimit> {
        let allowed = limits.max_bytes.min(MAX_TEXT_BYTES);
        if text.len() > allowed {
            return Err(OverLimit::Bytes { found: text.len(), allowed });
        }
        workspace.is_used_by(self.digest());
        let Workspace { splitter, words, units, .. } = workspace;
        let mut encoding = Encoding::new(&self.artifact, text.len(), splitter, words, limits);
        match self.encode_around(text, specials, &mut encoding, units) {
            Ok(()) => Ok(encoding.into_ids()),
            Err(Stopped::Tokens) => Err(OverLimit::Tokens { allowed: limits.max_tokens }),
            Err(Stopped::Symbols) => Err(OverLimit::Symbols { allowed: limits.max_symbols }),
        }
    }

    /// The ids of a text, or those that it certainly begins with: of a text that is over a limit as many as the limits
    /// allow, and of a text that goes on those that do not depend on how. Ids that could be others are left out.
    ///
    /// It takes no more work than the limits allow, whatever the length of the text.
    pub fn encode_leading(
        &self,
        text: Extent<'_>,
        specials: Specials,
        limits: &Limits,
        workspace: &mut Workspace,
    ) -> Encoded {
        let allowed = limits.max_bytes.min(MAX_TEXT_BYTES);
        let text = match text {
            Extent::Whole(text) | Extent::Beginning(text) if text.len() > allowed => {
                Extent::Beginning(text.get(..text.floor_char_boundary(allowed)).unwrap_or_default())
            }
            text => text,
        };
        workspace.is_used_by(self.digest());
        let Workspace { splitter, words, units, .. } = workspace;
        let (Extent::Whole(all) | Extent::Beginning(all)) = text;
        let mut encoding = Encoding::new(&self.artifact, all.len(), splitter, words, limits);
        let (stopped, is_whole) = match text {
            Extent::Whole(text) => (self.encode_around(text, specials, &mut encoding, units).is_err(), true),
            Extent::Beginning(text) => (self.encode_beginning(text, specials, &mut encoding, units).is_err(), false),
        };
        // A limit stops between two words: the ids so far stand.
        let mut ids = encoding.into_ids();
        ids.truncate(limits.max_tokens);
        Encoded { ids, complete: is_whole && !stopped }
    }

    /// Identity of the tokenizer: equal digests, equal ids.
    pub fn digest(&self) -> TokenizerDigest {
        self.artifact.digest
    }

    /// Identity of the file that the artifact was made from.
    pub fn source(&self) -> SourceDigest {
        self.artifact.source
    }

    /// Memory of the artifact, which is nearly all that the tokenizer takes.
    pub fn artifact_bytes(&self) -> usize {
        self.artifact.capacity()
    }

    fn encode_beginning(
        &self,
        text: &str,
        specials: Specials,
        encoding: &mut Encoding<'_>,
        units: &mut Units,
    ) -> Result<(), Stopped> {
        let open = self.artifact.raw_added().open_from(text);
        let cut = self.cuts(text).take_while(|cut| *cut < open).last().unwrap_or(0);
        let (known, rest) = text.split_at_checked(cut).unwrap_or((text, ""));
        let specials = if specials == Specials::None { specials } else { Specials::Before };
        self.encode_around(known, specials, encoding, units)?;
        encoding.open_part(rest, cut == 0)
    }

    fn encode_around(
        &self,
        text: &str,
        specials: Specials,
        encoding: &mut Encoding<'_>,
        units: &mut Units,
    ) -> Result<(), Stopped> {
        if specials != Specials::None {
            encoding.extend(self.ids_of(Section::Prefix))?;
        }
        let mut start = 0;
        for end in self.cuts(text).chain([text.len()]) {
            self.encode_unit(text.get(start..end).unwrap_or_default(), start == 0, encoding, units)?;
            start = end;
        }
        if specials == Specials::Around {
            encoding.extend(self.ids_of(Section::Suffix))?;
        }
        Ok(())
    }

    /// Text from one special token up to the next.
    fn encode_unit(
        &self,
        unit: &str,
        at_start: bool,
        encoding: &mut Encoding<'_>,
        units: &mut Units,
    ) -> Result<(), Stopped> {
        // The first unit may begin without a token and then stands at the start: no other unit equals it there.
        let Some(key) = memo::key(units, self.digest(), unit) else { return encoding.part(unit, at_start) };
        if let Some(ids) = units.get(key) {
            return encoding.extend(ids.iter().copied());
        }
        let before = encoding.ids().len();
        encoding.part(unit, at_start)?;
        let ids = encoding.ids().get(before..).unwrap_or_default();
        if units.takes(size_of_val(ids)) {
            units.remember(key, ids.into());
        }
        Ok(())
    }

    /// Where the text can be cut exactly: before special tokens, but for one at its start.
    fn cuts<'t>(&'t self, text: &'t str) -> impl Iterator<Item = usize> + 't {
        self.artifact.raw_added().pieces(text).filter_map(|piece| match piece {
            Piece::Token(token) if token.exact_cut && token.start > 0 && token.special => Some(token.start),
            _ => None,
        })
    }

    fn ids_of(&self, section: Section) -> impl Iterator<Item = u32> {
        let words = self.artifact.words(section);
        (0..words.len()).filter_map(|at| word(words, at))
    }
}

// === impl Workspace ===

impl Workspace {
    /// A workspace that remembers up to `memo_bytes` bytes' worth of chat turns: their ids, and in a quarter of it their
    /// messages; 0 for none.
    pub fn new(memo_bytes: usize) -> Workspace {
        let for_items = memo_bytes / ITEMS_SHARE;
        Workspace {
            splitter: Splitter::default(),
            words: WordEncoder::default(),
            words_of: None,
            units: Units::new(memo_bytes - for_items),
            items: KnownItems::new(for_items),
            memo_bytes,
        }
    }

    /// Remembers up to `memo_bytes` bytes' worth from now on. Where that is another bound, what was remembered is
    /// forgotten.
    pub fn set_memo_bytes(&mut self, memo_bytes: usize) {
        if self.memo_bytes != memo_bytes {
            let Workspace { units, items, .. } = Workspace::new(memo_bytes);
            (self.units, self.items, self.memo_bytes) = (units, items, memo_bytes);
        }
    }

    /// Bytes that remembered ids and messages take.
    pub fn memo_bytes(&self) -> usize {
        self.units.bytes() + self.items.bytes()
    }

    /// The messages seen before, for reading bodies.
    pub fn items(&mut self) -> &mut KnownItems {
        &mut self.items
    }

    fn is_used_by(&mut self, digest: TokenizerDigest) {
        if self.words_of != Some(digest) {
            self.words.clear();
            self.words_of = Some(digest);
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    /// No limit but that of positions.
    fn default() -> Limits {
        Limits { max_bytes: MAX_TEXT_BYTES, max_tokens: usize::MAX, max_symbols: usize::MAX }
    }
}

impl std::fmt::Display for OverLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OverLimit::Bytes { found, allowed } => write!(f, "text of {found} bytes, allowed are {allowed}"),
            OverLimit::Tokens { allowed } => write!(f, "text of more than {allowed} tokens, which are allowed"),
            OverLimit::Symbols { allowed } => {
                write!(f, "text whose words have more than {allowed} symbols to merge, which are allowed")
            }
        }
    }
}

impl std::error::Error for OverLimit {}

#[cfg(test)]
mod naive_tests;
#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
