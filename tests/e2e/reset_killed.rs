//! A hub that is killed while the chunks of a reset are under way does no harm, and leaves nothing wrong behind.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_norway::Value as Yaml;
use warmroute::native::load::envoy_config::Addresses;
use warmroute::native::load::scale::killed::{Killed, kill_during_reset};
use warmroute::native::load::scale::site::{Site, SiteOptions};
use warmroute::native::load::scale::traffic::Traffic;

use crate::dumps;
use crate::pool::*;

const REPLICAS: usize = 6;
const BLOCKS_PER_REPLICA: usize = 4_000;
/// Prompts asked afterwards, of which a quarter has gone from its replica while the hub was dead.
const PROMPTS: usize = 72;
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_killed_during_a_reset_leaves_nothing_that_it_does_not_hold() {
    let options = SiteOptions { replicas: REPLICAS, workers: 2, max_index_entries: 100_000 };
    let domain = Arc::new(OnceLock::new());
    let domain_found = Arc::clone(&domain);
    let edit = Box::new(move |config: &mut Yaml, _: &Addresses| {
        domain_found.set(domain_of(config)).unwrap();
        add_fault_filter(config);
    });
    let mut site = Site::start_with(&options, edit).await.unwrap_or_else(|error| panic!("{error}"));
    site.pool.fill(0..REPLICAS, BLOCKS_PER_REPLICA).await.unwrap();
    site.all_known(LIMIT).await.unwrap_or_else(|error| panic!("{error}"));

    let traffic = Traffic::start(&site.target(2, 60.0), &site.pool);
    let killed = kill_during_reset(&mut site, PROMPTS, LIMIT).await;
    let outcome = traffic.stop().await;
    let Killed { passed, agreement, .. } = killed.unwrap_or_else(|error| panic!("{error}"));

    // A reset of 24,000 blocks has at least 8 bytes for each: it was cut well before its end.
    assert!(passed >= 65_536 && passed < 8 * site.pool.blocks() as u64, "{passed} bytes had passed");
    assert_eq!((outcome.answered, outcome.failure.as_deref()), (outcome.sent, None));
    assert!(outcome.sent > 100 && outcome.hinted > 0, "{outcome:?}");
    assert_eq!(outcome.wrong, 0);
    assert_eq!((agreement.asked, agreement.same), (PROMPTS, PROMPTS), "{agreement}");

    // What every VM has or comes to have, block by block, is what the hub has.
    site.all_known(LIMIT).await.unwrap_or_else(|error| panic!("{error}"));
    let held = dumps::of_the_hub(site.stack.addresses.hub_grpc).await;
    assert_eq!(held.len(), site.pool.blocks());
    let shared = dumps::of_shared_data(&site.stack.envoy_url(), domain.get().unwrap()).await;
    let differ = held.iter().zip(&shared).find(|(held, shared)| held != shared);
    assert!(held.len() == shared.len() && differ.is_none(), "{} held, {} shared: {differ:?}", held.len(), shared.len());
}
