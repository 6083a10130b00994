//! Where an added token may begin: a search for two bytes, before the trie is asked.

use super::added::{Nodes, children};
use super::tables::Words;

/// Every byte may follow.
const ANY: [u64; 4] = [u64::MAX; 4];

/// The bytes that the tokens of a trie can begin with, and those that can follow them.
pub(super) struct Starts {
    /// For each first byte the number of its row plus one; 0 for those that no token begins with.
    rows: [u16; 256],
    /// The bytes that can follow, a bit each; all where a token has one byte.
    followers: Vec<[u64; 4]>,
    /// The first bytes where they are at most three, for a faster search.
    few: Option<Vec<u8>>,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    set: vectors::ByteSet,
}

// === impl Starts ===

impl Starts {
    /// Those of the trie with these nodes and edges.
    pub(super) fn of(nodes: Nodes<'_>, edges: Words<'_>) -> Starts {
        let (mut rows, mut followers, mut few) = ([0; 256], Vec::new(), Vec::new());
        // An edge has a byte of its own; no table, however made, takes more memory or time than those do.
        for edge in children(nodes, edges, 0).iter().take(256).map(|edge| u32::from_le_bytes(*edge)) {
            let (byte, node) = ((edge >> 24) as u8, (edge & 0x00ff_ffff) as usize);
            let ends_here = nodes.get(node).and_then(|node| node.last_chunk()).is_none_or(|end| *end != [0; 4]);
            let mut row = if ends_here { ANY } else { [0; 4] };
            for [.., next] in children(nodes, edges, node).iter().take(256) {
                if let Some(word) = row.get_mut(usize::from(*next) / 64) {
                    *word |= 1 << (next % 64);
                }
            }
            followers.push(row);
            if let Some(slot) = rows.get_mut(usize::from(byte)) {
                *slot = followers.len() as u16;
            }
            few.push(byte);
        }
        Starts {
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            set: vectors::ByteSet::of(&few),
            rows,
            followers,
            few: (few.len() <= 3).then_some(few),
        }
    }

    /// Whether there are no tokens.
    pub(super) fn is_empty(&self) -> bool {
        self.followers.is_empty()
    }

    /// The first place where a token may begin.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    pub(super) fn find(&self, bytes: &[u8]) -> Option<usize> {
        let mut from = 0;
        loop {
            let rest = bytes.get(from..)?;
            let at = from
                + match self.few.as_deref() {
                    Some([]) => None,
                    Some([a]) => memchr::memchr(*a, rest),
                    Some([a, b]) => memchr::memchr2(*a, *b, rest),
                    Some([a, b, c]) => memchr::memchr3(*a, *b, *c, rest),
                    _ => return (0..bytes.len()).find(|at| self.may_begin(bytes, *at)),
                }?;
            if self.may_begin(bytes, at) {
                return Some(at);
            }
            from = at + 1;
        }
    }

    /// The first place where a token may begin.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    pub(super) fn find(&self, bytes: &[u8]) -> Option<usize> {
        match self.few.as_deref() {
            Some([]) => None,
            Some([one]) => {
                let one = vectors::One::of(*one);
                self.find_by(bytes, |block| one.found_in(block))
            }
            _ => {
                let set = self.set.vectors();
                self.find_by(bytes, |block| set.found_in(block))
            }
        }
    }

    /// The same by a vector whose bytes are 0 but for those that are first bytes.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    #[inline]
    fn find_by(&self, bytes: &[u8], found_in: impl Fn(&[u8; 16]) -> vectors::Found) -> Option<usize> {
        let (blocks, _) = bytes.as_chunks();
        let (fours, _) = blocks.as_chunks::<4>();
        for (four, of_four) in fours.iter().enumerate() {
            let [a, b, c, d] = of_four.each_ref().map(&found_in);
            if vectors::any([a, b, c, d]) {
                let mut found = vectors::bits([a, b, c, d]);
                while found != 0 {
                    let at = 64 * four + found.trailing_zeros() as usize;
                    if self.may_begin(bytes, at) {
                        return Some(at);
                    }
                    found &= found - 1;
                }
            }
        }
        (64 * fours.len()..bytes.len()).find(|at| self.may_begin(bytes, *at))
    }

    /// Whether a token may begin at a position, by the byte there and the next one.
    fn may_begin(&self, bytes: &[u8], at: usize) -> bool {
        let row = bytes.get(at).and_then(|first| self.rows.get(usize::from(*first)));
        let followers = row.and_then(|row| self.followers.get(usize::from(row.checked_sub(1)?)));
        followers.is_some_and(|followers| match bytes.get(at + 1) {
            Some(next) => followers.get(usize::from(*next) / 64).is_some_and(|word| word >> (next % 64) & 1 == 1),
            None => followers.iter().all(|word| *word == u64::MAX),
        })
    }
}

