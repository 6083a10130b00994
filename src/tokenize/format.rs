//! The layout of an artifact: what the compile step writes and what [`Tokenizer::load`](super::Tokenizer::load) reads.
//!
//! All numbers are little-endian. The header is [`HEADER_BYTES`] long:
//!
//! ```text
//! 0    magic "WRTK"          16   source digest: XXH3-128 of the tokenizer.json
//! 4    format version        32   digest: XXH3-128 of everything from byte 48 on
//! 8    length in bytes       48   16 parameter words
//! 12   zero                  112  offset and length in bytes of each section
//! ```
//!
//! Sections follow in the order of [`Section`], without gaps that mean anything. They are used in place: loading copies
//! and parses nothing but the parameters and the normalizer.

/// First bytes of an artifact.
pub(super) const MAGIC: [u8; 4] = *b"WRTK";
/// Version of this layout and of what its parameters mean. An artifact of any other version is refused.
pub(super) const VERSION: u32 = 2;
/// Where the part that the digest covers begins.
pub(super) const DIGESTED_FROM: usize = 48;
/// Number of parameter words.
pub(super) const PARAMETER_WORDS: usize = 16;
/// Where the section table begins.
pub(super) const SECTION_TABLE: usize = DIGESTED_FROM + 4 * PARAMETER_WORDS;
/// Length of the header, section table included.
pub(super) const HEADER_BYTES: usize = SECTION_TABLE + 8 * Section::COUNT;

/// Stands for "no id" in tables of ids.
pub(super) const NO_ID: u32 = u32::MAX;
/// Ids are below this, so that two of them and a rank fit 64 bits, and no slot in use looks like an empty one.
pub(super) const MAX_IDS: u32 = (1 << 21) - 1;
/// Merge ranks are below this.
pub(super) const MAX_RANKS: u32 = (1 << 22) - 1;
/// The longest added token accepted, in bytes. Bounds the work at each position of a text.
pub(super) const MAX_ADDED_BYTES: usize = 256;
/// The longest probe sequence accepted in a hash table; real vocabularies need 60 to 130.
pub(super) const MAX_PROBES: u32 = 1 << 9;

/// The parts of an artifact after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// 256 ids: of each byte (byte-level), or of its `<0xNN>` token (characters).
    ByteIds,
    /// Start of each id's bytes in `TokenBytes`, and the end of the last.
    TokenStarts,
    /// The bytes of all tokens of the model, by id.
    TokenBytes,
    /// Hash table of tokens: id, part of the hash, and what is proved of the token.
    Vocabulary,
    /// Hash table of pairs: left id, right id and rank in one u64.
    Merges,
    /// The id that a merge of each rank makes.
    Merged,
    /// Id and flags of each added token.
    Added,
    /// Trie of the added tokens that are matched before normalizing.
    RawNodes,
    /// Its edges.
    RawEdges,
    /// Trie of the added tokens that are matched in normalized text.
    NormalizedNodes,
    /// Its edges.
    NormalizedEdges,
    /// The normalizer's steps.
    Normalizer,
    /// Characters after which a word is not cut before a mark.
    UncutAfter,
    /// Ids that the post-processor puts before a text.
    Prefix,
    /// Ids that the post-processor puts after a text.
    Suffix,
}

/// Everything that is a single number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) pre_tokenizer: PreTokenizer,
    /// The id of the unknown token, where the model has one.
    pub(super) unknown: Option<u32>,
    /// Whether neighbouring unknown characters become one unknown token.
    pub(super) fuse_unknown: bool,
    /// Whether an unknown character becomes its bytes' tokens.
    pub(super) byte_fallback: bool,
    /// Longest probe sequence in `Vocabulary`.
    pub(super) vocabulary_probes: u32,
    /// Longest probe sequence in `Merges`.
    pub(super) merge_probes: u32,
    /// Length of the longest token in `Vocabulary`.
    pub(super) longest_token: u32,
    /// Length of the longest raw added token.
    pub(super) longest_added: u32,
}

