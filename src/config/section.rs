//! Reading a JSON object field by field, with every problem noted and a usable value returned all the same.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::{ConfigError, duration};

/// The problems found so far.
#[derive(Default)]
pub(super) struct Problems(Vec<ConfigError>);

/// One object of the configuration, and which of its fields have been asked for.
///
/// A field that is absent or wrong reads as its default; a wrong one is also noted as a problem, so the configuration
/// that comes out is used only if there was none.
pub(super) struct Section<'a> {
    path: String,
    fields: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
}

// === impl Problems ===

impl Problems {
    pub(super) fn note(&mut self, field: impl Into<String>, value: Option<&Value>, allowed: impl Into<String>) {
        self.0.push(ConfigError::new(field, value, allowed));
    }

    /// The same, of a value that nobody may see.
    pub(super) fn note_unseen(&mut self, field: impl Into<String>, allowed: impl Into<String>) {
        self.0.push(ConfigError { field: field.into(), value: "not shown".to_owned(), allowed: allowed.into() });
    }

    /// `config`, if there was no problem.
    pub(super) fn or<T>(self, config: T) -> Result<T, Vec<ConfigError>> {
        if self.0.is_empty() { Ok(config) } else { Err(self.0) }
    }
}

// === impl Section ===

impl<'a> Section<'a> {
    pub(super) fn root(value: &'a Value, problems: &mut Problems) -> Section<'a> {
        Section::at(String::new(), Some(value), problems)
    }

    /// The object `value` at `path`; absent reads as an object without fields.
    pub(super) fn at(path: String, value: Option<&'a Value>, problems: &mut Problems) -> Section<'a> {
        let fields = value.and_then(Value::as_object);
        if let (Some(value), None) = (value, fields) {
            problems.note(path.clone(), Some(value), "an object");
        }
        Section { path, fields, known: Vec::new() }
    }

    /// The path of the field `name`.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The value of `name`, `null` included.
    pub(super) fn take_nullable(&mut self, name: &'static str) -> Option<&'a Value> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.fields.and_then(|fields| fields.get(name))
    }

    /// The value of `name`; `null` is absent.
    pub(super) fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.take_nullable(name).filter(|value| !value.is_null())
    }

    /// The fields, where their names are data.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.fields.into_iter().flatten()
    }

