//! CachePolicies from a directory.
//!
//! In: a directory of YAML and JSON files, read again and again. Out: the policies of all tenants each time they change,
//! and a line for everything that is wrong or not used. Contents are compared, not times or names of files, so that the
//! swap of symbolic links by which a ConfigMap is updated is seen like any other change.
//!
//! A file that is wrong or cannot be read keeps the policies that it had; a file that is gone takes them along. Of several
//! policies for one tenant, that with the lexicographically smallest name counts.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use xxhash_rust::xxh3::xxh3_64;

use self::file::is_policy_file;
pub use self::file::{NamedPolicy, read_file};
use crate::routing::policy::Policy;

/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The most files.
const MAX_FILES: usize = 1_024;
/// The most policies: as many as a filter takes.
const MAX_POLICIES: usize = 4_096;

/// The most tenants that a line of the log names.
const MAX_NAMED_TENANTS: usize = 8;

/// Policies by tenant; none is those without a policy of their own.
pub type TenantPolicies = BTreeMap<Option<String>, Policy>;

/// A directory, and what was last known good of each of its files.
#[derive(Debug)]
pub struct PolicyDirectory {
    path: PathBuf,
    files: BTreeMap<String, KnownFile>,
}

/// What one reading of the directory came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The policies that count.
    pub policies: TenantPolicies,
    /// Files of policies in the directory.
    pub files: usize,
    /// What is wrong, a line each, with the file's name.
    pub problems: Vec<String>,
    /// Policies that do not count because another of their tenant does, a line each.
    pub unused: Vec<String>,
}

/// Reads a directory time and again, reports what changes and logs what is wrong.
#[derive(Debug)]
pub struct PolicyFollower {
    directory: PolicyDirectory,
    metrics: PolicyMetrics,
    policies: TenantPolicies,
    reported: BTreeSet<String>,
}

/// The metrics of the directory.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetrics {
    files: Gauge,
    problems: Gauge,
    reloads: Counter,
}

#[derive(Debug, Default)]
struct KnownFile {
    /// Of the contents that were read last.
    digest: Option<u64>,
    policies: Vec<NamedPolicy>,
    problems: Vec<String>,
}

// === impl PolicyDirectory ===

impl PolicyDirectory {
    /// The directory at `path`, not read yet.
    pub fn new(path: impl Into<PathBuf>) -> PolicyDirectory {
        PolicyDirectory { path: path.into(), files: BTreeMap::new() }
    }

    /// Reads the directory. One that cannot be read keeps all that it had.
    pub fn read(&mut self) -> Reading {
        let mut problems = Vec::new();
        match listed(&self.path) {
            Err(error) => {
                problems.push(format!("policies.directory is `{}`, which cannot be read: {error}", self.path.display()))
            }
            Ok(mut names) => {
                if names.len() > MAX_FILES {
                    let (path, count) = (self.path.display(), names.len());
                    problems.push(format!("{path} has {count} files, allowed: {MAX_FILES}; the first of them count"));
                }
                names.truncate(MAX_FILES);
                self.files.retain(|name, _| names.binary_search(name).is_ok());
                for name in names {
                    let contents = contents(&self.path.join(&name));
                    let known = self.files.entry(name.clone()).or_default();
                    problems.extend(known.update(&name, contents));
                }
            }
        }
        self.chosen(problems)
    }

    /// Chooses among what the files have.
    fn chosen(&self, problems: Vec<String>) -> Reading {
        let mut reading = Reading { files: self.files.len(), problems, ..Reading::default() };
        let mut all: Vec<(&NamedPolicy, &str)> = Vec::new();
        for (file, known) in &self.files {
            all.extend(known.policies.iter().map(|policy| (policy, file.as_str())));
        }
        // Stable: equal names keep the order of the files, and that within a file.
        all.sort_by(|(a, _), (b, _)| (&a.tenant_id, &a.name).cmp(&(&b.tenant_id, &b.name)));
        let mut counting: Option<(&NamedPolicy, &str)> = None;
        for (policy, file) in all {
            match counting.filter(|(first, _)| first.tenant_id == policy.tenant_id) {
                Some((first, first_file)) => {
                    let (name, first) = (&policy.name, &first.name);
                    let tenant = policy.tenant_id.as_deref().unwrap_or("default");
                    reading.unused.push(format!(
                        "{file}: the CachePolicy {name} of tenant {tenant} is not used: {first} in {first_file} comes first"
                    ));
                }
                None if reading.policies.len() < MAX_POLICIES => {
                    reading.policies.insert(policy.tenant_id.clone(), policy.policy.clone());
                    counting = Some((policy, file));
                }
                None => reading.unused.push(format!(
                    "{file}: the CachePolicy {} is not used: there are {MAX_POLICIES} others, and no more are allowed",
                    policy.name
                )),
            }
        }
        reading
    }
}

