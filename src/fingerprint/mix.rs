//! XXH3-64 of one block of 5 to 32 token ids, read as they lie, without copying them to bytes, and of two hashes.
//!
//! The same function as `xxhash_rust::xxh3::xxh3_64_with_seed` over the numbers, little-endian; what is of its own is how
//! the numbers of a block are multiplied. WebAssembly has no product of 128 bits, and the one that the compiler calls for takes most
//! of the time there. Constants and steps are those of the XXH3 specification, inputs of 9 to 16 and of 17 to
//! 128 bytes (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>).

/// Ids in a block that this is for.
pub(super) const IDS: std::ops::RangeInclusive<usize> = 5..=32;

const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_MX1: u64 = 0x1656_6791_9e37_79f9;

/// The first 128 bytes of the default secret.
const SECRET: [u64; 16] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
];

/// The hash of a block; none if it has fewer or more ids than [`IDS`].
pub(super) fn hash(ids: &[u32], seed: u64) -> Option<u64> {
    if !IDS.contains(&ids.len()) {
        return None;
    }
    let bytes = 4 * ids.len() as u64;
    let mut sum = bytes.wrapping_mul(PRIME64_1);
    // From both ends towards the middle, 16 bytes each.
    let pairs = (ids.len() - 1) / 8;
    for pair in (0..=pairs).rev() {
        let front = factors(ids, 4 * pair, 4 * pair, seed)?;
        let back = factors(ids, ids.len() - 4 * (pair + 1), 4 * pair + 2, seed)?;
        sum = sum.wrapping_add(folded(front, back));
    }
    Some(avalanche(sum))
}

#[inline]
fn avalanche(mut sum: u64) -> u64 {
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(PRIME_MX1);
    sum ^ (sum >> 32)
}

/// The hash of 16 bytes, given as their two words.
pub(super) fn hash_of_pair(first: u64, last: u64, seed: u64) -> u64 {
    let [.., a, b, c, d] = *SECRET.first_chunk::<7>().unwrap_or(&[0; 7]);
    let low = (a ^ b).wrapping_add(seed) ^ first;
    let high = (c ^ d).wrapping_sub(seed) ^ last;
    let sum = 16_u64.wrapping_add(low.swap_bytes()).wrapping_add(high).wrapping_add(folded_one(low, high));
    avalanche(sum)
}

/// A product of 128 bits, both halves one on the other.
#[inline]
fn folded_one(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Four ids with four words' worth of the secret, as two factors.
#[inline]
fn factors(ids: &[u32], at: usize, secret: usize, seed: u64) -> Option<[u64; 2]> {
    let [a, b, c, d] = *ids.get(at..)?.first_chunk()?;
    let [low, high] = *SECRET.get(secret..)?.first_chunk()?;
    let [first, second] = [[a, b], [c, d]].map(|[low, high]| u64::from(low) | u64::from(high) << 32);
    Some([first ^ low.wrapping_add(seed), second ^ high.wrapping_sub(seed)])
}

/// Two products of 128 bits, both halves of each one on the other, added up.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
#[inline]
fn folded([a, b]: [u64; 2], [c, d]: [u64; 2]) -> u64 {
    folded_one(a, b).wrapping_add(folded_one(c, d))
}

/// Two products of 128 bits, both halves of each one on the other, added up.
///
/// In vectors, one product a lane. Written for numbers it would be made a call again.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[inline]
fn folded([a, b]: [u64; 2], [c, d]: [u64; 2]) -> u64 {
    use std::arch::wasm32::{
        u32x4_shuffle, u64x2, u64x2_add, u64x2_extmul_low_u32x4, u64x2_extract_lane, u64x2_shl, u64x2_shr, u64x2_splat,
        v128_and, v128_or, v128_xor,
    };
    let (first, second) = (u64x2(a, b), u64x2(c, d));
    let lower_left = u32x4_shuffle::<0, 4, 0, 4>(first, second);
    let upper_left = u32x4_shuffle::<1, 5, 1, 5>(first, second);
    let lower_right = u32x4_shuffle::<2, 6, 2, 6>(first, second);
    let upper_right = u32x4_shuffle::<3, 7, 3, 7>(first, second);
    let low_low = u64x2_extmul_low_u32x4(lower_left, lower_right);
    let high_low = u64x2_extmul_low_u32x4(upper_left, lower_right);
    let low_high = u64x2_extmul_low_u32x4(lower_left, upper_right);
    let high_high = u64x2_extmul_low_u32x4(upper_left, upper_right);
    let low = |words| v128_and(words, u64x2_splat(0xffff_ffff));
    // At most (2^32 - 1)^2 + 2 * (2^32 - 1), which fits.
    let cross = u64x2_add(u64x2_add(u64x2_shr(low_low, 32), low(high_low)), low_high);
    let upper = u64x2_add(u64x2_add(u64x2_shr(high_low, 32), u64x2_shr(cross, 32)), high_high);
    let folded = v128_xor(upper, v128_or(u64x2_shl(cross, 32), low(low_low)));
    u64x2_extract_lane::<0>(folded).wrapping_add(u64x2_extract_lane::<1>(folded))
}
