//! Behavioural cases of the LookupRoute contract, replayed through the shared log: a leader that keeps the case's limits,
//! and two followers that both answer.
//!
//! The same files as in `conformance.rs`, `WARMROUTE_CASES` included. What a case reports goes into a hub without limits
//! and from there over the Observe stream to the leader, which decides alone what goes to make room; the followers learn
//! all that they know from shared data. What cannot be said through the log is left out, and counted by reason. The last
//! line is the count.

#[path = "support/cases/mod.rs"]
mod cases;
#[path = "conformance/core.rs"]
mod core;
#[path = "conformance/log.rs"]
mod log;
#[path = "conformance/log_self_test.rs"]
mod log_self_test;
#[path = "conformance/report.rs"]
mod report;
#[path = "conformance/run.rs"]
mod run;
#[path = "conformance/self_test.rs"]
mod self_test;
#[path = "support/vms/mod.rs"]
mod vms;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::process::ExitCode;

use log::{Defect, LeftOut};
use report::Report;

fn main() -> ExitCode {
    let mut report = Report::default();
    self_test::run(&|case| log::replayed(case, Defect::None).0, &mut report);
    log_self_test::run(&mut report);
    let left_out: RefCell<BTreeMap<LeftOut, usize>> = RefCell::default();
    let fell_off = Cell::new(0);
    let note = |reason| *left_out.borrow_mut().entry(reason).or_default() += 1;
    run::all(
        &|case| {
            let mut case = case.clone();
            log::leave_out(&mut case).into_iter().for_each(note);
            match log::inexpressible(&case) {
                Some(reason) => {
                    note(reason);
                    None
                }
                None => {
                    let (outcome, times) = log::replayed(&case, Defect::None);
                    fell_off.set(fell_off.get() + times);
                    Some(outcome)
                }
            }
        },
        &mut report,
    );
    for (reason, count) in left_out.borrow().iter() {
        println!("left out, {count} times: {}", reason.as_str());
    }
    println!("{} times a follower was late for the ring and loaded pages", fell_off.get());
    if fell_off.get() == 0 {
        report.problem("no follower was ever late for the ring".into());
    }
    report.finish("conformance_log")
}
