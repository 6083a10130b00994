//! One word to token ids: a cache, else the vocabulary if the word is a token, else byte pair encoding.
//!
//! The cache comes first because a word that comes again costs one place of a small table there, and three of large ones
//! in the vocabulary.

use super::bpe::Merger;
use super::encode::Stopped;
use super::format::{NO_ID, Parameters};
use super::tables::{Tables, hash_of_pair, word};

/// Slots of the cache, a power of two.
const SLOTS: usize = 8_192;
/// The longest word that is cached, in bytes.
const KEY_BYTES: usize = 15;
/// The most ids of a word that is cached, half in each word of a slot.
const HALF_IDS: usize = 3;
/// Bits of an id in a slot; no id has all of them, which stand for none.
const ID_BITS: usize = 21;
const NONE: u64 = (1 << ID_BITS) - 1;
/// Slots of the cache of characters, a power of two.
const CHARACTER_SLOTS: usize = 4_096;
/// A buffer that one long word grew is given back above this many bytes.
const KEEP_MARKED_BYTES: usize = 1 << 14;
/// The key of an unused slot, which is no character.
const NO_CHARACTER: u32 = u32::MAX;

/// Encodes words, and remembers short ones.
///
/// A slot keeps the whole word, so a hit is never another word with the same hash.
#[derive(Default)]
pub(super) struct WordEncoder {
    merger: Merger,
    slots: Vec<Slot>,
    characters: Characters,
    /// The word at hand with marks for blanks.
    marked: String,
}

/// The ids that characters were found to begin as, `NO_ID` for those that begin as their bytes or as unknown.
#[derive(Default)]
struct Characters(Vec<(u32, u32)>);

/// What symbols a word begins as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbols {
    /// Its bytes.
    Bytes,
    /// Its characters, and the bytes of those that are no tokens.
    Characters,
    /// The same, once blanks have become this mark. A word with blanks is never one of those that were found with marks.
    Spaced(char),
}

/// A word and its ids, of half a cache line.
#[derive(Clone, Copy, Default)]
struct Slot {
    key: Key,
    ids: [u64; 2],
}

/// A word of at most [`KEY_BYTES`]: its bytes, and its length in the last one. Words that differ have keys that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    first: u64,
    last: u64,
}

// === impl WordEncoder ===

impl WordEncoder {
    /// Forgets all words: they were another tokenizer's.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.characters.0.clear();
        self.merger.forget();
    }

    /// Appends the ids of `text`, which is one word. Its symbols are taken off `symbols_left` if they must be merged.
    pub(super) fn encode(
        &mut self,
        tables: &Tables<'_>,
        parameters: &Parameters,
        symbols: Symbols,
        text: &str,
        symbols_left: &mut usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), Stopped> {
        let key = Key::of(text.as_bytes());
        if let Some(slot) = key.and_then(|key| self.slot(key).filter(|slot| slot.key == key)) {
            slot.append_to(ids);
            return Ok(());
        }
        // No memory is taken for a word that is known to be too long: a symbol has at most four bytes.
        if text.len() > tables.longest_token && text.len() / 4 > *symbols_left {
            return Err(Stopped::Symbols);
        }
        let text = match symbols {
            Symbols::Spaced(mark) => marked(mark, text, &mut self.marked),
            Symbols::Bytes | Symbols::Characters => text,
        };
        if let Some(id) = tables.whole_word(text.as_bytes()) {
            ids.push(id);
            if let Some(slot) = key.and_then(|key| Slot::of(key, &[id])) {
                keep(&mut self.slots, slot);
            }
            return Ok(());
        }
        self.merger.clear();
        match symbols {
            Symbols::Bytes => push_bytes(&mut self.merger, &mut self.characters, tables, text),
            Symbols::Characters | Symbols::Spaced(_) => {
                push_characters(&mut self.merger, &mut self.characters, tables, parameters, text);
            }
        }
        *symbols_left = symbols_left.checked_sub(self.merger.len()).ok_or(Stopped::Symbols)?;
        let encoded = self.merger.merge(tables);
        // One by one: V8 calls out of the module for a copy of any length.
        encoded.iter().for_each(|id| ids.push(*id));
        if let Some(slot) = key.and_then(|key| Slot::of(key, encoded)) {
            keep(&mut self.slots, slot);
        }
        Ok(())
    }

    fn slot(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key.place())
    }
}

/// The text with marks for blanks.
fn marked<'t>(mark: char, text: &'t str, buffer: &'t mut String) -> &'t str {
    if memchr::memchr(b' ', text.as_bytes()).is_none() {
        return text;
    }
    if buffer.capacity() > KEEP_MARKED_BYTES {
        *buffer = String::new();
    }
    buffer.clear();
    buffer.extend(text.chars().map(|character| if character == ' ' { mark } else { character }));
    buffer
}

