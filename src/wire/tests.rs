//! What goes over the wire and comes back.

use super::*;

fn delta(observations: Vec<Observation>) -> StreamMessage {
    StreamMessage { number: 7, epoch: 9, sequence: 12, body: StreamBody::Delta { first_sequence: 11, observations } }
}

fn round_trip(message: &StreamMessage) -> Result<StreamMessage, Malformed> {
    decode_stream_message(&stream_message_to_proto(message).encode_to_vec())
}

#[test]
fn every_fact_survives_the_wire() {
    let scope =
        Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: "lora".into() };
    let block = StoredBlock { key: BlockKey::Hash64(0xEA06_FC71_A5EE_6E88), token_count: 16 };
    let wide = BlockKey::from_bytes(&[1; 32]).unwrap();
    let message = delta(vec![
        Observation::Scope { slot: ScopeSlot(3), scope },
        Observation::ScopeGone { slot: ScopeSlot(2) },
        Observation::ReplicaUp {
            replica: ReplicaSlot(1),
            member: Member::new("t", "m", "r"),
            address: "10.0.0.1:8000".into(),
            data_parallel_rank: None,
        },
        Observation::Policy {
            tenant_id: Some("t".into()),
            policy: Policy { eviction: Eviction::Lfu, ..Policy::default() },
        },
        Observation::Policy { tenant_id: None, policy: Policy::default() },
        Observation::PolicyGone { tenant_id: Some("u".into()) },
        Observation::Stored(Stored {
            replica: ReplicaSlot(1),
            scope: ScopeSlot(3),
            tier: Tier::T2,
            last_seen_ms: 1_700_000_000_000,
            blocks: vec![block.clone(), StoredBlock { key: BlockKey::Hash64(1), token_count: 32 }],
            ..Stored::default()
        }),
        Observation::Stored(Stored {
            replica: ReplicaSlot(1),
            scope: ScopeSlot(3),
            parent: Some(wide.clone()),
            chained: true,
            page: 9,
            access_count: Some(0),
            blocks: vec![block],
            ..Stored::default()
        }),
        Observation::Reasserted { replica: ReplicaSlot(1), at_ms: 7 },
        Observation::Counted(Counted {
            scope: ScopeSlot(3),
            keys: vec![BlockKey::Hash64(1), BlockKey::Hash64(2)],
            replicas: vec![ReplicaCounts { replica: ReplicaSlot(1), counts: vec![4] }],
        }),
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(3), keys: vec![wide.clone(), wide] },
        Observation::Cleared { replica: ReplicaSlot(1) },
        Observation::Stats {
            replica: ReplicaSlot(1),
            stats: ReplicaStats { pressure: 0.25, hit_rate: 0.5, reported_ms: 5 },
        },
        Observation::Model {
            model_id: "m".into(),
            version: ModelVersion { digest: ModelDigest(0x0102 << 112 | 3), length: 1 },
        },
        Observation::ModelGone { model_id: "n".into() },
        Observation::ReplicaComplete { replica: ReplicaSlot(1) },
        Observation::ReplicaGone { replica: ReplicaSlot(1) },
    ]);
    assert_eq!(round_trip(&message), Ok(message));
}

#[test]
fn a_part_of_a_package_survives_the_wire_and_fits_a_message() {
    for bytes in [1, MODEL_PART_BYTES] {
        let part = ModelPart { digest: ModelDigest(u128::MAX), number: u32::MAX, contents: vec![7; bytes] };
        let message =
            StreamMessage { number: u64::MAX, epoch: u64::MAX, sequence: u64::MAX, body: StreamBody::ModelPart(part) };
        assert_eq!(round_trip(&message), Ok(message.clone()));
        assert!(stream_message_to_proto(&message).encoded_len() <= MAX_MESSAGE_BYTES);
    }
}

