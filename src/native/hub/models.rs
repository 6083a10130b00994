//! The models' directories below one directory.
//!
//! In: the ids of models, and a directory that is read again and again. Out: a [`VerifiedModel`] of every id each time one
//! changes, and a line for everything that is wrong or not there. A model is at the subdirectory of its id (`org/name`),
//! or at the one that the configuration names for it. Contents are compared, not times or names of files, so that the swap
//! of symbolic links by which a ConfigMap is updated is seen like any other change. They are not read again where the file system
//! says of every file what it said before: but every `READ_ANYWAY`th time all the same, for one that does not tell the truth.
//!
//! What a [`ModelsFollower`] finds changed counts once two readings found the same, so that of files that are being copied no
//! half is used; at its start also what has not changed for as long.
//!
//! A directory that is wrong or cannot be read keeps the model that it had; one that is gone takes it along. Compiling
//! takes seconds: whoever reads does so on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::config::TokenizersConfig;
use super::fleet::FleetBook;
use super::shelf::TextModels;
use crate::native::models::{
    ArtifactCache, FileStamps, FilesDigest, InvalidModelFiles, ModelFiles, ModelOptions, VerifiedModel, verified_from,
};

/// Of so many readings of a directory at least one looks at the contents.
const READ_ANYWAY: u32 = 12;

/// The directories, and what was last known good of each.
#[derive(Debug)]
pub struct ModelsDirectory {
    config: TokenizersConfig,
    cache: Option<ArtifactCache>,
    /// How long contents must have been the same before they count; `None` if they do at once.
    settle: Option<Duration>,
    known: BTreeMap<Place, Known>,
}

/// A subdirectory as it is to be read: models that share one share what it comes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    subdirectory: String,
    force_chat_template: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// Of the contents that were used last.
    digest: Option<FilesDigest>,
    /// What the file system said before these were read last; none where they could not be read.
    stamps: Option<FileStamps>,
    /// Readings since then.
    passed: u32,
    /// Of contents that were read once, and wait to be read again.
    waiting: Option<FilesDigest>,
    model: Option<Arc<VerifiedModel>>,
    problem: Option<String>,
}

/// What one reading came to.
#[derive(Debug, Default)]
pub struct ModelsReading {
    /// The models that there are, by id.
    pub models: TextModels,
    /// What is wrong, a line each.
    pub problems: Vec<String>,
    /// What an operator should know and is not wrong, a line each.
    pub notes: Vec<String>,
}

/// Reads the directories time and again, reports what changes and logs what is wrong.
#[derive(Debug)]
pub struct ModelsFollower {
    directory: ModelsDirectory,
    /// Whose models are looked for beside those that the configuration names.
    fleet: Option<Arc<FleetBook>>,
    metrics: ModelMetrics,
    models: TextModels,
    reported: BTreeSet<String>,
}

/// The metrics of the directories.
#[derive(Clone, Debug, Default)]
pub struct ModelMetrics {
    models: Gauge,
    problems: Gauge,
    reloads: Counter,
}

// === impl ModelsDirectory ===

impl ModelsDirectory {
    /// The directories of `config`, not read yet.
    pub fn new(config: TokenizersConfig) -> ModelsDirectory {
        let cache = config.cache_directory.clone().map(ArtifactCache::new);
        ModelsDirectory { config, cache, settle: None, known: BTreeMap::new() }
    }

    /// Whether all that was read counts.
    fn is_settled(&self) -> bool {
        self.known.values().all(|known| known.waiting.is_none())
    }

