//! The model's tables: tokens by bytes, merges by ids, and what can be proved about words at compile time.

use std::collections::{BTreeSet, HashMap};

use super::super::format::{MAX_IDS, MAX_PROBES, MAX_RANKS, NO_ID, Parameters, PreTokenizer, Section, Words};
use super::super::tables::{
    ATOM, EMPTY_MERGE, EMPTY_TOKEN, Tables, WHOLE_WORD, id_in, merge_entry, merge_home, token_entry, token_slot,
};
use super::super::words::{Symbols, WordEncoder};
use super::atoms::atoms;
use super::error::{CompileError, Unsupported};
use super::source::Bpe;
use super::{Sections, is_byte_level, words};

/// More characters than this after which words are not cut: then they are not cut at all.
const MAX_UNCUT: usize = 64;
/// Hash tables are filled to at most these parts.
const VOCABULARY_LOAD: (usize, usize) = (2, 3);
const MERGES_LOAD: (usize, usize) = (17, 20);

/// The tables and the parameters that go with them.
pub(super) struct Model {
    pub(super) parameters: Parameters,
    byte_ids: Vec<u8>,
    token_starts: Vec<u8>,
    token_bytes: Vec<u8>,
    vocabulary: Vec<[u8; 4]>,
    merges: Vec<[u8; 8]>,
    merged: Vec<u8>,
    uncut_after: Vec<u8>,
}

/// A token of the model: its id, and the bytes of text that it stands for, if any.
struct Token {
    id: u32,
    bytes: Vec<u8>,
}

/// Merges by rank: left, right and new id.
pub(super) type Merges = Vec<(u32, u32, u32)>;

// === impl Model ===

impl Model {
    /// The tables of a model whose text is pre-tokenized in the given way.
    pub(super) fn build(bpe: &Bpe, pre_tokenizer: PreTokenizer) -> Result<Model, CompileError> {
        check_options(bpe)?;
        let byte_level = is_byte_level(pre_tokenizer);
        let tokens = tokens(&bpe.vocab, byte_level)?;
        let merges = merges(bpe)?;
        let (byte_ids, byte_fallback) = byte_ids(bpe, byte_level)?;
        let unknown = bpe.unk_token.as_deref().map(|token| id_of(bpe, token, "unk_token")).transpose()?;
        let mut model = Model {
            parameters: Parameters {
                pre_tokenizer,
                unknown: unknown.filter(|_| !byte_level),
                fuse_unknown: bpe.fuse_unk == Some(true),
                byte_fallback,
                vocabulary_probes: 0,
                merge_probes: 0,
                longest_token: tokens.iter().map(|token| token.bytes.len() as u32).max().unwrap_or(0),
                longest_added: 0,
            },
            byte_ids: words(byte_ids),
            token_starts: Vec::new(),
            token_bytes: Vec::new(),
            vocabulary: Vec::new(),
            merges: Vec::new(),
            merged: words(merges.iter().map(|(_, _, id)| *id)),
            uncut_after: Vec::new(),
        };
        model.lay_tokens(&tokens);
        model.hash_tokens(&tokens)?;
        model.hash_merges(&merges)?;
        model.choose_cuts(bpe, &merges);
        model.mark_whole_words(&tokens, bpe.ignore_merges == Some(true));
        if byte_level {
            let atoms = atoms(&model.tables(), &merges, tokens.iter().map(|token| token.id));
            model.mark(&atoms, ATOM);
        }
        Ok(model)
    }

    pub(super) fn write(self, sections: &mut Sections) {
        sections.put(Section::ByteIds, self.byte_ids);
        sections.put(Section::TokenStarts, self.token_starts);
        sections.put(Section::TokenBytes, self.token_bytes);
        sections.put(Section::Vocabulary, self.vocabulary.as_flattened().to_vec());
        sections.put(Section::Merges, self.merges.as_flattened().to_vec());
        sections.put(Section::Merged, self.merged);
        sections.put(Section::UncutAfter, self.uncut_after);
    }

