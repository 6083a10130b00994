//! Seeded random texts through warmroute and through Hugging Face `tokenizers`: the ids must be the same.
//!
//! ```text
//! scripts/tokenizers.py                                       installs the tokenizers of real models
//! cd tests/oracle && cargo run --release                      20,000 strings for each tokenizer found
//! cd tests/oracle && cargo run --release -- 500 7 qwen3       strings, seed, tokenizers
//! ```
//!
//! Beside short strings each tokenizer gets a few long texts, which are split in windows, and texts without any word.
//! A string that differs is shortened while it still differs. Exit code 1 if any does, or if none was compared.

mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use texts::Texts;
use tokenizers::Tokenizer as Reference;
use warmroute::tokenize::{Limits, Specials, Tokenizer, Workspace, compile};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Strings for each tokenizer, unless told otherwise.
const STRINGS: usize = 20_000;
/// Differences printed for each tokenizer.
const SHOWN: usize = 5;

/// One tokenizer, both ways.
struct Pair {
    ours: Tokenizer,
    reference: Reference,
    workspace: Workspace,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tokenizer-oracle: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<usize, Failure> {
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (strings, seed) = (number(0, STRINGS)?, number(1, 1)?);
    let named = arguments.get(2..).unwrap_or_default();
    let (mut compared, mut different) = (0, 0);
    for (name, path) in tokenizer_files()? {
        if named.is_empty() || named.contains(&name) {
            let (texts, differences) = compare(&name, &path, strings, seed as u64)?;
            compared += texts;
            different += differences;
        }
    }
    println!("oracle: {compared} texts, {different} different");
    if compared == 0 { Err("no tokenizer to compare".into()) } else { Ok(different) }
}

/// The small tokenizers of the repository, and the installed ones.
fn tokenizer_files() -> Result<Vec<(String, PathBuf)>, Failure> {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokenizers/small");
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    let installed = cache.join("warmroute/tokenizers");
    let mut files = Vec::new();
    for (prefix, folder) in [("small/", small), ("", installed)] {
        for entry in folder.read_dir().into_iter().flatten() {
            let path = entry?.path();
            if let Some(name) = path.file_stem().filter(|_| path.extension() == Some("json".as_ref())) {
                files.push((format!("{prefix}{}", name.to_string_lossy()), path));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Texts compared and texts that differ.
fn compare(name: &str, path: &Path, strings: usize, seed: u64) -> Result<(usize, usize), Failure> {
    let json = std::fs::read(path)?;
    let ours = Tokenizer::load(compile(&json)?)?;
    let reference = Reference::from_bytes(&json)?;
    let added: Vec<String> = reference.get_added_vocabulary().get_vocab().keys().cloned().collect();
    let mut pair = Pair { ours, reference, workspace: Workspace::new(1 << 20) };
    let mut texts = Texts::new(seed, added);
    let (mut compared, mut different) = (0, 0);
    let short = (0..strings).map(|_| None);
    let long = (0..texts::LONG).map(Some);
    for which in short.chain(long) {
        let text = match which {
            None => texts.short(),
            Some(which) => texts.long(which),
        };
        compared += 1;
        if pair.differs(&text)? {
            different += 1;
            if different <= SHOWN {
                pair.show(name, &text)?;
            }
        }
    }
    println!("{name}: {compared} texts, {different} different");
    Ok((compared, different))
}

// === impl Pair ===

impl Pair {
    fn ids(&mut self, text: &str) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let ours = self.ours.encode(text, Specials::Around, &Limits::default(), &mut self.workspace)?;
        Ok((ours, self.reference.encode_fast(text, true)?.get_ids().to_vec()))
    }

    fn differs(&mut self, text: &str) -> Result<bool, Failure> {
        self.ids(text).map(|(ours, reference)| ours != reference)
    }

    /// Prints the difference, after dropping every character that it does not need.
    fn show(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        let mut shortened: Vec<char> = text.chars().take(2_000).collect();
        if !self.differs(&shortened.iter().collect::<String>())? {
            println!("{name}: a text of {} bytes differs, its first 2,000 characters do not", text.len());
            return Ok(());
        }
        let mut at = 0;
        while at < shortened.len() {
            let mut without = shortened.clone();
            without.remove(at);
            if self.differs(&without.iter().collect::<String>())? {
                shortened = without;
            } else {
                at += 1;
            }
        }
        let text: String = shortened.into_iter().collect();
        let (ours, reference) = self.ids(&text)?;
        println!("{name}: {text:?}\n    ours      {ours:?}\n    reference {reference:?}");
        Ok(())
    }
}
