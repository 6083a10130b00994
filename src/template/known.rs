//! The messages of bodies read before.
//!
//! A conversation's body begins with the messages that the one before had, byte for byte. An object's bytes say where it
//! ends and what it is, whatever stands around them: the value that was read of them is handed out again, without looking
//! at more of them than their hash takes. Where such an object ends is not known before; the length is kept by the hash of
//! its first bytes.

use minijinja::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::memo::{Key, Memo, Weighed};

/// Shorter objects are read as fast as they are looked up. Lengths are kept by a hash of so many bytes.
const MIN_BYTES: usize = 256;
/// Sets of lengths, a power of two; two lengths each.
const SETS: usize = 512;
/// What a value takes beside its text: a place in a map, most of all, and the map.
const VALUE_BYTES: usize = 192;

/// A bounded memory of objects in JSON text.
pub struct KnownItems {
    lengths: Vec<[Length; 2]>,
    items: Memo<Item>,
}

/// An object that was read.
#[derive(Clone)]
pub(super) struct Item {
    /// What it is.
    pub value: Value,
    /// How many values it has, itself included.
    pub values: usize,
    /// The length of its text.
    pub length: usize,
}

/// How long an object was that began with bytes of this hash.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Length {
    start: u64,
    bytes: usize,
}

// === impl KnownItems ===

impl KnownItems {
    /// A memory of at most `max_bytes`; of 0 bytes it remembers nothing.
    pub(crate) fn new(max_bytes: usize) -> KnownItems {
        KnownItems { lengths: Vec::new(), items: Memo::new(max_bytes) }
    }

    /// Bytes held, as far as they are counted.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes()
    }

    /// The object that `text` begins with. No more bytes are hashed than `work`, which becomes less.
    pub(super) fn find(&mut self, text: &[u8], work: &mut usize) -> Option<Item> {
        let start = start(text)?;
        for length in *self.lengths.get(start as usize % SETS)? {
            let Some(bytes) = text.get(..length.bytes).filter(|_| length.start == start) else { continue };
            *work = work.checked_sub(bytes.len())?;
            if let Some(item) = self.items.get(key(bytes)) {
                return Some(item.clone());
            }
        }
        None
    }

    /// Remembers the object that all of `text` is.
    pub(super) fn remember(&mut self, text: &[u8], value: &Value, values: usize) {
        let item = Item { value: value.clone(), values, length: text.len() };
        let Some(start) = start(text).filter(|_| self.items.takes(item.bytes())) else { return };
        if self.lengths.is_empty() {
            self.lengths.resize(SETS, Default::default());
        }
        let length = Length { start, bytes: text.len() };
        if let Some(set) = self.lengths.get_mut(start as usize % SETS).filter(|set| !set.contains(&length)) {
            *set = [length, set[0]];
        }
        self.items.remember(key(text), item);
    }
}

impl Weighed for Item {
    fn bytes(&self) -> usize {
        self.values.saturating_mul(VALUE_BYTES).saturating_add(self.length)
    }
}

/// A hash of the first bytes of an object that is long enough.
fn start(text: &[u8]) -> Option<u64> {
    text.first_chunk::<MIN_BYTES>().filter(|start| start.starts_with(b"{")).map(|start| xxh3_64(start))
}

fn key(text: &[u8]) -> Key {
    Key { hash: xxh3_128(text), bytes: text.len() }
}
