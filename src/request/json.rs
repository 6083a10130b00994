//! A reader of JSON text that visits every byte once and keeps nothing.
//!
//! It accepts RFC 8259 and nothing more, except that strings which are passed over need not be valid UTF-8 or have
//! paired surrogates: what the engine makes of those does not change the route. A value that is passed over may be nested
//! up to [`MAX_DEPTH`] deep, and takes no stack. An error says only that the text is malformed: the engine
//! will tell the client where.
//!
//! serde_json reads the few strings that need unescaping, and is the oracle of the tests. It is not used for the whole
//! body: it takes three times as long for a token array (see `tokens`), and derived types refuse a field that is given
//! twice, of which the engines take the last.

mod plain;

use std::borrow::Cow;

use plain::passable_length;
pub(crate) use plain::{copy_plain, plain_length};

/// How deeply a value that is passed over may be nested, as in serde_json.
pub(super) const MAX_DEPTH: u32 = 128;

/// The text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// What a value is, told from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    Text,
    Number,
    Boolean,
    Null,
}

/// A position in JSON text.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The containers that are open, innermost last, one bit each: 1 for an object.
#[derive(Default)]
struct Nesting {
    objects: u128,
    depth: u32,
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Passes over white space to the end, which must be there.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        if self.peek().is_none() { Ok(()) } else { Err(Malformed) }
    }

    /// What the next value is, as far as its first byte tells.
    pub(super) fn kind(&mut self) -> Result<Kind, Malformed> {
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::Text),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Boolean),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(Malformed),
        }
    }

    /// Reads an object: `field` gets each key and must read its value.
    pub(super) fn object(
        &mut self,
        mut field: impl FnMut(&str, &mut Reader<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.expect(b'{')?;
        if self.found(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            field(&key, self)?;
            if !self.next_item(b'}')? {
                return Ok(());
            }
        }
    }

    /// Enters an array; false if it is empty, and then it has been read.
    pub(super) fn enter_array(&mut self) -> Result<bool, Malformed> {
        self.expect(b'[')?;
        Ok(!self.found(b']'))
    }

    /// After a value in an array: true if another follows, false if the array has been read.
    pub(super) fn next_in_array(&mut self) -> Result<bool, Malformed> {
        self.next_item(b']')
    }

    /// After a value in an array: passes over the rest of the array.
    pub(super) fn skip_rest_of_array(&mut self) -> Result<(), Malformed> {
        while self.next_in_array()? {
            self.skip_value()?;
        }
        Ok(())
    }

    /// Reads a string.
    pub(super) fn text(&mut self) -> Result<Cow<'a, str>, Malformed> {
        self.any_text()?.ok_or(Malformed)
    }

    /// Reads a string; `None` if it has unpaired surrogates or bytes that are not UTF-8.
    pub(super) fn any_text(&mut self) -> Result<Option<Cow<'a, str>>, Malformed> {
        let (quoted, escaped) = self.quoted()?;
        if escaped {
            return Ok(serde_json::from_slice(quoted).map(Cow::Owned).ok());
        }
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        Ok(std::str::from_utf8(inner).map(Cow::Borrowed).ok())
    }

    /// Reads a number that is whole and not negative, in digits alone; `None` for any other, which has been read too.
    pub(super) fn whole_number(&mut self) -> Result<Option<u64>, Malformed> {
        self.peek();
        let start = self.at;
        self.skip_number()?;
        let number = self.bytes.get(start..self.at).unwrap_or_default();
        if !number.iter().all(u8::is_ascii_digit) {
            return Ok(None);
        }
        let digit = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        Ok(number.iter().try_fold(0, digit))
    }

    /// Passes over one value of any kind: its bytes.
    pub(super) fn raw_value(&mut self) -> Result<&'a [u8], Malformed> {
        self.peek();
        let start = self.at;
        self.skip_value()?;
        Ok(self.bytes.get(start..self.at).unwrap_or_default())
    }

    /// Passes over one value of any kind.
    pub(super) fn skip_value(&mut self) -> Result<(), Malformed> {
        let mut open = Nesting::default();
        loop {
            let entered = match self.kind()? {
                Kind::Object => self.enter_object(&mut open)?,
                Kind::Array => self.enter_array()? && open.push(false)?,
                Kind::Text => self.quoted().map(|_| false)?,
                Kind::Number => self.skip_number().map(|()| false)?,
                Kind::Boolean | Kind::Null => self.skip_word().map(|()| false)?,
            };
            if !entered && !self.leave(&mut open)? {
                return Ok(());
            }
        }
    }

    /// True if there is a first value to read, whose key has been read.
    fn enter_object(&mut self, open: &mut Nesting) -> Result<bool, Malformed> {
        self.expect(b'{')?;
        if self.found(b'}') {
            return Ok(false);
        }
        self.skip_key()?;
        open.push(true)
    }

    /// After a value: closes the containers that end here. True if another value follows, false if all are closed.
    fn leave(&mut self, open: &mut Nesting) -> Result<bool, Malformed> {
        while let Some(in_object) = open.innermost() {
            if self.next_item(if in_object { b'}' } else { b']' })? {
                if in_object {
                    self.skip_key()?;
                }
                return Ok(true);
            }
            open.pop();
        }
        Ok(false)
    }

    /// After an item: true at a comma, false at the closing bracket `close`.
    fn next_item(&mut self, close: u8) -> Result<bool, Malformed> {
        match self.peek() {
            Some(b',') => self.at += 1,
            Some(byte) if byte == close => {
                self.at += 1;
                return Ok(false);
            }
            _ => return Err(Malformed),
        }
        Ok(true)
    }

    fn key(&mut self) -> Result<Cow<'a, str>, Malformed> {
        let (quoted, escaped) = self.quoted()?;
        self.expect(b':')?;
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        // A key that is not valid text is none that is looked for.
        if escaped {
            return Ok(Cow::Owned(serde_json::from_slice(quoted).unwrap_or_default()));
        }
        Ok(Cow::Borrowed(std::str::from_utf8(inner).unwrap_or_default()))
    }

    fn skip_key(&mut self) -> Result<(), Malformed> {
        self.quoted()?;
        self.expect(b':')
    }

    /// Passes over a string: its bytes with the quotes, and whether there are escapes in it.
    fn quoted(&mut self) -> Result<(&'a [u8], bool), Malformed> {
        self.expect(b'"')?;
        let start = self.at - 1;
        let mut escaped = false;
        loop {
            let (length, has_escapes) = passable_length(self.rest());
            self.at += length;
            escaped |= has_escapes;
            match self.next() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.skip_escape()?;
                }
                _ => return Err(Malformed),
            }
        }
        Ok((self.bytes.get(start..self.at).unwrap_or_default(), escaped))
    }

    fn skip_escape(&mut self) -> Result<(), Malformed> {
        match self.next() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => {
                let digits = self.bytes.get(self.at..self.at + 4).ok_or(Malformed)?;
                self.at += 4;
                if digits.iter().all(u8::is_ascii_hexdigit) { Ok(()) } else { Err(Malformed) }
            }
            _ => Err(Malformed),
        }
    }

    fn skip_number(&mut self) -> Result<(), Malformed> {
        if self.current() == Some(b'-') {
            self.at += 1;
        }
        match self.next() {
            Some(b'0') => {}
            Some(b'1'..=b'9') => self.skip_digits(),
            _ => return Err(Malformed),
        }
        if self.current() == Some(b'.') {
            self.at += 1;
            self.skip_some_digits()?;
        }
        if matches!(self.current(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.current(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.skip_some_digits()?;
        }
        Ok(())
    }

    fn skip_some_digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        self.skip_digits();
        if self.at > start { Ok(()) } else { Err(Malformed) }
    }

    fn skip_digits(&mut self) {
        while self.current().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    /// Passes over `true`, `false` or `null`.
    fn skip_word(&mut self) -> Result<(), Malformed> {
        let rest = self.rest();
        let word =
            [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word)).ok_or(Malformed)?;
        self.at += word.len();
        Ok(())
    }

    /// Passes over white space and `byte`.
    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.found(byte) { Ok(()) } else { Err(Malformed) }
    }

    /// Passes over white space, and over `byte` if it comes next.
    fn found(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Passes over white space; the byte that follows, if any.
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = self.current()?;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.current()?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn current(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next 8 bytes, the first one lowest.
    pub(super) fn word(&self) -> Option<u64> {
        self.rest().first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
    }

    /// Moves on by `bytes`, which must have been looked at.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

// === impl Nesting ===

impl Nesting {
    /// Opens a container; always true, since a value follows.
    fn push(&mut self, is_object: bool) -> Result<bool, Malformed> {
        if self.depth >= MAX_DEPTH {
            return Err(Malformed);
        }
        self.objects = (self.objects << 1) | u128::from(is_object);
        self.depth += 1;
        Ok(true)
    }

    fn pop(&mut self) {
        self.objects >>= 1;
        self.depth = self.depth.saturating_sub(1);
    }

    fn innermost(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.objects & 1 == 1)
    }
}

#[cfg(test)]
mod tests;
