//! What `template_bounds` tries, natively and on wasm32.

#[path = "../support/random.rs"]
mod random;

use random::Random;
use warmroute::request::ChatApi;
use warmroute::template::{
    Chat, ChatTemplate, InvalidTemplate, Limits, LocalTime, RenderError, SpecialTokens, Value, parse_json,
};

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 3_600 };

/// Real templates are in the cache of one machine only; these are ours.
const TEMPLATES: [&str; 8] = [
    include_str!("blocks.jinja"),
    include_str!("chatml.jinja"),
    include_str!("documents.jinja"),
    include_str!("headers.jinja"),
    include_str!("parts.jinja"),
    include_str!("python.jinja"),
    include_str!("stripping.jinja"),
    include_str!("values.jinja"),
];

/// What came of a template and a conversation.
#[derive(Debug, PartialEq)]
enum End {
    Text(usize),
    Refused,
    OutOfFuel,
    TooLong,
    Invalid,
}

pub fn looping_templates_end() {
    let loops = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a * b %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for a in range(99999) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% for a in range(99999) %}{{ messages | tojson | length }}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99) %}{{ messages | string | length }}{% endfor %}{% endfor %}",
    ];
    for source in loops {
        assert_eq!(end(source), End::OutOfFuel, "{source}");
    }
    let recursions = [
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for a in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
    ];
    for source in recursions {
        assert_eq!(end(source), End::Refused, "{source}");
    }
}

pub fn huge_outputs_end() {
    let outputs = [
        ("{{ 'x' * 3000000 }}", End::TooLong),
        ("{% for a in range(9999) %}{{ 'x' * 1000 }}{% endfor %}", End::TooLong),
        ("{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}", End::TooLong),
        ("{{ 'x' * 99999999 }}", End::OutOfFuel),
        ("{{ '%099999999d' | format(3) }}", End::Refused),
        ("{{ '{:>99999999}'.format(3) }}", End::Refused),
        ("{{ '{:{}}'.format(3, 99999999) }}", End::Refused),
        ("{{ '{:.99999999f}'.format(3.5) }}", End::Refused),
        ("{{ 'x' | indent(99999999) }}", End::Refused),
        ("{{ [1] | tojson(indent=99999999) }}", End::Refused),
        ("{{ range(99999999) | list | length }}", End::Refused),
        ("{{ ([1] * 99999999) | join | length }}", End::OutOfFuel),
    ];
    for (source, expected) in outputs {
        assert_eq!(end(source), expected, "{source}");
    }
}

pub fn deep_nesting_ends() {
    let growing = |step: &str| {
        let source = format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for a in range(60000) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x }}}}"
        );
        end(&source)
    };
    for step in [
        "[ns.x]",
        "{'a': ns.x}",
        "(ns.x,)",
        "ns.x, 1",
        "ns",
        "[ns]",
        "namespace(x=ns)",
        "dict(a=ns.x)",
        "ns.x | batch(1) | list",
        "[ns.x] | zip([1]) | list",
        "ns.x | batch(1)",
        "{'a': ns.x}.items()",
        "raise_exception",
        "(ns.x if a < 0 else [ns.x])",
    ] {
        assert_eq!(growing(step), End::Refused, "{step}");
    }
    for step in ["ns.x[0:]", "ns.x | reverse", "ns.x | list", "ns.x[::-1]"] {
        assert!(matches!(growing(step), End::Text(_) | End::OutOfFuel), "{step}");
    }
    // As many containers as a template may make, at each of as many levels as macros may have.
    let nested = format!(
        "{{% macro f(x) %}}{}{{{{ f(x) }}}}{{% endmacro %}}{{{{ f([1]) }}}}",
        "{% set x = [[[[[[x]]]]]] %}".repeat(10)
    );
    assert_eq!(end(&nested), End::Refused);
    let sliced =
        format!("{{% macro f(x) %}}{}{{{{ f(x) }}}}{{% endmacro %}}{{{{ f([1]) }}}}", "{% set x = x[0:] %}".repeat(24));
    assert_eq!(end(&sliced), End::Refused);
    assert_eq!(end(&"{% set x = [[[[[[x]]]]]] %}".repeat(20)), End::Invalid);
    assert_eq!(end(&"{% set x = x[0:] %}".repeat(30)), End::Invalid);
    // A value as deep as a request may have it, in every place that walks values.
    let deep = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    let body = format!(r#"[{{"role": "user", "content": {deep}, "deep": {{"a": {deep}}}}}]"#);
    for source in TEMPLATES {
        let _ = end_with(source, &chat(body.as_bytes()));
    }
    let walked = "{{ messages }}{{ messages ~ 'x' }}{{ messages | tojson }}{{ messages == messages }}{{ messages | string }}\
        {{ {'k': messages}.items() | list }}{{ messages | join }}{{ [messages, messages] | unique | list }}\
        {{ [messages, messages] | sort }}{{ messages in [messages] }}";
    assert!(matches!(end_with(walked, &chat(body.as_bytes())), End::Text(_) | End::Refused));
}

