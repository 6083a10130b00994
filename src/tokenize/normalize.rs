//! The normalizer steps that are supported: NFC, a literal replacement, a prefix.
//!
//! In: the text between two added tokens. Out: the text that added tokens with `normalized` and the pre-tokenizer see.
//! A list of steps is bounded when it is built or read, so that it cannot make a text more than [`MAX_GROWTH`] times
//! longer, apart from NFC (at most three times) and the prefixes.

use std::borrow::Cow;

use unicode_normalization::char::canonical_combining_class;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Steps at most.
const MAX_STEPS: usize = 8;
/// Bytes at most in a step's pattern, content or prefix.
const MAX_STRING: usize = 64;
/// How much longer all replacements together may make a text.
const MAX_GROWTH: usize = 16;
/// Below this byte no UTF-8 text holds a character that NFC changes (the first is U+0300, `CC 80`).
const FIRST_COMPOSING_BYTE: u8 = 0xcc;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Canonical composition.
    Nfc,
    /// Every occurrence of a literal becomes another.
    Replace { pattern: String, content: String },
    /// Put before a text that is not empty.
    Prepend(String),
}

/// Why a list of steps is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepsRefused {
    TooMany,
    TooLong,
    EmptyPattern,
    GrowsTooMuch,
    Malformed,
}

/// The text after all steps.
pub(super) fn normalized<'a>(steps: &[Step], text: &'a str) -> Cow<'a, str> {
    steps.iter().fold(Cow::Borrowed(text), |text, step| apply(step, text))
}

fn apply<'a>(step: &Step, text: Cow<'a, str>) -> Cow<'a, str> {
    match step {
        Step::Nfc => nfc(text),
        Step::Replace { pattern, content } if text.contains(pattern.as_str()) => text.replace(pattern, content).into(),
        Step::Prepend(prefix) if !text.is_empty() => format!("{prefix}{text}").into(),
        Step::Replace { .. } | Step::Prepend(_) => text,
    }
}

/// The beginning of the text after all steps that stays the same whatever follows `text`; nothing if a step may replace
/// what only begins in it.
pub(super) fn normalized_beginning<'a>(steps: &[Step], text: &'a str) -> Cow<'a, str> {
    let is_local = |step: &Step| !matches!(step, Step::Replace { pattern, .. } if pattern.chars().count() > 1);
    if !steps.iter().all(is_local) {
        return Cow::Borrowed("");
    }
    steps.iter().fold(Cow::Borrowed(text), |text, step| {
        let text = apply(step, text);
        if *step == Step::Nfc { without_open_character(text) } else { text }
    })
}

/// What follows can still compose with the last character that is no mark, and with the marks behind it.
fn without_open_character(text: Cow<'_, str>) -> Cow<'_, str> {
    let end = text.rfind(|character| canonical_combining_class(character) == 0).unwrap_or(0);
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(..end).unwrap_or_default()),
        Cow::Owned(text) => Cow::Owned(text.get(..end).unwrap_or_default().to_owned()),
    }
}

