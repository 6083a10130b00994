//! Reads the Prometheus text format, as far as Envoy, the hub and the engines write it.
//!
//! Comments and lines that are not `name{labels} value` are passed over: a scrape is for looking at, never for deciding.

use std::collections::BTreeMap;

/// One scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape(Vec<Sample>);

/// One line of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

// === impl Scrape ===

impl Scrape {
    /// Reads a scrape.
    pub fn parse(text: &str) -> Scrape {
        Scrape(text.lines().filter_map(Sample::parse).collect())
    }

    /// Every sample of that name whose labels include these.
    pub fn find<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name && sample.has(labels))
    }

    /// The sum of those samples; 0 if there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).map(|sample| sample.value).sum()
    }
}

// === impl Sample ===

impl Sample {
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(label, value)| self.labels.get(*label).is_some_and(|found| found == value))
    }

    fn parse(line: &str) -> Option<Sample> {
        if line.starts_with('#') {
            return None;
        }
        let name_end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at_checked(name_end)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => parse_labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        // A timestamp may follow the value.
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Sample { name: name.to_owned(), labels, value })
    }
}

/// The labels after an opening brace, and what follows the closing one.
fn parse_labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(name.to_owned(), value);
        rest = after;
    }
}

/// A label's value with its escapes undone, and what follows its closing quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_name_and_labels() {
        let text = "# TYPE calls counter\ncalls{model=\"a/b:8b\",code=\"X\"} 3\ncalls{model=\"a/b:8b\",code=\"Y\"} 4\nup 1 1700\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.sum("calls", &[]), 7.0);
        assert_eq!(scrape.sum("calls", &[("code", "Y"), ("model", "a/b:8b")]), 4.0);
        assert_eq!(scrape.sum("calls", &[("code", "Z")]), 0.0);
        assert_eq!(scrape.sum("up", &[]), 1.0);
    }

    #[test]
    fn label_values_with_escapes_and_none_at_all() {
        let scrape = Scrape::parse("m{a=\"q\\\"b\\\\\",} 1\nm{} 2\nbroken{a=\"x 1\nname\n");
        assert_eq!(scrape.sum("m", &[("a", "q\"b\\")]), 1.0);
        assert_eq!(scrape.sum("m", &[]), 3.0);
        assert_eq!(scrape.find("broken", &[]).count(), 0);
    }
}
