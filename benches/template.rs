//! Time to compile a chat template, to read a chat body, and to render: a conversation of 22 messages, and one whose last
//! message has 100 KB.
//!
//! The template, the conversation and its text come from the reference renders of the tests.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, SpecialTokens};

const ROWS: &str = include_str!("../tests/templates/rows.jsonl");
const TEMPLATE: &str = include_str!("../tests/templates/chatml.jinja");
const TEMPLATE_NAME: &str = "chatml.jinja";
const CHAT: u64 = 2;
const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const LONG_BYTES: usize = 100_000;

/// A field of the one row that is wanted.
fn reference(kind: &str, wanted: impl Fn(&serde_json::Value) -> bool, field: &str) -> serde_json::Value {
    let rows = ROWS.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = rows.filter(|row| row["kind"] == kind && wanted(row)).filter_map(|row| row.get(field).cloned());
    found.next().unwrap_or_default()
}

fn compile(source: &str) -> Option<ChatTemplate> {
    ChatTemplate::compile(source, &SpecialTokens::new(Some("<s>"), Some("</s>")), Limits::DEFAULT).ok()
}

fn templates(criterion: &mut Criterion) {
    let mut messages = reference("chat", |row| row["id"] == CHAT, "messages");
    let expected = reference("render", |row| row["template"] == TEMPLATE_NAME && row["chat"] == CHAT, "text");
    let Some(expected) = expected.as_str() else { return assert_eq!(expected, "a text") };
    let body = |messages: &serde_json::Value| serde_json::json!({ "messages": messages }).to_string();

    let short = body(&messages);
    let long_text = "Lorem ipsum dolor sit amet, \"é\" 中文.\n".repeat(LONG_BYTES / 42);
    let last = messages.as_array_mut().and_then(|messages| messages.last_mut());
    let replaced = last.map(|message| message["content"].take());
    let replaced = replaced.as_ref().and_then(|text| text.as_str()).unwrap_or_default();
    let long_expected = expected.replace(replaced, &long_text);
    if let Some(message) = messages.as_array_mut().and_then(|messages| messages.last_mut()) {
        message["content"] = long_text.into();
    }
    let long = body(&messages);

    let mut group = criterion.benchmark_group("template");
    group.bench_function("compile", |bencher| bencher.iter(|| compile(black_box(TEMPLATE))));
    let Some(template) = compile(TEMPLATE) else { return assert_eq!(TEMPLATE_NAME, "a template that compiles") };
    for (name, body, expected) in [("22_messages", &short, expected), ("last_of_100_kb", &long, &long_expected)] {
        let read = || Chat::from_body(black_box(body).as_bytes(), &template);
        let Ok(chat) = read() else { return assert_eq!(name, "a conversation") };
        let prompt = template.render(&chat, CLOCK).map(|prompt| prompt.text);
        assert_eq!(prompt.as_deref(), Ok(expected));
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(format!("read/{name}"), |bencher| bencher.iter(read));
        group.throughput(Throughput::Bytes(expected.len() as u64));
        group.bench_function(format!("render/{name}"), |bencher| {
            bencher.iter(|| template.render(black_box(&chat), CLOCK));
        });
    }
    group.finish();
}

criterion_group!(benches, templates);
criterion_main!(benches);