    fn tables(&self) -> Tables<'_> {
        Tables {
            byte_ids: self.byte_ids.as_chunks().0,
            token_starts: self.token_starts.as_chunks().0,
            token_bytes: &self.token_bytes,
            vocabulary: &self.vocabulary,
            vocabulary_probes: self.parameters.vocabulary_probes,
            longest_token: self.parameters.longest_token as usize,
            merges: &self.merges,
            merge_probes: self.parameters.merge_probes,
            merged: self.merged.as_chunks().0,
        }
    }

    /// Token bytes one after the other, and where each id's begin. Ids without a token have none.
    fn lay_tokens(&mut self, tokens: &[Token]) {
        let mut starts = Vec::new();
        for token in tokens {
            starts.resize(token.id as usize + 1, self.token_bytes.len() as u32);
            self.token_bytes.extend(&token.bytes);
        }
        starts.push(self.token_bytes.len() as u32);
        self.token_starts = words(starts);
    }

    fn hash_tokens(&mut self, tokens: &[Token]) -> Result<(), CompileError> {
        let slots = slots(tokens.len(), VOCABULARY_LOAD);
        self.vocabulary = vec![EMPTY_TOKEN.to_le_bytes(); slots];
        for token in tokens.iter().filter(|token| !token.bytes.is_empty()) {
            let first = token_slot(&token.bytes, slots);
            let entry = token_entry(&token.bytes, token.id).to_le_bytes();
            let probes = insert(&mut self.vocabulary, first, EMPTY_TOKEN.to_le_bytes(), entry);
            self.parameters.vocabulary_probes = self.parameters.vocabulary_probes.max(probes);
        }
        check_probes(self.parameters.vocabulary_probes)
    }

    fn hash_merges(&mut self, merges: &Merges) -> Result<(), CompileError> {
        // Of a pair that is listed twice the reference keeps the later rank.
        let ranked: HashMap<(u32, u32), u32> =
            (0_u32..).zip(merges).map(|(rank, (left, right, _))| ((*left, *right), rank)).collect();
        let mut ranked: Vec<_> = ranked.into_iter().collect();
        ranked.sort_unstable_by_key(|(_, rank)| *rank);
        let slots = slots(ranked.len(), MERGES_LOAD);
        self.merges = vec![EMPTY_MERGE.to_le_bytes(); slots];
        for ((left, right), rank) in ranked {
            let probes = insert_ordered(&mut self.merges, merge_entry(left, right, rank));
            self.parameters.merge_probes = self.parameters.merge_probes.max(probes);
        }
        check_probes(self.parameters.merge_probes)
    }

    /// A word in character mode is the whole text. Where no merge makes a token with a mark inside, behind another
    /// character, no merge crosses the start of a run of marks, and both sides can be encoded for themselves. The
    /// characters for which that does not hold are listed.
    fn choose_cuts(&mut self, bpe: &Bpe, merges: &Merges) {
        let PreTokenizer::Characters { mark, words: rule, .. } = &mut self.parameters.pre_tokenizer else { return };
        if *rule != Words::BeforeRuns {
            return;
        }
        let uncut = crossed(bpe, *mark);
        // A mark that is no token could be part of an unknown token that spans the cut; a byte token or an unknown
        // token stands for a character that its text does not show.
        let hidden = hidden_ids(bpe);
        let merges_hidden = merges.iter().any(|(left, right, _)| hidden.contains(left) || hidden.contains(right));
        let has_mark = bpe.vocab.contains_key(mark.to_string().as_str());
        if !has_mark || merges_hidden || uncut.len() > MAX_UNCUT || bpe.ignore_merges == Some(true) {
            *rule = Words::Whole;
        } else {
            self.uncut_after = words(uncut.into_iter().map(u32::from));
        }
    }

    /// Marks the tokens that a word equal to them encodes to: all if merges are ignored for them, else those for which
    /// merging gives the token back.
    fn mark_whole_words(&mut self, tokens: &[Token], all: bool) {
        let symbols = if is_byte_level(self.parameters.pre_tokenizer) { Symbols::Bytes } else { Symbols::Characters };
        let mut encoder = WordEncoder::default();
        let mut whole = BTreeSet::new();
        for token in tokens {
            // No word is part of a character, so other bytes are of no interest.
            let alone = |text: &str| {
                let (mut ids, mut unlimited) = (Vec::new(), usize::MAX);
                let encoded = encoder.encode(&self.tables(), &self.parameters, symbols, text, &mut unlimited, &mut ids);
                encoded.is_ok() && ids == [token.id]
            };
            if all || std::str::from_utf8(&token.bytes).is_ok_and(alone) {
                whole.insert(token.id);
            }
        }
        self.mark(&whole, WHOLE_WORD);
    }

    fn mark(&mut self, ids: &BTreeSet<u32>, flag: u32) {
        for slot in &mut self.vocabulary {
            let entry = u32::from_le_bytes(*slot);
            if entry != EMPTY_TOKEN && ids.contains(&id_in(entry)) {
                *slot = (entry | flag).to_le_bytes();
            }
        }
    }
}

