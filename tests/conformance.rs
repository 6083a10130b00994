//! Behavioural cases of the LookupRoute contract, replayed against the core.
//!
//! Our own cases are the JSON files of `tests/conformance/`; `WARMROUTE_CASES` names more files or folders, in the same
//! shape. Every difference is listed with what was expected and what came; the last line is the count, and the run fails
//! if anything differs that is not [named](cases::on_purpose::ON_PURPOSE) as different on purpose. A program of its own
//! rather than a harness' test, so that the count is the last line and always shown. Nothing here waits: time is a
//! number that the steps move.

#[path = "support/cases/mod.rs"]
mod cases;
#[path = "conformance/core.rs"]
mod core;
#[path = "conformance/report.rs"]
mod report;
#[path = "conformance/run.rs"]
mod run;
#[path = "conformance/self_test.rs"]
mod self_test;

use std::process::ExitCode;

use cases::format::Case;
use cases::replay::{Outcome, replay};
use core::Core;
use report::Report;

fn main() -> ExitCode {
    let mut report = Report::default();
    self_test::run(&replay_in_core, &mut report);
    run::all(&|case| Some(replay_in_core(case)), &mut report);
    report.finish("conformance")
}

fn replay_in_core(case: &Case) -> Outcome {
    replay(case, &mut Core::new(&case.config))
}
