//! The hub's messages, as the leading VM hears them and another one follows.

use warmroute::config::FilterConfig;
use warmroute::wire;

use super::pieces;
use super::vms::dump::rows;
use super::vms::fleet::Fleet;
use super::vms::proxy::Proxy;
use warmroute::flow::follower::View;

pub(super) const CONFIG: &str = r#"{"hub_cluster": "hub", "models": [{"model_id": "m"}], "quotas": {"t": 3},
    "limits": {"max_index_entries": 40, "pages": 4, "log_segments": 8, "segment_bytes": 4096, "lease_ticks": 3}}"#;
const START_MS: u64 = 1_700_000_000_000;
const TICK_MS: u64 = 10_000;
/// Ticks in which a VM that nobody leads begins to lead.
const PATIENCE: u64 = 4;
const MOST_MESSAGES: usize = 32;

/// Messages one after another, over the stream that is open then. What is taken survives being written and read again,
/// and both VMs know the same of it.
pub fn stream(bytes: &[u8]) {
    let mut fleet = Fleet::new(Proxy::at(START_MS), FilterConfig::from_json(CONFIG.as_bytes()).unwrap(), 2);
    let mut now_ms = START_MS;
    let mut round = |fleet: &mut Fleet| {
        now_ms += TICK_MS;
        fleet.proxy.set_clock(now_ms);
        fleet.tick(0);
        fleet.ask(1);
        fleet.tick(1);
    };
    (0..PATIENCE).for_each(|_| round(&mut fleet));
    for message in pieces(bytes).into_iter().take(MOST_MESSAGES) {
        if let Ok(read) = wire::decode_stream_message(message) {
            let again = prost::Message::encode_to_vec(&wire::stream_message_to_proto(&read));
            assert_eq!(wire::decode_stream_message(&again).as_ref(), Ok(&read));
        }
        if let Some(token) = fleet.proxy.streams().last() {
            fleet.proxy.reply(*token, message.to_vec());
            (0..2).for_each(|vm| fleet.deliver(vm, usize::MAX));
        }
        round(&mut fleet);
    }
    (0..PATIENCE).for_each(|_| round(&mut fleet));
    let known = |fleet: &mut Fleet, vm| match fleet.ask(vm).view {
        View::Index(index) => Some(rows(index)),
        View::CatchingUp => None,
    };
    let (leading, following) = (known(&mut fleet, 0), known(&mut fleet, 1));
    assert_eq!(leading.is_some(), following.is_some());
    assert_eq!(leading, following);
}
