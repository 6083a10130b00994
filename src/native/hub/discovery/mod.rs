//! Where the replicas come from: the list of the configuration, and whatever finds more of them while the hub runs.
//!
//! ```text
//! replicas, Hub::set_replicas ─► "replicas" ───►┐
//! file of replicas ── polled ──► file ─────────►┤
//! name servers ── by TTL ──────► dns ──────────►├─ Discovery ── the whole list ──► Fleet::set
//! Kubernetes API ── watched ───► kubernetes ───►┘
//! ```
//!
//! In: from each source all replicas that it knows, each time they change. Out: all of them, as the [`Fleet`] is to follow
//! them. Ids differ: of two replicas with one id the one of the source that the configuration has first is followed, and the
//! log names the other; so of two with one event publisher, for one model and tenant. A source that fails keeps what it had; how long is the source's to say. Until every source has
//! answered once the hub is not ready, and subscribers that need the full state wait, since a state without replicas that
//! only were not found yet would have them forget what they know; `discovery.initial_timeout_ms` bounds that.

mod dns;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod metrics;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::config::{DiscoveryConfig, MAX_REPLICAS, ReplicaConfig, shared_publishers};
use super::fleet::Fleet;
use super::state::HubState;
pub use metrics::DiscoveryMetrics;
use metrics::SourceMetrics;

/// The list of the configuration, which is the first source.
const LISTED: SourceIndex = SourceIndex(0);
/// The most clashes that are named in the log.
const MAX_NAMED_CLASHES: usize = 64;

/// Merges what all sources find.
pub struct Discovery {
    fleet: Arc<Fleet>,
    state: Arc<HubState>,
    metrics: DiscoveryMetrics,
    found: Mutex<Found>,
}

/// A source, by its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceIndex(usize);

#[derive(Debug, Default)]
struct Found {
    sources: Vec<Source>,
    /// Clashes that the log has named.
    reported: BTreeSet<String>,
}

#[derive(Debug)]
struct Source {
    name: String,
    replicas: Vec<ReplicaConfig>,
    has_answered: bool,
    metrics: SourceMetrics,
}

/// Where one source tells what it finds.
struct Teller {
    discovery: Arc<Discovery>,
    source: SourceIndex,
    name: String,
    metrics: SourceMetrics,
    /// What the log was last told to be wrong.
    problem: Option<String>,
}

// === impl Discovery ===

impl Discovery {
    /// Follows the replicas that are listed, and begins to look for the others until `stop`.
    pub fn start(
        config: &DiscoveryConfig,
        listed: &[ReplicaConfig],
        fleet: &Arc<Fleet>,
        state: &Arc<HubState>,
        metrics: DiscoveryMetrics,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Discovery> {
        let (fleet, state) = (Arc::clone(fleet), Arc::clone(state));
        let discovery = Arc::new(Discovery { fleet, state, metrics, found: Mutex::default() });
        let replicas = Discovery::teller(&discovery, "replicas".to_owned());
        let files: Vec<_> = config.files.iter().map(|file| (file, format!("file:{}", file.path.display()))).collect();
        let files = files.into_iter().map(|(file, name)| (file.clone(), Discovery::teller(&discovery, name)));
        let dns =
            config.dns.iter().map(|dns| (dns.clone(), Discovery::teller(&discovery, format!("dns:{}", dns.name))));
        // All of them before any: none is to answer as if there were no others.
        let (files, dns): (Vec<_>, Vec<_>) = (files.collect(), dns.collect());
        #[cfg(feature = "kubernetes")]
        let pods: Vec<_> = config
            .kubernetes
            .iter()
            .map(|pods| (pods.clone(), Discovery::teller(&discovery, kubernetes::name(pods))))
            .collect();
        discovery.state.set_awaits_replicas(!config.is_empty());
        discovery.tell(replicas.source, listed.to_vec());
        for (file, teller) in files {
            tasks.spawn(until(stop.clone(), file::follow(file, teller)));
        }
        for (dns, teller) in dns {
            tasks.spawn(until(stop.clone(), dns::follow(dns, teller)));
        }
        #[cfg(feature = "kubernetes")]
        for (pods, teller) in pods {
            tasks.spawn(until(stop.clone(), kubernetes::follow(pods, teller)));
        }
        if !config.is_empty() {
            tasks.spawn(until(stop.clone(), give_up_waiting(Arc::clone(&discovery), config.initial_timeout)));
        }
        discovery
    }

    /// Replaces the list of the configuration.
    pub fn set_listed(&self, replicas: &[ReplicaConfig]) {
        self.tell(LISTED, replicas.to_vec());
    }

    fn teller(discovery: &Arc<Discovery>, name: String) -> Teller {
        let metrics = discovery.metrics.source(&name);
        let mut found = discovery.found.lock().unwrap_or_else(PoisonError::into_inner);
        let source = SourceIndex(found.sources.len());
        found.sources.push(Source {
            name: name.clone(),
            replicas: Vec::new(),
            has_answered: false,
            metrics: metrics.clone(),
        });
        drop(found);
        Teller { discovery: Arc::clone(discovery), source, name, metrics, problem: None }
    }

    /// `source` has answered, with these replicas.
    fn tell(&self, source: SourceIndex, replicas: Vec<ReplicaConfig>) {
        // Under the lock until the fleet has them, so that no older list comes after this one.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = found.sources.get_mut(source.0) {
            source.metrics.answered(replicas.len());
            source.replicas = replicas;
            source.has_answered = true;
        }
        let (merged, clashes) = found.merged();
        self.metrics.clashes(clashes.len());
        for line in clashes.difference(&found.reported).take(MAX_NAMED_CLASHES) {
            warn!("discovery: {line}");
        }
        found.reported = clashes;
        self.fleet.set(&merged);
        if found.sources.iter().all(|source| source.has_answered) {
            self.state.set_awaits_replicas(false);
        }
    }