    /// Reads the directories. If that of all of them cannot be read, every model is kept.
    pub fn read(&mut self) -> ModelsReading {
        let mut reading = ModelsReading::default();
        let directory = self.config.directory.clone();
        if let Err(error) = std::fs::read_dir(&directory) {
            let line = format!("tokenizers.directory is `{}`, which cannot be read: {error}", directory.display());
            reading.problems.push(line);
        } else {
            let places: BTreeSet<Place> = self.config.models.iter().map(|(id, path)| self.place(id, path)).collect();
            self.known.retain(|place, _| places.contains(place));
            for place in places {
                let path = directory.join(&place.subdirectory);
                let options = ModelOptions { force_chat_template: place.force_chat_template };
                if is_gone(&path) {
                    self.known.remove(&place);
                } else {
                    let is_new = !self.known.contains_key(&place);
                    // Before the contents are read: what changes while they are is seen as young next time.
                    let counts = self.settle.is_none_or(|settle| is_new && is_unchanged_for(&path, settle));
                    let known = self.known.entry(place).or_default();
                    let stamps = FileStamps::of(&path);
                    if known.passes(stamps.as_ref()) {
                        continue;
                    }
                    known.stamps = stamps;
                    known.update(ModelFiles::read(&path), options, counts, self.cache.as_ref());
                }
            }
        }
        self.collect(&mut reading);
        reading
    }

    fn collect(&self, reading: &mut ModelsReading) {
        let directory = self.config.directory.display();
        reading.notes.extend(self.config.unplaced.iter().map(|model_id| {
            format!("{model_id} has no directory: name one in tokenizers.models, or its texts get no hint")
        }));
        for (model_id, subdirectory) in &self.config.models {
            let Some(known) = self.known.get(&self.place(model_id, subdirectory)) else {
                let line = format!("{model_id}: {directory}/{subdirectory} is not there, so its texts get no hint");
                reading.notes.push(line);
                continue;
            };
            if let Some(problem) = &known.problem {
                reading.problems.push(format!("{model_id}: {subdirectory}/{problem}"));
            }
            if let Some(model) = &known.model {
                reading.notes.extend(model.warnings.iter().map(|warning| format!("{model_id}: {warning}")));
                if !model.has_chat_template && !model.leaves_out_chat_template {
                    reading.notes.push(format!("{model_id}: there is no chat template, so conversations get no hint"));
                }
                reading.models.insert(model_id.clone(), Arc::clone(model));
            }
        }
    }

    fn place(&self, model_id: &str, subdirectory: &str) -> Place {
        let force_chat_template = self.config.force_chat_template.contains(model_id);
        Place { subdirectory: subdirectory.to_owned(), force_chat_template }
    }
}

