use super::*;
use crate::request::{ChatApi, TextPrompt, TokenizeError, Tokenized};
use crate::template::{LocalTime, SpecialTokens};
use crate::tokenize::{Limits, Specials, Tokenizer, Workspace, compile};

const TOKENIZER: &[u8] = include_bytes!("../../tests/tokenizers/small/cl100k.json");
const TEMPLATE: &str = "{% for message in messages %}<one>{{ message.role }}\n{% if message.content is string %}\
    {{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}\
    {% else %}<two><two>{% endif %}{% endfor %}{% endif %}<two>{% endfor %}\
    {% if add_generation_prompt %}<one>assistant\n{% endif %}";
const TOOL_TEMPLATE: &str = "tools: {{ tools | length }} {{ messages[0].content }}";
const LIMITS: TextLimits = TextLimits { max_prompt_bytes: 10_000, max_tokens: 2_000, max_symbols: 5_000 };

fn package() -> Package {
    Package {
        artifact: compile(TOKENIZER).unwrap(),
        chat_template: Some(TEMPLATE.to_owned()),
        tool_chat_template: Some(TOOL_TEMPLATE.to_owned()),
        special_tokens: SpecialTokens::default(),
    }
}

fn clock() -> LocalTime {
    LocalTime { unix_seconds: 0, utc_offset_seconds: 0 }
}

fn tokenize(package: Package, prompt: &TextPrompt, limits: &TextLimits) -> Result<Tokenized, TokenizeError> {
    LoadedModel::load(package).unwrap().tokenize(prompt, clock(), limits, &mut Workspace::new(10_000))
}

fn ids(text: &str) -> Vec<u32> {
    let tokenizer = Tokenizer::load(compile(TOKENIZER).unwrap()).unwrap();
    tokenizer.encode(text, Specials::None, &Limits::default(), &mut Workspace::new(0)).unwrap()
}

fn chat(body: &str) -> TextPrompt {
    TextPrompt::Chat { api: ChatApi::ChatCompletions, body: body.as_bytes().to_vec() }
}