/// How a text between added tokens becomes words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    /// Words by a grammar, symbols are bytes.
    ByteLevel { grammar: Grammar, add_prefix_space: bool },
    /// Words by a mark that stands for a space, symbols are characters.
    Characters { mark: char, metaspace: Option<Prepend>, words: Words },
}

/// The split patterns that are known, by the family that introduced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grammar {
    /// GPT-2 and whatever leaves the split to `ByteLevel`.
    Gpt2,
    /// cl100k, Llama-3, GLM-4, Phi-4.
    Cl100k,
    /// Qwen2, Qwen3: cl100k with single digits.
    Qwen,
    /// Qwen3.5: Qwen with marks counted as letters.
    Qwen35,
    /// o200k, gpt-oss, Llama-4.
    O200k,
    /// Mistral's tekken.
    Tekken,
    /// DeepSeek V3 and V4: three splits in a row.
    Deepseek,
}

/// When Metaspace puts a mark before a text that does not begin with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    /// Never.
    Never,
    /// Before the text that stands at the very beginning.
    First,
    /// Before each text between added tokens.
    Always,
}

/// Where words end in character mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The whole text is one word.
    Whole,
    /// The whole text is one word to the reference, and no merge crosses the start of a run of marks, but for those
    /// that follow a character of `UncutAfter`: so it is cut there.
    BeforeRuns,
    /// Before each mark.
    BeforeEach,
}

/// A parameter word that no version of the compile step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadParameter;

// === impl Section ===

impl Section {
    pub(super) const COUNT: usize = 15;
}

// === impl Parameters ===

const ADD_PREFIX_SPACE: u32 = 1;
const BYTE_FALLBACK: u32 = 1 << 1;
const FUSE_UNKNOWN: u32 = 1 << 2;

impl Parameters {
    /// The words of the header.
    pub(super) fn to_words(self) -> [u32; PARAMETER_WORDS] {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let mut flags = flag(self.byte_fallback, BYTE_FALLBACK) | flag(self.fuse_unknown, FUSE_UNKNOWN);
        let (kind, first, second, third) = match self.pre_tokenizer {
            PreTokenizer::ByteLevel { grammar, add_prefix_space } => {
                flags |= flag(add_prefix_space, ADD_PREFIX_SPACE);
                (0, grammar.number(), 0, 0)
            }
            PreTokenizer::Characters { mark, metaspace, words } => {
                (1, u32::from(mark), metaspace.map_or(0, Prepend::number), words.number())
            }
        };
        let unknown = self.unknown.unwrap_or(NO_ID);
        let (probes, merges) = (self.vocabulary_probes, self.merge_probes);
        let (token, added) = (self.longest_token, self.longest_added);
        [kind, first, second, third, flags, unknown, probes, merges, token, added, 0, 0, 0, 0, 0, 0]
    }

    /// The parameters that the words stand for.
    pub(super) fn from_words(words: [u32; PARAMETER_WORDS]) -> Result<Parameters, BadParameter> {
        let [kind, first, second, third, flags, unknown, probes, merges, token, added, rest @ ..] = words;
        let known = ADD_PREFIX_SPACE | BYTE_FALLBACK | FUSE_UNKNOWN;
        let added_fits = usize::try_from(added).is_ok_and(|added| added <= MAX_ADDED_BYTES);
        if rest.iter().any(|word| *word != 0) || flags & !known != 0 || !added_fits {
            return Err(BadParameter);
        }
        if probes > MAX_PROBES || merges > MAX_PROBES || (unknown != NO_ID && unknown >= MAX_IDS) {
            return Err(BadParameter);
        }
        let pre_tokenizer = match kind {
            0 if second == 0 && third == 0 => PreTokenizer::ByteLevel {
                grammar: Grammar::from_number(first).ok_or(BadParameter)?,
                add_prefix_space: flags & ADD_PREFIX_SPACE != 0,
            },
            1 => PreTokenizer::Characters {
                mark: char::from_u32(first).ok_or(BadParameter)?,
                metaspace: Prepend::from_number(second)?,
                words: Words::from_number(third)?,
            },
            _ => return Err(BadParameter),
        };
        Ok(Parameters {
            pre_tokenizer,
            unknown: (unknown != NO_ID).then_some(unknown),
            fuse_unknown: flags & FUSE_UNKNOWN != 0,
            byte_fallback: flags & BYTE_FALLBACK != 0,
            vocabulary_probes: probes,
            merge_probes: merges,
            longest_token: token,
            longest_added: added,
        })
    }
}

