//! Chat templates against reference renders of `transformers` and Jinja2.
//!
//! Three sources: `templates/rows.jsonl`, templates and conversations of ours; `templates/packages.jsonl`, the same
//! conversations through the templates of real models, where `scripts/templates.py` could fetch them; and any files of
//! that shape named in `WARMROUTE_TOKENIZER_CASES`, separated by colons. The last line that is printed says how many
//! renders were compared and how many differ.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test says so by panicking, helpers included")]

#[path = "templates/rows.rs"]
mod rows;

use std::collections::HashMap;
use std::path::PathBuf;

use rows::Report;

const OURS: &str = include_str!("templates/rows.jsonl");
const PACKAGES: &str = include_str!("templates/packages.jsonl");

#[test]
fn renders_are_those_of_the_reference() {
    let fetched = fetched_templates();
    if fetched.is_empty() {
        println!("templates: those of real models are left out, `python3 scripts/templates.py` fetches them");
    }
    let mut reports = vec![Report::of(&[OURS, PACKAGES], fetched)];
    let named = std::env::var("WARMROUTE_TOKENIZER_CASES").unwrap_or_default();
    for file in named.split(':').filter(|file| !file.is_empty()) {
        let rows = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        reports.push(Report::of(&[&rows], HashMap::new()));
    }
    let lines = |pick: fn(&Report) -> &Vec<String>| reports.iter().flat_map(pick).cloned().collect::<Vec<String>>();
    let (known, mismatched) = (lines(|report| &report.known), lines(|report| &report.mismatched));
    known.iter().for_each(|line| println!("known: {line}"));
    mismatched.iter().for_each(|line| println!("MISMATCH: {line}"));
    let rows: usize = reports.iter().map(|report| report.rows).sum();
    println!("templates: {rows} rows, {} mismatched", mismatched.len());
    assert!(mismatched.is_empty(), "{} renders differ from the reference", mismatched.len());
}

/// The templates in the cache folder of `scripts/templates.py`, by file name.
fn fetched_templates() -> HashMap<String, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap_or_default();
    let Ok(entries) = std::fs::read_dir(cache.join("warmroute/templates")) else { return HashMap::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap()))
        .collect()
}