#[test]
fn a_part_without_contents_or_with_too_many_is_refused() {
    let part = |digest: usize, bytes| v1::ObserveResponse {
        epoch: 9,
        kind: Some(v1::observe_response::Kind::ModelPart(v1::ModelPart {
            digest: vec![1; digest].into(),
            number: 0,
            contents: vec![7; bytes].into(),
        })),
        ..Default::default()
    };
    assert!(stream_message_from_proto(part(16, 1)).is_ok());
    for bytes in [0, MODEL_PART_BYTES + 1] {
        let refused = stream_message_from_proto(part(16, bytes));
        assert!(matches!(refused, Err(Malformed::Field { field: "contents", .. })), "{bytes} bytes");
    }
    for digest in [0, 15, 17] {
        let refused = stream_message_from_proto(part(digest, 1));
        assert!(matches!(refused, Err(Malformed::Field { field: "digest", .. })), "a digest of {digest} bytes");
    }
}

#[test]
fn a_version_without_contents_or_with_a_digest_that_is_cut_is_refused() {
    let model = |digest: usize, length| {
        let digest = vec![1; digest].into();
        let model = v1::ModelVersion { model_id: "m".into(), digest, length };
        fact_from_proto(v1::Fact { kind: Some(v1::fact::Kind::Model(model)) })
    };
    assert!(model(16, 1).is_ok());
    assert!(matches!(model(16, 0), Err(Malformed::Field { field: "length", .. })));
    assert!(matches!(model(8, 1), Err(Malformed::Field { field: "digest", .. })));
}

#[test]
fn what_a_subscriber_sends_survives_the_wire() {
    let subscription = Subscription {
        node_id: "n".into(),
        version: "v".into(),
        epoch: 1,
        sequence: 2,
        models: vec!["m".into()],
        tenants: vec!["t".into()],
    };
    for message in [
        SubscriberMessage::Subscribe(subscription),
        SubscriberMessage::Acknowledge(7),
        SubscriberMessage::WantModel { digest: ModelDigest(5 << 100), first_part: 682 },
    ] {
        let encoded = encode_subscriber_message(&message);
        let decoded = v1::ObserveRequest::decode(&*encoded).unwrap();
        assert_eq!(subscriber_message_from_proto(decoded), Ok(message));
    }
    let cut = v1::WantModel { digest: vec![1; 15].into(), first_part: 0 };
    let cut = v1::ObserveRequest { kind: Some(v1::observe_request::Kind::WantModel(cut)) };
    assert!(matches!(subscriber_message_from_proto(cut), Err(Malformed::Field { field: "digest", .. })));
}

#[test]
fn a_key_that_is_cut_is_refused() {
    let fact = v1::Fact {
        kind: Some(v1::fact::Kind::Removed(v1::BlockRemoved {
            replica: 1,
            scope: 1,
            keys: vec![0; 12].into(),
            key_bytes: 8,
        })),
    };
    let refused = fact_from_proto(fact);
    assert_eq!(refused, Err(Malformed::Field { field: "keys", problem: "length is not a multiple of key_bytes" }));
}

#[test]
fn counts_must_fit_the_keys_and_be_positive() {
    let stored = |token_counts: Vec<u32>| {
        fact_from_proto(v1::Fact {
            kind: Some(v1::fact::Kind::Stored(v1::BlockStored {
                keys: vec![0; 16].into(),
                key_bytes: 8,
                token_counts,
                ..Default::default()
            })),
        })
    };
    assert!(matches!(stored(vec![16]), Err(Malformed::Field { field: "token_counts", .. })));
    assert!(matches!(stored(vec![16, 0]), Err(Malformed::Field { field: "token_counts", .. })));
    assert!(stored(vec![16, 32]).is_ok());
}

#[test]
fn shares_that_are_no_numbers_count_as_nothing() {
    let message = delta(vec![Observation::Stats {
        replica: ReplicaSlot(1),
        stats: ReplicaStats { pressure: f32::NAN, hit_rate: 7.0, reported_ms: 5 },
    }]);
    let expected = delta(vec![Observation::Stats {
        replica: ReplicaSlot(1),
        stats: ReplicaStats { pressure: 0.0, hit_rate: 1.0, reported_ms: 5 },
    }]);
    assert_eq!(round_trip(&message), Ok(expected));
}

#[test]
fn a_kind_of_fact_from_a_later_build_is_skipped() {
    let known = delta(vec![Observation::Cleared { replica: ReplicaSlot(1) }]);
    let mut message = stream_message_to_proto(&known);
    let Some(v1::observe_response::Kind::Delta(delta)) = &mut message.kind else { panic!("a delta") };
    delta.facts.push(v1::Fact { kind: None });
    assert_eq!(stream_message_from_proto(message), Ok(known));
}

