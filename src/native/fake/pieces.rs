//! The bytes that each token stands for, from a `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::Value;

/// SentencePiece's mark for a blank.
const MARK: &str = "\u{2581}";

/// Token ids and their bytes.
///
/// # Errors
/// When the file is not JSON, or has no vocabulary.
pub(super) fn pieces(tokenizer_json: &[u8]) -> Result<BTreeMap<u32, Vec<u8>>, String> {
    let file: Value = serde_json::from_slice(tokenizer_json).map_err(|error| format!("tokenizer.json: {error}"))?;
    let by_byte = file.get("pre_tokenizer").is_some_and(|steps| steps.to_string().contains("\"ByteLevel\""));
    let vocab = file.pointer("/model/vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or("tokenizer.json: model.vocab is not an object")?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let bytes = if by_byte { bytes_of_characters } else { bytes_of_marked };
    let mut pieces: BTreeMap<u32, Vec<u8>> =
        vocab.iter().filter_map(|(token, value)| Some((id(value)?, bytes(token)))).collect();
    for added in file.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let content = added.get("content").and_then(Value::as_str);
        if let (Some(id), Some(content)) = (added.get("id").and_then(id), content) {
            pieces.insert(id, content.as_bytes().to_vec());
        }
    }
    Ok(pieces)
}

/// A byte-level vocabulary writes each byte as a character.
fn bytes_of_characters(token: &str) -> Vec<u8> {
    token.chars().filter_map(byte_of).collect()
}

/// Printable bytes are themselves, the others follow from U+0100 on in their order.
fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=u8::MAX).filter(|byte| !is_printable(byte));
    match (u8::try_from(character), u32::from(character).checked_sub(0x100)) {
        (Ok(byte), _) => Some(byte),
        (_, Some(place)) => others.into_iter().nth(place as usize),
        (_, None) => None,
    }
}

/// A mark stands for a blank, `<0x41>` for a byte.
fn bytes_of_marked(token: &str) -> Vec<u8> {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => vec![byte],
        None => token.replace(MARK, " ").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_and_marks_become_bytes() {
        let by_byte =
            br#"{"pre_tokenizer": {"type": "ByteLevel"}, "model": {"vocab": {"\u0120a\u00c3": 0, "\u010a": 1}}}"#;
        assert_eq!(pieces(by_byte).unwrap(), BTreeMap::from([(0, b" a\xc3".to_vec()), (1, b"\n".to_vec())]));
        let marked =
            br#"{"model": {"vocab": {"\u2581a": 0, "<0xC3>": 1}}, "added_tokens": [{"id": 2, "content": "<s>"}]}"#;
        let expected = BTreeMap::from([(0, b" a".to_vec()), (1, b"\xc3".to_vec()), (2, b"<s>".to_vec())]);
        assert_eq!(pieces(marked).unwrap(), expected);
        assert!(pieces(b"{}").unwrap_err().contains("model.vocab"));
    }
}
