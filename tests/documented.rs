//! What the pages name exists, and what exists is on a page: settings of the plugin, metrics of the filter, reason codes,
//! details, headers, targets of make, tests of faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test says so by panicking, helpers included")]

#[path = "documented/words.rs"]
mod words;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use warmroute::config::FilterConfig;

/// A field that no section has.
const UNKNOWN: &str = "zzz";
/// Sections whose fields are an operator's own names.
const NAMED_FREELY: [&str; 2] = ["quotas", "policies"];

/// The cells of the first column of a page's tables.
fn first_column(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).filter(|cell| cell.contains('`'))
}

/// The names in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The fields that a section of the plugin's configuration has; none if it is no section. `wrap` puts the section's value in
/// its place.
fn known(path: &str, wrap: impl Fn(Value) -> Value) -> Option<Vec<String>> {
    let config = wrap(json!({ UNKNOWN: 1 }));
    let problems = FilterConfig::from_json(config.to_string().as_bytes()).err()?;
    let prefix = if path.is_empty() { UNKNOWN.to_owned() } else { format!("{path}.{UNKNOWN}") };
    let lines = problems.iter().map(ToString::to_string);
    let mut lists = lines.filter(|line| line.starts_with(&format!("{prefix} is 1, ")));
    let list = lists.find_map(|line| Some(line.split_once("known are ")?.1.to_owned()))?;
    Some(list.split(", ").map(str::to_owned).collect())
}

/// Every setting by its path; those of a policy begin with `…`.
fn settings() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for field in known("", |section| section).unwrap() {
        if NAMED_FREELY.contains(&field.as_str()) {
            all.insert(format!("{field}.<tenant>"));
            continue;
        }
        let nested = known(&field, |section| json!({ field.as_str(): section }));
        let listed = known(&format!("{field}[0]"), |section| json!({ field.as_str(): [section] }));
        let (prefix, fields) = match (nested, listed) {
            // What a path's entry may be is in its own row.
            _ if field == "paths" => (String::new(), vec!["paths".to_owned()]),
            (Some(fields), _) if field == "policy" => {
                all.insert(field.clone());
                ("…".to_owned(), fields)
            }
            (Some(fields), _) => (format!("{field}."), fields),
            (None, Some(fields)) => (format!("{field}[]."), fields),
            (None, None) => (String::new(), vec![field.clone()]),
        };
        for name in fields {
            let inner =
                known(&format!("{field}.{name}"), |section| json!({ field.as_str(): { name.as_str(): section } }));
            match inner {
                Some(names) => all.extend(names.iter().map(|inner| format!("{prefix}{name}.{inner}"))),
                None => {
                    all.insert(format!("{prefix}{name}"));
                }
            }
        }
    }
    all
}

/// The settings in a page's first column, where `.b` after `a.x` is `a.b`.
fn documented_settings(page: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for cell in first_column(page) {
        let mut section = "";
        for name in quoted(cell) {
            match name.strip_prefix('.') {
                Some(rest) => all.insert(format!("{section}.{rest}")),
                None => {
                    section = name.rsplit_once('.').map_or("", |(section, _)| section);
                    all.insert(name.to_owned())
                }
            };
        }
    }
    all
}

