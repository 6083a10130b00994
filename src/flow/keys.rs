//! The names of the shared values and of the shared queue of one domain.

use crate::index::log::FORMAT;
use crate::observation::ModelDigest;

/// The keys under `wr/<format>/<domain>/`.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

// === impl Keys ===

impl Keys {
    /// The keys of `domain`.
    pub fn new(domain: &str) -> Keys {
        Keys { prefix: format!("wr/{FORMAT}/{domain}") }
    }

    /// Lease and fence.
    pub fn head(&self) -> String {
        format!("{}/head", self.prefix)
    }

    /// The log slot that holds `sequence` in a ring of `ring` slots.
    pub fn log(&self, sequence: u64, ring: u32) -> String {
        format!("{}/log/{}", self.prefix, self.slot(sequence, ring))
    }

    /// The number of that slot.
    pub fn slot(&self, sequence: u64, ring: u32) -> u32 {
        // Below `ring`, so nothing is cut.
        (sequence % u64::from(ring.max(1))) as u32
    }

    /// A page.
    pub fn page(&self, number: u32) -> String {
        format!("{}/page/{number}", self.prefix)
    }

    /// A part of the package of a model's version.
    pub fn model_part(&self, digest: ModelDigest, number: u32) -> String {
        format!("{}/model/{:032x}/{number}", self.prefix, digest.0)
    }

    /// The versions that have such parts.
    pub fn model_list(&self) -> String {
        format!("{}/model/list", self.prefix)
    }

    /// The queue in which workers tell the leader of delivered hits.
    pub fn credits(&self) -> String {
        format!("{}/credits", self.prefix)
    }
}
