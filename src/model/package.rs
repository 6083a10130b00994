//! The bytes of a package, and a package from its parts.
//!
//! ```text
//! package   magic "WRMP" | format u32 | artifact_bytes u32 | settings_bytes u32 | artifact | settings
//! ```
//!
//! Integers are little-endian. The artifact is a tokenizer as [`crate::tokenize::compile`] makes it, the settings are a
//! `warmroute.v1.ModelSettings`. The package's digest is the XXH3-128 (seed 0) of all its bytes.

use prost::Message;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::observation::{ModelDigest, ModelPart, ModelVersion};
use crate::template::SpecialTokens;
use crate::wire::v1;

/// The longest package, in bytes: twice what the largest vocabularies take.
pub const MAX_PACKAGE_BYTES: usize = 32 * 1024 * 1024;

const MAGIC: [u8; 4] = *b"WRMP";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Templates and tokens together, in bytes.
const MAX_SETTINGS_BYTES: usize = 2 * 1024 * 1024;

/// A model's files, compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// The tokenizer's artifact.
    pub artifact: Vec<u8>,
    /// The chat template; none if the model has none.
    pub chat_template: Option<String>,
    /// Another template for conversations with tools.
    pub tool_chat_template: Option<String>,
    /// The special tokens that templates may write.
    pub special_tokens: SpecialTokens,
}

/// Why bytes are no package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidPackage {
    /// Its length is not one that a package can have.
    Length {
        /// Bytes found or announced.
        found: usize,
    },
    /// A part is not the next one, or has another length.
    Part {
        /// Its number.
        number: u32,
    },
    /// It does not begin like a package of this format.
    Format,
    /// Its contents are not those that its digest was taken of.
    Digest,
    /// The settings are malformed.
    Settings,
}

/// A package while its parts come together.
pub struct Assembly {
    version: ModelVersion,
    next_part: u32,
    header: [u8; HEADER_BYTES],
    /// What follows the header.
    bytes: Vec<u8>,
    hasher: Xxh3,
}

// === impl Package ===

impl Package {
    /// The bytes that stand for it.
    ///
    /// # Errors
    /// When there would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, InvalidPackage> {
        let settings = v1::ModelSettings {
            chat_template: self.chat_template.clone(),
            tool_chat_template: self.tool_chat_template.clone(),
            special_tokens: self
                .special_tokens
                .iter()
                .map(|(name, text)| v1::SpecialToken { name: name.to_owned(), text: text.to_owned() })
                .collect(),
        }
        .encode_to_vec();
        let length = HEADER_BYTES.saturating_add(self.artifact.len()).saturating_add(settings.len());
        let (Ok(artifact_bytes), Ok(settings_bytes)) =
            (u32::try_from(self.artifact.len()), u32::try_from(settings.len()))
        else {
            return Err(InvalidPackage::Length { found: length });
        };
        if length > MAX_PACKAGE_BYTES || settings.len() > MAX_SETTINGS_BYTES {
            return Err(InvalidPackage::Length { found: length });
        }
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        for word in [FORMAT, artifact_bytes, settings_bytes] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.artifact);
        bytes.extend_from_slice(&settings);
        Ok(bytes)
    }

    /// Takes a package's bytes apart.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(mut bytes: Vec<u8>) -> Result<Package, InvalidPackage> {
        let header = bytes.first_chunk::<HEADER_BYTES>().copied().unwrap_or_default();
        bytes.drain(..HEADER_BYTES.min(bytes.len()));
        Package::of_header(&header, bytes)
    }

    /// Takes apart what follows a header. The artifact stays where it is: a copy would be a VM's memory for ever.
    fn of_header(header: &[u8; HEADER_BYTES], mut bytes: Vec<u8>) -> Result<Package, InvalidPackage> {
        let [magic, format, artifact, settings] = *header.as_chunks::<4>().0 else {
            return Err(InvalidPackage::Format);
        };
        if magic != MAGIC || u32::from_le_bytes(format) != FORMAT {
            return Err(InvalidPackage::Format);
        }
        let [artifact, settings] = [artifact, settings].map(|length| u32::from_le_bytes(length) as usize);
        if artifact.checked_add(settings) != Some(bytes.len()) || settings > MAX_SETTINGS_BYTES {
            return Err(InvalidPackage::Length { found: bytes.len().saturating_add(HEADER_BYTES) });
        }
        let settings = v1::ModelSettings::decode(bytes.get(artifact..).unwrap_or_default())
            .map_err(|_| InvalidPackage::Settings)?;
        bytes.truncate(artifact);
        Ok(Package {
            artifact: bytes,
            chat_template: settings.chat_template,
            tool_chat_template: settings.tool_chat_template,
            special_tokens: settings.special_tokens.into_iter().map(|token| (token.name, token.text)).collect(),
        })
    }

    /// What stands for these bytes in an announcement.
    ///
    /// # Errors
    /// When there are too many, or none.
    pub fn version(bytes: &[u8]) -> Result<ModelVersion, InvalidPackage> {
        let length = u32::try_from(bytes.len()).ok().filter(|_| (1..=MAX_PACKAGE_BYTES).contains(&bytes.len()));
        let length = length.ok_or(InvalidPackage::Length { found: bytes.len() })?;
        Ok(ModelVersion { digest: ModelDigest(xxh3_128(bytes)), length })
    }
}

