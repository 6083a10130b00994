//! What is nested without end, in everything that is read from outside: refused, on the stack that a VM has.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

use warmroute::config::FilterConfig;
use warmroute::flow::exchange::usage::{Framing, Scanner};
use warmroute::request::{HeadVerdict, NoAdapters, RequestHead, read_body, read_head};
use warmroute::routing::reason::Detail;
use warmroute::template::{ChatTemplate, Limits, SpecialTokens, TokenizerConfig, parse_json};
use warmroute::tokenize::compile;
use warmroute::wire;

const DEPTH: usize = 100_000;
const CONFIG: &str = r#"{"hub_cluster": "hub", "models": [{"model_id": "m"}]}"#;

/// JSON that nests lists and objects, whole and cut off.
fn nested_json() -> Vec<String> {
    let nested = [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":"#, "}]")];
    let whole = |(open, close): (&str, &str)| format!("{}1{}", open.repeat(DEPTH), close.repeat(DEPTH));
    nested.into_iter().flat_map(|(open, close)| [whole((open, close)), open.repeat(DEPTH)]).collect()
}

fn json_ends() {
    let config = FilterConfig::from_json(CONFIG.as_bytes()).unwrap();
    for json in nested_json() {
        assert!(parse_json(json.as_bytes()).is_err());
        assert!(TokenizerConfig::parse(json.as_bytes()).is_err());
        assert!(compile(json.as_bytes()).is_err());
        assert!(FilterConfig::from_json(json.as_bytes()).is_err());
        let within = format!(r#"{{"hub_cluster": "hub", "models": [{{"model_id": "m", "x": {json}}}]}}"#);
        assert!(FilterConfig::from_json(within.as_bytes()).is_err());
        for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"] {
            for body in [json.clone(), format!(r#"{{"model": "m", "prompt": {json}, "messages": {json}}}"#)] {
                assert_eq!(detail(&config, path, body), Detail::MalformedJson, "{path}");
            }
        }
        // A response is not judged: what is found in it is, once it is out of the nest.
        let mut scanner = Scanner::new(Framing::Json);
        scanner.read(format!(r#"{{"x": {json}, "usage": {{"prompt_tokens": 7}}}}"#).as_bytes());
        let is_whole = json.ends_with([']', '}']);
        assert_eq!(scanner.usage().prompt_tokens(), is_whole.then_some(7));
    }
}

fn detail(config: &FilterConfig, path: &str, body: String) -> Detail {
    let length = body.len().to_string();
    let headers = [
        (":method", "POST"),
        (":path", path),
        ("content-type", "application/json"),
        ("content-length", length.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
    let (inputs, verdict) = read_head(&RequestHead { headers: &headers }, None, config, &mut NoAdapters);
    assert!(matches!(verdict, HeadVerdict::Hold { .. }) || length.len() > 6, "{verdict:?}");
    read_body(body.into_bytes(), &inputs, config, &mut NoAdapters).unwrap_err().detail
}

fn protobuf_ends() {
    // Groups of unknown fields, the one thing that nests in these messages: field 200, begun and never ended, or ended.
    let (begin, end) = ([0xc3, 0x0c], [0xc4, 0x0c]);
    for bytes in [begin.repeat(DEPTH), [begin.repeat(DEPTH), end.repeat(DEPTH)].concat()] {
        assert!(wire::decode_stream_message(&bytes).is_err());
        assert!(wire::decode_records(&bytes).is_err());
        // The same inside a fact.
        let mut chunk = vec![0x0a];
        let mut length = bytes.len();
        while length >= 0x80 {
            chunk.push(length as u8 | 0x80);
            length >>= 7;
        }
        chunk.push(length as u8);
        chunk.extend_from_slice(&bytes);
        assert!(wire::decode_records(&chunk).is_err());
    }
}

fn templates_end() {
    let special = SpecialTokens::new(None, None);
    let around = |open: &str, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(9_000), close.repeat(9_000));
    for source in [
        format!("{{{{ {} }}}}", around("(", "1", ")")),
        format!("{{{{ {} }}}}", around("[", "1", "]")),
        format!("{{{{ {} }}}}", around("{'a': ", "1", "}")),
        format!("{{{{ {} }}}}", around("not ", "1", "")),
        format!("{{{{ {} }}}}", around("- ", "1", "")),
        format!("{{{{ x{} }}}}", ".y".repeat(9_000)),
        format!("{{{{ x{} }}}}", "|trim".repeat(9_000)),
        format!("{{{{ x{} }}}}", " ~ x".repeat(9_000)),
        format!("{{{{ x{} }}}}", " ** 1".repeat(9_000)),
        format!("{{{{ x{} }}}}", " if 1 else x".repeat(9_000)),
        around("{% if 1 %}", "1", "{% endif %}"),
        around("{% for a in b %}", "1", "{% endfor %}"),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(9_000)),
    ] {
        let start: String = source.chars().take(30).collect();
        assert!(ChatTemplate::compile(&source, &special, Limits::DEFAULT).is_err(), "{start}");
    }
}

#[cfg(not(target_arch = "wasm32"))]
#[path = "support/small_stack.rs"]
mod small_stack;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::small_stack::on_a_small_stack;

    #[test]
    fn json_ends() {
        on_a_small_stack(super::json_ends);
    }

    #[test]
    fn protobuf_ends() {
        on_a_small_stack(super::protobuf_ends);
    }

    #[test]
    fn templates_end() {
        on_a_small_stack(super::templates_end);
    }
}

#[cfg(target_arch = "wasm32")]
mod wasm {
    use wasm_bindgen_test::wasm_bindgen_test;

    #[wasm_bindgen_test]
    fn nothing_nests_without_end() {
        super::json_ends();
        super::protobuf_ends();
        super::templates_end();
    }
}
