//! How often a VM's background work runs.
//!
//! A VM that has work left, or owes a part of its sweep, ticks every `limits.catch_up_tick_ms`, else every
//! `limits.tick_ms`. Whether a leader is silent is counted in whole ticks, so that a VM in a hurry is no less patient with
//! it.

use crate::config::Limits;

/// How often ticks come, by what was last asked for.
#[derive(Debug, Default)]
pub struct Pace {
    /// None: nothing but `tick_ms` was ever asked for.
    asked_ms: Option<u64>,
    since_whole_ms: u64,
}

// === impl Pace ===

impl Pace {
    /// A tick has come. True if a whole `tick_ms` has passed since the last time this was true.
    pub fn is_whole(&mut self, limits: &Limits) -> bool {
        self.since_whole_ms = self.since_whole_ms.saturating_add(self.period_ms(limits));
        let is_whole = self.since_whole_ms >= limits.tick_ms;
        if is_whole {
            self.since_whole_ms = 0;
        }
        is_whole
    }

    /// The tick is over, with work left or not.
    pub fn rest(&mut self, limits: &Limits, work_is_left: bool) {
        self.asked_ms = work_is_left.then_some(limits.catch_up_tick_ms);
    }

    /// When the next tick is due, in ms from the last.
    pub fn period_ms(&self, limits: &Limits) -> u64 {
        self.asked_ms.unwrap_or(limits.tick_ms).min(limits.tick_ms)
    }
}
