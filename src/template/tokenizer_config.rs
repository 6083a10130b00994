//! What a model's `tokenizer_config.json` says of its chat template.
//!
//! `chat_template` is a template, or a list of named ones (`{"name": …, "template": …}`), of which `transformers` takes
//! `tool_use` for conversations with tools and `default` otherwise (`get_chat_template`, 5.24). A special token is a text
//! or an object with the text as `content`. A `chat_template.jinja` beside the file, if there is one, comes first: reading
//! it is the caller's.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{entries, field};
use super::{InvalidTemplate, SpecialTokens, parse_json};

/// The special tokens that `transformers` hands to a template.
const TOKENS: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The parts of a `tokenizer_config.json` that chat templates need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The template for conversations without tools, and for all if there is no other.
    pub template: Option<String>,
    /// Another template for conversations with tools.
    pub tool_template: Option<String>,
    /// The special tokens, by name.
    pub special: SpecialTokens,
}

// === impl TokenizerConfig ===

impl TokenizerConfig {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// It is not JSON, or one of the fields has another form than those described above.
    pub fn parse(json: &[u8]) -> Result<TokenizerConfig, InvalidTemplate> {
        let file = parse_json(json).map_err(|error| InvalidTemplate::new(format!("tokenizer_config.json: {error}")))?;
        if file.kind() != ValueKind::Map {
            return Err(malformed("the file", "an object"));
        }
        let mut config = TokenizerConfig::default();
        if let Some(template) = field(&file, "chat_template") {
            config.take_templates(&template)?;
        }
        for name in TOKENS {
            let Some(token) = field(&file, name) else { continue };
            let text = if token.kind() == ValueKind::Map { field(&token, "content") } else { Some(token) };
            let text = text
                .as_ref()
                .and_then(Value::as_str)
                .ok_or_else(|| malformed(name, "a string or an object with content"))?;
            config.special.named.push((name.to_owned(), text.to_owned()));
        }
        Ok(config)
    }

    fn take_templates(&mut self, template: &Value) -> Result<(), InvalidTemplate> {
        let misformed = || malformed("chat_template", "a string, or templates by name");
        match (template.as_str(), template.kind()) {
            (Some(source), _) => self.template = Some(source.to_owned()),
            (None, ValueKind::Seq) => {
                for named in template.try_iter()? {
                    let name = field(&named, "name").ok_or_else(misformed)?;
                    self.take_named(&name, &field(&named, "template").ok_or_else(misformed)?).ok_or_else(misformed)?;
                }
            }
            (None, ValueKind::Map) => {
                for (name, source) in entries(template) {
                    self.take_named(&name, &source).ok_or_else(misformed)?;
                }
            }
            _ => return Err(misformed()),
        }
        Ok(())
    }

    /// Templates of other names have to be asked for by name, which engines do not.
    fn take_named(&mut self, name: &Value, source: &Value) -> Option<()> {
        let source = source.as_str()?.to_owned();
        match name.as_str()? {
            "default" => self.template = Some(source),
            "tool_use" => self.tool_template = Some(source),
            _ => {}
        }
        Some(())
    }
}

fn malformed(field: &str, allowed: &str) -> InvalidTemplate {
    InvalidTemplate::new(format!("tokenizer_config.json: {field} must be {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_two_spellings_and_templates_three() {
        let one = TokenizerConfig::parse(
            br#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "chat_template": "x"}"#,
        )
        .unwrap();
        assert_eq!((one.template.as_deref(), one.tool_template), (Some("x"), None));
        assert_eq!(one.special, SpecialTokens::new(Some("<s>"), Some("</s>")));
        for named in [
            &br#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#[..],
            br#"{"chat_template": {"default": "d", "tool_use": "t"}}"#,
        ] {
            let config = TokenizerConfig::parse(named).unwrap();
            assert_eq!((config.template.as_deref(), config.tool_template.as_deref()), (Some("d"), Some("t")));
        }
        assert_eq!(TokenizerConfig::parse(b"{}").unwrap(), TokenizerConfig::default());
    }

    #[test]
    fn what_is_not_such_a_file_is_refused_with_the_field() {
        for (file, field) in [
            ("[]", "the file"),
            ("{", "JSON"),
            (r#"{"chat_template": 1}"#, "chat_template"),
            (r#"{"chat_template": [{"name": "default"}]}"#, "chat_template"),
            (r#"{"bos_token": {"text": "x"}}"#, "bos_token"),
        ] {
            let error = TokenizerConfig::parse(file.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
