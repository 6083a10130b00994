//! Normalizer, pre-tokenizer and post-processor: from the file's objects to what the artifact can say.

use bitcannon::regexes;
use serde::Deserialize;
use serde_json::Value;

use super::super::format::{Grammar, PreTokenizer, Prepend, Words};
use super::super::normalize::{self, Step};
use super::error::{CompileError, Unsupported};

/// The mark of SentencePiece, where the file names no other.
const MARK: char = '\u{2581}';
/// Nested `Sequence`s at most.
const MAX_NESTING: usize = 8;

/// cl100k with single digits.
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with marks counted as letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The patterns of each grammar, in the order in which the file applies them.
const PATTERNS: [(Grammar, &[&str]); 7] = [
    (Grammar::Gpt2, &[regexes::GPT2]),
    (Grammar::Cl100k, &[regexes::CL100K]),
    (Grammar::Qwen, &[QWEN]),
    (Grammar::Qwen35, &[QWEN35]),
    (Grammar::O200k, &[regexes::O200K]),
    (Grammar::Tekken, &[regexes::TEKKEN]),
    (Grammar::Deepseek, regexes::DEEPSEEK),
];

/// Ids around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Around {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

#[derive(Deserialize)]
struct ByteLevel {
    #[serde(default = "yes")]
    add_prefix_space: bool,
    #[serde(default = "yes")]
    use_regex: bool,
}

#[derive(Deserialize)]
struct Split {
    pattern: Pattern,
    behavior: String,
    #[serde(default)]
    invert: bool,
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
struct Metaspace {
    replacement: char,
    #[serde(default)]
    add_prefix_space: Option<bool>,
    #[serde(default)]
    prepend_scheme: Option<String>,
    #[serde(default = "yes")]
    split: bool,
}

#[derive(Deserialize)]
struct Replace {
    pattern: Pattern,
    content: String,
}

fn yes() -> bool {
    true
}

/// The steps of a normalizer.
pub(super) fn normalizer(object: &Value) -> Result<Vec<Step>, CompileError> {
    let mut steps = Vec::new();
    for part in flattened(object, "normalizers", "normalizer")? {
        steps.push(match kind(part) {
            "NFC" => Step::Nfc,
            "Prepend" => match part.get("prepend").and_then(Value::as_str) {
                Some(prefix) => Step::Prepend(prefix.to_owned()),
                None => return Err(CompileError::invalid("normalizer", "Prepend has no text to prepend")),
            },
            "Replace" => match read::<Replace>(part, "normalizer")? {
                Replace { pattern: Pattern::String(pattern), content } => Step::Replace { pattern, content },
                Replace { pattern: Pattern::Regex(pattern), .. } => {
                    return Err(Unsupported::Normalizer(format!("Replace of the expression {pattern:?}")).into());
                }
            },
            other => return Err(Unsupported::Normalizer(other.to_owned()).into()),
        });
    }
    normalize::check(&steps).map_err(|refused| CompileError::invalid("normalizer", refused.to_string()))?;
    Ok(steps)
}

/// What a pre-tokenizer does to text that went through `steps`.
pub(super) fn pre_tokenizer(object: &Value, steps: &[Step]) -> Result<PreTokenizer, CompileError> {
    let parts = flattened(object, "pretokenizers", "pre_tokenizer")?;
    let plain = PreTokenizer::Characters { mark: MARK, metaspace: None, words: Words::BeforeRuns };
    match parts.as_slice() {
        [] => Ok(plain),
        [only] if kind(only) == "Metaspace" => metaspace(&read(only, "pre_tokenizer")?),
        [only] if kind(only) == "Split" => match read(only, "pre_tokenizer")? {
            Split { pattern: Pattern::String(text), .. } if never_in(&text, steps) => Ok(plain),
            Split { pattern: Pattern::String(text) | Pattern::Regex(text), .. } => {
                Err(Unsupported::PreTokenizer(format!("Split at {text:?} without ByteLevel")).into())
            }
        },
        [splits @ .., last] if kind(last) == "ByteLevel" => byte_level(splits, &read(last, "pre_tokenizer")?),
        [other, ..] => Err(Unsupported::PreTokenizer(kind(other).to_owned()).into()),
    }
}

/// The ids that a post-processor puts around a single text.
pub(super) fn post_processor(object: &Value) -> Result<Around, CompileError> {
    let mut around = Around::default();
    for part in flattened(object, "processors", "post_processor")? {
        let Around { before, after } = match kind(part) {
            "ByteLevel" => Around::default(),
            "TemplateProcessing" => template(part)?,
            "RobertaProcessing" | "BertProcessing" => {
                Around { before: pair_id(part, "cls")?, after: pair_id(part, "sep")? }
            }
            other => return Err(Unsupported::PostProcessor(other.to_owned()).into()),
        };
        around.before.splice(..0, before);
        around.after.extend(after);
    }
    Ok(around)
}

fn byte_level(splits: &[&Value], last: &ByteLevel) -> Result<PreTokenizer, CompileError> {
    let unsupported = |what: &str| Err(Unsupported::PreTokenizer(what.to_owned()).into());
    if splits.is_empty() {
        if !last.use_regex {
            return unsupported("ByteLevel without a pattern");
        }
        return Ok(PreTokenizer::ByteLevel { grammar: Grammar::Gpt2, add_prefix_space: last.add_prefix_space });
    }
    if last.use_regex {
        return unsupported("ByteLevel with its own pattern behind a Split");
    }
    if last.add_prefix_space {
        return unsupported("ByteLevel with add_prefix_space behind a Split");
    }
    let mut patterns = Vec::new();
    for part in splits {
        if kind(part) != "Split" {
            return unsupported(kind(part));
        }
        let Split { pattern, behavior, invert } = read(part, "pre_tokenizer")?;
        let Pattern::Regex(pattern) = pattern else { return unsupported("Split at a literal before ByteLevel") };
        // The patterns leave nothing out, so dropping what lies between the matches drops nothing.
        if !(behavior == "Isolated" || (behavior == "Removed" && invert && splits.len() == 1)) {
            return unsupported(&format!("Split with behavior {behavior}, invert {invert}"));
        }
        patterns.push(pattern.replace('\r', "\\r").replace('\n', "\\n"));
    }
    let known = PATTERNS.iter().find(|(_, known)| **known == patterns);
    let grammar =
        known.map(|(grammar, _)| *grammar).ok_or_else(|| Unsupported::SplitPattern(patterns.join("  then  ")))?;
    Ok(PreTokenizer::ByteLevel { grammar, add_prefix_space: false })
}

fn metaspace(object: &Metaspace) -> Result<PreTokenizer, CompileError> {
    let prepend = match (object.prepend_scheme.as_deref(), object.add_prefix_space) {
        (Some("never"), _) => Prepend::Never,
        (_, Some(false)) => {
            return Err(CompileError::invalid(
                "pre_tokenizer",
                "Metaspace: add_prefix_space contradicts prepend_scheme",
            ));
        }
        (Some("first"), _) => Prepend::First,
        (Some("always") | None, _) => Prepend::Always,
        (Some(other), _) => {
            return Err(Unsupported::PreTokenizer(format!("Metaspace with prepend_scheme {other:?}")).into());
        }
    };
    let words = if object.split { Words::BeforeEach } else { Words::BeforeRuns };
    Ok(PreTokenizer::Characters { mark: object.replacement, metaspace: Some(prepend), words })
}

/// Whether normalized text never holds a character, so that a split at it does nothing.
fn never_in(text: &str, steps: &[Step]) -> bool {
    let removes =
        |step: &Step| matches!(step, Step::Replace { pattern, content } if pattern == text && !content.contains(text));
    let Some(removed) = steps.iter().rposition(removes) else { return false };
    let brings = |step: &Step| match step {
        Step::Nfc => text != " ",
        Step::Replace { content, .. } => content.contains(text),
        Step::Prepend(prefix) => prefix.contains(text),
    };
    text.chars().count() == 1 && !steps.iter().skip(removed + 1).any(brings)
}

fn template(object: &Value) -> Result<Around, CompileError> {
    let unsupported = |what: &str| CompileError::from(Unsupported::PostProcessor(format!("TemplateProcessing {what}")));
    let pieces =
        object.get("single").and_then(Value::as_array).ok_or_else(|| unsupported("without a list `single`"))?;
    let mut around = Around::default();
    let mut texts = 0;
    for piece in pieces {
        if let Some(token) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) {
            let ids =
                object.get("special_tokens").and_then(|tokens| tokens.get(token)).and_then(|token| token.get("ids"));
            let ids = ids.map(Vec::<u32>::deserialize).and_then(Result::ok);
            let ids = ids.ok_or_else(|| CompileError::invalid("post_processor", format!("no ids for {token:?}")))?;
            if texts == 0 { around.before.extend(ids) } else { around.after.extend(ids) }
        } else if piece.pointer("/Sequence/id").and_then(Value::as_str) == Some("A") {
            texts += 1;
        } else {
            return Err(unsupported(&format!("with {piece}")));
        }
    }
    if texts == 1 { Ok(around) } else { Err(unsupported(&format!("with the text {texts} times"))) }
}

