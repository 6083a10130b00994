//! How far a JSON string goes before something in it means more than itself.

/// How many bytes there are before the first one that ends a string, begins an escape or is a control character; all, if
/// there is none.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    by_words(bytes)
}

/// How many bytes there are before the first one that ends a string, begins an escape or is a control character; all, if
/// there is none.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) fn plain_length(bytes: &[u8]) -> usize {
    let (blocks, rest) = bytes.as_chunks();
    let mut at = 0;
    for block in blocks {
        let special = specials(block);
        if special != 0 {
            return at + special.trailing_zeros() as usize;
        }
        at += block.len();
    }
    at + by_words(rest)
}

/// How many bytes of a string can be passed over that are plain or escapes of two bytes, and whether there are any escapes:
/// as many as are quickly told.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
pub(super) fn passable_length(bytes: &[u8]) -> (usize, bool) {
    (plain_length(bytes), false)
}

/// How many bytes of a string can be passed over that are plain or escapes of two bytes, and whether there are any escapes:
/// as many as are quickly told.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) fn passable_length(bytes: &[u8]) -> (usize, bool) {
    let (blocks, rest) = bytes.as_chunks();
    let (mut at, mut escaped) = (0, false);
    for block in blocks {
        let mut special = specials(block);
        while special != 0 {
            let first = special.trailing_zeros() as usize;
            let pair = block.get(first..).and_then(|rest| rest.first_chunk::<2>());
            let Some([b'\\', b'n' | b'"' | b'\\' | b'/' | b't' | b'r' | b'b' | b'f']) = pair else {
                return (at + first, escaped);
            };
            escaped = true;
            special &= !(3 << first);
        }
        at += block.len();
    }
    (at + by_words(rest), escaped)
}

/// Appends what [`plain_length`] counts to `out`; its length.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
pub(crate) fn copy_plain(bytes: &[u8], out: &mut Vec<u8>) -> usize {
    let length = plain_length(bytes);
    out.extend_from_slice(bytes.get(..length).unwrap_or_default());
    length
}

/// Appends what [`plain_length`] counts to `out`; its length.
///
/// A block at a time: what stands between two escapes is short, and V8 calls out of the module for a copy of any length.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) fn copy_plain(bytes: &[u8], out: &mut Vec<u8>) -> usize {
    let (blocks, rest) = bytes.as_chunks();
    let mut at = 0;
    for block in blocks {
        out.extend_from_slice(block);
        let special = specials(block);
        if special != 0 {
            let plain = special.trailing_zeros() as usize;
            out.truncate(out.len() - (block.len() - plain));
            return at + plain;
        }
        at += block.len();
    }
    let length = by_words(rest);
    out.extend_from_slice(rest.get(..length).unwrap_or_default());
    at + length
}

/// A bit for each of 16 bytes that is a quote, a backslash or below 0x20.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
fn specials(block: &[u8; 16]) -> u16 {
    use std::arch::wasm32::{i8x16_bitmask, u8x16_eq, u8x16_lt, u8x16_splat, u64x2, v128_or};
    let (first, last) = (block.first_chunk().unwrap_or(&[0; 8]), block.last_chunk().unwrap_or(&[0; 8]));
    let block = u64x2(u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    let quote = u8x16_eq(block, u8x16_splat(b'"'));
    let escape = u8x16_eq(block, u8x16_splat(b'\\'));
    i8x16_bitmask(v128_or(v128_or(quote, escape), u8x16_lt(block, u8x16_splat(0x20))))
}

fn by_words(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks();
    let special = |word: &[u8; 8]| quotes_escapes_and_controls(u64::from_le_bytes(*word));
    // Four words at a time, by vectors where there are some.
    let has_none = |words: &&[[u8; 8]; 4]| words.iter().fold(0, |found, word| found | special(word)) == 0;
    let first = 4 * words.as_chunks().0.iter().take_while(has_none).count();
    for (at, word) in words.iter().enumerate().skip(first) {
        let special = special(word);
        if special != 0 {
            return 8 * at + special.trailing_zeros() as usize / 8;
        }
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    8 * words.len() + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// The high bit of each of the 8 bytes that is a quote, a backslash or below 0x20. Borrows run from lower to higher bytes
/// only after a byte that is one of these, so the lowest bit is exact.
fn quotes_escapes_and_controls(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let zero_byte = |word: u64| word.wrapping_sub(ONES) & !word;
    let quote = zero_byte(word ^ (ONES * b'"' as u64));
    let escape = zero_byte(word ^ (ONES * b'\\' as u64));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (quote | escape | control) & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_ends_at_the_first_special_byte() {
        let is_special = |byte: u8| matches!(byte, b'"' | b'\\' | ..0x20);
        for byte in 0..=u8::MAX {
            for length in 0..40 {
                for at in 0..length {
                    let mut bytes = vec![b'a'; length];
                    // Bytes behind the first special one, and such as are only just plain, change nothing.
                    bytes.get_mut(at..).unwrap_or_default().fill(byte);
                    bytes.get_mut(..at).unwrap_or_default().fill([0x20, 0x21, 0x23, 0x5b, 0x5d, 0xff][length % 6]);
                    let expected = if is_special(byte) { at } else { length };
                    assert_eq!(plain_length(&bytes), expected, "{byte:#04x} from {at} of {length}");
                    let mut out = b"before".to_vec();
                    assert_eq!(copy_plain(&bytes, &mut out), expected);
                    assert_eq!(out, [b"before", &bytes[..expected]].concat());
                }
            }
        }
    }
}
