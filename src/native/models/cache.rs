//! Compiled tokenizers on disk, so that a restart need not compile what has not changed.
//!
//! In: the bytes of a `tokenizer.json`. Out: its artifact, read if this build compiled these bytes before, else compiled and
//! written. A file that is not what was written is compiled anew, and one that cannot be written costs time only. What is
//! read is verified like what was compiled just now; still, the directory is to be writable for the hub alone.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::model::MAX_PACKAGE_BYTES;
use crate::tokenize::{CompileError, compile};

/// The most artifacts that are kept; the oldest go.
const KEPT: usize = 256;
/// The digest before the artifact.
const DIGEST_BYTES: usize = 16;
/// How the names of files end.
const EXTENSION: &str = "artifact";

/// A directory of artifacts.
#[derive(Clone, Debug)]
pub struct ArtifactCache {
    directory: PathBuf,
    /// What compiles: another build may make other bytes.
    build: u128,
}

// === impl ArtifactCache ===

impl ArtifactCache {
    /// The artifacts in `directory`, which is made when the first one is written.
    pub fn new(directory: PathBuf) -> ArtifactCache {
        ArtifactCache { directory, build: build() }
    }

    /// The artifact of a `tokenizer.json`.
    pub(super) fn artifact(&self, json: &[u8]) -> Result<Vec<u8>, CompileError> {
        let path = self.path(json);
        if let Some(artifact) = read(&path) {
            return Ok(artifact);
        }
        let artifact = compile(json)?;
        if let Err(error) = self.write(&path, &artifact) {
            tracing::info!("{} is not written: {error}", path.display());
        }
        Ok(artifact)
    }

    fn path(&self, json: &[u8]) -> PathBuf {
        self.directory.join(format!("{:032x}-{:032x}.{EXTENSION}", xxh3_128(json), self.build))
    }

    fn write(&self, path: &Path, artifact: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        let contents = [xxh3_128(artifact).to_le_bytes().as_slice(), artifact].concat();
        let written = fs::write(&draft, contents).and_then(|()| fs::rename(&draft, path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written?;
        self.prune()
    }

    /// Removes the oldest artifacts.
    fn prune(&self) -> io::Result<()> {
        let mut all: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                all.push((fs::metadata(&path)?.modified()?, path));
            }
        }
        all.sort_unstable();
        let surplus = all.len().saturating_sub(KEPT);
        all.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// The artifact in a file, if it is what was written.
fn read(path: &Path) -> Option<Vec<u8>> {
    let limit = (DIGEST_BYTES + MAX_PACKAGE_BYTES) as u64;
    let mut contents = Vec::new();
    // Opening a pipe would wait for somebody to write into it.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    File::open(path).ok()?.take(limit + 1).read_to_end(&mut contents).ok()?;
    let (digest, artifact) = contents.split_first_chunk::<DIGEST_BYTES>()?;
    (u128::from_le_bytes(*digest) == xxh3_128(artifact)).then(|| artifact.to_vec())
}

/// What tells this build from others: its version, and the size and time of its executable.
fn build() -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(env!("CARGO_PKG_VERSION").as_bytes());
    if let Some(file) = std::env::current_exe().ok().and_then(|path| fs::metadata(path).ok()) {
        let modified = file.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        hasher.update(&file.len().to_le_bytes());
        hasher.update(&modified.map_or(0, |time| time.as_nanos()).to_le_bytes());
    }
    hasher.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &[u8] = include_bytes!("../../../tests/tokenizers/small/qwen.json");

    #[test]
    fn what_was_compiled_is_read_and_what_is_broken_is_compiled_again() {
        let directory = std::env::temp_dir().join(format!("warmroute-artifacts-{}", std::process::id()));
        let cache = ArtifactCache::new(directory.join("made"));
        let expected = compile(JSON).unwrap();
        assert_eq!(cache.artifact(JSON).unwrap(), expected);
        let path = cache.path(JSON);
        assert_eq!(read(&path).as_ref(), Some(&expected));
        // Another one under this name shows that it is read.
        cache.write(&path, b"another").unwrap();
        assert_eq!(ArtifactCache::new(directory.join("made")).artifact(JSON).unwrap(), b"another");
        let other_build = ArtifactCache { build: 1, ..cache.clone() };
        assert_eq!(other_build.artifact(JSON).unwrap(), expected);
        let mut broken = fs::read(&path).unwrap();
        broken[DIGEST_BYTES] ^= 1;
        fs::write(&path, broken).unwrap();
        assert_eq!(cache.artifact(JSON).unwrap(), expected);
        assert_eq!(read(&path), Some(expected));
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, "a file where the directory is to be").unwrap();
        assert!(cache.artifact(JSON).is_ok());
        fs::remove_file(&directory).unwrap();
    }
}
