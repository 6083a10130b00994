//! `json.dumps`: the `tojson` filter as Hugging Face's `transformers` defines it for chat templates.
//!
//! In: a template value and Python's arguments `ensure_ascii` (false by default here), `indent`, `separators`,
//! `sort_keys`. Out: the text that CPython writes, key order kept, `", "` and `": "` between items. Never escapes HTML.
//! Undefined values, namespaces and functions are refused, as in Python.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::{MAX_NESTING, as_float, float_text, is_namespace, no_text, too_deep};

/// How wide an indentation may be.
const MAX_INDENT: usize = 64;

/// The layout of the text.
struct Layout {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The `tojson` filter: `ensure_ascii`, `indent`, `separators`, `sort_keys`, by place or by name.
pub(super) fn tojson(state: &State, value: &Value, by_place: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(by_place.get(place).cloned().or(kwargs.get(name)?).filter(|value| !value.is_none()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|value| value.is_true());
    let (indent, separators) = (argument(1, "indent")?, argument(2, "separators")?);
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|value| value.is_true());
    kwargs.assert_all_used()?;
    let layout = Layout::new(ensure_ascii, indent.as_ref(), separators.as_ref(), sort_keys)?;
    let mut out = String::new();
    layout.write(&mut out, value, 0)?;
    // The engine charges for the text; writing it took some ten times as long as copying it.
    state.consume_fuel(out.len() as u64 / 8)?;
    Ok(out)
}

// === impl Layout ===

impl Layout {
    fn new(
        ensure_ascii: bool,
        indent: Option<&Value>,
        separators: Option<&Value>,
        sort_keys: bool,
    ) -> Result<Layout, Error> {
        let indent = indent.map(indentation).transpose()?;
        let mut layout = Layout {
            ensure_ascii,
            item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
            key_separator: ": ".to_owned(),
            indent,
            sort_keys,
        };
        if let Some(pair) = separators {
            let items: Vec<Value> = pair.try_iter()?.collect();
            let [Some(item), Some(key)] = [items.first().and_then(Value::as_str), items.get(1).and_then(Value::as_str)]
            else {
                return Err(refused("separators must be two strings"));
            };
            layout.item_separator = item.to_owned();
            layout.key_separator = key.to_owned();
        }
        Ok(layout)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_NESTING {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number_text(value)),
            ValueKind::String => self.quote(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(out, value, depth)?,
            ValueKind::Map if !is_namespace(value) => self.write_map(out, value, depth)?,
            _ => return Err(no_text(value)),
        }
        Ok(())
    }

    fn write_list(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        out.push('[');
        let mut items = 0;
        for item in value.try_iter()?.checked() {
            self.before_item(out, items, depth);
            self.write(out, &item?, depth.saturating_add(1))?;
            items = items.saturating_add(1);
        }
        self.close(out, ']', items, depth);
        Ok(())
    }

    fn write_map(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = Vec::new();
        for key in value.try_iter()?.checked() {
            keys.push(key?);
        }
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (items, key) in keys.iter().enumerate() {
            self.before_item(out, items, depth);
            self.quote(out, &key_text(key)?);
            out.push_str(&self.key_separator);
            self.write(out, &value.get_item(key)?, depth.saturating_add(1))?;
        }
        self.close(out, '}', keys.len(), depth);
        Ok(())
    }

    fn before_item(&self, out: &mut String, items: usize, depth: usize) {
        if items > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(out, depth.saturating_add(1));
    }

    /// Closes a container; one without items stays on its line.
    fn close(&self, out: &mut String, bracket: char, items: usize, depth: usize) {
        if items > 0 {
            self.new_line(out, depth);
        }
        out.push(bracket);
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn quote(&self, out: &mut String, text: &str) {
        out.push('"');
        let mut written = 0;
        for (at, character) in text.char_indices() {
            let short = match character {
                '"' => "\\\"",
                '\\' => "\\\\",
                '\n' => "\\n",
                '\r' => "\\r",
                '\t' => "\\t",
                '\u{8}' => "\\b",
                '\u{c}' => "\\f",
                '\0'..='\x1f' => "",
                '\x7f'.. if self.ensure_ascii => "",
                _ => continue,
            };
            out.push_str(text.get(written..at).unwrap_or_default());
            written = at.saturating_add(character.len_utf8());
            if short.is_empty() {
                escape(out, character);
            } else {
                out.push_str(short);
            }
        }
        out.push_str(text.get(written..).unwrap_or_default());
        out.push('"');
    }
}

/// `\uXXXX`, as a pair of surrogates outside the basic plane.
fn escape(out: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

fn number_text(value: &Value) -> String {
    match as_float(value) {
        None => value.to_string(),
        Some(number) if number.is_nan() => "NaN".to_owned(),
        Some(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Some(number) => float_text(number),
    }
}

/// Python turns keys that are numbers, booleans and none into strings.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number_text(key)),
        _ => Err(refused("keys must be strings, numbers, booleans or none")),
    }
}

/// A number of spaces, or the text itself.
fn indentation(value: &Value) -> Result<String, Error> {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => {
            let width = i64::try_from(value.clone()).map_err(|_| refused("indent must be a number or a string"))?;
            " ".repeat(usize::try_from(width).unwrap_or(0).min(MAX_INDENT + 1))
        }
    };
    if text.len() > MAX_INDENT {
        return Err(refused("indent must be at most 64 wide"));
    }
    Ok(text)
}

fn refused(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
