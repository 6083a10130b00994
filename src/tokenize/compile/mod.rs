//! A `tokenizer.json` to an artifact.
//!
//! In: the bytes of the file, which the engine's tokenizer should have written itself where the engine rebuilds it from
//! a class. Out: the artifact's bytes, the same for the same file. It takes seconds and some hundred megabytes for the
//! largest vocabularies, so it is for the hub and never runs in a VM. Whatever could change the ids and is not
//! supported is refused.

mod added;
mod atoms;
mod error;
mod model;
mod pipeline;
mod source;

use xxhash_rust::xxh3::xxh3_128;

use super::format::{
    DIGESTED_FROM, HEADER_BYTES, MAGIC, PARAMETER_WORDS, Parameters, PreTokenizer, SECTION_TABLE, Section, VERSION,
};
use super::normalize;
use added::Added;
use model::Model;
use source::Source;

pub use error::{CompileError, Unsupported};

/// The contents of an artifact's sections.
struct Sections([Vec<u8>; Section::COUNT]);

/// Makes an artifact of a `tokenizer.json`.
///
/// # Errors
/// When the file is not one, contradicts itself, or asks for something that is not supported.
pub fn compile(json: &[u8]) -> Result<Vec<u8>, CompileError> {
    let source = Source::read(json)?;
    let steps = pipeline::normalizer(&source.normalizer)?;
    let pre_tokenizer = pipeline::pre_tokenizer(&source.pre_tokenizer, &steps)?;
    let around = pipeline::post_processor(&source.post_processor)?;
    let added = Added::replay(&source, &steps)?;
    let model = Model::build(&source.model, pre_tokenizer)?;

    let parameters = Parameters { longest_added: added.longest_raw(), ..model.parameters };
    let mut sections = Sections(Default::default());
    model.write(&mut sections);
    added.write(&mut sections);
    sections.put(Section::Normalizer, normalize::to_bytes(&steps));
    sections.put(Section::Prefix, words(around.before));
    sections.put(Section::Suffix, words(around.after));
    sections.assemble(&parameters, xxh3_128(json))
}

/// Ids as the words of a section.
fn words(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    ids.into_iter().flat_map(u32::to_le_bytes).collect()
}

// === impl Sections ===

impl Sections {
    fn put(&mut self, section: Section, bytes: Vec<u8>) {
        if let Some(slot) = self.0.get_mut(section as usize) {
            *slot = bytes;
        }
    }

    fn assemble(self, parameters: &Parameters, source: u128) -> Result<Vec<u8>, CompileError> {
        let too_long = || CompileError::Invalid { field: "model", reason: "makes an artifact of 4 GiB or more".into() };
        let number = |number: usize| u32::try_from(number).map(u32::to_le_bytes).map_err(|_| too_long());
        let mut digested: Vec<u8> = parameters.to_words().into_iter().flat_map(u32::to_le_bytes).collect();
        let mut offset = HEADER_BYTES;
        for section in &self.0 {
            digested.extend(number(offset)?);
            digested.extend(number(section.len())?);
            // Sections begin at multiples of four: the tables are read in words.
            offset += section.len().next_multiple_of(4);
        }
        debug_assert_eq!(digested.len(), SECTION_TABLE - DIGESTED_FROM + 8 * Section::COUNT);
        debug_assert_eq!(parameters.to_words().len(), PARAMETER_WORDS);
        for mut section in self.0 {
            section.resize(section.len().next_multiple_of(4), 0);
            digested.extend(section);
        }
        let mut artifact = Vec::with_capacity(offset);
        artifact.extend(MAGIC);
        artifact.extend(VERSION.to_le_bytes());
        artifact.extend(number(offset)?);
        artifact.extend(0_u32.to_le_bytes());
        artifact.extend(source.to_le_bytes());
        artifact.extend(xxh3_128(&digested).to_le_bytes());
        artifact.extend(digested);
        Ok(artifact)
    }
}

/// Whether symbols are bytes.
fn is_byte_level(pre_tokenizer: PreTokenizer) -> bool {
    matches!(pre_tokenizer, PreTokenizer::ByteLevel { .. })
}

#[cfg(test)]
mod tests;
