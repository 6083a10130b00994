//! Models' files change while everything runs.

use serde_json::{Value, json};

use super::*;

fn body(model: &str, seed: usize) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": words(seed, 120) }], "max_tokens": 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_in_the_directory_is_picked_up() {
    let scratch = Scratch::new();
    scratch.copy(BYTES, BYTES, None);
    let stack = text_stack(|options| {
        options.engines = 2;
        options.models = vec![served(BYTES)];
        options.models_directory = Some(scratch.path().to_owned());
    })
    .await;
    let asked = body(BYTES, 1);
    post(&stack, 0, "/v1/chat/completions", &asked).await;
    let whole = whole_blocks(ids(&stack, 0, &asked).await.len());
    let is_matched = |decided: &Decided| decided.matched_tokens == whole && decided.reason == "PREFIX_MATCH";
    said(&stack, "default", &asked, is_matched).await;

    // Another template makes other tokens of it, which no engine has.
    let template = std::fs::read_to_string(models_directory().join(BYTES).join("chat_template.jinja")).unwrap();
    let other = template.replace("{{- bos_token }}", "{{- bos_token + 'x' }}");
    assert_ne!(other, template);
    scratch.copy(BYTES, BYTES, Some(&other));
    said(&stack, "default", &asked, |decided| decided.detail == "miss").await;

    // What cannot be used leaves what there was.
    scratch.copy(BYTES, BYTES, Some(&template));
    said(&stack, "default", &asked, is_matched).await;
    scratch.copy(BYTES, BYTES, Some("{% for %}"));
    let logged = eventually(SOON * 5, async || stack.hub.log_text().contains("chat_template.jinja")).await;
    assert!(logged, "{}", stack.hub.log_tail());
    said(&stack, "default", &asked, is_matched).await;

    std::fs::remove_dir_all(scratch.path().join(BYTES)).unwrap();
    said(&stack, "default", &asked, |decided| decided.detail == "no_tokenizer").await;
    scratch.copy(BYTES, BYTES, None);
    said(&stack, "default", &asked, is_matched).await;
}
