//! Every replica is down: Envoy answers as it does without the filter.

use std::time::Instant;

use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};

use crate::load::{BOUND, Load};
use crate::pool::*;
use crate::world::{COMES_BACK, GROWTH_MIB, TENANTS, UNSERVED, World};

/// Requests of each tenant while nothing answers.
const REQUESTS: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_down() {
    let mut world = World::start(|options| options.plain_listener = true).await;
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    assert_eq!((tally.sent, &tally.faults), (tally.answered, &Vec::new()));
    for engine in &mut world.stack.engines {
        engine.kill().await.unwrap();
    }
    for tenant in &TENANTS {
        for _ in 0..REQUESTS {
            let stack = &world.stack;
            let [filtered, plain] = [world.stack.envoy_url(), world.stack.plain_url()].map(|base| async move {
                let head = Request::builder()
                    .method(Method::POST)
                    .header("x-tenant", tenant.id)
                    .header(CONTENT_TYPE, "application/json");
                let url = format!("{base}{UNSERVED}");
                let started = Instant::now();
                let answer = stack.client.request(&url, head, body(&tenant.held()).into()).await.unwrap();
                assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
                answer
            });
            let (filtered, plain) = (filtered.await, plain.await);
            assert_eq!((filtered.status.as_u16(), plain.status.as_u16()), (503, 503));
            assert_ne!(filtered.header("x-inferencecache-reason-code"), "");
        }
    }
    world.envoy_is_as_before(GROWTH_MIB).await;
    for place in 0..world.stack.engines.len() {
        world.stack.engines[place].start().unwrap();
        world.stack.engine_ready(place).await.unwrap();
    }
    for tenant in &TENANTS {
        warm(&world.stack, place_of(tenant.holder), &tenant.held()).await;
    }
    let load = Load::start(&world.stack.envoy_url());
    load.sees("PREFIX_MATCH", COMES_BACK).await;
    let tally = load.stop().await;
    assert_eq!((tally.sent, &tally.faults), (tally.answered, &Vec::new()));
    world.envoy_is_as_before(GROWTH_MIB).await;
}
