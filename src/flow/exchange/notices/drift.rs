//! Whether what is foretold of prompts comes true, by model: if it keeps failing, the operator is told.
//!
//! The models are those that the configuration names, so that there are few.

use std::collections::BTreeMap;

use crate::flow::exchange::compare::Verdict;
use crate::host::{Host, Level};

use super::quoted;

/// Responses compared, after which it is judged whether predictions fail.
const WINDOW: u32 = 20;
/// The pause between two warnings of one kind about one model, in ms.
const PAUSE_MS: u64 = 600_000;

/// What came of predictions, by model.
#[derive(Debug, Default)]
pub(in crate::flow::exchange) struct Drift {
    models: BTreeMap<String, OfModel>,
}

#[derive(Debug, Default)]
struct OfModel {
    /// Whether its engines say what was cached.
    is_reported: bool,
    /// Of the responses compared since the last judgement: how many, how many had fewer tokens cached than foretold, and
    /// how many had some though none were.
    compared: u32,
    fewer: u32,
    unforeseen: u32,
    /// Of them: those that had what was foretold, which was something.
    right: u32,
    /// What was predicted and what was cached where it failed last.
    failed: (u64, u64),
    /// Prompts miscounted since the last warning.
    miscounted: u64,
    /// When the last warnings were, Unix time in ms.
    failing_ms: Option<u64>,
    miscounted_ms: Option<u64>,
}

// === impl Drift ===

impl Drift {
    /// An engine of the model said what was cached.
    pub(in crate::flow::exchange) fn reports_cached(&mut self, model: &str) {
        self.of_model(model).is_reported = true;
    }

    /// Whether an engine of the model ever said what was cached.
    pub(in crate::flow::exchange) fn is_reported(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(|model| model.is_reported)
    }

    /// A response was compared.
    pub(in crate::flow::exchange) fn compared(
        &mut self,
        host: &impl Host,
        model: &str,
        verdict: Verdict,
        predicted: u64,
        actual: u64,
    ) {
        let of_model = self.of_model(model);
        of_model.compared += 1;
        if verdict.is_failure(predicted) {
            let failures = if verdict == Verdict::Fewer { &mut of_model.fewer } else { &mut of_model.unforeseen };
            *failures += 1;
            of_model.failed = (predicted, actual);
        }
        of_model.right += u32::from(verdict == Verdict::AsPredicted && predicted > 0);
        if of_model.compared < WINDOW {
            return;
        }
        let (fewer, mut unforeseen) = (std::mem::take(&mut of_model.fewer), std::mem::take(&mut of_model.unforeseen));
        // Where some of it comes true, what nobody was to have is a prompt that many send before its first event is heard.
        if std::mem::take(&mut of_model.right) > 0 {
            unforeseen = 0;
        }
        of_model.compared = 0;
        let now_ms = host.now_ms();
        if (fewer + unforeseen) * 2 > WINDOW && is_due(of_model.failing_ms, now_ms) {
            of_model.failing_ms = Some(now_ms);
            let (predicted, actual) = of_model.failed;
            let text = if fewer >= unforeseen { FEWER } else { UNFORESEEN };
            let message = format!(
                "predictions for model {} keep failing: of the last {WINDOW} responses compared, {fewer} had fewer tokens \
                 cached than predicted, and {unforeseen} had some although none were, the last of them {actual} \
                 where {predicted} were predicted; {text}",
                quoted(model)
            );
            host.log(Level::Warn, &message);
        }
    }

    /// A prompt that had `here` tokens had `there` for the engine.
    pub(in crate::flow::exchange) fn miscounted(&mut self, host: &impl Host, model: &str, here: u64, there: u64) {
        let of_model = self.of_model(model);
        of_model.miscounted = of_model.miscounted.saturating_add(1);
        let now_ms = host.now_ms();
        if !is_due(of_model.miscounted_ms, now_ms) {
            return;
        }
        of_model.miscounted_ms = Some(now_ms);
        let prompts = std::mem::take(&mut of_model.miscounted);
        let message = format!(
            "prompts of model {} are other tokens for the engine than here: {there} for it, {here} here, {prompts} such \
             prompts since the last warning; nothing of them will match: the hub's models directory must have the \
             tokenizer, the chat template and the template's settings that the engine serves with (warmroute-hub verify \
             names the first difference), and the engine's version of transformers must render as here",
            quoted(model)
        );
        host.log(Level::Warn, &message);
    }

    fn of_model(&mut self, model: &str) -> &mut OfModel {
        self.models.entry(model.to_owned()).or_default()
    }
}

/// What to look at where what was foretold is not there.
const FEWER: &str = "check that block_size is the engines', that the hub hears all of their events, that no other cache than \
     the followed one is counted, and that all engines say what was cached (vLLM: --enable-prompt-tokens-details)";
/// What to look at where what nobody was to have is there.
const UNFORESEEN: &str = "check that the tokenizer, chat template and block_size of this model are the engines', that the \
     hub follows all of them under the filter's tenant, model and hash scheme, and that evictionTTL is not shorter than \
     they keep blocks";

/// Whether a warning may be given. A clock that was set back must not silence the log.
fn is_due(last_ms: Option<u64>, now_ms: u64) -> bool {
    last_ms.is_none_or(|last_ms| now_ms.checked_sub(last_ms).is_none_or(|passed| passed >= PAUSE_MS))
}
