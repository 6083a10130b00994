use super::*;
use crate::native::hub::clock::unix_ns;
use crate::native::hub::config::{HubConfig, replicas_of_file};
use crate::native::hub::contract::ModelLabels;
use crate::native::hub::metrics::Metrics;
use crate::native::hub::scrape::client;
use crate::publisher::{Publisher, PublisherLimits};

struct World {
    discovery: Arc<Discovery>,
    state: Arc<HubState>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl World {
    /// A discovery with two sources beside the list.
    fn new() -> (World, Teller, Teller) {
        let config = HubConfig::from_yaml("reports: {}").unwrap();
        let state = Arc::new(HubState::new(unix_ns(), Publisher::new(PublisherLimits::default()), 1 << 20));
        let metrics = Arc::new(Metrics::new(ModelLabels::default()));
        let stop = CancellationToken::new();
        let fleet = Arc::new(Fleet::new(&config, &state, &metrics, client(None).unwrap(), &stop));
        let mut tasks = JoinSet::new();
        let discovery =
            Discovery::start(&config.discovery, &[], &fleet, &state, metrics.discovery(), &stop, &mut tasks);
        let [one, other] = ["one", "other"].map(|name| Discovery::teller(&discovery, name.to_owned()));
        state.set_awaits_replicas(true);
        (World { discovery, state, metrics, stop }, one, other)
    }

    fn followed(&self) -> Vec<(String, String)> {
        let view = self.discovery.fleet.view();
        let mut followed: Vec<_> =
            view.into_values().map(|follower| (follower.config.id, follower.config.address)).collect();
        followed.sort();
        followed
    }

    fn sees(&self, line: &str) -> bool {
        self.metrics.text(&self.state).lines().any(|found| found == line)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn replicas(ids: &[(&str, u16)]) -> Vec<ReplicaConfig> {
    let entries = ids.iter().map(|(id, port)| {
        format!("{{id: {id}, address: '127.0.0.1:{port}', kv_events: 'tcp://{id}.invalid:1', model: m}}")
    });
    replicas_of_file(&format!("[{}]", entries.collect::<Vec<_>>().join(", "))).unwrap()
}

fn pairs(pairs: &[(&str, u16)]) -> Vec<(String, String)> {
    pairs.iter().map(|(id, port)| ((*id).to_owned(), format!("127.0.0.1:{port}"))).collect()
}

#[tokio::test]
async fn of_two_replicas_with_one_id_the_first_source_has_it() {
    let (world, mut one, mut other) = World::new();
    other.replicas(replicas(&[("a", 1), ("b", 2)]));
    assert_eq!(world.followed(), pairs(&[("a", 1), ("b", 2)]));
    one.replicas(replicas(&[("b", 3)]));
    assert_eq!(world.followed(), pairs(&[("a", 1), ("b", 3)]));
    assert!(world.sees("warmroute_hub_discovery_clashes 1"));
    assert!(world.sees("inferencecache_index_entries{model=\"m\"} 0"), "its model has a label");
    assert!(world.sees("warmroute_hub_discovery_replicas{source=\"other\"} 2"));
    world.discovery.set_listed(&replicas(&[("a", 4)]));
    assert_eq!(world.followed(), pairs(&[("a", 4), ("b", 3)]));
    one.replicas(Vec::new());
    assert_eq!(world.followed(), pairs(&[("a", 4), ("b", 2)]));
    let reported = world.discovery.found.lock().unwrap().reported.clone();
    let expected = "other: the replica a at 127.0.0.1:1 is not used: replicas has that id";
    assert_eq!(reported.into_iter().collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn of_two_replicas_with_one_publisher_the_first_source_has_it() {
    let (world, mut one, mut other) = World::new();
    let at_one_publisher = |id: &str, model: &str| {
        let entry = format!("[{{id: {id}, address: '127.0.0.1:7', kv_events: 'tcp://H:1', model: {model}}}]");
        replicas_of_file(&entry).unwrap()
    };
    one.replicas(at_one_publisher("a", "m"));
    other.replicas(at_one_publisher("b", "m"));
    assert_eq!(world.followed(), pairs(&[("a", 7)]));
    assert!(world.sees("warmroute_hub_discovery_clashes 1"));
    let reported = world.discovery.found.lock().unwrap().reported.clone();
    let expected = "the replica b at 127.0.0.1:7 is not used: a has the same publisher, tcp://H:1";
    assert_eq!(reported.into_iter().collect::<Vec<_>>(), [expected]);
    other.replicas(at_one_publisher("b", "another model of that engine"));
    assert_eq!(world.followed(), pairs(&[("a", 7), ("b", 7)]));
    one.replicas(Vec::new());
    assert_eq!(world.followed(), pairs(&[("b", 7)]));
}

#[tokio::test]
async fn no_more_are_followed_than_may_be() {
    let (world, mut one, mut other) = World::new();
    let names: Vec<String> = (0..MAX_REPLICAS).map(|at| format!("r{at}")).collect();
    let found = Found {
        sources: vec![
            Source {
                name: "one".into(),
                replicas: names.iter().flat_map(|name| replicas(&[(name, 1)])).collect(),
                has_answered: true,
                metrics: world.metrics.discovery().source("x"),
            },
            Source {
                name: "other".into(),
                replicas: replicas(&[("late", 1)]),
                has_answered: true,
                metrics: world.metrics.discovery().source("y"),
            },
        ],
        reported: BTreeSet::new(),
    };
    let (merged, left_out) = found.merged();
    assert_eq!((merged.len(), left_out.len()), (MAX_REPLICAS, 1));
    assert!(left_out.first().unwrap().starts_with("other: late is not used"), "{left_out:?}");
    one.replicas(Vec::new());
    other.replicas(Vec::new());
}

#[tokio::test]
async fn what_fails_keeps_its_replicas_and_is_counted_and_everything_waits_for_the_first_answers() {
    let (world, mut one, mut other) = World::new();
    one.replicas(Vec::new());
    assert!(world.state.awaits_replicas() && !world.state.is_complete());
    assert_eq!(world.discovery.unanswered(), ["other"]);
    other.failed("x".into());
    assert!(world.state.awaits_replicas(), "a failure is no answer");
    other.replicas(replicas(&[("a", 1)]));
    assert!(!world.state.awaits_replicas());
    other.failed("x".into());
    other.failed("x".into());
    assert_eq!(world.followed(), pairs(&[("a", 1)]));
    assert!(world.sees("warmroute_hub_discovery_failures_total{source=\"other\"} 3"));
    assert!(world.sees("warmroute_hub_discovery_up{source=\"other\"} 0"));
    other.working();
    assert!(world.sees("warmroute_hub_discovery_up{source=\"other\"} 1"));
    other.gave_up();
    assert_eq!(world.followed(), pairs(&[]));
    assert!(world.sees("warmroute_hub_discovery_up{source=\"other\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_hub_waits_for_a_bounded_time() {
    let (world, mut one, _) = World::new();
    one.replicas(Vec::new());
    let waiting = tokio::spawn(give_up_waiting(Arc::clone(&world.discovery), Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(world.state.awaits_replicas());
    waiting.await.unwrap();
    assert!(!world.state.awaits_replicas() && world.state.is_complete());
}

#[tokio::test]
async fn the_series_of_a_replica_go_with_it() {
    let (world, mut one, _) = World::new();
    one.replicas(replicas(&[("a", 1), ("b", 2)]));
    let mut view = world.discovery.fleet.view().into_values();
    let follower = view.find(|follower| follower.config.id == "a").unwrap();
    for reason in crate::native::engine::SkipReason::ALL {
        follower.metrics.skip(reason, 1);
    }
    follower.metrics.cache_usage(Some(0.5));
    let series = |id: &str| {
        let text = world.metrics.text(&world.state);
        text.lines().filter(|line| line.contains(&format!("replica=\"{id}\""))).count()
    };
    assert!(series("a") > crate::native::engine::SkipReason::ALL.len() + 10, "{}", series("a"));
    one.replicas(replicas(&[("b", 2)]));
    let limit = std::time::Instant::now() + Duration::from_secs(10);
    while series("a") > 0 {
        assert!(std::time::Instant::now() < limit, "{}", world.metrics.text(&world.state));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(series("b") > 10);
    one.replicas(replicas(&[("a", 1), ("b", 2)]));
    assert!(series("a") > 10, "and come back with it");
}
