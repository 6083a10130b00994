//! A VM's sweep of its index: what has ended leaves it, and what is older than its tenant's policy lets it count.
//!
//! The whole index is gone over once in [`SWEEP_MS`], in shares of a tick. What a tick had no time for is owed: the VM then
//! ticks as if it were catching up, and each of those ticks lets something go, however much else it had to do. So a machine
//! that is busy puts off memory's coming back by little.

use super::eviction::{ByAlgorithm, policy};
use super::follower::Follower;
use crate::config::FilterConfig;
use crate::host::Host;
use crate::index::log::Head;

/// Everything is swept once in this time, about.
pub const SWEEP_MS: u64 = 30_000;
/// Runs, stretches and blocks dropped between two looks at the clock.
const SWEEP_STEP: usize = 32;

/// Where the sweep should be.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// Runs that are still to be gone over.
    owed: u32,
    /// When that was last reckoned, Unix time in ms.
    reckoned_ms: Option<u64>,
}

// === impl Sweeper ===

impl Sweeper {
    /// Whether the last step had no time for all that was due.
    pub fn is_behind(&self) -> bool {
        self.owed > 0
    }

    /// Sweeps what is due `passed_ms` after the last step, or later if the clock says so, if everything that `head` covers is
    /// applied. Goes on until three quarters of a step have passed since `started_ns`, and for an eighth of one anyway.
    /// Returns how many pairs went by age, by algorithm.
    pub fn step(
        &mut self,
        host: &impl Host,
        follower: &mut Follower,
        head: &Head,
        config: &FilterConfig,
        (passed_ms, started_ns): (u64, u64),
    ) -> ByAlgorithm {
        let mut expired = ByAlgorithm::default();
        let now_ms = host.now_ms();
        let since_ms = self.reckoned_ms.replace(now_ms).and_then(|then| now_ms.checked_sub(then));
        let Some(index) = follower.sweepable(head) else {
            self.owed = 0;
            return expired;
        };
        let passed_ms = since_ms.unwrap_or(0).clamp(passed_ms.min(SWEEP_MS), SWEEP_MS);
        let at = index.sweep_at();
        let share = index.sweep_share(passed_ms, SWEEP_MS).saturating_sub(at);
        // Never more than all of it.
        let most = index.sweep_share(SWEEP_MS, SWEEP_MS).saturating_sub(at);
        let until = at.saturating_add(self.owed.saturating_add(share).min(most));
        self.owed = until.saturating_sub(at);
        let step_ns = config.limits.max_step_ns();
        let until_ns = started_ns.saturating_add(step_ns / 4 * 3).max(host.now_ns().saturating_add(step_ns / 8));
        while index.sweep_at() < until {
            let swept = index.sweep_until(until, SWEEP_STEP, |dictionary, scope, last_seen_ms| {
                now_ms.saturating_sub(last_seen_ms) >= policy(dictionary, config, scope).eviction_ttl_ms
            });
            for (scope, pairs) in swept.by_scope {
                expired.add(index.dictionary(), config, scope, pairs);
            }
            self.owed = if swept.complete { 0 } else { until.saturating_sub(index.sweep_at()) };
            if swept.complete || host.now_ns() >= until_ns {
                break;
            }
        }
        expired
    }
}
