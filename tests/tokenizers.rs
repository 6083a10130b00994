//! Token ids are those of the reference: every `ids` row of a case file, natively and on wasm32.
//!
//! `tests/tokenizers/cases.jsonl` holds small tokenizers that lie beside it and the ids of real models' tokenizers,
//! which `scripts/tokenizers.py` installs; rows of those that are not installed are skipped and told. The variable
//! `WARMROUTE_TOKENIZER_CASES` names another case file to replay too.
//!
//! ```text
//! scripts/tokenizers.py
//! cargo test --release --test tokenizers -- --nocapture
//! cargo test --release --target wasm32-unknown-unknown --test tokenizers
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "tokenizers/files.rs"]
mod files;
#[path = "tokenizers/replay.rs"]
mod replay;

use replay::replay;

/// Rows of the small tokenizers, which are always there.
const SMALL_ROWS: usize = 465;

#[cfg_attr(target_arch = "wasm32", wasm_bindgen_test::wasm_bindgen_test)]
#[cfg_attr(not(target_arch = "wasm32"), test)]
fn ids_are_those_of_the_reference() {
    compare(&files::beside("cases.jsonl"), SMALL_ROWS);
}

#[cfg_attr(target_arch = "wasm32", wasm_bindgen_test::wasm_bindgen_test)]
#[cfg_attr(not(target_arch = "wasm32"), test)]
fn ids_are_those_of_the_named_case_file() {
    match files::variable("WARMROUTE_TOKENIZER_CASES") {
        Some(path) => compare(&path, 0),
        None => files::say("skipped: WARMROUTE_TOKENIZER_CASES names no file"),
    }
}

fn compare(case_file: &str, at_least: usize) {
    let outcome = replay(case_file);
    for name in &outcome.skipped {
        files::say(&format!("skipped: {name} is not installed, scripts/tokenizers.py {name} does it"));
    }
    for mismatch in &outcome.mismatches {
        files::say(mismatch);
    }
    files::say(&format!("tokenizers: {} rows, {} mismatched", outcome.rows, outcome.mismatches.len()));
    assert!(outcome.rows >= at_least, "{} rows, there are at least {at_least}", outcome.rows);
    assert!(outcome.mismatches.is_empty(), "{} rows mismatched", outcome.mismatches.len());
}
