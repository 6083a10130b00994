//! Another plugin of the same `vm_id` writes over everything that is ours in shared data.

use serde_json::json;
use warmroute::flow::keys::Keys;
use warmroute::native::load::stack::{Stack, eventually};

use crate::load::Load;
use crate::pool::*;
use crate::workers::misbehave;
use crate::world::{COMES_BACK, STALE_AFTER, World};

/// The name of the index that the stack's filter asks for.
fn domain(stack: &Stack) -> String {
    let text = std::fs::read_to_string(stack.folder().join("envoy.yaml")).unwrap();
    domain_of(&mut serde_norway::from_str(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_data_full_of_garbage() {
    let world = World::start(|options| {
        // Hits go through a shared queue.
        options.plugin["policy"] = json!({ "affinityRouting": "Disabled", "eviction": "LFU" });
        options.edit_envoy = Some(Box::new(|config, _| add_fault_filter(config)));
    })
    .await;
    let keys = Keys::new(&domain(&world.stack));
    let (log, pages) = (keys.log(0, 1), keys.page(0));
    let ours = [
        (keys.head(), String::new()),
        (log.trim_end_matches('0').to_owned(), "0-255".to_owned()),
        (pages.trim_end_matches('0').to_owned(), "0-64".to_owned()),
        (keys.model_list(), String::new()),
    ];
    let load = Load::start(&world.stack.envoy_url());
    for way in ["text", "empty", "noise", "flipped", "large"] {
        load.sees("PREFIX_MATCH", COMES_BACK).await;
        // The head first, so that it stands for nothing, and last, when it may be another leader's.
        for (key, numbers) in ours.iter().chain([&ours[0]]) {
            let headers = [("x-fault-overwrite", &key[..]), ("x-fault-numbers", numbers), ("x-fault-with", way)];
            misbehave(&world.stack, &headers).await;
        }
        misbehave(&world.stack, &[("x-fault-enqueue", &keys.credits())]).await;
        load.goes_on(STALE_AFTER).await;
        eprintln!("{way}: {:?}", load.tally().decisions);
    }
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/cold?", "NO_HINT/catching_up?", "NO_HINT/stale?"]).await;
    let told = eventually(COMES_BACK, async || {
        let metrics = world.stack.metrics().await.unwrap();
        let seen = ["warmroute_leader_changes_total", "warmroute_lfu_batches_dropped_total"];
        seen.iter().all(|name| metrics.sum(name, &[]) > 1.0)
            && ["warmroute_log_restarts_total", "warmroute_shared_unreadable_total"]
                .iter()
                .any(|name| metrics.sum(name, &[]) > 0.0)
    });
    assert!(told.await, "{}", world.stack.envoy.log_tail());
}
