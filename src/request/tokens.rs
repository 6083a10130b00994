//! Prompts: text, or arrays of token ids straight from JSON text into a `Vec<u32>`.
//!
//! Nearly all of a request with token ids is such an array, so its numbers take a path of their own: 8 bytes at a time, the
//! digits found and converted without a branch per digit. That is a third of the time of serde_json's general numbers,
//! natively and in a VM alike.

use super::MAX_TOKENS;
use super::json::{Kind, Malformed, Reader};

/// What a value that should hold a prompt holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Prompt {
    /// There is no such field, or it is null where that is allowed.
    #[default]
    Absent,
    /// No text or no tokens.
    Empty,
    /// Text.
    Text(String),
    /// A string with unpaired surrogates, or with bytes that are not UTF-8: engines refuse it.
    NotText,
    /// Token ids.
    Tokens(Vec<u32>),
    /// More than [`MAX_TOKENS`].
    TooMany,
    /// The first prompt of a list with more than one.
    FirstOf(Box<Prompt>),
    /// A shape that the API does not have.
    WrongType,
}

// === impl Prompt ===

impl Prompt {
    /// Reads a value that may be text, token ids, or a list of either. Of a list the first one counts: a request has one
    /// destination.
    pub(super) fn read(reader: &mut Reader) -> Result<Prompt, Malformed> {
        match reader.kind()? {
            Kind::Text => read_text(reader),
            Kind::Array => read_array(reader),
            Kind::Null | Kind::Boolean | Kind::Number | Kind::Object => reader.skip_value().map(|()| Prompt::WrongType),
        }
    }

    /// As [`Prompt::read`], for a value that may be null.
    pub(super) fn read_nullable(reader: &mut Reader) -> Result<Prompt, Malformed> {
        if reader.kind()? == Kind::Null {
            return reader.skip_value().map(|()| Prompt::Absent);
        }
        Prompt::read(reader)
    }

    /// As [`Prompt::read_nullable`], for a value that may not be text.
    pub(super) fn read_input_ids(reader: &mut Reader) -> Result<Prompt, Malformed> {
        let prompt = Prompt::read_nullable(reader)?;
        Ok(if prompt.is_text() { Prompt::WrongType } else { prompt })
    }

    /// As [`Prompt::read_nullable`], for a value that may be text only; an empty one is absent.
    pub(super) fn read_text_nullable(reader: &mut Reader) -> Result<Prompt, Malformed> {
        match reader.kind()? {
            Kind::Text => {
                let prompt = read_text(reader)?;
                Ok(if prompt == Prompt::Empty { Prompt::Absent } else { prompt })
            }
            Kind::Null => reader.skip_value().map(|()| Prompt::Absent),
            _ => reader.skip_value().map(|()| Prompt::WrongType),
        }
    }

    /// Whether it is text, or the first of several texts.
    pub(super) fn is_text(&self) -> bool {
        match self {
            Prompt::Text(_) | Prompt::NotText => true,
            Prompt::FirstOf(first) => first.is_text(),
            _ => false,
        }
    }

    /// Reads a value that may be token ids only.
    pub(super) fn read_tokens_nullable(reader: &mut Reader) -> Result<Prompt, Malformed> {
        match reader.kind()? {
            Kind::Array if !reader.enter_array()? => Ok(Prompt::Absent),
            Kind::Array => read_ids(reader),
            Kind::Null => reader.skip_value().map(|()| Prompt::Absent),
            _ => reader.skip_value().map(|()| Prompt::WrongType),
        }
    }
}

fn read_text(reader: &mut Reader) -> Result<Prompt, Malformed> {
    Ok(match reader.any_text()? {
        None => Prompt::NotText,
        Some(text) if text.is_empty() => Prompt::Empty,
        Some(text) => Prompt::Text(text.into_owned()),
    })
}

fn read_array(reader: &mut Reader) -> Result<Prompt, Malformed> {
    if !reader.enter_array()? {
        return Ok(Prompt::Empty);
    }
    let first = match reader.kind()? {
        Kind::Text => read_text(reader)?,
        Kind::Array if !reader.enter_array()? => Prompt::Empty,
        Kind::Array => read_ids(reader)?,
        _ => return read_ids(reader),
    };
    if !reader.next_in_array()? {
        return Ok(first);
    }
    reader.skip_value()?;
    reader.skip_rest_of_array()?;
    Ok(Prompt::FirstOf(Box::new(first)))
}

