//! Host calls that fail.

use std::collections::HashMap;

/// Which host calls fail, and with which status.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    always: HashMap<String, u32>,
    /// Of a thousand calls this many fail, by a generator.
    per_mille: u64,
    random: u64,
    statuses: Vec<u32>,
    spared: Vec<String>,
}

// === impl Faults ===

impl Faults {
    /// Every call of this function fails so, until [`Faults::none`].
    pub fn always(&mut self, call: &str, status: u32) {
        self.always.insert(call.to_owned(), status);
    }

    /// Of a thousand calls about this many fail with one of `statuses`.
    pub fn at_random(&mut self, seed: u64, per_mille: u64, statuses: &[u32]) {
        (self.random, self.per_mille, self.statuses) = (seed, per_mille, statuses.to_vec());
    }

    /// Calls of this function do not fail by the generator.
    pub fn spare(&mut self, call: &str) {
        self.spared.push(call.to_owned());
    }

    /// No call fails any more.
    pub fn none(&mut self) {
        *self = Faults::default();
    }

    /// The status that this call fails with, if it does.
    pub(crate) fn next(&mut self, call: &str) -> Option<u32> {
        if let Some(status) = self.always.get(call) {
            return Some(*status);
        }
        if self.per_mille == 0 || self.spared.iter().any(|spared| spared == call) {
            return None;
        }
        // Xorshift, by George Marsaglia.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let fails = self.random % 1_000 < self.per_mille;
        let at = (self.random >> 32) as usize % self.statuses.len().max(1);
        self.statuses.get(at).copied().filter(|_| fails)
    }
}
