use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::*;

/// A directory of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmroute-policies-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn manifest(name: &str, namespace: &str, minimum_prefix_tokens: u32) -> String {
    format!(
        "apiVersion: inferencecache.io/v1alpha1\nkind: CachePolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{minimumPrefixTokens: {minimum_prefix_tokens}}}\n"
    )
}

/// Tenants and what marks their policies.
fn marks(policies: &TenantPolicies) -> Vec<(&str, u32)> {
    let marked = policies.iter().map(|(tenant_id, policy)| (tenant_id.as_deref(), policy.minimum_prefix_tokens));
    marked.map(|(tenant_id, mark)| (tenant_id.unwrap_or("(none)"), mark)).collect()
}

#[test]
fn every_file_of_the_directory_counts() {
    let folder = Folder::new();
    folder.write("default.yaml", "minimumPrefixTokens: 1");
    folder.write("a.json", r#"{"minimumPrefixTokens": 2}"#);
    folder.write("rest.yml", &format!("{}---\n{}", manifest("p", "b", 3), manifest("p", "c", 4)));
    folder.write("notes.txt", "nothing");
    folder.write(".draft.yaml", "[");
    let reading = PolicyDirectory::new(&folder.0).read();
    assert_eq!(marks(&reading.policies), [("(none)", 1), ("a", 2), ("b", 3), ("c", 4)]);
    assert_eq!((reading.files, reading.problems.len(), reading.unused.len()), (3, 0, 0));
}

#[test]
fn of_two_policies_for_a_tenant_the_smallest_name_counts_and_the_other_is_named() {
    let folder = Folder::new();
    folder.write("1.yaml", &manifest("zeta", "t", 1));
    folder.write("2.yaml", &format!("{}---\n{}", manifest("alpha", "t", 2), manifest("alpha", "u", 3)));
    folder.write("3.yaml", &manifest("alpha", "u", 4));
    folder.write("u.yaml", "minimumPrefixTokens: 5");
    let reading = PolicyDirectory::new(&folder.0).read();
    assert_eq!(marks(&reading.policies), [("t", 2), ("u", 3)]);
    assert_eq!(
        reading.unused,
        [
            "1.yaml: the CachePolicy zeta of tenant t is not used: alpha in 2.yaml comes first",
            "3.yaml: the CachePolicy alpha of tenant u is not used: alpha in 2.yaml comes first",
            "u.yaml: the CachePolicy u of tenant u is not used: alpha in 2.yaml comes first",
        ]
    );
    assert_eq!(reading.problems, [""; 0]);
}

#[test]
fn a_wrong_file_keeps_what_it_had_and_a_file_that_goes_takes_it_along() {
    let folder = Folder::new();
    let mut directory = PolicyDirectory::new(&folder.0);
    folder.write("a.yaml", "minimumPrefixTokens: 1");
    folder.write("both.yaml", &format!("{}---\n{}", manifest("p", "b", 2), manifest("p", "c", 3)));
    directory.read();

    folder.write("a.yaml", "minimumPrefixTokens: few");
    folder.write("both.yaml", &format!("{}---\n{}", manifest("p", "b", 4), "kind: CachePolicy"));
    folder.write("new.yaml", "[");
    let reading = directory.read();
    assert_eq!(marks(&reading.policies), [("a", 1), ("b", 2), ("c", 3)]);
    assert_eq!(
        reading.problems[0],
        r#"a.yaml: minimumPrefixTokens is "few", allowed: a whole number from 0 to 2147483647"#
    );
    let of_file = |file: &str| reading.problems.iter().filter(|line| line.starts_with(file)).count();
    assert_eq!((of_file("both.yaml: document 2: "), of_file("new.yaml: not YAML")), (3, 1));
    assert_eq!(directory.read(), reading, "a second reading says the same");

    folder.write("a.yaml", "minimumPrefixTokens: 6");
    folder.remove("both.yaml");
    folder.remove("new.yaml");
    let reading = directory.read();
    assert_eq!((marks(&reading.policies), reading.problems.len()), (vec![("a", 6)], 0));
}

#[test]
fn what_cannot_be_read_keeps_what_it_had() {
    let folder = Folder::new();
    let mut directory = PolicyDirectory::new(folder.0.join("policies"));
    let reading = directory.read();
    assert_eq!((reading.policies.len(), reading.problems.len()), (0, 1));
    assert!(reading.problems[0].ends_with("cannot be read: No such file or directory (os error 2)"));

    std::fs::create_dir(folder.0.join("policies")).unwrap();
    folder.write("policies/a.yaml", "minimumPrefixTokens: 1");
    folder.write("policies/b.yaml", "minimumPrefixTokens: 2");
    assert_eq!(marks(&directory.read().policies), [("a", 1), ("b", 2)]);

    folder.remove("policies/a.yaml");
    symlink("nowhere", folder.0.join("policies/a.yaml")).unwrap();
    folder.write("policies/b.yaml", &format!("minimumPrefixTokens: 3\n{}", "#".repeat(1 << 20)));
    std::fs::create_dir(folder.0.join("policies/c.yaml")).unwrap();
    let reading = directory.read();
    assert!(reading.problems[2].ends_with("it is no regular file"), "{:?}", reading.problems);
    assert_eq!(marks(&reading.policies), [("a", 1), ("b", 2)]);
    let files: Vec<_> = reading.problems.iter().map(|line| line.split(": ").take(2).collect::<Vec<_>>()).collect();
    assert_eq!(
        files,
        [["a.yaml", "cannot be read"], ["b.yaml", "more than 1048576 bytes, allowed"], ["c.yaml", "cannot be read"]]
    );

    std::fs::rename(folder.0.join("policies"), folder.0.join("elsewhere")).unwrap();
    assert_eq!(marks(&directory.read().policies), [("a", 1), ("b", 2)]);
}

/// A mounted ConfigMap: visible names lead through `..data` into a folder of the version, and an update moves `..data`.
#[test]
fn the_swap_of_a_config_map_is_one_change() {
    let folder = Folder::new();
    for (version, files) in [("..1", [("a.yaml", 1), ("b.yaml", 2)]), ("..2", [("a.yaml", 3), ("c.yaml", 4)])] {
        std::fs::create_dir(folder.0.join(version)).unwrap();
        for (file, mark) in files {
            folder.write(&format!("{version}/{file}"), &format!("minimumPrefixTokens: {mark}"));
        }
    }
    symlink("..1", folder.0.join("..data")).unwrap();
    for file in ["a.yaml", "b.yaml"] {
        symlink(format!("..data/{file}"), folder.0.join(file)).unwrap();
    }
    let mut follower = PolicyFollower::new(&folder.0, PolicyMetrics::default());
    assert_eq!(follower.poll().map(marks), Some(vec![("a", 1), ("b", 2)]));
    assert_eq!(follower.poll(), None);

    symlink("..2", folder.0.join("..data_tmp")).unwrap();
    std::fs::rename(folder.0.join("..data_tmp"), folder.0.join("..data")).unwrap();
    assert_eq!(follower.poll().map(marks), Some(vec![("a", 3), ("b", 2)]), "the old name is still there");
    symlink("..data/c.yaml", folder.0.join("c.yaml")).unwrap();
    folder.remove("b.yaml");
    assert_eq!(follower.poll().map(marks), Some(vec![("a", 3), ("c", 4)]));
}

#[test]
fn only_so_many_files_count() {
    let folder = Folder::new();
    for file in 0..=MAX_FILES {
        folder.write(&format!("t{file:04}.yaml"), "{}");
    }
    let reading = PolicyDirectory::new(&folder.0).read();
    assert_eq!((reading.policies.len(), reading.files), (MAX_FILES, MAX_FILES));
    assert!(reading.problems[0].ends_with("has 1025 files, allowed: 1024; the first of them count"));
}

#[test]
fn only_so_many_policies_count() {
    let folder = Folder::new();
    let manifests: Vec<String> = (0..=MAX_POLICIES).map(|tenant| manifest("p", &format!("t{tenant:04}"), 1)).collect();
    folder.write("all.yaml", &manifests.join("---\n"));
    let reading = PolicyDirectory::new(&folder.0).read();
    assert_eq!((reading.policies.len(), reading.unused.len()), (MAX_POLICIES, 1));
}

#[tokio::test]
async fn a_follower_calls_back_on_changes_alone_and_counts() {
    let folder = Folder::new();
    folder.write("a.yaml", "minimumPrefixTokens: 1");
    let metrics = PolicyMetrics::default();
    let mut follower = PolicyFollower::new(&folder.0, metrics.clone());
    follower.poll().unwrap();
    let (changed, changes) = mpsc::channel();
    let stop = CancellationToken::new();
    let on_change = move |policies: &TenantPolicies| changed.send(policies.clone()).unwrap();
    let task = tokio::spawn(follower.run(Duration::from_millis(5), on_change, stop.clone()));

    let next = || async {
        for _ in 0..1_000 {
            if let Ok(policies) = changes.try_recv() {
                return policies;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("no change within five seconds");
    };
    folder.write("b.yaml", "{}");
    assert_eq!(marks(&next().await), [("a", 1), ("b", 0)]);
    folder.write("a.yaml", "minimumPrefixTokens: few");
    while metrics.problems.get() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    folder.remove("b.yaml");
    assert_eq!(marks(&next().await), [("a", 1)], "what is wrong was no change");
    stop.cancel();
    task.await.unwrap();
    assert!(changes.try_recv().is_err());
    assert_eq!((metrics.files.get(), metrics.problems.get(), metrics.reloads.get()), (1, 1, 3));
}

#[test]
fn the_metrics_have_their_names() {
    let folder = Folder::new();
    folder.write("a.yaml", "{}");
    folder.write("b.yaml", "[");
    let metrics = PolicyMetrics::default();
    let mut registry = Registry::with_prefix("warmroute_hub");
    metrics.register(&mut registry);
    PolicyFollower::new(&folder.0, metrics).poll().unwrap();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in
        ["warmroute_hub_policy_files 2", "warmroute_hub_policy_problems 1", "warmroute_hub_policy_reloads_total 1"]
    {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn the_tenants_that_changed_are_named_up_to_eight() {
    let policies = |minimum_prefix_tokens: u32, tenants: &[&str]| -> TenantPolicies {
        let policy = Policy { minimum_prefix_tokens, ..Policy::default() };
        tenants.iter().map(|tenant| (Some((*tenant).to_owned()), policy.clone())).collect()
    };
    let before = policies(1, &["same", "gone", "other"]);
    let mut after = policies(1, &["same", "new"]);
    after.extend(policies(2, &["other"]));
    after.insert(None, Policy::default());
    assert_eq!(changed_tenants(&before, &after), "default, gone, new, other");
    let many: Vec<String> = (10..30).map(|number| format!("t{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let expected = "t10, t11, t12, t13, t14, t15, t16, t17 and 12 more";
    assert_eq!(changed_tenants(&TenantPolicies::new(), &policies(1, &many)), expected);
}
