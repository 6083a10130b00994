//! Behavioural cases of the LookupRoute contract, replayed over gRPC: a hub of its own for every case, and a real client.
//!
//! The same files as in `conformance.rs`, `WARMROUTE_CASES` included. Cases that let time pass or measure it are left out,
//! and those that reach past the contract's calls; totals and access counts cannot be seen from outside. The last line is
//! the count.

#[path = "support/cases/mod.rs"]
mod cases;
#[path = "conformance/over_grpc.rs"]
mod over_grpc;
#[path = "conformance/report.rs"]
mod report;
#[path = "conformance/run.rs"]
mod run;

use std::process::ExitCode;

use cases::format::Case;
use cases::replay::{Outcome, replay};
use cases::{needs_clock, needs_core};
use over_grpc::OverGrpc;
use report::Report;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let mut report = Report::default();
    match Runtime::new() {
        Ok(runtime) => run::all(&|case| replay_over_grpc(case, &runtime), &mut report),
        Err(error) => report.problem(format!("no runtime: {error}")),
    }
    report.finish("conformance over gRPC")
}

/// A hub that does not start, or ends a call with an error, is a difference in the case.
fn replay_over_grpc(case: &Case, runtime: &Runtime) -> Option<Outcome> {
    if needs_clock(case) || needs_core(case) {
        return None;
    }
    Some(match OverGrpc::start(case, runtime) {
        Ok(mut server) => {
            let outcome = replay(case, &mut server);
            server.stop(outcome)
        }
        Err(error) => Outcome::failed(error),
    })
}
