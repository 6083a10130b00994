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
#[path = "conformance/self_test.rs"]
mod self_test;

use std::process::ExitCode;

use cases::format::{Case, CaseFile};
use cases::{files, replay, vectors};
use core::Core;
use report::Report;

/// Our own files must hold at least this many cases: a folder that went missing must not look like a success.
const OWN_CASES: usize = 60;

fn main() -> ExitCode {
    let mut report = Report::default();
    self_test::run(&mut report);
    match files::paths() {
        Ok(paths) => {
            for path in &paths {
                match files::read(path) {
                    Ok(file) => replay_file(&path.display().to_string(), &file, &mut report),
                    Err(error) => report.problem(error),
                }
            }
        }
        Err(error) => report.problem(error),
    }
    if report.cases() < OWN_CASES {
        report.problem(format!("only {} cases were found, there must be {OWN_CASES} at least", report.cases()));
    }
    report.finish()
}

fn replay_file(name: &str, file: &CaseFile, report: &mut Report) {
    report.begin(name);
    for raw in &file.cases {
        match raw.read() {
            Ok(case) => report.case(&raw.id(), &case, run(&case)),
            Err(error) => report.unreadable(&raw.id(), error),
        }
    }
    for vector in &file.fingerprint.vectors {
        report.vector(&format!("fingerprint {}", vector.name), vector.differences());
    }
    for vector in &file.affinity.vectors {
        report.vector(&format!("affinity {}", vector.name), differences(vector));
    }
}

fn run(case: &Case) -> replay::Outcome {
    replay::replay(case, &mut Core::new(&case.config))
}

fn differences(vector: &vectors::AffinityVector) -> Vec<cases::check::Difference> {
    match vector.to_case() {
        Some(case) => run(&case).mismatches.into_iter().map(|mismatch| mismatch.difference).collect(),
        None => vec![cases::check::Difference {
            field: "seed_hex".into(),
            expected: format!("a seed of kind {:?}", vector.seed_kind),
            got: vector.seed_hex.clone(),
        }],
    }
}
