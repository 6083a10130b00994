//! The template engine, set up as `transformers` sets up Jinja2 for chat templates.
//!
//! `transformers` renders in an `ImmutableSandboxedEnvironment` with `trim_blocks`, `lstrip_blocks`, loop controls, no
//! escaping, its own `tojson`, `raise_exception` and `strftime_now` (transformers 5.24, `utils/chat_template_utils.py`).
//! What Jinja2 takes from Python is written in Python's way here: how values print, JSON, white space, string methods.
//! Fuel bounds the work and the memory of a render, and a limit of the engine its recursion.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use super::operands::ESCAPED;
use super::python::{MAX_NESTING, is_namespace, no_text, too_deep, write_str};
use super::source::{ITERATED, STORED};
use super::{InvalidTemplate, Limits, dumps, methods};

/// How deep macros, loops and blocks may nest at run time, in the engine's own units: a macro call costs several.
const MAX_RECURSION: usize = 120;

/// An environment without a template.
pub(super) fn environment(limits: Limits) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(limits.fuel));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        if let Some(text) = value.as_str() {
            return out.write_str(text).map_err(Error::from);
        }
        out.write_str(&text_of(state, value)?).map_err(Error::from)
    });
    environment.add_filter("tojson", dumps::tojson);
    environment.add_filter("string", |state: &State, value: &Value| match value.as_str() {
        Some(_) => Ok(value.clone()),
        None => text_of(state, value).map(Value::from),
    });
    environment.add_filter("join", join);
    environment.add_filter("format", methods::format);
    environment.add_filter("trim", methods::trim);
    environment.add_filter("indent", methods::indent);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter(ESCAPED, |state: &State, value: &Value| match value.as_str() {
        Some(_) => escape(state, value),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("a {} cannot be added to a string", value.kind()))),
    });
    environment.add_filter(STORED, |state: &State, value: &Value| {
        let mut visited = 0;
        let stored = stored(value, 0, &mut visited);
        state.consume_fuel(visited / 4)?;
        stored
    });
    environment.add_filter(ITERATED, |value: &Value| match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("a {} cannot be iterated over", value.kind())))
        }
        _ => Ok(value.clone()),
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable | ValueKind::Undefined
        )
    });
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let mut text = String::new();
        write_str(&mut text, message)?;
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    // It would print the whole conversation into the prompt; Jinja2 has it only as an extension.
    environment.remove_global("debug");
    environment
}

/// How `transformers` has tags take the white space around them.
pub(super) fn syntax() -> Result<SyntaxConfig, InvalidTemplate> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(InvalidTemplate::from)
}

fn text_of(state: &State, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write_str(&mut text, value)?;
    state.consume_fuel(text.len() as u64 / 8)?;
    Ok(text)
}

/// The `join` filter: each item as `str()` writes it.
fn join(
    state: &State,
    values: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let separator = match separator.or(kwargs.get("d")?) {
        Some(value) => text_of(state, &value)?,
        None => String::new(),
    };
    let attribute = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let mut out = String::new();
    for (position, item) in values.try_iter()?.checked().enumerate() {
        let mut item = item?;
        if let Some(attribute) = &attribute {
            item = item.get_item(attribute)?;
        }
        let before = out.len();
        if position > 0 {
            out.push_str(&separator);
        }
        write_str(&mut out, &item)?;
        let written = out.len().saturating_sub(before) as u64;
        state.consume_fuel((written / 32).saturating_add(1))?;
    }
    Ok(out)
}

/// The `escape` filter, as MarkupSafe escapes.
fn escape(state: &State, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = text_of(state, value)?;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// A value as a namespace may keep it: data alone, of bounded depth, nothing lazy. A namespace inside a namespace could
/// hold itself, which would never be freed.
fn stored(value: &Value, depth: usize, visited: &mut u64) -> Result<Value, Error> {
    *visited = visited.saturating_add(1);
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Seq => {
            for item in value.try_iter()?.checked() {
                stored(&item?, depth.saturating_add(1), visited)?;
            }
            Ok(value.clone())
        }
        ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                items.push(stored(&item?, depth.saturating_add(1), visited)?);
            }
            Ok(Value::from(items))
        }
        ValueKind::Map if !is_namespace(value) => {
            for key in value.try_iter()?.checked() {
                stored(&value.get_item(&key?)?, depth.saturating_add(1), visited)?;
            }
            Ok(value.clone())
        }
        ValueKind::Map | ValueKind::Plain | ValueKind::Invalid => Err(no_text(value)),
        _ => Ok(value.clone()),
    }
}
