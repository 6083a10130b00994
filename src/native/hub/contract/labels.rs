//! The models that metrics name.
//!
//! In: a model as a client wrote it, and whether anything is held of it. Out: the value of a metric label. Clients cannot
//! make labels: only what the configuration names or replicas hold becomes one, and no more than [`MAX_MODELS`] do.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The most models with a label of their own.
const MAX_MODELS: usize = 256;
/// The label of all other models.
pub const OTHER: &str = "other";

/// The models with a label of their own. One that has got it keeps it.
#[derive(Debug, Default)]
pub struct ModelLabels(Mutex<HashSet<String>>);

// === impl ModelLabels ===

impl ModelLabels {
    /// With these models, as many as there may be.
    pub fn new(models: impl Iterator<Item = String>) -> ModelLabels {
        let labels = ModelLabels::default();
        models.for_each(|model| {
            labels.label(&model, || true);
        });
        labels
    }

    /// The label of `model`; `is_held` is asked about one that has none yet.
    pub fn label(&self, model: &str, is_held: impl FnOnce() -> bool) -> String {
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if models.contains(model) {
            return model.to_owned();
        }
        if models.len() < MAX_MODELS && !model.is_empty() && is_held() {
            models.insert(model.to_owned());
            return model.to_owned();
        }
        OTHER.to_owned()
    }

    /// Every model with a label of its own.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_that_are_known_get_a_label_and_only_so_many() {
        let labels = ModelLabels::new(["configured".to_owned()].into_iter());
        assert_eq!(labels.label("configured", || false), "configured");
        assert_eq!(labels.label("from a client", || false), OTHER);
        assert_eq!(labels.label("held", || true), "held");
        assert_eq!(labels.label("held", || false), "held");
        for number in 0..300 {
            labels.label(&format!("m{number}"), || true);
        }
        assert_eq!(labels.label("m299", || true), OTHER);
        assert_eq!(labels.label("m10", || false), "m10");
        assert_eq!(labels.label("", || true), OTHER);
    }
}
