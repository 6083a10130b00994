//! Keys of different widths, from the hub's stream to every VM.

use std::collections::BTreeSet;

use super::*;
use crate::flow::sim::hub::Random;

const WIDTHS: [usize; 6] = [1, 2, 8, 9, 32, 256];

fn key(random: &mut Random) -> BlockKey {
    let width = WIDTHS[random.below(WIDTHS.len() as u64) as usize];
    BlockKey::from_bytes(&vec![b'a' + random.below(12) as u8; width]).unwrap()
}

fn keys(random: &mut Random, most: u64) -> Vec<BlockKey> {
    let keys: BTreeSet<BlockKey> = (0..=random.below(most)).map(|_| key(random)).collect();
    let mut keys: Vec<BlockKey> = keys.into_iter().collect();
    // In any order.
    (1..keys.len()).for_each(|at| keys.swap(at, random.below(at as u64 + 1) as usize));
    keys
}

fn stored(keys: Vec<BlockKey>) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(1),
        last_seen_ms: START_NS / 1_000_000,
        blocks: keys.into_iter().map(|key| StoredBlock { key, token_count: 16 }).collect(),
        ..Stored::default()
    })
}

fn change(random: &mut Random, held: &mut BTreeSet<BlockKey>) -> Observation {
    if random.one_in(4) {
        let keys = keys(random, 6);
        held.retain(|key| !keys.contains(key));
        return Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(1), keys };
    }
    // Single blocks, of which nothing is known, and short prompts.
    let most = if random.one_in(2) { 1 } else { 9 };
    let keys = keys(random, most);
    held.extend(keys.iter().cloned());
    stored(keys)
}

// === impl Pool ===

impl Pool {
    /// What a VM knows to be held; none while it catches up.
    fn held(&mut self, vm: usize) -> Option<BTreeSet<BlockKey>> {
        let known = self.vms[vm].ask(&self.host, 5_000_000);
        let View::Index(index) = known.view else { return None };
        Some(index.held().into_iter().map(|(_, key, _)| key).collect())
    }
}

#[test]
fn every_vm_holds_the_keys_that_the_hub_told() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut held = BTreeSet::new();
        let mut pool = Pool::new(2);
        pool.tick_all(3);
        pool.reset(&[]);
        for _ in 0..60 {
            let changes = (0..=random.below(3)).map(|_| change(&mut random, &mut held)).collect();
            pool.delta(changes);
            pool.tick_all(1);
        }
        pool.tick_all(3);
        assert_eq!([0, 1].map(|vm| pool.held(vm)), [Some(held.clone()), Some(held.clone())], "seed {seed}");

        // One that comes late has it from the pages.
        pool.vms.push(Node::new(DOMAIN));
        pool.held(2);
        for _ in 0..40 {
            pool.tick_all(1);
        }
        assert_eq!(pool.held(2), Some(held), "seed {seed}");
    }
}
