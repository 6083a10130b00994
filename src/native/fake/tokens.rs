//! Text to token ids and back, and what the fake engine "generates".
//!
//! One token is one byte of UTF-8: the token id is the byte's value, 0 to 255, with no special tokens. Prompts given as
//! token ids may use any u32. Generated tokens are lower-case letters and spaces, picked by a hash of the whole prompt
//! and the token's position: the same prompt gets the same text from every engine, and a prompt extended by the
//! generated text has the token ids that the engine computed.

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed};

/// The tokens that may be generated.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz      ";

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

    /// The token generated at `position`, from 0.
    pub fn generate(self, position: usize) -> u32 {
        let hash = xxh3_64_with_seed(&position.to_le_bytes(), self.0);
        let letter = ALPHABET.iter().cycle().nth((hash % 32) as usize);
        letter.copied().map_or(0, u32::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_text_and_token_ids_agree() {
        let digest = PromptDigest::of(&tokenize("Once upon a time"));
        let token_ids: Vec<u32> = (0..64).map(|position| digest.generate(position)).collect();
        assert_eq!(tokenize(&detokenize(&token_ids)), token_ids);
    }

    #[test]
    fn text_is_its_utf_8_bytes() {
        assert_eq!(tokenize("aé"), [97, 0xC3, 0xA9]);
    }

    #[test]
    fn generation_depends_on_the_prompt_alone() {
        let text = |prompt: &[u32]| (0..32).map(|n| PromptDigest::of(prompt).generate(n)).collect::<Vec<_>>();
        assert_eq!(text(&[1, 2]), text(&[1, 2]));
        assert_ne!(text(&[1, 2]), text(&[1, 3]));
    }
}
