//! Cases from arrays and maps written by another encoder.

use rmpv::Value;

use super::*;
use crate::native::engine::{EngineKey, ExtraKeys};
use crate::native::hub::config::EngineKind;

fn encoded(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn array(values: Vec<Value>) -> Value {
    Value::Array(values)
}

fn map(entries: Vec<(&str, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn ints(values: impl IntoIterator<Item = u64>) -> Value {
    array(values.into_iter().map(Value::from).collect())
}

fn read(payload: &[u8]) -> Result<Batch, MalformedBatch> {
    decode(payload, &Dialect::of(EngineKind::Auto))
}

fn only_event(batch: &Value) -> Result<KvEvent, EventFault> {
    only_event_of(EngineKind::Auto, batch)
}

fn only_event_of(engine: EngineKind, batch: &Value) -> Result<KvEvent, EventFault> {
    let mut batch = decode(&encoded(batch), &Dialect::of(engine)).unwrap();
    assert_eq!(batch.events.len(), 1);
    match batch.faults.pop() {
        Some((fault, 1)) => Err(fault),
        _ => Ok(batch.events.remove(0)),
    }
}

fn expected() -> BlockStored {
    BlockStored {
        block_hashes: vec![EngineKey::Int(7), EngineKey::Int(8)],
        parent_block_hash: Some(EngineKey::Int(6)),
        token_ids: vec![1, 2, 3, 4],
        block_size: 2,
        ..BlockStored::default()
    }
}

#[test]
fn every_array_length_from_vllm_0_9_on_is_read() {
    let full = vec![
        Value::from(BLOCK_STORED),
        ints([7, 8]),
        Value::from(6),
        ints([1, 2, 3, 4]),
        Value::from(2),
        Value::Nil,
        Value::from("GPU"),
        Value::Nil,
        array(vec![Value::Nil, Value::Nil]),
        Value::from(0),
        Value::from("full_attention"),
        Value::Nil,
        Value::from("a field of the future"),
    ];
    for length in 6..=full.len() {
        let batch = array(vec![1.5.into(), array(vec![array(full[..length].to_vec())])]);
        let Ok(KvEvent::BlockStored(event)) = only_event(&batch) else { panic!("length {length}") };
        assert_eq!(event.block_hashes, expected().block_hashes);
        assert_eq!(event.place.medium.is_some(), length > 6);
        assert_eq!(event.extra_keys.len(), if length > 8 { 2 } else { 0 });
        assert_eq!(event.place.group_idx, (length > 9).then_some(0));
    }
}

#[test]
fn a_map_says_the_same_as_an_array() {
    let event = map(vec![
        ("type", BLOCK_STORED.into()),
        ("session_id", "ignored".into()),
        ("block_size", 2.into()),
        ("token_ids", ints([1, 2, 3, 4])),
        ("parent_block_hash", 6.into()),
        ("block_hashes", ints([7, 8])),
    ]);
    let batch = map(vec![("events", array(vec![event])), ("ts", 2.5.into())]);
    assert_eq!(only_event(&batch), Ok(KvEvent::BlockStored(expected())));
    assert_eq!(read(&encoded(&batch)).unwrap().timestamp, Some(2.5));
}

#[test]
fn hashes_are_signed_unsigned_or_bytes() {
    let hashes = array(vec![(-1_i64).into(), u64::MAX.into(), Value::Binary(vec![9; 32])]);
    let batch = array(vec![0.into(), array(vec![array(vec![BLOCK_REMOVED.into(), hashes])])]);
    let Ok(KvEvent::BlockRemoved(event)) = only_event(&batch) else { panic!() };
    let bytes = EngineKey::Bytes(vec![9; 32].into());
    assert_eq!(event.block_hashes, [EngineKey::Int(u64::MAX), EngineKey::Int(u64::MAX), bytes]);
}

#[test]
fn what_a_key_depends_on_is_told_apart() {
    let keys = array(vec![
        Value::Nil,
        array(vec!["lora-a".into()]),
        array(vec![array(vec!["image".into(), 3.into()])]),
        array(vec!["lora-a".into(), "salt".into()]),
    ]);
    let event = map(vec![
        ("type", BLOCK_STORED.into()),
        ("block_hashes", ints([1])),
        ("extra_keys", keys),
        ("cache_salt", "s".into()),
        ("lookahead_token_ids", array(vec![array(vec![])])),
        ("locality", "REMOTE".into()),
    ]);
    let Ok(KvEvent::BlockStored(event)) = only_event(&array(vec![0.into(), array(vec![event])])) else { panic!() };
    let lora = ExtraKeys::Text("lora-a".into());
    assert_eq!(event.extra_keys, [ExtraKeys::None, lora, ExtraKeys::Other, ExtraKeys::Other]);
    assert!(event.salted && event.place.remote && !event.looks_ahead);
}

#[test]
fn one_unreadable_event_does_not_cost_the_others() {
    let texts = array(vec!["a".into(), true.into()]);
    let events = array(vec![
        array(vec!["BlockMoved".into(), 1.into()]),
        array(vec![BLOCK_STORED.into(), ints([1]), Value::Nil, texts, 1.into()]),
        array(vec![BLOCK_REMOVED.into()]),
        5.into(),
        array(vec![ALL_BLOCKS_CLEARED.into()]),
    ]);
    let batch = read(&encoded(&array(vec![0.into(), events, 3.into()]))).unwrap();
    let token_ids = EventFault::Malformed { tag: BLOCK_STORED, field: "token_ids" };
    let block_hashes = EventFault::Malformed { tag: BLOCK_REMOVED, field: "block_hashes" };
    let (stores, anything) = (KvEvent::Missed(Missed::Stores), KvEvent::Missed(Missed::Anything));
    // What could not be read is said once for several events in a row.
    assert_eq!(batch.events, [stores.clone(), anything, stores, KvEvent::AllBlocksCleared]);
    assert_eq!(batch.faults, [(EventFault::UnknownTag, 2), (token_ids, 1), (block_hashes, 1)]);
    assert_eq!((batch.read, batch.data_parallel_rank), (1, Some(3)));
}

#[test]
fn garbage_is_refused() {
    for payload in
        [&b""[..], b"\xc1", b"\x93\x01", b"hello", b"\x92\x00\x90\xc0", &[0x91; 64], &[0xdd, 0xff, 0xff, 0xff, 0xff]]
    {
        assert!(read(payload).is_err(), "{payload:?}");
    }
}

fn stored(more: Vec<(&str, Value)>) -> Value {
    let mut entries = vec![("type", BLOCK_STORED.into()), ("block_hashes", ints([1])), ("block_size", 2.into())];
    entries.extend(more);
    array(vec![0.into(), array(vec![map(entries)])])
}

#[test]
fn pairs_are_sglangs_and_depend_on_what_follows() {
    let pair = |a: u64, b: u64| ints([a, b]);
    let batch = stored(vec![("token_ids", array(vec![pair(1, 2), pair(2, 3)]))]);
    for engine in [EngineKind::Auto, EngineKind::Sglang] {
        let Ok(KvEvent::BlockStored(event)) = only_event_of(engine, &batch) else { panic!("{engine:?}") };
        assert!(event.looks_ahead && event.token_ids.is_empty() && event.further_tokens == 2);
    }
    let fault = Err(EventFault::Malformed { tag: BLOCK_STORED, field: "token_ids" });
    for engine in [EngineKind::Vllm, EngineKind::TensorrtLlm] {
        assert_eq!(only_event_of(engine, &batch), fault, "{engine:?}");
    }
    let triple = stored(vec![("token_ids", array(vec![ints([1, 2, 3])]))]);
    assert_eq!(only_event(&triple), fault);
}

#[test]
fn digests_among_tokens_are_tensorrt_llms_and_no_ids() {
    let tokens = array(vec![7.into(), "0a1b".into(), 8.into()]);
    let batch = stored(vec![("token_ids", tokens)]);
    for engine in [EngineKind::Auto, EngineKind::TensorrtLlm] {
        let Ok(KvEvent::BlockStored(event)) = only_event_of(engine, &batch) else { panic!("{engine:?}") };
        assert_eq!((event.token_ids, event.further_tokens), (vec![7], 2));
    }
    assert!(only_event_of(EngineKind::Vllm, &batch).is_err());
}

#[test]
fn images_and_extra_keys_are_told_of_the_same_blocks() {
    let image = map(vec![("type", "mm_key".into()), ("hash", "00".into()), ("start_offset", 0.into())]);
    let images = || array(vec![array(vec![]), array(vec![image.clone()]), array(vec![])]);
    let keys = |batch: &Value| match only_event(batch) {
        Ok(KvEvent::BlockStored(event)) => event.extra_keys,
        other => panic!("{other:?}"),
    };
    let (none, other) = (ExtraKeys::None, ExtraKeys::Other);
    assert_eq!(keys(&stored(vec![("mm_keys", images())])), [none.clone(), other.clone(), none.clone()]);
    let salted = array(vec![Value::Nil, Value::Nil, array(vec![1.into()])]);
    let both = stored(vec![("mm_keys", images()), ("extra_keys", salted)]);
    assert_eq!(keys(&both), [none, other.clone(), other.clone()]);
    let uneven = stored(vec![("mm_keys", images()), ("extra_keys", array(vec![Value::Nil]))]);
    assert!(keys(&uneven).iter().all(|keys| *keys == other));
}

#[test]
fn a_map_in_the_adapters_place_is_a_salt_of_sglangs() {
    let fields = vec![
        Value::from(BLOCK_STORED),
        ints([1]),
        Value::Nil,
        ints([1, 2]),
        2.into(),
        Value::Nil,
        "GPU".into(),
        map(vec![("cache_salt", "s".into())]),
    ];
    let batch = array(vec![0.into(), array(vec![array(fields)])]);
    let Ok(KvEvent::BlockStored(event)) = only_event(&batch) else { panic!() };
    assert!(event.salted && event.lora_name.is_none());
    let fault = EventFault::Malformed { tag: BLOCK_STORED, field: "lora_name" };
    assert_eq!(only_event_of(EngineKind::Vllm, &batch), Err(fault));
}

#[test]
fn memory_is_bounded_by_the_payload() {
    // Four billion events, blocks or tokens that are not there, and a million events that say nothing.
    let huge = [0xDD, 0xFF, 0xFF, 0xFF, 0xFF];
    assert!(read(&[&[0x92, 0x00][..], &huge].concat()).is_err());
    let nothing = [&[0x92, 0x00, 0xDD, 0x00, 0x10, 0x00, 0x00][..], &vec![0xC0; 1 << 20]].concat();
    let batch = read(&nothing).unwrap();
    assert_eq!((batch.events.len(), batch.faults), (1, vec![(EventFault::UnknownTag, 1 << 20)]));
    let mut event = encoded(&array(vec![BLOCK_STORED.into()]));
    event[0] = 0x93;
    assert!(read(&[&[0x92, 0x00, 0x91][..], &event, &huge, &[1, 1, 1]].concat()).is_err());
}

#[test]
fn a_storage_that_was_cleared_is_named() {
    let of = |medium: &str| KvEvent::TierBlocksCleared(Place { medium: Some(medium.into()), ..Place::default() });
    let batch = |event| array(vec![0.into(), array(vec![event])]);
    let cleared = |fields| only_event(&batch(map(fields)));
    assert_eq!(cleared(vec![("type", TIER_BLOCKS_CLEARED.into()), ("medium", "GPU".into())]), Ok(of("GPU")));
    let owned = vec![("ownership", "x".into()), ("medium", "CPU".into()), ("type", TIER_BLOCKS_CLEARED.into())];
    assert_eq!(cleared(owned), Ok(of("CPU")));
    assert_eq!(only_event(&batch(array(vec![TIER_BLOCKS_CLEARED.into(), "GPU".into()]))), Ok(of("GPU")));
    // Of one that does not say which, anything may be gone.
    let fault = EventFault::Malformed { tag: TIER_BLOCKS_CLEARED, field: "medium" };
    for fields in [vec![], vec![("medium", Value::Nil)], vec![("medium", 3.into())]] {
        let tagged = [vec![("type", TIER_BLOCKS_CLEARED.into())], fields].concat();
        assert_eq!(cleared(tagged), Err(fault));
    }
    assert_eq!(fault.missed(), Missed::Anything);
}
