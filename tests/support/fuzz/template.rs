//! Chat templates, `tokenizer_config.json`, and conversations for them.

use warmroute::request::ChatApi;
use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, SpecialTokens, TokenizerConfig};

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: -3_600 };
const LIMITS: Limits = Limits { fuel: 20_000, output_bytes: 1 << 16 };

/// A template, then a conversation in one of the APIs' forms. What is rendered is no longer than it may be.
pub fn template(bytes: &[u8]) {
    let (source, body) = super::halves(bytes);
    if let Ok(config) = TokenizerConfig::parse(body) {
        assert!(config.special.iter().count() <= 7);
    }
    let Ok(source) = std::str::from_utf8(source) else { return };
    let special = SpecialTokens::new(Some("<s>"), Some("</s>"));
    let Ok(template) = ChatTemplate::compile(source, &special, LIMITS) else { return };
    for api in [ChatApi::ChatCompletions, ChatApi::Responses, ChatApi::Messages] {
        let Ok(chat) = Chat::read(api, body, &template) else { continue };
        if let Ok(prompt) = template.render(&chat, CLOCK) {
            assert!(prompt.text.len() <= LIMITS.output_bytes);
        }
    }
}
