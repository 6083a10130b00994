//! Random reports and requests: from few names, so that they meet, and from any bytes at all.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases::messages::{Bytes, Event, EventKind, Float, Lookup, Prefix, Request, Stats, TokenIds, Update};

/// Replicas.
pub const REPLICAS: [&str; 4] = ["a", "b", "c", "d"];
/// Blocks of a conversation.
const BLOCKS: usize = 6;

/// Something that happens.
#[derive(Clone, Debug)]
pub enum Happening {
    Report(Update),
    Event(Event),
    Advance(i64),
    Sweep,
}

/// A tenant, a model, a scheme and an adapter, mostly those that most have.
fn scope() -> impl Strategy<Value = [String; 4]> {
    let name = |[usual, other]: [&'static str; 2]| {
        select(vec![usual, usual, usual, usual, usual, other]).prop_map(str::to_owned)
    };
    [name(["t", "u"]), name(["m", "n"]), name(["vllm", "sglang"]), name(["", "sql"])]
}

/// The key of a block of one of three conversations that begin alike.
fn block(conversation: usize, at: usize) -> Bytes {
    let branch = if at < 2 { 0 } else { conversation };
    Bytes(format!("{branch}/{at}").into_bytes())
}

fn chain(most: usize) -> impl Strategy<Value = Vec<Bytes>> {
    (0..3_usize, 1..=most).prop_map(|(conversation, blocks)| (0..blocks).map(|at| block(conversation, at)).collect())
}

fn any_block() -> impl Strategy<Value = Bytes> {
    (0..3_usize, 0..BLOCKS).prop_map(|(conversation, at)| block(conversation, at))
}

/// Something that is held: now and then it says nothing that means anything.
fn prefix() -> impl Strategy<Value = Prefix> {
    let adapter = || select(vec!["", "", "sql"]).prop_map(str::to_owned);
    let whole =
        (any_block(), 1..200_i32, -1..4_i32, adapter()).prop_map(|(prefix_hash, token_count, tier, adapter_id)| {
            Prefix { prefix_hash, token_count, tier, adapter_id, ..Prefix::default() }
        });
    let blocks = (chain(BLOCKS), vec(1..64_i32, BLOCKS), 0..4_i32, adapter()).prop_map(
        |(block_hashes, mut block_token_counts, tier, adapter_id)| {
            block_token_counts.truncate(block_hashes.len());
            Prefix { block_hashes, block_token_counts, tier, adapter_id, ..Prefix::default() }
        },
    );
    let broken = (chain(BLOCKS), vec(-1..64_i32, 0..BLOCKS), option::of(any_block()), -3..3_i32).prop_map(
        |(mut block_hashes, block_token_counts, prefix_hash, token_count)| {
            if token_count == 0
                && let Some(last) = block_hashes.last_mut()
            {
                *last = Bytes::default();
            }
            let prefix_hash = prefix_hash.unwrap_or_default();
            Prefix { block_hashes, block_token_counts, prefix_hash, token_count, ..Prefix::default() }
        },
    );
    prop_oneof![4 => whole, 4 => blocks, 1 => broken]
}

/// Load within its bounds.
fn stats() -> impl Strategy<Value = Stats> {
    (0.0..1.0_f64, 0.0..1.0_f64).prop_map(|(pressure, hit_rate)| Stats {
        pressure: Float(pressure),
        hit_rate: Float(hit_rate),
        ..Stats::default()
    })
}

