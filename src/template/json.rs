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

use crate::request::plain_length;

/// How deeply containers may be nested, as in serde_json.
const MAX_DEPTH: usize = 128;

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
    text: &'a str,
    at: usize,
    /// The string that was read last, if it has escapes.
    unescaped: String,
    /// Values that may still come.
    left: usize,
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
    let text =
        std::str::from_utf8(bytes).map_err(|error| InvalidJson { at: error.valid_up_to(), expected: "UTF-8" })?;
    let mut reader = Reader { text, at: 0, unescaped: String::new(), left: *left };
    let value = reader.value(0);
    *left = reader.left;
    let value = value?;
    reader.skip_space();
    if reader.at < text.len() {
        return Err(reader.invalid("the end"));
    }
    Ok(value)
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
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.taken(b']') {
                return Ok(Value::from(items));
            }
            self.expect(b',', "a comma or a closing bracket")?;
        }
    }

    fn word(&mut self) -> Result<Value, InvalidJson> {
        let rest = self.rest();
        let (length, value) = if rest.starts_with("null") {
            (4, Value::from(()))
        } else if rest.starts_with("true") {
            (4, Value::from(true))
        } else if rest.starts_with("false") {
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
        let digits = self.text.get(start..self.at).unwrap_or_default();
        let value = match (whole, digits.parse::<i64>()) {
            (true, Ok(number)) => Some(Value::from(number)),
            (true, Err(_)) => digits.parse::<i128>().ok().map(Value::from),
            (false, _) => digits.parse::<f64>().ok().map(Value::from),
        };
        value.ok_or(InvalidJson { at: start, expected: TOO_LARGE })
    }

    fn digits(&mut self) -> usize {
        let count = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        self.at += count;
        count
    }

    /// Reads a string, the opening quote of which is next.
    fn string(&mut self) -> Result<Value, InvalidJson> {
        self.at += 1;
        let plain = self.plain();
        if self.taken(b'"') {
            return Ok(Value::from(plain));
        }
        let mut out = std::mem::take(&mut self.unescaped);
        out.clear();
        out.push_str(plain);
        loop {
            if self.at == self.text.len() {
                return Err(self.invalid("a closing quote"));
            }
            if !self.taken(b'\\') {
                return Err(self.invalid("no control character"));
            }
            out.push(self.escaped()?);
            out.push_str(self.plain());
            if self.taken(b'"') {
                break;
            }
        }
        let value = Value::from(out.as_str());
        self.unescaped = out;
        Ok(value)
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self) -> Result<char, InvalidJson> {
        let character = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => return self.code_point(),
            _ => return Err(self.invalid("an escape")),
        };
        self.at += 1;
        Ok(character)
    }

    /// Reads `uXXXX`, or two of them that make a pair of surrogates.
    fn code_point(&mut self) -> Result<char, InvalidJson> {
        let start = self.at;
        let unpaired = InvalidJson { at: start, expected: UNPAIRED };
        let first = self.unit()?;
        let code = match first {
            0xd800..=0xdbff => {
                if !self.rest().starts_with("\\u") {
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
        let digits = self.text.get(self.at..self.at + 4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
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
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes what stands for itself in a string.
    fn plain(&mut self) -> &'a str {
        let start = self.at;
        self.at += plain_length(self.rest().as_bytes());
        self.text.get(start..self.at).unwrap_or_default()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn invalid(&self, expected: &'static str) -> InvalidJson {
        InvalidJson { at: self.at, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, InvalidJson> {
        parse_json(text.as_bytes())
    }

    #[test]
    fn reads_what_serde_json_reads() {
        let texts = [
            r#"{"a": [1, -2.5, 1e3, true, false, null, "x\n\"\\\/\b\f\r\té\ud83d\ude00"], "b": {}, "c": []}"#,
            " [ 0 , 0.0 , 12345678901234567890 ] ",
            "\"\"",
            "\u{feff}1",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\"}",
            "[",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\udc00\"",
            "\"\\x\"",
            "\"a",
            "\"\t\"",
            "nul",
            "1 2",
            "",
        ];
        for text in texts {
            let expected: Result<serde_json::Value, _> = serde_json::from_str(text);
            match (read(text), expected) {
                (Ok(value), Ok(expected)) => assert_eq!(serde_json::to_value(&value).unwrap(), expected, "{text}"),
                (Err(_), Err(_)) => {}
                (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn numbers_print_as_in_python() {
        let pairs = [
            ("-0", "0"),
            ("-0.0", "-0.0"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("1e999", "inf"),
            ("9223372036854775808", "9223372036854775808"),
        ];
        for (text, expected) in pairs {
            let mut out = String::new();
            super::super::python::write_str(&mut out, &read(text).unwrap()).unwrap();
            assert_eq!(out, expected);
        }
        assert!(read(&"9".repeat(40)).is_err());
    }

    #[test]
    fn of_a_key_given_twice_the_last_value_stands_in_the_first_place() {
        assert_eq!(read(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap().to_string(), "{'a': 3, 'b': 2}");
    }

    #[test]
    fn the_number_of_values_is_bounded() {
        let of = |values: usize| format!("[{}]", vec!["{}"; values - 1].join(","));
        assert!(parse_json_of(of(100).as_bytes(), &mut 100).is_ok());
        let refused = parse_json_of(of(101).as_bytes(), &mut 100).unwrap_err();
        assert!(refused.is_too_many(), "{refused}");
        assert!(parse_json(of(100_000).as_bytes()).is_ok(), "a file may have as many as it likes");
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(read(&format!("{}1{}", "[".repeat(128), "]".repeat(128))).is_ok());
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"{\"a\":".repeat(100_000)).is_err());
    }
}
