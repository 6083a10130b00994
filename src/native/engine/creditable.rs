//! Which blocks of a stored event stand for their tokens alone.
//!
//! In: a [`BlockStored`]. Out: the [`Run`] of leading blocks that any request with the same tokens, model and adapter
//! would use, and why the rest is not in it. A block whose key depends on more (an image, a salt, prompt embeddings, the
//! tokens after it) or whose tokens are not certain is never in a run; the blocks after it neither, since a prompt reaches
//! them through it only.

use std::collections::BTreeMap;

use super::{BlockStored, EngineKey, ExtraKeys, Place, SkipReason};
use crate::fingerprint::BlockSize;

/// The longest adapter name, in bytes.
pub const MAX_ADAPTER_BYTES: usize = 256;

/// Attention that reads the whole prefix, so that a block is of use to every prompt that starts like it.
const WHOLE_PREFIX_KINDS: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// Names of adapters by the number that the engine gives them.
pub type AdapterNames = BTreeMap<i64, String>;

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
pub fn creditable_run<'a>(event: &'a BlockStored, names: &'a AdapterNames) -> Result<Run<'a>, SkipReason> {
    check_group(&event.place)?;
    check_kind(event)?;
    if event.salted {
        return Err(SkipReason::Salted);
    }
    if event.looks_ahead {
        return Err(SkipReason::Lookahead);
    }
    let adapter_id = adapter_of(event, names)?;
    let tokens = event.token_ids.len().saturating_add(event.further_tokens);
    if tokens == 0 {
        return Err(SkipReason::NoTokens);
    }
    let block_size = BlockSize::try_new(event.block_size).map_err(|_| SkipReason::BlockSize)?;
    let blocks = event.block_hashes.len();
    // More tokens than blocks: some were left out, and which ones is not said.
    if blocks.checked_mul(block_size.tokens()) != Some(tokens) {
        return Err(SkipReason::TokenCount);
    }
    let plain = plain_blocks(event, adapter_id)?.min(event.token_ids.len() / block_size.tokens());
    if plain == 0 {
        return Err(SkipReason::ExtraKeys);
    }
    let keys = event.block_hashes.get(..plain).unwrap_or_default();
    let token_ids = event.token_ids.get(..plain * block_size.tokens()).unwrap_or_default();
    Ok(Run { keys, token_ids, block_size, adapter_id })
}

/// Whether blocks are of the first group, the only one of most models.
///
/// # Errors
/// When they are not.
pub fn check_group(place: &Place) -> Result<(), SkipReason> {
    if place.group_idx.is_some_and(|group| group > 0) { Err(SkipReason::Group) } else { Ok(()) }
}

/// Whether every prompt that starts like them has use for the blocks.
///
/// # Errors
/// When it is said that they have another kind of attention.
pub fn check_kind(event: &BlockStored) -> Result<(), SkipReason> {
    match &event.kv_cache_spec_kind {
        Some(kind) if !WHOLE_PREFIX_KINDS.contains(&kind.as_str()) => Err(SkipReason::AttentionKind),
        _ => Ok(()),
    }
}

fn adapter_of<'a>(event: &'a BlockStored, names: &'a AdapterNames) -> Result<&'a str, SkipReason> {
    let numbered = || event.lora_id.map(|number| names.get(&number));
    match event.lora_name.as_ref().map(Some).or_else(numbered) {
        None => Ok(""),
        Some(Some(name)) if !name.is_empty() && name.len() <= MAX_ADAPTER_BYTES => Ok(name),
        Some(_) => Err(SkipReason::UnnamedAdapter),
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
        creditable_run(&event, &AdapterNames::new()).err()
    }

    #[test]
    fn plain_blocks_are_credited_whole() {
        let (event, names) = (event(), AdapterNames::new());
        let run = creditable_run(&event, &names).unwrap();
        assert_eq!((run.keys.len(), run.token_ids.len(), run.adapter_id), (3, 12, ""));
    }

    #[test]
    fn blocks_that_are_more_than_their_tokens_are_not() {
        assert_eq!(refused(|event| event.place.group_idx = Some(1)), Some(SkipReason::Group));
        assert_eq!(refused(|event| event.place.group_idx = Some(0)), None);
        let mamba = refused(|event| event.kv_cache_spec_kind = Some("mamba".into()));
        assert_eq!(mamba, Some(SkipReason::AttentionKind));
        assert_eq!(refused(|event| event.kv_cache_spec_kind = Some("full_attention".into())), None);
        assert_eq!(refused(|event| event.salted = true), Some(SkipReason::Salted));
        assert_eq!(refused(|event| event.looks_ahead = true), Some(SkipReason::Lookahead));
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
        let (mut event, names) = (event(), AdapterNames::new());
        event.extra_keys = vec![ExtraKeys::None, ExtraKeys::Other, ExtraKeys::None];
        assert_eq!(creditable_run(&event, &names).unwrap().keys, [EngineKey::Int(1)]);
    }

    #[test]
    fn an_adapter_is_known_by_its_name() {
        let (mut event, names) = (event(), AdapterNames::new());
        event.lora_id = Some(3);
        event.lora_name = Some("sql".into());
        event.extra_keys = vec![ExtraKeys::Text("sql".into()); 3];
        assert_eq!(creditable_run(&event, &names).unwrap().adapter_id, "sql");
        event.extra_keys = vec![ExtraKeys::Text("a salt".into()); 3];
        assert_eq!(creditable_run(&event, &names), Err(SkipReason::ExtraKeys));
    }

    #[test]
    fn an_adapter_without_a_name_is_known_by_its_number() {
        let (mut event, names) = (event(), AdapterNames::from([(3, "sql".into()), (4, String::new())]));
        event.lora_id = Some(3);
        assert_eq!(creditable_run(&event, &names).unwrap().adapter_id, "sql");
        event.extra_keys = vec![ExtraKeys::Text("sql".into()); 3];
        assert_eq!(creditable_run(&event, &names).unwrap().adapter_id, "sql");
        event.lora_name = Some("other".into());
        assert_eq!(creditable_run(&event, &names), Err(SkipReason::ExtraKeys), "the name that was sent counts");
        for number in [4, 5] {
            let event = BlockStored { lora_id: Some(number), lora_name: None, ..event.clone() };
            assert_eq!(creditable_run(&event, &names), Err(SkipReason::UnnamedAdapter));
        }
    }

    #[test]
    fn a_lone_text_beside_no_adapter_is_no_adapter() {
        // An image's identifier or a salt: which one is not said.
        let text = |event: &mut BlockStored| event.extra_keys = vec![ExtraKeys::Text("x".into()); 3];
        assert_eq!(refused(text), Some(SkipReason::ExtraKeys));
        assert_eq!(
            refused(|event| event.extra_keys = vec![ExtraKeys::Text(String::new()); 3]),
            Some(SkipReason::ExtraKeys)
        );
    }

    #[test]
    fn a_run_ends_before_the_first_token_that_is_no_id() {
        let (mut event, names) = (event(), AdapterNames::new());
        event.token_ids.truncate(7);
        event.further_tokens = 5;
        assert_eq!(creditable_run(&event, &names).unwrap().keys, [EngineKey::Int(1)]);
        event.token_ids.truncate(3);
        event.further_tokens = 9;
        assert_eq!(creditable_run(&event, &names), Err(SkipReason::ExtraKeys));
        event.further_tokens = 8;
        assert_eq!(creditable_run(&event, &names), Err(SkipReason::TokenCount));
    }
}
