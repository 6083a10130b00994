//! The loop: a case's steps, one after the other, against a server.

use super::Server;
use super::check::{Difference, Differences};
use super::format::{Case, Step};

/// Where a case and a server differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The step's place, from 1.
    pub step: usize,
    pub difference: Difference,
}

/// What a replay came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Lookup steps that were compared.
    pub lookups: usize,
    /// Steps whose outcome the server does not show.
    pub unseen: usize,
    pub mismatches: Vec<Mismatch>,
}

// === impl Outcome ===

impl Outcome {
    /// A case that could not be replayed, and so is not known to agree.
    pub fn failed(error: String) -> Outcome {
        let difference = Difference { field: "replay".into(), expected: "no error".into(), got: error };
        Outcome { mismatches: vec![Mismatch { step: 0, difference }], ..Outcome::default() }
    }
}

/// Replays `case` against `server`, which was made from the case's set-up.
pub fn replay(case: &Case, server: &mut dyn Server) -> Outcome {
    let mut outcome = Outcome::default();
    for (at, step) in case.steps.iter().enumerate() {
        let mut differences = Differences::default();
        outcome.lookups += usize::from(matches!(step, Step::Lookup { .. }));
        if !run(step, server, &mut differences) {
            outcome.unseen += 1;
        }
        let found = differences.0.into_iter().map(|difference| Mismatch { step: at + 1, difference });
        outcome.mismatches.extend(found);
    }
    outcome
}

/// Runs a step; false if its outcome cannot be seen.
fn run(step: &Step, server: &mut dyn Server, differences: &mut Differences) -> bool {
    match step {
        Step::Ingest(update) => server.ingest(update),
        Step::Event(event) => server.event(event),
        Step::Advance { ms } => server.advance(*ms),
        Step::Sweep => server.sweep(),
        Step::Policies { policies, tenants } => server.set_policies(policies, tenants.as_deref()),
        Step::SetAccessCount { entry, count } => server.set_access_count(entry, *count),
        Step::AccessCount { entry, expect } => {
            let Some(got) = server.access_count(entry) else { return false };
            differences.access_count(expect.count, got);
        }
        Step::Counts { expect } => {
            let Some(got) = server.counts() else { return false };
            differences.counts(expect, &got);
        }
        Step::CacheState { model_id, tenant_id, expect } => {
            differences.cache_state(expect, &server.cache_state(model_id, tenant_id));
        }
        Step::Lookup { lookup, repeat, expect } => {
            for _ in 1..repeat.unwrap_or(1) {
                server.lookup(lookup);
            }
            differences.answer(expect, &server.lookup(lookup));
        }
    }
    true
}