// === impl Assembly ===

impl Assembly {
    /// Nothing yet of what was announced.
    ///
    /// # Errors
    /// When that is longer than a package can be.
    pub fn new(version: ModelVersion) -> Result<Assembly, InvalidPackage> {
        let length = version.length as usize;
        if length > MAX_PACKAGE_BYTES {
            return Err(InvalidPackage::Length { found: length });
        }
        let bytes = Vec::with_capacity(length.saturating_sub(HEADER_BYTES));
        Ok(Assembly { version, next_part: 0, header: [0; HEADER_BYTES], bytes, hasher: Xxh3::new() })
    }

    /// What it will be.
    pub fn version(&self) -> ModelVersion {
        self.version
    }

    /// The number of the part that comes next.
    pub fn next_part(&self) -> u32 {
        self.next_part
    }

    /// Whether all parts are there.
    pub fn is_complete(&self) -> bool {
        self.next_part == self.version.parts()
    }

    /// Takes the next part. It costs the time to copy and hash it.
    ///
    /// # Errors
    /// When it is not the next one of this version.
    pub fn push(&mut self, part: &ModelPart) -> Result<(), InvalidPackage> {
        let is_next = part.digest == self.version.digest
            && part.number == self.next_part
            && part.contents.len() == self.version.part_bytes(part.number)
            && !part.contents.is_empty();
        if !is_next {
            return Err(InvalidPackage::Part { number: part.number });
        }
        self.hasher.update(&part.contents);
        match part.contents.split_first_chunk() {
            Some((header, rest)) if part.number == 0 => {
                self.header = *header;
                self.bytes.extend_from_slice(rest);
            }
            _ => self.bytes.extend_from_slice(&part.contents),
        }
        self.next_part = self.next_part.saturating_add(1);
        Ok(())
    }

    /// The package, once it is complete.
    ///
    /// # Errors
    /// When a part is missing, or the contents are not what was announced.
    pub fn finish(self) -> Result<Package, InvalidPackage> {
        if !self.is_complete() {
            return Err(InvalidPackage::Part { number: self.next_part });
        }
        if self.hasher.digest128() != self.version.digest.0 {
            return Err(InvalidPackage::Digest);
        }
        Package::of_header(&self.header, self.bytes)
    }
}

