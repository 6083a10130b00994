//! What was worked out before, found by hash and bounded in bytes.
//!
//! An entry is found by a hash of 128 bits of what it was made from, and by its length; that itself is not kept. Entries
//! live in two generations, the older of which is dropped when the younger is full, and a hit moves an entry to the younger.

use hashbrown::HashMap;

/// What an entry takes beside its value, in bytes: slot, allocation, table load.
const ENTRY_BYTES: usize = 80;
/// One entry takes at most this part of a generation.
const LARGEST_SHARE: usize = 4;

/// A value that knows what memory it takes.
pub(crate) trait Weighed {
    /// Bytes, those of its place in a table left out.
    fn bytes(&self) -> usize;
}

/// A bounded memory of values.
pub(crate) struct Memo<V> {
    young: Generation<V>,
    old: Generation<V>,
    max_bytes: usize,
}

/// Stands for what a value was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// A hash of it.
    pub(crate) hash: u128,
    /// Its length.
    pub(crate) bytes: usize,
}

struct Generation<V> {
    entries: HashMap<Key, V>,
    bytes: usize,
}

// === impl Memo ===

impl<V: Weighed> Memo<V> {
    /// A memory of at most `max_bytes`; of 0 bytes it remembers nothing.
    pub(crate) fn new(max_bytes: usize) -> Memo<V> {
        Memo { young: Generation::default(), old: Generation::default(), max_bytes }
    }

    /// Whether it remembers anything.
    pub(crate) fn is_on(&self) -> bool {
        self.generation_bytes() > 0
    }

    /// The value remembered.
    pub(crate) fn get(&mut self, key: Key) -> Option<&V> {
        if let Some(value) = self.old.remove(key) {
            self.insert(key, value);
        }
        self.young.entries.get(&key)
    }

    /// Whether a value of so many bytes is not too large to be remembered.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes.saturating_add(ENTRY_BYTES) <= self.generation_bytes() / LARGEST_SHARE
    }

    /// Remembers a value, unless it is too large.
    pub(crate) fn remember(&mut self, key: Key, value: V) {
        if self.takes(value.bytes()) {
            self.insert(key, value);
        }
    }

    /// Bytes held, as far as they are counted.
    pub(crate) fn bytes(&self) -> usize {
        self.young.bytes + self.old.bytes
    }

    fn generation_bytes(&self) -> usize {
        self.max_bytes / 2
    }

    fn insert(&mut self, key: Key, value: V) {
        if self.young.bytes + size(&value) > self.generation_bytes() {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

// === impl Generation ===

impl<V: Weighed> Generation<V> {
    fn insert(&mut self, key: Key, value: V) {
        self.bytes += size(&value);
        if let Some(before) = self.entries.insert(key, value) {
            self.bytes -= size(&before);
        }
    }

    fn remove(&mut self, key: Key) -> Option<V> {
        let value = self.entries.remove(&key)?;
        self.bytes -= size(&value);
        Some(value)
    }
}

impl<V> Default for Generation<V> {
    fn default() -> Generation<V> {
        Generation { entries: HashMap::new(), bytes: 0 }
    }
}

impl Weighed for Box<[u32]> {
    fn bytes(&self) -> usize {
        size_of_val::<[u32]>(self)
    }
}

fn size(value: &impl Weighed) -> usize {
    ENTRY_BYTES + value.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key { hash: number as u128, bytes: 100 }
    }

    fn ids(count: usize) -> Box<[u32]> {
        vec![9; count].into()
    }

    #[test]
    fn what_was_remembered_comes_back() {
        let mut memo = Memo::new(10_000);
        memo.remember(key(1), ids(3));
        assert_eq!(memo.get(key(1)), Some(&ids(3)));
        assert_eq!(memo.get(Key { bytes: 101, ..key(1) }), None);
        assert_eq!(memo.get(key(2)), None);
        let mut off = Memo::new(0);
        off.remember(key(1), ids(0));
        assert_eq!((off.is_on(), off.bytes()), (false, 0));
        assert_eq!(off.get(key(1)), None);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut memo = Memo::new(20_000);
        memo.remember(key(0), ids(30));
        for number in 1..2_000 {
            memo.remember(key(number), ids(number % 100));
            assert!(memo.bytes() <= 20_000);
            assert!(memo.get(key(0)).is_some(), "after {number}");
        }
        assert_eq!(memo.get(key(1)), None);
        let counted = memo.bytes();
        memo.remember(key(5_000), ids(1_000));
        assert_eq!(memo.get(key(5_000)), None);
        assert_eq!(memo.bytes(), counted);
    }
}
