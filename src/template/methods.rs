//! Python's methods of strings, lists and dictionaries.
//!
//! `minijinja-contrib` has most; the ones here differ from Python there, or are missing. A method that neither has is an
//! error, and so is one that changes its object (`append`, `update`, `pop`), which the sandbox of `transformers` refuses.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// The widest field that a format may ask for: the engine would allocate any width at once, and panics at a precision of
/// more than 16 bits.
const MAX_FIELD_DIGITS: usize = 3;

/// How wide an indentation may be.
const MAX_INDENT: usize = 999;

/// Which ends of a string are stripped.
#[derive(Clone, Copy)]
enum Ends {
    Both,
    Start,
    End,
}

/// Calls a method that the engine does not know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return call_on_container(state, value, method, args);
    };
    match method {
        "strip" => strip(value, text, args, Ends::Both),
        "lstrip" => strip(value, text, args, Ends::Start),
        "rstrip" => strip(value, text, args, Ends::End),
        "split" if args.is_empty() => {
            Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect())
        }
        "rsplit" => rsplit(text, args),
        "splitlines" => split_lines(text, args),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "format" if has_wide_field(text) => Err(too_wide()),
        "join" => join(state, text, args),
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// The `format` filter.
pub(super) fn format(state: &mut State, text: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    match text.as_str() {
        Some(text) if has_wide_conversion(text) => Err(too_wide()),
        _ => minijinja::filters::format(state, text, args),
    }
}

/// The `trim` filter.
pub(super) fn trim(value: &Value, characters: Option<Value>) -> Result<Value, Error> {
    let printed;
    let text = match value.as_str() {
        Some(text) => text,
        None if value.is_undefined() => "",
        None => {
            printed = value.to_string();
            &printed
        }
    };
    strip(value, text, characters.as_slice(), Ends::Both)
}

/// The `indent` filter: `width` (4, or a text), `first`, `blank`.
pub(super) fn indent(state: &State, value: &Value, by_place: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(by_place.get(place).cloned().or(kwargs.get(name)?))
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (first, blank) = (is_true(argument(1, "first")?), is_true(argument(2, "blank")?));
    let indent = indentation(argument(0, "width")?)?;
    kwargs.assert_all_used()?;
    let text = value.as_str().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "indent: not a string"))?;
    let mut out = String::new();
    for (number, (line, _)) in lines(&format!("{text}\n")).enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if if number == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&indent);
        }
        out.push_str(line);
        state.consume_fuel((line.len() + indent.len()) as u64 / 64 + 1)?;
    }
    Ok(out)
}

fn indentation(width: Option<Value>) -> Result<String, Error> {
    let Some(width) = width else { return Ok(" ".repeat(4)) };
    if let Some(text) = width.as_str() {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(width)?;
    match usize::try_from(width.max(0)) {
        Ok(width) if width <= MAX_INDENT => Ok(" ".repeat(width)),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "indent: at most 999 blanks")),
    }
}

fn call_on_container(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "index" && value.kind() == ValueKind::Seq {
        let (wanted,): (&Value,) = from_args(args)?;
        let position = value.try_iter()?.position(|item| item == *wanted);
        return position.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "not in the list"));
    }
    unknown_method_callback(state, value, method, args)
}

/// Python joins strings only.
fn join(state: &State, separator: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (position, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = item
            .as_str()
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("join: a {} is no string", item.kind())))?;
        if position > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
        state.consume_fuel((separator.len() + text.len()) as u64 / 64 + 1)?;
    }
    Ok(Value::from(out))
}

/// The text of a value without its ends. One that loses nothing is handed on rather than copied.
fn strip(value: &Value, text: &str, args: &[Value], ends: Ends) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(args)?;
    let dropped = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let stripped = match ends {
        Ends::Both => text.trim_matches(dropped),
        Ends::Start => text.trim_start_matches(dropped),
        Ends::End => text.trim_end_matches(dropped),
    };
    let keeps_all = stripped.len() == text.len() && value.as_str().is_some() && !value.is_safe();
    Ok(if keeps_all { value.clone() } else { Value::from(stripped) })
}

/// `str.strip()`.
pub(super) fn strip_both(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip()`.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, at_most): (&str, Option<i64>) = from_args(args)?;
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "rsplit: the separator is empty"));
    }
    let pieces = match at_most.map(usize::try_from) {
        Some(Ok(at_most)) => at_most.saturating_add(1),
        _ => usize::MAX,
    };
    let mut parts: Vec<Value> = text.rsplitn(pieces, separator).map(Value::from).collect();
    parts.reverse();
    Ok(Value::from(parts))
}

fn split_lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep_ends,): (Option<bool>,) = from_args(args)?;
    let keep_ends = keep_ends.unwrap_or(false);
    Ok(lines(text).map(|(line, whole)| Value::from(if keep_ends { whole } else { line })).collect())
}

/// The lines of a text, each without and with its end.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.find(is_line_break).unwrap_or(rest.len());
        let after = match rest.get(end..) {
            Some(tail) if tail.starts_with("\r\n") => end + 2,
            Some(tail) => end + tail.chars().next().map_or(0, char::len_utf8),
            None => end,
        };
        let (line, whole) = (rest.get(..end)?, rest.get(..after)?);
        rest = rest.get(after..)?;
        Some((line, whole))
    })
}

/// `str.isspace()`: Unicode's white space, and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

fn is_line_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn too_wide() -> Error {
    Error::new(ErrorKind::InvalidOperation, "format: a field may be at most 999 wide and not computed")
}

/// The same of a format for `%`.
fn has_wide_conversion(format: &str) -> bool {
    let is_of_specification = |character: &char| matches!(character, '0'..='9' | '.' | '*' | '#' | '-' | '+' | ' ');
    let is_wide = |specification: &str| {
        let mut digits = 0;
        specification.chars().take_while(is_of_specification).any(|character| {
            digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
            digits > MAX_FIELD_DIGITS || character == '*'
        })
    };
    // A conversion may begin with a key in parentheses, which may hold some: each may be the last.
    let mut conversions = format.split('%').skip(1);
    conversions.any(|conversion| {
        is_wide(conversion) || (conversion.starts_with('(') && conversion.split(')').skip(1).any(is_wide))
    })
}

/// Whether a format string has a width or precision of four digits or more, or one that is itself a field.
fn has_wide_field(format: &str) -> bool {
    let mut digits = 0;
    let mut in_specification = false;
    for character in format.chars() {
        digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
        match character {
            ':' => in_specification = true,
            '{' if in_specification => return true,
            '{' | '}' => in_specification = false,
            _ => {}
        }
        if in_specification && digits > MAX_FIELD_DIGITS {
            return true;
        }
    }
    false
}
