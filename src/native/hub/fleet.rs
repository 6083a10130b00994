//! The replicas that the hub follows, which can change while it runs.
//!
//! In: the replicas that there should be, as a whole. Effects: a [`Source`] and a [`Scraper`] for each, started and ended so
//! that one whose configuration is as it was goes on undisturbed. A replica that is no longer there is announced as gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::config::{HubConfig, ReplicaConfig};
use super::followed::ReplicaIndex;
use super::metrics::{Metrics, ReplicaMetrics};
use super::scrape::{ScrapeClient, Scraper, client};
use super::sockets::Sockets;
use super::source::{LastScrape, ProcessChanged, Publisher, Source};
use super::state::HubState;
use super::stream::EventStream;
use super::transport::Transport;

/// All replicas that are followed.
pub struct Fleet {
    hub: HubConfig,
    state: Arc<HubState>,
    metrics: Arc<Metrics>,
    client: ScrapeClient,
    stop: CancellationToken,
    tasks: TaskTracker,
    replicas: Mutex<HashMap<String, Follower>>,
}

/// One replica's tasks.
struct Follower {
    config: ReplicaConfig,
    /// Each rank's number and metrics; those of the replica itself where it has no others.
    ranks: Vec<(ReplicaIndex, ReplicaMetrics)>,
    stop: CancellationToken,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet without replicas; all that it starts ends with `stop`.
    pub fn new(hub: &HubConfig, state: &Arc<HubState>, metrics: &Arc<Metrics>, stop: &CancellationToken) -> Fleet {
        Fleet {
            hub: hub.clone(),
            state: Arc::clone(state),
            metrics: Arc::clone(metrics),
            client: client(),
            stop: stop.clone(),
            tasks: TaskTracker::new(),
            replicas: Mutex::default(),
        }
    }

    /// Follows these replicas, whose ids differ, from now on, and no others.
    pub fn set(&self, replicas: &[ReplicaConfig]) {
        let mut followers = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: HashMap<&str, &ReplicaConfig> =
            replicas.iter().map(|config| (config.id.as_str(), config)).collect();
        followers.retain(|id, follower| {
            let stays = wanted.get(id.as_str()).is_some_and(|config| **config == follower.config);
            if !stays {
                info!(replica = id, "not followed any more");
                follower.stop.cancel();
                follower.ranks.iter().for_each(|(index, _)| self.state.unfollow(*index));
            }
            stays
        });
        for config in replicas {
            if !followers.contains_key(&config.id) {
                followers.insert(config.id.clone(), self.follow(config));
            }
        }
    }

    /// The metrics of a replica that is followed.
    pub fn metrics(&self, index: ReplicaIndex) -> Option<ReplicaMetrics> {
        let followers = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ranks = followers.values().flat_map(|follower| &follower.ranks);
        ranks.find(|(followed, _)| *followed == index).map(|(_, metrics)| metrics.clone())
    }

    /// Waits until all tasks have ended, which they are told by `stop`.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn follow(&self, config: &ReplicaConfig) -> Follower {
        let stop = self.stop.child_token();
        let ranks = config.ranks().map(|rank| self.follow_rank(config, rank, &stop)).collect();
        Follower { config: config.clone(), ranks, stop }
    }

    /// Follows one rank of a replica, or the replica itself where it has no others.
    fn follow_rank(
        &self,
        config: &ReplicaConfig,
        rank: Option<u32>,
        stop: &CancellationToken,
    ) -> (ReplicaIndex, ReplicaMetrics) {
        let index = self.state.follow(config, rank);
        let metrics = self.metrics.replica(&config.member_id(rank));
        let (changed, process_changes) = mpsc::channel(1);
        let scraped = LastScrape::default();
        let publisher = Publisher { index, name: config.member_id(rank), rank };
        match config.event_stream() {
            Some(_) => {
                let stream = EventStream::new(config, rank);
                self.start(publisher, stream, &metrics, &scraped, process_changes, stop);
            }
            None => {
                let sockets = Sockets::new(config, rank);
                self.start(publisher, sockets, &metrics, &scraped, process_changes, stop);
            }
        }
        let scraper = Scraper {
            index,
            url: config.metrics.clone(),
            every: self.hub.scrape_interval,
            pressure_ceiling: self.hub.pressure_ceiling,
            state: Arc::clone(&self.state),
            metrics: metrics.clone(),
            changed,
            read: scraped,
            client: self.client.clone(),
        };
        self.tasks.spawn(scraper.run(stop.clone()));
        (index, metrics)
    }

    fn start<T: Transport>(
        &self,
        publisher: Publisher,
        transport: T,
        metrics: &ReplicaMetrics,
        scraped: &LastScrape,
        changes: mpsc::Receiver<ProcessChanged>,
        stop: &CancellationToken,
    ) {
        let state = Arc::clone(&self.state);
        let source = Source::new(publisher, transport, &self.hub, state, metrics.clone(), scraped.clone());
        self.tasks.spawn(source.run(changes, stop.clone()));
    }
}
