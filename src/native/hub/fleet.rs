//! The replicas that the hub follows, which can change while it runs.
//!
//! In: the replicas that there should be, as a whole. Effects: a [`Source`] for each of its ranks and a [`Scraper`] for each, started and ended so
//! that one whose configuration is as it was goes on undisturbed. A replica that is no longer there is announced as gone, and
//! its metrics go once its tasks have ended. What else has to know who is followed reads the [`FleetBook`].

mod book;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use super::config::{HubConfig, ReplicaConfig};
use super::followed::ReplicaIndex;
use super::metrics::{Metrics, ReplicaMetrics};
use super::scrape::{ScrapeClient, ScrapeTarget, ScrapeView, Scraper};
use super::sockets::Sockets;
use super::source::{LastScrape, Publisher, Source};
use super::state::HubState;
use super::stream::EventStream;
pub use book::FleetBook;

/// All replicas that are followed.
pub struct Fleet {
    hub: HubConfig,
    state: Arc<HubState>,
    metrics: Arc<Metrics>,
    client: ScrapeClient,
    stop: CancellationToken,
    tasks: TaskTracker,
    followers: Arc<Mutex<Followers>>,
    book: Arc<FleetBook>,
}

/// By the replica's id.
type Followers = HashMap<String, Follower>;

/// One replica's tasks.
struct Follower {
    config: ReplicaConfig,
    /// The replica itself, or each of its ranks where these are followed apart.
    members: Vec<Member>,
    stop: CancellationToken,
}

/// What is announced as one replica.
struct Member {
    index: ReplicaIndex,
    rank: Option<u32>,
    metrics: ReplicaMetrics,
    scrapes: watch::Receiver<ScrapeView>,
}

/// What operators see of one replica.
pub struct FollowerView {
    /// Its configuration.
    pub config: ReplicaConfig,
    /// Which of its ranks this is, where they are followed apart.
    pub rank: Option<u32>,
    /// Its metrics.
    pub metrics: ReplicaMetrics,
    /// How the reads of the engine's metrics go.
    pub scrapes: ScrapeView,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet without replicas, whose metrics are read by `client`; all that it starts ends with `stop`.
    pub fn new(
        hub: &HubConfig,
        state: &Arc<HubState>,
        metrics: &Arc<Metrics>,
        client: ScrapeClient,
        stop: &CancellationToken,
    ) -> Fleet {
        Fleet {
            hub: hub.clone(),
            state: Arc::clone(state),
            metrics: Arc::clone(metrics),
            client,
            stop: stop.clone(),
            tasks: TaskTracker::new(),
            followers: Arc::default(),
            book: Arc::default(),
        }
    }

    /// Follows these replicas, whose ids differ, from now on, and no others.
    pub fn set(&self, replicas: &[ReplicaConfig]) {
        let mut followers = lock(&self.followers);
        let wanted: HashMap<&str, &ReplicaConfig> =
            replicas.iter().map(|config| (config.id.as_str(), config)).collect();
        followers.retain(|id, follower| {
            let stays = wanted.get(id.as_str()).is_some_and(|config| **config == follower.config);
            if !stays {
                info!(replica = id, "not followed any more");
                follower.stop.cancel();
                follower.members.iter().for_each(|member| self.state.unfollow(member.index));
            }
            stays
        });
        for config in replicas {
            if !followers.contains_key(&config.id) {
                info!(replica = config.id, address = config.address, model = config.model, "followed");
                followers.insert(config.id.clone(), self.follow(config));
                self.metrics.contract().know_model(&config.model);
            }
        }
        self.book.set(followers.values().map(|follower| &follower.config));
    }

    /// What others need to know of the replicas.
    pub fn book(&self) -> &Arc<FleetBook> {
        &self.book
    }

    /// What operators see of the replicas that are followed.
    pub fn view(&self) -> HashMap<ReplicaIndex, FollowerView> {
        let view = |follower: &Follower, member: &Member| FollowerView {
            config: follower.config.clone(),
            rank: member.rank,
            metrics: member.metrics.clone(),
            scrapes: member.scrapes.borrow().clone(),
        };
        let followers = lock(&self.followers);
        let of = |follower: &Follower| {
            follower.members.iter().map(|member| (member.index, view(follower, member))).collect::<Vec<_>>()
        };
        followers.values().flat_map(of).collect()
    }