/// Puts a merge into the table, where those that are met in a probe are in rising order, so that one that is not there is
/// missed at the first greater one. The probes that the farthest of those moved takes.
fn insert_ordered(table: &mut [[u8; 8]], entry: u64) -> u32 {
    let slots = table.len();
    let (mut entry, mut longest) = (entry, 0);
    let mut at = merge_home(entry, slots);
    while let Some(slot) = table.get_mut(at) {
        let held = u64::from_le_bytes(*slot);
        if held > entry {
            *slot = entry.to_le_bytes();
            let distance = (at + slots - merge_home(entry, slots)) % slots;
            longest = longest.max(distance as u32 + 1);
            if held == EMPTY_MERGE {
                break;
            }
            entry = held;
        }
        at = (at + 1) % slots;
    }
    longest
}

fn check_options(bpe: &Bpe) -> Result<(), CompileError> {
    let option = |name, value: String| Err(Unsupported::ModelOption { name, value }.into());
    if let Some(dropout) = bpe.dropout.filter(|dropout| *dropout != 0.0) {
        return option("dropout", dropout.to_string());
    }
    if let Some(prefix) = bpe.continuing_subword_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        return option("continuing_subword_prefix", format!("{prefix:?}"));
    }
    if let Some(suffix) = bpe.end_of_word_suffix.as_deref().filter(|suffix| !suffix.is_empty()) {
        return option("end_of_word_suffix", format!("{suffix:?}"));
    }
    Ok(())
}

/// The tokens by id.
fn tokens(vocabulary: &HashMap<String, u32>, byte_level: bool) -> Result<Vec<Token>, CompileError> {
    let bytes_of = byte_alphabet();
    let mut tokens: Vec<Token> = vocabulary
        .iter()
        .map(|(text, id)| {
            let decoded =
                || text.chars().map(|character| bytes_of.get(&character).copied()).collect::<Option<Vec<u8>>>();
            // A token with other characters is never reached from text.
            let bytes = if byte_level { decoded().unwrap_or_default() } else { text.clone().into_bytes() };
            Token { id: *id, bytes }
        })
        .collect();
    tokens.sort_unstable_by_key(|token| token.id);
    if let Some(token) = tokens.last().filter(|token| token.id >= MAX_IDS) {
        return Err(CompileError::invalid("model.vocab", format!("id {}, allowed are ids below {MAX_IDS}", token.id)));
    }
    if let Some(id) = tokens.iter().zip(tokens.iter().skip(1)).find(|(a, b)| a.id == b.id).map(|(token, _)| token.id) {
        return Err(CompileError::invalid("model.vocab", format!("two tokens with id {id}")));
    }
    Ok(tokens)
}

