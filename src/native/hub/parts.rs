//! The contents of a model on their way to one subscriber.
//!
//! In: what the subscriber asked for, as the hub has it. Out: one part after the other, each when the stream has room for it
//! and for a whole message beside it, so that parts keep no change and no sign of life waiting. Pure.

use std::sync::Arc;

use super::window::Window;
use crate::native::models::VerifiedModel;
use crate::observation::{MODEL_PART_BYTES, ModelPart};
use crate::wire::MAX_MESSAGE_BYTES;

/// What a message has besides the contents of its part, at most.
const OVERHEAD_BYTES: usize = 128;

/// Parts that are still to be sent.
#[derive(Debug)]
pub struct Parts {
    model: Arc<VerifiedModel>,
    next: u32,
}

// === impl Parts ===

impl Parts {
    /// Those of `model` from `first` on.
    pub fn new(model: Arc<VerifiedModel>, first: u32) -> Parts {
        Parts { model, next: first }
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.next >= self.model.version.parts()
    }

    /// The next part, if there is one and `window` has room for it.
    pub fn next(&mut self, window: &Window) -> Option<ModelPart> {
        let version = self.model.version;
        let bytes = version.part_bytes(self.next);
        if bytes == 0 || !window.fits(bytes + OVERHEAD_BYTES + MAX_MESSAGE_BYTES) {
            return None;
        }
        let start = (self.next as usize).saturating_mul(MODEL_PART_BYTES);
        let contents = self.model.bytes.get(start..start + bytes)?.to_vec();
        let part = ModelPart { digest: version.digest, number: self.next, contents };
        self.next += 1;
        Some(part)
    }
}
