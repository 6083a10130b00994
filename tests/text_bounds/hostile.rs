//! The texts, bodies and templates.

use std::fmt::Write;

use warmroute::config::FilterConfig;
use warmroute::model::{LoadedModel, Package, TextLimits};
use warmroute::request::{ChatApi, TextPrompt, TokenizeError, Tokenized};
use warmroute::template::{LocalTime, SpecialTokens};
use warmroute::tokenize::{Workspace, compile};

const TEXT_BYTES: usize = 1 << 20;
const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const TEMPLATE: &str = "{% for message in messages %}<one>{{ message.role }}\n{{ message.content }}<two>\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}<one>assistant\n";
/// Byte-level ones with and without NFC, and some over characters.
const TOKENIZERS: [&[u8]; 4] = [
    include_bytes!("../tokenizers/small/cl100k.json"),
    include_bytes!("../tokenizers/small/qwen35.json"),
    include_bytes!("../tokenizers/small/mistral.json"),
    include_bytes!("../tokenizers/small/gemma.json"),
];

/// The limits of a VM whose configuration names none.
fn limits() -> (TextLimits, usize) {
    let limits = FilterConfig::from_json(br#"{"hub_cluster": "hub", "models": [{"model_id": "m"}]}"#).unwrap().limits;
    let text = TextLimits {
        max_prompt_bytes: limits.max_prompt_bytes,
        max_tokens: limits.max_match_tokens,
        max_symbols: limits.max_merge_symbols,
    };
    (text, limits.memo_bytes)
}

fn model(tokenizer: &[u8], template: &str) -> LoadedModel {
    let package = Package {
        artifact: compile(tokenizer).unwrap(),
        chat_template: Some(template.to_owned()),
        tool_chat_template: None,
        special_tokens: SpecialTokens::default(),
    };
    LoadedModel::load(package).unwrap()
}

fn chat(body: impl Into<Vec<u8>>) -> TextPrompt {
    TextPrompt::Chat { api: ChatApi::ChatCompletions, body: body.into() }
}

fn plain(text: &str) -> TextPrompt {
    TextPrompt::Plain { text: text.to_owned(), add_special_tokens: true }
}

/// A body with one message of a user.
fn body_of(text: &str) -> String {
    serde_json::json!({"messages": [{"role": "user", "content": text}]}).to_string()
}

/// A megabyte of one thing.
fn texts() -> Vec<String> {
    let repeated = ["a", " ", "\n", "\u{1f600}", "7", "\u{301}", "=", "<one", "<one> ", "\0"];
    let mut texts: Vec<String> = repeated.iter().map(|piece| piece.repeat(TEXT_BYTES / piece.len())).collect();
    let mut state = 7_u64;
    let mut random = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    texts.push((0..TEXT_BYTES / 3).filter_map(|_| char::from_u32(0x4e00 + random(20_000))).collect());
    texts.push((0..TEXT_BYTES).map(|_| char::from(b'a' + random(26) as u8)).collect());
    texts
}

pub fn texts_without_words_end() {
    let (limits, memo_bytes) = limits();
    let texts = texts();
    for (number, tokenizer) in TOKENIZERS.iter().enumerate() {
        let model = model(tokenizer, TEMPLATE);
        let mut workspace = Workspace::new(memo_bytes);
        for text in &texts {
            let start: String = text.chars().take(40).collect();
            let mut prompts = vec![plain(text)];
            if number == 0 {
                prompts.extend([TextPrompt::User(text.clone()), chat(body_of(text))]);
            }
            for prompt in prompts {
                let found = model.tokenize(&prompt, CLOCK, &limits, &mut workspace);
                within(&limits, found.as_ref(), &start);
                assert!(
                    found.is_err() || !found.unwrap().complete,
                    "more than the limits allow is complete: {start:?}"
                );
            }
            assert!(workspace.memo_bytes() <= memo_bytes);
        }
        // Nothing of it is in the way of an ordinary text.
        let ordinary = model.tokenize(&TextPrompt::User("hello".to_owned()), CLOCK, &limits, &mut workspace);
        assert!(ordinary.unwrap().complete);
    }
}

fn within(limits: &TextLimits, found: Result<&Tokenized, &TokenizeError>, what: &str) {
    match found {
        Ok(found) => assert!((1..=limits.max_tokens).contains(&found.ids.len()), "{what:?}: {}", found.ids.len()),
        Err(error) => assert_eq!(*error, TokenizeError::OverBudget, "{what:?}"),
    }
}

pub fn bodies_end() {
    let (limits, memo_bytes) = limits();
    let model = model(TOKENIZERS[0], TEMPLATE);
    let mut workspace = Workspace::new(memo_bytes);
    let mut tokenize = |body: String| model.tokenize(&chat(body), CLOCK, &limits, &mut workspace);
    for depth in [1_000, 500_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert_eq!(tokenize(nested.clone()), Err(TokenizeError::Failed));
            assert_eq!(tokenize(nested[..depth].to_owned()), Err(TokenizeError::Failed));
            let within = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "more": {nested}}}"#);
            assert_eq!(tokenize(within), Err(TokenizeError::Failed));
        }
    }
    // Of a key that is given twice the last value counts.
    let twice = tokenize(r#"{"messages": [], "messages": [{"role": "user", "content": "no", "content": "x"}]}"#.into());
    assert_eq!(twice, tokenize(body_of("x")));
    assert!(twice.unwrap().complete);
    for surrogate in [r"\ud800", r"\udc00", r"\ud800\ud800", r"\ud800x", r"\ud83d"] {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "{surrogate}"}}]}}"#);
        assert_eq!(tokenize(body), Err(TokenizeError::Failed), "{surrogate}");
    }
    let pair = tokenize(r#"{"messages": [{"role": "user", "content": "\ud83d\ude00"}]}"#.into());
    assert_eq!(pair, tokenize(body_of("\u{1f600}")));

    let many = |item: &str, bytes: usize| vec![item; bytes / (item.len() + 1)].join(",");
    let messages = format!(r#"{{"messages": [{}]}}"#, many(r#"{"role": "user", "content": ""}"#, TEXT_BYTES));
    within(&limits, tokenize(messages).as_ref(), "messages");
    let mut fields = String::new();
    for number in 0..30_000 {
        let _ = write!(fields, r#""k{number}": {number}, "#);
    }
    let messages = r#""messages": [{"role": "user", "content": "x"}]"#;
    assert_eq!(tokenize(format!("{{{fields} {messages}}}")), tokenize(body_of("x")));
    let arguments = |fields: &str| format!(r#"{{{messages}, "chat_template_kwargs": {{{fields} "z": 1}}}}"#);
    assert_eq!(tokenize(arguments(&fields)), tokenize(body_of("x")), "as many arguments of the template");
    let more: String = (0..10_000).map(|number| format!(r#""m{number}": 1, "#)).collect();
    assert_eq!(
        tokenize(arguments(&(fields.clone() + &more))),
        Err(TokenizeError::OverBudget),
        "more values than one may have"
    );
    let tool = format!(r#"{{"type": "function", "function": {{"name": "f", "parameters": {{{fields} "z": 1}}}}}}"#);
    let tools = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{tool}]}}"#);
    within(&limits, tokenize(tools).as_ref(), "tools");
}

pub fn templates_end() {
    let (limits, memo_bytes) = limits();
    let loops = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages[0].content * 100000 }}",
        "{% set ns = namespace(t='x') %}{% for a in range(9999) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
    ];
    for source in loops {
        let model = model(TOKENIZERS[0], source);
        let prompt = TextPrompt::User("x".repeat(10_000));
        let error = model.tokenize(&prompt, CLOCK, &limits, &mut Workspace::new(memo_bytes)).unwrap_err();
        assert!(matches!(error, TokenizeError::OverBudget | TokenizeError::Failed), "{source}: {error:?}");
    }
}
