//! A run: every case of every file, and the vectors.

use crate::cases::check::Difference;
use crate::cases::files;
use crate::cases::format::{Case, CaseFile};
use crate::cases::replay::Outcome;
use crate::cases::vectors::{AffinityVector, FingerprintVector};
use crate::report::Report;

/// Our own files must hold at least this many cases: a folder that went missing must not look like a success.
const OWN_CASES: usize = 60;

/// Replays a case; `None` if it is left out.
pub type Replay<'a> = &'a dyn Fn(&Case) -> Option<Outcome>;

/// Replays all there is.
pub fn all(replay: Replay, report: &mut Report) {
    for path in files::paths() {
        let read = path.and_then(|path| Ok((path.display().to_string(), files::read(&path)?)));
        match read {
            Ok((name, file)) => replay_file(&name, &file, replay, report),
            Err(error) => report.problem(error),
        }
    }
    if report.cases() < OWN_CASES {
        report.problem(format!("only {} cases were replayed, there must be {OWN_CASES} at least", report.cases()));
    }
}

fn replay_file(name: &str, file: &CaseFile, replay: Replay, report: &mut Report) {
    report.begin(name);
    for raw in &file.cases {
        match raw.read::<Case>().map(|case| (replay(&case), case)) {
            Ok((Some(outcome), case)) => report.case(&raw.id(), &case, outcome),
            Ok((None, _)) => report.left_out(),
            Err(error) => report.unreadable(&raw.id(), error),
        }
    }
    for raw in &file.fingerprint.vectors {
        let differences = raw.read::<FingerprintVector>().map(|vector| vector.differences());
        report.vector(&format!("fingerprint {}", raw.id()), differences);
    }
    for raw in &file.affinity.vectors {
        let differences = raw.read::<AffinityVector>().and_then(|vector| differences(&vector, replay));
        report.vector(&format!("affinity {}", raw.id()), differences);
    }
}

fn differences(vector: &AffinityVector, replay: Replay) -> Result<Vec<Difference>, String> {
    let case = vector.to_case().ok_or_else(|| format!("seed_hex is no seed of kind {:?}", vector.seed_kind))?;
    let outcome = replay(&case).ok_or("it is left out")?;
    Ok(outcome.mismatches.into_iter().map(|mismatch| mismatch.difference).collect())
}
