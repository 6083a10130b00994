//! What is measured in a VM and natively: the same functions over the same workload.
//!
//! Numbers go in and a number comes out, so that nothing but numbers has to cross into a VM. An operation that is measured
//! is given the number of its call; what it returns depends on nothing else, so that both sides can be compared.

use warmroute::index::LeadingRun;
use warmroute::index::runs::Runs;
use warmroute::observation::ReplicaSlot;

use crate::decisions::{Decisions, Origin};
use crate::growing::Prompts;
use crate::ours;
use crate::workload::{Random, State, Workload};

/// Calls a macro with the name and the arguments of every operation.
macro_rules! operations {
    ($callback:ident) => {
        $callback! {
            empty(number);
            generated(requests);
            piece(id);
            end_request();
            requests();
            request_len(request);
            request_piece(request, at);
            plan_events(replicas, pairs);
            events();
            event_request(number);
            event_replica(number);
            event_from(number);
            load_runs(replicas, pairs);
            touch(number);
            look(number);
            remove_event(number);
            remove_each(number);
            store_event(number);
            clear(replica);
            sweep(budget);
            reload(replica);
            store_fed(replica, from, number);
            grow_prompts(pairs, with_parents);
            pairs();
            account();
            load_index(replicas, pairs);
            hash(number);
            prepare_hit(number);
            prepare_next(number);
            prepare_explicit(number);
            decide(number);
        }
    };
}
pub(crate) use operations;

/// Events that are taken out, from the last one on, and in again. A plan has as many calls of either.
const CHUNK: usize = 64;

/// One side's state.
#[derive(Default)]
pub struct Bench {
    workload: Vec<Vec<u32>>,
    /// A request that is being fed.
    fed: Vec<u32>,
    state: State,
    runs: Option<Runs>,
    order: Vec<usize>,
    found: Vec<LeadingRun>,
    decisions: Option<Decisions>,
}

// === impl Bench ===

impl Bench {
    /// Does nothing: what a call costs.
    pub fn empty(&mut self, number: u32) -> u32 {
        number
    }

    // --- The workload ---

    /// The stand-in is the workload.
    pub fn generated(&mut self, requests: u32) -> u32 {
        self.workload = Workload::generated(requests as usize).requests().to_vec();
        self.workload.len() as u32
    }

    /// The next piece of the request that is being fed.
    pub fn piece(&mut self, id: u32) -> u32 {
        self.fed.push(id);
        self.fed.len() as u32
    }

    /// The request that is being fed belongs to the workload.
    pub fn end_request(&mut self) -> u32 {
        self.workload.push(std::mem::take(&mut self.fed));
        self.workload.len() as u32
    }

    pub fn requests(&mut self) -> u32 {
        self.workload.len() as u32
    }

    pub fn request_len(&mut self, request: u32) -> u32 {
        self.workload[request as usize].len() as u32
    }

    pub fn request_piece(&mut self, request: u32, at: u32) -> u32 {
        self.workload[request as usize][at as usize]
    }

    /// The events that come to so many pairs. How many pairs it are.
    pub fn plan_events(&mut self, replicas: u32, pairs: u32) -> u32 {
        let workload = Workload::of("fed", std::mem::take(&mut self.workload));
        self.state = workload.state(replicas, pairs as usize);
        self.workload = workload.requests().to_vec();
        self.state.pairs as u32
    }

    pub fn events(&mut self) -> u32 {
        self.state.events.len() as u32
    }

    pub fn event_request(&mut self, number: u32) -> u32 {
        self.state.events[number as usize].request as u32
    }

    pub fn event_replica(&mut self, number: u32) -> u32 {
        self.state.events[number as usize].replica
    }

    pub fn event_from(&mut self, number: u32) -> u32 {
        self.state.events[number as usize].from as u32
    }

    // --- The index of runs ---

    /// Loads the runs with so many pairs.
    pub fn load_runs(&mut self, replicas: u32, pairs: u32) -> u32 {
        self.runs = None;
        self.plan_events(replicas, pairs);
        let runs = ours::loaded(&self.state);
        self.order = (0..self.state.requests.len()).collect();
        Random(7).shuffle(&mut self.order);
        self.runs.insert(runs).pairs() as u32
    }

    fn asked(&self, number: u32) -> &[u64] {
        &self.state.requests[self.order[number as usize % self.order.len()]].hashes
    }

    fn runs(&mut self) -> (&mut Runs, &State) {
        (self.runs.get_or_insert_with(ours::empty), &self.state)
    }

    /// Reads the hashes of a request, as if they had just been computed.
    pub fn touch(&mut self, number: u32) -> u32 {
        folded(self.asked(number).iter().fold(0, |sum, hash| sum ^ hash))
    }