    /// The sources that have not answered yet.
    fn unanswered(&self) -> Vec<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = found.sources.iter().filter(|source| !source.has_answered);
        silent.map(|source| source.name.clone()).collect()
    }
}

// === impl Found ===

impl Found {
    /// All replicas, the first of each id, and a line for each that is left out.
    fn merged(&self) -> (Vec<ReplicaConfig>, BTreeSet<String>) {
        let mut merged = Vec::new();
        let mut owners: HashMap<&str, &str> = HashMap::new();
        let mut left_out = BTreeSet::new();
        for source in &self.sources {
            let name = &source.name;
            for replica in &source.replicas {
                let id = replica.id.as_str();
                if let Some(owner) = owners.get(id) {
                    let address = &replica.address;
                    left_out.insert(format!("{name}: the replica {id} at {address} is not used: {owner} has that id"));
                } else if merged.len() >= MAX_REPLICAS {
                    left_out
                        .insert(format!("{name}: {id} is not used: there are {MAX_REPLICAS} others, the most allowed"));
                } else {
                    owners.insert(id, name);
                    merged.push(replica.clone());
                }
            }
        }
        // From the end, so that the places of those before stay.
        for (at, other) in shared_publishers(&merged).into_iter().rev() {
            let (replica, other) = (merged.remove(at), merged.get(other));
            let (id, address, events) = (&replica.id, &replica.address, &replica.kv_events);
            let owner = other.map_or("another one", |other| &other.id);
            left_out
                .insert(format!("the replica {id} at {address} is not used: {owner} has the same publisher, {events}"));
        }
        (merged, left_out)
    }
}

// === impl Teller ===

impl Teller {
    /// These are all replicas that the source knows now.
    fn replicas(&mut self, replicas: Vec<ReplicaConfig>) {
        self.working();
        self.changed(replicas);
    }

    /// The same, of a source of which not all works.
    fn changed(&mut self, replicas: Vec<ReplicaConfig>) {
        self.discovery.tell(self.source, replicas);
    }

    /// The source works, and knows no other replicas than before.
    fn working(&mut self) {
        self.metrics.is_up(true);
        if self.problem.take().is_some() {
            info!(source = self.name, "discovery works again");
        }
    }

    /// What the source said before counts no more, as it failed for too long.
    fn gave_up(&mut self) {
        warn!(source = self.name, "discovery failed for too long: its replicas are given up");
        self.discovery.tell(self.source, Vec::new());
        self.metrics.is_up(false);
    }

    /// The source failed; what it said before still counts. The log has each problem once.
    fn failed(&mut self, problem: String) {
        self.metrics.failed();
        self.metrics.is_up(false);
        if self.problem.as_ref() != Some(&problem) {
            warn!(source = self.name, "discovery failed, what is known stays: {problem}");
            self.problem = Some(problem);
        }
    }
}

/// What is wrong with the files that `config` names, a line each.
pub fn problems(config: &DiscoveryConfig) -> Vec<String> {
    config.files.iter().filter_map(|file| file::problem(&file.path)).collect()
}

/// Runs a task until `stop`.
async fn until(stop: CancellationToken, task: impl Future<Output = ()> + Send) {
    stop.run_until_cancelled(task).await;
}

/// Lets the hub be ready without what has not answered for too long.
async fn give_up_waiting(discovery: Arc<Discovery>, limit: Duration) {
    if tokio::time::timeout(limit, discovery.state.replicas_found()).await.is_err() {
        let silent = discovery.unanswered().join(", ");
        warn!("no answer yet from {silent}: filters are told what is known without it");
        discovery.state.set_awaits_replicas(false);
    }
}

#[cfg(test)]
mod tests;
