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
        Observation::ReplicaComplete { replica: ReplicaSlot(1) },
        Observation::ReplicaGone { replica: ReplicaSlot(1) },
    ]);
    assert_eq!(round_trip(&message), Ok(message));
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
