//! An artifact, checked once and then used in place.
//!
//! Loading checks the header, the digest and that every section lies inside the file with a length that fits its
//! contents. It does not check what the tables say: every lookup is bounded and falls back to "not there", so a table
//! that lies gives wrong ids, never a panic, an endless loop or unbounded memory.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_128;

use super::added::Trie;
use super::format::{
    BadParameter, DIGESTED_FROM, HEADER_BYTES, MAGIC, PARAMETER_WORDS, Parameters, PreTokenizer, SECTION_TABLE,
    Section, VERSION, Words as WordCuts,
};
use super::normalize::{self, Step};
use super::starts::Starts;
use super::tables::{Tables, Words};

/// Identity of a tokenizer: two artifacts with the same digest give the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenizerDigest(pub u128);

/// XXH3-128 of the `tokenizer.json` that an artifact was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceDigest(pub u128);

/// Why bytes are refused as an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtifactError {
    /// It does not begin like an artifact.
    NotAnArtifact,
    /// It was made by another version of the compile step: compile again.
    Version {
        /// The version found.
        found: u32,
    },
    /// Its length is not the one in its header.
    Length {
        /// Bytes according to the header.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// Its contents are not those that its digest was taken of.
    Digest,
    /// A parameter has a value that no compile step writes.
    Parameters,
    /// A section is outside the file or has an odd length.
    Section {
        /// Its number in the section table.
        number: usize,
    },
    /// The normalizer's steps are malformed or unbounded.
    Normalizer,
}

/// A checked artifact.
pub(super) struct Artifact {
    bytes: Vec<u8>,
    sections: [Range<usize>; Section::COUNT],
    pub(super) parameters: Parameters,
    pub(super) steps: Vec<Step>,
    /// The mark of words, where normalizing a text is nothing but writing it for each blank, and words begin at runs of it:
    /// then a text can be cut as it stands.
    pub(super) blank: Option<char>,
    pub(super) digest: TokenizerDigest,
    pub(super) source: SourceDigest,
    raw_starts: Starts,
    normalized_starts: Starts,
}

// === impl Artifact ===

impl Artifact {
    /// Takes the bytes over, if they are an artifact.
    pub(super) fn load(bytes: Vec<u8>) -> Result<Artifact, ArtifactError> {
        check_header(&bytes)?;
        if xxh3_128(bytes.get(DIGESTED_FROM..).unwrap_or_default()) != number(&bytes, 32) {
            return Err(ArtifactError::Digest);
        }
        Artifact::load_checked(bytes)
    }

    /// The same without the digest, which was taken of these bytes as somebody else has checked.
    pub(super) fn load_checked(bytes: Vec<u8>) -> Result<Artifact, ArtifactError> {
        check_header(&bytes)?;
        let parameters = parameters(&bytes).map_err(|BadParameter| ArtifactError::Parameters)?;
        let sections = sections(&bytes)?;
        let part = |section: Section| section_of(&bytes, &sections, section);
        let steps = normalize::from_bytes(part(Section::Normalizer)).map_err(|_| ArtifactError::Normalizer)?;
        let starts = |nodes, edges| Starts::of(part(nodes).as_chunks().0, part(edges).as_chunks().0);
        let normalized_starts = starts(Section::NormalizedNodes, Section::NormalizedEdges);
        Ok(Artifact {
            raw_starts: starts(Section::RawNodes, Section::RawEdges),
            blank: blank(&steps, &parameters).filter(|_| normalized_starts.is_empty()),
            normalized_starts,
            parameters,
            steps,
            digest: TokenizerDigest(number(&bytes, 32)),
            source: SourceDigest(number(&bytes, 16)),
            sections,
            bytes,
        })
    }

