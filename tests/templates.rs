//! Chat templates against reference renders: ours, and any files named in `WARMROUTE_TOKENIZER_CASES`.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test says so by panicking, helpers included")]

#[path = "templates/rows.rs"]
mod rows;

use std::collections::HashMap;

use rows::Report;

#[test]
fn renders_are_those_of_the_reference() {
    let mut mismatched = 0;
    let mut total = 0;
    for file in std::env::var("WARMROUTE_TOKENIZER_CASES").unwrap_or_default().split(':').filter(|s| !s.is_empty()) {
        let report = Report::of(&std::fs::read_to_string(file).unwrap(), HashMap::new());
        report.mismatched.iter().for_each(|line| println!("{line}"));
        total += report.rows;
        mismatched += report.mismatched.len();
    }
    println!("templates: {total} rows, {mismatched} mismatched");
    assert_eq!(mismatched, 0);
}
