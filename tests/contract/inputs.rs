//! Inputs that are as large as they may be, larger, or nothing that a client should send: a lookup answers them all.

use prost::Message;
use warmroute::native::hub::contract::messages::v1alpha1::{
    CacheStateUpdate, LookupRouteRequest, LookupRouteResponse, ReplicaStats, Slo,
};

use crate::client::{
    chain, chain_update, connect, framed, hub, ids, look_up, plain, raw_call, report, request, request_for, update,
};

/// The most token ids and the most bytes of text.
const MOST: usize = 1 << 20;

#[tokio::test]
async fn as_many_token_ids_as_there_may_be_are_looked_up() {
    let hub = hub("models: [{model_id: m, block_size: 4}]").await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    // Each takes five bytes on the wire.
    let tokens: Vec<u32> = (u32::MAX - MOST as u32 + 1..=u32::MAX).collect();
    report(&mut client, vec![chain_update("a", &tokens[..4_000])]).await;
    let asked = LookupRouteRequest { token_ids: tokens.clone(), ..request() };
    assert!(asked.encoded_len() > 5 * MOST);
    let answer = look_up(&mut client, asked).await;
    assert_eq!((ids(&answer), answer.replica_scores[0].matched_tokens), (vec!["a"], 4_000));

    let one_more = LookupRouteRequest { token_ids: [&tokens[..], &[1]].concat(), ..request() };
    assert_eq!(look_up(&mut client, one_more).await.reason_code, "NO_HINT");
    let text = LookupRouteRequest { prompt_text: "x".repeat(MOST + 1), ..request() };
    assert_eq!(look_up(&mut client, text).await.reason_code, "NO_HINT");

    let block_hashes = chain(&tokens);
    let long_chain = LookupRouteRequest { block_token_counts: vec![4; block_hashes.len()], block_hashes, ..request() };
    assert_eq!(look_up(&mut client, long_chain).await.replica_scores[0].matched_tokens, 4_000);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_message_beyond_eight_mebibytes_is_refused_and_the_hub_serves_on() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let refused = client.lookup_route(LookupRouteRequest { prompt_text: "x".repeat(8 << 20), ..request() }).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::ResourceExhausted);
    assert_eq!(look_up(&mut client, request()).await.reason_code, "NO_HINT");
    hub.shutdown().await;
}

/// Small numbers that look like nothing in particular, the same ones each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }

    fn list<T: Clone>(&mut self, values: &[T]) -> Vec<T> {
        (0..self.below(5)).map(|_| self.pick(values)).collect()
    }
}

#[tokio::test]
async fn odd_values_are_answered_whatever_they_are() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("a", &[b"p", b"12345678"]), update("b", &[b"p"])]).await;
    let mut random = Random(7);
    let hashes: Vec<bytes::Bytes> =
        [&b""[..], b"p", b"12345678", &[0; 300]].map(bytes::Bytes::copy_from_slice).to_vec();
    let counts = [0, 1, 16, -1, i32::MIN, i32::MAX];
    let numbers = [0.0, -0.0, 0.5, 1.0, -1.0, 1e30, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let amounts = [0, 1, -1, i64::MIN, i64::MAX];
    let names = ["", "t", "m", "s", "inferencecache.io/probe", "\u{0}", "ü\u{202e}"].map(str::to_owned);
    for round in 0..1_000 {
        let replica_id = random.pick(&["a", "b"]);
        let stats = ReplicaStats {
            replica_id: random.pick(&names),
            cache_memory_bytes: random.pick(&amounts),
            hit_rate: random.pick(&numbers),
            pressure: random.pick(&numbers),
            client_version: random.pick(&names),
            t2_hit_tokens: random.pick(&amounts),
            t2_query_tokens: random.pick(&amounts),
        };
        report(&mut client, vec![CacheStateUpdate { stats: Some(stats), ..update(replica_id, &[]) }]).await;
        let asked = LookupRouteRequest {
            model_id: if random.below(2) == 0 { "m".into() } else { random.pick(&names) },
            tenant_id: if random.below(2) == 0 { "t".into() } else { random.pick(&names) },
            hash_scheme: if random.below(2) == 0 { "s".into() } else { random.pick(&names) },
            prefix_hash: random.pick(&hashes),
            prefix_token_count: random.pick(&counts),
            slo: (random.below(2) == 0).then(|| Slo { ttft_ms: random.pick(&counts), tbt_ms: random.pick(&counts) }),
            block_hashes: random.list(&hashes),
            block_token_counts: random.list(&counts),
            token_ids: random.list(&[0, 1, u32::MAX]),
            prompt_text: random.pick(&names),
            adapter_id: random.pick(&names),
        };
        let answer = client.lookup_route(asked.clone()).await;
        let answer = answer.unwrap_or_else(|status| panic!("round {round}: {status} for {asked:?}")).into_inner();
        for score in &answer.replica_scores {
            assert!(score.score.is_finite() && score.score >= 0.0, "{asked:?}: {answer:?}");
            assert!((0.0..=1.0).contains(&score.estimated_cache_hit_prob), "{asked:?}: {answer:?}");
        }
    }
    hub.shutdown().await;
}

#[tokio::test]
async fn what_is_no_message_is_refused_and_the_hub_serves_on() {
    let hub = hub("").await;
    let mut random = Random(11);
    for _ in 0..60 {
        let garbage: Vec<u8> = (0..random.below(60)).map(|_| random.below(256) as u8).collect();
        let (status, answer) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", framed(&garbage), None).await;
        // Some of it is a message by chance.
        let expected = if LookupRouteRequest::decode(&*garbage).is_ok() { "0" } else { "13" };
        assert_eq!((status.as_str(), answer.is_some()), (expected, expected == "0"), "{garbage:?}");
    }
    let mut client = connect(&hub).await;
    report(&mut client, vec![update("a", &[b"p"])]).await;
    hub.set_policies(plain());
    assert_eq!(ids(&look_up(&mut client, request_for(b"p")).await), ["a"]);
    let (status, _) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", framed(&[0xFF; 20]), None).await;
    assert_eq!(status, "13", "not protobuf");
    let (status, _) = raw_call::<LookupRouteResponse>(&hub, "NoSuchCall", framed(&[]), None).await;
    assert_eq!(status, "12", "not there");
    let (status, answer) = raw_call::<LookupRouteResponse>(&hub, "LookupRoute", framed(&[]), None).await;
    assert_eq!((status.as_str(), answer.unwrap().reason_code.as_str()), ("0", "NO_HINT"));
    hub.shutdown().await;
}