/// The names of the policy files, in order. A name that is not UTF-8 is none.
fn listed(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_policy_file(name)));
    }
    names.sort_unstable();
    Ok(names)
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

// === impl KnownFile ===

impl KnownFile {
    /// Takes the file's contents, and returns what is wrong with it now.
    fn update(&mut self, name: &str, contents: io::Result<Vec<u8>>) -> Vec<String> {
        let contents = match contents {
            Err(error) => return vec![format!("{name}: cannot be read: {error}")],
            Ok(contents) if contents.len() as u64 > MAX_FILE_BYTES => {
                return vec![format!("{name}: more than {MAX_FILE_BYTES} bytes, allowed: up to {MAX_FILE_BYTES}")];
            }
            Ok(contents) => contents,
        };
        let digest = Some(xxh3_64(&contents));
        if self.digest != digest {
            self.digest = digest;
            match read_file(name, &contents) {
                Ok(policies) => (self.policies, self.problems) = (policies, Vec::new()),
                Err(problems) => self.problems = problems.iter().map(|problem| format!("{name}: {problem}")).collect(),
            }
        }
        self.problems.clone()
    }
}

// === impl PolicyFollower ===

impl PolicyFollower {
    /// Follows the directory at `path`, which is not read yet.
    pub fn new(path: impl Into<PathBuf>, metrics: PolicyMetrics) -> PolicyFollower {
        PolicyFollower {
            directory: PolicyDirectory::new(path),
            metrics,
            policies: TenantPolicies::new(),
            reported: BTreeSet::new(),
        }
    }

    /// Reads the directory once; the policies, if they are not what they were. Before the first reading there are none.
    pub fn poll(&mut self) -> Option<&TenantPolicies> {
        let reading = self.directory.read();
        self.metrics.files.set(i64::try_from(reading.files).unwrap_or(i64::MAX));
        self.metrics.problems.set(i64::try_from(reading.problems.len()).unwrap_or(i64::MAX));
        let lines: BTreeSet<String> = reading.problems.into_iter().chain(reading.unused).collect();
        for line in lines.difference(&self.reported) {
            warn!("policies: {line}");
        }
        self.reported = lines;
        if reading.policies == self.policies {
            return None;
        }
        let tenants = changed_tenants(&self.policies, &reading.policies);
        self.policies = reading.policies;
        self.metrics.reloads.inc();
        info!(policies = self.policies.len(), tenants, "the CachePolicies changed");
        Some(&self.policies)
    }

    /// Polls every `every` until `stop`, for the first time after that, and calls back on each change. A poll that hangs
    /// holds up no other task.
    pub async fn run(mut self, every: Duration, on_change: impl Fn(&TenantPolicies), stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            let poll = tokio::task::spawn_blocking(move || {
                let changed = self.poll().is_some();
                (self, changed)
            });
            let Some(Ok((follower, changed))) = stop.run_until_cancelled(poll).await else { return };
            self = follower;
            if changed {
                on_change(&self.policies);
            }
        }
    }
}

/// The tenants whose policy differs, the first few by name; `default` is that of tenants without one of their own.
fn changed_tenants(before: &TenantPolicies, after: &TenantPolicies) -> String {
    let tenants: BTreeSet<&Option<String>> = before.keys().chain(after.keys()).collect();
    let changed: Vec<&str> = tenants
        .into_iter()
        .filter(|tenant| before.get(*tenant) != after.get(*tenant))
        .map(|tenant| tenant.as_deref().unwrap_or("default"))
        .collect();
    let named = changed.iter().take(MAX_NAMED_TENANTS).copied().collect::<Vec<_>>().join(", ");
    match changed.len().saturating_sub(MAX_NAMED_TENANTS) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

// === impl PolicyMetrics ===

impl PolicyMetrics {
    /// Adds the metrics to the hub's.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("policy_files", "Files of CachePolicies in the directory", self.files.clone());
        registry.register("policy_problems", "What is wrong in these files now", self.problems.clone());
        registry.register("policy_reloads", "Times that the CachePolicies changed", self.reloads.clone());
    }
}

#[cfg(test)]
mod tests;
