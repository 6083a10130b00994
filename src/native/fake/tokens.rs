//! Text to token ids and back without a model, and what the fake engine "generates".
//!
//! One token is one byte of UTF-8: the token id is the byte's value, 0 to 255, with no special tokens. Prompts given as
//! token ids may use any u32. Generated tokens are picked by a hash of the whole prompt and the token's position, without
//! a model among lower-case letters and spaces: the same prompt gets the same text from every engine, and a prompt
//! extended by the generated text has the token ids that the engine computed.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed};

/// The tokens that may be generated without a model.
pub const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz      ";

/// What generation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptDigest(u64);

/// The token ids of a text.
pub fn tokenize(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The text of generated tokens; ids that are not ASCII become U+FFFD.
pub fn detokenize(token_ids: &[u32]) -> String {
    token_ids
        .iter()
        .map(|id| char::from_u32(*id).filter(char::is_ascii).unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

// === impl PromptDigest ===

impl PromptDigest {
    /// The digest of a prompt.
    pub fn of(token_ids: &[u32]) -> PromptDigest {
        let mut hasher = Xxh3Default::new();
        for id in token_ids {
            hasher.update(&id.to_le_bytes());
        }
        PromptDigest(hasher.digest())
    }

    /// The token generated at `position`, from 0, among those that may be.
    pub fn generate(self, position: usize, among: &[u32]) -> u32 {
        let hash = xxh3_64_with_seed(&position.to_le_bytes(), self.0);
        let place = hash.checked_rem(among.len() as u64).unwrap_or_default();
        among.get(place as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(prompt: &[u32], count: usize) -> Vec<u32> {
        let letters: Vec<u32> = ALPHABET.iter().copied().map(u32::from).collect();
        (0..count).map(|position| PromptDigest::of(prompt).generate(position, &letters)).collect()
    }

    #[test]
    fn generated_text_and_token_ids_agree() {
        let token_ids = generated(&tokenize("Once upon a time"), 64);
        assert_eq!(tokenize(&detokenize(&token_ids)), token_ids);
    }

    #[test]
    fn text_is_its_utf_8_bytes() {
        assert_eq!(tokenize("aé"), [97, 0xC3, 0xA9]);
    }

    #[test]
    fn generation_depends_on_the_prompt_alone() {
        assert_eq!(generated(&[1, 2], 32), generated(&[1, 2], 32));
        assert_ne!(generated(&[1, 2], 32), generated(&[1, 3], 32));
    }
}
