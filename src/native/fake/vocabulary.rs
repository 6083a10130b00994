//! What turns text into token ids and back: bytes, or a model's tokenizer and chat template.
//!
//! In: nothing, or a model's folder (see [`crate::native::models`]). With bytes a token is
//! one byte of UTF-8 (see [`tokens`]) and there are no conversations. With a model token ids are those that its engine
//! makes, by the same core as the filter's; what is generated are words of its vocabulary that are tokens of their own, so
//! that a conversation that goes on with them has the ids that were generated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::pieces::pieces;
use super::tokens;
use crate::model::{LoadedModel, TextLimits};
use crate::native::models::{ModelFiles, ModelOptions, verified};
use crate::request::{TextPrompt, TokenizeError};
use crate::template::LocalTime;
use crate::tokenize::Workspace;

/// Words that may be generated.
const MAX_WORDS: usize = 256;
/// An engine takes whatever fits into its cache.
const UNLIMITED: TextLimits =
    TextLimits { max_prompt_bytes: usize::MAX, max_tokens: usize::MAX, max_symbols: usize::MAX };

/// How an engine reads and writes text.
pub struct Vocabulary {
    model: Option<Model>,
    generated: Arc<[u32]>,
}

struct Model {
    loaded: LoadedModel,
    workspace: Mutex<Workspace>,
    pieces: BTreeMap<u32, Vec<u8>>,
}

/// A folder that holds no model.
#[derive(Debug)]
pub struct InvalidModelDir {
    /// The folder.
    pub folder: PathBuf,
    /// The file, and what is wrong with it.
    pub problem: String,
}

// === impl Vocabulary ===

impl Vocabulary {
    /// One token a byte.
    pub fn bytes() -> Vocabulary {
        Vocabulary { model: None, generated: tokens::ALPHABET.iter().copied().map(u32::from).collect() }
    }

    /// The model in a folder.
    ///
    /// # Errors
    /// When a file is missing or cannot be used.
    pub fn load(folder: &Path) -> Result<Vocabulary, InvalidModelDir> {
        let invalid = |problem| InvalidModelDir { folder: folder.to_owned(), problem };
        let model = Model::load(folder).map_err(invalid)?;
        let generated = model.words();
        if generated.is_empty() {
            return Err(invalid("tokenizer.json has no words that could be generated".to_owned()));
        }
        Ok(Vocabulary { model: Some(model), generated })
    }

    /// Whether it is a model's, and so knows conversations.
    pub fn is_a_models(&self) -> bool {
        self.model.is_some()
    }

    /// The token ids of a prompt.
    ///
    /// # Errors
    /// When there are none, in words.
    pub fn tokenize(&self, prompt: &TextPrompt) -> Result<Vec<u32>, String> {
        match (&self.model, prompt) {
            (Some(model), prompt) => model.tokenize(prompt).map_err(|error| error.detail().as_str().to_owned()),
            (None, TextPrompt::Plain { text, .. } | TextPrompt::User(text)) => Ok(tokens::tokenize(text)),
            (None, TextPrompt::Chat { .. }) => Err("the model has no chat template".to_owned()),
        }
    }

    /// The text of token ids; what is no text becomes U+FFFD.
    pub fn detokenize(&self, token_ids: &[u32]) -> String {
        let Some(model) = &self.model else { return tokens::detokenize(token_ids) };
        let unknown = || "\u{fffd}".as_bytes();
        let bytes: Vec<u8> =
            token_ids.iter().flat_map(|id| model.pieces.get(id).map_or_else(unknown, Vec::as_slice)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The tokens that may be generated, at least one.
    pub fn generated(&self) -> &Arc<[u32]> {
        &self.generated
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.model.as_ref().map(|model| model.pieces.len());
        f.debug_struct("Vocabulary").field("tokens", &tokens).finish()
    }
}

// === impl Model ===

impl Model {
    fn load(folder: &Path) -> Result<Model, String> {
        let files = ModelFiles::read(folder).map_err(|error| error.to_string())?;
        let verified = verified(&files, ModelOptions::default()).map_err(|error| error.to_string())?;
        Ok(Model {
            loaded: verified.model,
            workspace: Mutex::new(Workspace::new(0)),
            pieces: pieces(files.tokenizer())?,
        })
    }

    fn tokenize(&self, prompt: &TextPrompt) -> Result<Vec<u32>, TokenizeError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let clock = LocalTime { unix_seconds: i64::try_from(now).unwrap_or(i64::MAX), utc_offset_seconds: 0 };
        // What a panic left behind is only a memo.
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let tokenized = self.loaded.tokenize(prompt, clock, &UNLIMITED, &mut workspace)?;
        if tokenized.complete { Ok(tokenized.ids) } else { Err(TokenizeError::Failed) }
    }

    /// Tokens that are a blank and a word, and that the tokenizer makes of it.
    fn words(&self) -> Arc<[u32]> {
        let is_word = |piece: &[u8]| {
            piece.strip_prefix(b" ").is_some_and(|word| word.len() > 1 && word.iter().all(u8::is_ascii_lowercase))
        };
        let is_own_token = |(id, piece): &(&u32, &Vec<u8>)| {
            let text = String::from_utf8_lossy(piece).into_owned();
            self.tokenize(&TextPrompt::Plain { text, add_special_tokens: false }).is_ok_and(|ids| ids == [**id])
        };
        let words = self.pieces.iter().filter(|(_, piece)| is_word(piece)).filter(is_own_token);
        words.map(|(id, _)| *id).take(MAX_WORDS).collect()
    }
}

// === impl InvalidModelDir ===

impl std::fmt::Display for InvalidModelDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model_dir is {}, a model's folder is needed: {}", self.folder.display(), self.problem)
    }
}

impl std::error::Error for InvalidModelDir {}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo(model: &str) -> Vocabulary {
        Vocabulary::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/models").join(model)).unwrap()
    }

    fn plain(text: &str) -> TextPrompt {
        TextPrompt::Plain { text: text.to_owned(), add_special_tokens: false }
    }

    #[test]
    fn what_is_generated_comes_back_as_the_same_ids() {
        for vocabulary in [demo("demo-bytes"), demo("demo-chars"), Vocabulary::bytes()] {
            let generated = vocabulary.generated();
            assert!(generated.len() >= 32, "{vocabulary:?}");
            let text = vocabulary.detokenize(generated);
            assert_eq!(vocabulary.tokenize(&plain(&text)).unwrap(), **generated, "{text}");
        }
    }

    #[test]
    fn text_survives_its_token_ids() {
        for vocabulary in [demo("demo-bytes"), demo("demo-chars")] {
            for text in ["The router; où, 前缀 \u{1f680}\n\t x", "  two blanks", "def f(x):\n    return x\n"] {
                let ids = vocabulary.tokenize(&plain(text)).unwrap();
                assert_eq!(vocabulary.detokenize(&ids), text);
            }
        }
    }

    #[test]
    fn a_folder_without_a_model_is_refused_by_the_files_name() {
        let error = Vocabulary::load(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("model_dir is /nowhere") && error.contains("tokenizer.json"), "{error}");
    }
}