/// Reads the ids of an array that has been entered and is not empty.
fn read_ids(reader: &mut Reader) -> Result<Prompt, Malformed> {
    let mut ids = Vec::new();
    loop {
        let more = read_short_ids(reader, &mut ids);
        if ids.len() > MAX_TOKENS {
            return skip_to(reader, more, Prompt::TooMany);
        }
        if !more {
            return Ok(Prompt::Tokens(ids));
        }
        // Something less common: blanks, 8 digits or more, the end of the body near, or no id at all.
        if reader.kind()? != Kind::Number {
            reader.skip_value()?;
            return reader.skip_rest_of_array().map(|()| Prompt::WrongType);
        }
        match reader.whole_number()?.and_then(|number| u32::try_from(number).ok()) {
            Some(id) => ids.push(id),
            None => return reader.skip_rest_of_array().map(|()| Prompt::WrongType),
        }
        if !reader.next_in_array()? {
            let fits = ids.len() <= MAX_TOKENS;
            return Ok(if fits { Prompt::Tokens(ids) } else { Prompt::TooMany });
        }
    }
}

/// At a value of an array if `more`, else after the array: passes over the rest.
fn skip_to(reader: &mut Reader, more: bool, prompt: Prompt) -> Result<Prompt, Malformed> {
    if more {
        reader.skip_value()?;
        reader.skip_rest_of_array()?;
    }
    Ok(prompt)
}

/// Reads ids of at most 7 digits with a comma or the closing bracket right behind them, up to one more than
/// [`MAX_TOKENS`]. True: at a value that is something else. False: the array has been read.
fn read_short_ids(reader: &mut Reader, ids: &mut Vec<u32>) -> bool {
    while ids.len() <= MAX_TOKENS
        && let Some((id, digits, delimiter)) = reader.word().and_then(short_id)
    {
        match delimiter {
            b',' => {
                ids.push(id);
                reader.advance(digits.saturating_add(1));
                if reader.current() == Some(b' ') {
                    reader.advance(1);
                }
            }
            b']' => {
                ids.push(id);
                reader.advance(digits.saturating_add(1));
                return false;
            }
            _ => return true,
        }
    }
    true
}

/// The number that 8 bytes of text begin with, its digits, and the byte behind them. `None` if it has none or more than 7
/// digits, or a leading zero.
#[allow(clippy::arithmetic_side_effects, reason = "there are 1 to 7 digits: shifts by 8 to 56 of 64 bits")]
fn short_id(word: u64) -> Option<(u32, usize, u8)> {
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let values = word ^ 0x3030_3030_3030_3030;
    // The high bit of each byte that is no digit. A carry reaches only bytes behind the first such one.
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & HIGHS;
    let digits = others.trailing_zeros() / 8;
    if !(1..=7).contains(&digits) || (digits > 1 && values & 0xff == 0) {
        return None;
    }
    let delimiter = (word >> (8 * digits)) as u8;
    Some((from_digits(values << (64 - 8 * digits)), digits as usize, delimiter))
}

