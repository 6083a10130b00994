//! Replicas from a file.
//!
//! In: a YAML or JSON file with entries as under `replicas`, read again and again. Out: its replicas each time they change.
//! Contents are compared, not times or names, so that the swap of symbolic links by which a ConfigMap is updated is seen like
//! any other change. A file that is wrong, gone or unreadable keeps the last good replicas: only one that says in so many
//! words that there are none (`[]`) ends them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tokio::task::spawn_blocking;
use tracing::info;
use xxhash_rust::xxh3::xxh3_64;

use super::Teller;
use crate::native::hub::config::{FileDiscovery, ReplicaConfig, replicas_of_file};

/// The largest file, in bytes: the most replicas with long entries.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A file's contents the last time.
#[derive(Debug, Default)]
struct Known {
    /// Of contents that were good.
    digest: Option<u64>,
}

/// What one reading came to.
#[derive(Debug, PartialEq)]
enum Reading {
    Unchanged,
    Changed(Vec<ReplicaConfig>),
}

/// What is wrong with the file, on one line.
pub(super) fn problem(path: &Path) -> Option<String> {
    Known::default().read(path).err()
}

/// Reads the file every so often and tells what is in it.
pub(super) async fn follow(config: FileDiscovery, mut teller: Teller) {
    let mut known = Known::default();
    loop {
        let path = config.path.clone();
        // A read that hangs, of a network's file system, holds up no other task.
        let read = spawn_blocking(move || {
            let reading = known.read(&path);
            (known, reading)
        });
        let Ok((after, reading)) = read.await else { return };
        known = after;
        match reading {
            Ok(Reading::Unchanged) => teller.working(),
            Ok(Reading::Changed(replicas)) => {
                info!(path = %config.path.display(), replicas = replicas.len(), "the file of replicas changed");
                teller.replicas(replicas);
            }
            Err(problem) => teller.failed(problem),
        }
        tokio::time::sleep(config.poll).await;
    }
}

// === impl Known ===

impl Known {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it, on one line.
    fn read(&mut self, path: &Path) -> Result<Reading, String> {
        let bytes = contents(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("{} has more than {MAX_FILE_BYTES} bytes, the most allowed", path.display()));
        }
        let digest = Some(xxh3_64(&bytes));
        if self.digest == digest {
            return Ok(Reading::Unchanged);
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
        let replicas =
            replicas_of_file(&text).map_err(|problems| format!("{}: {}", path.display(), problems.join("; ")))?;
        self.digest = digest;
        Ok(Reading::Changed(replicas))
    }
}

fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for somebody to write into it.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut contents = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "- {id: a, address: '10.0.0.1:80', kv_events: 'tcp://10.0.0.1:90', model: m}\n";

    fn path(name: &str) -> std::path::PathBuf {
        let directory = std::env::temp_dir().join(format!("warmroute-discovery-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory.join(name)
    }

    fn ids(reading: Result<Reading, String>) -> Vec<String> {
        let Ok(Reading::Changed(replicas)) = reading else { panic!("{reading:?}") };
        replicas.into_iter().map(|replica| replica.id).collect()
    }

    #[test]
    fn a_list_and_an_object_and_json_are_read() {
        let path = path("forms.yaml");
        let mut known = Known::default();
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(ids(known.read(&path)), ["a"]);
        assert_eq!(known.read(&path), Ok(Reading::Unchanged));
        std::fs::write(&path, format!("replicas:\n{GOOD}")).unwrap();
        assert_eq!(ids(known.read(&path)), ["a"]);
        let json = r#"[{"id": "b", "address": "h:1", "kv_events": "tcp://h:2", "model": "m"}]"#;
        std::fs::write(&path, json).unwrap();
        assert_eq!(ids(known.read(&path)), ["b"]);
        std::fs::write(&path, "[]").unwrap();
        assert_eq!(ids(known.read(&path)), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_named_by_field_and_value() {
        let path = path("wrong.yaml");
        let mut known = Known::default();
        for (text, parts) in [
            ("", ["the file is empty", "a list of replicas"]),
            ("- {id: a", ["wrong.yaml", "line"]),
            ("nodes: []", ["nodes", "replicas"]),
            ("- {id: a, adress: x}", ["adress", "address"]),
            (&GOOD.repeat(2), ["replicas[1].id is `a`", "no other replica has"]),
            (&GOOD.replace("10.0.0.1:80", "10.0.0.1"), ["replicas[0].address is `10.0.0.1`", "host:port"]),
        ] {
            std::fs::write(&path, text).unwrap();
            let problem = known.read(&path).unwrap_err();
            assert!(parts.iter().all(|part| problem.contains(part)), "{problem}");
        }
        std::fs::write(&path, [0xFF, 0xFE]).unwrap();
        assert!(known.read(&path).unwrap_err().contains("UTF-8"));
        std::fs::write(&path, GOOD).unwrap();
        assert_eq!(ids(known.read(&path)), ["a"], "and it is read once it is right");
        std::fs::remove_file(&path).unwrap();
        assert!(known.read(&path).unwrap_err().contains("cannot be read"));
        assert!(known.read(path.parent().unwrap()).unwrap_err().contains("no regular file"));
    }
}
