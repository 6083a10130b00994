//! The same on a machine that has no time: memory comes back within the sweep's minute all the same.

use warmroute::config::FilterConfig;
use warmroute::flow::follower::View;
use warmroute::host::Host;
use warmroute::index::runs::Size;
use warmroute::observation::Observation;

use crate::conversations::{gone, told};
use crate::vms::fleet::{Fleet, QUIET_ROUNDS};
use crate::vms::proxy::Proxy;

const NOW_MS: u64 = 1_700_000_100_000;
const REPLICAS: u32 = 64;
const LEFT: u32 = 8;
const BLOCKS: u64 = 1_600;
/// Of a step of 1 ms: two looks at the clock, and there is no time left.
const LOOK_NS: u64 = 400_000;
/// In which what is gone is given back.
const SWEEP_MS: u64 = 60_000;
/// What tables and lists keep whatever is in them, as in an index of fewer pages.
const FEW_BYTES: u64 = 128 << 10;

/// A fleet, and the time at which each VM ticks next.
struct Busy {
    fleet: Fleet,
    due_ms: [u64; 2],
}

// === impl Busy ===

impl Busy {
    fn settle(&mut self, state: &dyn Fn() -> Vec<Observation>) {
        self.fleet.proxy.set_look_ns(0);
        self.fleet.settle(state, QUIET_ROUNDS).unwrap();
    }

    /// Lets time pass, with each VM ticking when it wants to.
    fn pass(&mut self, ms: u64, state: &dyn Fn() -> Vec<Observation>) {
        self.fleet.proxy.set_look_ns(LOOK_NS);
        let until_ms = self.now_ms() + ms;
        while self.now_ms() < until_ms {
            let (vm, due_ms) = if self.due_ms[0] <= self.due_ms[1] { (0, self.due_ms[0]) } else { (1, self.due_ms[1]) };
            if self.now_ms() < due_ms {
                self.fleet.proxy.set_clock(due_ms);
            }
            self.fleet.hub.serve(&self.fleet.proxy, state);
            self.fleet.deliver(vm, usize::MAX);
            self.fleet.tick(vm);
            self.due_ms[vm] = self.now_ms() + self.fleet.tick_period_ms(vm);
        }
    }

    fn now_ms(&self) -> u64 {
        self.fleet.proxy.now_ms()
    }

    fn sizes(&mut self) -> [Size; 2] {
        [0, 1].map(|vm| match self.fleet.ask(vm).view {
            View::Index(index) => index.size(),
            View::CatchingUp => panic!("VM {vm} has not caught up"),
        })
    }
}

#[test]
fn a_busy_machine_gives_back_what_left_with_most_replicas() {
    let json = serde_json::json!({
        "hub_cluster": "hub",
        "models": [{ "model_id": "m" }],
        "limits": { "pages": 64, "max_index_entries": 200_000 },
    });
    let config = FilterConfig::from_json(json.to_string().as_bytes()).unwrap();
    let (start, pairs) = told(0..REPLICAS, BLOCKS);
    let (_, left) = told(0..LEFT, BLOCKS);
    let state = || start.clone();
    let mut busy = Busy { fleet: Fleet::new(Proxy::at(NOW_MS), config, 2), due_ms: [NOW_MS; 2] };
    busy.settle(&state);
    let full = busy.sizes();
    assert!(full.iter().all(|size| size.pairs == pairs), "{full:?}, held are {pairs}");

    busy.fleet.hub.publish(&busy.fleet.proxy, gone(LEFT..REPLICAS));
    busy.settle(&state);
    assert!(busy.sizes().iter().all(|size| size.pairs == left));
    busy.pass(SWEEP_MS, &state);
    let swept = busy.sizes();
    println!("{full:?}, then {swept:?}");
    for (full, swept) in full.iter().zip(swept) {
        let share = full.bytes * u64::from(LEFT) / u64::from(REPLICAS);
        assert!(swept.bytes <= share * 5 / 4 + FEW_BYTES, "{swept:?} of {full:?}");
    }

    let (others, more) = told(REPLICAS..2 * REPLICAS - LEFT, BLOCKS);
    busy.fleet.hub.publish(&busy.fleet.proxy, others);
    busy.settle(&state);
    let again = busy.sizes();
    println!("again {again:?}");
    for (full, again) in full.iter().zip(again) {
        assert_eq!(again.pairs, left + more);
        assert!(again.bytes <= full.bytes + full.bytes / 20, "{again:?}, {full:?} before");
    }
}
