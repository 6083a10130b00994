//! A run: every case of every file, and the vectors.

use crate::cases::check::Difference;
use crate::cases::format::{Case, CaseFile};
use crate::cases::replay::Outcome;
use crate::cases::{files, vectors};
use crate::report::Report;

/// Our own files must hold at least this many cases: a folder that went missing must not look like a success.
const OWN_CASES: usize = 60;

/// Replays a case; `None` if it is left out.
pub type Replay<'a> = &'a dyn Fn(&Case) -> Option<Outcome>;

/// Replays all there is.
pub fn all(replay: Replay, report: &mut Report) {
    match files::paths() {
        Ok(paths) => {
            for path in &paths {
                match files::read(path) {
                    Ok(file) => replay_file(&path.display().to_string(), &file, replay, report),
                    Err(error) => report.problem(error),
                }
            }
        }
        Err(error) => report.problem(error),
    }
    if report.cases() < OWN_CASES {
        report.problem(format!("only {} cases were replayed, there must be {OWN_CASES} at least", report.cases()));
    }
}

fn replay_file(name: &str, file: &CaseFile, replay: Replay, report: &mut Report) {
    report.begin(name);
    for raw in &file.cases {
        match raw.read() {
            Ok(case) => match replay(&case) {
                Some(outcome) => report.case(&raw.id(), &case, outcome),
                None => report.left_out(),
            },
            Err(error) => report.unreadable(&raw.id(), error),
        }
    }
    for vector in &file.fingerprint.vectors {
        report.vector(&format!("fingerprint {}", vector.name), vector.differences());
    }
    for vector in &file.affinity.vectors {
        report.vector(&format!("affinity {}", vector.name), differences(vector, replay));
    }
}

fn differences(vector: &vectors::AffinityVector, replay: Replay) -> Vec<Difference> {
    let outcome = vector.to_case().and_then(|case| replay(&case));
    match outcome {
        Some(outcome) => outcome.mismatches.into_iter().map(|mismatch| mismatch.difference).collect(),
        None => vec![Difference {
            field: "seed_hex".into(),
            expected: format!("a seed of kind {:?}", vector.seed_kind),
            got: vector.seed_hex.clone(),
        }],
    }
}
