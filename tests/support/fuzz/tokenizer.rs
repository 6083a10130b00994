//! `tokenizer.json` files, and texts for them.

use warmroute::tokenize::{Extent, Limits, Specials, Tokenizer, Workspace, compile};

const LIMITS: Limits = Limits { max_bytes: 1 << 14, max_tokens: 1 << 14, max_symbols: 1 << 14 };

/// A file, then a text. What a text that goes on certainly begins with is what the whole begins with, whatever was
/// encoded before.
pub fn tokenizer(bytes: &[u8]) {
    let (json, text) = super::halves(bytes);
    let Ok(artifact) = compile(json) else { return };
    let tokenizer = Tokenizer::load(artifact).expect("what was compiled can be loaded");
    encode(&tokenizer, &String::from_utf8_lossy(text));
}

/// Encodes a text in all ways.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str) {
    let mut workspace = Workspace::new(1 << 12);
    let Ok(whole) = tokenizer.encode(text, Specials::Around, &LIMITS, &mut workspace) else { return };
    let again = tokenizer.encode(text, Specials::Around, &LIMITS, &mut workspace);
    assert_eq!(again.as_ref(), Ok(&whole), "remembered");
    let few = Limits { max_tokens: 5, ..LIMITS };
    for limits in [LIMITS, few] {
        for extent in [Extent::Whole(text), Extent::Beginning(text)] {
            let leading = tokenizer.encode_leading(extent, Specials::Around, &limits, &mut workspace);
            assert!(leading.ids.len() <= limits.max_tokens);
            assert!(whole.starts_with(&leading.ids), "{extent:?}: {whole:?}, {:?}", leading.ids);
            assert!(!leading.complete || leading.ids == whole);
        }
    }
}
