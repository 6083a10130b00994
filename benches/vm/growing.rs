//! Prompts that grow a block at a time: the worst case for an index of runs.

use warmroute::fingerprint::{ContentHash, PrefixHash};
use warmroute::index::runs::Runs;

use crate::ours;
use crate::workload::Random;

const PROMPTS: u32 = 800;

/// Prompts of 8 replicas.
pub struct Prompts(Vec<Prompt>);

struct Prompt {
    random: Random,
    last: Option<PrefixHash>,
}

// === impl Prompts ===

impl Default for Prompts {
    fn default() -> Prompts {
        Prompts((0..u64::from(PROMPTS)).map(|seed| Prompt { random: Random(seed << 20), last: None }).collect())
    }
}

impl Prompts {
    /// Grows all of them in turn until `runs` has so many pairs more, with or without a word on the block before.
    pub fn grow(&mut self, runs: &mut Runs, pairs: u32, with_parents: bool) {
        for at in 0..pairs / PROMPTS {
            for (number, prompt) in self.0.iter_mut().enumerate() {
                let parent = prompt.last.filter(|_| with_parents).map(|hash| hash.0);
                let seen = ours::START_MS + u64::from(at * PROMPTS) + number as u64;
                let new = ours::store_after(runs, number as u32 % 8, seen, parent, at as usize, &[prompt.next()]);
                assert_eq!(new, 1);
            }
        }
    }
}

// === impl Prompt ===

impl Prompt {
    fn next(&mut self) -> u64 {
        let content = ContentHash(self.random.next());
        let hash = self.last.map_or(PrefixHash(content.0), |last| last.extended_by(content));
        self.last = Some(hash);
        hash.0
    }
}
