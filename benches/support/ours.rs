//! The index under measurement, fed with a workload's events.

use warmroute::index::LeadingRun;
use warmroute::index::runs::chain::PrefixHashes;
use warmroute::index::runs::{KeyRef, Report, Runs};
use warmroute::observation::{ReplicaSlot, ScopeSlot, Tier};

use crate::workload::{Event, State};

pub const BLOCK_SIZE: u32 = 16;
/// Pages of shared data that list what is held.
pub const PAGES: u16 = 1_024;
pub const SCOPE: ScopeSlot = ScopeSlot(1);
/// Time of event 0; each comes a millisecond after the one before.
pub const START_MS: u64 = 1_700_000_000_000;

pub fn store(runs: &mut Runs, replica: u32, at_ms: u64, hashes: &[u64], from: usize) -> u64 {
    let report = Report {
        scope: SCOPE,
        replica: ReplicaSlot(replica),
        tier: Tier::T1,
        last_seen_ms: at_ms,
        access_count: None,
        parent: from.checked_sub(1).map(|before| KeyRef::Hash(hashes[before])),
        chained: true,
        // As the leader does it: what comes one after the other is listed together.
        page: (at_ms / 64 % u64::from(PAGES)) as u16,
        sequence: 1,
    };
    let blocks = hashes[from..].iter().enumerate();
    runs.store(&report, blocks.map(|(at, hash)| (KeyRef::Hash(*hash), BLOCK_SIZE * (from + at + 1) as u32))).new_pairs
}

pub fn store_event(runs: &mut Runs, state: &State, number: usize) -> u64 {
    let Event { request, from, replica } = state.events[number];
    store(runs, replica, START_MS + number as u64, &state.requests[request].hashes, from)
}

pub fn loaded(state: &State) -> Runs {
    let mut runs = Runs::new(PAGES.into());
    let pairs: u64 = (0..state.events.len()).map(|number| store_event(&mut runs, state, number)).sum();
    assert_eq!((pairs, runs.pairs()), (state.pairs as u64, state.pairs as u64));
    runs
}

/// Removes an event's blocks, the last one first, in one call.
pub fn remove_event(runs: &mut Runs, state: &State, number: usize) -> u64 {
    let Event { request, from, replica } = state.events[number];
    let hashes = state.requests[request].hashes[from..].iter().rev();
    runs.remove(1, SCOPE, ReplicaSlot(replica), hashes.map(|hash| KeyRef::Hash(*hash)))
}

/// The same, each block in a call of its own.
pub fn remove_each(runs: &mut Runs, state: &State, number: usize) -> u64 {
    let Event { request, from, replica } = state.events[number];
    let hashes = state.requests[request].hashes[from..].iter().rev();
    hashes.map(|hash| runs.remove(1, SCOPE, ReplicaSlot(replica), [KeyRef::Hash(*hash)])).sum()
}

pub fn look(runs: &Runs, hashes: &[u64], out: &mut Vec<LeadingRun>) {
    runs.leading_runs(SCOPE, &PrefixHashes { hashes, block_size: BLOCK_SIZE }, START_MS - 1, out);
}
