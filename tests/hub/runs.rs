//! Blocks are told with their place in the prompt.

use warmroute::fingerprint::{BlockSize, prefix_hashes};
use warmroute::observation::{BlockKey, Stored};

use crate::hub_support::{BLOCK, Engine, Framing, Observer, observed, removed, stored, tokens};

/// The keys of a prompt's blocks, in order.
fn chain(token_ids: &[u32]) -> Vec<BlockKey> {
    prefix_hashes(token_ids, BlockSize::try_new(BLOCK as u64).unwrap(), None).map(BlockKey::from).collect()
}

/// What was told: the block before, and the blocks.
fn told(stored: &[Stored]) -> Vec<(Option<BlockKey>, Vec<BlockKey>)> {
    assert!(stored.iter().all(|stored| stored.chained));
    let keys = |stored: &Stored| stored.blocks.iter().map(|block| block.key.clone()).collect();
    stored.iter().map(|stored| (stored.parent.clone(), keys(stored))).collect()
}

/// The same, with what goes on from the piece before it as one with that: blocks of one time may come together.
fn joined(told: Vec<(Option<BlockKey>, Vec<BlockKey>)>) -> Vec<(Option<BlockKey>, Vec<BlockKey>)> {
    let mut joined: Vec<(Option<BlockKey>, Vec<BlockKey>)> = Vec::new();
    for (parent, keys) in told {
        match joined.last_mut().filter(|(_, before)| parent.is_some() && before.last() == parent.as_ref()) {
            Some((_, before)) => before.extend(keys),
            None => joined.push((parent, keys)),
        }
    }
    joined
}

#[tokio::test]
async fn runs_come_with_the_block_before_them_live_and_in_a_reset() {
    let mut engine = Engine::start(Framing::Two).await;
    let (hub, mut live) = observed(&[&engine], "").await;
    live.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    // A prompt of three blocks, what follows it, and one that parts from it after the second.
    let long = tokens(0..20);
    let branch = [&tokens(0..8)[..], &tokens(50..58)].concat();
    let (long_keys, branch_keys) = (chain(&long), chain(&branch));
    engine.publish(vec![stored(&[1, 2, 3], None, &long[..12])]).await;
    live.until("three blocks", |seen| seen.holds("r0", &long[..12])).await;
    engine.publish(vec![stored(&[4, 5], Some(3), &long[12..])]).await;
    live.until("five blocks", |seen| seen.holds("r0", &long)).await;
    engine.publish(vec![stored(&[6, 7], Some(2), &branch[8..])]).await;
    live.until("the branch", |seen| seen.held["r0"].len() == 7).await;
    let expected = [
        (None, long_keys[..3].to_vec()),
        (Some(long_keys[2].clone()), long_keys[3..].to_vec()),
        (Some(long_keys[1].clone()), branch_keys[2..].to_vec()),
    ];
    assert_eq!(told(&live.stored), expected);

    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let whole = joined(expected.to_vec());
    assert_eq!(whole.len(), 2);
    assert_eq!(joined(told(&late.stored)), whole, "each after the one that it goes on from");

    engine.publish(vec![removed(&[1])]).await;
    live.until("the removal", |seen| seen.held["r0"].len() == 6).await;
    let mut later = Observer::new(&hub).await;
    later.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let first = joined(told(&later.stored)).remove(0);
    assert_eq!(first, (Some(long_keys[0].clone()), long_keys[1..].to_vec()), "the block before is not held any more");
    hub.shutdown().await;
}

#[tokio::test]
async fn the_pieces_of_a_long_run_go_on_from_one_another() {
    let mut engine = Engine::start(Framing::Three).await;
    let (hub, mut live) = observed(&[&engine], "").await;
    live.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let prompt = tokens(0..5_000 * BLOCK as u32);
    engine.publish(vec![stored(&(1..=5_000).collect::<Vec<u64>>(), None, &prompt)]).await;
    live.until("all blocks", |seen| seen.holds("r0", &prompt)).await;
    let mut late = Observer::new(&hub).await;
    late.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    let keys = chain(&prompt);
    for observer in [live, late] {
        let mut before = None;
        let mut all = Vec::new();
        for (parent, mut keys) in told(&observer.stored) {
            assert_eq!(parent, before);
            before = keys.last().cloned();
            all.append(&mut keys);
        }
        assert!(observer.stored.len() > 1 && all == keys);
    }
    hub.shutdown().await;
}