fn merges(bpe: &Bpe) -> Result<Merges, CompileError> {
    if bpe.merges.len() >= MAX_RANKS as usize {
        return Err(CompileError::invalid(
            "model.merges",
            format!("{} merges, allowed are {MAX_RANKS}", bpe.merges.len()),
        ));
    }
    let id = |token: &str| id_of(bpe, token, "merges");
    let merge = |merge: &super::source::Merge| {
        let product = format!("{}{}", merge.left, merge.right);
        Ok((id(&merge.left)?, id(&merge.right)?, id(&product)?))
    };
    bpe.merges.iter().map(merge).collect()
}

fn id_of(bpe: &Bpe, token: &str, field: &str) -> Result<u32, CompileError> {
    let missing = || CompileError::invalid("model.vocab", format!("lacks {token:?}, which {field} names"));
    bpe.vocab.get(token).copied().ok_or_else(missing)
}

/// The ids of bytes, and whether characters fall back to them.
fn byte_ids(bpe: &Bpe, byte_level: bool) -> Result<(Vec<u32>, bool), CompileError> {
    let alphabet: HashMap<u8, char> = byte_alphabet().into_iter().map(|(character, byte)| (byte, character)).collect();
    let name = |byte: u8| match alphabet.get(&byte) {
        Some(character) if byte_level => character.to_string(),
        _ => byte_token(byte),
    };
    let ids: Vec<Option<u32>> = (0..=u8::MAX).map(|byte| bpe.vocab.get(&name(byte)).copied()).collect();
    let missing = (0..=u8::MAX).zip(&ids).find(|(byte, id)| id.is_none() && occurs_in_utf8(*byte));
    let wanted = byte_level || (bpe.byte_fallback == Some(true) && ids.iter().any(Option::is_some));
    if let (true, Some((byte, _))) = (wanted, missing) {
        return Err(CompileError::invalid(
            "model.vocab",
            format!("has tokens for bytes, but none for byte {byte:#04x}"),
        ));
    }
    Ok((ids.into_iter().map(|id| id.unwrap_or(NO_ID)).collect(), wanted && !byte_level))
}

/// Characters that a merge joins with a mark behind them.
fn crossed(bpe: &Bpe, mark: char) -> BTreeSet<char> {
    let mut crossed = BTreeSet::new();
    for merge in &bpe.merges {
        let mut before = mark;
        for character in merge.left.chars().chain(merge.right.chars()) {
            if character == mark && before != mark {
                crossed.insert(before);
            }
            before = character;
        }
    }
    crossed
}

/// Tokens whose text is not the text that they stand for.
fn hidden_ids(bpe: &Bpe) -> BTreeSet<u32> {
    let bytes = (0..=u8::MAX).map(byte_token);
    bytes.chain(bpe.unk_token.clone()).filter_map(|token| bpe.vocab.get(&token).copied()).collect()
}

fn byte_token(byte: u8) -> String {
    format!("<{byte:#04X}>")
}

fn occurs_in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..)
}

/// The characters that byte-level vocabularies write bytes as: printable ones of Latin-1 as themselves, the others as
/// those from U+0100 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..);
    let others = (0..=u8::MAX).filter(|byte| !printable(*byte)).zip('\u{100}'..);
    let same = (0..=u8::MAX).filter(|byte| printable(*byte)).map(|byte| (char::from(byte), byte));
    same.chain(others.map(|(byte, character)| (character, byte))).collect()
}

fn slots(entries: usize, (filled, of): (usize, usize)) -> usize {
    (entries * of).div_ceil(filled) + 1
}

/// Puts an entry into the first free slot from `first` on; the number of slots looked at.
fn insert<const N: usize>(table: &mut [[u8; N]], first: usize, empty: [u8; N], entry: [u8; N]) -> u32 {
    let (front, back) = table.split_at_mut_checked(first).unwrap_or_default();
    for (probes, slot) in (1_u32..).zip(back.iter_mut().chain(front)) {
        if *slot == empty {
            *slot = entry;
            return probes;
        }
    }
    u32::MAX
}

fn check_probes(probes: u32) -> Result<(), CompileError> {
    if probes > MAX_PROBES {
        return Err(CompileError::invalid("model", "its tokens or merges share too many hashes"));
    }
    Ok(())
}
