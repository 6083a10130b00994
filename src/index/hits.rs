//! How delivered hits are counted: plainly, or so that they age.
//!
//! Without ageing a count is a number of hits, as in the public contract. With it, a hit counts half as much for each
//! half-life that has passed since, so that what was hit much once gives way to what is hit now. Counts are not halved one by
//! one: a hit counts twice as much as one a half-life earlier. A count is kept as `m * 2^e`, 16 bits each, with the highest
//! bit of `m` set and `e` in the upper half, so that counts are ordered as numbers are; 0 is no hits.

/// How much a hit counts now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Half-lives since the beginning; none without ageing.
    exponent: Option<u32>,
}

const MANTISSA_BITS: u32 = 16;
const LARGEST_EXPONENT: u32 = u16::MAX as u32;

// === impl Hits ===

impl Hits {
    /// Every hit counts alike.
    pub fn plain() -> Hits {
        Hits::default()
    }

    /// Hits at `now_ms` count twice as much as those `half_life_ms` before. Counts that are compared must have the same
    /// beginning `since_ms`; after 65,535 half-lives they age no further.
    pub fn ageing(half_life_ms: u64, since_ms: u64, now_ms: u64) -> Hits {
        let half_lives = now_ms.saturating_sub(since_ms) / half_life_ms.max(1);
        Hits { exponent: Some(u32::try_from(half_lives).map_or(LARGEST_EXPONENT, |count| count.min(LARGEST_EXPONENT))) }
    }

    /// The count after `by` more hits now.
    pub fn add(self, count: u32, by: u32) -> u32 {
        let Some(exponent) = self.exponent else { return count.saturating_add(by) };
        if by == 0 {
            return count;
        }
        let before = (count >> MANTISSA_BITS, u64::from(count & 0xFFFF));
        let hits = (exponent, u64::from(by) << (MANTISSA_BITS - 1));
        let (small, large) = if before.0 < hits.0 { (before, hits) } else { (hits, before) };
        let mut sum = large.1 + small.1.checked_shr(large.0 - small.0).unwrap_or(0);
        let mut exponent = large.0;
        while sum >> MANTISSA_BITS > 0 {
            sum >>= 1;
            exponent += 1;
        }
        if exponent > LARGEST_EXPONENT { u32::MAX } else { exponent << MANTISSA_BITS | sum as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_hits_are_counted() {
        assert_eq!(Hits::plain().add(3, 2), 5);
        assert_eq!(Hits::plain().add(u32::MAX, 2), u32::MAX);
    }

    #[test]
    fn a_hit_counts_twice_as_much_as_one_a_half_life_earlier() {
        let at = |half_lives: u64| Hits::ageing(1_000, 500, 500 + half_lives * 1_000);
        let two_then = at(0).add(0, 2);
        assert_eq!(two_then, at(1).add(0, 1));
        assert_eq!(at(3).add(two_then, 0), two_then);
        assert_eq!(at(0).add(at(0).add(0, 1), 1), two_then);
        let (eight_then, five_later) = (at(0).add(0, 8), at(3).add(0, 5));
        assert!(five_later > eight_then && at(3).add(0, 1) == eight_then && at(2).add(0, 1) < eight_then);
        // 3 * 1 + 1 * 4 = 7 of the first ones.
        assert_eq!(at(2).add(at(0).add(0, 3), 1), at(0).add(0, 7));
        assert!(at(0).add(0, 1) > 0, "a hit is more than none");
    }

    #[test]
    fn counts_that_grow_large_stay_ordered() {
        let mut count = 0;
        for half_life in (0..70_000).step_by(7) {
            let next = Hits::ageing(1, 0, half_life).add(count, 1);
            assert!(next > count || half_life > 65_500, "{half_life}");
            count = next;
        }
        assert_eq!(Hits::ageing(1, 0, u64::MAX).add(u32::MAX, u32::MAX), u32::MAX);
    }
}