// === impl Grammar ===

impl Grammar {
    /// All grammars, in the order of their numbers in an artifact.
    pub(super) const ALL: [Grammar; 7] = [
        Grammar::Gpt2,
        Grammar::Cl100k,
        Grammar::Qwen,
        Grammar::Qwen35,
        Grammar::O200k,
        Grammar::Tekken,
        Grammar::Deepseek,
    ];

    fn number(self) -> u32 {
        self as u32
    }

    fn from_number(number: u32) -> Option<Grammar> {
        Grammar::ALL.into_iter().find(|grammar| grammar.number() == number)
    }
}

// === impl Prepend ===

impl Prepend {
    fn number(self) -> u32 {
        match self {
            Prepend::Never => 1,
            Prepend::First => 2,
            Prepend::Always => 3,
        }
    }

    fn from_number(number: u32) -> Result<Option<Prepend>, BadParameter> {
        match number {
            0 => Ok(None),
            1 => Ok(Some(Prepend::Never)),
            2 => Ok(Some(Prepend::First)),
            3 => Ok(Some(Prepend::Always)),
            _ => Err(BadParameter),
        }
    }
}

// === impl Words ===

impl Words {
    fn number(self) -> u32 {
        match self {
            Words::Whole => 0,
            Words::BeforeRuns => 1,
            Words::BeforeEach => 2,
        }
    }

    fn from_number(number: u32) -> Result<Words, BadParameter> {
        match number {
            0 => Ok(Words::Whole),
            1 => Ok(Words::BeforeRuns),
            2 => Ok(Words::BeforeEach),
            _ => Err(BadParameter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pre_tokenizer: PreTokenizer) -> Parameters {
        Parameters {
            pre_tokenizer,
            unknown: Some(7),
            fuse_unknown: true,
            byte_fallback: false,
            vocabulary_probes: 3,
            merge_probes: 4,
            longest_token: 5,
            longest_added: 6,
        }
    }

    #[test]
    fn parameters_survive_their_words() {
        let characters = |metaspace, words| PreTokenizer::Characters { mark: '\u{2581}', metaspace, words };
        let mut all = vec![
            characters(None, Words::Whole),
            characters(Some(Prepend::Never), Words::BeforeRuns),
            characters(Some(Prepend::First), Words::BeforeEach),
            characters(Some(Prepend::Always), Words::BeforeEach),
        ];
        for grammar in Grammar::ALL {
            all.push(PreTokenizer::ByteLevel { grammar, add_prefix_space: grammar == Grammar::Gpt2 });
        }
        for pre_tokenizer in all {
            let parameters = parameters(pre_tokenizer);
            assert_eq!(Parameters::from_words(parameters.to_words()), Ok(parameters));
        }
    }

    #[test]
    fn words_out_of_range_are_refused() {
        let good = parameters(PreTokenizer::ByteLevel { grammar: Grammar::Qwen, add_prefix_space: false }).to_words();
        for (at, value) in
            [(0, 2), (1, 7), (2, 1), (3, 1), (4, 8), (5, MAX_IDS), (6, 5_000), (7, 5_000), (9, 257), (15, 1)]
        {
            let mut words = good;
            words[at] = value;
            assert_eq!(Parameters::from_words(words), Err(BadParameter), "word {at} is {value}");
        }
    }
}
