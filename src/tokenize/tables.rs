//! The two hash tables of an artifact, as lookups that cannot fail: a token by its bytes, a merge by its two ids.
//!
//! Both are open-addressed with linear probing. A probe stops at an empty slot or after the longest sequence that the
//! compile step needed, so no table, however made, can hold a lookup up. Most pairs that are looked for do not merge: the
//! merges in a probe's way are in rising order, so that it stops at the first greater one, too (Amble and Knuth, "Ordered
//! hash tables", 1974). The hashes are computed in explicit 64-bit
//! arithmetic: a table means the same on a 32-bit VM.

use super::format::NO_ID;

/// Bit of a vocabulary slot: a word that equals this token encodes to it alone.
pub(super) const WHOLE_WORD: u32 = 1 << 31;
/// Bit of a vocabulary slot: the token is a character of several bytes that merge to it before any of them merges with
/// a byte of another such character beside it, so that the character can begin as this one symbol.
pub(super) const ATOM: u32 = 1 << 30;
/// An unused vocabulary slot.
pub(super) const EMPTY_TOKEN: u32 = u32::MAX;
/// An unused merge slot.
pub(super) const EMPTY_MERGE: u64 = u64::MAX;

const RANK_BITS: u32 = 22;
/// Bits of a merge slot that hold the rank; no rank has all of them.
pub(super) const RANK_MASK: u64 = (1 << RANK_BITS) - 1;
const ID_BITS: u32 = 21;
/// Bits of a vocabulary slot that hold part of the hash, so that most other tokens are passed over unread.
const TAG_MASK: u32 = 0x1ff << ID_BITS;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Little-endian words, in place.
pub(super) type Words<'a> = &'a [[u8; 4]];

/// The tables of one artifact.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub(super) byte_ids: Words<'a>,
    pub(super) token_starts: Words<'a>,
    pub(super) token_bytes: &'a [u8],
    pub(super) vocabulary: Words<'a>,
    pub(super) vocabulary_probes: u32,
    pub(super) longest_token: usize,
    pub(super) merges: &'a [[u8; 8]],
    pub(super) merge_probes: u32,
    pub(super) merged: Words<'a>,
}

/// The word at an index, or `None` behind the end.
pub(super) fn word(words: Words<'_>, at: usize) -> Option<u32> {
    words.get(at).map(|bytes| u32::from_le_bytes(*bytes))
}

/// Where a token's probe sequence begins in a table of `slots`.
pub(super) fn token_slot(bytes: &[u8], slots: usize) -> usize {
    spread(hash(bytes), slots)
}

/// What the slot of a token without flags holds.
pub(super) fn token_entry(bytes: &[u8], id: u32) -> u32 {
    tag(hash(bytes)) | id
}

/// The id in a slot that is in use.
pub(super) fn id_in(entry: u32) -> u32 {
    entry & ID_MASK
}

/// Where a pair's probe sequence begins in a table of `slots`.
pub(super) fn merge_slot(left: u32, right: u32, slots: usize) -> usize {
    spread(pair(left, right).wrapping_mul(MIX), slots)
}

/// Where the probe sequence of a merge begins that is in a table of `slots`.
pub(super) fn merge_home(entry: u64, slots: usize) -> usize {
    spread((entry >> RANK_BITS).wrapping_mul(MIX), slots)
}

/// What a merge slot holds.
pub(super) fn merge_entry(left: u32, right: u32, rank: u32) -> u64 {
    (pair(left, right) << RANK_BITS) | u64::from(rank)
}

/// A hash of a word's bytes, the same on every target.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    let mut state = length.wrapping_mul(MIX);
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        let (chunks, _) = bytes.as_chunks::<8>();
        if chunks.len() > 1 {
            for chunk in chunks {
                state = mixed(state ^ u64::from_le_bytes(*chunk));
            }
        } else {
            state = mixed(state ^ u64::from_le_bytes(*first));
        }
        return mixed(state ^ u64::from_le_bytes(*last));
    }
    let tail = match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | (u64::from(u32::from_le_bytes(*last)) << 32)
        }
        _ => bytes.iter().fold(0, |tail, byte| (tail << 8) | u64::from(*byte)),
    };
    mixed(state ^ tail)
}

/// A hash of two words.
pub(super) fn hash_of_pair(first: u64, last: u64) -> u64 {
    mixed(mixed(first.wrapping_add(MIX)) ^ last)
}

