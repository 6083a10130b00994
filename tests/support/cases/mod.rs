//! Behavioural cases of the LookupRoute contract, and the loop that replays them.
//!
//! A case file is JSON: `cases`, each a server's set-up and a list of steps with what they must come to, and optionally
//! vectors of the [fingerprint and the affinity hash](vectors). [`format`] has the shape, [`messages`] the contract's
//! messages as plain values. [`replay::replay`] runs a case against anything that implements [`Server`], so that the
//! same files go through the core and through a real gRPC server.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

pub mod check;
pub mod files;
pub mod format;
pub mod messages;
pub mod on_purpose;
pub mod replay;
pub mod settings;
pub mod vectors;

use format::{Case, Policy, Step, Tenant};
use messages::{CacheState, Counts, Entry, Event, Lookup, Response, Update};

/// What a case is replayed against. A new one is made for every case, from its set-up.
pub trait Server {
    /// `ReportCacheState` with this one update.
    fn ingest(&mut self, update: &Update);

    /// `PublishEvent`.
    fn event(&mut self, event: &Event);

    /// `LookupRoute`.
    fn lookup(&mut self, lookup: &Lookup) -> Response;

    /// `GetCacheState`.
    fn cache_state(&mut self, model_id: &str, tenant_id: &str) -> CacheState;

    /// Replaces all policies, and the quotas if `tenants` has any.
    fn set_policies(&mut self, policies: &[Policy], tenants: Option<&[Tenant]>);

    /// Moves the clock. Never called where [`needs_clock`] is false.
    fn advance(&mut self, ms: i64);

    /// Runs the sweep once. Never called where [`needs_clock`] is false.
    fn sweep(&mut self);

    /// The index's totals; `None` where they cannot be seen, and then they are not compared.
    fn counts(&mut self) -> Option<Counts>;

    /// An entry's access count, -1 if there is no such entry; `None` where it cannot be seen.
    fn access_count(&mut self, entry: &Entry) -> Option<i64>;

    /// Sets an entry's access count. Never called where [`needs_core`] is false.
    fn set_access_count(&mut self, entry: &Entry, count: i64);
}

/// Whether a case only makes sense with a clock that the replay moves: it lets time pass, or measures it.
pub fn needs_clock(case: &Case) -> bool {
    let waits = |step: &Step| match step {
        Step::Advance { .. } | Step::Sweep => true,
        Step::Lookup { lookup, .. } => lookup.caller_deadline_ms.is_some(),
        Step::Ingest(update) => update.at_ms.is_some_and(|at_ms| at_ms != 0),
        Step::Event(event) => event.at_ms.is_some_and(|at_ms| at_ms != 0),
        _ => false,
    };
    let config = &case.config;
    let slow_tokenizer = config.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.delay_ms > 0);
    config.lookup_delay_ms > 0 || slow_tokenizer || case.steps.iter().any(waits)
}

/// Whether a case reaches past the contract's calls into the server.
pub fn needs_core(case: &Case) -> bool {
    case.steps.iter().any(|step| match step {
        Step::Ingest(update) => update.bypass,
        Step::SetAccessCount { .. } => true,
        _ => false,
    })
}
