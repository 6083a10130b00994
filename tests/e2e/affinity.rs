//! Affinity routing, on and off: where nothing better is known, equal prompts meet on one replica, or are spread.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::pool::*;

/// A stack whose engines all hold something, each a prompt of its own, with this `affinityRouting`.
async fn serving(affinity: &str) -> warmroute::native::load::stack::Stack {
    let stack = stack(|options| options.plugin["policy"] = json!({ "affinityRouting": affinity })).await;
    for engine in 0..3 {
        warm(&stack, engine, &tokens(engine as u32, 160)).await;
    }
    for engine in 0..3 {
        assert_eq!(place_of(&credited(&stack, &tokens(engine as u32, 160), 160).await), engine);
    }
    stack
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_on_a_prompt_goes_where_it_went_before_and_prompts_are_spread() {
    let stack = serving("Enabled").await;
    let mut engines = BTreeMap::new();
    for seed in 10..34 {
        for _ in 0..2 {
            let answer = send(&stack, probe_head(&tokens(seed, 160)), "/probe", "").await;
            let decided = decided(&answer);
            assert_eq!((decided.reason.as_str(), decided.detail.as_str()), ("AFFINITY_HINT", "miss"));
            assert_eq!((place_of(&decided.replica), decided.matched_tokens), (engine_of(&answer), 0), "followed");
            let first = *engines.entry(seed).or_insert(engine_of(&answer));
            assert_eq!(engine_of(&answer), first, "prompt {seed} meets itself");
        }
    }
    let used: BTreeSet<usize> = engines.values().copied().collect();
    assert_eq!(used.len(), 3, "{engines:?}");
    // The first turn goes by its hash; the next one finds its prefix there.
    let mut prompt = tokens(50, 160);
    let first = complete(&stack, &prompt, 1).await;
    assert_eq!(first.header("x-inferencecache-reason-code"), "AFFINITY_HINT");
    assert_eq!(first.header("x-inferencecache-replica-id"), first.header("x-engine-id"));
    prompt.extend(tokens(51, 64));
    assert_eq!(credited(&stack, &prompt, 160).await, first.header("x-engine-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_there_is_no_hint_and_a_prompt_is_spread() {
    let stack = serving("Disabled").await;
    let mut engines = BTreeSet::new();
    for _ in 0..6 {
        let answer = send(&stack, probe_head(&tokens(10, 160)), "/probe", "").await;
        let decided = decided(&answer);
        assert_eq!((decided.reason.as_str(), decided.detail.as_str()), ("NO_HINT", "miss"));
        assert_eq!(decided.replica, "");
        engines.insert(engine_of(&answer));
    }
    assert_eq!(engines.len(), 3, "{engines:?}");
}
