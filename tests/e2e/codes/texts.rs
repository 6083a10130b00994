//! Codes and details of prompts that are text.

use serde_json::{Value, json};
use warmroute::native::load::stack::{ServedModel, StackOptions, eventually};

use super::of;
use super::seen::{Case, Seen};
use crate::pool::*;
use crate::text::{BYTES, CHARS, Scratch, served, words};

/// A model whose directory has no template, one whose template refuses every conversation, one without a directory.
const BARE: &str = "bare";
const REFUSING: &str = "refusing";
const ABSENT: &str = "absent";

pub async fn of_texts(seen: &mut Seen) {
    let scratch = Scratch::new();
    scratch.copy(BYTES, BYTES, None);
    scratch.copy(CHARS, CHARS, None);
    scratch.copy(BYTES, BARE, Some(""));
    scratch.copy(BYTES, REFUSING, Some("{{ bos_token }}{{ raise_exception('not this') }}"));
    let stack = stack(|options: &mut StackOptions| {
        options.engines = 1;
        options.workers = 1;
        let others = [CHARS, BARE, REFUSING, ABSENT].map(|id| ServedModel { id: id.to_owned(), model_dir: None });
        options.models = std::iter::once(served(BYTES)).chain(others).collect();
        options.models_directory = Some(scratch.path().to_owned());
        options.plugin["limits"] = json!({ "max_merge_symbols": 1_000 });
        // The hub knows the ids of models that have no engine by their directories alone.
        options.edit_hub = Some(Box::new(|config, _| {
            let models: serde_json::Map<String, Value> =
                [BYTES, CHARS, BARE, REFUSING, ABSENT].map(|id| (id.to_owned(), json!(id))).into_iter().collect();
            config["tokenizers"]["models"] = serde_norway::to_value(models).unwrap();
        }));
    })
    .await;
    warm_adapter(&stack, 0, BYTES, &tokens(1, 64)).await;
    for model in [BYTES, CHARS, BARE, REFUSING] {
        let loaded = eventually(SOON * 10, async || {
            let detail = decided(&send(&stack, of("default"), PATH, chat(model, &words(1, 100))).await).detail;
            !["no_tokenizer", "catching_up", "cold"].contains(&detail.as_str())
        });
        assert!(loaded.await, "{}", stack.hub.log_tail());
    }
    let case = |what, model, text: &str, detail| {
        Case::new(what, of("default"), chat(model, text), ("NO_HINT", detail)).at(PATH)
    };
    let unbroken = json!({ "model": CHARS, "prompt": "x".repeat(4_000) }).to_string();
    let too_much = json!({ "model": BYTES, "inference_cache": { "prompt_text": words(1, 240_000) } }).to_string();
    seen.expect(
        &stack,
        vec![
            case("no directory", ABSENT, "hello", "no_tokenizer"),
            case("no template", BARE, "hello", "no_template"),
            case("a template that refuses", REFUSING, "hello", "not_tokenized"),
            Case::new("more than the contract allows", of("default"), too_much, ("NO_HINT", "too_much_text")),
            Case::new("letters without a blank", of("default"), unbroken, ("NO_HINT", "budget")),
        ],
    )
    .await;
}

const PATH: &str = "/v1/chat/completions";

fn chat(model: &str, text: &str) -> String {
    json!({ "model": model, "messages": [{ "role": "user", "content": text }], "max_tokens": 1 }).to_string()
}
