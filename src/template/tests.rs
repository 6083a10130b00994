//! Bodies to conversations and prompts, as vLLM makes them.

use super::{Chat, ChatTemplate, ContentFormat, InvalidChat, Limits, LocalTime, Prompt, RenderError, SpecialTokens};

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };

/// The messages of a body, as Python would print them.
fn messages(messages: &str, format: ContentFormat) -> String {
    let body = format!(r#"{{"messages": {messages}}}"#);
    let chat = Chat::from_body(body.as_bytes(), &compile(template_for(format))).unwrap();
    let texts: Vec<String> = chat.messages.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

/// A template that takes content in that form, and knows developers.
fn template_for(format: ContentFormat) -> &'static str {
    match format {
        ContentFormat::Text => "{{ 'developer' }}{% for m in messages %}{{ m.content }}{% endfor %}",
        ContentFormat::Parts => {
            "{{ 'developer' }}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}"
        }
    }
}

fn chat(body: &str) -> Chat {
    Chat::from_body(body.as_bytes(), &compile(template_for(ContentFormat::Text))).unwrap()
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, &SpecialTokens::new(Some("<s>"), Some("</s>")), Limits::DEFAULT).unwrap()
}

fn render(source: &str, body: &str) -> Result<Prompt, RenderError> {
    let template = compile(source);
    template.render(&Chat::from_body(body.as_bytes(), &template).unwrap(), CLOCK)
}

#[test]
fn content_is_one_text_or_a_list_of_parts() {
    for (given, as_text, as_parts) in [
        (r#""hi""#, "'hi'", "[{'type': 'text', 'text': 'hi'}]"),
        ("null", "''", "[]"),
        (r#"["a", {"type": "text", "text": ""}, {"type": "text", "text": "b", "cache_control": 1}]"#, "'a\\nb'", {
            "[{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': ''}, {'type': 'text', 'text': 'b', 'cache_control': 1}]"
        }),
        (r#"[{"type": "text", "text": null}, {"type": "refusal", "refusal": "no"}]"#, "'no'", {
            "[{'type': 'text', 'text': 'no'}]"
        }),
        (r#"[{"type": "thinking", "thinking": "t"}, {"type": "output_text", "text": "o"}]"#, "'t\\no'", {
            "[{'type': 'text', 'text': 't'}, {'type': 'text', 'text': 'o'}]"
        }),
        (r#"[{"type": "tool_reference", "name": "f"}]"#, "'f'", "[{'type': 'tool_reference', 'name': 'f'}]"),
    ] {
        let message = format!(r#"[{{"role": "user", "content": {given}}}]"#);
        let wrapped = |content: &str| format!("{{'role': 'user', 'content': {content}}}");
        assert_eq!(messages(&message, ContentFormat::Text), wrapped(as_text));
        assert_eq!(messages(&message, ContentFormat::Parts), wrapped(as_parts));
    }
}

