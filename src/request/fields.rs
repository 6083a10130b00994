//! The fields of a body that matter for routing. Of a field given twice the last one counts, as it does for the Python
//! engines behind us.
//!
//! A conversation is only passed over here, so that the body is read once until its keys are asked for. The names are
//! those of vLLM 0.20 to 0.33 (`entrypoints/openai`, `entrypoints/anthropic`, `entrypoints/serve/disagg`) and of SGLang
//! (`entrypoints/openai/protocol.py`, `managers/io_struct.py`).

use super::ChatApi;
use super::hints::Hints;
use super::json::{Kind, Malformed, Reader};
use super::tokens::Prompt;
use crate::config::BodyApi;
use crate::routing::reason::Detail;

/// Fields that make the engine's key for a prompt depend on more than its text or token ids, or keep the engine from
/// looking its prompt up (`prompt_logprobs`), unless they are null or empty.
const KEY_CHANGING: [&str; 14] = [
    "cache_salt",
    "prompt_embeds",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "mm_processor_kwargs",
    "suffix",
    "extra_key",
    "lora_path",
    "input_embeds",
    "positional_embed_overrides",
    "image_data",
    "video_data",
    "audio_data",
    "session_params",
];

/// The same for `/v1/responses`: state that the engine keeps, or that is not in `input`.
const KEY_CHANGING_IN_RESPONSES: [&str; 5] =
    ["previous_response_id", "previous_response", "previous_input_messages", "conversation", "prompt"];

/// The same for `/inference/v1/generate`: what stands at the prompt's placeholders.
const KEY_CHANGING_IN_TOKENS: [&str; 1] = ["features"];

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

/// A field that is true or false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Switch {
    /// Absent or null.
    #[default]
    Absent,
    /// `true` or `false`.
    Set(bool),
    /// Something else.
    WrongType,
}

/// A field with a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Conversation {
    /// Absent or null.
    #[default]
    Absent,
    /// One, of whatever contents.
    Given,
    /// Neither a list nor, where the API allows it, text.
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
    /// `token_ids` of `/inference/v1/generate`.
    pub token_ids: Prompt,
    /// SGLang's `text`.
    pub text: Prompt,
    /// `messages`, or `input` of `/v1/responses`.
    pub conversation: Conversation,
    /// `add_special_tokens`.
    pub add_special_tokens: Switch,
    /// `inference_cache`, the contract's fields.
    pub hints: Hints,
    /// Which fields that change the key are set, a bit each.
    key_changing: u32,
    echo: Switch,
    logprobs: bool,
    /// `truncation` of `/v1/responses` is not `disabled`.
    truncation: bool,
}

// === impl Fields ===

impl Fields {
    /// Reads a whole body.
    pub(super) fn read(body: &[u8], api: BodyApi) -> Result<Fields, Malformed> {
        let mut reader = Reader::new(body);
        let mut fields = Fields::default();
        reader.object(|key, reader| match api {
            BodyApi::Completions | BodyApi::Generate => fields.read_prompt(key, reader),
            BodyApi::Chat(ChatApi::Responses) => fields.read_responses(key, reader),
            BodyApi::Chat(ChatApi::ChatCompletions | ChatApi::Messages) => fields.read_chat(key, reader),
            BodyApi::TokensIn => fields.read_tokens_in(key, reader),
        })?;
        reader.end()?;
        Ok(fields)
    }

    /// Whether the engine's key for the prompt depends on more than its text or token ids, or it is not looked up.
    ///
    /// With `echo`, engines work the log probabilities of the prompt out if they are asked for any.
    pub(super) fn changes_key(&self, api: BodyApi) -> bool {
        let echoes = self.echo == Switch::Set(true) && (self.logprobs || matches!(api, BodyApi::Chat(_)));
        self.key_changing != 0 || self.truncation || echoes
    }

    fn read_prompt(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "prompt" => self.prompt = Prompt::read(reader)?,
            "input_ids" => self.input_ids = Prompt::read_input_ids(reader)?,
            "text" => self.text = Prompt::read_nullable(reader)?,
            "messages" => self.conversation = Conversation::read_messages(reader)?,
            _ => self.read_common(key, reader, &[])?,
        }
        Ok(())
    }

    fn read_chat(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "messages" => self.conversation = Conversation::read_messages(reader)?,
            "input_ids" => self.input_ids = Prompt::read_input_ids(reader)?,
            _ => self.read_common(key, reader, &[])?,
        }
        Ok(())
    }

    fn read_responses(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "input" => self.conversation = Conversation::read_input(reader)?,
            "truncation" => self.truncation = reader.raw_value()? != b"\"disabled\"",
            _ => self.read_common(key, reader, &KEY_CHANGING_IN_RESPONSES)?,
        }
        Ok(())
    }

    fn read_tokens_in(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "token_ids" => self.token_ids = Prompt::read_input_ids(reader)?,
            _ => self.read_common(key, reader, &KEY_CHANGING_IN_TOKENS)?,
        }
        Ok(())
    }

    fn read_common(&mut self, key: &str, reader: &mut Reader, key_changing: &[&str]) -> Result<(), Malformed> {
        match key {
            "model" => self.model = TextField::read(reader)?,
            "inference_cache" => self.hints = Hints::read(reader)?,
            "add_special_tokens" => self.add_special_tokens = Switch::read(reader)?,
            "echo" => self.echo = Switch::read(reader)?,
            "logprobs" => self.logprobs = is_set(reader.raw_value()?),
            _ => match KEY_CHANGING.iter().chain(key_changing).position(|name| *name == key) {
                Some(place) => self.note_key_changing(1 << place, is_set(reader.raw_value()?)),
                None => reader.skip_value()?,
            },
        }
        Ok(())
    }

    fn note_key_changing(&mut self, bit: u32, is_set: bool) {
        self.key_changing = if is_set { self.key_changing | bit } else { self.key_changing & !bit };
    }
}

