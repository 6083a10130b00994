//! That the replay through the log notices a leader that keeps no limits, and hits that do not reach it.

use serde_json::{Value, json};

use crate::cases::format::Raw;
use crate::log::{Defect, replayed};
use crate::report::Report;

/// Reports a problem for every defect that goes unnoticed, and for a case that does not hold without one.
pub fn run(report: &mut Report) {
    for (defect, case) in
        [(Defect::LimitsIgnored, capped()), (Defect::LimitsIgnored, limited()), (Defect::CreditsLost, hit())]
    {
        let found = |defect| Raw(case.clone()).read().map(|case| replayed(&case, defect).0.mismatches);
        match found(Defect::None) {
            Ok(mismatches) if mismatches.is_empty() => {}
            other => report.problem(format!("self-test of {defect:?}: without it there is {other:?}")),
        }
        if !found(defect).is_ok_and(|mismatches| !mismatches.is_empty()) {
            report.problem(format!("self-test: {defect:?} goes unnoticed"));
        }
    }
}

/// The first of two blocks goes.
fn capped() -> Value {
    let counts = json!({ "op": "counts", "expect": { "total": 1 } });
    case(json!({ "max_entries": 1 }), vec![report("b1"), wait(), report("b2"), counts])
}

fn limited() -> Value {
    let counts = json!({ "op": "counts", "expect": { "total": 1 } });
    case(
        json!({ "tenants": [{ "tenantID": "t", "maxIndexEntries": 1 }] }),
        vec![report("b1"), wait(), report("b2"), counts],
    )
}

/// The second of two blocks goes, since the first was hit.
fn hit() -> Value {
    let policy = json!({ "namespace": "t", "eviction": "LFU" });
    let lookup = json!({ "op": "lookup", "request": { "tenant_id": "t", "model_id": "m", "hash_scheme": "vllm",
        "prefix_hash": "b1" }, "expect": { "reason_code": "PREFIX_MATCH" } });
    let gone = json!({ "op": "access_count", "replica_id": "a", "tenant_id": "t", "model_id": "m", "hash_scheme": "vllm",
        "prefix_hash": "b2", "expect": { "count": -1 } });
    case(json!({ "max_entries": 1, "policies": [policy] }), vec![report("b1"), lookup, wait(), report("b2"), gone])
}

fn case(config: Value, steps: Vec<Value>) -> Value {
    json!({ "id": "self-test", "config": config, "steps": steps })
}

fn report(key: &str) -> Value {
    json!({ "op": "ingest", "replica_id": "a", "tenant_id": "t", "model_id": "m", "hash_scheme": "vllm",
        "prefixes": [{ "prefix_hash": key, "token_count": 64 }] })
}

fn wait() -> Value {
    json!({ "op": "advance", "ms": 1000 })
}
