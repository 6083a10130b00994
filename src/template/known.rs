//! The messages of bodies read before.
//!
//! A conversation's body begins with the messages that the one before had, byte for byte. An object's bytes say where it
//! ends and what it is, whatever stands around them: the value that was read of them is handed out again, without looking
//! at more of them than their hash takes. Where such an object ends is not known before; the length is kept by the hash of
//! its first bytes.

use minijinja::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::memo::{Key, Memo, Weighed};

/// Shorter objects are read as fast as they are looked up. Lengths are kept by a hash of so many bytes.
const MIN_BYTES: usize = 256;
/// Sets of lengths, a power of two; two lengths each.
const SETS: usize = 512;
/// What a value takes beside its text: a place in a map, most of all, and the map.
const VALUE_BYTES: usize = 192;

/// A bounded memory of objects in JSON text.
pub struct KnownItems {
    lengths: Vec<[Length; 2]>,
    items: Memo<Item>,
}

/// An object that was read.
#[derive(Clone)]
pub(super) struct Item {
    /// What it is.
    pub value: Value,
    /// How many values it has, itself included.
    pub values: usize,
    /// The length of its text.
    pub length: usize,
}

/// How long an object was that began with bytes of this hash.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Length {
    start: u64,
    bytes: usize,
}

// === impl KnownItems ===

impl KnownItems {
    /// A memory of at most `max_bytes`; of 0 bytes it remembers nothing.
    pub(crate) fn new(max_bytes: usize) -> KnownItems {
        KnownItems { lengths: Vec::new(), items: Memo::new(max_bytes) }
    }

    /// Bytes held, as far as they are counted.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes()
    }

    /// The object that `text` begins with. No more bytes are hashed than `work`, which becomes less.
    pub(super) fn find(&mut self, text: &[u8], work: &mut usize) -> Option<Item> {
        let start = start(text)?;
        for length in *self.lengths.get(start as usize % SETS)? {
            let Some(bytes) = text.get(..length.bytes).filter(|_| length.start == start) else { continue };
            *work = work.checked_sub(bytes.len())?;
            if let Some(item) = self.items.get(key(bytes)) {
                return Some(item.clone());
            }
        }
        None
    }

    /// Remembers the object that all of `text` is.
    pub(super) fn remember(&mut self, text: &[u8], value: &Value, values: usize) {
        let item = Item { value: value.clone(), values, length: text.len() };
        let Some(start) = start(text).filter(|_| self.items.takes(item.bytes())) else { return };
        if self.lengths.is_empty() {
            self.lengths.resize(SETS, Default::default());
        }
        let length = Length { start, bytes: text.len() };
        if let Some(set) = self.lengths.get_mut(start as usize % SETS).filter(|set| !set.contains(&length)) {
            *set = [length, set[0]];
        }
        self.items.remember(key(text), item);
    }
}

impl Weighed for Item {
    fn bytes(&self) -> usize {
        self.values.saturating_mul(VALUE_BYTES).saturating_add(self.length)
    }
}

/// A hash of the first bytes of an object that is long enough.
fn start(text: &[u8]) -> Option<u64> {
    text.first_chunk::<MIN_BYTES>().filter(|start| start.starts_with(b"{")).map(|start| xxh3_64(start))
}

fn key(text: &[u8]) -> Key {
    Key { hash: xxh3_128(text), bytes: text.len() }
}

#[cfg(test)]
mod tests {
    use super::super::json::{MAX_VALUES, parse_body, parse_json_of};
    use super::*;

    /// What a body is with what is known and without; errors by their kind, as one that comes too early is elsewhere.
    fn both(body: &[u8], known: &mut KnownItems) -> [Result<String, &'static str>; 2] {
        let alone = parse_json_of(body, &mut { MAX_VALUES });
        [parse_body(body, known), alone]
            .map(|read| read.map(|value| format!("{value:?}")).map_err(|error| error.expected))
    }