/// Whether two words are the same, eight bytes at a time: the comparison that WebAssembly has looks at each.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let (Some(a_last), Some(b_last)) = (a.last_chunk::<8>(), b.last_chunk::<8>()) else {
        return a.iter().zip(b).all(|(a, b)| a == b);
    };
    let (a_chunks, b_chunks) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let same = |(a, b): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*a) == u64::from_le_bytes(*b);
    same((a_last, b_last)) && a_chunks.iter().zip(b_chunks).all(same)
}

fn mixed(state: u64) -> u64 {
    let product = state.wrapping_mul(MIX);
    product ^ (product >> 32)
}

fn tag(hash: u64) -> u32 {
    ((hash as u32) << ID_BITS) & TAG_MASK
}

fn pair(left: u32, right: u32) -> u64 {
    (u64::from(left) << ID_BITS) | u64::from(right)
}

/// The upper half of a hash, scaled to `0..slots`.
fn spread(hash: u64, slots: usize) -> usize {
    (((hash >> 32) * slots as u64) >> 32) as usize
}

// === impl Tables ===

impl Tables<'_> {
    /// The id that a word equal to one token encodes to.
    pub(super) fn whole_word(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.longest_token {
            return None;
        }
        self.find(bytes).filter(|entry| entry & WHOLE_WORD != 0).map(id_in)
    }

    /// The id that a character's bytes can begin as, between characters of several bytes.
    pub(super) fn atom(&self, bytes: &[u8]) -> Option<u32> {
        self.find(bytes).filter(|entry| entry & ATOM != 0).map(id_in)
    }

    /// The id of the token with these bytes.
    pub(super) fn token(&self, bytes: &[u8]) -> Option<u32> {
        self.find(bytes).map(id_in)
    }

    /// The bytes of a token, empty for an id that has none.
    pub(super) fn token_bytes(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let range = word(self.token_starts, at).zip(word(self.token_starts, at.saturating_add(1)));
        range.and_then(|(start, end)| self.token_bytes.get(start as usize..end as usize)).unwrap_or_default()
    }

    /// The rank of the merge of two ids, lower is earlier; `NO_ID` if they do not merge.
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        let slots = self.merges.len();
        let wanted = pair(left, right);
        let mut at = merge_slot(left, right, slots);
        for _ in 0..self.merge_probes {
            let Some(entry) = self.merges.get(at).map(|bytes| u64::from_le_bytes(*bytes)) else { return NO_ID };
            let found = entry >> RANK_BITS;
            if found >= wanted {
                return if found == wanted { (entry & RANK_MASK) as u32 } else { NO_ID };
            }
            at = if at + 1 < slots { at + 1 } else { 0 };
        }
        NO_ID
    }

    /// The id that the merge of a rank makes.
    pub(super) fn merged(&self, rank: u32) -> Option<u32> {
        word(self.merged, rank as usize)
    }

    fn find(&self, bytes: &[u8]) -> Option<u32> {
        let slots = self.vocabulary.len();
        let hash = hash(bytes);
        let (mut at, tag) = (spread(hash, slots), tag(hash));
        for _ in 0..self.vocabulary_probes {
            let entry = word(self.vocabulary, at)?;
            if entry == EMPTY_TOKEN {
                return None;
            }
            if entry & TAG_MASK == tag && are_equal(self.token_bytes(id_in(entry)), bytes) {
                return Some(entry);
            }
            at = if at + 1 < slots { at + 1 } else { 0 };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another hash is another format: it needs another version.
    #[test]
    fn hashes_are_those_that_an_artifact_was_built_with() {
        let texts: [&[u8]; 5] = [b"", b"a", b" the", b" prefix!", b" more than sixteen bytes"];
        let hashes: Vec<u64> = texts.iter().map(|text| hash(text)).collect();
        let expected = [0, 0x95da_58f9_9f36_3d7d, 0xe282_cf6f_ed92_c2eb, 0x6e10_f149_c12d_2ef4, 0x273c_2391_3a06_7a5d];
        assert_eq!(hashes, expected);
    }

    #[test]
    fn words_are_equal_where_slices_are() {
        let text = b"a word of thirty-two bytes, or so";
        for length in 0..text.len() {
            let word = &text[..length];
            assert!(are_equal(word, word));
            assert!(!are_equal(word, &text[..length + 1]));
            for at in 0..length {
                let mut other = word.to_vec();
                other[at] ^= 1;
                assert!(!are_equal(word, &other), "{length} bytes, the {at}th differs");
            }
        }
    }

    #[test]
    fn slots_stay_inside_their_table() {
        for slots in [1, 2, 3, 1_000] {
            assert!(merge_slot(u32::MAX >> 11, u32::MAX >> 11, slots) < slots);
            assert!(token_slot(&[0xff; 40], slots) < slots);
        }
    }
}
