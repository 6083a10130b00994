#[path = "../../../../tests/support/random.rs"]
mod random;

use serde_json::{Map, Value, json};

use super::*;
use random::Random;

/// Keys that are looked for, and some that are nearly so.
const KEYS: [&str; 20] = [
    "usage",
    "response",
    "message",
    "meta_info",
    "prompt_tokens",
    "input_tokens",
    "prompt_tokens_details",
    "input_tokens_details",
    "cached_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "choices",
    "usage ",
    "Usage",
    "usage\"",
    "us\nage",
    "prompt_tokens_details_of_them",
    "",
    "\u{1F600}usage",
    "cache_creation_input_tokens2",
];

/// What a model may write to be taken for usage.
const TEXTS: [&str; 8] = [
    r#""usage":{"prompt_tokens":9}"#,
    r#"","usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}"#,
    r#"\","usage":{"prompt_tokens":9}}"#,
    "\n\ndata: {\"usage\":{\"prompt_tokens\":9}}\n\n",
    "\\\\\\",
    "}]}}",
    "usage",
    "caf\u{e9} \u{2028} \u{1F600} \u{0} \r\n",
];

fn scanned<'a>(framing: Framing, pieces: impl IntoIterator<Item = &'a [u8]>) -> Usage {
    let mut scanner = Scanner::new(framing);
    pieces.into_iter().for_each(|piece| scanner.read(piece));
    scanner.usage()
}

fn whole(framing: Framing, body: &str) -> Usage {
    let at_once = scanned(framing, [body.as_bytes()]);
    let byte_by_byte = scanned(framing, body.as_bytes().chunks(1));
    assert_eq!(at_once, byte_by_byte, "{body}");
    at_once
}

fn found(framing: Framing, body: &str) -> (Option<u64>, Option<u64>) {
    let usage = whole(framing, body);
    (usage.prompt_tokens(), usage.cached_tokens())
}

fn in_json(body: &str) -> (Option<u64>, Option<u64>) {
    found(Framing::Json, body)
}

fn in_events(body: &str) -> (Option<u64>, Option<u64>) {
    found(Framing::Events, body)
}

/// The same by parsing the whole, the slow way.
mod parsed {
    use super::*;

    pub fn usage(framing: Framing, body: &str) -> Usage {
        let mut usage = Usage::default();
        match framing {
            Framing::Json => root(body, &mut usage),
            Framing::Events => {
                body.split(['\r', '\n'])
                    .filter_map(|line| line.strip_prefix("data:"))
                    .for_each(|text| root(text, &mut usage));
            }
        }
        usage
    }

    fn root(text: &str, usage: &mut Usage) {
        let Ok(Value::Object(root)) = serde_json::from_str(text) else { return };
        for (key, value) in &root {
            match key.as_str() {
                "usage" => of_usage(value, usage),
                "response" | "message" => of_usage(&value["usage"], usage),
                "meta_info" => {
                    set(&mut usage.prompt_tokens, &value["prompt_tokens"]);
                    set(&mut usage.cached_tokens, &value["cached_tokens"]);
                }
                _ => {}
            }
        }
    }

    fn of_usage(value: &Value, usage: &mut Usage) {
        for (key, value) in value.as_object().into_iter().flatten() {
            match key.as_str() {
                "prompt_tokens" | "input_tokens" => set(&mut usage.prompt_tokens, value),
                "cache_read_input_tokens" => set(&mut usage.cache_read_tokens, value),
                "cache_creation_input_tokens" => set(&mut usage.cache_creation_tokens, value),
                "prompt_tokens_details" | "input_tokens_details" => {
                    set(&mut usage.cached_tokens, &value["cached_tokens"]);
                }
                _ => {}
            }
        }
    }

    fn set(count: &mut Option<u64>, value: &Value) {
        *count = value.as_u64().or(*count);
    }
}

