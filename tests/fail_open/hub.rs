//! The hub is gone, or holds still, or comes back.

use crate::load::{BOUND, Load};
use crate::world::{COMES_BACK, STALE_AFTER, World};

#[tokio::test(flavor = "multi_thread")]
async fn hub_killed() {
    let mut world = World::start(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    world.stack.hub.kill().await.unwrap();
    load.sees("NO_HINT/stale", COMES_BACK).await;
    load.goes_on(STALE_AFTER).await;
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/stale"]).await;
}

/// Its connections stay open and say nothing, for longer than any request may take.
#[tokio::test(flavor = "multi_thread")]
async fn hub_paused() {
    let world = World::start(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    world.stack.hub.stop().unwrap();
    load.sees("NO_HINT/stale", COMES_BACK).await;
    load.goes_on(BOUND).await;
    world.stack.hub.resume().unwrap();
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/stale"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_restarted() {
    let mut world = World::start(|_| {}).await;
    let load = Load::start(&world.stack.envoy_url());
    for _ in 0..3 {
        load.sees("PREFIX_MATCH", COMES_BACK).await;
        world.stack.hub.kill().await.unwrap();
        load.sees("NO_HINT/stale", COMES_BACK).await;
        world.stack.hub.start().unwrap();
        load.sees("PREFIX_MATCH", COMES_BACK).await;
    }
    let tally = load.stop().await;
    world.is_unharmed(&tally, &["NO_HINT/stale"]).await;
    let opened = world.stack.metrics().await.unwrap().sum("warmroute_stream_opened_total", &[]);
    assert!(opened >= 4.0, "{opened} streams");
}