/// A search for any byte of a set, 16 bytes at a time.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod vectors {
    use std::arch::wasm32::{
        i8x16_bitmask, i8x16_shr, u8x16_eq, u8x16_shr, u8x16_splat, u8x16_swizzle, u64x2, v128, v128_and,
        v128_any_true, v128_bitselect, v128_or,
    };

    /// For each of 16 bytes all bits or none.
    pub(super) type Found = v128;

    /// For each value of a byte's lower half a bit for each upper half, those from 8 on apart.
    pub(super) struct ByteSet {
        ascii: [u8; 16],
        others: [u8; 16],
    }

    /// The same in vectors.
    pub(super) struct Set {
        ascii: v128,
        others: v128,
    }

    /// A set of one byte.
    pub(super) struct One(v128);

    /// The bit of an upper half, twice over.
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

    impl ByteSet {
        pub(super) fn of(bytes: &[u8]) -> ByteSet {
            let mut set = ByteSet { ascii: [0; 16], others: [0; 16] };
            for byte in bytes {
                let half = if byte.is_ascii() { &mut set.ascii } else { &mut set.others };
                if let Some(bits) = half.get_mut(usize::from(byte & 15)) {
                    *bits |= 1 << (byte >> 4 & 7);
                }
            }
            set
        }

        pub(super) fn vectors(&self) -> Set {
            Set { ascii: vector(&self.ascii), others: vector(&self.others) }
        }
    }

    impl Set {
        pub(super) fn found_in(&self, block: &[u8; 16]) -> Found {
            let block = vector(block);
            let lower = v128_and(block, u8x16_splat(15));
            let (ascii, others) = (u8x16_swizzle(self.ascii, lower), u8x16_swizzle(self.others, lower));
            let bits = v128_bitselect(others, ascii, i8x16_shr(block, 7));
            let bit = u8x16_swizzle(vector(&BITS), u8x16_shr(block, 4));
            u8x16_eq(v128_and(bits, bit), bit)
        }
    }

    impl One {
        pub(super) fn of(byte: u8) -> One {
            One(u8x16_splat(byte))
        }

        pub(super) fn found_in(&self, block: &[u8; 16]) -> Found {
            u8x16_eq(vector(block), self.0)
        }
    }

    pub(super) fn any([a, b, c, d]: [Found; 4]) -> bool {
        v128_any_true(v128_or(v128_or(a, b), v128_or(c, d)))
    }

    /// A bit for each of the bytes.
    pub(super) fn bits(found: [Found; 4]) -> u64 {
        found.iter().rev().fold(0, |bits, found| bits << 16 | u64::from(i8x16_bitmask(*found)))
    }

    fn vector(bytes: &[u8; 16]) -> v128 {
        let [first, last] = *bytes.as_chunks::<8>().0 else { return u64x2(0, 0) };
        u64x2(u64::from_le_bytes(first), u64::from_le_bytes(last))
    }
}

#[cfg(test)]
mod tests {
    use super::super::added::build_trie;
    use super::super::random::Random;
    use super::*;

    #[test]
    fn a_token_may_begin_where_its_first_two_bytes_are() {
        let sets: [&[&str]; 4] = [
            &[],
            &["<|a", "<|b", "<x"],
            &["<a", "[b", "\n\n", "\n\n\n", "\u{2581}\u{2581}", "z"],
            &["\0a", "\u{7f}b", "\u{e9}", "\u{10ffff}", "~~", "x", "y0", " \t"],
        ];
        let alphabet: Vec<char> = "<|ab[\n\u{2581}z\0\u{7f}\u{e9}\u{10ffff}~xy0 \tqrstuvw".chars().collect();
        let mut random = Random(3);
        for set in sets {
            let patterns: Vec<_> = (0..).zip(set).map(|(at, token)| (token.as_bytes(), at)).collect();
            let (nodes, edges) = build_trie(&patterns);
            let starts = Starts::of(nodes.as_chunks().0, edges.as_chunks().0);
            for _ in 0..1_000 {
                let text: String = (0..random.below(200)).map(|_| alphabet[random.below(alphabet.len())]).collect();
                let bytes = text.as_bytes();
                let begins = |at: &usize| {
                    set.iter().any(|token| {
                        let start = &token.as_bytes()[..token.len().min(2)];
                        bytes[*at..].starts_with(start)
                    })
                };
                assert_eq!(starts.find(bytes), (0..bytes.len()).find(begins), "{text:?} in {set:?}");
            }
        }
    }
}