pub fn long_chains_end() {
    for (start, link, stop) in [
        ("{{ messages", "|list", " }}"),
        ("{{ messages", ".a", " }}"),
        ("{{ messages", "[0]", " }}"),
        ("{{ messages", "[0:]", " }}"),
        ("{{ messages", "()", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", "+1", " }}"),
        ("{{ x", "~x", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ 1", " if x else 2", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " is defined", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "(", "1 }}"),
        ("{{ ", "[", "1 }}"),
        ("{{ ", "{1:", "1 }}"),
        ("{{ ", "f(", "1 }}"),
        ("{% if x %}", "{% elif y %}", "{% endif %}"),
        ("", "{% if x %}", ""),
        ("", "{% if x %}{% elif y %}", ""),
        ("", "{% if x %}{% else %}", ""),
        ("", "{% for a in b %}", ""),
        ("", "{% macro a() %}", ""),
        ("", "{% call a() %}", ""),
        ("", "{% filter upper %}", ""),
        ("", "{% set a %}", ""),
        ("", "{% generation %}", ""),
        ("", "{% with %}", "{{ 1 }}"),
        ("", "{{ 1 }}", ""),
        ("{#", "{#", ""),
        ("{% raw %}", "{% raw %}", ""),
    ] {
        for length in [20, 60, 125, 150, 260, 5_000, 60_000] {
            let _ = end(&format!("{start}{}{stop}", link.repeat(length)));
        }
    }
}

/// Messages of random shape, through every template.
pub fn random_conversations(count: u64) {
    let templates: Vec<ChatTemplate> = TEMPLATES
        .iter()
        .map(|source| ChatTemplate::compile(source, &SpecialTokens::new(Some("<s>"), None), Limits::DEFAULT).unwrap())
        .collect();
    let mut rendered = 0;
    for seed in 0..count {
        let mut random = Random(seed);
        let mut text = String::from("[");
        for position in 0..=random.below(4) {
            text.push_str(if position > 0 { "," } else { "" });
            text.push_str(&random.message());
        }
        text.push(']');
        let mut chat = chat(text.as_bytes());
        if random.below(3) == 0 {
            chat.tools = Some(parse_json(random.json(0).as_bytes()).unwrap());
        }
        chat.add_generation_prompt = random.below(2) == 0;
        chat.continue_final_message = random.below(4) == 0;
        chat.arguments.push(("enable_thinking".to_owned(), parse_json(random.json(2).as_bytes()).unwrap()));
        let body = format!(
            r#"{{"messages": {text}, "tools": {}, "chat_template_kwargs": {}}}"#,
            random.json(0),
            random.json(0)
        );
        for template in &templates {
            let _ = Chat::from_body(body.as_bytes(), template).map(|chat| template.render(&chat, CLOCK));
        }
        rendered += templates.iter().filter(|template| template.render(&chat, CLOCK).is_ok()).count();
    }
    assert!(rendered as u64 > count, "only {rendered} renders came to a text: the conversations are too odd");
}

/// Bodies of three APIs in which values are exchanged for others, each through all three.
pub fn bodies_gone_wrong(count: u64) {
    let compile = |source| ChatTemplate::compile(source, &SpecialTokens::default(), Limits::DEFAULT).unwrap();
    let templates = [compile(include_str!("chatml.jinja")), compile(include_str!("parts.jinja"))];
    let bodies: Vec<&str> = include_str!("apis.jsonl").lines().filter(|row| row.contains("\"body\"")).collect();
    let mut read = 0;
    for seed in 0..count {
        let mut random = Random(seed);
        let row: serde_json::Value = serde_json::from_str(random.pick(&bodies)).unwrap();
        let mut body: serde_json::Value = serde_json::from_str(row["body"].as_str().unwrap_or("{}")).unwrap();
        for _ in 0..=random.below(2) {
            random.exchange(&mut body);
        }
        let body = body.to_string();
        for api in [ChatApi::ChatCompletions, ChatApi::Responses, ChatApi::Messages] {
            for template in &templates {
                let chat = Chat::read(api, body.as_bytes(), template);
                read += u64::from(chat.is_ok());
                let _ = chat.map(|chat| template.render(&chat, CLOCK));
            }
        }
    }
    assert!(read > count / 4, "only {read} bodies were read: they are too wrong");
}

