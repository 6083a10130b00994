//! What the body of each API comes to, as far as the request shows it.

use super::*;
use crate::fingerprint::{BlockSize, prefix_hashes};

/// Reason code, detail and matched tokens of a request with this body on this path.
fn sent(vm: &mut Vm, path: &str, body: &str) -> (String, Option<String>, Option<String>) {
    let request = vm.posted(body);
    request.set_request_header(":path", path);
    let mut exchange = vm.hold(&request);
    assert_eq!(exchange.on_request_body(&request, vm.router(), body.len(), true), Next::Continue);
    (request.header(names::REASON_CODE).unwrap(), request.detail(), request.header(names::MATCHED_TOKENS))
}

/// A VM that knows a replica with the blocks of the token ids 1 to 128, and another without any of them.
fn vm(more: &str) -> Vm {
    let ids: Vec<u32> = (1..=128).collect();
    let hashes = prefix_hashes(&ids, BlockSize::DEFAULT, None).zip(1..);
    let blocks = hashes.map(|(hash, number)| StoredBlock { key: BlockKey::Hash64(hash.0), token_count: number * 16 });
    let mut facts = holding(&[("a", "10.0.0.1:80", 1), ("b", "10.0.0.2:80", 1)]);
    facts.push(Observation::Stored(Stored {
        replica: ReplicaSlot(1),
        scope: ScopeSlot(1),
        last_seen_ms: START_NS / 1_000_000,
        blocks: blocks.collect(),
        ..Stored::default()
    }));
    Vm::told(more, facts)
}

fn ids(count: u32) -> String {
    let ids: Vec<String> = (1..=count).map(|id| id.to_string()).collect();
    format!("[{}]", ids.join(","))
}

fn matched(detail: Option<&str>, tokens: &str) -> (String, Option<String>, Option<String>) {
    ("PREFIX_MATCH".to_owned(), detail.map(str::to_owned), Some(tokens.to_owned()))
}

#[test]
fn token_ids_match_on_every_path_that_has_them() {
    let mut vm = vm("");
    let all = ids(128);
    for (path, body) in [
        ("/v1/completions", format!(r#"{{"model":"m","prompt":{all}}}"#)),
        ("/v1/completions?x=1", format!(r#"{{"model":"m","prompt":[{all}]}}"#)),
        ("/generate", format!(r#"{{"model":"m","input_ids":{all}}}"#)),
        ("/inference/v1/generate", format!(r#"{{"model":"m","token_ids":{all},"sampling_params":{{}}}}"#)),
        ("/v1/chat/completions", format!(r#"{{"model":"m","messages":[],"input_ids":{all}}}"#)),
        ("/v1/responses", format!(r#"{{"model":"m","input":"hi","inference_cache":{{"token_ids":{all}}}}}"#)),
    ] {
        assert_eq!(sent(&mut vm, path, &body), matched(None, "128"), "{path}");
    }
}

#[test]
fn a_match_of_the_first_of_several_prompts_says_so() {
    let mut vm = vm("");
    let body = format!(r#"{{"model":"m","prompt":[{},[1,2,3]]}}"#, ids(128));
    assert_eq!(sent(&mut vm, "/v1/completions", &body), matched(Some("first_of_several"), "128"));
    let body = format!(r#"{{"model":"m","prompt":[[7,8,9],{}]}}"#, ids(128));
    assert_eq!(sent(&mut vm, "/v1/completions", &body).1.as_deref(), Some("short_prompt"));
}

#[test]
fn a_prompt_is_matched_on_its_first_tokens() {
    let mut vm = vm(r#", "limits": {"max_match_tokens": 100}"#);
    let body = format!(r#"{{"model":"m","prompt":{}}}"#, ids(128));
    assert_eq!(sent(&mut vm, "/v1/completions", &body), matched(None, "96"));
}

#[test]
fn a_model_is_counted_under_its_id_by_whatever_name_it_goes() {
    let mut vm = vm(r#", "models": [{"model_id": "m", "aliases": ["gpt"]}]"#);
    let body = format!(r#"{{"model":"gpt","prompt":{}}}"#, ids(128));
    assert_eq!(sent(&mut vm, "/v1/completions", &body), matched(None, "128"));
    assert_eq!(sent(&mut vm, "/v1/completions", r#"{"model":"gpt"}"#).1.as_deref(), Some("no_prompt"));
    let counts = vm.proxy.0.counts.borrow();
    let calls: Vec<&String> = counts.keys().filter(|name| name.contains("route_calls")).collect();
    assert!(calls.len() == 2 && calls.iter().all(|name| name.contains("model.=m.;")), "{calls:?}");
}

#[test]
fn text_without_a_tokenizer_is_told_on_every_path() {
    let mut vm = vm("");
    for (path, body) in [
        ("/v1/completions", r#"{"model":"m","prompt":"hi"}"#),
        ("/generate", r#"{"model":"m","text":"hi"}"#),
        ("/v1/chat/completions", r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#),
        ("/v1/responses", r#"{"model":"m","input":"hi"}"#),
        ("/v1/messages", r#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}"#),
    ] {
        assert_eq!(sent(&mut vm, path, body).1.as_deref(), Some("no_tokenizer"), "{path}");
    }
}
