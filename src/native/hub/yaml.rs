//! YAML and JSON text to JSON values, which is what the readers of policies and settings take.
//!
//! In: a text. Out: its documents. What JSON has no word for (tags, keys that are no texts, `.nan`, `.inf`) is refused by
//! its place rather than read as something else, as are keys that come twice. Depth and repetition are bounded by the YAML
//! reader.

use serde::Deserialize;
use serde_json::{Map, Number, Value};
use serde_norway::Value as Yaml;

/// The documents of a YAML text, without empty ones.
///
/// # Errors
/// One line that says what is wrong, and where.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    for document in serde_norway::Deserializer::from_str(text) {
        let document = Yaml::deserialize(document).map_err(|error| format!("not YAML: {error}"))?;
        if !document.is_null() {
            documents.push(json_of(document, "")?);
        }
    }
    Ok(documents)
}

/// The same value as JSON; `path` is where it stands.
///
/// # Errors
/// One line with the place, the value and what is allowed.
pub fn json_of(value: Yaml, path: &str) -> Result<Value, String> {
    Ok(match value {
        Yaml::Null => Value::Null,
        Yaml::Bool(value) => Value::Bool(value),
        Yaml::String(text) => Value::String(text),
        Yaml::Number(number) => {
            number_of(&number).ok_or_else(|| refused(path, &number.to_string(), "a finite number"))?
        }
        Yaml::Sequence(items) => {
            let items = items.into_iter().enumerate().map(|(place, item)| json_of(item, &format!("{path}[{place}]")));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Yaml::Mapping(entries) => {
            let mut object = Map::new();
            for (key, value) in entries {
                let Yaml::String(key) = key else {
                    return Err(refused(path, "a key that is no text", "texts as keys"));
                };
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                object.insert(key, json_of(value, &below)?);
            }
            Value::Object(object)
        }
        Yaml::Tagged(tagged) => return Err(refused(path, &tagged.tag.to_string(), "a value without a tag")),
    })
}

fn number_of(number: &serde_norway::Number) -> Option<Value> {
    let whole = number.as_u64().map(Number::from).or_else(|| number.as_i64().map(Number::from));
    whole.or_else(|| Number::from_f64(number.as_f64()?)).map(Value::Number)
}

fn refused(path: &str, found: &str, allowed: &str) -> String {
    let path = if path.is_empty() { "the document" } else { path };
    format!("{path} is {found}, allowed: {allowed}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_read_and_empty_ones_passed_over() {
        let text = "---\n# nothing\n---\na: {b: [1, -2, 0.5, true, null, 30m]}\n---\n'x'\n---\n";
        assert_eq!(documents(text), Ok(vec![json!({"a": {"b": [1, -2, 0.5, true, null, "30m"]}}), json!("x")]));
        assert_eq!(documents(""), Ok(vec![]));
        assert_eq!(documents(r#"{"a": {"b": "c"}}"#), Ok(vec![json!({"a": {"b": "c"}})]));
    }

    #[test]
    fn what_json_has_no_word_for_is_refused_by_its_place() {
        let refusal = |text| documents(text).unwrap_err();
        assert_eq!(refusal("a: {b: [1, .nan]}"), "a.b[1] is .nan, allowed: a finite number");
        assert_eq!(refusal("a: -.inf"), "a is -.inf, allowed: a finite number");
        assert_eq!(refusal("a: !secret x"), "a is !secret, allowed: a value without a tag");
        assert_eq!(refusal("{[1]: 2}"), "the document is a key that is no text, allowed: texts as keys");
        assert!(refusal("a: 1\na: 2").contains("duplicate"), "{}", refusal("a: 1\na: 2"));
        assert!(refusal("a: [").starts_with("not YAML: "), "{}", refusal("a: ["));
    }

    #[test]
    fn depth_and_repetition_are_bounded() {
        assert!(documents(&"[".repeat(10_000)).is_err());
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{}, ", level - 1).repeat(9);
            text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert!(documents(&text).unwrap_err().contains("repetition limit"));
    }
}
