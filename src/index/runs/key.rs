//! Block keys as a run keeps them.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::index::runs::chain::Chain;
use crate::observation::{BlockKey, ScopeSlot};

/// Keys compared at once.
const PIECE: usize = 16;

/// A block key by reference. Eight bytes are always a hash, as in [`BlockKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// A key of 8 bytes, read big-endian.
    Hash(u64),
    /// A key of any other length.
    Wide(&'a [u8]),
}

/// The keys of a run, one after another, all of one width: whoever lists them writes it once.
#[derive(Clone, Debug)]
pub(super) enum Keys {
    Hashes(Vec<u64>),
    Wide(Vec<Box<[u8]>>),
}

// === impl KeyRef ===

impl KeyRef<'_> {
    /// The key in a scope as 64 well-mixed bits. Explicit keys need not be mixed, so all are.
    #[inline]
    pub(super) fn hash(self, scope: ScopeSlot) -> u64 {
        match self {
            KeyRef::Hash(hash) => mix(hash ^ u64::from(scope.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            KeyRef::Wide(bytes) => xxh3_64_with_seed(bytes, u64::from(scope.0)),
        }
    }

    /// Length in bytes.
    pub(super) fn width(self) -> usize {
        match self {
            KeyRef::Hash(_) => size_of::<u64>(),
            KeyRef::Wide(bytes) => bytes.len(),
        }
    }

    /// The key as a value of its own.
    pub fn to_key(self) -> BlockKey {
        match self {
            KeyRef::Hash(hash) => BlockKey::Hash64(hash),
            KeyRef::Wide(bytes) => BlockKey::Bytes(bytes.into()),
        }
    }
}

impl<'a> From<&'a BlockKey> for KeyRef<'a> {
    fn from(key: &'a BlockKey) -> KeyRef<'a> {
        match key {
            BlockKey::Hash64(hash) => KeyRef::Hash(*hash),
            BlockKey::Bytes(bytes) => KeyRef::Wide(bytes),
        }
    }
}

/// The finalizer of MurmurHash3 (public domain, by Austin Appleby): every bit of the input reaches every bit.
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let bits = (bits ^ (bits >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ (bits >> 33)
}

// === impl Keys ===

impl Keys {
    /// No keys, for those of the width of `key`.
    pub fn like(key: KeyRef<'_>) -> Keys {
        match key {
            KeyRef::Hash(_) => Keys::Hashes(Vec::new()),
            KeyRef::Wide(_) => Keys::Wide(Vec::new()),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Keys::Hashes(hashes) => hashes.len(),
            Keys::Wide(keys) => keys.len(),
        }
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<KeyRef<'_>> {
        match self {
            Keys::Hashes(hashes) => hashes.get(at).map(|hash| KeyRef::Hash(*hash)),
            Keys::Wide(keys) => keys.get(at).map(|key| KeyRef::Wide(key)),
        }
    }

    #[inline]
    pub fn is(&self, at: usize, key: KeyRef<'_>) -> bool {
        match (self, key) {
            (Keys::Hashes(hashes), KeyRef::Hash(hash)) => hashes.get(at) == Some(&hash),
            (Keys::Wide(keys), KeyRef::Wide(bytes)) => keys.get(at).is_some_and(|key| **key == *bytes),
            _ => false,
        }
    }

    /// How many keys from `at` on equal those of `chain` from `from` on, `longest` at most, each compared.
    pub fn common(&self, at: usize, chain: &impl Chain, from: usize, longest: usize) -> usize {
        let (Keys::Hashes(keys), Some(hashes)) = (self, chain.hashes()) else {
            let equal = |ahead: &usize| chain.key(from + ahead).is_some_and(|key| self.is(at + ahead, key));
            return (0..longest).take_while(equal).count();
        };
        let ours = keys.get(at..at + longest).unwrap_or_default();
        let theirs = hashes.get(from..from + longest).unwrap_or_default();
        // Whole pieces first: those are compared without a branch for each key.
        let pieces = ours.chunks(PIECE).zip(theirs.chunks(PIECE)).take_while(|(a, b)| a == b).count();
        let alike = (pieces * PIECE).min(longest);
        alike + ours.iter().zip(theirs).skip(alike).take_while(|(a, b)| a == b).count()
    }

    /// Whether `key` may stand among these.
    pub fn suits(&self, key: KeyRef<'_>) -> bool {
        match (self, key) {
            (Keys::Hashes(_), KeyRef::Hash(_)) => true,
            (Keys::Wide(keys), KeyRef::Wide(bytes)) => keys.last().is_none_or(|last| last.len() == bytes.len()),
            _ => false,
        }
    }

    /// Adds a key that suits. Makes room for `coming` keys, of which it is the first.
    pub fn push(&mut self, key: KeyRef<'_>, coming: usize) {
        match (self, key) {
            (Keys::Hashes(hashes), KeyRef::Hash(hash)) => {
                reserve(hashes, coming);
                hashes.push(hash);
            }
            (Keys::Wide(keys), KeyRef::Wide(bytes)) => {
                reserve(keys, coming);
                keys.push(bytes.into());
            }
            _ => {}
        }
    }

    /// Drops the keys from `len` on, and gives memory back once half of it is unused.
    pub fn truncate(&mut self, len: usize) {
        match self {
            Keys::Hashes(hashes) => truncate(hashes, len),
            Keys::Wide(keys) => truncate(keys, len),
        }
    }

    /// Keeps the keys at these offsets.
    pub fn keep(&mut self, kept: impl Fn(usize) -> bool) {
        let mut at = 0;
        let mut next = || {
            at += 1;
            kept(at - 1)
        };
        match self {
            Keys::Hashes(hashes) => {
                hashes.retain(|_| next());
                hashes.shrink_to_fit();
            }
            Keys::Wide(keys) => {
                keys.retain(|_| next());
                keys.shrink_to_fit();
            }
        }
    }
}

/// A run grows by an eighth: it is often complete when it is first stored, and copying it is cheap.
fn reserve<T>(keys: &mut Vec<T>, coming: usize) {
    if keys.len() == keys.capacity() {
        keys.reserve_exact(coming.max(1 + keys.len() / 8));
    }
}

fn truncate<T>(keys: &mut Vec<T>, len: usize) {
    keys.truncate(len);
    if keys.capacity() > 2 * len + 16 {
        keys.shrink_to(len + len / 8);
    }
}
