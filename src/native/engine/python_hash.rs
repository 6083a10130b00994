//! Python's hash of a tuple of token ids: the key that SGLang up to 0.5.5 gives a page.
//!
//! Such a key stands for its page's tokens alone, whatever comes before them. CPython's `tuplehash` (3.8 and later, 64
//! bits; `Objects/tupleobject.c`): XXH64's round over the items' hashes, and an id's hash is the id.

const PRIME_1: u64 = 11_400_714_785_074_694_791;
const PRIME_2: u64 = 14_029_467_366_897_019_727;
const PRIME_5: u64 = 2_870_177_450_012_600_261;
/// What a hash of all ones is replaced by: it would mean an error.
const INSTEAD_OF_ERROR: u64 = 1_546_275_796;

/// `hash(tuple(token_ids))`, as its two's complement bits.
pub fn tuple_hash(token_ids: &[u32]) -> u64 {
    let mut hash = PRIME_5;
    for id in token_ids {
        hash = hash.wrapping_add(u64::from(*id).wrapping_mul(PRIME_2));
        hash = hash.rotate_left(31).wrapping_mul(PRIME_1);
    }
    hash = hash.wrapping_add(token_ids.len() as u64 ^ (PRIME_5 ^ 3_527_539));
    if hash == u64::MAX { INSTEAD_OF_ERROR } else { hash }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by CPython 3.11.
    #[test]
    fn hashes_are_pythons() {
        for (token_ids, hash) in PRINTED {
            assert_eq!(tuple_hash(token_ids), hash.cast_unsigned(), "{token_ids:?}");
        }
    }

    const PRINTED: [(&[u32], i64); 4] = [
        (&[], 5_740_354_900_026_072_187),
        (&[7], -6_198_871_656_470_064_846),
        (&[1, 2, 3, 4], 590_899_387_183_067_792),
        (&[0, 151_643, u32::MAX], 4_506_233_870_409_835_684),
    ];
}
