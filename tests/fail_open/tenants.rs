//! A tenant that floods the index takes nothing from another, and learns nothing of it.

use serde_json::json;
use warmroute::native::load::stack::eventually;
use warmroute::wire::v1::fact::Kind as Fact;

use crate::echo::Echoes;
use crate::pool::*;
use crate::scripted_hub::{complete, replica_up, scope, stored};
use crate::world::{COMES_BACK, ask_for, has_no_trap};

/// Blocks that the index takes in all, of which the tenant that floods may have a quarter.
const CAP: usize = 4_000;
const QUOTA: usize = CAP / 4;
/// Prompts of 20 blocks: what the quiet tenant holds, and what the other one does.
const QUIET: u32 = 25;
const FLOOD: u32 = 1_000;
const PROMPT_TOKENS: usize = 320;

fn prompt(number: u32) -> Vec<u32> {
    tokens(number, PROMPT_TOKENS)
}

/// The quiet tenant's blocks first, so that they are the oldest of all.
fn quiet_then_flood(addresses: &[String]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for (number, tenant) in [(1, "quiet"), (2, "flood")] {
        facts.push(scope(number, tenant));
        facts.push(replica_up(10 * number, &format!("{tenant}-0"), &addresses[number as usize - 1], tenant));
        facts.push(replica_up(10 * number + 1, &format!("{tenant}-1"), &addresses[2], tenant));
    }
    facts.extend((0..QUIET).map(|number| stored(10, 1, &prompt(number))));
    facts.extend((0..FLOOD).map(|number| stored(20, 2, &prompt(QUIET + number))));
    facts.extend([10, 11, 20, 21].map(complete));
    facts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_stays_within_its_quota_and_apart() {
    let echoes = Echoes::start(&[0, 1, 2], quiet_then_flood, |options| {
        options.plugin["limits"]["max_index_entries"] = CAP.into();
        options.plugin["quotas"] = json!({ "flood": QUOTA });
        // A stale index would show nothing, whatever it holds.
        options.plugin["stale_after_ms"] = 60_000.into();
    })
    .await;
    let stack = &echoes.stack;
    let quiet_pairs = QUIET as usize * PROMPT_TOKENS / 16;
    let mut pairs = 0.0;
    let settled = eventually(COMES_BACK, async || {
        let metrics = stack.metrics().await.unwrap();
        pairs = metrics.sum("warmroute_index_pairs", &[]);
        let evicted = metrics.sum("warmroute_evictions_total", &[("reason", "quota")]);
        evicted > 0.0 && pairs > 0.0 && pairs <= (quiet_pairs + QUOTA) as f64
    });
    assert!(settled.await, "{pairs} pairs, {quiet_pairs} of them the quiet tenant's\n{}", stack.envoy.log_tail());
    let asked = |tenant: &'static str, number: u32| async move {
        let mut last = None;
        // The flood may not have reached every worker yet.
        let caught_up = eventually(COMES_BACK, async || {
            last = Some(decided(&send(stack, ask_for(tenant, &prompt(number)), "/asked", "").await));
            last.as_ref().is_some_and(|decided| decided.detail != "catching_up")
        });
        assert!(caught_up.await, "{last:?}");
        last.unwrap()
    };
    // Everything of the quiet tenant is there, and nobody else's.
    for number in 0..QUIET {
        let own = asked("quiet", number).await;
        assert_eq!((own.replica.as_str(), own.matched_tokens), ("quiet-0", PROMPT_TOKENS), "{number}: {own:?}");
        let others = asked("flood", number).await;
        assert_eq!((others.detail.as_str(), others.matched_tokens), ("miss", 0), "{number}: {others:?}");
    }
    let mut still_held = 0;
    for number in 0..FLOOD {
        let others = asked("quiet", QUIET + number).await;
        assert_eq!((others.detail.as_str(), others.matched_tokens), ("miss", 0), "{number}: {others:?}");
        still_held += asked("flood", QUIET + number).await.matched_tokens / 16;
    }
    assert!(still_held > 0 && still_held <= QUOTA, "{still_held} blocks of the flood are held");
    has_no_trap(stack);
}
