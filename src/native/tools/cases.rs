//! The texts and conversations that are compared with an engine.

use serde_json::{Map, Value, json};

use crate::native::models::Pieces;

/// Added tokens that are put into texts.
const ADDED_TOKENS: usize = 12;

/// Texts by name: scripts, code, blanks, and what tokenizers split in ways of their own.
const TEXTS: [(&str, &str); 26] = [
    ("one letter", "a"),
    ("one blank", " "),
    ("sentence", "The quick brown fox jumps over the lazy dog."),
    ("leading blanks", "   three blanks before, none after"),
    ("trailing blanks", "none before, three blanks after   "),
    ("blank lines", "first\n\n\nsecond\n \n\tthird\r\n\r\nfourth\n"),
    ("blanks only", "    \t\t  \n  \n\n   "),
    ("contractions", "It's what they've said; we'll see, I'm sure she'd DON'T can't 'tis"),
    ("numbers", "0 12 345 6789 1234567890 3.14159 1,000,000 1e-7 0x1F 2026-11-30"),
    ("punctuation", "...!?!? ((nested [brackets] {here})) -- <tags/> \"quotes\" 'single' `ticks` @#$%^&*"),
    ("case", "camelCase PascalCase SCREAMING_CASE snake_case kebab-case XMLHttpRequest iPhone"),
    ("German", "Über den Flüssen schläft die Straßenbahn; Grüße aus Köln."),
    ("French", "L'été dernier, où étiez-vous ? Ça, c'est « déjà vu »."),
    ("combining marks", "e\u{301}te\u{301} versus \u{e9}t\u{e9}; a\u{30a} n\u{303} \u{1e9b}\u{323}"),
    ("Russian", "Съешь же ещё этих мягких французских булок, да выпей чаю."),
    ("Greek", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία."),
    ("Arabic", "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر"),
    ("Hindi", "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण"),
    ("Thai", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า"),
    ("Chinese", "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。2026年11月30日"),
    ("Japanese", "いろはにほへと ちりぬるを、カタカナとﾊﾝｶｸ。"),
    ("Korean", "키스의 고유조건은 입술끼리 만나야 하고"),
    ("emoji", "👍🏽 👨‍👩‍👧‍👦 🇩🇪 ☕️ and text 🚀🚀🚀"),
    ("invisible characters", "zero\u{200b}width no\u{a0}break \u{feff}mark soft\u{ad}hyphen \u{2028}line \u{3000}wide"),
    ("repetition", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa                                ================================"),
    ("JSON", r#"{"name": "x", "values": [1, 2.5, -3e4, null, true], "nested": {"text": "a\n\"b\"\\c \u00e9"}}"#),
];

const CODE: &str = "fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n\tif x.len() >= 8 && !x.is_empty() {\n        \
                    println!(\"{:?} // not a comment\", x);\n    }\n}\n\n\ndef f(a, *, b=None):\n    return a if b is None else a[b:]\n";

/// A text or a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    /// For people.
    pub(super) name: String,
    /// What is to be tokenized.
    pub(super) prompt: CasePrompt,
}

/// What is to be tokenized.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CasePrompt {
    /// A text as it stands.
    Text { text: String, add_special_tokens: bool },
    /// The fields of a chat completion's body.
    Chat(Map<String, Value>),
}

/// All of them, with some of the model's own added tokens in texts.
pub(super) fn cases(pieces: &Pieces, with_chats: bool) -> Vec<Case> {
    let added = spread(&pieces.added_tokens());
    let mut texts: Vec<(String, String)> =
        TEXTS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    texts.push(("code".to_owned(), CODE.to_owned()));
    texts.push(("long".to_owned(), TEXTS.iter().map(|(_, text)| *text).collect::<Vec<_>>().join("\n").repeat(4)));
    texts.extend(
        added.iter().map(|token| (format!("added token {token}"), format!("before {token} after{token}x\n{token}\n"))),
    );
    let mut cases = Vec::new();
    for (name, text) in texts {
        for add_special_tokens in [true, false] {
            let prompt = CasePrompt::Text { text: text.clone(), add_special_tokens };
            cases.push(Case {
                name: format!("text `{name}`{}", if add_special_tokens { "" } else { ", bare" }),
                prompt,
            });
        }
    }
    if with_chats {
        let chats = chats(&added);
        cases.extend(chats.into_iter().filter_map(|(name, body)| {
            let Value::Object(body) = body else { return None };
            Some(Case { name: format!("chat `{name}`"), prompt: CasePrompt::Chat(body) })
        }));
    }
    cases
}

/// Some of many, from the first to the last.
fn spread(tokens: &[&str]) -> Vec<String> {
    let step = tokens.len().div_ceil(ADDED_TOKENS).max(1);
    tokens.iter().step_by(step).map(|token| (*token).to_owned()).collect()
}

fn chats(added: &[String]) -> Vec<(&'static str, Value)> {
    let user = |content: &str| json!({"role": "user", "content": content});
    let assistant = |content: &str| json!({"role": "assistant", "content": content});
    let system = json!({"role": "system", "content": "You are a terse assistant.\nAnswer in one line."});
    let tools = json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city, \"now\" & later <b>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "e.g. Köln"},
                "days": {"type": "integer", "minimum": 1, "default": 3}, "units": {"enum": ["C", "F"]}},
                "required": ["city"]}}},
        {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}},
    ]);
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Köln\", \"days\": 2}"}}]});
    let result =
        json!({"role": "tool", "tool_call_id": "call00001", "content": "{\"sky\": \"grey\", \"degrees\": 7.5}"});
    let every = added.join(" ");
    vec![
        ("one message", json!({"messages": [user("Hello")]})),
        ("blanks around", json!({"messages": [user("  \n Hello  \n\n")]})),
        ("system", json!({"messages": [system, user("What is a prefix cache?")]})),
        ("code", json!({"messages": [system, user(CODE)]})),
        ("languages", json!({"messages": [user("Grüße, 你好, こんにちは, привет, 👋🏽")]})),
        (
            "turns",
            json!({"messages": [system, user("One?"), assistant("Two."), user("Three?"), assistant("Four.\n"), user("Five?")]}),
        ),
        (
            "content parts",
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]}),
        ),
        ("no generation prompt", json!({"messages": [user("Hello"), assistant("Hi")], "add_generation_prompt": false})),
        (
            "continued",
            json!({"messages": [user("Count"), assistant("One, two,")], "add_generation_prompt": false, "continue_final_message": true}),
        ),
        ("tools", json!({"messages": [user("Weather in Köln?")], "tools": tools})),
        ("tools and system", json!({"messages": [system, user("Weather in Köln?")], "tools": tools})),
        ("tool call", json!({"messages": [user("Weather in Köln?"), call, result], "tools": tools})),
        (
            "tool call and turn",
            json!({"messages": [user("Weather?"), call, result, assistant("Grey."), user("And Bonn?")], "tools": tools}),
        ),
        ("added tokens in text", json!({"messages": [user(&format!("before {every} after"))]})),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_a_conversation_that_is_one() {
        let pieces = Pieces::of(include_bytes!("../../../tests/tokenizers/small/qwen.json")).unwrap();
        let cases = cases(&pieces, true);
        let names: std::collections::BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len());
        assert!(names.contains("text `added token <one>`"), "{names:?}");
        let chats = cases.iter().filter(|case| matches!(case.prompt, CasePrompt::Chat(_))).count();
        assert_eq!(chats, 14);
        for case in &cases {
            let CasePrompt::Chat(body) = &case.prompt else { continue };
            let template = crate::template::ChatTemplate::compile(
                "{{ messages }}{{ tools }}",
                &crate::template::SpecialTokens::default(),
                crate::template::Limits::DEFAULT,
            );
            let body = serde_json::to_vec(body).unwrap();
            crate::template::Chat::from_body(&body, &template.unwrap()).unwrap();
        }
    }
}
