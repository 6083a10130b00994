//! That the replay notices: a case that holds, and each way of expecting something else of it.

use serde_json::{Value, json};

use crate::cases::format::{Case, Raw};
use crate::cases::replay::Outcome;
use crate::report::Report;

/// Replays a case.
type Replay<'a> = &'a dyn Fn(&Case) -> Outcome;

/// Reports a problem for every wrong expectation that goes unnoticed, and for the right ones if they do not hold.
pub fn run(replay: Replay, report: &mut Report) {
    match mismatches(replay, &right()) {
        Ok(0) => {}
        Ok(found) => report.problem(format!("self-test: the right expectations do not hold, {found} differ")),
        Err(error) => report.problem(format!("self-test: the right expectations cannot be read: {error}")),
    }
    for (place, wrong) in wrong() {
        let mut case = right();
        let Some(expected) = case.pointer_mut(place) else {
            report.problem(format!("self-test: there is no {place}"));
            continue;
        };
        *expected = wrong.clone();
        if mismatches(replay, &case) == Ok(0) {
            report.problem(format!("self-test: {wrong} at {place} goes unnoticed"));
        }
    }
    let mut unknown = right();
    if let Some(expect) = unknown.pointer_mut("/steps/2/expect") {
        *expect = json!({ "reason": "PREFIX_MATCH" });
    }
    if mismatches(replay, &unknown).is_ok() {
        report.problem("self-test: an expectation that is not in the format goes unnoticed".into());
    }
}

/// How many differences a case has.
fn mismatches(replay: Replay, case: &Value) -> Result<usize, String> {
    Ok(replay(&Raw(case.clone()).read()?).mismatches.len())
}

fn right() -> Value {
    let scope = json!({ "tenant_id": "t", "model_id": "m", "hash_scheme": "vllm" });
    let with = |mut step: Value| {
        if let (Some(step), Some(scope)) = (step.as_object_mut(), scope.as_object()) {
            step.extend(scope.clone());
        }
        step
    };
    json!({
        "id": "self-test",
        "config": { "max_entries": 3, "tokenizer": { "kind": "fixed", "tokens": { "start": 0, "n": 16 } } },
        "steps": [
            with(json!({ "op": "ingest", "replica_id": "a", "stats": { "pressure": 0.5, "hit_rate": 0.25 },
                "prefixes": [{ "block_hashes": ["b1", "b2"], "block_token_counts": [64, 64], "tier": 2 }] })),
            with(json!({ "op": "ingest", "replica_id": "b", "prefixes": [{ "prefix_hash": "b1", "token_count": 64 }] })),
            { "op": "lookup",
                "request": with(json!({ "block_hashes": ["b1", "b2"], "block_token_counts": [64, 64] })),
                "expect": { "reason_code": "PREFIX_MATCH", "ranked_replicas": ["a", "b"], "replica_count": 2,
                    "one_of": ["a"], "scores": { "a": 32, "b": 0 }, "matched_tokens": { "a": 128, "b": 64 },
                    "hit_prob": { "a": 1 }, "tiers": { "a": 2, "b": 1 }, "adapter_id": "",
                    "echoed_token_count": 0 } },
            { "op": "lookup", "request": with(json!({ "prompt_text": "hello" })),
                "expect": { "echoed_token_count": 16 } },
            with(json!({ "op": "access_count", "replica_id": "a", "prefix_hash": "b1", "expect": { "count": 0 } })),
            { "op": "counts", "expect": { "total": 2, "prefix_keys": 2, "replica_entries": 3,
                "by_tenant": { "t": 2 }, "by_model": { "m": 2 }, "index_evictions": { "lru|cap": 0 },
                "tenant_evictions": { "t|over_entries": 0 } } },
            with(json!({ "op": "cache_state", "expect": { "total_prefixes": 2,
                "replicas": [{ "replica_id": "a", "pressure": 0.5, "hit_rate": 0.25 }] } })),
        ]
    })
}

fn wrong() -> Vec<(&'static str, Value)> {
    vec![
        ("/steps/2/expect/reason_code", json!("NO_HINT")),
        ("/steps/2/expect/ranked_replicas", json!(["b", "a"])),
        ("/steps/2/expect/ranked_replicas", json!(["a"])),
        ("/steps/2/expect/replica_count", json!(1)),
        ("/steps/2/expect/one_of", json!(["b"])),
        ("/steps/2/expect/scores/a", json!(32.01)),
        ("/steps/2/expect/scores/b", json!(0.001)),
        ("/steps/2/expect/scores", json!({ "c": 0 })),
        ("/steps/2/expect/matched_tokens/a", json!(127)),
        ("/steps/2/expect/matched_tokens", json!({ "c": 0 })),
        ("/steps/2/expect/hit_prob/a", json!(0.999)),
        ("/steps/2/expect/tiers/a", json!(1)),
        ("/steps/2/expect/adapter_id", json!("sql")),
        ("/steps/2/expect/echoed_token_count", json!(16)),
        ("/steps/3/expect/echoed_token_count", json!(0)),
        ("/steps/4/expect/count", json!(-1)),
        ("/steps/5/expect/total", json!(3)),
        ("/steps/5/expect/prefix_keys", json!(3)),
        ("/steps/5/expect/replica_entries", json!(2)),
        ("/steps/5/expect/by_tenant/t", json!(1)),
        ("/steps/5/expect/by_model", json!({ "n": 1 })),
        ("/steps/5/expect/index_evictions", json!({ "lru|cap": 1 })),
        ("/steps/5/expect/tenant_evictions", json!({ "t|over_entries": 1 })),
        ("/steps/6/expect/total_prefixes", json!(1)),
        ("/steps/6/expect/replicas", json!([])),
        ("/steps/6/expect/replicas/0/pressure", json!(0.4)),
    ]
}
