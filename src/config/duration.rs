//! Durations as Go writes them, which is how a CachePolicy spells `evictionTTL`: `90s`, `1h30m`, `1.5h`.

/// A day in ms.
pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Units and their length in ns. Longer names come before those they begin with.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits of a number that are looked at; more is no duration that anybody means.
const MAX_DIGITS: usize = 18;

/// The duration in whole ms, rounded down; `None` if it is not one, is negative, or has no parts.
pub(super) fn go_duration_ms(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    if rest == "0" {
        return Some(0);
    }
    let mut total_ns: u128 = 0;
    while !rest.is_empty() {
        let (part_ns, after) = one_part(rest)?;
        total_ns = total_ns.checked_add(part_ns)?;
        rest = after;
    }
    u64::try_from(total_ns / 1_000_000).ok()
}

/// A number with its unit, and what follows.
fn one_part(text: &str) -> Option<(u128, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() || whole.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
        return None;
    }
    let (unit_ns, rest) = UNITS.iter().find_map(|(name, ns)| Some((*ns, rest.strip_prefix(name)?)))?;
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole_ns = number(whole)?.checked_mul(unit_ns)?;
    let fraction_ns = number(fraction)?.checked_mul(unit_ns)?.checked_div(scale)?;
    Some((whole_ns.checked_add(fraction_ns)?, rest))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// No digits are 0.
fn number(digits: &str) -> Option<u128> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_go_accepts() {
        let cases = [
            ("30m", 1_800_000),
            ("1h30m", 5_400_000),
            ("90s", 90_000),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1_000),
            ("+2ms", 2),
            ("1500us", 1),
            ("1500µs", 1),
            ("999ns", 0),
            ("0", 0),
            ("1h0m0.25s", 3_600_250),
        ];
        for (text, ms) in cases {
            assert_eq!(go_duration_ms(text), Some(ms), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_duration() {
        for text in ["", "+", "30", "m", "-1s", "1d", "1h 30m", ".", ".s", "1e3s", "1h-1m", "9999999999999999999s"] {
            assert_eq!(go_duration_ms(text), None, "{text}");
        }
    }
}
