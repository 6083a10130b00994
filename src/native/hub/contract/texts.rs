//! The texts of LookupRoute, with the models that the hub has.
//!
//! Threads take turns with a few workspaces, each of which remembers what it has seen.

use std::sync::{Arc, Mutex, PoisonError};

use crate::model::TextLimits;
use crate::native::hub::clock::unix_ms;
use crate::native::hub::state::HubState;
use crate::request::{MAX_TEXT_BYTES, MAX_TOKENS, TextPrompt, TokenizeError, Tokenized, Tokenizer};
use crate::template::LocalTime;
use crate::tokenize::Workspace;

/// How many workspaces are kept.
const KEPT_WORKSPACES: usize = 8;
/// Bytes of token ids that each remembers.
const MEMO_BYTES: usize = 4 * 1024 * 1024;
/// As much as the longest text comes to: it is a thread of its own that is held up, and only so many are.
const LIMITS: TextLimits =
    TextLimits { max_prompt_bytes: 2 * MAX_TEXT_BYTES, max_tokens: MAX_TOKENS, max_symbols: 2 * MAX_TEXT_BYTES };

/// The hub's models as a tokenizer.
pub struct HubTexts {
    state: Arc<HubState>,
    utc_offset_seconds: i32,
    workspaces: Mutex<Vec<Workspace>>,
}

// === impl HubTexts ===

impl HubTexts {
    /// With the models of `state`, whose engines' clocks are that far from UTC.
    pub fn new(state: &Arc<HubState>, utc_offset_seconds: i32) -> HubTexts {
        HubTexts { state: Arc::clone(state), utc_offset_seconds, workspaces: Mutex::default() }
    }

    fn workspace(&self) -> Workspace {
        let kept = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| Workspace::new(MEMO_BYTES))
    }

    fn put_back(&self, workspace: Workspace) {
        let mut kept = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_WORKSPACES {
            kept.push(workspace);
        }
    }
}

impl Tokenizer for HubTexts {
    fn tokenize(&self, model_id: &str, prompt: &TextPrompt) -> Result<Tokenized, TokenizeError> {
        let model = self.state.models().get(model_id).ok_or(TokenizeError::Unavailable)?;
        let unix_seconds = i64::try_from(unix_ms() / 1_000).unwrap_or(i64::MAX);
        let clock = LocalTime { unix_seconds, utc_offset_seconds: self.utc_offset_seconds };
        let mut workspace = self.workspace();
        let tokenized = model.model.tokenize(prompt, clock, &LIMITS, &mut workspace);
        self.put_back(workspace);
        tokenized
    }
}