#[test]
fn every_setting_of_the_plugin_is_on_its_page_and_no_other() {
    let page = include_str!("../docs/configuration.md");
    let (settings_page, _) = page.split_once("## What a request may carry").unwrap();
    let (there_are, documented) = (settings(), documented_settings(settings_page));
    assert!(there_are.len() > 40, "{there_are:?}");
    assert_eq!(there_are.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "not on the page");
    assert_eq!(documented.difference(&there_are).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the plugin");
    let readme = include_str!("../README.md").split_once("### Plugin configuration").unwrap().1;
    let readme = documented_settings(readme.split_once("\n## ").unwrap().0);
    assert!(readme.len() > 10 && readme.is_subset(&documented), "{:?}", readme.difference(&documented));
}

/// Every name of that prefix in string literals of a file or folder.
fn named_in(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        path.read_dir().unwrap().for_each(|entry| named_in(&entry.unwrap().path(), found));
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    for prefix in ["warmroute_", "inferencecache_lookup_"] {
        for (at, _) in text.match_indices(&format!("\"{prefix}")) {
            let is_part = |character: &char| character.is_ascii_lowercase() || *character == '_';
            let name: String = text.get(at + 1..).unwrap().chars().take_while(is_part).collect();
            found.insert(name.trim_end_matches('_').to_owned());
        }
    }
}

/// The metrics in a page's first column, where `_b` after `a_x` is `a_b`.
fn documented_metrics(page: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for cell in first_column(page) {
        let mut prefix = "";
        for name in quoted(cell) {
            prefix = if name.starts_with('_') { prefix } else { name.split('_').next().unwrap() };
            all.insert(if name.starts_with('_') { format!("{prefix}{name}") } else { name.to_owned() });
        }
    }
    all
}

#[test]
fn every_metric_of_the_filter_is_on_its_page_and_no_other() {
    let mut there_are = BTreeSet::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/flow");
    named_in(&source.join("metrics.rs"), &mut there_are);
    named_in(&source.join("metrics"), &mut there_are);
    let page = include_str!("../docs/metrics.md");
    let documented = documented_metrics(page.split_once("## The hub's").map_or(page, |(filter, _)| filter));
    assert!(there_are.len() > 40, "{there_are:?}");
    assert_eq!(there_are.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "not on the page");
    assert_eq!(documented.difference(&there_are).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the filter");
    let readme = include_str!("../README.md").split_once("## Metrics").unwrap().1;
    let readme = documented_metrics(readme.split_once("\n## ").unwrap().0);
    assert!(readme.len() > 5 && readme.is_subset(&documented), "{:?}", readme.difference(&documented));
}

/// The tests in the files of a folder under `tests`, as `file::test`.
fn tests_in(folder: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).read_dir().unwrap() {
        let path = entry.unwrap().path();
        let Some(file) = path.extension().filter(|kind| *kind == "rs").and(path.file_stem()) else { continue };
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines() {
            let name = line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split('(').next());
            if let (true, Some(name)) = (is_test, name) {
                all.insert(format!("{}::{name}", file.to_str().unwrap()));
            }
            is_test =
                line.starts_with("#[tokio::test") || line.starts_with("#[test]") || (is_test && line.starts_with('#'));
        }
    }
    all
}

#[test]
fn every_fault_has_a_test_that_there_is_and_every_such_test_is_on_the_page() {
    let page = include_str!("../docs/faults.md");
    let readme =
        include_str!("../README.md").split_once("## When things fail").unwrap().1.split_once("\n## ").unwrap().0;
    let lines = page.lines().chain(readme.lines());
    let rows = lines.filter(|line| line.starts_with("| ") && !line.starts_with("| Fault "));
    let fail_open = tests_in("fail_open");
    let elsewhere: BTreeSet<String> = ["e2e", "e2e/text", "hub"].into_iter().flat_map(tests_in).collect();
    let mut named = BTreeSet::new();
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let tests: Vec<&str> = quoted(cell).collect();
        assert!(!tests.is_empty(), "no test: {row}");
        named.extend(tests);
    }
    let there_are: BTreeSet<&str> = fail_open.iter().chain(&elsewhere).map(String::as_str).collect();
    let fail_open: BTreeSet<&str> = fail_open.iter().map(String::as_str).collect();
    assert!(named.len() > 30 && fail_open.len() > 15, "{named:?}");
    assert_eq!(named.difference(&there_are).collect::<Vec<_>>(), Vec::<&&str>::new(), "no such test");
    assert_eq!(fail_open.difference(&named).collect::<Vec<_>>(), Vec::<&&str>::new(), "not on the page");
}
