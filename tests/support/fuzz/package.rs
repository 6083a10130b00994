//! A model's package as it comes to a VM: an artifact whose tables may lie, templates, tokens.

use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::request::TextPrompt;
use warmroute::template::LocalTime;
use warmroute::tokenize::Workspace;

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const LIMITS: TextLimits = TextLimits { max_prompt_bytes: 1 << 14, max_tokens: 1 << 12, max_symbols: 1 << 12 };
const TEXT: &str = "<one>ab  abba\u{301} a\u{e9} \u{1f600}77 don't</one>\n\n  ba";

/// A package that can be loaded makes a bounded number of ids of any text.
pub fn package(bytes: &[u8]) {
    let Ok(package) = Package::decode(bytes.to_vec()) else { return };
    let Ok(model) = LoadedModel::load(package) else { return };
    assert!(model.bytes() <= 2 * bytes.len());
    let mut workspace = Workspace::new(1 << 12);
    for prompt in [
        TextPrompt::Plain { text: TEXT.to_owned(), add_special_tokens: true },
        TextPrompt::User(TEXT.to_owned()),
        TextPrompt::User("a".repeat(1_000)),
    ] {
        if let Ok(found) = model.tokenize(&prompt, CLOCK, &LIMITS, &mut workspace) {
            assert!(found.ids.len() <= LIMITS.max_tokens);
        }
    }
}