/// The number with these 8 digits, one a byte, the first one lowest.
fn from_digits(digits: u64) -> u32 {
    const EVERY_FOURTH: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & EVERY_FOURTH).wrapping_mul((1_000_000 << 32) | 100);
    let low = ((pairs >> 16) & EVERY_FOURTH).wrapping_mul((10_000 << 32) | 1);
    (high.wrapping_add(low) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Prompt, Malformed> {
        let mut reader = Reader::new(json.as_bytes());
        let prompt = Prompt::read(&mut reader)?;
        reader.end()?;
        Ok(prompt)
    }

    #[test]
    fn short_ids_of_every_length() {
        for (text, expected) in [
            ("0,345678", Some((0, 1, b','))),
            ("7],45678", Some((7, 1, b']'))),
            ("42 ,5678", Some((42, 2, b' '))),
            ("9999999,", Some((9_999_999, 7, b','))),
            ("1234567/", Some((1_234_567, 7, b'/'))),
            ("123:\u{ff}\u{ff}", Some((123, 3, b':'))),
            ("12345678", None),
            ("01,45678", None),
            (",1234567", None),
            ("-1234567", None),
        ] {
            let word = u64::from_le_bytes(text.as_bytes()[..8].try_into().unwrap());
            assert_eq!(short_id(word), expected, "{text}");
        }
        for id in (0..10_000_000u32).step_by(997) {
            let text = format!("{id},       ");
            let word = u64::from_le_bytes(text.as_bytes()[..8].try_into().unwrap());
            assert_eq!(short_id(word).map(|found| found.0), Some(id));
        }
    }

    #[test]
    fn ids_survive_any_spacing() {
        let ids = Prompt::Tokens(vec![0, 10, 128_255, 9_999_999, 10_000_000, u32::MAX, 3]);
        for separator in [",", ", ", " ,", "\n,\t ", ",  "] {
            let list = ["0", "10", "128255", "9999999", "10000000", "4294967295", "3"].join(separator);
            for json in [format!("[{list}]"), format!("[ {list} ]"), format!("[[{list}] ]"), format!("[{list}]   ")] {
                assert_eq!(read(&json), Ok(ids.clone()), "{json}");
            }
        }
    }

    #[test]
    fn what_is_no_id_is_a_wrong_type_and_what_is_no_json_is_malformed() {
        for json in ["[-1]", "[1.5]", "[1e3]", "[1,2,4294967296]", "[99999999999999999999]", "[1,\"2\"]", "[1,[2]]"] {
            assert_eq!(read(json), Ok(Prompt::WrongType), "{json}");
        }
        for json in ["[true]", "[null]", "[{}]", "[[[1]]]", "[[\"a\"]]", "1", "null", "{}", "false", "[1,null,2,3,4]"] {
            assert_eq!(read(json), Ok(Prompt::WrongType), "{json}");
        }
        for json in ["[1,]", "[,1]", "[01]", "[1 2]", "[1", "[1,", "[", "[1}", "[1.]", "[1e]", "[-]", "[+1]", "[1]]"] {
            assert_eq!(read(json), Err(Malformed), "{json}");
        }
    }

    #[test]
    fn the_cap_is_exact() {
        let list = |count: usize, separator: &str| format!("[{}]", vec!["7"; count].join(separator));
        for separator in [",", "  ,"] {
            assert_eq!(read(&list(MAX_TOKENS, separator)), Ok(Prompt::Tokens(vec![7; MAX_TOKENS])));
            assert_eq!(read(&list(MAX_TOKENS + 1, separator)), Ok(Prompt::TooMany));
            assert_eq!(read(&list(MAX_TOKENS + 2, separator)), Ok(Prompt::TooMany));
        }
    }

    #[test]
    fn of_several_prompts_the_first_decides() {
        let first_of = |prompt: Prompt| Ok(Prompt::FirstOf(Box::new(prompt)));
        assert_eq!(read("[[1,2],[3]]"), first_of(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read("[[1,2] , null]"), first_of(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read("[[],[3]]"), first_of(Prompt::Empty));
        assert_eq!(read(r#"["a","b"]"#), first_of(Prompt::Text("a".to_owned())));
        assert_eq!(read(r#"["\ud83d","b"]"#), first_of(Prompt::NotText));
        assert_eq!(read("[[1,2]]"), Ok(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read(r#"["a"]"#), Ok(Prompt::Text("a".to_owned())));
        assert_eq!(read("[]"), Ok(Prompt::Empty));
        assert_eq!(read(r#""""#), Ok(Prompt::Empty));
    }

    #[test]
    fn text_is_unescaped_and_what_is_none_is_told() {
        for (json, expected) in [
            (r#""a\u0000\n\ud83d\ude00""#, Prompt::Text("a\0\n\u{1f600}".to_owned())),
            (r#""é 日本語""#, Prompt::Text("é 日本語".to_owned())),
            (r#""\ud83d""#, Prompt::NotText),
            (r#""\ude00\ud83d""#, Prompt::NotText),
        ] {
            assert_eq!(read(json), Ok(expected), "{json}");
        }
        let mut reader = Reader::new(b"\"\xff\"");
        assert_eq!(Prompt::read(&mut reader), Ok(Prompt::NotText));
        assert_eq!(read("\"a\u{0}\""), Err(Malformed));
    }
}