/// The id in `["token", id]`.
fn pair_id(object: &Value, field: &str) -> Result<Vec<u32>, CompileError> {
    let id =
        object.get(field).and_then(|pair| pair.get(1)).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    id.map(|id| vec![id])
        .ok_or_else(|| CompileError::invalid("post_processor", format!("{field} is not a token and its id")))
}

/// The parts of nested `Sequence`s in order.
fn flattened<'a>(object: &'a Value, list: &str, field: &'static str) -> Result<Vec<&'a Value>, CompileError> {
    let mut parts = vec![object];
    parts.retain(|part| !part.is_null());
    for _ in 0..MAX_NESTING {
        if !parts.iter().any(|part| kind(part) == "Sequence") {
            return Ok(parts);
        }
        let mut inner = Vec::new();
        for part in parts {
            match part.get(list).and_then(Value::as_array) {
                Some(list) if kind(part) == "Sequence" => inner.extend(list),
                None if kind(part) == "Sequence" => {
                    return Err(CompileError::invalid(field, format!("Sequence without a list `{list}`")));
                }
                _ => inner.push(part),
            }
        }
        parts = inner;
    }
    Err(CompileError::invalid(field, format!("more than {MAX_NESTING} Sequences inside each other")))
}

fn kind(object: &Value) -> &str {
    object.get("type").and_then(Value::as_str).unwrap_or("without a type")
}

fn read<T: for<'de> Deserialize<'de>>(object: &Value, field: &'static str) -> Result<T, CompileError> {
    T::deserialize(object).map_err(|error| CompileError::invalid(field, format!("{}: {error}", kind(object))))
}