/// A report of one of a few replicas.
pub fn report() -> impl Strategy<Value = Update> {
    let replica = select(REPLICAS.to_vec()).prop_map(str::to_owned);
    (replica, scope(), vec(prefix(), 0..4), option::of(stats())).prop_map(
        |(replica_id, [tenant_id, model_id, hash_scheme, adapter_id], prefixes, stats)| Update {
            replica_id,
            model_id,
            tenant_id,
            hash_scheme,
            adapter_id,
            prefixes,
            stats,
            ..Update::default()
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let kinds = vec![EventKind::PrefixEvicted, EventKind::PrefixEvicted, EventKind::AllCleared, EventKind::PrefixAdded];
    let replica = select(REPLICAS.to_vec()).prop_map(str::to_owned);
    (select(kinds), replica, scope(), any_block()).prop_map(
        |(kind, replica_id, [tenant_id, model_id, _, adapter_id], prefix_hash)| Event {
            kind,
            replica_id,
            model_id,
            tenant_id,
            prefix_hash,
            adapter_id,
            at_ms: None,
        },
    )
}

/// What happens, in order.
pub fn history(most: usize) -> impl Strategy<Value = Vec<Happening>> {
    let happening = prop_oneof![
        8 => report().prop_map(Happening::Report),
        2 => event().prop_map(Happening::Event),
        2 => (0..400_000_i64).prop_map(Happening::Advance),
        1 => Just(Happening::Sweep),
    ];
    vec(happening, 0..most)
}

/// A request for what may well be held.
pub fn request() -> impl Strategy<Value = Lookup> {
    let keys = prop_oneof![
        any_block().prop_map(|key| (key, Vec::new())),
        chain(BLOCKS).prop_map(|blocks| (Bytes::default(), blocks)),
        vec(any_block(), 1..BLOCKS).prop_map(|blocks| (Bytes::default(), blocks)),
    ];
    (scope(), keys, vec(1..64_i32, BLOCKS), 0..400_i32).prop_map(
        |([tenant_id, model_id, hash_scheme, adapter_id], (prefix_hash, block_hashes), mut counts, slo_ttft_ms)| {
            counts.truncate(block_hashes.len());
            let request = Request {
                model_id,
                tenant_id,
                hash_scheme,
                adapter_id,
                prefix_hash,
                block_hashes,
                block_token_counts: counts,
                slo_ttft_ms,
                ..Request::default()
            };
            Lookup { request, caller_deadline_ms: None }
        },
    )
}

/// Any bytes, now and then those of a block.
fn any_key() -> impl Strategy<Value = Bytes> {
    prop_oneof![4 => any_block(), 2 => vec(any::<u8>(), 0..40).prop_map(Bytes), 1 => vec(any::<u8>(), 300).prop_map(Bytes)]
}

/// Any name, mostly `usual`.
fn any_name(usual: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![
        12 => Just(usual.to_owned()),
        1 => Just(String::new()),
        1 => "\\PC{0,20}",
        1 => Just("x".repeat(10_000)),
        1 => Just("inferencecache.io/probe".to_owned()),
    ]
}

/// Any float, now and then one at the end of what there is.
fn any_float() -> impl Strategy<Value = f32> {
    let ends = vec![f32::MAX, f32::MIN, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, 1.0, 0.0];
    prop_oneof![any::<f32>(), select(ends)]
}

/// Any report that the contract's messages can carry.
pub fn any_report() -> impl Strategy<Value = Update> {
    let names = ["a", "m", "t", "vllm", ""].map(any_name);
    let prefix = (any_key(), any::<i32>(), vec(any_key(), 0..5), vec(any::<i32>(), 0..5), any::<i32>(), any_name(""));
    let prefix = prefix.prop_map(|(prefix_hash, token_count, block_hashes, block_token_counts, tier, adapter_id)| {
        Prefix { prefix_hash, token_count, block_hashes, block_token_counts, tier, adapter_id }
    });
    let stats = (any_float(), any_float()).prop_map(|(hit_rate, pressure)| Stats {
        hit_rate: Float(hit_rate.into()),
        pressure: Float(pressure.into()),
        ..Stats::default()
    });
    (names, option::weighted(0.2, any::<i64>()), vec(prop_oneof![prefix, self::prefix()], 0..4), option::of(stats))
        .prop_map(|([replica_id, model_id, tenant_id, hash_scheme, adapter_id], at_ms, prefixes, stats)| Update {
            replica_id,
            model_id,
            tenant_id,
            hash_scheme,
            adapter_id,
            at_ms,
            prefixes,
            stats,
            bypass: false,
        })
}

/// Any request that the contract's messages can carry.
pub fn any_request() -> impl Strategy<Value = Lookup> {
    let names = ["m", "t", "vllm", ""].map(any_name);
    let blocks = prop_oneof![Just(Vec::new()), vec(any_key(), 0..6)];
    let explicit = (any_key(), any::<i32>(), blocks, vec(any::<i32>(), 0..6), prop::bool::weighted(0.8));
    let derived = (vec(any::<u32>(), 0..70), "\\PC{0,30}");
    let slo_ttft_ms = prop_oneof![any::<i32>(), -1..400_i32];
    let rest = (slo_ttft_ms, option::weighted(0.1, any::<i64>()));
    (names, explicit, derived, rest).prop_map(
        |(
            [model_id, tenant_id, hash_scheme, adapter_id],
            (prefix_hash, prefix_token_count, block_hashes, mut block_token_counts, is_even),
            (token_ids, prompt_text),
            (slo_ttft_ms, caller_deadline_ms),
        )| {
            if is_even {
                block_token_counts.resize(block_hashes.len(), 16);
            }
            let request = Request {
                model_id,
                tenant_id,
                hash_scheme,
                adapter_id,
                prefix_hash,
                prefix_token_count,
                block_hashes,
                block_token_counts,
                token_ids: TokenIds(token_ids),
                prompt_text,
                prompt_text_repeat: None,
                slo_ttft_ms,
                slo_tbt_ms: slo_ttft_ms,
            };
            Lookup { request, caller_deadline_ms }
        },
    )
}