    pub(super) fn section(&mut self, name: &'static str, problems: &mut Problems) -> Section<'a> {
        Section::at(self.path_of(name), self.take(name), problems)
    }

    pub(super) fn list(&mut self, name: &'static str, allowed: &str, problems: &mut Problems) -> Option<&'a [Value]> {
        let value = self.take(name)?;
        let list = value.as_array().map(Vec::as_slice);
        if list.is_none() {
            problems.note(self.path_of(name), Some(value), allowed);
        }
        list
    }

    pub(super) fn boolean(&mut self, name: &'static str, default: bool, problems: &mut Problems) -> bool {
        let Some(value) = self.take(name) else { return default };
        value.as_bool().unwrap_or_else(|| {
            problems.note(self.path_of(name), Some(value), "true or false");
            default
        })
    }

    pub(super) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        default: u64,
        problems: &mut Problems,
    ) -> u64 {
        let Some(value) = self.take(name) else { return default };
        self.whole_number(name, value, range, problems).unwrap_or(default)
    }

    /// `value`, which stands at `name`, if it is a whole number in the range.
    pub(super) fn whole_number(
        &self,
        name: &str,
        value: &Value,
        range: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let number = whole_number(value).filter(|number| range.contains(number));
        if number.is_none() {
            let allowed = format!("a whole number from {} to {}", range.start(), range.end());
            problems.note(self.path_of(name), Some(value), allowed);
        }
        number
    }

    /// A duration as Go writes it, in ms. The range must end at whole hours.
    pub(super) fn duration_ms(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let value = self.take(name)?;
        let duration_ms = value.as_str().and_then(duration::go_duration_ms).filter(|ms| range.contains(ms));
        if duration_ms.is_none() {
            let (least, days) = (range.start(), range.end() / duration::DAY_MS);
            let allowed = format!(
                "a duration such as \"30m\" or \"1h30m\", from {least}ms to {}h ({days} days)",
                days.saturating_mul(24)
            );
            problems.note(self.path_of(name), Some(value), allowed);
        }
        duration_ms
    }

    /// As [`Section::integer`], for ranges within u32.
    pub(super) fn integer_u32(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        default: u32,
        problems: &mut Problems,
    ) -> u32 {
        u32::try_from(self.integer(name, range, u64::from(default), problems)).unwrap_or(default)
    }

    /// A whole number that may be negative.
    pub(super) fn integer_i32(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i32>,
        default: i32,
        problems: &mut Problems,
    ) -> i32 {
        let Some(value) = self.take(name) else { return default };
        let whole = value.as_f64().filter(|number| number.fract() == 0.0);
        let number = whole.filter(|number| (f64::from(*range.start())..=f64::from(*range.end())).contains(number));
        match number {
            // In the range of an i32, and whole.
            Some(number) => number as i32,
            None => {
                let allowed = format!("a whole number from {} to {}", range.start(), range.end());
                problems.note(self.path_of(name), Some(value), allowed);
                default
            }
        }
    }

    pub(super) fn float(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
        default: f32,
        problems: &mut Problems,
    ) -> f32 {
        self.optional_float(name, range, problems).unwrap_or(default)
    }

    pub(super) fn optional_float(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
        problems: &mut Problems,
    ) -> Option<f32> {
        let value = self.take(name)?;
        let number = value.as_f64().filter(|number| range.contains(number));
        if number.is_none() {
            let allowed = format!("a number from {} to {}", range.start(), range.end());
            problems.note(self.path_of(name), Some(value), allowed);
        }
        number.map(|number| number as f32)
    }

    /// One of a few texts, each of which stands for a value.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
        default: T,
        problems: &mut Problems,
    ) -> T {
        let Some(value) = self.take(name) else { return default };
        let chosen = choices.iter().find(|(text, _)| value.as_str() == Some(text));
        if chosen.is_none() {
            let texts: Vec<String> = choices.iter().map(|(text, _)| format!("\"{text}\"")).collect();
            problems.note(self.path_of(name), Some(value), texts.join(" or "));
        }
        chosen.map_or(default, |(_, chosen)| *chosen)
    }

    /// A text that is not empty.
    pub(super) fn text(&mut self, name: &'static str, problems: &mut Problems) -> Option<String> {
        let value = self.take(name)?;
        let text = non_empty(value);
        if text.is_none() {
            problems.note(self.path_of(name), Some(value), "a text that is not empty");
        }
        text
    }

    /// A text that is not empty and must be there; empty after a problem.
    pub(super) fn required_text(&mut self, name: &'static str, problems: &mut Problems) -> String {
        let value = self.take(name);
        value.and_then(non_empty).unwrap_or_else(|| {
            problems.note(self.path_of(name), value, "a text that is not empty");
            String::new()
        })
    }

    /// A text that must be there and can only be this one.
    pub(super) fn constant(&mut self, name: &'static str, text: &str, problems: &mut Problems) {
        let value = self.take(name);
        if value.and_then(Value::as_str) != Some(text) {
            problems.note(self.path_of(name), value, format!("\"{text}\""));
        }
    }

    /// A list of texts that are not empty.
    pub(super) fn texts(&mut self, name: &'static str, problems: &mut Problems) -> Option<Vec<String>> {
        let values = self.list(name, "a list of texts", problems)?;
        let texts = values.iter().enumerate().filter_map(|(place, value)| {
            let text = non_empty(value);
            if text.is_none() {
                problems.note(format!("{}[{place}]", self.path_of(name)), Some(value), "a text that is not empty");
            }
            text
        });
        Some(texts.collect())
    }

    /// Notes the fields that were never asked for.
    pub(super) fn finish(self, problems: &mut Problems) {
        for (name, value) in self.entries().filter(|(name, _)| !self.known.contains(&name.as_str())) {
            let allowed = format!("no such field; known are {}", self.known.join(", "));
            // It may be a token whose name is misspelt.
            if name.contains("tok") {
                problems.note_unseen(self.path_of(name), allowed);
            } else {
                problems.note(self.path_of(name), Some(value), allowed);
            }
        }
    }
}

fn non_empty(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The number, if it is whole and not negative, however it is written.
fn whole_number(value: &Value) -> Option<u64> {
    /// Above this, a float no longer tells neighbours apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
    })
}
