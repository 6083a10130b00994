//! The models of one VM, or of the hub.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::loaded::{LoadedModel, TextLimits};
use crate::observation::{ModelDigest, ModelVersion};
use crate::request::{TextPrompt, TokenizeError, Tokenized, Tokenizer};
use crate::template::LocalTime;
use crate::tokenize::Workspace;

/// Models by what they were loaded from, and the memory that tokenizing keeps.
pub struct Models {
    loaded: BTreeMap<ModelDigest, LoadedModel>,
    /// Versions that are announced and will not come.
    set_aside: BTreeSet<ModelDigest>,
    workspace: RefCell<Workspace>,
}

/// The models as one request sees them.
pub struct Texts<'a> {
    /// The models.
    pub models: &'a Models,
    /// The version that is announced of a model; none if there is none.
    pub version_of: &'a dyn Fn(&str) -> Option<ModelVersion>,
    /// The engines' wall clock.
    pub clock: LocalTime,
    /// How much of a prompt may be made into token ids.
    pub limits: TextLimits,
}

// === impl Models ===

impl Models {
    /// No models yet, and up to `memo_bytes` of turns seen before.
    pub fn new(memo_bytes: usize) -> Models {
        Models {
            loaded: BTreeMap::new(),
            set_aside: BTreeSet::new(),
            workspace: RefCell::new(Workspace::new(memo_bytes)),
        }
    }

    /// Whether the contents of this digest are loaded.
    pub fn has(&self, digest: ModelDigest) -> bool {
        self.loaded.contains_key(&digest)
    }

    /// The model that was loaded from the contents of this digest.
    pub fn get(&self, digest: ModelDigest) -> Option<&LoadedModel> {
        self.loaded.get(&digest)
    }

    /// Adds a model that was loaded from the contents of this digest.
    pub fn insert(&mut self, digest: ModelDigest, model: LoadedModel) {
        self.loaded.insert(digest, model);
    }

    /// How many models are loaded.
    pub fn count(&self) -> usize {
        self.loaded.len()
    }

    /// Bytes of memory that the models take: what `limits.max_model_bytes` bounds. A package takes its length while it is
    /// assembled, and no more once it is loaded.
    pub fn bytes(&self) -> usize {
        self.loaded.values().map(LoadedModel::bytes).sum()
    }

    /// Bytes that token ids and messages of turns seen before take.
    pub fn memo_bytes(&self) -> usize {
        self.workspace.try_borrow().map_or(0, |workspace| workspace.memo_bytes())
    }

    /// Keeps up to `memo_bytes` of turns seen before from now on.
    pub fn set_memo_bytes(&mut self, memo_bytes: usize) {
        self.workspace.get_mut().set_memo_bytes(memo_bytes);
    }

    /// Drops all but those of these digests.
    pub fn retain(&mut self, is_wanted: impl Fn(ModelDigest) -> bool) {
        self.loaded.retain(|digest, _| is_wanted(*digest));
        self.set_aside.retain(|digest| is_wanted(*digest));
    }

    /// The contents of this digest cannot be used here: texts have no tokenizer, rather than one that is arriving.
    pub fn set_aside(&mut self, digest: ModelDigest) {
        self.set_aside.insert(digest);
    }

    /// The contents of this digest may come after all.
    pub fn take_back(&mut self, digest: ModelDigest) {
        self.set_aside.remove(&digest);
    }
}

impl Default for Models {
    fn default() -> Models {
        Models::new(0)
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("loaded", &self.loaded.keys()).finish()
    }
}

// === impl Texts ===

impl Tokenizer for Texts<'_> {
    fn tokenize(&self, model_id: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        let version = (self.version_of)(model_id).ok_or(TokenizeError::Unavailable)?;
        if self.models.set_aside.contains(&version.digest) {
            return Err(TokenizeError::Unavailable);
        }
        let model = self.models.loaded.get(&version.digest).ok_or(TokenizeError::Arriving)?;
        // One request at a time: nobody else has it.
        let mut workspace = self.models.workspace.try_borrow_mut().map_err(|_| TokenizeError::Saturated)?;
        model.tokenize(prompt, self.clock, &self.limits, &mut workspace)
    }
}
