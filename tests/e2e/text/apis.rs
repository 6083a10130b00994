//! Every API that carries text, streamed and not: what is matched, and what the engine says was cached.

use serde_json::{Value, json};
use warmroute::native::load::client::Answer;
use warmroute::native::load::stack::Stack;

use super::*;

/// Where an API's usage has the cached tokens, and in which event of a stream, by its place from the end.
struct Shape {
    path: &'static str,
    cached: &'static str,
    /// Pointer to the same number in the streamed event that has it.
    streamed: &'static str,
}

const SHAPES: [Shape; 4] = [
    Shape {
        path: "/v1/completions",
        cached: "/usage/prompt_tokens_details/cached_tokens",
        streamed: "/usage/prompt_tokens_details/cached_tokens",
    },
    Shape {
        path: "/v1/chat/completions",
        cached: "/usage/prompt_tokens_details/cached_tokens",
        streamed: "/usage/prompt_tokens_details/cached_tokens",
    },
    Shape {
        path: "/v1/responses",
        cached: "/usage/input_tokens_details/cached_tokens",
        streamed: "/response/usage/input_tokens_details/cached_tokens",
    },
    Shape {
        path: "/v1/messages",
        cached: "/usage/cache_read_input_tokens",
        streamed: "/usage/cache_read_input_tokens",
    },
];

/// A body of the API, without `stream`.
fn body(path: &str, model: &str, seed: usize) -> Value {
    let (first, second) = (words(seed, 60), words(seed + 1, 61));
    let turns = json!([
        { "role": "user", "content": first },
        { "role": "assistant", "content": "Yes." },
        { "role": "user", "content": second },
    ]);
    let system = json!({ "role": "system", "content": "Be brief." });
    let with_system: Vec<&Value> = std::iter::once(&system).chain(turns.as_array().unwrap()).collect();
    match path {
        "/v1/completions" => json!({ "model": model, "prompt": format!("{first} {second}"), "max_tokens": 2 }),
        "/v1/chat/completions" => json!({ "model": model, "messages": with_system, "max_tokens": 2 }),
        "/v1/responses" => {
            json!({ "model": model, "instructions": "Be brief.", "input": turns, "max_output_tokens": 2, "store": false })
        }
        _ => json!({ "model": model, "system": "Be brief.", "messages": turns, "max_tokens": 2 }),
    }
}

/// Tokens of a prompt, as the engine counts them: those of messages are told apart by whether they were cached.
fn prompt_tokens(reply: &Value) -> usize {
    let usage = &reply["usage"];
    let tokens = usage.get("prompt_tokens").or(usage.get("input_tokens")).and_then(Value::as_u64);
    let apart = usage.get("cache_read_input_tokens").and_then(Value::as_u64).unwrap_or(0);
    (tokens.unwrap_or_else(|| panic!("{reply}")) + apart) as usize
}

fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn is_matched(stack: &Stack, shape: &Shape, model: &str, seed: usize) {
    let what = format!("{} of {model}", shape.path);
    let engine = if model == BYTES { 2 } else { 3 };
    let mut body = body(shape.path, model, seed);
    let first = post(stack, engine, shape.path, &body).await;
    let prompt_tokens = prompt_tokens(&serde_json::from_slice(&first.body).unwrap());
    // The engine always computes the last token.
    let (whole, cached) = (whole_blocks(prompt_tokens), whole_blocks(prompt_tokens - 1));
    assert!(whole > 64, "{what}: {prompt_tokens} tokens");
    let mut last = None;
    let matched = eventually(SOON * 10, async || {
        let decided = probed_at(stack, "default", shape.path, &body).await;
        let matched = decided.matched_tokens == whole;
        last = Some(decided);
        matched
    });
    assert!(matched.await, "{what}: {whole} expected, {last:?}");
    let answer = send(stack, of("default"), shape.path, body.to_string()).await;
    assert_eq!(decided(&answer).matched_tokens, whole, "{what}");
    assert_eq!((answer.status.as_u16(), engine_of(&answer)), (200, engine), "{what}: {}", answer.text());
    let reply: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(reply.pointer(shape.cached), Some(&json!(cached)), "{what}: {reply}");

    body["stream"] = json!(true);
    if shape.path.ends_with("completions") {
        body["stream_options"] = json!({ "include_usage": true });
    }
    let answer = send(stack, of("default"), shape.path, body.to_string()).await;
    assert_eq!((decided(&answer).matched_tokens, engine_of(&answer)), (whole, engine), "{what}, streamed");
    let events = events(&answer);
    let last = events.iter().rev().find_map(|event| event.pointer(shape.streamed));
    assert_eq!(last, Some(&json!(cached)), "{what}: {events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_chats_responses_and_messages_are_matched_whole() {
    let stack = text_stack(|_| {}).await;
    loaded(&stack, &[BYTES, CHARS]).await;
    let mut seed = 0;
    for model in [BYTES, CHARS] {
        for shape in &SHAPES {
            seed += 10;
            is_matched(&stack, shape, model, seed).await;
        }
    }
}
