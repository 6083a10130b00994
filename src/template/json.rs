//! JSON text to template values, as Python's `json.loads` reads it.
//!
//! In: UTF-8 bytes. Out: a value whose maps keep the order of their keys; of a key that is given twice the last value
//! counts, at the place of the first. Whole numbers stay whole up to 38 digits and keep no minus at zero; numbers with a
//! point or an exponent are floats. Refused, though Python takes them: unpaired surrogates, larger whole numbers, `NaN`
//! and `Infinity`. Containers may be nested [`MAX_DEPTH`] deep.
//!
//! serde_json is not used because it turns large whole numbers and `-0` into floats, which print differently.

use std::fmt;

use minijinja::Value;

use super::known::KnownItems;
use crate::request::{copy_plain, plain_length};

/// How deeply containers may be nested, as in serde_json.
const MAX_DEPTH: usize = 128;

/// How deeply the items of a list are nested that is in the body itself.
const ITEM_DEPTH: usize = 2;

/// What is expected where Python expects less.
const UNPAIRED: &str = "a pair of surrogates";
const TOO_DEEP: &str = "less nesting";
const TOO_LARGE: &str = "a number of at most 38 digits";
const TOO_MANY: &str = "fewer values";
/// The most values, keys not counted, that a request's body may have, and as many again the arguments of all its tool calls:
/// what agents with long histories and many tools send has a few thousand, and each takes some microseconds from the VM.
pub(super) const MAX_VALUES: usize = 32_768;

/// Text that is not JSON, or not JSON that can be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidJson {
    /// Where, in bytes from the start.
    pub at: usize,
    /// What was expected there.
    pub expected: &'static str,
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    /// The string that was read last, if it has escapes.
    unescaped: Vec<u8>,
    /// Values that may still come.
    left: usize,
    /// Objects in the body's lists that were read before, and how many bytes may still be hashed to find them.
    known: Option<&'a mut KnownItems>,
    work: usize,
}

/// Reads one value, around which there may be white space.
///
/// # Errors
///
/// The bytes are not UTF-8 or not JSON; see the module's description.
pub fn parse_json(bytes: &[u8]) -> Result<Value, InvalidJson> {
    parse_json_of(bytes, &mut { usize::MAX })
}

/// The same of at most `left` values, which become fewer by those that were read.
pub(super) fn parse_json_of(bytes: &[u8], left: &mut usize) -> Result<Value, InvalidJson> {
    let mut reader = Reader::of(bytes, *left, None);
    let value = reader.whole();
    *left = reader.left;
    value
}

/// The same of a request's body, whose messages may be known, and are from now on.
pub(super) fn parse_body(bytes: &[u8], known: &mut KnownItems) -> Result<Value, InvalidJson> {
    Reader::of(bytes, MAX_VALUES, Some(known)).whole()
}

// === impl InvalidJson ===

impl InvalidJson {
    /// Whether it has more values than one request may.
    pub fn is_too_many(self) -> bool {
        self.expected == TOO_MANY
    }

    /// Whether Python may read the text though it is refused here.
    pub(super) fn is_for_python(self, text: &str) -> bool {
        let rest = text.get(self.at..).unwrap_or_default();
        matches!(self.expected, UNPAIRED | TOO_DEEP | TOO_LARGE | TOO_MANY)
            || ["NaN", "Infinity"].iter().any(|word| rest.starts_with(word))
    }
}

impl fmt::Display for InvalidJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "JSON: expected {} at byte {}", self.expected, self.at)
    }
}

