//! The listener is configured anew, again and again, also wrongly, while requests come.

use std::time::Duration;

use serde_json::json;
use warmroute::native::load::envoy_config::patch_plugin;
use warmroute::native::load::listeners::{ListenerFile, serve_from};
use warmroute::native::load::stack::eventually;

use crate::load::Load;
use crate::world::{COMES_BACK, Vitals, World};

const UPDATES: u64 = 12;
const BETWEEN: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn configuration_updates() {
    let file = ListenerFile::default();
    let path = file.path().to_path_buf();
    let world = World::start(|options| {
        options.envoy_arguments = vec!["--drain-time-s".into(), "1".into()];
        options.edit_envoy = Some(Box::new(move |config, _| serve_from(config, &path).unwrap()));
    })
    .await;
    let before = Vitals::of(&world.stack).await;
    // Envoy closes the connections of a listener that is replaced, as it may between two requests of any connection.
    let load = Load::start_with_a_connection_each(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    for update in 0..UPDATES {
        let patch = match update % 3 {
            0 => json!({ "output": { "max_endpoints": 1 + update } }),
            1 => json!({ "max_body_bytes": -1 }),
            _ => json!({ "max_body_bytes": 1_000_000 + update }),
        };
        file.update(|listeners| patch_plugin(listeners, &patch).unwrap()).unwrap();
        load.goes_on(BETWEEN).await;
    }
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    let updated = world.stack.metrics().await.unwrap();
    let updates = updated.sum("envoy_listener_manager_listener_modified", &[])
        + updated.sum("envoy_listener_manager_listener_in_place_updated", &[]);
    assert!(updates >= UPDATES as f64, "{updates} updates");
    assert!(updated.sum("warmroute_config_refused_total", &[]) >= (UPDATES / 3) as f64);
    // What the old ones had is gone once they have drained; a VM that was made to try a configuration is gone with it.
    let mut now = Vitals::of(&world.stack).await;
    let drained = eventually(COMES_BACK, async || {
        now = Vitals::of(&world.stack).await;
        now.vms()[0] == before.vms()[0]
    });
    assert!(drained.await, "{:?} VMs before, {:?} after", before.vms(), now.vms());
    world.is_unharmed_but_for_new_vms(&tally, &["NO_HINT/stale?", "NO_HINT/catching_up?"]).await;
}
