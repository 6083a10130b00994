//! The proxy-wasm encoding of a header map.
//!
//! `count u32`, then for each pair `name length u32, value length u32`, then for each pair the name and the value, each
//! followed by a zero byte; all integers little-endian (proxy-wasm ABI 0.2.x, `proxy_get_header_map_pairs`).

/// The pairs in `bytes`, names in lower case; none if the encoding is broken anywhere.
pub fn decode(bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut lengths = bytes;
    let count = take_u32(&mut lengths)? as usize;
    let mut strings = bytes.get(4usize.checked_add(count.checked_mul(8)?)?..)?;
    // Each pair takes 10 bytes at least, so a count that is too large has failed already.
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let name_length = take_u32(&mut lengths)? as usize;
        let value_length = take_u32(&mut lengths)? as usize;
        let name = take_string(&mut strings, name_length)?;
        let value = take_string(&mut strings, value_length)?;
        pairs.push((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()));
    }
    Some(pairs)
}

/// The encoding of some pairs.
pub fn encode(pairs: &[(&str, &str)]) -> Vec<u8> {
    let u32_of = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = u32_of(pairs.len()).to_vec();
    for (name, value) in pairs {
        bytes.extend(u32_of(name.len()));
        bytes.extend(u32_of(value.len()));
    }
    for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    bytes
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*taken))
}

fn take_string<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest.strip_prefix(&[0])?;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_in_order() {
        let bytes = encode(&[(":method", "POST"), ("X-Empty", ""), ("a", "b")]);
        let expected = [(":method", "POST"), ("x-empty", ""), ("a", "b")];
        assert_eq!(decode(&bytes), Some(expected.map(|(name, value)| (name.into(), value.into())).to_vec()));
        assert_eq!(decode(&encode(&[])), Some(vec![]));
    }

    #[test]
    fn pairs_are_written_as_the_abi_has_them() {
        let bytes = b"\x01\0\0\0\x04\0\0\0\x05\0\0\0name\0value\0";
        assert_eq!(encode(&[("name", "value")]), bytes);
    }

    #[test]
    fn a_cut_or_lying_map_is_refused() {
        let bytes = encode(&[("name", "value")]);
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None, "cut at {length}");
        }
        assert_eq!(decode(&[0xFF; 64]), None);
    }
}