fn nfc(text: Cow<'_, str>) -> Cow<'_, str> {
    let may_change = text.as_bytes().iter().any(|byte| *byte >= FIRST_COMPOSING_BYTE);
    if may_change && is_nfc_quick(text.chars()) != IsNormalized::Yes {
        return text.nfc().collect::<String>().into();
    }
    text
}

/// Checks the bounds that the module promises.
pub(super) fn check(steps: &[Step]) -> Result<(), StepsRefused> {
    if steps.len() > MAX_STEPS {
        return Err(StepsRefused::TooMany);
    }
    let mut growth = 1;
    for step in steps {
        match step {
            Step::Nfc => {}
            Step::Prepend(prefix) if prefix.len() > MAX_STRING => return Err(StepsRefused::TooLong),
            Step::Prepend(_) => {}
            Step::Replace { pattern, .. } if pattern.is_empty() => return Err(StepsRefused::EmptyPattern),
            Step::Replace { pattern, content } if pattern.len().max(content.len()) > MAX_STRING => {
                return Err(StepsRefused::TooLong);
            }
            Step::Replace { pattern, content } => growth *= content.len().div_ceil(pattern.len()).max(1),
        }
        if growth > MAX_GROWTH {
            return Err(StepsRefused::GrowsTooMuch);
        }
    }
    Ok(())
}

/// The bytes of the artifact's section: for each step a kind, and its strings with their lengths before them.
pub(super) fn to_bytes(steps: &[Step]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let string = |bytes: &mut Vec<u8>, text: &str| {
        bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(text.as_bytes());
    };
    for step in steps {
        match step {
            Step::Nfc => bytes.push(0),
            Step::Replace { pattern, content } => {
                bytes.push(1);
                string(&mut bytes, pattern);
                string(&mut bytes, content);
            }
            Step::Prepend(prefix) => {
                bytes.push(2);
                string(&mut bytes, prefix);
            }
        }
    }
    bytes
}

/// The steps of the artifact's section.
pub(super) fn from_bytes(mut bytes: &[u8]) -> Result<Vec<Step>, StepsRefused> {
    let mut steps = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        if steps.len() == MAX_STEPS {
            return Err(StepsRefused::TooMany);
        }
        bytes = rest;
        steps.push(match kind {
            0 => Step::Nfc,
            1 => Step::Replace { pattern: string(&mut bytes)?, content: string(&mut bytes)? },
            2 => Step::Prepend(string(&mut bytes)?),
            _ => return Err(StepsRefused::Malformed),
        });
    }
    check(&steps)?;
    Ok(steps)
}

fn string(bytes: &mut &[u8]) -> Result<String, StepsRefused> {
    let (length, rest) = bytes.split_first().ok_or(StepsRefused::Malformed)?;
    let (text, rest) = rest.split_at_checked(usize::from(*length)).ok_or(StepsRefused::Malformed)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).map_err(|_| StepsRefused::Malformed)
}

impl std::fmt::Display for StepsRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StepsRefused::TooMany => write!(f, "more than {MAX_STEPS} steps"),
            StepsRefused::TooLong => write!(f, "a string of more than {MAX_STRING} bytes"),
            StepsRefused::EmptyPattern => write!(f, "an empty pattern"),
            StepsRefused::GrowsTooMuch => write!(f, "makes a text more than {MAX_GROWTH} times longer"),
            StepsRefused::Malformed => write!(f, "malformed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(pattern: &str, content: &str) -> Step {
        Step::Replace { pattern: pattern.into(), content: content.into() }
    }

    #[test]
    fn steps_apply_in_order_and_survive_their_bytes() {
        let steps = [Step::Prepend("_".into()), replace(" ", "_"), Step::Nfc];
        assert_eq!(normalized(&steps, "a e\u{301}"), "_a_\u{e9}");
        assert_eq!(normalized(&steps, ""), "");
        assert_eq!(from_bytes(&to_bytes(&steps)), Ok(steps.to_vec()));
    }

    #[test]
    fn unbounded_steps_are_refused() {
        assert_eq!(check(&[replace("", "x")]), Err(StepsRefused::EmptyPattern));
        assert_eq!(check(&vec![Step::Nfc; 9]), Err(StepsRefused::TooMany));
        assert_eq!(check(&[replace("a", &"b".repeat(5)), replace("b", "cccc")]), Err(StepsRefused::GrowsTooMuch));
        assert_eq!(check(&[Step::Prepend("x".repeat(65))]), Err(StepsRefused::TooLong));
        for malformed in [&[3_u8][..], &[2], &[2, 5, b'a'], &[1, 1, b'a'], &[2, 1, 0xff]] {
            assert_eq!(from_bytes(malformed), Err(StepsRefused::Malformed));
        }
    }
}
