//! Payloads that are not what an engine sent.

use warmroute::native::engine::{Batch, KvEvent};
use warmroute::native::hub::config::EngineKind;

use crate::fixtures::{ENGINES, Replica, cases, read};

#[test]
fn a_truncated_batch_is_no_batch() {
    for case in cases() {
        let payload = case.payload();
        for end in 0..payload.len() {
            for engine in ENGINES {
                assert!(read(&payload[..end], engine).is_none(), "{} up to {end}", case.name());
            }
        }
    }
}

/// A batch with another byte is another batch: what can be promised is that it is read as such or refused, that every event
/// of it is counted, and that memory stays in proportion.
#[test]
fn a_batch_with_another_byte_is_read_or_counted() {
    let mut outcomes = [0_u64; 3];
    for case in cases().into_iter().step_by(3) {
        let payload = case.payload();
        for at in 0..payload.len() {
            for flip in [0x01, 0x10, 0x80, 0xFF] {
                let mut other = payload.clone();
                other[at] ^= flip;
                match read(&other, EngineKind::Auto) {
                    None => outcomes[0] += 1,
                    Some(batch) => {
                        let unread: u64 = batch.faults.iter().map(|(_, count)| count).sum();
                        outcomes[if unread == 0 { 2 } else { 1 }] += 1;
                        check(&batch, &other);
                    }
                }
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 1_000), "{outcomes:?}");
}

#[test]
fn random_bytes_are_refused_or_counted() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    // Bytes that mean something in MessagePack, to get further than the first one.
    let starts = [0x92, 0x93, 0x83, 0x91, 0xC0, 0xCF, 0xDC, 0xDD, 0xDE, 0xC4, 0xA4, 0x01, 0xCB, 0xD9, 0xFF, 0x00];
    let cases = cases();
    for _ in 0..200_000 {
        let mut payload: Vec<u8> = (0..next() % 40).map(|_| starts[next() % 16] ^ (next() % 3) as u8).collect();
        if next() % 2 == 0 {
            let donor = cases[next() % cases.len()].payload();
            let cut = next() % donor.len();
            payload = [&donor[..cut], &payload, &donor[cut + next() % (donor.len() - cut)..]].concat();
        }
        for engine in ENGINES {
            if let Some(batch) = read(&payload, engine) {
                check(&batch, &payload);
            }
        }
    }
}

/// The batch has no more than its bytes can say, and can be applied.
fn check(batch: &Batch, payload: &[u8]) {
    let mut items = 0;
    for event in &batch.events {
        items += match event {
            KvEvent::BlockStored(event) => event.block_hashes.len() + event.token_ids.len() + event.extra_keys.len(),
            KvEvent::BlockRemoved(event) => event.block_hashes.len(),
            _ => 0,
        };
    }
    assert!(items + batch.events.len() <= payload.len() * 2);
    let mut replica = Replica::new();
    replica.apply(batch);
    let stored: usize = batch
        .events
        .iter()
        .map(|event| match event {
            KvEvent::BlockStored(event) => event.block_hashes.len(),
            _ => 0,
        })
        .sum();
    assert!(replica.cache.len() <= stored);
}
