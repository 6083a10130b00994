//! Whether a model's files agree on its added tokens.
//!
//! `transformers` adds those of `tokenizer_config.json` again to those of `tokenizer.json`: a token that is only there, or has
//! other flags there, changes the ids, so such a pair is refused. The engine's own tokenizer writes files that agree. Ids are
//! counted, not read, by the reference; where a file says others, that is worth a warning.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use super::InvalidModelFiles;
use super::files::{ModelFiles, TOKENIZER, TOKENIZER_CONFIG};
use super::source::{AddedToken, TokenizerSource};
use crate::tokenize::{Limits, Specials, Tokenizer, Workspace};

/// What to do about files that disagree.
const ADVICE: &str = "let the engine's own tokenizer write both files (save_pretrained)";

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    added_tokens_decoder: BTreeMap<String, AddedToken>,
    tokenizer_class: Option<String>,
}

/// Checks that the added tokens of all files are those that the artifact finds.
pub(super) fn check(
    source: &TokenizerSource,
    files: &ModelFiles,
    artifact: &[u8],
    warnings: &mut Vec<String>,
) -> Result<(), InvalidModelFiles> {
    let config: Config = match files.tokenizer_config.as_deref() {
        Some(json) => serde_json::from_slice(json).map_err(|error| {
            let reason = if error.is_data() { error.to_string() } else { format!("not JSON: {error}") };
            InvalidModelFiles::new(TOKENIZER_CONFIG, reason)
        })?,
        None => Config::default(),
    };
    agree(source, &config)?;
    warnings.extend(rebuilt(source, &config));
    let tokenizer =
        Tokenizer::load(artifact.to_vec()).map_err(|error| InvalidModelFiles::new(TOKENIZER, error.to_string()))?;
    warnings.extend(counted_otherwise(source, &tokenizer));
    Ok(())
}

/// Whether both files have the same tokens with the same flags.
fn agree(source: &TokenizerSource, config: &Config) -> Result<(), InvalidModelFiles> {
    let known: HashMap<&str, &AddedToken> =
        source.added_tokens.iter().map(|token| (token.content.as_str(), token)).collect();
    for (id, token) in &config.added_tokens_decoder {
        let refused = |what: &str| {
            let reason = format!("added_tokens_decoder.{id} ({:?}) {what} in {TOKENIZER}: {ADVICE}", token.content);
            InvalidModelFiles::new(TOKENIZER_CONFIG, reason)
        };
        let Some(other) = known.get(token.content.as_str()) else { return Err(refused("is no added token")) };
        let flags = [
            ("single_word", token.single_word, other.single_word),
            ("lstrip", token.lstrip, other.lstrip),
            ("rstrip", token.rstrip, other.rstrip),
            // Without a normalizer there is nothing that it could change.
            (
                "normalized",
                token.normalized && !source.normalizer.is_null(),
                other.normalized && !source.normalizer.is_null(),
            ),
        ];
        if let Some((flag, _, _)) = flags.into_iter().find(|(_, here, there)| here != there) {
            return Err(refused(&format!("has another {flag}")));
        }
        if other.id.is_some_and(|known| known.to_string() != *id) {
            return Err(refused("has another id"));
        }
    }
    Ok(())
}

/// `transformers` 5 makes some tokenizers anew from their class, with other steps than the file's.
fn rebuilt(source: &TokenizerSource, config: &Config) -> Option<String> {
    let class = config.tokenizer_class.as_deref()?;
    let is_rebuilt = matches!(class, "LlamaTokenizer" | "LlamaTokenizerFast") && source.normalizes_with("Prepend");
    is_rebuilt.then(|| {
        format!(
            "{TOKENIZER}: transformers 5 makes a {class} anew, without the Prepend of this file: {ADVICE}, and check it with \
             `warmroute-hub verify`"
        )
    })
}

/// The first added token whose id in the file is not the one that the reference gives it.
fn counted_otherwise(source: &TokenizerSource, tokenizer: &Tokenizer) -> Option<String> {
    let mut workspace = Workspace::new(0);
    // What a normalized token comes to depends on the steps around it.
    let raw = source.added_tokens.iter().filter(|token| !token.normalized && !token.content.is_empty());
    raw.filter_map(|token| Some((token.id?, token))).find_map(|(id, token)| {
        let ids = tokenizer.encode(&token.content, Specials::None, &Limits::default(), &mut workspace).ok()?;
        let content = &token.content;
        (ids != [id]).then(|| {
            format!("{TOKENIZER}: added token {content:?} has id {id} there and is tokenized as {ids:?}, as the reference does")
        })
    })
}