/// Whether a path leads nowhere. What cannot be looked at may be there.
fn is_gone(path: &Path) -> bool {
    let kind = std::fs::metadata(path).err().map(|error| error.kind());
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

/// Whether nothing in a directory was written, renamed or replaced for so long. What a copy does to times shows in this
/// one too: nobody can set it.
fn is_unchanged_for(path: &Path, settle: Duration) -> bool {
    let now = SystemTime::now();
    let is_old = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        let since_1970 =
            Duration::new(u64::try_from(metadata.ctime()).ok()?, u32::try_from(metadata.ctime_nsec()).ok()?);
        let age = now.duration_since(SystemTime::UNIX_EPOCH.checked_add(since_1970)?).ok()?;
        Some(age > settle)
    };
    let entries =
        std::fs::read_dir(path).map(|entries| entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
    let Ok(entries) = entries else { return false };
    is_old(path) == Some(true) && entries.iter().all(|entry| is_old(entry) == Some(true))
}

// === impl Known ===

impl Known {
    /// Whether the contents need not be read, as the file system says that they are those that were used last.
    fn passes(&mut self, stamps: Option<&FileStamps>) -> bool {
        self.passed += 1;
        let is_same = self.digest.is_some()
            && self.waiting.is_none()
            && stamps.is_some_and(|stamps| self.stamps.as_ref() == Some(stamps));
        if is_same && self.passed < READ_ANYWAY {
            return true;
        }
        self.passed = 0;
        false
    }

    /// Takes in what was read. Unless it `counts` at once, it does when it is read again.
    fn update(
        &mut self,
        files: Result<ModelFiles, InvalidModelFiles>,
        options: ModelOptions,
        counts: bool,
        cache: Option<&ArtifactCache>,
    ) {
        let waiting = self.waiting.take();
        let files = match files {
            Ok(files) => files,
            Err(error) => {
                // Whatever comes next is looked at, even if it is what there was before.
                (self.digest, self.problem) = (None, Some(error.to_string()));
                return;
            }
        };
        let digest = Some(files.digest());
        if self.digest == digest {
            return;
        }
        if !counts && waiting != digest {
            self.waiting = digest;
            return;
        }
        self.digest = digest;
        match verified_from(&files, options, cache) {
            Ok(model) => (self.model, self.problem) = (Some(Arc::new(model)), None),
            Err(error) => self.problem = Some(error.to_string()),
        }
    }
}

// === impl ModelsFollower ===

impl ModelsFollower {
    /// Follows the directories of `config`, which are not read yet.
    pub fn new(config: TokenizersConfig, metrics: ModelMetrics) -> ModelsFollower {
        let settle = Some(config.poll);
        let directory = ModelsDirectory { settle, ..ModelsDirectory::new(config) };
        ModelsFollower { directory, fleet: None, metrics, models: TextModels::new(), reported: BTreeSet::new() }
    }

    /// Looks also for the models of the replicas that are followed at each reading.
    pub fn with_fleet(self, fleet: &Arc<FleetBook>) -> ModelsFollower {
        ModelsFollower { fleet: Some(Arc::clone(fleet)), ..self }
    }

    /// Reads the directories once; the models, if they are not what they were. Before the first reading there are none.
    pub fn poll(&mut self) -> Option<&TextModels> {
        let served = self.fleet.iter().flat_map(|fleet| fleet.models());
        served.for_each(|model_id| self.directory.config.know(&model_id));
        let ModelsReading { models, problems, notes } = self.directory.read();
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.models.set(count(models.len()));
        self.metrics.problems.set(count(problems.len()));
        let lines: BTreeSet<String> = problems.into_iter().chain(notes).collect();
        for line in lines.difference(&self.reported) {
            warn!("tokenizers: {line}");
        }
        self.reported = lines;
        let versions = |models: &TextModels| models.iter().map(|(id, it)| (id.clone(), it.version)).collect::<Vec<_>>();
        if versions(&models) == versions(&self.models) {
            return None;
        }
        self.models = models;
        self.metrics.reloads.inc();
        info!(models = self.models.len(), "the models' tokenizers changed");
        Some(&self.models)
    }

    /// Polls at once and then every `every` until `stop`, calls back on each change, and says when for the first time
    /// all that is there counts. A poll that takes long holds up no other task.
    pub async fn run(
        mut self,
        every: Duration,
        on_change: impl Fn(&TextModels),
        first: oneshot::Sender<()>,
        stop: CancellationToken,
    ) {
        let mut first = Some(first);
        loop {
            let poll = spawn_blocking(move || {
                let changed = self.poll().is_some();
                (self, changed)
            });
            let Some(polled) = stop.run_until_cancelled(poll).await else { return };
            let Ok((follower, changed)) = polled else { return error!("the models are followed no more") };
            self = follower;
            if changed {
                on_change(&self.models);
            }
            if self.directory.is_settled()
                && let Some(first) = first.take()
            {
                let _ = first.send(());
            }
            if stop.run_until_cancelled(tokio::time::sleep(every)).await.is_none() {
                return;
            }
        }
    }
}

// === impl ModelMetrics ===

impl ModelMetrics {
    /// Adds the metrics to the hub's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("models", "Models whose text can be turned into token ids", self.models.clone());
        registry.register("model_problems", "What is wrong in the models' directories now", self.problems.clone());
        registry.register("model_reloads", "Times that the models' tokenizers changed", self.reloads.clone());
    }
}

#[cfg(test)]
mod tests;
