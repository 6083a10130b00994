//! Packages of small models, and what a VM makes of a text with them.

use std::sync::OnceLock;

use crate::flow::follower::View;
use crate::model::{Models, Package, TextLimits, Texts};
use crate::observation::{MODEL_PART_BYTES, ModelPart, ModelVersion};
use crate::request::{TextPrompt, TokenizeError, Tokenizer};
use crate::template::LocalTime;
use crate::tokenize::compile;

/// How many packages there are; the number of one is the token id that its tokenizer makes of the text `a`.
pub const PACKAGES: usize = 3;
/// The one of three parts; the others have one.
pub const LARGE: usize = 2;

/// A package as the hub has it.
#[derive(Debug)]
pub struct Made {
    pub version: ModelVersion,
    pub parts: Vec<ModelPart>,
}

/// All packages.
pub fn packages() -> &'static [Made] {
    static MADE: OnceLock<Vec<Made>> = OnceLock::new();
    MADE.get_or_init(|| (0..PACKAGES).map(|number| Made::of(&bytes(number))).collect())
}

/// Which package a VM that knows this and has these models makes token ids of a model's text with.
pub fn used(view: View<'_>, models: &Models, model_id: &str) -> Result<usize, TokenizeError> {
    let texts = Texts {
        models,
        version_of: &|model_id| match view {
            View::Index(index) => index.dictionary().model(model_id),
            View::CatchingUp => None,
        },
        clock: LocalTime { unix_seconds: 0, utc_offset_seconds: 0 },
        limits: TextLimits { max_prompt_bytes: 100, max_tokens: 100, max_symbols: 100 },
    };
    let text = TextPrompt::Plain { text: String::from("a"), add_special_tokens: false };
    texts.tokenize(model_id, &text).map(|tokenized| tokenized.ids[0] as usize)
}

// === impl Made ===

impl Made {
    /// Takes a package's bytes apart.
    pub fn of(bytes: &[u8]) -> Made {
        let version = Package::version(bytes).unwrap();
        let part = |(number, contents): (u32, &[u8])| ModelPart {
            digest: version.digest,
            number,
            contents: contents.to_vec(),
        };
        Made { version, parts: (0..).zip(bytes.chunks(MODEL_PART_BYTES)).map(part).collect() }
    }
}

fn bytes(number: usize) -> Vec<u8> {
    let [a, b, both] = [0, 1, 2].map(|at| (number + at) % PACKAGES);
    let json = format!(
        r#"{{"version": "1.0",
            "pre_tokenizer": {{"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": false}},
            "model": {{"type": "BPE", "vocab": {{"a": {a}, "b": {b}, "ab": {both}}}, "merges": ["a b"]}}}}"#
    );
    // What makes it large is a token that nothing writes.
    let filler = if number == LARGE { "x".repeat(2 * MODEL_PART_BYTES) } else { String::new() };
    let package = Package {
        artifact: compile(json.as_bytes()).unwrap(),
        chat_template: Some(String::from("{{ bos_token }}")),
        special_tokens: [(String::from("pad_token"), filler)].into_iter().collect(),
        ..Package::default()
    };
    package.encode().unwrap()
}

#[test]
fn packages_are_of_the_sizes_they_are_said_to_be() {
    assert_eq!(packages().iter().map(|made| made.parts.len()).collect::<Vec<_>>(), [1, 1, 3]);
    assert_eq!(packages()[LARGE].version.parts(), 3);
}
