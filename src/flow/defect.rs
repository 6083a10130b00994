//! Protections of the shared log that a test can take away, to show that it would notice.

use std::cell::Cell;

/// A protection that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defect {
    /// All are there.
    #[default]
    None,
    /// A value that must not exist is written over.
    NoPutIfAbsent,
    /// A log slot is written without its number.
    NoSlotCas,
    /// The leader applies a record before it is committed.
    ApplyBeforeCommit,
    /// A log slot is reused while a page still needs it.
    NoRingRule,
}

thread_local! {
    static PLANTED: Cell<Defect> = const { Cell::new(Defect::None) };
}

/// Takes a protection away, on this thread.
pub fn plant(defect: Defect) {
    PLANTED.set(defect);
}

/// What is missing on this thread.
pub fn present() -> Defect {
    PLANTED.get()
}