fn keep(slots: &mut Vec<Slot>, slot: Slot) {
    if slots.is_empty() {
        slots.resize(SLOTS, Slot::default());
    }
    if let Some(kept) = slots.get_mut(slot.key.place()) {
        *kept = slot;
    }
}

// === impl Slot ===

impl Slot {
    fn of(key: Key, encoded: &[u32]) -> Option<Slot> {
        if encoded.len() > 2 * HALF_IDS || encoded.iter().any(|id| u64::from(*id) >= NONE) {
            return None;
        }
        let (first, last) = encoded.split_at(encoded.len().min(HALF_IDS));
        let packed = |ids: &[u32]| {
            let id = |at: usize| ids.get(at).map_or(NONE, |id| u64::from(*id));
            (0..HALF_IDS).fold(0, |word, at| word | id(at) << (ID_BITS * at))
        };
        Some(Slot { key, ids: [packed(first), packed(last)] })
    }

    fn append_to(&self, ids: &mut Vec<u32>) {
        for mut word in self.ids {
            for _ in 0..HALF_IDS {
                if word & NONE == NONE {
                    return;
                }
                ids.push((word & NONE) as u32);
                word >>= ID_BITS;
            }
        }
    }
}

// === impl Key ===

impl Key {
    fn of(word: &[u8]) -> Option<Key> {
        let length = word.len();
        let (first, last) = match (word.first_chunk::<8>(), word.last_chunk::<8>()) {
            _ if length == 0 || length > KEY_BYTES => return None,
            (Some(first), Some(last)) => {
                // The bytes behind the first eight.
                let last = u64::from_le_bytes(*last).checked_shr(8 * (16 - length as u32)).unwrap_or(0);
                (u64::from_le_bytes(*first), last)
            }
            _ => match (word.first_chunk::<4>(), word.last_chunk::<4>()) {
                (Some(first), Some(last)) => {
                    (u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32, 0)
                }
                _ => (word.iter().fold(0, |bytes, byte| (bytes << 8) | u64::from(*byte)), 0),
            },
        };
        Some(Key { first, last: last | (length as u64) << 56 })
    }

    fn place(self) -> usize {
        hash_of_pair(self.first, self.last) as usize % SLOTS
    }
}

// === impl Characters ===

impl Characters {
    /// The id that `find` gives for a character, remembered.
    fn id(&mut self, character: char, find: impl FnOnce(&[u8]) -> Option<u32>) -> Option<u32> {
        let key = u32::from(character);
        if self.0.is_empty() {
            self.0.resize(CHARACTER_SLOTS, (NO_CHARACTER, NO_ID));
        }
        let slot = self.0.get_mut(key as usize % CHARACTER_SLOTS)?;
        if slot.0 != key {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            *slot = (key, find(bytes).unwrap_or(NO_ID));
        }
        (slot.1 != NO_ID).then_some(slot.1)
    }
}

/// Symbols are bytes, but a character between others of several bytes, or at an end of the word, begins as one symbol
/// where that is proved to make no difference.
///
/// A byte without an id never occurs in UTF-8: the compile step refuses other models.
fn push_bytes(merger: &mut Merger, characters: &mut Characters, tables: &Tables<'_>, text: &str) {
    let bytes = |text: &[u8], merger: &mut Merger| {
        merger.extend(text.iter().filter_map(|byte| word(tables.byte_ids, usize::from(*byte))));
    };
    if text.is_ascii() {
        return bytes(text.as_bytes(), merger);
    }
    let mut after_ascii = false;
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let before_ascii = text.as_bytes().get(end).is_some_and(u8::is_ascii);
        let alone = character.is_ascii() || after_ascii || before_ascii;
        after_ascii = character.is_ascii();
        match if alone { None } else { characters.id(character, |bytes| tables.atom(bytes)) } {
            Some(id) => merger.push(id),
            None => bytes(text.as_bytes().get(at..end).unwrap_or_default(), merger),
        }
    }
}

/// The reference keeps an unknown token back until the next known character, so that it may grow, and a character that
/// falls back to bytes does not count as known: hence the order here.
fn push_characters(
    merger: &mut Merger,
    characters: &mut Characters,
    tables: &Tables<'_>,
    parameters: &Parameters,
    text: &str,
) {
    let mut unknown = None;
    for character in text.chars() {
        if let Some(id) = characters.id(character, |bytes| tables.token(bytes)) {
            merger.extend(unknown.take().into_iter());
            merger.push(id);
        } else if parameters.byte_fallback {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).bytes();
            merger.extend(bytes.filter_map(|byte| word(tables.byte_ids, usize::from(byte))));
        } else if let Some(id) = parameters.unknown {
            let kept = unknown.replace(id).filter(|_| !parameters.fuse_unknown);
            merger.extend(kept.into_iter());
        }
    }
    merger.extend(unknown.into_iter());
}