/// Our templates with pieces cut out, doubled and exchanged.
pub fn broken_templates(count: u64) {
    let chat = chat(
        br#"[{"role": "user", "content": "Hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]}]"#,
    );
    let mut compiled = 0;
    for seed in 0..count {
        let mut random = Random(seed);
        let mut source = TEMPLATES[random.below(8) as usize].to_owned();
        for _ in 0..=random.below(4) {
            let mut ends = [random.boundary(&source), random.boundary(&source)];
            ends.sort_unstable();
            let piece = source[ends[0]..ends[1].min(ends[0] + 40)].to_owned();
            let piece = if source.is_char_boundary(ends[0] + piece.len()) { piece } else { String::new() };
            match random.below(3) {
                0 => source.replace_range(ends[0]..ends[0] + piece.len(), ""),
                1 => source.insert_str(ends[0], &piece),
                _ => {
                    let to = random.boundary(&source);
                    source.insert_str(to, &piece);
                }
            }
        }
        compiled += usize::from(end_with(&source, &chat) != End::Invalid);
    }
    assert!(compiled as u64 > count / 20, "only {compiled} templates compiled: they are too broken");
}

fn end(source: &str) -> End {
    end_with(source, &chat(br#"[{"role": "user", "content": "Hi"}]"#))
}

fn end_with(source: &str, chat: &Chat) -> End {
    let compiled: Result<ChatTemplate, InvalidTemplate> =
        ChatTemplate::compile(source, &SpecialTokens::new(None, None), Limits::DEFAULT);
    match compiled.map(|template| template.render(chat, CLOCK)) {
        Ok(Ok(prompt)) => End::Text(prompt.text.len()),
        Ok(Err(RenderError::Refused(_))) => End::Refused,
        Ok(Err(RenderError::OutOfFuel)) => End::OutOfFuel,
        Ok(Err(RenderError::TooLong)) => End::TooLong,
        Err(_) => End::Invalid,
    }
}

fn chat(messages: &[u8]) -> Chat {
    let messages: Value = parse_json(messages).unwrap();
    Chat::new(messages.try_iter().unwrap().collect())
}

// === impl Random ===

impl Random {
    /// A place in a text between two characters.
    fn boundary(&mut self, text: &str) -> usize {
        let mut at = self.below(text.len() as u64 + 1) as usize;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    /// Puts something else in the place of a value somewhere inside this one.
    fn exchange(&mut self, value: &mut serde_json::Value) {
        let inner: Vec<&mut serde_json::Value> = match value {
            serde_json::Value::Array(items) => items.iter_mut().collect(),
            serde_json::Value::Object(fields) => fields.values_mut().collect(),
            _ => Vec::new(),
        };
        let chosen = self.below(inner.len() as u64 + 1) as usize;
        match inner.into_iter().nth(chosen) {
            Some(inner) => self.exchange(inner),
            None => *value = serde_json::from_str(&self.json(0)).unwrap(),
        }
    }

    /// Mostly a message as it should be, with fields that are anything.
    fn message(&mut self) -> String {
        let role = self.pick(&["user", "assistant", "system", "tool", "", "developer"]);
        let mut fields =
            vec![format!("\"role\": {}", if self.below(9) == 0 { self.json(2) } else { format!("{role:?}") })];
        for name in ["content", "tool_calls", "name", "reasoning_content", "thinking", "text"] {
            let likely = name == "content";
            if likely || self.below(4) == 0 {
                let value = if likely && self.below(2) == 0 { "\"Hello \\u00e9\"".to_owned() } else { self.json(0) };
                fields.push(format!("\"{name}\": {value}"));
            }
        }
        format!("{{{}}}", fields.join(", "))
    }

    fn json(&mut self, depth: u64) -> String {
        match self.below(if depth > 4 { 6 } else { 9 }) {
            0 => "null".to_owned(),
            1 => self.pick(&["true", "false"]).to_owned(),
            2 => self
                .pick(&["0", "-1", "1.5", "1e300", "-1e-300", "9007199254740993", "340282366920938463463"])
                .to_owned(),
            3..6 => {
                self.pick(&["\"\"", "\"text\"", "\"{{ x }}\"", "\"\\u0000\\ud83d\\ude00\"", "\"</think>\""]).to_owned()
            }
            6 | 7 => {
                let items: Vec<String> = (0..self.below(4)).map(|_| self.json(depth + 1)).collect();
                format!("[{}]", items.join(","))
            }
            _ => {
                let keys =
                    ["type", "text", "function", "name", "arguments", "parameters", "properties", "enum", "items"];
                let fields: Vec<String> =
                    (0..self.below(5)).map(|_| format!("\"{}\":{}", self.pick(&keys), self.json(depth + 1))).collect();
                format!("{{{}}}", fields.join(","))
            }
        }
    }
}