#[test]
fn garbage_is_refused() {
    assert!(matches!(decode_stream_message(&[0xFF; 40]), Err(Malformed::NotProtobuf(_))));
    assert!(matches!(decode_stream_message(&[]), Err(Malformed::Field { field: "epoch", .. })));
}

fn wide(width: usize, fill: u8) -> BlockKey {
    BlockKey::from_bytes(&vec![fill; width]).unwrap()
}

fn stored(keys: &[BlockKey], parent: Option<BlockKey>) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(3),
        parent,
        blocks: (1..).zip(keys).map(|(token_count, key)| StoredBlock { key: key.clone(), token_count }).collect(),
        ..Stored::default()
    })
}

fn keys_of(observations: &[Observation]) -> Vec<BlockKey> {
    let keys = observations.iter().flat_map(|observation| match observation {
        Observation::Stored(stored) => stored.blocks.iter().map(|block| block.key.clone()).collect(),
        Observation::Removed { keys, .. } => keys.clone(),
        Observation::Counted(counted) => counted.keys.clone(),
        other => panic!("{other:?}"),
    });
    keys.collect()
}

#[test]
fn keys_of_different_widths_are_several_facts_and_come_back_as_they_were() {
    let keys = [1, 8, 8, 9, 256, 8, 1].map(|width| wide(width, width as u8));
    let counted = Counted {
        scope: ScopeSlot(3),
        keys: keys.to_vec(),
        replicas: vec![
            ReplicaCounts { replica: ReplicaSlot(1), counts: vec![1, 2, 3, 4, 5, 6, 7] },
            ReplicaCounts { replica: ReplicaSlot(2), counts: vec![8, 9] },
        ],
    };
    let removed = Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(3), keys: keys.to_vec() };
    for whole in [stored(&keys, Some(wide(256, 7))), Observation::Counted(counted), removed] {
        assert!(!whole.is_uniform());
        let came = decode_records(&encode_records(std::slice::from_ref(&whole))).unwrap();
        assert_eq!(came, whole.clone().into_uniform());
        assert_eq!(round_trip(&delta(vec![whole.clone()])), Ok(delta(came.clone())));
        let (mut came, mut expected) = (keys_of(&came), keys_of(&[whole]));
        came.sort();
        expected.sort();
        assert_eq!(came, expected);
    }
}

#[test]
fn keys_of_one_width_are_one_fact_at_every_width() {
    for width in [1, 2, 7, 8, 9, 32, 255, 256] {
        let keys = [wide(width, 1), wide(width, 2)];
        let whole = vec![stored(&keys, Some(wide(256, 3)))];
        assert_eq!(decode_records(&encode_records(&whole)), Ok(whole), "{width} bytes");
    }
}

#[test]
fn a_key_that_nobody_can_hold_spoils_nothing() {
    let (empty, long) = (BlockKey::of_request(&[]), wide(257, 1));
    let whole = stored(&[wide(2, 1), empty.clone(), wide(2, 2), long.clone(), wide(9, 3)], Some(long));
    let came = decode_records(&encode_records(&[whole])).unwrap();
    assert_eq!(keys_of(&came), [wide(2, 1), wide(2, 2), wide(9, 3)]);
    assert_eq!(decode_records(&encode_records(&[stored(&[empty], None)])), Ok(vec![]));
}

#[test]
fn the_bytes_of_an_observation_are_what_it_takes_in_a_message() {
    let keys: Vec<BlockKey> = (1..=60).map(|at| wide(1 + at % 3, at as u8)).collect();
    for whole in [stored(&keys, None), stored(&keys[..1], None), Observation::Cleared { replica: ReplicaSlot(1) }] {
        let (told, taken) = (facts_bytes(&whole), encode_records(std::slice::from_ref(&whole)).len());
        let facts = facts_to_proto(&whole).len();
        assert!(taken <= told && told <= taken + facts * FACT_OVERHEAD_BYTES, "{told} for {taken}");
    }
}
