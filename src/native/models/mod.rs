//! A model's directory, as Hugging Face lays it out, to what turns the model's text into token ids.
//!
//! In: a directory. Out: a [`VerifiedModel`]: a package that was compiled, taken apart again and loaded, so that whoever gets
//! its bytes can use them; or why there is none, by file, field and reason. Read are
//!
//! - `tokenizer.json`, the one file that there must be, see [`crate::tokenize::compile`];
//! - `tokenizer_config.json` for special tokens and templates, `special_tokens_map.json` where that comes before it;
//! - `chat_template.jinja` and `additional_chat_templates/*.jinja`, which take the place of all templates elsewhere, as
//!   `transformers` 5 has it; `chat_template.json`, an older name for that of a processor;
//! - `config.json` for `model_type` alone, and whether there is a `tekken.json`: see [`untemplated`].
//!
//! `generation_config.json` may be there: nothing in it changes a prompt's tokens.
//!
//! Compiling takes seconds and some hundred megabytes for the largest vocabularies: it is for a thread of its own.

mod accord;
mod cache;
mod files;
mod source;
mod templates;
pub mod untemplated;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use cache::ArtifactCache;
pub use files::{FileStamps, FilesDigest, ModelFiles};
pub use source::{Outline, Pieces};

use crate::model::{LoadedModel, Package};
use crate::observation::ModelVersion;
use crate::tokenize::compile;
use source::TokenizerSource;

/// How a model's directory is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Take the chat template also where engines do not render with it: see [`untemplated`].
    pub force_chat_template: bool,
}

/// A model's package, of which it is known that it can be used.
pub struct VerifiedModel {
    /// The package's bytes.
    pub bytes: Arc<[u8]>,
    /// What stands for them in an announcement.
    pub version: ModelVersion,
    /// What was loaded from them.
    pub model: LoadedModel,
    /// What `tokenizer.json` has.
    pub outline: Outline,
    /// Whether there is a chat template.
    pub has_chat_template: bool,
    /// Whether the directory has a chat template that was left out, see [`untemplated`].
    pub leaves_out_chat_template: bool,
    /// What an operator should know, a line each.
    pub warnings: Vec<String>,
}

/// Why a directory gives no package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidModelFiles {
    /// The file in the directory; empty for the whole of it.
    pub file: String,
    /// The field, if there is one, and what is wrong.
    pub reason: String,
}

/// Reads, compiles and verifies a model's directory.
///
/// # Errors
/// When a file is missing, cannot be read, or is not used.
pub fn read(directory: &Path, options: ModelOptions) -> Result<VerifiedModel, InvalidModelFiles> {
    verified(&ModelFiles::read(directory)?, options)
}

/// Compiles and verifies a model's files.
///
/// # Errors
/// When one of them is not used.
pub fn verified(files: &ModelFiles, options: ModelOptions) -> Result<VerifiedModel, InvalidModelFiles> {
    verified_from(files, options, None)
}

/// The same, with artifacts that were compiled before, where there are any.
///
/// # Errors
/// When one of the files is not used.
pub fn verified_from(
    files: &ModelFiles,
    options: ModelOptions,
    cache: Option<&ArtifactCache>,
) -> Result<VerifiedModel, InvalidModelFiles> {
    let source = TokenizerSource::parse(&files.tokenizer)?;
    let json = &files.tokenizer;
    let artifact = cache.map_or_else(|| compile(json), |cache| cache.artifact(json));
    let artifact = artifact.map_err(|error| InvalidModelFiles::of(files::TOKENIZER, &error))?;
    let mut warnings = Vec::new();
    accord::check(&source, files, &artifact, &mut warnings)?;
    let package = package(files, &source, artifact, options, &mut warnings)?;
    let has_chat_template = package.chat_template.is_some();
    let leaves_out_chat_template = !has_chat_template && templates::read(files)?.template.is_some();
    let bytes = package.encode().map_err(|error| InvalidModelFiles::of("", &error))?;
    let version = Package::version(&bytes).map_err(|error| InvalidModelFiles::of("", &error))?;
    let again = Package::decode(bytes.clone()).map_err(|error| InvalidModelFiles::of("", &error))?;
    if again != package {
        return Err(InvalidModelFiles::new("", "the package does not come back from its own bytes"));
    }
    let model = LoadedModel::load(again).map_err(|error| InvalidModelFiles::of("", &error))?;
    let outline = source.outline();
    Ok(VerifiedModel {
        bytes: bytes.into(),
        version,
        model,
        outline,
        has_chat_template,
        leaves_out_chat_template,
        warnings,
    })
}

fn package(
    files: &ModelFiles,
    source: &TokenizerSource,
    artifact: Vec<u8>,
    options: ModelOptions,
    warnings: &mut Vec<String>,
) -> Result<Package, InvalidModelFiles> {
    let mut templates = templates::read(files)?;
    if let Some(reason) = untemplated::reason(files, source)?
        && templates.template.is_some()
        && !options.force_chat_template
    {
        warnings.push(format!("{reason}; its chat template is left out, so conversations get no hint"));
        (templates.template, templates.tool_template) = (None, None);
    }
    templates.check()?;
    Ok(Package {
        artifact,
        chat_template: templates.template.map(|named| named.source),
        tool_chat_template: templates.tool_template.map(|named| named.source),
        special_tokens: templates.special,
    })
}

// === impl InvalidModelFiles ===

impl InvalidModelFiles {
    fn new(file: &str, reason: impl Into<String>) -> InvalidModelFiles {
        InvalidModelFiles { file: file.to_owned(), reason: reason.into() }
    }

    fn of(file: &str, error: &dyn fmt::Display) -> InvalidModelFiles {
        InvalidModelFiles::new(file, error.to_string())
    }
}

impl fmt::Display for InvalidModelFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.as_str() {
            "" => f.write_str(&self.reason),
            file => write!(f, "{file}: {}", self.reason),
        }
    }
}

impl std::error::Error for InvalidModelFiles {}

impl fmt::Debug for VerifiedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedModel").field("version", &self.version).field("outline", &self.outline).finish()
    }
}

#[cfg(test)]
mod tests;