    /// Waits until all tasks have ended, which they are told by `stop`.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn follow(&self, config: &ReplicaConfig) -> Follower {
        let stop = self.stop.child_token();
        let scraped = LastScrape::default();
        let (mut members, mut targets, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for rank in config.ranks() {
            let (member, target, source) = self.follow_rank(config, rank, &scraped, &stop);
            members.push(member);
            targets.push(target);
            tasks.push(source);
        }
        let scraper = Scraper {
            id: config.id.clone(),
            url: config.metrics.clone(),
            every: self.hub.scrape_interval,
            pressure_ceiling: self.hub.pressure_ceiling,
            state: Arc::clone(&self.state),
            targets,
            read: scraped,
            client: self.client.clone(),
        };
        tasks.push(self.tasks.spawn(scraper.run(stop.clone())));
        self.forget_after(config, members.iter().map(|member| member.index).collect(), tasks);
        Follower { config: config.clone(), members, stop }
    }

    /// Follows one rank of a replica, or the replica itself where it has no others.
    fn follow_rank(
        &self,
        config: &ReplicaConfig,
        rank: Option<u32>,
        scraped: &LastScrape,
        stop: &CancellationToken,
    ) -> (Member, ScrapeTarget, JoinHandle<()>) {
        let index = self.state.follow(config, rank);
        let metrics = self.metrics.replica(&config.member_id(rank));
        let (changed, changes) = mpsc::channel(1);
        let (view, scrapes) = watch::channel(ScrapeView::default());
        let publisher = Publisher { index, name: config.member_id(rank), rank };
        let (state, of_source, scraped) = (Arc::clone(&self.state), metrics.clone(), scraped.clone());
        let source = match config.event_stream() {
            Some(_) => {
                let stream = EventStream::new(config, rank);
                let source = Source::new(publisher, stream, &self.hub, state, of_source, scraped);
                self.tasks.spawn(source.run(changes, stop.clone()))
            }
            None => {
                let sockets = Sockets::new(config, rank);
                let source = Source::new(publisher, sockets, &self.hub, state, of_source, scraped);
                self.tasks.spawn(source.run(changes, stop.clone()))
            }
        };
        let ranks = rank.map(|rank| (rank, config.data_parallel_size));
        let target = ScrapeTarget { index, rank: ranks, metrics: metrics.clone(), changed, view };
        (Member { index, rank, metrics, scrapes }, target, source)
    }

    /// Drops the replica's metrics once its tasks have ended.
    fn forget_after(&self, config: &ReplicaConfig, indexes: Vec<ReplicaIndex>, tasks: Vec<JoinHandle<()>>) {
        let state = Arc::clone(&self.state);
        let names: Vec<String> = config.ranks().map(|rank| config.member_id(rank)).collect();
        let (id, followers, all) = (config.id.clone(), Arc::clone(&self.followers), Arc::clone(&self.metrics));
        self.tasks.spawn(async move {
            for task in tasks {
                if let Err(error) = task.await
                    && error.is_panic()
                {
                    // Nobody follows it any more: what it holds is not known.
                    error!(replica = id, "following it has failed: {error}");
                    indexes.iter().for_each(|index| {
                        state.gone(*index);
                    });
                }
            }
            // Not if one of this id is followed again meanwhile: its counters go on.
            let followers = lock(&followers);
            let follower = followers.get(&id);
            let stays = |name: &String| follower.is_some_and(|follower| follower.has_member(name));
            names.iter().filter(|name| !stays(name)).for_each(|name| all.forget(name));
        });
    }
}

// === impl Follower ===

impl Follower {
    fn has_member(&self, name: &str) -> bool {
        self.members.iter().any(|member| self.config.member_id(member.rank) == name)
    }
}

fn lock(followers: &Mutex<Followers>) -> MutexGuard<'_, Followers> {
    followers.lock().unwrap_or_else(PoisonError::into_inner)
}