impl std::fmt::Display for InvalidPackage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidPackage::Length { found } => {
                write!(f, "model package of {found} bytes, allowed are 1 to {MAX_PACKAGE_BYTES}, as its header says")
            }
            InvalidPackage::Part { number } => {
                write!(f, "part {number} of a model package is missing or of another length")
            }
            InvalidPackage::Format => write!(f, "not a model package of format {FORMAT}"),
            InvalidPackage::Digest => write!(f, "model package does not match its digest: it is damaged"),
            InvalidPackage::Settings => write!(f, "model package whose settings are malformed"),
        }
    }
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembly").field("version", &self.version).field("next_part", &self.next_part).finish()
    }
}

impl std::error::Error for InvalidPackage {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::MODEL_PART_BYTES;

    fn package(artifact_bytes: usize) -> Package {
        Package {
            artifact: (0..artifact_bytes).map(|at| at as u8).collect(),
            chat_template: Some("{{ bos_token }}x".to_owned()),
            tool_chat_template: None,
            special_tokens: SpecialTokens::new(Some("<s>"), None),
        }
    }

    fn parts(bytes: &[u8]) -> Vec<ModelPart> {
        let digest = Package::version(bytes).unwrap().digest;
        let part = |(number, contents): (usize, &[u8])| ModelPart {
            digest,
            number: number as u32,
            contents: contents.to_vec(),
        };
        bytes.chunks(MODEL_PART_BYTES).enumerate().map(part).collect()
    }

    #[test]
    fn a_package_survives_its_parts() {
        for artifact_bytes in [0, 1, MODEL_PART_BYTES, 3 * MODEL_PART_BYTES + 7] {
            let package = package(artifact_bytes);
            let bytes = package.encode().unwrap();
            let version = Package::version(&bytes).unwrap();
            let parts = parts(&bytes);
            assert_eq!(version.parts() as usize, parts.len());
            let mut assembly = Assembly::new(version).unwrap();
            for part in &parts {
                assert!(!assembly.is_complete());
                assembly.push(part).unwrap();
            }
            assert_eq!(assembly.finish().unwrap(), package);
        }
    }

    #[test]
    fn what_is_missing_doubled_or_damaged_is_refused() {
        let bytes = package(2 * MODEL_PART_BYTES).encode().unwrap();
        let version = Package::version(&bytes).unwrap();
        let parts = parts(&bytes);
        let mut assembly = Assembly::new(version).unwrap();
        assert_eq!(assembly.push(&parts[1]), Err(InvalidPackage::Part { number: 1 }));
        assembly.push(&parts[0]).unwrap();
        assert_eq!(assembly.push(&parts[0]), Err(InvalidPackage::Part { number: 0 }));
        assert_eq!(assembly.finish(), Err(InvalidPackage::Part { number: 1 }));

        let mut assembly = Assembly::new(version).unwrap();
        let mut damaged = parts.clone();
        damaged[1].contents[9] ^= 1;
        damaged.iter().for_each(|part| assembly.push(part).unwrap());
        assert_eq!(assembly.finish(), Err(InvalidPackage::Digest));

        let too_long = ModelVersion { length: MAX_PACKAGE_BYTES as u32 + 1, ..version };
        assert!(matches!(Assembly::new(too_long), Err(InvalidPackage::Length { .. })));
    }

    #[test]
    fn bytes_that_are_no_package_are_refused() {
        let bytes = package(40).encode().unwrap();
        assert_eq!(Package::decode(Vec::new()), Err(InvalidPackage::Format));
        assert_eq!(Package::decode(bytes[..20].to_vec()), Err(InvalidPackage::Length { found: 20 }));
        let mut other = bytes.clone();
        other[4] = 9;
        assert_eq!(Package::decode(other), Err(InvalidPackage::Format));
        let mut other = bytes.clone();
        *other.last_mut().unwrap() = 0xff;
        assert_eq!(Package::decode(other), Err(InvalidPackage::Settings));
        let mut other = bytes;
        other[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(Package::decode(other), Err(InvalidPackage::Length { .. })));
    }
}
