//! Replicas from the pods that match a label selector, through the Kubernetes API.
//!
//! In: the API's list of pods, and its watch for changes. Out: a replica for each pod that is ready, has an address and is
//! not being deleted; its id is the pod's name, of all namespaces `<namespace>/<name>`, its address the pod's IP and the configured port. The watcher lists anew
//! after `410 Gone` and after anything else that breaks the watch; meanwhile what is known stays.
//!
//! A pod's annotations override what the configuration says: `warmroute.io/` and one of [`pod::ANNOTATIONS`]. A pod with one that
//! is not allowed is left out, and named in the log once.

mod pod;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Config};
use tracing::{debug, warn};

use self::pod::{PodKey, key, replica};
use super::Teller;
use crate::native::hub::config::{KubernetesDiscovery, PodNamespace, ReplicaConfig};

/// The pause before the API is looked for again.
const RETRY: Duration = Duration::from_secs(5);
/// How long the API may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The code of an API whose history does not go back so far.
const GONE: u16 = 410;

/// Why there is no client.
type NoClient = Box<dyn std::error::Error + Send + Sync>;

/// The pods that are known.
#[derive(Debug, Default)]
struct Pods {
    known: BTreeMap<PodKey, ReplicaConfig>,
    /// Those of a list that is not at its end yet.
    listed: BTreeMap<PodKey, ReplicaConfig>,
    /// What is wrong with which pod.
    problems: BTreeMap<PodKey, String>,
    /// Problems that the log has named.
    reported: BTreeSet<String>,
}

/// The name of a source, for metrics and the log.
pub(super) fn name(config: &KubernetesDiscovery) -> String {
    let namespace = match &config.namespace {
        PodNamespace::Own => "",
        PodNamespace::All => "*",
        PodNamespace::Named(name) => name,
    };
    format!("kubernetes:{namespace}/{}", config.label_selector)
}

/// Lists and watches the pods, and tells which are ready.
pub(super) async fn follow(config: KubernetesDiscovery, mut teller: Teller) {
    let mut pods = Pods::default();
    loop {
        match client(&config).await {
            Ok(client) => return watch_forever(client, &config, &mut pods, &mut teller).await,
            Err(error) => teller.failed(format!("the API is not known: {error}")),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn client(config: &KubernetesDiscovery) -> Result<Client, NoClient> {
    let mut reached = match &config.kubeconfig {
        None => Config::infer().await?,
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
    };
    reached.connect_timeout = Some(CONNECT_LIMIT);
    // The watcher tries again by itself, and what fails is to be seen.
    reached.default_retry = false;
    Ok(Client::try_from(reached)?)
}

async fn watch_forever(client: Client, config: &KubernetesDiscovery, pods: &mut Pods, teller: &mut Teller) {
    let api: Api<Pod> = match &config.namespace {
        PodNamespace::Own => Api::default_namespaced(client),
        PodNamespace::All => Api::all(client),
        PodNamespace::Named(name) => Api::namespaced(client, name),
    };
    let selected = watcher::Config::default().labels(&config.label_selector);
    let mut events = watch(api, selected).default_backoff().boxed();
    // The watcher's stream has no end: after an error it goes on.
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if pods.take(event, config) {
                    teller.replicas(pods.known.values().cloned().collect());
                } else {
                    teller.working();
                }
                pods.report();
            }
            // The watcher lists anew, which is as it should be after a long time without changes.
            Err(watcher::Error::WatchError(status)) if status.code == GONE => debug!("the pods are listed anew"),
            Err(error) => teller.failed(with_causes(&error)),
        }
    }
}

/// An error with what caused it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some say their causes themselves.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

// === impl Pods ===

impl Pods {
    /// Takes in what the API said; whether the replicas are others now, or are known for the first time.
    fn take(&mut self, event: Event<Pod>, config: &KubernetesDiscovery) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                self.problems.clear();
                false
            }
            Event::InitApply(pod) => {
                if let Some(replica) = self.read(&pod, config) {
                    self.listed.insert(key(&pod), replica);
                }
                false
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.listed);
                true
            }
            Event::Apply(pod) => {
                let key = key(&pod);
                match self.read(&pod, config) {
                    Some(replica) => self.known.insert(key, replica.clone()) != Some(replica),
                    None => self.known.remove(&key).is_some(),
                }
            }
            Event::Delete(pod) => {
                let key = key(&pod);
                self.problems.remove(&key);
                self.known.remove(&key).is_some()
            }
        }
    }

    fn read(&mut self, pod: &Pod, config: &KubernetesDiscovery) -> Option<ReplicaConfig> {
        let key = key(pod);
        self.problems.remove(&key);
        match replica(pod, config) {
            Ok(replica) => replica,
            Err(problem) => {
                self.problems.insert(key, problem);
                None
            }
        }
    }

    /// Logs each problem when it is new.
    fn report(&mut self) {
        let lines: BTreeSet<String> =
            self.problems.iter().map(|(key, problem)| format!("{key} is left out: {problem}")).collect();
        for line in lines.difference(&self.reported) {
            warn!("discovery: the pod {line}");
        }
        self.reported = lines;
    }
}
