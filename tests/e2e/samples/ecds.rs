//! `envoy/ecds.yaml`: the filter's configuration comes, changes and is wrong while requests go on.

use super::*;

const SAMPLE: &str = include_str!("../../../envoy/ecds.yaml");
const DISCOVERED: &str = include_str!("../../../envoy/ecds/warmroute.yaml");

/// The discovered file under another version, after a change.
fn discovered(folder: &Folder, version: &str, change: impl FnOnce(&mut Yaml)) -> String {
    let mut file: Yaml = serde_norway::from_str(&folder.placed(DISCOVERED)).unwrap();
    file["version_info"] = version.into();
    change(&mut file["resources"][0]["typed_config"]["config"]["configuration"]["value"]);
    serde_norway::to_string(&file).unwrap()
}

/// Puts a file in place as operators are told to.
fn move_into_place(folder: &Folder, text: &str) {
    folder.write("new", text);
    std::fs::rename(folder.0.join("new"), folder.0.join("warmroute.yaml")).unwrap();
}

/// The number behind a name of the filter's discovery.
async fn counted(stack: &Stack, what: &str) -> u64 {
    let url = stack.admin_url("/stats?filter=extension_config_discovery.*warmroute");
    let text = stack.client.get(&url).await.unwrap().text();
    let line = text.lines().find(|line| line.contains(&format!(".{what}:")));
    line.unwrap_or_else(|| panic!("{what} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_comes_and_changes_without_a_restart() {
    let folder = Folder::new("ecds");
    let sample = serde_norway::from_str(&folder.placed(SAMPLE)).unwrap();
    move_into_place(&folder, "{version_info: '0', resources: []}");
    let stack = stack(|options| {
        options.envoy_arguments = vec!["--reject-unknown-dynamic-fields".to_owned()];
        run_instead(options, sample, &["warmroute_hub"]);
    })
    .await;
    // Nothing is discovered yet.
    let answer = send(&stack, probe_head(&tokens(1, 160)), "/v1/probe", "").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-inferencecache-reason-code")), (404, ""), "from an engine");

    move_into_place(&folder, &discovered(&folder, "1", |plugin| *plugin = telling(plugin)));
    shows_a_match("ecds.yaml", &stack, &as_it_is).await;
    reads_bodies("ecds.yaml", &stack, &as_it_is).await;

    // One that is wrong leaves the last good one.
    let rejected = counted(&stack, "update_rejected").await;
    let wrong = discovered(&folder, "2", |_| ()).replace("allow_on_headers_stop_iteration", "no_such_field");
    move_into_place(&folder, &wrong);
    assert!(eventually(LIMIT, async || counted(&stack, "update_rejected").await > rejected).await, "not noticed");
    reads_bodies("ecds.yaml", &stack, &as_it_is).await;

    // The next one, as it is shipped, does not repeat decisions on responses.
    move_into_place(&folder, &discovered(&folder, "3", |_| ()));
    let changed = eventually(LIMIT, async || {
        let answer = send(&stack, probe_head(&tokens(1, 160)), "/v1/probe", "").await;
        answer.header("x-inferencecache-reason-code").is_empty()
    })
    .await;
    assert!(changed, "{}", stack.envoy.log_tail());
}