impl std::error::Error for InvalidJson {}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn of(text: &'a [u8], left: usize, known: Option<&'a mut KnownItems>) -> Reader<'a> {
        // Whatever is hashed in vain, a body takes no longer than one of twice its length.
        Reader { text, at: 0, unescaped: Vec::new(), left, known, work: text.len().saturating_mul(2) }
    }

    /// All of the text.
    fn whole(&mut self) -> Result<Value, InvalidJson> {
        let value = self.value(0)?;
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.invalid("the end"));
        }
        Ok(value)
    }

    /// An item of a list. Those of a list in the body itself may be known.
    fn item(&mut self, depth: usize) -> Result<Value, InvalidJson> {
        self.skip_space();
        let (start, left) = (self.at, self.left);
        let Some(known) = self.known.as_mut().filter(|_| depth == ITEM_DEPTH) else { return self.value(depth) };
        if let Some(item) = known.find(self.text.get(start..).unwrap_or_default(), &mut self.work)
            && let Some(left) = left.checked_sub(item.values)
        {
            self.left = left;
            self.at += item.length;
            return Ok(item.value);
        }
        let value = self.value(depth)?;
        if let Some(known) = &mut self.known {
            known.remember(self.text.get(start..self.at).unwrap_or_default(), &value, left - self.left);
        }
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Value, InvalidJson> {
        if depth > MAX_DEPTH {
            return Err(self.invalid(TOO_DEEP));
        }
        self.left = self.left.checked_sub(1).ok_or(self.invalid(TOO_MANY))?;
        self.skip_space();
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, InvalidJson> {
        let mut pairs = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.taken(b'}') {
            return Ok(Value::from_pairs(pairs));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.invalid("a key"));
            }
            let key = self.string()?;
            self.skip_space();
            self.expect(b':', "a colon")?;
            pairs.push((key, self.value(depth + 1)?));
            self.skip_space();
            if self.taken(b'}') {
                return Ok(Value::from_pairs(pairs));
            }
            self.expect(b',', "a comma or a closing brace")?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, InvalidJson> {
        let mut items: Vec<Value> = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.taken(b']') {
            return Ok(Value::from(items));
        }
        loop {
            items.push(self.item(depth + 1)?);
            self.skip_space();
            if self.taken(b']') {
                return Ok(Value::from(items));
            }
            self.expect(b',', "a comma or a closing bracket")?;
        }
    }

    fn word(&mut self) -> Result<Value, InvalidJson> {
        let rest = self.rest();
        let (length, value) = if rest.starts_with(b"null") {
            (4, Value::from(()))
        } else if rest.starts_with(b"true") {
            (4, Value::from(true))
        } else if rest.starts_with(b"false") {
            (5, Value::from(false))
        } else {
            return Err(self.invalid("a value"));
        };
        self.at += length;
        Ok(value)
    }

    fn number(&mut self) -> Result<Value, InvalidJson> {
        let start = self.at;
        self.taken(b'-');
        if !self.taken(b'0') && self.digits() == 0 {
            return Err(self.invalid("a digit"));
        }
        let mut whole = true;
        if self.taken(b'.') {
            whole = false;
            if self.digits() == 0 {
                return Err(self.invalid("a digit"));
            }
        }
        if self.taken(b'e') || self.taken(b'E') {
            whole = false;
            if !self.taken(b'+') {
                self.taken(b'-');
            }
            if self.digits() == 0 {
                return Err(self.invalid("a digit"));
            }
        }
        let digits = text_of(self.text.get(start..self.at).unwrap_or_default(), start)?;
        let value = match (whole, digits.parse::<i64>()) {
            (true, Ok(number)) => Some(Value::from(number)),
            (true, Err(_)) => digits.parse::<i128>().ok().map(Value::from),
            (false, _) => digits.parse::<f64>().ok().map(Value::from),
        };
        value.ok_or(InvalidJson { at: start, expected: TOO_LARGE })
    }

    fn digits(&mut self) -> usize {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    /// Reads a string, the opening quote of which is next.
    fn string(&mut self) -> Result<Value, InvalidJson> {
        self.at += 1;
        let start = self.at;
        let plain = self.plain();
        if self.taken(b'"') {
            return Ok(Value::from(text_of(plain, start)?));
        }
        let mut out = std::mem::take(&mut self.unescaped);
        out.clear();
        out.extend_from_slice(plain);
        self.unescape(&mut out)?;
        // An escape stands for whole characters, and no part of one is beside it: what was no text still is none.
        let value = Value::from(text_of(&out, start)?);
        self.unescaped = out;
        Ok(value)
    }

    /// Reads the rest of a string, the closing quote included.
    fn unescape(&mut self, out: &mut Vec<u8>) -> Result<(), InvalidJson> {
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 1,
                Some(_) => return Err(self.invalid("no control character")),
                None => return Err(self.invalid("a closing quote")),
            }
            match self.peek().and_then(escaped) {
                Some(byte) => {
                    self.at += 1;
                    out.push(byte);
                }
                None if self.peek() == Some(b'u') => {
                    let character = self.code_point()?;
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                None => return Err(self.invalid("an escape")),
            }
            self.at += copy_plain(self.rest(), out);
        }
    }

    /// Reads `uXXXX`, or two of them that make a pair of surrogates.
    fn code_point(&mut self) -> Result<char, InvalidJson> {
        let start = self.at;
        let unpaired = InvalidJson { at: start, expected: UNPAIRED };
        let first = self.unit()?;
        let code = match first {
            0xd800..=0xdbff => {
                if !self.rest().starts_with(b"\\u") {
                    return Err(unpaired);
                }
                self.at += 1;
                let second = self.unit()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(unpaired);
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            _ => first,
        };
        char::from_u32(code).ok_or(unpaired)
    }

    /// Reads `u` and four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, InvalidJson> {
        self.at += 1;
        let digits = self.rest().first_chunk::<4>();
        let digit = |unit: u32, digit: &u8| Some(unit << 4 | char::from(*digit).to_digit(16)?);
        let unit = digits.and_then(|digits| digits.iter().try_fold(0, digit));
        let unit = unit.ok_or_else(|| self.invalid("four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), InvalidJson> {
        if self.taken(byte) { Ok(()) } else { Err(self.invalid(expected)) }
    }

    fn taken(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Passes what stands for itself in a string.
    fn plain(&mut self) -> &'a [u8] {
        let start = self.at;
        self.at += plain_length(self.rest());
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn invalid(&self, expected: &'static str) -> InvalidJson {
        InvalidJson { at: self.at, expected }
    }
}

/// The text that stands at `at`.
fn text_of(bytes: &[u8], at: usize) -> Result<&str, InvalidJson> {
    std::str::from_utf8(bytes).map_err(|_| InvalidJson { at, expected: "UTF-8" })
}

/// What a letter behind a backslash stands for, but for `u`.
fn escaped(letter: u8) -> Option<u8> {
    Some(match letter {
        b'n' => b'\n',
        b'"' | b'\\' | b'/' => letter,
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 8,
        b'f' => 12,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