    /// Bytes of memory held.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The lookups of the model.
    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            byte_ids: self.words(Section::ByteIds),
            token_starts: self.words(Section::TokenStarts),
            token_bytes: self.section(Section::TokenBytes),
            vocabulary: self.words(Section::Vocabulary),
            vocabulary_probes: self.parameters.vocabulary_probes,
            longest_token: self.parameters.longest_token as usize,
            merges: self.section(Section::Merges).as_chunks().0,
            merge_probes: self.parameters.merge_probes,
            merged: self.words(Section::Merged),
        }
    }

    /// The added tokens that are looked for before normalizing.
    pub(super) fn raw_added(&self) -> Trie<'_> {
        self.trie(Section::RawNodes, Section::RawEdges, &self.raw_starts)
    }

    /// The added tokens that are looked for in normalized text.
    pub(super) fn normalized_added(&self) -> Trie<'_> {
        self.trie(Section::NormalizedNodes, Section::NormalizedEdges, &self.normalized_starts)
    }

    /// A section of words.
    pub(super) fn words(&self, section: Section) -> Words<'_> {
        self.section(section).as_chunks().0
    }

    fn trie<'a>(&'a self, nodes: Section, edges: Section, starts: &'a Starts) -> Trie<'a> {
        Trie {
            nodes: self.section(nodes).as_chunks().0,
            edges: self.words(edges),
            tokens: self.section(Section::Added).as_chunks().0,
            starts,
        }
    }

    fn section(&self, section: Section) -> &[u8] {
        section_of(&self.bytes, &self.sections, section)
    }
}

fn section_of<'a>(bytes: &'a [u8], sections: &[Range<usize>; Section::COUNT], section: Section) -> &'a [u8] {
    sections.get(section as usize).and_then(|range| bytes.get(range.clone())).unwrap_or_default()
}

fn check_header(bytes: &[u8]) -> Result<(), ArtifactError> {
    if bytes.get(..4) != Some(&MAGIC) {
        return Err(ArtifactError::NotAnArtifact);
    }
    let version = header_word(bytes, 4);
    if version != VERSION {
        return Err(ArtifactError::Version { found: version });
    }
    let (expected, found) = (u64::from(header_word(bytes, 8)), bytes.len() as u64);
    if expected != found || bytes.len() < HEADER_BYTES {
        return Err(ArtifactError::Length { expected: expected.max(HEADER_BYTES as u64), found });
    }
    Ok(())
}

fn parameters(bytes: &[u8]) -> Result<Parameters, BadParameter> {
    let words: [u32; PARAMETER_WORDS] = std::array::from_fn(|at| header_word(bytes, DIGESTED_FROM + 4 * at));
    Parameters::from_words(words)
}

fn sections(bytes: &[u8]) -> Result<[Range<usize>; Section::COUNT], ArtifactError> {
    let range = |number: usize| {
        let offset = header_word(bytes, SECTION_TABLE + 8 * number) as usize;
        let length = header_word(bytes, SECTION_TABLE + 8 * number + 4) as usize;
        offset..offset.saturating_add(length)
    };
    let sections: [Range<usize>; Section::COUNT] = std::array::from_fn(range);
    for (number, range) in sections.iter().enumerate() {
        let unit = match number {
            n if n == Section::TokenBytes as usize || n == Section::Normalizer as usize => 1,
            n if n == Section::Merges as usize || n == Section::Added as usize => 8,
            n if n == Section::RawNodes as usize || n == Section::NormalizedNodes as usize => 12,
            _ => 4,
        };
        if range.start < HEADER_BYTES || range.end > bytes.len() || range.len() % unit != 0 {
            return Err(ArtifactError::Section { number });
        }
    }
    Ok(sections)
}

fn blank(steps: &[Step], parameters: &Parameters) -> Option<char> {
    let PreTokenizer::Characters { mark, metaspace: None, words: WordCuts::BeforeRuns } = parameters.pre_tokenizer
    else {
        return None;
    };
    let [Step::Replace { pattern, content }] = steps else { return None };
    (pattern == " " && content.chars().eq([mark])).then_some(mark)
}

fn header_word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn number(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u128::from_le_bytes(*bytes))
}

impl std::fmt::Display for ArtifactError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ArtifactError::NotAnArtifact => write!(f, "not a tokenizer artifact"),
            ArtifactError::Version { found } => {
                write!(f, "tokenizer artifact of version {found}, allowed is {VERSION}: compile it again")
            }
            ArtifactError::Length { expected, found } => {
                write!(f, "tokenizer artifact of {found} bytes, its header says {expected}")
            }
            ArtifactError::Digest => write!(f, "tokenizer artifact does not match its digest: it is damaged"),
            ArtifactError::Parameters => write!(f, "tokenizer artifact with a parameter out of range"),
            ArtifactError::Section { number } => {
                write!(f, "tokenizer artifact whose section {number} is out of bounds")
            }
            ArtifactError::Normalizer => write!(f, "tokenizer artifact with a malformed normalizer"),
        }
    }
}

impl std::error::Error for ArtifactError {}
