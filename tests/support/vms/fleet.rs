//! Several VMs of one proxy over one shared log, and the hub whose stream the leading one follows.
//!
//! A VM only runs when the test lets it: a tick, the messages that are on their way to it, a question. The clock stands
//! still meanwhile, so that no step runs out of time and what a test sees does not depend on the machine.

use warmroute::config::FilterConfig;
use warmroute::flow::credits::Hit;
use warmroute::flow::keys::Keys;
use warmroute::flow::node::{Knowledge, Node};
use warmroute::host::{Host, SharedValue};
use warmroute::index::log::Head;
use warmroute::observation::Observation;

use super::observed::Observed;
use super::proxy::Proxy;

/// Long enough for a request to catch up with anything while the clock stands still.
const BUDGET_NS: u64 = 1_000_000;
/// Rounds in which nothing is committed, after which nothing will be.
pub const QUIET_ROUNDS: usize = 3;
/// Rounds after which a fleet that is not quiet never will be: a lease has run out and many pages have been written.
const MOST_ROUNDS: usize = 400;

/// Rounds in which a leader looks into the queue twice.
const COLLECT_ROUNDS: usize = 24;

/// The VMs, their proxy and their hub.
#[derive(Debug)]
pub struct Fleet {
    /// The proxy.
    pub proxy: Proxy,
    /// What the hub says.
    pub hub: Observed,
    config: FilterConfig,
    domain: String,
    vms: Vec<Vm>,
}

#[derive(Debug)]
struct Vm {
    node: Node,
    /// It does not run.
    stalled: bool,
}

// === impl Fleet ===

impl Fleet {
    /// `vms` VMs that know nothing yet, all configured by `config`.
    pub fn new(proxy: Proxy, config: FilterConfig, vms: usize) -> Fleet {
        let domain = config.domain();
        let vm = |_| Vm { node: Node::new(&domain), stalled: false };
        let vms = (0..vms).map(vm).collect();
        Fleet { proxy, hub: Observed::new(), config, domain, vms }
    }

    /// How many VMs there are.
    pub fn vms(&self) -> usize {
        self.vms.len()
    }

    /// The configuration.
    pub fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// The running VM that the hub talks to.
    pub fn leader(&self) -> Option<usize> {
        let streams = self.proxy.streams().into_iter().rev();
        streams.filter_map(|token| self.proxy.owner(token)).find(|owner| self.runs(*owner))
    }

    /// Whether a VM runs.
    pub fn runs(&self, vm: usize) -> bool {
        self.vms.get(vm).is_some_and(|vm| !vm.stalled)
    }

    /// Lets a VM stand still, or run again.
    pub fn stall(&mut self, vm: usize, stalled: bool) {
        if let Some(vm) = self.vms.get_mut(vm) {
            vm.stalled = stalled;
        }
    }

    /// Puts a VM that knows nothing in the place of one that ends without a word.
    pub fn replace(&mut self, at: usize) {
        self.proxy.end(at);
        if let Some(vm) = self.vms.get_mut(at) {
            *vm = Vm { node: Node::new(&self.domain), stalled: false };
        }
    }

    /// The hub begins a new lifetime: its streams close.
    pub fn restart_hub(&mut self) {
        for token in self.hub.restart() {
            self.proxy.cancel(token);
            for at in 0..self.vms.len() {
                self.proxy.run(at);
                self.vms[at].node.on_stream_closed(&self.proxy, token);
            }
        }
    }

    /// One tick of a VM, if it runs.
    pub fn tick(&mut self, at: usize) {
        let Fleet { proxy, config, vms, .. } = self;
        if let Some(vm) = vms.get_mut(at).filter(|vm| !vm.stalled) {
            proxy.run(at);
            vm.node.tick(proxy, 1, config);
        }
    }

    /// How long after its last tick a VM wants the next, in ms.
    #[allow(dead_code, reason = "most tests let all tick in turn")]
    pub fn tick_period_ms(&self, at: usize) -> u64 {
        self.vms[at].node.tick_period_ms(1, &self.config)
    }

    /// Hands a VM, if it runs, at most so many of the messages that are on their way to it.
    pub fn deliver(&mut self, at: usize, most: usize) {
        let Fleet { proxy, config, vms, .. } = self;
        let Some(vm) = vms.get_mut(at).filter(|vm| !vm.stalled) else { return };
        proxy.run(at);
        for _ in 0..most {
            let Some((token, message)) = proxy.next_message_to(at) else { return };
            vm.node.on_stream_message(proxy, token, &message, config);
        }
    }

    /// What a VM knows when a request asks.
    pub fn ask(&mut self, at: usize) -> Knowledge<'_> {
        self.proxy.run(at);
        self.vms[at].node.ask(&self.proxy, BUDGET_NS)
    }

    /// A request that asked a VM was told of what it hits, where hits count.
    pub fn delivered(&mut self, at: usize, hit: Hit) {
        self.vms[at].node.delivered(hit);
    }

    /// Lets the leader take up what other VMs' requests hit: it does not look into the queue every tick.
    pub fn collect_hits(&mut self, state: &dyn Fn() -> Vec<Observation>) {
        (0..COLLECT_ROUNDS).for_each(|_| self.round(state));
    }

    /// Lets all VMs that run go on until one leads, follows the hub, has committed all that the hub said, and for so many
    /// rounds nothing more happens. `state` rebuilds all that the hub knows.
    ///
    /// # Errors
    /// When that does not come to be.
    pub fn settle(&mut self, state: &dyn Fn() -> Vec<Observation>, quiet: usize) -> Result<(), String> {
        let mut last = None;
        let mut quiet_rounds = 0;
        for _ in 0..MOST_ROUNDS {
            self.round(state);
            let sequence = self.last_sequence();
            let is_heard = self.hub.is_heard(|token| self.proxy.owner(token).is_some_and(|owner| self.runs(owner)));
            let is_quiet = is_heard && sequence.is_some() && sequence == last;
            quiet_rounds = if is_quiet { quiet_rounds + 1 } else { 0 };
            if quiet_rounds == quiet {
                return Ok(());
            }
            last = sequence;
        }
        Err(format!("nobody leads, or not to an end, at {last:?}: {:?}", self.proxy.logged()))
    }

    /// Every VM that runs has a tick, and what is on its way to it.
    pub fn round(&mut self, state: &dyn Fn() -> Vec<Observation>) {
        for at in 0..self.vms.len() {
            self.hub.serve(&self.proxy, state);
            self.deliver(at, usize::MAX);
            self.tick(at);
        }
        self.hub.serve(&self.proxy, state);
    }

    /// The last sequence that is committed.
    pub fn last_sequence(&self) -> Option<u64> {
        match self.proxy.shared_get(&Keys::new(&self.domain).head()) {
            SharedValue::Present { bytes, .. } => Head::decode(&bytes).ok().map(|head| head.last),
            SharedValue::Absent => None,
        }
    }
}
