//! Reads a case file and compares its `ids` rows with the library. The format is told in `generate.py`.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use warmroute::model::{Assembly, LoadedModel, Package, TextLimits};
use warmroute::observation::{MODEL_PART_BYTES, ModelPart};
use warmroute::request::TextPrompt;
use warmroute::template::LocalTime;
use warmroute::tokenize::{Limits, Specials, Tokenizer, Workspace, compile};

use crate::files;

/// Rows compared, and what differed.
#[derive(Default)]
pub struct Outcome {
    pub rows: usize,
    pub mismatches: Vec<String>,
    /// Tokenizers that are not installed.
    pub skipped: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Row {
    Tokenizer {
        name: String,
        file: Option<String>,
    },
    Text {
        id: u32,
        text: String,
    },
    Ids(Ids),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Ids {
    tok: String,
    text: u32,
    n: usize,
    ids: Option<Vec<u32>>,
    ids_head: Option<Vec<u32>>,
    ids_sha256: Option<String>,
    #[serde(default)]
    add_special_tokens: bool,
}

/// Compares every `ids` row of a file, each also through a memo that has seen the text, and through a model that was loaded
/// from the parts of its package.
pub fn replay(case_file: &str) -> Outcome {
    let bytes = files::read(case_file).unwrap_or_else(|| panic!("no case file at {case_file}"));
    let text = String::from_utf8(bytes).unwrap();
    let rows: Vec<Row> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: BTreeMap<u32, &str> = rows
        .iter()
        .filter_map(|row| match row {
            Row::Text { id, text } => Some((*id, text.as_str())),
            _ => None,
        })
        .collect();
    let mut outcome = Outcome::default();
    for row in &rows {
        if let Row::Tokenizer { name, file } = row {
            let path = file.as_deref().map_or_else(|| files::installed(name), files::beside);
            let Some(json) = files::read(&path) else {
                assert!(file.is_none(), "no tokenizer at {path}");
                outcome.skipped.push(name.clone());
                continue;
            };
            let artifact = compile(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
            let model = arrived(Package { artifact: artifact.clone(), ..Package::default() });
            let tokenizer = Tokenizer::load(artifact).unwrap();
            let of_this = rows.iter().filter_map(|row| match row {
                Row::Ids(ids) if ids.tok == *name => Some(ids),
                _ => None,
            });
            compare(&tokenizer, &model, of_this, &texts, &mut outcome);
        }
    }
    outcome
}

/// A model as a VM gets it.
fn arrived(package: Package) -> LoadedModel {
    let bytes = package.encode().unwrap();
    let version = Package::version(&bytes).unwrap();
    let mut assembly = Assembly::new(version).unwrap();
    for (number, contents) in (0..).zip(bytes.chunks(MODEL_PART_BYTES)) {
        assembly.push(&ModelPart { digest: version.digest, number, contents: contents.to_vec() }).unwrap();
    }
    LoadedModel::load(assembly.finish().unwrap()).unwrap()
}

/// The ids that a model gives.
fn ids_of(model: &LoadedModel, text: &str, add_special_tokens: bool, workspace: &mut Workspace) -> Vec<u32> {
    let all = TextLimits { max_prompt_bytes: usize::MAX, max_tokens: usize::MAX, max_symbols: usize::MAX };
    let clock = LocalTime { unix_seconds: 0, utc_offset_seconds: 0 };
    let prompt = TextPrompt::Plain { text: text.to_owned(), add_special_tokens };
    let found = model.tokenize(&prompt, clock, &all, workspace).unwrap();
    assert!(found.complete);
    found.ids
}

fn compare<'a>(
    tokenizer: &Tokenizer,
    model: &LoadedModel,
    rows: impl Iterator<Item = &'a Ids>,
    texts: &BTreeMap<u32, &str>,
    outcome: &mut Outcome,
) {
    let mut workspace = Workspace::new(1 << 20);
    for row in rows {
        outcome.rows += 1;
        let specials = if row.add_special_tokens { Specials::Around } else { Specials::None };
        let mut encode = || tokenizer.encode(texts[&row.text], specials, &Limits::default(), &mut workspace).unwrap();
        let (first, again) = (encode(), encode());
        let again = if first == again {
            ids_of(model, texts[&row.text], row.add_special_tokens, &mut workspace)
        } else {
            again
        };
        if !row.matches(&first) || first != again {
            let expected = row.ids.as_ref().or(row.ids_head.as_ref());
            outcome.mismatches.push(format!(
                "{} text {} add_special_tokens {}: expected {} ids {expected:?}, got {} {first:?}, then {again:?}",
                row.tok,
                row.text,
                row.add_special_tokens,
                row.n,
                first.len(),
            ));
        }
    }
}

// === impl Ids ===

impl Ids {
    fn matches(&self, found: &[u32]) -> bool {
        let hash = || {
            let bytes: Vec<u8> = found.iter().flat_map(|id| id.to_le_bytes()).collect();
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert!(self.ids.is_some() || self.ids_sha256.is_some(), "{} text {}: nothing to compare", self.tok, self.text);
        found.len() == self.n
            && self.ids.as_ref().is_none_or(|ids| ids == found)
            && self.ids_head.as_ref().is_none_or(|head| found.starts_with(head))
            && self.ids_sha256.as_ref().is_none_or(|expected| *expected == hash())
    }
}
