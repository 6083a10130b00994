//! A worker that stands still, the leader's among them.

use std::time::Duration;

use hyper::Request;
use warmroute::native::load::stack::{Stack, eventually};

use crate::load::{BOUND, Load};
use crate::pool::*;
use crate::world::{COMES_BACK, World, has_no_trap, traps};

/// How long each thread does nothing: longer than a worker waits for the leader at `lease_ticks` of 3.
const STALL: Duration = Duration::from_secs(2);
/// Envoy's threads that have a VM: the main one and two workers.
const THREADS: f64 = 3.0;

/// A request to the module that misbehaves, which answers it itself.
pub async fn misbehave(stack: &Stack, headers: &[(&str, &str)]) {
    let head = Request::builder().header("x-fault-read", "fault/nothing");
    let head = headers.iter().fold(head, |head, (name, value)| head.header(*name, *value));
    assert_eq!(send(stack, head, "/fault", "").await.status, 200);
}

async fn counted(stack: &Stack, metric: &str) -> f64 {
    stack.metrics().await.unwrap().sum(metric, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_worker_stalled() {
    let world = World::start(|options| {
        options.plugin["limits"]["lease_ticks"] = 3.into();
        options.edit_envoy = Some(Box::new(|config, _| add_fault_filter(config)));
    })
    .await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let led = counted(&world.stack, "warmroute_leader_changes_total").await;
    misbehave(&world.stack, &[("x-fault-stall", &STALL.as_millis().to_string())]).await;
    let all_stalled = eventually(COMES_BACK, async || counted(&world.stack, "fault_stalls").await >= THREADS).await;
    assert!(all_stalled, "{} threads stalled", counted(&world.stack, "fault_stalls").await);
    assert!(counted(&world.stack, "warmroute_leader_changes_total").await > led, "nobody else led");
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    // A request of a worker that stands still waits for that worker.
    world.is_unharmed_but_for(&tally, &["NO_HINT/stale?", "NO_HINT/catching_up?"], BOUND + STALL).await;
}

/// What the other tests hold against Envoy is seen where it is so.
#[tokio::test(flavor = "multi_thread")]
async fn a_trap_would_be_seen() {
    let stack = stack(|options| {
        options.workers = 1;
        options.programs.module = fault_module();
    })
    .await;
    has_no_trap(&stack);
    let trap = Request::builder().header("x-fault-trap", "1");
    assert_eq!(send(&stack, trap, "/health", "").await.status, 503);
    assert!(eventually(COMES_BACK, async || !traps(&stack).is_empty()).await, "{}", stack.envoy.log_tail());
}
