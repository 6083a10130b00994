//! What of one report goes first, where the keys' order and the prompt's differ.

use warmroute::config::FilterConfig;
use warmroute::flow::follower::View;
use warmroute::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock};

use crate::history::{TOKENS, member, scope};
use crate::vms::dump;
use crate::vms::fleet::{Fleet, QUIET_ROUNDS};
use crate::vms::proxy::Proxy;

const NOW_MS: u64 = 1_700_000_000_000;
const NEWER: u64 = 20;

#[test]
fn a_prompt_loses_its_end_whatever_the_keys_are() {
    // As many as it takes for a report without a parent to be a run of its own.
    for keys in [[1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1], [3, 8, 6, 1, 7, 5, 2, 4]] {
        assert_eq!(kept(&keys, true, 5), keys[..5]);
    }
}

#[test]
fn blocks_whose_place_is_not_known_go_by_their_keys() {
    assert_eq!(kept(&[3, 6, 1, 5, 2, 4], false, 4), [3, 6, 5, 4]);
}

/// Which of the keys of one report a follower knows where there is room for so many, in the report's order. Newer blocks
/// fill the index so far that the leader has begun to order what it has.
fn kept(keys: &[u64], chained: bool, room: u64) -> Vec<u64> {
    let json = serde_json::json!({
        "hub_cluster": "hub",
        "models": [{ "model_id": "m" }],
        "limits": { "max_index_entries": NEWER + room },
    });
    let config = FilterConfig::from_json(json.to_string().as_bytes()).unwrap();
    let mut fleet = Fleet::new(Proxy::at(NOW_MS), config, 2);
    let (replica, slot) = (ReplicaSlot(1), ScopeSlot(1));
    let stored = |keys: &[u64], last_seen_ms, chained| {
        let block =
            |(block, key): (u32, &u64)| StoredBlock { key: BlockKey::Hash64(*key), token_count: block * TOKENS };
        let blocks = (1..).zip(keys).map(block).collect();
        Observation::Stored(Stored { replica, scope: slot, last_seen_ms, chained, blocks, ..Stored::default() })
    };
    let newer: Vec<u64> = (100..100 + NEWER).collect();
    let state = [
        Observation::Scope { slot, scope: scope(0) },
        Observation::ReplicaUp { replica, member: member(0), address: String::new(), data_parallel_rank: None },
        Observation::ReplicaComplete { replica },
        stored(&newer, NOW_MS, false),
    ];
    fleet.settle(&|| state.to_vec(), QUIET_ROUNDS).unwrap();
    fleet.hub.publish(&fleet.proxy, vec![stored(keys, NOW_MS - 1, chained)]);
    fleet.settle(&|| state.to_vec(), QUIET_ROUNDS).unwrap();
    let View::Index(index) = fleet.ask(1).view else { panic!("a follower has not caught up") };
    let rows = dump::rows(index);
    let kept = keys.iter().copied().filter(|key| rows.iter().any(|row| row.key == BlockKey::Hash64(*key))).collect();
    assert_eq!(rows.len() as u64, NEWER + room, "{rows:?}");
    kept
}
