//! Where case files are.

use std::fs;
use std::path::{Path, PathBuf};

use super::format::CaseFile;

/// Names files and folders of cases that are replayed beside our own, separated as in `PATH`.
pub const ELSEWHERE: &str = "WARMROUTE_CASES";

/// Our own case files, then those that [`ELSEWHERE`] names; in place of what cannot be listed, why, which names it.
pub fn paths() -> Vec<Result<PathBuf, String>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let named = std::env::var_os(ELSEWHERE).unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let listed = [own].into_iter().chain(named).map(|path| under(&path));
    listed
        .flat_map(|listed| listed.map_or_else(|error| vec![Err(error)], |paths| paths.into_iter().map(Ok).collect()))
        .collect()
}

/// The file itself, or the `.json` files of a folder and those below it, in order.
fn under(path: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", path.display());
    if !path.is_dir() {
        return fs::metadata(path).map(|_| vec![path.to_owned()]).map_err(unreadable);
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?.path());
    }
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            found.extend(under(&entry)?);
        } else if entry.extension().is_some_and(|extension| extension == "json") {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Reads a case file.
///
/// # Errors
/// When it cannot be read or is no case file; names it.
pub fn read(path: &Path) -> Result<CaseFile, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}
