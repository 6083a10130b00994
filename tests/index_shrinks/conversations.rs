//! A pool as large ones are: conversations, each of one replica, under a few system prompts that all share.

use std::ops::Range;

use warmroute::observation::{BlockKey, Member, Observation, Stored, StoredBlock};

use crate::pool::{scope, scope_slot, slot};

/// System prompts, which every replica holds, and the blocks of each.
const SYSTEM_PROMPTS: u64 = 16;
const SYSTEM_BLOCKS: u64 = 32;
/// The fewest blocks that a conversation has of its own, and the most.
const OWN_BLOCKS: [u64; 2] = [30, 150];
const TOKENS: u32 = 16;
const START_MS: u64 = 1_700_000_000_000;

/// What is said as replicas come that hold `blocks` each, or a little more, and how many that is of all.
pub fn told(replicas: Range<u32>, blocks: u64) -> (Vec<Observation>, u64) {
    let (mut said, mut pairs) = (vec![scope(0)], 0);
    for replica in replicas {
        let member = Member::new("t0", "m", format!("r-{replica}"));
        said.push(Observation::ReplicaUp {
            replica: slot(0, replica),
            member,
            address: String::new(),
            data_parallel_rank: None,
        });
        said.extend((0..SYSTEM_PROMPTS).map(|prompt| stored(replica, 0, system(prompt), None)));
        let mut held = SYSTEM_PROMPTS * SYSTEM_BLOCKS;
        for number in 0.. {
            if held >= blocks {
                break;
            }
            let (parent, keys) = (system(number % SYSTEM_PROMPTS).end - 1, own(replica, number));
            held += keys.end - keys.start;
            said.push(stored(replica, number, keys, Some(parent)));
        }
        said.push(Observation::ReplicaComplete { replica: slot(0, replica) });
        pairs += held;
    }
    (said, pairs)
}

/// What is said as replicas end.
pub fn gone(replicas: Range<u32>) -> Vec<Observation> {
    replicas.map(|replica| Observation::ReplicaGone { replica: slot(0, replica) }).collect()
}

fn system(prompt: u64) -> Range<u64> {
    let first = (prompt + 1) << 48;
    first..first + SYSTEM_BLOCKS
}

fn own(replica: u32, number: u64) -> Range<u64> {
    let [fewest, most] = OWN_BLOCKS;
    let first = (1 << 56) + (u64::from(replica) << 40) + (number << 8);
    let random = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    first..first + fewest + random % (most - fewest + 1)
}

fn stored(replica: u32, number: u64, keys: Range<u64>, parent: Option<u64>) -> Observation {
    let before = if parent.is_some() { SYSTEM_BLOCKS as u32 } else { 0 };
    let blocks = (before + 1..).zip(keys);
    let blocks = blocks.map(|(place, key)| StoredBlock { key: BlockKey::Hash64(key), token_count: place * TOKENS });
    Observation::Stored(Stored {
        replica: slot(0, replica),
        scope: scope_slot(0),
        last_seen_ms: START_MS + number / 16,
        parent: parent.map(BlockKey::Hash64),
        chained: true,
        blocks: blocks.collect(),
        ..Stored::default()
    })
}
