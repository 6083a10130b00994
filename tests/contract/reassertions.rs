//! How long what an engine announced once is looked up.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use warmroute::native::hub::contract::messages::v1alpha1::LookupRouteRequest;
use warmroute::routing::policy::{Policies, Policy};

use crate::client::{Client, connect, ids, look_up, plain};
use crate::hub_support::{Engine, Framing, observed, stored, tokens};

const TTL: Duration = Duration::from_millis(1_500);

/// The tokens for which the engine is named.
async fn matched(client: &mut Client) -> Option<i32> {
    let asked = LookupRouteRequest {
        model_id: "m0".into(),
        tenant_id: "default".into(),
        hash_scheme: "vllm".into(),
        token_ids: tokens(0..8),
        ..LookupRouteRequest::default()
    };
    let answer = look_up(client, asked).await;
    assert!(ids(&answer).iter().all(|id| *id == "r0"));
    answer.replica_scores.first().map(|score| score.matched_tokens)
}

#[tokio::test]
async fn a_block_outlives_its_time_while_its_engine_is_there_and_no_longer() {
    for (reassert, outlives) in [("every_ms: 200", true), ("enabled: false", false)] {
        let mut engine = Engine::start(Framing::Two).await;
        let settings = format!("reassert: {{{reassert}}}\nevents: {{continuity_grace_ms: 600000}}");
        let (hub, mut observer) = observed(&[&engine], &settings).await;
        let Policies { default, by_tenant } = plain();
        let default = Policy { eviction_ttl_ms: TTL.as_millis() as u64, ..default };
        hub.set_policies(Policies { default, by_tenant });
        let mut client = connect(&hub).await;
        engine.publish(vec![stored(&[1, 2], None, &tokens(0..8))]).await;
        observer.until("two blocks", |seen| seen.holds("r0", &tokens(0..8))).await;
        assert_eq!(matched(&mut client).await, Some(8));

        sleep(TTL + Duration::from_millis(300)).await;
        assert_eq!(matched(&mut client).await, outlives.then_some(8), "{reassert}");
        let killed = Instant::now();
        engine.kill().await;
        let aged = async {
            while matched(&mut client).await.is_some() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(2 * TTL, aged).await.expect("it ages once nothing is known of its engine");
        // The last re-assertion was not long before the engine went.
        assert!(!outlives || killed.elapsed() > TTL / 4, "{:?}", killed.elapsed());
        assert!(observer.clears == 0 && observer.holds("r0", &tokens(0..8)));
        hub.shutdown().await;
    }
}