    /// Looks a request of the state up, in random order.
    pub fn look(&mut self, number: u32) -> u32 {
        let mut found = std::mem::take(&mut self.found);
        if let Some(runs) = &self.runs {
            ours::look(runs, self.asked(number), &mut found);
        }
        let sum = found.iter().fold(0, |sum, run| mixed(sum, run_number(run)));
        self.found = found;
        folded(sum)
    }

    /// Removes the blocks of an event in one call; events count from the last. How many blocks.
    pub fn remove_event(&mut self, number: u32) -> u32 {
        let (runs, state) = self.runs();
        ours::remove_event(runs, state, state.events.len() - 1 - number as usize) as u32
    }

    /// The same, a call a block.
    pub fn remove_each(&mut self, number: u32) -> u32 {
        let (runs, state) = self.runs();
        ours::remove_each(runs, state, state.events.len() - 1 - number as usize) as u32
    }

    /// Stores the blocks of an event; events count from the first of the last [`CHUNK`]. How many of them are new.
    pub fn store_event(&mut self, number: u32) -> u32 {
        let (runs, state) = self.runs();
        ours::store_event(runs, state, state.events.len() - CHUNK + number as usize) as u32
    }

    /// A replica holds nothing any more. How much it held.
    pub fn clear(&mut self, replica: u32) -> u32 {
        self.runs().0.clear(ReplicaSlot(replica)) as u32
    }

    /// A step of the sweep. 1 if it was the last one.
    pub fn sweep(&mut self, budget: u32) -> u32 {
        ours::sweep(self.runs().0, budget as usize).into()
    }

    /// Stores what a replica held. How much that is.
    pub fn reload(&mut self, replica: u32) -> u32 {
        let (runs, state) = self.runs();
        let of_replica = (0..state.events.len()).filter(|number| state.events[*number].replica == replica);
        of_replica.map(|number| ours::store_event(runs, state, number)).sum::<u64>() as u32
    }

    /// Stores the blocks of the request that has been fed, from one on, so that nothing else is in memory.
    pub fn store_fed(&mut self, replica: u32, from: u32, number: u32) -> u32 {
        let request = crate::workload::Request::of_pieces(&std::mem::take(&mut self.fed));
        let at_ms = ours::START_MS + u64::from(number);
        ours::store(self.runs().0, replica, at_ms, &request.hashes, from as usize) as u32
    }

    /// 8 replicas generate 100 prompts each at a time, a block at a time, every block in an event and at a time of its own.
    pub fn grow_prompts(&mut self, pairs: u32, with_parents: u32) -> u32 {
        Prompts::default().grow(self.runs().0, pairs, with_parents != 0);
        self.pairs()
    }

    pub fn pairs(&mut self) -> u32 {
        self.runs().0.pairs() as u32
    }

    /// Bytes by the index's own account.
    pub fn account(&mut self) -> u32 {
        self.runs().0.size().bytes as u32
    }

    // --- The decision ---

    /// Loads an index with replicas that hold so many pairs.
    pub fn load_index(&mut self, replicas: u32, pairs: u32) -> u32 {
        self.decisions = None;
        self.decisions.insert(Decisions::new(&self.workload, replicas, pairs as usize)).pairs()
    }

    fn decisions(&mut self) -> &mut Decisions {
        self.decisions.as_mut().expect("load_index comes first")
    }

    /// Hashes the blocks of the request that was prepared.
    pub fn hash(&mut self, _number: u32) -> u32 {
        folded(self.decisions().hash())
    }

    /// A request that a replica holds.
    pub fn prepare_hit(&mut self, number: u32) -> u32 {
        self.decisions().prepare(number, Origin::Held)
    }

    /// A request that comes after those that the index has seen.
    pub fn prepare_next(&mut self, number: u32) -> u32 {
        self.decisions().prepare(number, Origin::Next)
    }

    /// A request that a replica holds, with its hashes instead of token ids.
    pub fn prepare_explicit(&mut self, number: u32) -> u32 {
        self.decisions().prepare_explicit(number)
    }

    /// Where the request that was prepared should go.
    pub fn decide(&mut self, _number: u32) -> u32 {
        folded(self.decisions().decide())
    }
}

fn run_number(run: &LeadingRun) -> u64 {
    mixed(u64::from(run.replica.0) << 32 | run.blocks as u64, mixed(run.last_seen_ms, run.matched_tokens as u64))
}

/// Some number of two, in this order.
pub fn mixed(sum: u64, next: u64) -> u64 {
    (sum.rotate_left(5) ^ next).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn folded(sum: u64) -> u32 {
    (sum ^ (sum >> 32)) as u32
}