#[test]
fn a_users_text_and_a_chat_go_through_the_template() {
    let expected = Tokenized { ids: ids("<one>user\nhello there<two><one>assistant\n"), complete: true };
    assert_eq!(tokenize(package(), &TextPrompt::User("hello there".to_owned()), &LIMITS), Ok(expected.clone()));
    let body = chat(r#"{"model": "m", "messages": [{"role": "user", "content": "hello there"}]}"#);
    assert_eq!(tokenize(package(), &body, &LIMITS), Ok(expected));
}

#[test]
fn a_plain_text_needs_no_template() {
    let package = Package { chat_template: None, tool_chat_template: None, ..package() };
    let plain = TextPrompt::Plain { text: "hello <one>".to_owned(), add_special_tokens: false };
    let expected = Tokenized { ids: ids("hello <one>"), complete: true };
    assert_eq!(tokenize(package.clone(), &plain, &LIMITS), Ok(expected));
    let user = TextPrompt::User("hello".to_owned());
    assert_eq!(tokenize(package, &user, &LIMITS), Err(TokenizeError::NoTemplate));
}

#[test]
fn tools_choose_their_template() {
    let body = |tools: &str| chat(&format!(r#"{{"messages": [{{"role": "user", "content": "x"}}]{tools}}}"#));
    let tools = r#", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]"#;
    assert_eq!(tokenize(package(), &body(tools), &LIMITS).unwrap().ids, ids("tools: 1 x"));
    let expected = ids("<one>user\nx<two><one>assistant\n");
    assert_eq!(tokenize(package(), &body(""), &LIMITS).unwrap().ids, expected);
    let without = Package { tool_chat_template: None, ..package() };
    assert_eq!(tokenize(without, &body(tools), &LIMITS).unwrap().ids, expected);
}

#[test]
fn of_a_chat_with_an_image_the_words_before_it_are_known() {
    let body = chat(
        r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [
            {"type": "text", "text": "look at this picture"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]}"#,
    );
    let found = tokenize(package(), &body, &LIMITS).unwrap();
    assert_eq!(found, Tokenized { ids: ids("<one>system\ns<two><one>user\nlook at this"), complete: false });
}

#[test]
fn over_a_limit_the_leading_ids_stand() {
    let letter = |number: u8| char::from(b'a' + number);
    let text: String = (0..100).map(|n| format!("a word zq{}{} <two>", letter(n % 26), letter(n / 26))).collect();
    let all = ids(&text);
    let plain = TextPrompt::Plain { text, add_special_tokens: false };
    for limits in [
        TextLimits { max_prompt_bytes: 1_000, ..LIMITS },
        TextLimits { max_tokens: 100, ..LIMITS },
        TextLimits { max_symbols: 30, ..LIMITS },
    ] {
        let found = tokenize(package(), &plain, &limits).unwrap();
        assert!(all.starts_with(&found.ids) && found.ids.len() > 20, "{limits:?}: {} ids", found.ids.len());
        assert!(!found.complete);
    }
    let nothing = TextLimits { max_prompt_bytes: 0, ..LIMITS };
    assert_eq!(tokenize(package(), &plain, &nothing), Err(TokenizeError::OverBudget));
}

#[test]
fn what_cannot_be_known_is_told() {
    let error = |body: &str| tokenize(package(), &chat(body), &LIMITS).unwrap_err();
    assert_eq!(error("{"), TokenizeError::Failed);
    assert_eq!(error(r#"{"messages": []}"#), TokenizeError::Failed);
    let template = r#"{"messages": [{"role": "user", "content": "x"}], "chat_template": "x"}"#;
    assert_eq!(error(template), TokenizeError::UnsupportedKey);
    let looping = Package {
        chat_template: Some("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}".to_owned()),
        ..package()
    };
    let user = TextPrompt::User("x".to_owned());
    assert_eq!(tokenize(looping, &user, &LIMITS), Err(TokenizeError::OverBudget));
    let refusing = Package { chat_template: Some("{{ raise_exception('no') }}".to_owned()), ..package() };
    assert_eq!(tokenize(refusing, &user, &LIMITS), Err(TokenizeError::Failed));
}

#[test]
fn models_count_what_they_take() {
    let digest = |number| crate::observation::ModelDigest(number);
    let mut models = Models::new(1_000);
    assert_eq!((models.bytes(), models.memo_bytes()), (0, 0));
    let package = package();
    let least = package.artifact.len();
    models.insert(digest(1), LoadedModel::load(package.clone()).unwrap());
    let one = models.bytes();
    assert!((least..least + 10_000).contains(&one), "{one} bytes, the artifact has {least}");
    models.insert(digest(2), LoadedModel::load(package).unwrap());
    assert_eq!(models.bytes(), 2 * one);
    models.retain(|kept| kept == digest(2));
    assert_eq!(models.bytes(), one);
    assert!(models.has(digest(2)) && !models.has(digest(1)));
}

#[test]
fn two_models_share_the_memory_of_texts_and_never_each_others_ids() {
    const OTHER: &[u8] = include_bytes!("../../tests/tokenizers/small/gpt2.json");
    let text = "<one>user\na text that is long enough to be remembered, and a few words<two><one>assistant\n";
    let load = |json| LoadedModel::load(Package { artifact: compile(json).unwrap(), ..package() }).unwrap();
    let models = [load(TOKENIZER), load(OTHER)];
    let plain = TextPrompt::Plain { text: text.to_owned(), add_special_tokens: false };
    let mut shared = Workspace::new(10_000);
    for _ in 0..2 {
        for model in &models {
            let alone = model.tokenize(&plain, clock(), &LIMITS, &mut Workspace::new(0));
            assert_eq!(model.tokenize(&plain, clock(), &LIMITS, &mut shared), alone);
        }
    }
    let both = shared.memo_bytes();
    assert!(both > 0);
    shared.set_memo_bytes(10_000);
    assert_eq!(shared.memo_bytes(), both);
    shared.set_memo_bytes(0);
    assert_eq!(shared.memo_bytes(), 0);
}

#[test]
fn a_conversation_that_grows_has_the_ids_that_it_has_alone() {
    let model = LoadedModel::load(package()).unwrap();
    // So small that turns are forgotten, and large enough for some.
    for memo_bytes in [0, 60_000, 400_000] {
        let mut shared = Workspace::new(memo_bytes);
        let mut messages = Vec::new();
        for turn in 0..12 {
            let long = format!("turn {turn}, \\\"quoted\\\"\\n<one>\\u00e9 and more of it ").repeat(8);
            messages.push(format!(r#"{{"role": "user", "content": "{long}"}}"#));
            messages.push(format!(r#"{{"content": [{{"type": "text", "text": "{long}"}}], "role": "assistant"}}"#));
            // The same messages among others, and in another order.
            let turned: Vec<_> = messages.iter().rev().cloned().collect();
            for messages in [&messages, &turned] {
                let body = chat(&format!(r#"{{"messages": [{}]}}"#, messages.join(", ")));
                let alone = model.tokenize(&body, clock(), &LIMITS, &mut Workspace::new(0));
                assert!(alone.is_ok());
                for _ in 0..2 {
                    assert_eq!(model.tokenize(&body, clock(), &LIMITS, &mut shared), alone);
                    assert!(shared.memo_bytes() <= memo_bytes);
                }
            }
        }
        assert_eq!(shared.memo_bytes() > 0, memo_bytes > 0);
    }
}
