//! Changes on their way to whoever carries them on.

use crate::observation::{BlockKey, Observation, Stored};

/// The most blocks in one observation.
const MAX_BLOCKS: usize = 2_048;
/// The most bytes of keys in one observation, so that it fits into a message.
const MAX_BLOCK_BYTES: usize = 16 * 1024;

/// Appends `observation`; blocks of one report become one observation, as far as their keys have one width.
pub fn push(changes: &mut Vec<Observation>, observation: Observation) {
    if observation.is_uniform() {
        return push_uniform(changes, observation);
    }
    observation.into_uniform().into_iter().for_each(|piece| push_uniform(changes, piece));
}

fn push_uniform(changes: &mut Vec<Observation>, observation: Observation) {
    let Some(last) = changes.last_mut() else { return changes.push(observation) };
    match (last, observation) {
        (Observation::Stored(last), Observation::Stored(next)) => match goes_on(last, &next) {
            true => last.blocks.extend(next.blocks),
            false => changes.push(Observation::Stored(next)),
        },
        (
            Observation::Removed { replica, scope, keys },
            Observation::Removed { replica: next_replica, scope: next_scope, keys: next },
        ) if (*replica, *scope) == (next_replica, next_scope) && fit(keys.iter(), next.iter()) => keys.extend(next),
        (_, observation) => changes.push(observation),
    }
}

/// Whether `next` says of further blocks what `last` says: of those that come after them, where that is known. Blocks of
/// which nothing is known can stand together in any order, since it claims nothing of keys that are not chained; one that
/// is chained and has no parent starts a prompt.
fn goes_on(last: &Stored, next: &Stored) -> bool {
    let terms = |stored: &Stored| {
        let Stored { replica, scope, tier, last_seen_ms, chained, access_count, .. } = *stored;
        (replica, scope, tier, last_seen_ms, chained, access_count)
    };
    let end = last.blocks.last().map(|block| &block.key);
    let follows = match &next.parent {
        Some(parent) => end == Some(parent),
        None => !next.chained && last.parent.is_none(),
    };
    terms(last) == terms(next)
        && follows
        && fit(last.blocks.iter().map(|block| &block.key), next.blocks.iter().map(|block| &block.key))
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
