//! Conversations that grow: each turn matches all whole blocks of the one before.

use serde_json::{Value, json};
use warmroute::native::load::stack::Stack;

use super::*;

/// A tool, as a client describes it.
fn tool() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in \"Zürich\" & <elsewhere>",
            "parameters": { "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] },
        },
    })
}

/// The body that a conversation comes in.
fn body(model: &str, messages: &[Value], tools: &[Value]) -> Value {
    let mut body = json!({ "model": model, "messages": messages, "max_tokens": 24, "return_token_ids": true });
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body
}

/// Plays four turns, all but the first through Envoy, and looks at what is matched before and at each.
async fn grows(stack: &Stack, model: &str, seed: usize, system: bool, tools: &[Value]) {
    let what = format!("{model}, system {system}, tools {}", tools.len());
    let serves = if model == BYTES { 0 } else { 1 };
    let mut messages = Vec::new();
    if system {
        messages.push(json!({ "role": "system", "content": words(seed, 90) }));
    }
    // The tokens whose blocks the engine has after a turn, and the engine.
    let mut cached: Option<(Vec<u64>, usize)> = None;
    for turn in 0..4 {
        messages.push(json!({ "role": "user", "content": words(seed + 7 * turn + 1, 100) }));
        let body = body(model, &messages, tools);
        let prompt = ids(stack, serves, &body).await;
        let matches = cached.as_ref().map(|(known, _)| {
            let common = known.iter().zip(&prompt).take_while(|(known, asked)| known == asked).count();
            whole_blocks(common)
        });
        if let Some(matches) = matches {
            said(stack, "default", &body, |decided| decided.matched_tokens == matches).await;
        }
        let answer = match matches {
            Some(_) => send(stack, of("default"), "/v1/chat/completions", body.to_string()).await,
            None => post(stack, serves, "/v1/chat/completions", &body).await,
        };
        let engine = engine_of(&answer);
        let reply: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, 200, "{what}: {reply}");
        assert_eq!(reply["usage"]["prompt_tokens"], prompt.len(), "{what}");
        if let (Some(matches), Some((_, holder))) = (matches, &cached) {
            let of_before = whole_blocks(before(&messages, stack, serves, model, tools).await);
            assert!(of_before > 64 && matches >= of_before, "{what}: {matches} of {of_before} in turn {turn}");
            let decided = decided(&answer);
            assert_eq!((decided.reason.as_str(), decided.matched_tokens, engine), ("PREFIX_MATCH", matches, *holder));
            assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], matches, "{what}, turn {turn}");
        }
        let generated = reply["choices"][0]["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
        // The last token that is generated is never fed back.
        let known = prompt.iter().copied().chain(generated.take(23)).collect();
        cached = Some((known, engine));
        answered(&mut messages, &reply, tools, turn);
    }
}

/// Tokens of the prompt of the turn before: all but the last question, the last answer, and what came of it.
async fn before(messages: &[Value], stack: &Stack, serves: usize, model: &str, tools: &[Value]) -> usize {
    let users = messages.iter().enumerate().filter(|(_, message)| message["role"] == "user");
    let last_but_one = users.map(|(place, _)| place).rev().nth(1).unwrap();
    ids(stack, serves, &body(model, &messages[..=last_but_one], tools)).await.len()
}

/// Adds an answer; with tools, a call and its result too.
fn answered(messages: &mut Vec<Value>, reply: &Value, tools: &[Value], turn: usize) {
    let content = &reply["choices"][0]["message"]["content"];
    if tools.is_empty() {
        messages.push(json!({ "role": "assistant", "content": content }));
        return;
    }
    let id = format!("call-{turn}");
    let call = json!({
        "id": id,
        "type": "function",
        "function": { "name": "get_weather", "arguments": format!("{{\"city\": \"Zürich\", \"day\": {turn}.5}}") },
    });
    messages.push(json!({ "role": "assistant", "content": content, "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": id, "content": "{\"sky\": \"clear\"}" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_turn_matches_the_one_before_over_two_models_with_system_prompts_and_tools() {
    let stack = text_stack(|_| {}).await;
    loaded(&stack, &[BYTES, CHARS]).await;
    let tools = [tool(), tool()];
    let mut seed = 0;
    for model in [BYTES, CHARS] {
        for system in [false, true] {
            for tools in [&[][..], &tools] {
                seed += 100;
                grows(&stack, model, seed, system, tools).await;
            }
        }
    }
}

/// The same words are other tokens to the other model, and nothing to it.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_and_models_see_only_their_own() {
    let stack = text_stack(|options| {
        options.edit_hub = Some(Box::new(|config, _| {
            config["replicas"][0]["tenant"] = "a".into();
            config["replicas"][2]["tenant"] = "b".into();
        }));
    })
    .await;
    loaded(&stack, &[BYTES, CHARS]).await;
    let chat = |model: &str, seed| body(model, &[json!({ "role": "user", "content": words(seed, 120) })], &[]);
    for (engine, seed) in [(0, 1), (2, 2)] {
        post(&stack, engine, "/v1/chat/completions", &chat(BYTES, seed)).await;
    }
    post(&stack, 1, "/v1/chat/completions", &chat(CHARS, 3)).await;
    for (tenant, model, seed, engine) in [("a", BYTES, 1, 0), ("b", BYTES, 2, 2), ("default", CHARS, 3, 1)] {
        let whole = whole_blocks(ids(&stack, engine, &chat(model, seed)).await.len());
        let decided = said(&stack, tenant, &chat(model, seed), |decided| decided.matched_tokens == whole).await;
        assert_eq!((decided.reason.as_str(), place_of(&decided.replica)), ("PREFIX_MATCH", engine));
    }
    for (tenant, model, seed) in [("a", BYTES, 2), ("b", BYTES, 1), ("default", CHARS, 1)] {
        let decided = probed(&stack, tenant, &chat(model, seed)).await;
        assert_eq!((decided.reason.as_str(), decided.detail.as_str()), ("NO_HINT", "miss"), "{tenant} {model} {seed}");
    }
    for (tenant, model) in [("a", CHARS), ("default", BYTES)] {
        let decided = probed(&stack, tenant, &chat(model, 1)).await;
        assert_eq!(decided.reason, "UNKNOWN_MODEL", "{tenant} has no replica of {model}: {decided:?}");
    }
}
