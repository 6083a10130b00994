//! What is told of a reported block's place in a chain.

use super::*;
use crate::observation::{Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock};
use crate::publisher::changes::push;

/// What was stored since changes were last taken: the block before, and the blocks.
fn told(publisher: &mut Publisher) -> Vec<(Option<BlockKey>, Vec<BlockKey>)> {
    let stored = |change| match change {
        Observation::Stored(stored) => Some(stored),
        _ => None,
    };
    let keys = |blocks: Vec<StoredBlock>| blocks.into_iter().map(|block| block.key).collect();
    let changes = publisher.take_changes().into_iter().filter_map(stored);
    changes
        .map(|Stored { parent, chained, blocks, .. }| {
            assert!(!chained, "a producer's keys prove nothing of each other");
            (parent, keys(blocks))
        })
        .collect()
}

fn keys(hashes: &[&str]) -> Vec<BlockKey> {
    hashes.iter().map(|hash| key(hash)).collect()
}

#[test]
fn the_blocks_of_a_chain_come_after_one_another() {
    let mut publisher = publisher();
    publisher.report(&update("r", vec![chain(&["a", "b", "c"], &[16, 16, 16])]), NOW_MS);
    assert_eq!(told(&mut publisher), [(None, keys(&["a", "b", "c"]))]);
    publisher.report(&update("r", vec![chain(&["a", "b", "c", "d", "e"], &[16; 5])]), NOW_MS);
    assert_eq!(told(&mut publisher), [(Some(key("c")), keys(&["d", "e"]))], "what is known goes without saying");
    publisher.report(&update("r", vec![chain(&["a", "b", "x"], &[16; 3])]), NOW_MS);
    assert_eq!(told(&mut publisher), [(Some(key("b")), keys(&["x"]))]);
}

#[test]
fn keys_of_another_length_are_told_apart_and_still_after_the_ones_before_them() {
    let mut publisher = publisher();
    publisher.report(&update("r", vec![chain(&["a", "bb", "cc", "d"], &[16; 4])]), NOW_MS);
    let expected = [(None, keys(&["a"])), (Some(key("a")), keys(&["bb", "cc"])), (Some(key("cc")), keys(&["d"]))];
    assert_eq!(told(&mut publisher), expected);
}

#[test]
fn an_entry_without_a_chain_and_a_whole_prefix_come_after_nothing() {
    let mut publisher = publisher();
    let whole = PrefixEntry { prefix_hash: "whole".into(), token_count: 32, ..chain(&["a", "b"], &[16, 16]) };
    publisher.report(&update("r", vec![entry("alone", 48), whole]), NOW_MS);
    let expected = [(None, keys(&["alone"])), (None, keys(&["a", "b"])), (None, keys(&["whole"]))];
    assert_eq!(told(&mut publisher), expected);
}

#[test]
fn a_chain_goes_on_across_the_pieces_of_a_report() {
    let hashes: Vec<String> = (0..10).map(|at| format!("block {at}")).collect();
    let hashes: Vec<&str> = hashes.iter().map(String::as_str).collect();
    let entry = PrefixEntry { prefix_hash: "w".into(), token_count: 40, ..chain(&hashes, &[4; 10]) };
    let mut publisher = publisher();
    for piece in update("r", vec![entry]).into_pieces(4) {
        publisher.report(&piece, NOW_MS);
    }
    assert_eq!(told(&mut publisher), [(None, keys(&hashes)), (None, keys(&["w"]))], "taken together it is one chain");
    assert_eq!(held(&publisher.index, &scope(), "block 9", "r").map(|held| held.token_count), Some(40));

    let entry = PrefixEntry { tier: 2, ..chain(&hashes, &[4; 10]) };
    let pieces = update("r", vec![entry]).into_pieces(4).into_iter().map(|piece| {
        publisher.report(&piece, NOW_MS);
        told(&mut publisher)
    });
    let expected = [
        vec![(None, keys(&hashes[..4]))],
        vec![(Some(key("block 3")), keys(&hashes[4..8]))],
        vec![(Some(key("block 7")), keys(&hashes[8..]))],
    ];
    assert_eq!(pieces.collect::<Vec<_>>(), expected);
}

fn stored(parent: Option<u64>, keys: std::ops::Range<u64>) -> Stored {
    Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(1),
        last_seen_ms: NOW_MS,
        parent: parent.map(BlockKey::Hash64),
        chained: true,
        blocks: keys.map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: key as u32 }).collect(),
        ..Stored::default()
    }
}

fn pushed(first: &Stored, second: &Stored) -> Vec<Observation> {
    let mut changes = Vec::new();
    push(&mut changes, Observation::Stored(first.clone()));
    push(&mut changes, Observation::Stored(second.clone()));
    changes
}

#[test]
fn changes_that_go_on_from_one_another_become_one() {
    let (first, second) = (stored(Some(9), 10..13), stored(Some(12), 13..15));
    assert_eq!(pushed(&first, &second), [Observation::Stored(stored(Some(9), 10..15))]);
    let loose = |stored| Stored { chained: false, ..stored };
    assert_eq!(pushed(&loose(first), &loose(second)), [Observation::Stored(loose(stored(Some(9), 10..15)))]);
    let (first, second) = (loose(stored(None, 10..13)), loose(stored(None, 20..22)));
    assert_eq!(pushed(&first, &second).len(), 1, "of neither it is known what is before it");
}

#[test]
fn changes_that_do_not_go_on_stay_apart() {
    let (first, second) = (stored(Some(9), 10..13), stored(Some(12), 13..15));
    let longest = stored(Some(9), 10..10 + 2_047);
    for (first, second) in [
        (&first, Stored { parent: None, ..second.clone() }),
        (&first, Stored { parent: Some(BlockKey::Hash64(11)), ..second.clone() }),
        (&first, Stored { chained: false, ..second.clone() }),
        (&first, Stored { tier: Tier::T2, ..second.clone() }),
        (&first, Stored { last_seen_ms: NOW_MS + 1, ..second.clone() }),
        (&first, Stored { replica: ReplicaSlot(2), ..second.clone() }),
        (&first, Stored { scope: ScopeSlot(2), ..second.clone() }),
        (&first, Stored { access_count: Some(0), ..second.clone() }),
        (&stored(None, 1..3), stored(None, 3..5)),
        (&Stored { chained: false, ..first.clone() }, Stored { parent: None, chained: false, ..second.clone() }),
        (&longest, stored(Some(2_056), 2_057..2_059)),
    ] {
        let apart = [first.clone(), second.clone()].map(Observation::Stored);
        assert_eq!(pushed(first, &second), apart);
    }
    assert_eq!(pushed(&longest, &stored(Some(2_056), 2_057..2_058)).len(), 1, "there is room for one more");
}

#[test]
fn a_removal_between_two_stores_keeps_them_apart() {
    let removed =
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(1), keys: vec![BlockKey::Hash64(10)] };
    let mut changes = Vec::new();
    let all = [Observation::Stored(stored(None, 10..11)), removed, Observation::Stored(stored(Some(10), 11..12))];
    all.iter().for_each(|change| push(&mut changes, change.clone()));
    assert_eq!(changes, all);
}
