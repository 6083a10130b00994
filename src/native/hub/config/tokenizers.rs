//! The section `tokenizers`: where the models' directories are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::native::hub::problems::Problems;

/// `tokenizers.poll_ms`.
pub const POLL_MS: u64 = 5_000;

/// The most entries of `tokenizers.models`, and the most models that are looked for.
const MAX_MODELS: usize = 1_024;
/// A day, in minutes.
const DAY_MINUTES: i32 = 1_440;

/// Where the models' directories are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizersConfig {
    /// The directory of all of them.
    pub directory: PathBuf,
    /// How often it is read.
    pub poll: Duration,
    /// Where compiled tokenizers are kept for the next start, if anywhere.
    pub cache_directory: Option<PathBuf>,
    /// The path below it of every model that the hub knows, by the model's id.
    pub models: BTreeMap<String, String>,
    /// Models whose ids are no path below it, and for which none is named.
    pub unplaced: BTreeSet<String>,
    /// Models whose chat template counts although engines do not usually render with it.
    pub force_chat_template: BTreeSet<String>,
    /// What the engines' time zone adds to UTC, in seconds.
    pub utc_offset_seconds: i32,
}

/// `tokenizers` as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTokenizers {
    directory: PathBuf,
    poll_ms: Option<u64>,
    cache_directory: Option<PathBuf>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    #[serde(default)]
    force_chat_template: BTreeSet<String>,
    #[serde(default)]
    utc_offset_minutes: i32,
}

/// Checks `tokenizers`; `known` are the ids that the rest of the configuration names, and others may be discovered later.
pub fn tokenizers<'a>(
    raw: RawTokenizers,
    known: impl Iterator<Item = &'a str>,
    may_be_discovered: bool,
    problems: &mut Problems,
) -> TokenizersConfig {
    if raw.directory.as_os_str().is_empty() {
        problems.add("tokenizers.directory", "", "a path");
    }
    let poll = problems.millis("tokenizers.poll_ms", raw.poll_ms, POLL_MS, 50, 600_000);
    if raw.utc_offset_minutes.abs() > DAY_MINUTES {
        let allowed = format!("-{DAY_MINUTES} to {DAY_MINUTES}");
        problems.add("tokenizers.utc_offset_minutes", raw.utc_offset_minutes, &allowed);
    }
    for (model_id, subdirectory) in &raw.models {
        problems.name("tokenizers.models", model_id);
        if !stays_below(subdirectory) {
            let allowed = "a path below tokenizers.directory, without `.` and `..`";
            problems.add(&format!("tokenizers.models[{model_id}]"), subdirectory, allowed);
        }
    }
    let mut config = TokenizersConfig {
        directory: raw.directory,
        poll,
        cache_directory: raw.cache_directory.or_else(default_cache),
        models: raw.models,
        unplaced: BTreeSet::new(),
        force_chat_template: raw.force_chat_template,
        utc_offset_seconds: raw.utc_offset_minutes.saturating_mul(60),
    };
    known.for_each(|model_id| config.know(model_id));
    let models = &config.models;
    if models.len() > MAX_MODELS {
        problems.add("tokenizers.models", format!("{} models", models.len()), &format!("at most {MAX_MODELS}"));
    }
    // Which models are discovered nobody can say yet.
    let unnamed = |model_id: &&String| !may_be_discovered && !models.contains_key(*model_id);
    for model_id in config.force_chat_template.iter().filter(unnamed) {
        problems.add("tokenizers.force_chat_template", model_id, "a model that is named elsewhere");
    }
    config
}

// === impl TokenizersConfig ===

impl TokenizersConfig {
    /// Looks for this model too. An id that is no path below the directory, as one that is a path of the engine's, has none
    /// unless one is named.
    pub fn know(&mut self, model_id: &str) {
        if model_id.is_empty() || self.models.contains_key(model_id) {
            return;
        }
        if !stays_below(model_id) {
            self.unplaced.insert(model_id.to_owned());
        } else if self.models.len() <= MAX_MODELS {
            self.models.insert(model_id.to_owned(), model_id.to_owned());
        }
    }
}

/// `warmroute` below the user's directory of caches, if there is one.
fn default_cache() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    caches.map(|caches| caches.join("warmroute"))
}

/// Whether a path leads below where it starts, as written.
fn stays_below(path: &str) -> bool {
    let normal = Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
    normal && !path.is_empty() && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(yaml: &str, known: &[&str]) -> (TokenizersConfig, Vec<String>) {
        let mut problems = Problems::default();
        let config = tokenizers(serde_norway::from_str(yaml).unwrap(), known.iter().copied(), false, &mut problems);
        (config, problems.into_lines())
    }

    #[test]
    fn known_models_are_at_their_ids_unless_another_place_is_named() {
        let yaml = "{directory: /m, models: {a: x/y, alias: b}, force_chat_template: [a], utc_offset_minutes: -90}";
        let (config, problems) = read(yaml, &["a", "org/b", "/models/c", "../d", "e/../../f", ""]);
        assert_eq!(problems, [""; 0]);
        let models: Vec<_> = config.models.iter().map(|(id, path)| (id.as_str(), path.as_str())).collect();
        assert_eq!(models, [("a", "x/y"), ("alias", "b"), ("org/b", "org/b")]);
        assert_eq!((config.poll.as_millis(), config.utc_offset_seconds), (5_000, -5_400));
        assert!(config.force_chat_template.contains("a"));
        assert_eq!(config.unplaced.iter().collect::<Vec<_>>(), ["../d", "/models/c", "e/../../f"]);
    }

    #[test]
    fn what_would_leave_the_directory_is_refused() {
        let yaml = "{directory: '', poll_ms: 1, models: {a: ../x, b: /y, c: ''}, force_chat_template: [z], \
                    utc_offset_minutes: 9999}";
        let expected = [
            "tokenizers.directory is ``, allowed is a path",
            "tokenizers.poll_ms is `1`, allowed is 50 to 600000",
            "tokenizers.utc_offset_minutes is `9999`, allowed is -1440 to 1440",
            "tokenizers.models[a] is `../x`, allowed is a path below tokenizers.directory, without `.` and `..`",
            "tokenizers.models[b] is `/y`, allowed is a path below tokenizers.directory, without `.` and `..`",
            "tokenizers.models[c] is ``, allowed is a path below tokenizers.directory, without `.` and `..`",
            "tokenizers.force_chat_template is `z`, allowed is a model that is named elsewhere",
        ];
        assert_eq!(read(yaml, &[]).1, expected);
    }
}