#[test]
fn a_completion_has_its_usage_last_or_first() {
    let usage = json!({ "prompt_tokens": 1_200, "completion_tokens": 7, "total_tokens": 1_207,
                        "prompt_tokens_details": { "audio_tokens": 3, "cached_tokens": 1_184 } });
    let choices = json!([{ "index": 0, "message": { "role": "assistant", "content": TEXTS[1], "usage": { "prompt_tokens": 5 } },
                           "usage": { "prompt_tokens": 5 }, "logprobs": null }]);
    for body in [
        format!(r#"{{"id":"x","choices":{choices},"usage":{usage}}}"#),
        format!(r#"{{"usage":{usage},"id":"x","choices":{choices}}}"#),
        format!("  {{ \"usage\" :\n {usage:#} , \"choices\":{choices:#}}}\n"),
    ] {
        assert_eq!(in_json(&body), (Some(1_200), Some(1_184)), "{body}");
    }
    assert_eq!(in_json(r#"{"usage":{"prompt_tokens":12,"prompt_tokens_details":null}}"#), (Some(12), None));
    assert_eq!(in_json(r#"{"usage":null}"#), (None, None));
    assert_eq!(in_json(r#"{"usage":{"prompt_tokens":12}"#), (Some(12), None), "cut off after the count");
    assert_eq!(in_json(r#"{"usage":{"prompt_tokens":12"#), (None, None), "cut off in the count");
}

#[test]
fn a_stream_has_it_in_its_last_chunk_or_in_all() {
    let last = r#"{"id":"x","choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}}"#;
    let chunk = |usage: &str| format!(r#"data: {{"id":"x","choices":[{{"delta":{{"content":"a"}}}}]{usage}}}"#);
    let running = r#","usage":{"prompt_tokens":40,"completion_tokens":1,"total_tokens":41}"#;
    for end in ["\n\n", "\r\n\r\n", "\r\r"] {
        for usage in ["", r#","usage":null"#, running] {
            let chunk = chunk(usage);
            let body = format!(": comment{end}event: x{end}{chunk}{end}{chunk}{end}data: {last}{end}data: [DONE]{end}");
            assert_eq!(in_events(&body), (Some(40), Some(32)), "{body}");
        }
    }
    assert_eq!(in_events(&format!("{}\n\n{}\n\n", chunk(running), chunk(r#","usage":null"#))), (Some(40), None));
    assert_eq!(in_events(&format!("data:{last}")), (Some(40), Some(32)), "no blank, no end");
    for line in [format!("dat: {last}"), format!(" data: {last}"), format!("event: {last}"), format!("xdata: {last}")] {
        assert_eq!(in_events(&line), (None, None), "{line}");
    }
}

#[test]
fn a_line_that_is_no_json_spoils_no_other() {
    let last = r#"data: {"usage":{"prompt_tokens":40}}"#;
    for broken in
        [r#"data: {"a":"#, r#"data: {"a":""#, r#"data: {"a":"\"#, "data: }}}", "data: [[[[[[", "data", "data: \"", "d"]
    {
        assert_eq!(in_events(&format!("{broken}\n{last}\n\n")), (Some(40), None), "{broken}");
    }
}

#[test]
fn responses_and_their_events() {
    let response = json!({ "id": "resp", "output": [{ "content": [{ "text": TEXTS[0] }] }], "metadata": { "usage": { "input_tokens": 1 } },
        "usage": { "input_tokens": 300, "input_tokens_details": { "cached_tokens": 256 }, "output_tokens": 5,
                   "output_tokens_details": { "cached_tokens": 1 } } });
    assert_eq!(in_json(&response.to_string()), (Some(300), Some(256)));
    let delta = json!({ "type": "response.output_text.delta", "delta": TEXTS[1] });
    let created = json!({ "type": "response.created", "response": { "usage": null } });
    let completed = json!({ "type": "response.completed", "response": response });
    let body = format!(
        "event: response.created\ndata: {created}\n\ndata: {delta}\n\nevent: response.completed\ndata: {completed}\n\n"
    );
    assert_eq!(in_events(&body), (Some(300), Some(256)));
}

#[test]
fn messages_and_their_events() {
    let usage = json!({ "input_tokens": 44, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 256, "output_tokens": 1 });
    let input = json!({ "usage": { "input_tokens": 1 } });
    let message =
        json!({ "type": "message", "content": [{ "type": "tool_use", "input": input }], "usage": usage }).to_string();
    let start = json!({ "type": "message_start", "message": { "content": [], "usage": usage } });
    let delta =
        json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 9 } });
    let events = format!("event: message_start\ndata: {start}\n\nevent: message_delta\ndata: {delta}\n\n");
    for found in [whole(Framing::Json, &message), whole(Framing::Events, &events)] {
        assert_eq!((found.prompt_tokens(), found.cached_tokens()), (Some(44), Some(256)));
        let agree: Vec<u64> = (0..500).filter(|tokens| found.agrees_with(*tokens)).collect();
        assert_eq!(agree, [44, 400], "the tokens that are not cached, or all");
    }
    // vLLM does not know at the start, and tells no cached ones apart.
    let start = json!({ "type": "message_start", "message": { "usage": { "input_tokens": 0, "output_tokens": 0 } } });
    assert_eq!(in_events(&format!("data: {start}\n\n")), (None, None));
    let delta = json!({ "type": "message_delta", "usage": { "input_tokens": 77, "output_tokens": 9 } });
    assert_eq!(in_events(&format!("data: {start}\n\ndata: {delta}\n\n")), (Some(77), None));
}

#[test]
fn generate_has_it_in_its_meta_info() {
    let meta_info = json!({ "id": "x", "finish_reason": { "type": "length", "prompt_tokens": 1 }, "prompt_tokens": 64,
        "cached_tokens": 48, "input_token_logprobs": [[-1.5, 9, null]], "e2e_latency": 0.1 });
    let body = json!({ "text": TEXTS[2], "output_ids": [1, 2, 3], "meta_info": meta_info }).to_string();
    assert_eq!(in_json(&body), (Some(64), Some(48)));
    assert_eq!(in_events(&format!("data: {body}\n\ndata: {body}\n\ndata: [DONE]\n\n")), (Some(64), Some(48)));
    assert_eq!(in_json(&format!("[{body},{body}]")), (None, None), "a batch is no prompt");
}

#[test]
fn what_a_model_writes_is_no_usage() {
    for text in TEXTS {
        for body in [
            json!({ "choices": [{ "text": text }] }),
            json!({ "text": text, "meta_info": { "finish_reason": text } }),
            json!({ text: text, "usage": text }),
            json!({ "usage": { "prompt_tokens": text, "prompt_tokens_details": text } }),
            json!([text, { "usage": { "prompt_tokens": 5 } }]),
            json!({ "choices": [{ "usage": { "prompt_tokens": 5 } }], "x": { "usage": { "prompt_tokens": 5 } } }),
            json!({ "response": { "output": [{ "usage": { "prompt_tokens": 5 } }], "text": { "usage": { "input_tokens": 5 } } } }),
        ] {
            assert_eq!(in_json(&body.to_string()), (None, None), "{body}");
            assert_eq!(in_events(&format!("data: {body}\n\n")), (None, None), "{body}");
        }
    }
}

#[test]
fn only_whole_numbers_count() {
    for number in
        ["-1", "1.0", "1e3", "1E3", "true", "null", "\"1\"", "[1]", "{\"a\":1}", "18446744073709551616", "0.5", "-0"]
    {
        let body =
            format!(r#"{{"usage":{{"prompt_tokens":{number},"prompt_tokens_details":{{"cached_tokens":{number}}}}}}}"#);
        assert_eq!(in_json(&body), (None, None), "{body}");
    }
    let most = u64::MAX;
    assert_eq!(in_json(&format!(r#"{{"usage":{{"prompt_tokens":{most} , "x":1}}}}"#)), (Some(most), None));
}

#[test]
fn text_that_is_no_json_is_read_without_a_fault() {
    let escaped = r#"{"us\u0061ge":{"prompt_tokens":5}}"#;
    assert_eq!(in_json(escaped), (None, None), "no engine escapes it");
    for text in [
        "",
        "}",
        "]]]]",
        "\"",
        "\\",
        "{\"usage\":{\"prompt_tokens\":",
        "{}{\"usage\":{\"prompt_tokens\":5}}",
        "{]{\"usage\":{\"prompt_tokens\":5}}",
        "\u{feff}[]",
    ] {
        assert_eq!(in_json(text), (None, None), "{text}");
    }
    let deep = "{\"usage\":".repeat(100_000);
    assert_eq!(in_json(&format!("{deep}{{\"prompt_tokens\":5}}")), (None, None));
    let mut random = Random(3);
    let alphabet = b"{}[]\":,\\ 0123456789usage_prompt_tokens\n\rdata:\xff\x00";
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.pick(alphabet)).collect();
        for framing in [Framing::Json, Framing::Events] {
            assert_eq!(scanned(framing, [bytes.as_slice()]), scanned(framing, bytes.chunks(1)));
        }
    }
}

/// What a key's value may have that is looked for.
fn likely(key: &str) -> &'static [&'static str] {
    match key {
        "" => &KEYS[..4],
        "response" | "message" => &KEYS[..1],
        "usage" => &KEYS[4..11],
        "meta_info" => &["prompt_tokens", "cached_tokens"],
        "prompt_tokens_details" | "input_tokens_details" => &KEYS[8..9],
        _ => &[],
    }
}

/// A key's value in which what is looked for is likely, in the right place or in a wrong one.
fn value(random: &mut Random, key: &str, depth: u32) -> Value {
    let kind = match likely(key) {
        [] if key.ends_with("_tokens") && random.below(2) == 0 => 5,
        [_, ..] if random.below(4) != 0 => 7,
        _ => random.below(8),
    };
    match kind {
        0 => json!(null),
        1 => json!(random.pick(&TEXTS)),
        2 => json!(random.below(u64::MAX)),
        3 => json!(-(random.below(100) as i64)),
        4 => json!(random.below(100) as f64 / 4.0),
        6 if depth > 0 => (0..random.below(4)).map(|_| value(random, key, depth - 1)).collect(),
        7 if depth > 0 => {
            let fields = (0..random.below(6)).map(|_| {
                let keys = if random.below(3) == 0 { &KEYS } else { likely(key) };
                let key = if keys.is_empty() { "x" } else { random.pick(keys) };
                (key.to_owned(), value(random, key, depth - 1))
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
        _ => json!(random.below(2_000)),
    }
}

/// A value as an engine writes it, with or without blanks.
fn written(random: &mut Random, value: &Value, lines: bool) -> String {
    if lines && random.below(3) == 0 { format!("\n{value:#} \n") } else { value.to_string() }
}

fn events(random: &mut Random) -> String {
    let end = random.pick(&["\n", "\r\n", "\r"]);
    let mut body = String::new();
    for _ in 0..random.below(6) {
        let text = value(random, "", 5);
        let text = written(random, &text, false);
        match random.below(8) {
            0 => body.push_str(&format!("event: {text}{end}")),
            1 => body.push_str(&format!("data: [DONE]{end}")),
            2 => body.push_str(&format!(": {text}{end}{end}")),
            _ => body.push_str(&format!("data:{}{text}{end}{end}", random.pick(&["", " "]))),
        }
    }
    body
}

#[test]
fn in_any_pieces_it_finds_what_parsing_the_whole_finds() {
    let mut random = Random(1);
    let mut counts = [0; 2];
    for _ in 0..60_000 {
        let (framing, body) = if random.below(2) == 0 {
            let value = value(&mut random, "", 5);
            (Framing::Json, written(&mut random, &value, true))
        } else {
            (Framing::Events, events(&mut random))
        };
        let expected = parsed::usage(framing, &body);
        let mut rest = body.as_bytes();
        let mut pieces = Vec::new();
        let longest = random.pick(&[2, 5, 40, 1_000]);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(random.below(longest) as usize));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(scanned(framing, pieces), expected, "{body}");
        counts[usize::from(expected != Usage::default())] += 1;
    }
    assert!(counts.iter().all(|count| *count > 3_000), "{counts:?} without and with usage");
}

#[test]
fn its_state_is_small() {
    assert!(size_of::<Scanner>() <= 256, "{} bytes", size_of::<Scanner>());
}
