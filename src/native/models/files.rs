//! The files of a model's directory that count, as bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::InvalidModelFiles;

/// The tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";
/// Special tokens and, in older models, templates.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Special tokens of older models.
pub(super) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
/// The chat template.
pub(super) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// The chat template of a processor, as JSON.
pub(super) const PROCESSOR_TEMPLATE: &str = "chat_template.json";
/// The directory of templates by name.
pub(super) const MORE_TEMPLATES: &str = "additional_chat_templates";
/// What the model is.
pub(super) const CONFIG: &str = "config.json";
/// Mistral's own tokenizer.
pub(super) const TEKKEN: &str = "tekken.json";

/// The largest `tokenizer.json`, in bytes: four times those of the largest vocabularies.
const MAX_TOKENIZER_BYTES: u64 = 128 * 1024 * 1024;
/// The largest of the other files, in bytes.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// The names of templates that engines take by themselves.
const NAMED: [&str; 2] = ["default", "tool_use"];

/// The files that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFiles {
    pub(super) tokenizer: Vec<u8>,
    pub(super) tokenizer_config: Option<Vec<u8>>,
    pub(super) special_tokens_map: Option<Vec<u8>>,
    pub(super) chat_template: Option<Vec<u8>>,
    pub(super) processor_template: Option<Vec<u8>>,
    /// By the file's name in its directory, without `.jinja`.
    pub(super) more_templates: BTreeMap<String, Vec<u8>>,
    pub(super) config: Option<Vec<u8>>,
    pub(super) has_tekken: bool,
}

/// What the file system says of the files that count, whether they are there or not: as long as that stays, so do the contents,
/// as far as it can tell. Writing in place and setting times back shows in the time of the last change of any kind, which nobody
/// can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamps(Vec<Option<Stamp>>);

/// Device, inode, bytes, and the times of the last writing and of the last change, in s and ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(u64, u64, u64, [i64; 4]);

/// Identity of a directory's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesDigest(u128);

// === impl ModelFiles ===

impl ModelFiles {
    /// Reads what there is.
    ///
    /// # Errors
    /// When there is no `tokenizer.json`, or a file is too large or cannot be read.
    pub fn read(directory: &Path) -> Result<ModelFiles, InvalidModelFiles> {
        let optional = |name: &str| contents(directory, name, MAX_FILE_BYTES);
        let has_tekken = directory.join(TEKKEN).is_file();
        let Some(tokenizer) = contents(directory, TOKENIZER, MAX_TOKENIZER_BYTES)? else {
            let reason = match (directory.is_dir(), has_tekken) {
                (false, _) => "the directory does not exist",
                (true, true) => "is not there; of tekken.json alone no token ids are made",
                (true, false) => "is not there",
            };
            return Err(InvalidModelFiles::new(TOKENIZER, reason));
        };
        let mut more_templates = BTreeMap::new();
        for name in NAMED {
            if let Some(template) = optional(&format!("{MORE_TEMPLATES}/{name}.jinja"))? {
                more_templates.insert(name.to_owned(), template);
            }
        }
        Ok(ModelFiles {
            tokenizer,
            tokenizer_config: optional(TOKENIZER_CONFIG)?,
            special_tokens_map: optional(SPECIAL_TOKENS_MAP)?,
            chat_template: optional(CHAT_TEMPLATE)?,
            processor_template: optional(PROCESSOR_TEMPLATE)?,
            more_templates,
            config: optional(CONFIG)?,
            has_tekken,
        })
    }

    /// Identity of the contents: files that are equal have the same, whatever their names and times.
    pub fn digest(&self) -> FilesDigest {
        let mut hasher = Xxh3::new();
        let mut add = |part: Option<&[u8]>| {
            // The length before the bytes, so that none can pass for parts of another file.
            hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            hasher.update(part.unwrap_or_default());
        };
        add(Some(&self.tokenizer));
        let others = [
            &self.tokenizer_config,
            &self.special_tokens_map,
            &self.chat_template,
            &self.processor_template,
            &self.config,
        ];
        others.into_iter().for_each(|part| add(part.as_deref()));
        for name in NAMED {
            add(self.more_templates.get(name).map(Vec::as_slice));
        }
        add(self.has_tekken.then_some(&[]));
        FilesDigest(hasher.digest128())
    }

    /// The bytes of `tokenizer.json`.
    pub fn tokenizer(&self) -> &[u8] {
        &self.tokenizer
    }
}

// === impl FileStamps ===

impl FileStamps {
    /// Those of a directory, links followed. None if one cannot be looked at.
    pub fn of(directory: &Path) -> Option<FileStamps> {
        let more = NAMED.map(|name| format!("{MORE_TEMPLATES}/{name}.jinja"));
        let others = [TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE, PROCESSOR_TEMPLATE, CONFIG, TEKKEN];
        let names = std::iter::once(TOKENIZER).chain(others).chain(more.iter().map(String::as_str));
        names.map(|name| stamp(&directory.join(name))).collect::<io::Result<_>>().ok().map(FileStamps)
    }
}

fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    match std::fs::metadata(path) {
        Ok(file) => {
            let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
            Ok(Some(Stamp(file.dev(), file.ino(), file.size(), times)))
        }
        Err(error) if is_not_there(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_not_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The contents of a file, if it is there.
fn contents(directory: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>, InvalidModelFiles> {
    let path = directory.join(name);
    let read = || -> io::Result<Vec<u8>> {
        // Opening a pipe would wait for somebody to write into it.
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut contents = Vec::new();
        File::open(&path)?.take(limit + 1).read_to_end(&mut contents)?;
        Ok(contents)
    };
    match read() {
        Ok(contents) if contents.len() as u64 > limit => {
            Err(InvalidModelFiles::new(name, format!("more than {limit} bytes, allowed are up to {limit}")))
        }
        Ok(contents) => Ok(Some(contents)),
        Err(error) if is_not_there(&error) => Ok(None),
        Err(error) => Err(InvalidModelFiles::new(name, format!("cannot be read: {error}"))),
    }
}