/// Whether a value, from its JSON text, is neither null nor an empty text, list or object.
fn is_set(value: &[u8]) -> bool {
    match value {
        b"null" | b"\"\"" => false,
        [b'[' | b'{', inner @ .., _] => !inner.trim_ascii().is_empty(),
        _ => true,
    }
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

// === impl Switch ===

impl Switch {
    fn read(reader: &mut Reader) -> Result<Switch, Malformed> {
        Ok(match reader.raw_value()? {
            b"true" => Switch::Set(true),
            b"false" => Switch::Set(false),
            b"null" => Switch::Absent,
            _ => Switch::WrongType,
        })
    }

    /// What it is set to, or `default`.
    pub(super) fn or(self, default: bool) -> Result<bool, Detail> {
        match self {
            Switch::Absent => Ok(default),
            Switch::Set(value) => Ok(value),
            Switch::WrongType => Err(Detail::WrongType),
        }
    }
}

// === impl Conversation ===

impl Conversation {
    fn read_messages(reader: &mut Reader) -> Result<Conversation, Malformed> {
        Conversation::read(reader, |kind| kind == Kind::Array)
    }

    fn read_input(reader: &mut Reader) -> Result<Conversation, Malformed> {
        Conversation::read(reader, |kind| matches!(kind, Kind::Array | Kind::Text))
    }

    fn read(reader: &mut Reader, is_allowed: impl Fn(Kind) -> bool) -> Result<Conversation, Malformed> {
        let kind = reader.kind()?;
        reader.skip_value()?;
        Ok(match kind {
            Kind::Null => Conversation::Absent,
            kind if is_allowed(kind) => Conversation::Given,
            _ => Conversation::WrongType,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_what_is_empty_changes_no_key() {
        for value in ["null", "\"\"", "[]", "{}", "[ \n]", "{\t}"] {
            assert!(!is_set(value.as_bytes()), "{value}");
        }
        for value in ["0", "false", "true", "-1", "\" \"", "[null]", "{\"a\":1}", "[[]]"] {
            assert!(is_set(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn every_key_changing_field_has_a_bit_of_its_own() {
        let all = KEY_CHANGING.len() + KEY_CHANGING_IN_RESPONSES.len().max(KEY_CHANGING_IN_TOKENS.len());
        assert!(all <= u32::BITS as usize);
        for (api, names) in [
            (BodyApi::Completions, &KEY_CHANGING[..]),
            (BodyApi::Generate, &KEY_CHANGING),
            (BodyApi::Chat(ChatApi::ChatCompletions), &KEY_CHANGING),
            (BodyApi::Chat(ChatApi::Messages), &KEY_CHANGING),
            (BodyApi::Chat(ChatApi::Responses), &KEY_CHANGING),
            (BodyApi::Chat(ChatApi::Responses), &KEY_CHANGING_IN_RESPONSES),
            (BodyApi::TokensIn, &KEY_CHANGING),
            (BodyApi::TokensIn, &KEY_CHANGING_IN_TOKENS),
        ] {
            for name in names {
                let changes_key = |body: String| Fields::read(body.as_bytes(), api).unwrap().changes_key(api);
                assert!(changes_key(format!(r#"{{"{name}":"x"}}"#)), "{name} in {api:?}");
                assert!(!changes_key(format!(r#"{{"{name}":null}}"#)), "{name} in {api:?}");
                assert!(!changes_key(format!(r#"{{"{name}":"x","{name}":null}}"#)), "{name} in {api:?}");
                assert!(changes_key(format!(r#"{{"{name}":null,"{name}":7}}"#)), "{name} in {api:?}");
            }
        }
    }

    #[test]
    fn an_echo_with_log_probabilities_is_not_looked_up() {
        let chat = BodyApi::Chat(ChatApi::ChatCompletions);
        for (api, body, expected) in [
            (BodyApi::Completions, r#"{"echo":true}"#, false),
            (BodyApi::Completions, r#"{"echo":true,"logprobs":null}"#, false),
            (BodyApi::Completions, r#"{"echo":false,"logprobs":1}"#, false),
            (BodyApi::Completions, r#"{"echo":true,"logprobs":0}"#, true),
            (chat, r#"{"logprobs":true,"top_logprobs":5}"#, false),
            (chat, r#"{"echo":true}"#, true),
            (BodyApi::Chat(ChatApi::Responses), r#"{"truncation":"auto"}"#, true),
            (BodyApi::Chat(ChatApi::Responses), r#"{"truncation": "disabled" }"#, false),
        ] {
            assert_eq!(Fields::read(body.as_bytes(), api).unwrap().changes_key(api), expected, "{body}");
        }
    }
}
