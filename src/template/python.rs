//! Values as Python's `str()` and `repr()` write them.
//!
//! In: any template value. Out: text, byte for byte what CPython 3.11 writes for the same data, as chat templates were
//! written for Jinja2, which prints with `str()`. Objects that have no such text in Python without a memory address
//! (namespaces, macros, functions) are refused. Values nested deeper than [`MAX_NESTING`] are refused, so that a value
//! that a template has built costs a bounded stack.
//!
//! Slices and lazy filters have no type of their own in the template engine: they are written as lists, which is what
//! slices are in Python; a generator there would print an address.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// How deeply a value may be nested to be written or stored. JSON of a request may be nested 128 deep.
pub(super) const MAX_NESTING: usize = 160;

/// Appends `str(value)`. An undefined value is the empty text, as in Jinja2.
pub(super) fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(out, value, 0)?,
    }
    Ok(())
}

/// `repr(float)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
pub(super) fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Rust's debug form has the same thresholds; Python signs the exponent and gives it two digits.
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |negative| ('-', negative));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

/// The float that a value is; `None` for whole numbers and all else.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// An error for values that are nested too deeply to be handled.
pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {MAX_NESTING} deep"))
}

/// An error for a value that Python would write in a way that cannot be foreseen, or not at all.
pub(super) fn no_text(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a {} has no text", value.kind()))
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match as_float(value) {
            Some(number) => out.push_str(&float_text(number)),
            None => write_display(out, value),
        },
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq if value.is_tuple() => write_tuple(out, value, depth)?,
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            write_items(out, value, depth)?;
            out.push(']');
        }
        ValueKind::Map if !is_namespace(value) => write_map(out, value, depth)?,
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => return Err(no_text(value)),
    }
    Ok(())
}

fn write_display(out: &mut String, value: &Value) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{value}");
}

/// A tuple of one has a comma after its item.
fn write_tuple(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('(');
    let items = write_items(out, value, depth)?;
    out.push_str(if items == 1 { ",)" } else { ")" });
    Ok(())
}

fn write_items(out: &mut String, value: &Value, depth: usize) -> Result<usize, Error> {
    let mut items = 0_usize;
    for item in value.try_iter()?.checked() {
        if items > 0 {
            out.push_str(", ");
        }
        write_repr(out, &item?, depth.saturating_add(1))?;
        items = items.saturating_add(1);
    }
    Ok(items)
}

fn write_map(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    for (position, key) in value.try_iter()?.checked().enumerate() {
        let key = key?;
        if position > 0 {
            out.push_str(", ");
        }
        write_repr(out, &key, depth.saturating_add(1))?;
        out.push_str(": ");
        write_repr(out, &value.get_item(&key)?, depth.saturating_add(1))?;
    }
    out.push('}');
    Ok(())
}

/// Whether a value is what `namespace()` returns: the engine shows it as a map, Python does not.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Appends `repr(str)`: single quotes, unless only double ones do without an escape.
fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => {
                out.push('\\');
                out.push(quote);
            }
            ' '..='~' => out.push(character),
            _ if is_printable(character) => out.push(character),
            _ => escape(out, u32::from(character)),
        }
    }
    out.push(quote);
}

fn escape(out: &mut String, code: u32) {
    // Writing to a String cannot fail.
    let _ = match code {
        0..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// `str.isprintable()` of a character outside ASCII. The standard library's table for debug output follows the same
/// rule (neither control, format, surrogate, private, unassigned nor separator), save that it escapes combining marks
/// at the start of a string.
fn is_printable(character: char) -> bool {
    let mut text = String::with_capacity(5);
    text.push('a');
    text.push(character);
    text.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: impl Into<Value>) -> String {
        let mut out = String::new();
        write_str(&mut out, &value.into()).unwrap();
        out
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let pairs = [
            (1e20, "1e+20"),
            (1e-7, "1e-07"),
            (1.5e-7, "1.5e-07"),
            (1.0, "1.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e100, "1e+100"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (number, expected) in pairs {
            assert_eq!(float_text(number), expected);
        }
    }

    #[test]
    fn strings_stand_alone_as_they_are_and_inside_containers_quoted() {
        assert_eq!(text("it's"), "it's");
        assert_eq!(text(vec!["it's", "say \"hi\"", "both ' \"", "a\\b\n\t\r"]), {
            r#"["it's", 'say "hi"', 'both \' "', 'a\\b\n\t\r']"#
        });
        assert_eq!(text(vec!["é中\u{301}😀\u{7f}\u{a0}\u{200b}\u{feff}\u{e000}\u{e0001}\0"]), {
            "['é中\u{301}😀\\x7f\\xa0\\u200b\\ufeff\\ue000\\U000e0001\\x00']"
        });
        assert_eq!(text(vec![Value::from(true), Value::from(()), Value::from(1.0)]), "[True, None, 1.0]");
    }

    #[test]
    fn deep_values_are_refused() {
        let mut value = Value::from(1);
        for _ in 0..=MAX_NESTING {
            value = Value::from(vec![value]);
        }
        assert!(write_str(&mut String::new(), &value).is_err());
    }
}
