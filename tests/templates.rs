//! Chat templates against reference renders of `transformers` and Jinja2.
//!
//! Five sources: `templates/rows.jsonl`, templates and conversations of ours; `templates/packages.jsonl`, the same
//! conversations through the templates of real models, where `scripts/templates.py` could fetch them;
//! `templates/bodies.jsonl` and `templates/apis.jsonl`, requests of ours and what vLLM makes of them; and any files of that shape named in
//! `WARMROUTE_TOKENIZER_CASES`, separated by colons. The last line that is printed says how many
//! renders were compared and how many differ.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "templates/rows.rs"]
mod rows;
#[path = "templates/same.rs"]
mod same;

use std::collections::HashMap;

use rows::Report;

const OURS: &str = include_str!("templates/rows.jsonl");
const BODIES: &str = include_str!("templates/bodies.jsonl");
const APIS: &str = include_str!("templates/apis.jsonl");
const PACKAGES: &str = include_str!("templates/packages.jsonl");

#[cfg(not(target_arch = "wasm32"))]
#[test]
fn renders_are_those_of_the_reference() {
    compare(files::named_in(std::env::var("WARMROUTE_TOKENIZER_CASES").ok()), files::fetched_templates());
}

#[cfg(target_arch = "wasm32")]
#[wasm_bindgen_test::wasm_bindgen_test]
fn renders_are_those_of_the_reference() {
    compare(files::named_in(files::environment("WARMROUTE_TOKENIZER_CASES")), files::fetched_templates());
}

#[cfg(not(target_arch = "wasm32"))]
#[test]
fn one_conversation_is_one_prompt() {
    same::one_conversation_is_one_prompt(200);
}

#[cfg(target_arch = "wasm32")]
#[wasm_bindgen_test::wasm_bindgen_test]
fn one_conversation_is_one_prompt() {
    same::one_conversation_is_one_prompt(50);
}

fn compare(named: Vec<String>, fetched: HashMap<String, String>) {
    if fetched.is_empty() {
        say("templates: those of real models are left out, `python3 scripts/templates.py` fetches them");
    }
    let apis = Report::of(&[APIS], fetched.clone());
    let mut reports = vec![Report::of(&[OURS, PACKAGES], fetched), Report::of(&[BODIES], HashMap::new()), apis];
    reports.extend(named.iter().map(|rows| Report::of(&[rows], HashMap::new())));
    let lines = |pick: fn(&Report) -> &Vec<String>| reports.iter().flat_map(pick).cloned().collect::<Vec<String>>();
    let (known, mismatched) = (lines(|report| &report.known), lines(|report| &report.mismatched));
    known.iter().for_each(|line| say(&format!("known: {line}")));
    mismatched.iter().for_each(|line| say(&format!("MISMATCH: {line}")));
    let rows: usize = reports.iter().map(|report| report.rows).sum();
    say(&format!("templates: {rows} rows, {} mismatched", mismatched.len()));
    assert!(mismatched.is_empty(), "{} renders differ from the reference", mismatched.len());
}

fn say(line: &str) {
    #[cfg(not(target_arch = "wasm32"))]
    println!("{line}");
    #[cfg(target_arch = "wasm32")]
    wasm_bindgen_test::console_log!("{line}");
}

/// The files that a run is given; the library itself never reads one.
#[cfg(not(target_arch = "wasm32"))]
mod files {
    use std::collections::HashMap;
    use std::path::PathBuf;

    /// The contents of files, separated by colons.
    pub fn named_in(list: Option<String>) -> Vec<String> {
        let list = list.unwrap_or_default();
        let read = |file| std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        list.split(':').filter(|file| !file.is_empty()).map(read).collect()
    }

    /// The templates in the cache folder of `scripts/templates.py`, by file name.
    pub fn fetched_templates() -> HashMap<String, String> {
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap_or_default();
        let Ok(entries) = std::fs::read_dir(cache.join("warmroute/templates")) else { return HashMap::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
            .map(|path| {
                (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap())
            })
            .collect()
    }
}

/// The same through Node.js.
#[cfg(target_arch = "wasm32")]
mod files {
    use std::collections::HashMap;

    use wasm_bindgen::prelude::wasm_bindgen;

    #[wasm_bindgen(inline_js = r#"
        const fs = require("fs"), path = require("path");
        exports.environment = (name) => process.env[name];
        exports.read = (file) => fs.readFileSync(file, "utf8");
        exports.fetched = () => {
            const cache = process.env.XDG_CACHE_HOME || path.join(process.env.HOME || "", ".cache");
            const folder = path.join(cache, "warmroute", "templates");
            if (!fs.existsSync(folder)) return [];
            return fs.readdirSync(folder).filter((name) => name.endsWith(".jinja")).map((name) => path.join(folder, name));
        };
    "#)]
    extern "C" {
        pub fn environment(name: &str) -> Option<String>;
        fn read(file: &str) -> String;
        fn fetched() -> Vec<String>;
    }

    pub fn named_in(list: Option<String>) -> Vec<String> {
        list.unwrap_or_default().split(':').filter(|file| !file.is_empty()).map(read).collect()
    }

    pub fn fetched_templates() -> HashMap<String, String> {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        fetched().iter().map(|path| (name(path), read(path))).collect()
    }
}