    fn message(role: &str, content: &str) -> String {
        format!(r#"{{"role": "{role}", "n": [1, -0.5, {{}}, null], "content": "{content}", "role": "{role}\u00e9"}}"#)
    }

    fn body(messages: &[String]) -> String {
        format!(r#"{{"model": "m", "messages": [{}], "tools": [ {} ]}}"#, messages.join(" , "), messages.join(","))
    }

    #[test]
    fn what_is_known_is_what_is_read() {
        let mut known = KnownItems::new(100_000);
        let long = "a line of text, \\\"quoted\\\", \\n and \u{e9}. ".repeat(9);
        let texts: Vec<String> = ["", "1", "12", " "].iter().map(|end| format!("{long}{end}")).collect();
        let messages: Vec<String> = texts.iter().map(|text| message("user", text)).collect();
        for count in 1..=messages.len() {
            let body = body(&messages[..count]);
            for _ in 0..2 {
                let [found, expected] = both(body.as_bytes(), &mut known);
                assert!(found.is_ok());
                assert_eq!(found, expected, "{body}");
            }
            let (mut held, mut work) = (messages[count - 1].clone() + " , 1", usize::MAX);
            assert!(known.find(held.as_bytes(), &mut work).is_some());
            assert!(known.find(held.as_bytes(), &mut 100).is_none(), "no more is hashed than is allowed");
            held.replace_range(held.len() - 10..held.len() - 9, "~");
            assert!(known.find(held.as_bytes(), &mut work).is_none());
        }
        // Every byte another one, or the end.
        let body = body(&messages[..2]);
        for at in 0..body.len() {
            for byte in [b'"', b'\\', b'{', b'}', b',', b'0', 0x80] {
                let mut other = body.clone().into_bytes();
                other[at] = byte;
                let [found, expected] = both(&other, &mut known);
                assert_eq!(found, expected, "{byte:#04x} at {at}");
            }
            let [found, expected] = both(&body.as_bytes()[..at], &mut known);
            assert_eq!(found, expected, "cut at {at}");
        }
        assert!(known.bytes() > 1_000 && known.bytes() <= 100_000);
    }

    #[test]
    fn the_bounds_of_a_body_are_those_of_one_that_is_read() {
        let mut known = KnownItems::new(100_000_000);
        let many = format!(r#"{{"many": [{}]}}"#, vec!["{}"; 20_000].join(","));
        let deep = |depth: usize| {
            let padding = " ".repeat(MIN_BYTES);
            format!(r#"{{"deep":{padding} {}1{}}}"#, "[".repeat(depth), "]".repeat(depth))
        };
        let nested = |item: &str| format!(r#"{{"messages": [[{item}]]}}"#);
        let bodies = [
            body(std::slice::from_ref(&many)),
            format!(r#"{{"messages": [{many}]}}"#),
            format!(r#"{{"messages": [{many}, {many}]}}"#),
            format!(r#"{{"messages": [{}]}}"#, deep(124)),
            format!(r#"{{"messages": [{}]}}"#, deep(125)),
            nested(&deep(124)),
            format!("[{}]", deep(125)),
            format!("[{}]", deep(124)),
        ];
        for body in bodies.iter().chain(&bodies) {
            let [found, expected] = both(body.as_bytes(), &mut known);
            assert_eq!(found, expected, "{}", &body[..body.len().min(300)]);
        }
    }

    #[test]
    fn without_memory_nothing_is_known() {
        let mut known = KnownItems::new(0);
        let message = message("user", &"text ".repeat(100));
        for _ in 0..2 {
            let [found, expected] = both(body(std::slice::from_ref(&message)).as_bytes(), &mut known);
            assert_eq!(found, expected);
        }
        assert!(known.find(message.as_bytes(), &mut { usize::MAX }).is_none());
        assert_eq!((known.bytes(), known.lengths.len()), (0, 0));
    }
}
