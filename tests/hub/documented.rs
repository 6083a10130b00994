//! What the pages say of the hub is what there is: its metrics, and the sections of its configuration.

use std::collections::BTreeSet;

use warmroute::native::hub::HubConfig;

use crate::hub_support::{Engine, Framing, get, hub};

/// The names in the first column of the tables behind `heading`, where `_b` after `a_hub_x` is `a_hub_b`; without the ending of
/// counters.
fn documented(page: &str, heading: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let rows = page.split_once(heading).unwrap().1.lines().filter_map(|line| line.strip_prefix("| `"));
    for row in rows {
        let cell = row.split(" | ").next().unwrap();
        let mut family = "";
        for name in cell.split('`').step_by(2) {
            let name = name.trim_end_matches("_total");
            let name = match name.strip_prefix('_') {
                Some(rest) => format!("{family}_{rest}"),
                None => {
                    family = if name.starts_with("warmroute_hub") { "warmroute_hub" } else { "inferencecache" };
                    name.to_owned()
                }
            };
            all.insert(name);
        }
    }
    all
}

/// Metrics that have no series before something happens.
const UNTIL_SOMETHING_HAPPENS: [&str; 12] = [
    "inferencecache_index_evictions",
    "inferencecache_lookup_route_calls",
    "inferencecache_lookup_route_latency_seconds",
    "inferencecache_tenant_evictions",
    "warmroute_hub_blocks_given_up",
    "warmroute_hub_cache_usage",
    "warmroute_hub_keys_given_up",
    "warmroute_hub_pressure",
    "warmroute_hub_refused",
    "warmroute_hub_reports_dropped",
    "warmroute_hub_scrapes_failed",
    "warmroute_hub_skipped",
];

#[tokio::test]
async fn every_metric_of_the_hub_is_on_its_page_and_no_other() {
    let engine = Engine::start(Framing::Two).await;
    let hub = hub(&[&engine], "").await;
    let (status, text) = get(&hub, "/metrics").await;
    assert_eq!(status, 200);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let there_are: BTreeSet<String> = types.map(str::to_owned).collect();
    let documented = documented(include_str!("../../docs/metrics.md"), "## The hub's");
    assert!(there_are.len() > 35, "{there_are:?}");
    assert_eq!(there_are.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "not on the page");
    let missing = documented.difference(&there_are).filter(|name| !UNTIL_SOMETHING_HAPPENS.contains(&name.as_str()));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new(), "not in the hub");
}

#[test]
fn every_section_of_the_configuration_is_on_its_page() {
    let page = include_str!("../../docs/hub.md");
    let sections = [
        ("zzz: 1", ""),
        ("replicas: [{zzz: 1}]", "replicas[]."),
        ("events: {zzz: 1}", "events."),
        ("listen: {zzz: 1}", "listen."),
        ("security: {zzz: 1}", "security."),
        ("limits: {zzz: 1}", "limits."),
        ("reassert: {zzz: 1}", "reassert."),
        ("reports: {zzz: 1}", "reports."),
        ("policies: {zzz: 1}", "policies."),
        ("tokenizers: {zzz: 1}", "tokenizers."),
    ];
    for (unknown, at) in sections {
        let problems = HubConfig::from_yaml(unknown).unwrap_err().problems;
        let (_, known) = problems[0].split_once(", expected ").unwrap();
        let names: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        assert!(names.len() > 1, "{problems:?}");
        for name in names {
            let (field, after) = (format!("`{at}{name}"), format!("`.{name}`"));
            // In a table, in one of the blocks, or in the text.
            let in_block = [
                format!("\n{name}:"),
                format!("  {name}:"),
                format!("{{ {name}:"),
                format!(", {name}:"),
                format!("`{name}`"),
            ];
            let is_there =
                page.contains(&field) || page.contains(&after) || in_block.iter().any(|it| page.contains(it));
            assert!(is_there, "{at}{name}");
        }
    }
}

/// Every page of the project.
fn pages() -> Vec<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("docs").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).chain([root.join("README.md")]);
    pages.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_command_that_a_page_names_is_there_and_every_one_is_named() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_warmroute-hub")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let list = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let there_are: BTreeSet<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(there_are.contains("inspect"), "{help}");
    let is_command = |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let pages = pages();
    let mut named = BTreeSet::new();
    for text in &pages {
        // In backquotes, or at the beginning of a line of a block.
        let quoted = text.split("`warmroute-hub ").skip(1).map(|rest| (rest, '`'));
        let lines = text.lines().filter_map(|line| line.strip_prefix("warmroute-hub ")).map(|rest| (rest, '\n'));
        for (rest, end) in quoted.chain(lines) {
            let word = rest.split([' ', '\n', end]).next().unwrap();
            if is_command(&word) && !word.starts_with("--") {
                assert!(there_are.contains(word), "there is no `warmroute-hub {word}`");
                named.insert(word);
            }
        }
    }
    let without = there_are.iter().filter(|command| **command != "help" && !named.contains(*command));
    assert_eq!(without.collect::<Vec<_>>(), Vec::<&&str>::new(), "on no page");
}
