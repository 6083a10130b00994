//! Which blocks of a stored event stand for their tokens alone.
//!
//! In: a [`BlockStored`]. Out: the [`Run`] of leading blocks that any request with the same tokens, model and adapter
//! would use, and why the rest is not in it. A block whose key depends on more (an image, a salt, prompt embeddings),
//! that is not in the engine's own KV cache, or whose tokens are not certain is never in a run; the blocks after it
//! neither, since a prompt reaches them through it only.

use super::{BlockStored, EngineKey, ExtraKeys, Place, SkipReason};
use crate::fingerprint::BlockSize;

/// The longest adapter name, in bytes.
pub const MAX_ADAPTER_BYTES: usize = 256;

/// Attention that reads the whole prefix, so that a block is of use to every prompt that starts like it.
const WHOLE_PREFIX_KINDS: [&str; 2] = ["full_attention", "mla_attention"];

/// Blocks that can be credited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run<'a> {
    /// Their keys, in prompt order.
    pub keys: &'a [EngineKey],
    /// Their tokens: `block_size` for each key.
    pub token_ids: &'a [u32],
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// The adapter; empty for the base model.
    pub adapter_id: &'a str,
}

/// The creditable run at the start of `event`. Blocks beyond the run depend on [`SkipReason::ExtraKeys`].
///
/// # Errors
/// When no block of the event can be credited.
pub fn creditable_run(event: &BlockStored) -> Result<Run<'_>, SkipReason> {
    check_place(&event.place)?;
    if event.kv_cache_spec_kind.as_deref().is_some_and(|kind| !WHOLE_PREFIX_KINDS.contains(&kind)) {
        return Err(SkipReason::AttentionKind);
    }
    if event.salted || event.looks_ahead {
        return Err(SkipReason::ExtraKeys);
    }
    let adapter_id = adapter_of(event)?;
    if event.token_ids.is_empty() {
        return Err(SkipReason::NoTokens);
    }
    let block_size = BlockSize::try_new(event.block_size).map_err(|_| SkipReason::BlockSize)?;
    let blocks = event.block_hashes.len();
    if blocks.checked_mul(block_size.tokens()) != Some(event.token_ids.len()) {
        return Err(SkipReason::TokenCount);
    }
    let plain = plain_blocks(event, adapter_id)?;
    let keys = event.block_hashes.get(..plain).unwrap_or_default();
    let token_ids = event.token_ids.get(..plain * block_size.tokens()).unwrap_or_default();
    Ok(Run { keys, token_ids, block_size, adapter_id })
}

/// Whether blocks there count: in the engine's own cache, in its first group.
///
/// # Errors
/// When they do not.
pub fn check_place(place: &Place) -> Result<(), SkipReason> {
    if place.medium.as_deref().is_some_and(|medium| !medium.eq_ignore_ascii_case("GPU")) {
        return Err(SkipReason::Medium);
    }
    if place.remote {
        return Err(SkipReason::Remote);
    }
    if place.group_idx.is_some_and(|group| group > 0) {
        return Err(SkipReason::Group);
    }
    Ok(())
}

fn adapter_of(event: &BlockStored) -> Result<&str, SkipReason> {
    match (&event.lora_name, event.lora_id) {
        (Some(name), _) if name.is_empty() || name.len() > MAX_ADAPTER_BYTES => Err(SkipReason::UnnamedAdapter),
        (Some(name), _) => Ok(name),
        (None, Some(_)) => Err(SkipReason::UnnamedAdapter),
        (None, None) => Ok(""),
    }
}

/// Leading blocks whose keys depend on their tokens and the adapter only.
fn plain_blocks(event: &BlockStored, adapter_id: &str) -> Result<usize, SkipReason> {
    if event.extra_keys.is_empty() {
        return Ok(event.block_hashes.len());
    }
    if event.extra_keys.len() != event.block_hashes.len() {
        return Err(SkipReason::ExtraKeys);
    }
    let plain = event.extra_keys.iter().take_while(|keys| match keys {
        ExtraKeys::None => true,
        ExtraKeys::Text(text) => !adapter_id.is_empty() && text == adapter_id,
        ExtraKeys::Other => false,
    });
    match plain.count() {
        0 => Err(SkipReason::ExtraKeys),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> BlockStored {
        BlockStored {
            block_hashes: vec![EngineKey::Int(1), EngineKey::Int(2), EngineKey::Int(3)],
            token_ids: (0..12).collect(),
            block_size: 4,
            ..BlockStored::default()
        }
    }

    fn refused(change: impl FnOnce(&mut BlockStored)) -> Option<SkipReason> {
        let mut event = event();
        change(&mut event);
        creditable_run(&event).err()
    }

    #[test]
    fn plain_blocks_are_credited_whole() {
        let event = event();
        let run = creditable_run(&event).unwrap();
        assert_eq!((run.keys.len(), run.token_ids.len(), run.adapter_id), (3, 12, ""));
    }

    #[test]
    fn blocks_that_are_more_than_their_tokens_are_not() {
        assert_eq!(refused(|event| event.place.medium = Some("CPU".into())), Some(SkipReason::Medium));
        assert_eq!(refused(|event| event.place.medium = Some("GPU".into())), None);
        assert_eq!(refused(|event| event.place.group_idx = Some(1)), Some(SkipReason::Group));
        assert_eq!(refused(|event| event.place.group_idx = Some(0)), None);
        assert_eq!(refused(|event| event.place.remote = true), Some(SkipReason::Remote));
        let mamba = refused(|event| event.kv_cache_spec_kind = Some("mamba".into()));
        assert_eq!(mamba, Some(SkipReason::AttentionKind));
        assert_eq!(refused(|event| event.kv_cache_spec_kind = Some("full_attention".into())), None);
        assert_eq!(refused(|event| event.salted = true), Some(SkipReason::ExtraKeys));
        assert_eq!(refused(|event| event.looks_ahead = true), Some(SkipReason::ExtraKeys));
        assert_eq!(refused(|event| event.lora_id = Some(1)), Some(SkipReason::UnnamedAdapter));
        assert_eq!(refused(|event| event.extra_keys = vec![ExtraKeys::None]), Some(SkipReason::ExtraKeys));
    }

    #[test]
    fn tokens_must_cover_the_blocks_exactly() {
        assert_eq!(refused(|event| event.token_ids.clear()), Some(SkipReason::NoTokens));
        assert_eq!(refused(|event| event.token_ids.push(1)), Some(SkipReason::TokenCount));
        assert_eq!(refused(|event| event.block_hashes.truncate(2)), Some(SkipReason::TokenCount));
        assert_eq!(refused(|event| event.block_hashes.clear()), Some(SkipReason::TokenCount));
        assert_eq!(refused(|event| event.block_size = 0), Some(SkipReason::BlockSize));
    }

    #[test]
    fn a_run_ends_before_the_first_block_with_further_keys() {
        let mut event = event();
        event.extra_keys = vec![ExtraKeys::None, ExtraKeys::Other, ExtraKeys::None];
        assert_eq!(creditable_run(&event).unwrap().keys, [EngineKey::Int(1)]);
    }

    #[test]
    fn an_adapter_is_known_by_its_name() {
        let mut event = event();
        event.lora_id = Some(3);
        event.lora_name = Some("sql".into());
        event.extra_keys = vec![ExtraKeys::Text("sql".into()); 3];
        assert_eq!(creditable_run(&event).unwrap().adapter_id, "sql");
        event.extra_keys = vec![ExtraKeys::Text("a salt".into()); 3];
        assert_eq!(creditable_run(&event), Err(SkipReason::ExtraKeys));
    }
}
