//! The fields of a completions body that matter for routing. Of a field given twice the last one counts, as it does for
//! the Python engines behind us.

use super::hints::Hints;
use super::json::{Kind, Malformed, Reader};
use super::tokens::Prompt;
use crate::routing::reason::Detail;

/// Fields that make the engine's key for a prompt depend on more than its token ids (vLLM's `cache_salt`,
/// `prompt_embeds` and `truncate_prompt_tokens`, SGLang's others), unless they are null.
const KEY_CHANGING: [&str; 10] = [
    "cache_salt",
    "prompt_embeds",
    "truncate_prompt_tokens",
    "extra_key",
    "lora_path",
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "session_params",
];

/// A text field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum TextField {
    /// Absent, null or empty.
    #[default]
    Absent,
    /// The text.
    Text(String),
    /// Something other than text.
    WrongType,
}

/// What a body says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    /// `model`.
    pub model: TextField,
    /// `prompt`: text, token ids, or a list of either.
    pub prompt: Prompt,
    /// `input_ids`, SGLang's name for token ids.
    pub input_ids: Prompt,
    /// SGLang's `text`.
    pub text: Prompt,
    /// `messages` of a chat.
    pub messages: Prompt,
    /// `inference_cache`, the contract's fields.
    pub hints: Hints,
    /// Which of [`KEY_CHANGING`] are set, a bit each.
    key_changing: u16,
}

// === impl Fields ===

impl Fields {
    /// Reads a whole body.
    pub(super) fn read(body: &[u8]) -> Result<Fields, Malformed> {
        let mut reader = Reader::new(body);
        let mut fields = Fields::default();
        reader.object(|key, reader| fields.read_field(key, reader))?;
        reader.end()?;
        Ok(fields)
    }

    /// Whether the engine's key for the prompt depends on more than its token ids.
    pub(super) fn changes_key(&self) -> bool {
        self.key_changing != 0
    }

    fn read_field(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "model" => self.model = TextField::read(reader)?,
            "prompt" => self.prompt = Prompt::read(reader)?,
            "input_ids" => self.input_ids = Prompt::read_input_ids(reader)?,
            "text" => self.text = read_untokenized(reader)?,
            "messages" => self.messages = read_untokenized(reader)?,
            "inference_cache" => self.hints = Hints::read(reader)?,
            _ => self.read_other(key, reader)?,
        }
        Ok(())
    }

    fn read_other(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        if let Some(place) = KEY_CHANGING.iter().position(|name| *name == key) {
            let bit = 1 << place;
            let is_set = reader.kind()? != Kind::Null;
            self.key_changing = if is_set { self.key_changing | bit } else { self.key_changing & !bit };
        }
        reader.skip_value()
    }
}

/// A value that would have to be tokenized: anything but null.
fn read_untokenized(reader: &mut Reader) -> Result<Prompt, Malformed> {
    let is_null = reader.kind()? == Kind::Null;
    reader.skip_value()?;
    Ok(if is_null { Prompt::Absent } else { Prompt::Text })
}

// === impl TextField ===

impl TextField {
    pub(super) fn read(reader: &mut Reader) -> Result<TextField, Malformed> {
        match reader.kind()? {
            Kind::Text => {
                let text = reader.text()?;
                Ok(if text.is_empty() { TextField::Absent } else { TextField::Text(text.into_owned()) })
            }
            Kind::Null => reader.skip_value().map(|()| TextField::Absent),
            _ => reader.skip_value().map(|()| TextField::WrongType),
        }
    }

    /// The text, if there is one.
    pub(super) fn into_option(self) -> Result<Option<String>, Detail> {
        match self {
            TextField::Absent => Ok(None),
            TextField::Text(text) => Ok(Some(text)),
            TextField::WrongType => Err(Detail::WrongType),
        }
    }
}
