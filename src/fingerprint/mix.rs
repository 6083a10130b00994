//! XXH3-64 of one block of 5 to 32 token ids, read as they lie, without copying them to bytes.
//!
//! The same function as `xxhash_rust::xxh3::xxh3_64_with_seed` over the ids as u32 little-endian; what is of its own is how
//! two 64-bit numbers are multiplied. WebAssembly has no product of 128 bits, and the one that the compiler calls for takes most
//! of the time there. Constants and steps are those of the XXH3 specification, inputs of 17 to 128 bytes
//! (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>).

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
        sum = sum.wrapping_add(mixed(ids, 4 * pair, 4 * pair, seed)?);
        sum = sum.wrapping_add(mixed(ids, ids.len() - 4 * (pair + 1), 4 * pair + 2, seed)?);
    }
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(PRIME_MX1);
    Some(sum ^ (sum >> 32))
}

/// Four ids with four words' worth of the secret, folded to 64 bits.
#[inline]
fn mixed(ids: &[u32], at: usize, secret: usize, seed: u64) -> Option<u64> {
    let [a, b, c, d] = *ids.get(at..)?.first_chunk()?;
    let [low, high] = *SECRET.get(secret..)?.first_chunk()?;
    let [first, second] = [[a, b], [c, d]].map(|[low, high]| u64::from(low) | u64::from(high) << 32);
    Some(folded(first ^ low.wrapping_add(seed), second ^ high.wrapping_sub(seed)))
}

/// Both halves of a product of 128 bits, one on the other.
#[inline]
pub(super) fn folded(a: u64, b: u64) -> u64 {
    if cfg!(not(target_arch = "wasm32")) {
        let product = u128::from(a) * u128::from(b);
        return product as u64 ^ (product >> 64) as u64;
    }
    let low = |word: u64| word & 0xffff_ffff;
    let (low_low, high_low) = (low(a) * low(b), (a >> 32) * low(b));
    let (low_high, high_high) = (low(a) * (b >> 32), (a >> 32) * (b >> 32));
    // At most (2^32 - 1)^2 + 2 * (2^32 - 1), which fits.
    let cross = (low_low >> 32) + low(high_low) + low_high;
    let upper = (high_low >> 32) + (cross >> 32) + high_high;
    upper ^ (cross << 32 | low(low_low))
}