#[test]
fn each_role_keeps_its_fields() {
    let calls = r#"[{"type": "function", "index": 0, "id": "a", "function": {"name": "f", "strict": true, "arguments": "{\"b\": 1, \"a\": [1.0]}"}}]"#;
    let assistant =
        format!(r#"[{{"role": "assistant", "tool_calls": {calls}, "reasoning_content": "r", "name": "n", "x": 1}}]"#);
    assert_eq!(messages(&assistant, ContentFormat::Text), {
        "{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'a', 'function': {'arguments': {'b': 1, 'a': [1.0]}, \
         'name': 'f', 'strict': True}, 'type': 'function', 'index': 0}], 'reasoning': 'r', 'reasoning_content': 'r', \
         'name': 'n'}"
    });
    for (arguments, parsed) in [
        ("\"\"", "{}"),
        ("\"no json\"", "{}"),
        ("null", "{}"),
        ("\"[1]\"", "{}"),
        ("[1]", "{}"),
        ("\"{\\\"a\\\": 1}\"", "{'a': 1}"),
        ("{\"a\": 1}", "{'a': 1}"),
    ] {
        let call = format!(
            r#"[{{"role": "assistant", "content": "c", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
        );
        assert_eq!(messages(&call, ContentFormat::Text), {
            format!(
                "{{'role': 'assistant', 'content': 'c', 'tool_calls': [{{'function': {{'arguments': {parsed}, 'name': 'f'}}}}]}}"
            )
        });
    }
    let no_calls = r#"[{"role": "assistant", "content": "c", "tool_calls": [], "reasoning": null}]"#;
    assert_eq!(messages(no_calls, ContentFormat::Text), "{'role': 'assistant', 'content': 'c'}");
    let tool =
        r#"[{"role": "tool", "content": [{"type": "text", "text": "a"}, "b"], "tool_call_id": "i", "tool_calls": 1}]"#;
    assert_eq!(messages(tool, ContentFormat::Parts), "{'role': 'tool', 'content': 'a\\nb', 'tool_call_id': 'i'}");
    let user =
        r#"[{"role": "user", "content": "u", "reasoning": "r", "thinking": "t", "tool_call_id": "i", "name": 1}]"#;
    assert_eq!(messages(user, ContentFormat::Text), "{'role': 'user', 'content': 'u'}");
    let developer = r#"[{"role": "developer", "content": "d", "tools": [{"type": "function"}], "task": "t"}]"#;
    assert_eq!(messages(developer, ContentFormat::Text), {
        "{'role': 'developer', 'content': 'd', 'task': 't', 'tools': [{'type': 'function'}]}"
    });
}

#[test]
fn developers_are_system_where_the_template_does_not_know_them() {
    let merged = |messages: &str| {
        let body = format!(r#"{{"messages": {messages}}}"#);
        let chat = Chat::from_body(body.as_bytes(), &compile("{{ messages }}")).unwrap();
        (
            chat.messages.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            chat.media.map(|media| media.message),
        )
    };
    let one = r#"[{"role": "developer", "content": "d", "tools": [1]}, {"role": "user", "content": "u"}]"#;
    assert_eq!(merged(one).0, "{'role': 'system', 'content': 'd'} {'role': 'user', 'content': 'u'}");
    let two = r#"[{"role": "system", "content": "s", "name": "n"}, {"role": "user", "content": "u"}, {"role": "developer", "content": ""},
        {"role": "developer", "content": "d"}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#;
    let expected =
        "{'role': 'system', 'content': 's\\n\\nd'} {'role': 'user', 'content': 'u'} {'role': 'user', 'content': ''}";
    assert_eq!(merged(two), (expected.to_owned(), Some(2)));
    let billed = r#"[{"role": "system", "content": "x-anthropic-billing-header: cch=1\nrest"}, {"role": "user", "content": "x-anthropic-billing-header"}]"#;
    assert_eq!(
        merged(billed).0,
        "{'role': 'system', 'content': 'rest'} {'role': 'user', 'content': 'x-anthropic-billing-header'}"
    );
}

#[test]
fn tools_are_written_out_as_the_engine_reads_them() {
    let body = r#"{"messages": [{"role": "user", "content": "q"}], "tools": [
        {"cache_control": 1, "function": {"strict": true, "other": 1, "parameters": {"b": {}, "a": 1}, "name": "f"}},
        {"type": "function", "function": {"description": "d", "name": "g", "defer_loading": null}}]}"#;
    assert_eq!(chat(body).tools.unwrap().to_string(), {
        "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': {'b': {}, 'a': 1}, 'strict': True}}, \
         {'type': 'function', 'function': {'name': 'g', 'description': 'd', 'parameters': None}}]"
    });
    assert!(chat(r#"{"messages": [{"role": "user"}], "tools": null}"#).tools.is_none());
}

#[test]
fn arguments_of_the_template_are_merged_as_the_engine_merges_them() {
    let arguments = |more: &str| {
        let chat = chat(&format!(r#"{{"messages": [{{"role": "user", "content": "q"}}], {more}}}"#));
        let pairs: Vec<String> = chat.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join(" ")
    };
    assert_eq!(arguments(r#""chat_template_kwargs": {"a": null, "b": "auto", "c": false}"#), "c=False");
    assert_eq!(arguments(r#""reasoning_effort": "high""#), "enable_thinking=True reasoning_effort=high");
    assert_eq!(arguments(r#""reasoning_effort": "none""#), "enable_thinking=False reasoning_effort=none");
    assert_eq!(
        arguments(
            r#""reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x", "enable_thinking": false}"#
        ),
        "enable_thinking=False reasoning_effort=low"
    );
    let hidden = chat(
        r#"{"messages": [{"role": "user"}], "documents": [{"text": "b"}], "chat_template_kwargs":
            {"add_generation_prompt": false, "tools": [1], "documents": [2]}}"#,
    );
    assert!(hidden.add_generation_prompt && hidden.arguments.is_empty());
    assert_eq!(hidden.tools.unwrap().to_string(), "[1]");
    assert_eq!(hidden.documents.unwrap().to_string(), "[{'text': 'b'}]");
}

#[test]
fn what_the_engine_refuses_is_refused_with_the_field() {
    for (body, field) in [
        ("[]", "the body"),
        ("{", "JSON"),
        ("{}", "messages"),
        (r#"{"messages": []}"#, "messages"),
        (r#"{"messages": {"role": "user"}}"#, "messages"),
        (r#"{"messages": ["hi"]}"#, "messages[0].role"),
        (r#"{"messages": [{"role": "user"}, {"content": "x"}]}"#, "messages[1].role"),
        (r#"{"messages": [{"role": "user", "content": 5}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "user", "content": [{"text": "x"}]}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}"#, "messages[0].tool_calls"),
        (r#"{"messages": [{"role": "user"}], "tools": []}"#, "tools"),
        (r#"{"messages": [{"role": "user"}], "tools": [{"type": "web", "function": {"name": "f"}}]}"#, "tools"),
        (r#"{"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {}}]}"#, "tools"),
        (r#"{"messages": [{"role": "user"}], "documents": [{"text": 1}]}"#, "documents"),
        (r#"{"messages": [{"role": "user"}], "chat_template": "x"}"#, "chat_template"),
        (r#"{"messages": [{"role": "user"}], "chat_template_kwargs": []}"#, "chat_template_kwargs"),
        (r#"{"messages": [{"role": "user"}], "chat_template_kwargs": {"tokenize": true}}"#, "chat_template_kwargs"),
        (r#"{"messages": [{"role": "user"}], "add_generation_prompt": 1}"#, "add_generation_prompt"),
        (r#"{"messages": [{"role": "user"}], "reasoning_effort": 1}"#, "reasoning_effort"),
    ] {
        let error: InvalidChat = Chat::from_body(body.as_bytes(), &compile("")).unwrap_err();
        assert!(error.to_string().contains(field), "{body}: {error}");
    }
}

#[test]
fn the_content_format_is_told_from_the_loops() {
    use ContentFormat::{Parts, Text};
    for (source, expected) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", Text),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", Parts),
        ("{% for m in messages[1:] %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}", Parts),
        (
            "{% set l = messages | reverse %}{% set k = l %}{% for m in k %}{% for c in m.content %}{% endfor %}{% endfor %}",
            Parts,
        ),
        ("{% for m in messages if m.role %}{% for c in m.content if c.text %}{% endfor %}{% endfor %}", Parts),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", Text),
        ("{% for m in others %}{% for c in m.content %}{% endfor %}{% endfor %}", Text),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}{% endfor %}{% endfor %}", Text),
        (
            "{% set ns = namespace() %}{% set ns.l = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            Text,
        ),
        (
            "{% macro f(m) %}{% for c in m.content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
            Parts,
        ),
    ] {
        assert_eq!(compile(source).content_format(), expected, "{source}");
    }
}

#[test]
fn in_front_of_an_image_the_prompt_is_known() {
    let parts = "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}{% if c.type == 'image' %}<img>{% else %}{{ c.text }}{% endif %}{% endfor %}</>{% endfor %}";
    let body = r#"{"messages": [{"role": "system", "content": "é"}, {"role": "user", "content": [
        {"type": "text", "text": "look: "}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "?"}]}]}"#;
    let known = |text: &str| Ok(Prompt { text: text.to_owned(), complete: false });
    assert_eq!(render(parts, body), known("<system>é</><user>look: "));
    // As a text, vLLM puts the model's placeholder first.
    let text = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    assert_eq!(render(text, body), known("<system>é</><user>"));
    // The template says at the start whether there will be an image.
    let early = "{% set ns = namespace(n=0) %}{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{% endfor %}images: {{ ns.n }}";
    assert_eq!(render(&format!("{early}{parts}"), body), known("images: "));
    // Images before texts, whatever the order of the parts.
    let first = "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}{{ '<img>' if c.type == 'image' }}{% endfor %}{% for c in m.content %}{{ c.text }}{% endfor %}</>{% endfor %}";
    assert_eq!(render(first, body), known("<system>é</><user>"));
    assert!(matches!(render("no messages", body), Err(RenderError::Refused(_))));
    assert!(matches!(render("{% for m in messages %}{% endfor %}x", body), Err(RenderError::Refused(_))));
}

#[test]
fn the_last_message_is_continued_only_when_no_answer_is_begun() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    let body = |more: &str| {
        format!(
            r#"{{"messages": [{{"role": "assistant", "content": "To be "}}], "continue_final_message": true{more}}}"#
        )
    };
    let prompt = Prompt { text: "<assistant>To be ".to_owned(), complete: true };
    assert_eq!(render(source, &body(r#", "add_generation_prompt": false"#)), Ok(prompt));
    assert!(matches!(render(source, &body("")), Err(RenderError::Refused(_))));
}

#[test]
fn dates_are_those_of_the_engines_clock() {
    let date = |unix_seconds, utc_offset_seconds, format: &str| {
        let source = format!("{{{{ strftime_now({format:?}) }}}}");
        compile(&source)
            .render(&chat(r#"{"messages": [{"role": "user"}]}"#), LocalTime { unix_seconds, utc_offset_seconds })
    };
    let long = "%a %A %b %B %d %e %j %m %y %Y %H %I %M %S %p %U %W %u %w|%-d %-m %_H %D %F %T %R %c %x %X %r%n%t%% %C %h %k %l[%z%Z]";
    for (unix_seconds, offset, expected) in EXPECTED_DATES {
        assert_eq!(date(*unix_seconds, *offset, long).unwrap().text, *expected);
    }
    // One second before midnight and at it, east of Greenwich.
    assert_eq!(date(1_796_079_599, 3_600, "%d %b %Y").unwrap().text, "30 Nov 2026");
    assert_eq!(date(1_796_079_600, 3_600, "%d %b %Y").unwrap().text, "01 Dec 2026");
    for format in ["%Q", "%", "%-a", "%E"] {
        assert!(date(0, 0, format).is_err(), "{format}");
    }
    assert!(date(i64::MAX, 0, "%Y").is_err());
    assert!(date(i64::MIN, i32::MIN, "%Y").is_err());
}

/// What CPython 3.11 on Linux prints: `datetime.fromtimestamp(seconds + offset, UTC).replace(tzinfo=None).strftime(…)`.
const EXPECTED_DATES: &[(i64, i32, &str)] = &[
    (
        1796040000,
        0,
        "Mon Monday Nov November 30 30 334 11 26 2026 12 12 00 00 PM 48 48 1 1|30 11 12 11/30/26 2026-11-30 12:00:00 12:00 Mon Nov 30 12:00:00 2026 11/30/26 12:00:00 12:00:00 PM\n\t% 20 Nov 12 12[]",
    ),
    (
        1796040000,
        -18000,
        "Mon Monday Nov November 30 30 334 11 26 2026 07 07 00 00 AM 48 48 1 1|30 11  7 11/30/26 2026-11-30 07:00:00 07:00 Mon Nov 30 07:00:00 2026 11/30/26 07:00:00 07:00:00 AM\n\t% 20 Nov  7  7[]",
    ),
    (
        0,
        0,
        "Thu Thursday Jan January 01  1 001 01 70 1970 00 12 00 00 AM 00 00 4 4|1 1  0 01/01/70 1970-01-01 00:00:00 00:00 Thu Jan  1 00:00:00 1970 01/01/70 00:00:00 12:00:00 AM\n\t% 19 Jan  0 12[]",
    ),
    (
        -1,
        0,
        "Wed Wednesday Dec December 31 31 365 12 69 1969 23 11 59 59 PM 52 52 3 3|31 12 23 12/31/69 1969-12-31 23:59:59 23:59 Wed Dec 31 23:59:59 1969 12/31/69 23:59:59 11:59:59 PM\n\t% 19 Dec 23 11[]",
    ),
    (
        951782400,
        0,
        "Tue Tuesday Feb February 29 29 060 02 00 2000 00 12 00 00 AM 09 09 2 2|29 2  0 02/29/00 2000-02-29 00:00:00 00:00 Tue Feb 29 00:00:00 2000 02/29/00 00:00:00 12:00:00 AM\n\t% 20 Feb  0 12[]",
    ),
    (
        951868800,
        0,
        "Wed Wednesday Mar March 01  1 061 03 00 2000 00 12 00 00 AM 09 09 3 3|1 3  0 03/01/00 2000-03-01 00:00:00 00:00 Wed Mar  1 00:00:00 2000 03/01/00 00:00:00 12:00:00 AM\n\t% 20 Mar  0 12[]",
    ),
    (
        1709164800,
        0,
        "Thu Thursday Feb February 29 29 060 02 24 2024 00 12 00 00 AM 08 09 4 4|29 2  0 02/29/24 2024-02-29 00:00:00 00:00 Thu Feb 29 00:00:00 2024 02/29/24 00:00:00 12:00:00 AM\n\t% 20 Feb  0 12[]",
    ),
    (
        1735689599,
        0,
        "Tue Tuesday Dec December 31 31 366 12 24 2024 23 11 59 59 PM 52 53 2 2|31 12 23 12/31/24 2024-12-31 23:59:59 23:59 Tue Dec 31 23:59:59 2024 12/31/24 23:59:59 11:59:59 PM\n\t% 20 Dec 23 11[]",
    ),
    (
        1735689600,
        0,
        "Wed Wednesday Jan January 01  1 001 01 25 2025 00 12 00 00 AM 00 00 3 3|1 1  0 01/01/25 2025-01-01 00:00:00 00:00 Wed Jan  1 00:00:00 2025 01/01/25 00:00:00 12:00:00 AM\n\t% 20 Jan  0 12[]",
    ),
    (
        4102444799,
        3600,
        "Fri Friday Jan January 01  1 001 01 00 2100 00 12 59 59 AM 00 00 5 5|1 1  0 01/01/00 2100-01-01 00:59:59 00:59 Fri Jan  1 00:59:59 2100 01/01/00 00:59:59 12:59:59 AM\n\t% 21 Jan  0 12[]",
    ),
    (
        -2208988800,
        0,
        "Mon Monday Jan January 01  1 001 01 00 1900 00 12 00 00 AM 00 01 1 1|1 1  0 01/01/00 1900-01-01 00:00:00 00:00 Mon Jan  1 00:00:00 1900 01/01/00 00:00:00 12:00:00 AM\n\t% 19 Jan  0 12[]",
    ),
    (
        1672531200,
        0,
        "Sun Sunday Jan January 01  1 001 01 23 2023 00 12 00 00 AM 01 00 7 0|1 1  0 01/01/23 2023-01-01 00:00:00 00:00 Sun Jan  1 00:00:00 2023 01/01/23 00:00:00 12:00:00 AM\n\t% 20 Jan  0 12[]",
    ),
    (
        1704067199,
        0,
        "Sun Sunday Dec December 31 31 365 12 23 2023 23 11 59 59 PM 53 52 7 0|31 12 23 12/31/23 2023-12-31 23:59:59 23:59 Sun Dec 31 23:59:59 2023 12/31/23 23:59:59 11:59:59 PM\n\t% 20 Dec 23 11[]",
    ),
    (
        978307200,
        43200,
        "Mon Monday Jan January 01  1 001 01 01 2001 12 12 00 00 PM 00 01 1 1|1 1 12 01/01/01 2001-01-01 12:00:00 12:00 Mon Jan  1 12:00:00 2001 01/01/01 12:00:00 12:00:00 PM\n\t% 20 Jan 12 12[]",
    ),
];
