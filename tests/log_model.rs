//! The shared log against a naive oracle, over seeded random histories: what a hub says, hits, time that passes, a lead
//! that goes from one VM to another, VMs that begin late, stand still and fall off a small ring.
//!
//! The leader keeps a cap and quotas, and decides alone what goes; the oracle knows the same limits and puts all there is
//! in order every time. At random moments and at the end, what a VM holds must be what the oracle holds, block by block:
//! tier, token count, time and hits. A history that fails is shrunk before it is printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "support/bounded.rs"]
mod bounded;
#[path = "log_model/ends.rs"]
mod ends;
#[path = "log_model/history.rs"]
mod history;
#[path = "log_model/hub.rs"]
mod hub;
#[path = "support/random.rs"]
mod random;
#[path = "support/reference.rs"]
#[allow(dead_code, reason = "scores are another test's")]
mod reference;
#[path = "support/vms/mod.rs"]
mod vms;
#[path = "log_model/world.rs"]
mod world;

use bounded::Flaw;
use history::{History, Step, history};
use world::{Seen, run};

const HISTORIES: u64 = 200;

/// Leaves steps out, in ever smaller pieces, while what is left still fails.
fn shrink(mut history: History, fails: impl Fn(&History) -> bool) -> History {
    let mut size = history.steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < history.steps.len() {
            let mut shorter = history.clone();
            shorter.steps.drain(at..(at + size).min(history.steps.len()));
            if fails(&shorter) {
                history = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    history
}

/// The first failing history among those of `seeds`, shrunk, and what is wrong.
fn first_failure(mut seeds: std::ops::Range<u64>, flaw: Flaw) -> Option<(u64, History, String)> {
    let seed = seeds.find(|seed| run(&history(*seed), flaw).is_err())?;
    let shrunk = shrink(history(seed), |shorter| run(shorter, flaw).is_err());
    let problem = run(&shrunk, flaw).unwrap_err();
    Some((seed, shrunk, problem))
}

#[test]
fn every_vm_holds_what_the_oracle_holds() {
    if let Some((seed, shrunk, problem)) = first_failure(0..HISTORIES, Flaw::None) {
        let History { bounds, ttl_s, pages, segments, steps } = shrunk;
        let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
        panic!(
            "seed {seed}: {problem}\n{bounds:?}, {ttl_s} s, {pages} pages, {segments} segments\n{}",
            steps.join("\n")
        );
    }
}

#[test]
fn histories_have_something_of_everything() {
    let mut seen = Seen::default();
    for seed in 0..40 {
        seen += run(&history(seed), Flaw::None).unwrap();
    }
    let Seen { by_cap, by_quota, hits, leaders, fell_off, pages_of_ages, moved, compared } = seen;
    for (what, times) in [
        ("evictions by the cap", by_cap),
        ("evictions by a quota", by_quota),
        ("hits", hits),
        ("leaders", leaders),
        ("VMs that fell off the ring", fell_off),
        ("VMs with pages of different ages", pages_of_ages),
        ("blocks compared", compared),
    ] {
        assert!(times >= 40, "{what} are rare: {seen:?}");
    }
    assert!(moved > 0, "no block with hits moved to another page: {seen:?}");
}

#[test]
fn every_flaw_of_the_oracle_is_found_and_shrinks() {
    for flaw in [
        Flaw::OtherEnd,
        Flaw::HitsIgnored,
        Flaw::QuotasIgnored,
        Flaw::ExpiryIgnored,
        Flaw::RemovalsIgnored,
        Flaw::ReassertionsIgnored,
    ] {
        let (seed, shrunk, _) = first_failure(0..HISTORIES, flaw).unwrap_or_else(|| panic!("{flaw:?} passes"));
        let says = shrunk.steps.iter().filter(|step| matches!(step, Step::Say(..))).count();
        // Reports of at most 8 blocks that fill the largest cap, their generations, and what shows the flaw.
        assert!(says <= 18, "{flaw:?}, seed {seed}, is still long: {shrunk:#?}");
    }
}
