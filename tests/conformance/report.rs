//! What a run says: every difference, and the count.

use std::process::ExitCode;

use crate::cases::check::Difference;
use crate::cases::format::Case;
use crate::cases::on_purpose::{excuse, rules_met};
use crate::cases::replay::Outcome;

/// What was replayed so far.
#[derive(Debug, Default)]
pub struct Report {
    file: String,
    cases: usize,
    lookups: usize,
    mismatched: usize,
    vectors: usize,
    unseen: usize,
    left_out: usize,
    /// Anything but a case that differs: a file that cannot be read, a check that does not check.
    problems: usize,
}

// === impl Report ===

impl Report {
    /// Everything from here on is in this file.
    pub fn begin(&mut self, file: &str) {
        file.clone_into(&mut self.file);
    }

    /// Cases so far.
    pub fn cases(&self) -> usize {
        self.cases
    }

    /// Counts a case, and lists how it differs.
    pub fn case(&mut self, id: &str, case: &Case, outcome: Outcome) {
        self.cases += 1;
        self.lookups += outcome.lookups;
        self.unseen += outcome.unseen;
        if outcome.mismatches.is_empty() {
            return;
        }
        let place = format!("{}: case {id} ({})", self.file, case.name);
        let excuse = excuse(id, case);
        if let Some(named) = excuse {
            say(&format!("on purpose {place}: {:?}, {}", named.rule, named.why));
        } else {
            self.mismatched += 1;
            say(&format!("MISMATCH {place}"));
            rules_met(case).iter().for_each(|rule| say(&format!("    reports what {rule:?} refuses; it is not named")));
        }
        for mismatch in outcome.mismatches {
            say(&format!("    step {}: {}", mismatch.step, line(&mismatch.difference)));
        }
    }

    /// Counts a case that was not replayed, since it cannot be.
    pub fn left_out(&mut self) {
        self.left_out += 1;
    }

    /// Counts a case that has not the shape of one as different: it cannot be known to agree.
    pub fn unreadable(&mut self, id: &str, error: String) {
        self.cases += 1;
        self.mismatched += 1;
        say(&format!("MISMATCH {}: case {id} cannot be read: {error}", self.file));
    }

    /// Counts a vector, and lists how it differs or why it cannot be read.
    pub fn vector(&mut self, name: &str, differences: Result<Vec<Difference>, String>) {
        self.vectors += 1;
        let lines = match differences {
            Ok(differences) if differences.is_empty() => return,
            Ok(differences) => differences.iter().map(line).collect(),
            Err(error) => vec![error],
        };
        self.mismatched += 1;
        say(&format!("MISMATCH {}: vector {name}", self.file));
        lines.iter().for_each(|line| say(&format!("    {line}")));
    }

    /// Fails the run, whatever the cases say.
    pub fn problem(&mut self, problem: String) {
        self.problems += 1;
        say(&format!("PROBLEM {problem}"));
    }

    /// Says the count, after the name of what was replayed.
    pub fn finish(&self, name: &str) -> ExitCode {
        let Report { cases, lookups, mismatched, vectors, unseen, left_out, .. } = self;
        say(&format!("{vectors} vectors, {left_out} cases left out, {unseen} steps whose outcome is not shown"));
        say(&format!("{name}: {cases} cases, {lookups} lookups, {mismatched} mismatched"));
        if self.mismatched == 0 && self.problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn line(difference: &Difference) -> String {
    let Difference { field, expected, got } = difference;
    format!("{field}: expected {expected}, got {got}")
}

fn say(line: &str) {
    println!("{line}");
}
