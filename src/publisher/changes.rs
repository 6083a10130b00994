//! Changes on their way to whoever carries them on.

use crate::observation::{BlockKey, Observation};

/// The most blocks in one observation.
const MAX_BLOCKS: usize = 2_048;
/// The most bytes of keys in one observation, so that it fits into a message.
const MAX_BLOCK_BYTES: usize = 16 * 1024;

/// Appends `observation`; blocks of one report become one observation, as far as its keys have one width.
pub fn push(changes: &mut Vec<Observation>, observation: Observation) {
    let Some(last) = changes.last_mut() else { return changes.push(observation) };
    match (last, observation) {
        (
            Observation::Stored { replica, scope, tier, last_seen_ms, blocks },
            Observation::Stored {
                replica: next_replica,
                scope: next_scope,
                tier: next_tier,
                last_seen_ms: next_seen_ms,
                blocks: next,
            },
        ) if (*replica, *scope, *tier, *last_seen_ms) == (next_replica, next_scope, next_tier, next_seen_ms)
            && fit(blocks.iter().map(|block| &block.key), next.iter().map(|block| &block.key)) =>
        {
            blocks.extend(next);
        }
        (
            Observation::Removed { replica, scope, keys },
            Observation::Removed { replica: next_replica, scope: next_scope, keys: next },
        ) if (*replica, *scope) == (next_replica, next_scope) && fit(keys.iter(), next.iter()) => keys.extend(next),
        (_, observation) => changes.push(observation),
    }
}

/// Whether `more` keys can stand with `keys` in one observation; all of each have one width.
fn fit<'a>(
    mut keys: impl ExactSizeIterator<Item = &'a BlockKey>,
    mut more: impl ExactSizeIterator<Item = &'a BlockKey>,
) -> bool {
    let count = keys.len().saturating_add(more.len());
    match (keys.next(), more.next()) {
        (Some(key), Some(next)) => {
            let width = key.width();
            width == next.width() && count <= MAX_BLOCKS && count.saturating_mul(width) <= MAX_BLOCK_BYTES
        }
        _ => false,
    }
}
