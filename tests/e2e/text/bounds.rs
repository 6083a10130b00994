//! Too much text, and bodies as they were sent.

use serde_json::json;

use super::*;
use crate::bodies::arrives;

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_over_the_bounds_is_matched_on_what_is_certain_of_it() {
    let stack = text_stack(|options| options.plugin["limits"] = json!({ "max_prompt_bytes": 4_096 })).await;
    let turn = |seed| json!({ "role": "user", "content": words(seed, 120) });
    for (model, engine) in [(BYTES, 0), (CHARS, 1)] {
        let long: Vec<_> = (1..=20).map(turn).collect();
        let body = json!({ "model": model, "messages": long, "max_tokens": 1 });
        let whole = whole_blocks(ids(&stack, engine, &body).await.len());
        post(&stack, engine, "/v1/chat/completions", &body).await;
        let found = said(&stack, "default", &body, |decided| decided.matched_tokens > 256).await;
        assert!(found.matched_tokens < whole && found.matched_tokens % 16 == 0, "{found:?} of {whole}");
        assert_eq!((found.reason.as_str(), place_of(&found.replica)), ("PREFIX_MATCH", engine));
    }
}

/// A conversation of exactly so many bytes; below those that one takes, blanks.
fn chat_of(bytes: usize) -> Vec<u8> {
    let body = |text: &str| {
        json!({ "model": BYTES, "messages": [{ "role": "user", "content": text }], "max_tokens": 1 }).to_string()
    };
    let Some(room) = bytes.checked_sub(body("").len()) else { return vec![b' '; bytes] };
    let mut text = words(5, room / 4 + 1);
    text.truncate(room);
    body(&text).into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_reach_the_engine_as_sent() {
    for hold_chunked in [false, true] {
        let stack = text_stack(|options| {
            options.plugin["hold_chunked"] = json!(hold_chunked);
            // Of these sizes no engine has the room: it need not tokenize them to say so.
            options.models.iter_mut().for_each(|model| model.model_dir = None);
        })
        .await;
        for http2 in [false, true] {
            for chunked in [false, true] {
                for bytes in [1, 2, 95, 1_000, 16_384, 65_537, 300_000, 900_000] {
                    let text = chat_of(bytes);
                    assert_eq!(text.len(), bytes);
                    arrives(&stack, "/v1/chat/completions", text, http2, chunked).await;
                }
            }
        }
        let metrics = stack.metrics().await.unwrap();
        let read = metrics.sum("inferencecache_lookup_route_calls_total", &[("model", BYTES)]);
        assert!(read >= 1.0, "bodies were held and read");
    }
}
