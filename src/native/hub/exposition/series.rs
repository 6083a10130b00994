//! What follows a metric's name in a line of Prometheus text: labels, a value, and maybe a timestamp.

/// One series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Series {
    /// Its value, finite.
    pub(super) value: f64,
    /// The data-parallel rank that it is of.
    pub(super) rank: Option<u32>,
    /// Whether it is about the requests of one priority only.
    pub(super) is_of_one_priority: bool,
}

// === impl Series ===

impl Series {
    /// `{labels} value timestamp`, if it is that and the value finite.
    pub(super) fn parse(rest: &str) -> Option<Series> {
        let mut series = Series { value: 0.0, rank: None, is_of_one_priority: false };
        let rest = match rest.strip_prefix('{') {
            Some(labels) => series.take_labels(labels)?,
            None => rest,
        };
        let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some(Series { value, ..series })
    }

    /// Takes the labels after an opening brace; what follows the closing one.
    fn take_labels<'a>(&mut self, labels: &'a str) -> Option<&'a str> {
        let mut rest = labels;
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if let Some(after) = rest.strip_prefix('}') {
                return Some(after);
            }
            let (name, after) = rest.split_once('=')?;
            let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
            match name.trim_end() {
                "engine" | "dp_rank" => self.rank = value.parse().ok(),
                "priority" => self.is_of_one_priority = !value.is_empty(),
                _ => {}
            }
            rest = after;
        }
    }
}

/// What stands before the closing quote, escapes and all, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            // A quote is one byte, so this is between characters.
            b'"' => return Some((text.get(..at)?, text.get(at + 1..)?)),
            _ => {}
        }
    }
    None
}
