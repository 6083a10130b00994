//! What of one report goes first, where the keys' order and the prompt's differ.

use warmroute::config::FilterConfig;
use warmroute::flow::follower::View;
use warmroute::observation::{BlockKey, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock};

use crate::history::{TOKENS, member, scope};
use crate::vms::dump;
use crate::vms::fleet::{Fleet, QUIET_ROUNDS};
use crate::vms::proxy::Proxy;

const NOW_MS: u64 = 1_700_000_000_000;

#[test]
fn a_prompt_loses_its_end_whatever_the_keys_are() {
    for keys in [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [3, 6, 1, 5, 2, 4]] {
        assert_eq!(kept(&keys, true, 4), keys[..4], "in a chain");
    }
}

#[test]
fn blocks_whose_place_is_not_known_go_by_their_keys() {
    assert_eq!(kept(&[3, 6, 1, 5, 2, 4], false, 4), [3, 6, 5, 4]);
}

/// Which of the keys of one report a follower knows under a cap, in the report's order.
fn kept(keys: &[u64], chained: bool, cap: usize) -> Vec<u64> {
    let json = serde_json::json!({
        "hub_cluster": "hub",
        "models": [{ "model_id": "m" }],
        "limits": { "max_index_entries": cap },
    });
    let config = FilterConfig::from_json(json.to_string().as_bytes()).unwrap();
    let mut fleet = Fleet::new(Proxy::at(NOW_MS), config, 2);
    let (replica, slot) = (ReplicaSlot(1), ScopeSlot(1));
    let blocks =
        (1..).zip(keys).map(|(block, key)| StoredBlock { key: BlockKey::Hash64(*key), token_count: block * TOKENS });
    let blocks = blocks.collect();
    let state = [
        Observation::Scope { slot, scope: scope(0) },
        Observation::ReplicaUp { replica, member: member(0), address: String::new() },
        Observation::ReplicaComplete { replica },
        Observation::Stored(Stored {
            replica,
            scope: slot,
            last_seen_ms: NOW_MS,
            chained,
            blocks,
            ..Stored::default()
        }),
    ];
    fleet.settle(&|| state.to_vec(), QUIET_ROUNDS).unwrap();
    let View::Index(index) = fleet.ask(1).view else { panic!("a follower has not caught up") };
    let rows = dump::rows(index);
    keys.iter().copied().filter(|key| rows.iter().any(|row| row.key == BlockKey::Hash64(*key))).collect()
}
