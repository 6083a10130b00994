//! Clients that send as much as they can: it is taken in, and nobody else has to wait for it.

use std::time::Duration;

use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use warmroute::native::hub::Hub;
use warmroute::native::hub::contract::messages::v1alpha1::cache_event::Type;
use warmroute::native::hub::contract::messages::v1alpha1::{
    CacheStateUpdate, GetCacheStateRequest, LookupRouteRequest, LookupRouteResponse, PrefixEntry,
};
use warmroute::routing::policy::{Policies, Policy};

use crate::client::{
    Client, connect, framed, hub, hub_with_tokenizer, ids, look_up, plain, publish, raw_call, report, request,
    request_for, update,
};
use crate::hub_support::get;

/// The longest that anybody else may have to wait, in a debug build on a machine that runs other tests as well. Each of
/// these messages takes several seconds of such a machine.
const PATIENCE: Duration = Duration::from_secs(1);

/// Held by a test that measures.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_updates_at_full_speed_are_taken_in() {
    let _alone = MEASURING.lock().await;
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let updates = (0..50_000_u32).map(|at| update("a", &[&(at % 5_000).to_le_bytes()]));
    let ack = client.report_cache_state(tokio_stream::iter(updates)).await.unwrap().into_inner();
    assert!(ack.accepted && ack.reason_code.is_empty(), "{ack:?}");
    assert_eq!(held(&mut client).await, 5_000, "the connection lives");
    hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_updates_wait_for_a_hub_that_does_not_read() {
    let _alone = MEASURING.lock().await;
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    // The smallest messages there are, in streams side by side.
    let streams = (0..8).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let updates = (0..10_000).map(|_| CacheStateUpdate::default());
            client.report_cache_state(tokio_stream::iter(updates)).await
        })
    });
    for stream in streams.collect::<Vec<_>>() {
        assert!(stream.await.unwrap().unwrap().into_inner().accepted);
    }
    assert_eq!(held(&mut client).await, 0, "the connection lives");
    hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_chain_holds_up_nobody() {
    let _alone = MEASURING.lock().await;
    let hub = hub("").await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("b", &[b"p"])]).await;
    let chain = long_chain(300_000);
    let reported = CacheStateUpdate {
        prefixes: vec![PrefixEntry {
            block_hashes: chain.block_hashes.clone(),
            block_token_counts: chain.block_token_counts.clone(),
            ..PrefixEntry::default()
        }],
        ..update("a", &[])
    };
    let mut busy = connect(&hub).await;
    let mut clearing = busy.clone();
    let work = tokio::spawn(async move {
        assert!(report(&mut busy, vec![reported]).await.accepted);
        let answer = look_up(&mut busy, chain).await;
        assert_eq!((ids(&answer), answer.replica_scores[0].matched_tokens), (vec!["a"], 1_200_000));
    });
    let slowest = slowest_until(&hub, &mut client, &work).await;
    work.await.unwrap();
    assert!(slowest < PATIENCE, "somebody waited for {slowest:?}");
    assert_eq!(held(&mut client).await, 300_001);

    let work = tokio::spawn(async move {
        assert!(publish(&mut clearing, Type::AllCleared, "a", b"").await.accepted);
    });
    let slowest = slowest_until(&hub, &mut client, &work).await;
    work.await.unwrap();
    assert_eq!(held(&mut client).await, 1);
    assert!(slowest < PATIENCE, "somebody waited for {slowest:?}");
    hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_blocks_than_there_may_be_give_no_hint_and_hold_up_nobody() {
    let _alone = MEASURING.lock().await;
    let hub = hub("").await;
    let default = Policy { affinity_routing: true, ..plain().default };
    hub.set_policies(Policies { default, ..Policies::default() });
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("b", &[b"p"])]).await;
    let mut busy = connect(&hub).await;
    let work = tokio::spawn(async move {
        let hash = bytes::Bytes::from_static(b"p");
        let asked = |blocks: usize| LookupRouteRequest {
            block_hashes: vec![hash.clone(); blocks],
            block_token_counts: vec![1; blocks],
            ..request()
        };
        assert_eq!(look_up(&mut busy, asked(1 << 20)).await.reason_code, "PREFIX_MATCH");
        assert_eq!(look_up(&mut busy, asked((1 << 20) + 1)).await.reason_code, "NO_HINT");
    });
    let slowest = slowest_until(&hub, &mut client, &work).await;
    work.await.unwrap();
    assert!(slowest < PATIENCE, "somebody waited for {slowest:?}");
    hub.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_message_that_is_late_is_told_so_in_time() {
    let _alone = MEASURING.lock().await;
    let hub = hub_with_tokenizer("", vec![1; 64], Duration::from_secs(3)).await;
    for limit_ms in [600, 400] {
        let asked = LookupRouteRequest { prompt_text: "x".repeat(1 << 20), ..request() };
        let (message, limit) = (framed(&asked.encode_to_vec()), format!("{limit_ms}m"));
        let called = Instant::now();
        let (status, answer) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", message, Some(&limit)).await;
        let took = called.elapsed();
        assert_eq!((status.as_str(), answer.unwrap().reason_code.as_str()), ("0", "TIMEOUT"), "after {took:?}");
    }
    hub.shutdown().await;
}

/// A request for so many blocks of 4 tokens.
fn long_chain(blocks: u32) -> LookupRouteRequest {
    let hashes = (0..blocks).map(|at| bytes::Bytes::copy_from_slice(&at.to_be_bytes()));
    LookupRouteRequest { block_hashes: hashes.collect(), block_token_counts: vec![4; blocks as usize], ..request() }
}

/// The longest that a lookup or `/healthz` took while `work` went on.
async fn slowest_until(hub: &Hub, client: &mut Client, work: &tokio::task::JoinHandle<()>) -> Duration {
    let mut slowest = Duration::ZERO;
    while !work.is_finished() {
        let asked = Instant::now();
        let (status, _) = timeout(Duration::from_secs(20), get(hub, "/healthz")).await.expect("the hub must live");
        assert_eq!(status, 200);
        slowest = slowest.max(asked.elapsed());
        let asked = Instant::now();
        assert_eq!(ids(&look_up(client, request_for(b"p")).await), ["b"]);
        slowest = slowest.max(asked.elapsed());
        sleep(Duration::from_millis(5)).await;
    }
    slowest
}

async fn held(client: &mut Client) -> i64 {
    let asked = GetCacheStateRequest { tenant_id: "t".into(), model_id: "m".into() };
    let state = client.get_cache_state(asked).await.unwrap().into_inner();
    state.summary.unwrap().total_prefixes
}
