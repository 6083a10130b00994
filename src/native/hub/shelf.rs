//! The models that are there now, for whoever sends their contents and whoever tokenizes with them.
//!
//! In: what the [directory](super::models) came to. Out: a version's contents by digest, a model by its id. Contents are
//! kept once, however many models and streams have them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::native::models::VerifiedModel;
use crate::observation::ModelDigest;

/// Models by id.
pub type TextModels = BTreeMap<String, Arc<VerifiedModel>>;

/// The models that are there now.
#[derive(Debug, Default)]
pub struct ModelShelf {
    models: RwLock<TextModels>,
}

// === impl ModelShelf ===

impl ModelShelf {
    /// Replaces them.
    pub fn replace(&self, models: TextModels) {
        let before = std::mem::replace(&mut *self.models.write().unwrap_or_else(PoisonError::into_inner), models);
        // Outside the lock: megabytes may go.
        drop(before);
    }

    /// A model.
    pub fn get(&self, model_id: &str) -> Option<Arc<VerifiedModel>> {
        self.look(|models| models.get(model_id).cloned())
    }

    /// The contents of this digest.
    pub fn contents(&self, digest: ModelDigest) -> Option<Arc<VerifiedModel>> {
        self.look(|models| models.values().find(|model| model.version.digest == digest).cloned())
    }

    /// All of them.
    pub fn all(&self) -> TextModels {
        self.look(Clone::clone)
    }

    fn look<T>(&self, look: impl FnOnce(&TextModels) -> T) -> T {
        look(&self.models.read().unwrap_or_else(PoisonError::into_inner))
    }
}
