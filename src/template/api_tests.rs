//! Bodies of `/v1/responses` and `/v1/messages` to conversations, as vLLM makes them.

use super::{Chat, ChatTemplate, InvalidChat, Limits, LocalTime, Prompt, RenderError, SpecialTokens};
use crate::request::ChatApi;

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
/// Takes content as text, knows developers.
const TEXT: &str = "{{ 'developer' }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}</>{% endfor %}";
/// Takes content as parts.
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string }}\
    {% for c in m.content %}{{ c.text }}{% endfor %}</>{% endfor %}";

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, &SpecialTokens::default(), Limits::DEFAULT).unwrap()
}

fn responses(body: &str) -> Result<Chat, InvalidChat> {
    Chat::read(ChatApi::Responses, body.as_bytes(), &compile(TEXT))
}

fn messages(body: &str) -> Result<Chat, InvalidChat> {
    Chat::read(ChatApi::Messages, body.as_bytes(), &compile(TEXT))
}

/// The messages, one a line, as Python prints them.
fn printed(chat: Result<Chat, InvalidChat>) -> String {
    let messages = chat.unwrap().messages;
    messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn of_input(items: &str) -> String {
    printed(responses(&format!(r#"{{"input": {items}}}"#)))
}

fn of_messages(list: &str) -> String {
    printed(messages(&format!(r#"{{"messages": {list}}}"#)))
}

fn arguments(chat: &Chat) -> String {
    chat.arguments.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_input_is_a_text_or_messages() {
    assert_eq!(of_input(r#""hi""#), "{'role': 'user', 'content': 'hi'}");
    let body = r#"{"instructions": "be brief", "input": [{"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]}"#;
    assert_eq!(
        printed(responses(body)),
        "{'role': 'system', 'content': 'be brief'}\n{'role': 'developer', 'content': 'd'}\n{'role': 'user', 'content': 'a\\nb'}"
    );
    assert_eq!(printed(responses(r#"{"instructions": "", "input": "x"}"#)), "{'role': 'user', 'content': 'x'}");
    let chat = responses(r#"{"input": "x"}"#).unwrap();
    assert!(chat.add_generation_prompt && chat.add_special_tokens && !chat.has_tools());
}

#[test]
fn an_assistants_items_are_one_message_as_long_as_each_brings_something_new() {
    let turn = r#"[
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "why"}, {"type": "reasoning_text", "text": "more"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "first"}, {"type": "output_text", "text": "second"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "namespace": "space", "arguments": "{\"b\": 1, \"a\": 2}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "free"},
        {"type": "function_call_output", "call_id": "c", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "twice"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "brief"}]},
        {"type": "reasoning", "summary": []}]"#;
    let expected = [
        "{'role': 'user', 'content': 'q'}",
        "{'role': 'assistant', 'content': 'first', 'tool_calls': [{'id': 'c', 'function': {'name': 'space__f', 'arguments': {'b': 1, 'a': 2}}, \
         'type': 'function'}, {'id': 'd', 'function': {'name': 'g', 'arguments': {'input': 'free'}}, 'type': 'function'}], \
         'reasoning': 'why', 'reasoning_content': 'why'}",
        "{'role': 'tool', 'content': 'one', 'tool_call_id': 'c'}",
        "{'role': 'tool', 'content': 'two\\nthree', 'tool_call_id': 'd'}",
        "{'role': 'assistant', 'content': 'done'}",
        "{'role': 'assistant', 'content': 'twice', 'reasoning': 'brief', 'reasoning_content': 'brief'}",
        "{'role': 'assistant', 'content': '', 'reasoning': '', 'reasoning_content': ''}",
    ];
    assert_eq!(of_input(turn), expected.join("\n"));
}

#[test]
fn an_unfinished_item_at_the_end_is_gone_on_with() {
    let prompt = |status: &str| {
        let body = format!(
            r#"{{"input": [{{"role": "user", "content": "q"}}, {{"type": "message", "role": "assistant", "id": "m", "status": "{status}", "content": [{{"type": "output_text", "text": "To be"}}]}}]}}"#
        );
        compile(TEXT).render(&responses(&body).unwrap(), CLOCK).unwrap().text
    };
    assert_eq!(prompt("completed"), "developer<user>q</><assistant>To be</>");
    assert_eq!(prompt("incomplete"), "developer<user>q</><assistant>To be");
    assert_eq!(prompt("in_progress"), "developer<user>q</><assistant>To be");
    let call = r#"{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "incomplete"}]}"#;
    assert!(!responses(call).unwrap().continue_final_message);
}

#[test]
fn flat_tools_are_shown_nested_and_built_in_ones_not_at_all() {
    let tools = |tools: &str| {
        let chat = responses(&format!(r#"{{"input": "q", "tools": {tools}}}"#)).unwrap();
        assert_eq!(chat.has_tools(), chat.tools.is_some());
        chat.tools.map(|tools| tools.to_string())
    };
    assert_eq!(
        tools(r#"[{"type": "function", "strict": true, "parameters": {"b": 1, "a": {}}, "name": "f", "x": 1}]"#)
            .unwrap(),
        "[{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': {'b': 1, 'a': {}}, 'strict': True}}]"
    );
    assert_eq!(
        tools(r#"[{"type": "web_search"}, {"type": "namespace", "name": "n", "description": "d", "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]}]"#).unwrap(),
        "[{'type': 'function', 'function': {'name': 'n__f', 'description': None, 'parameters': None}}]"
    );
    assert_eq!(
        tools(r#"[{"type": "custom", "name": "c", "description": "d"}]"#).unwrap(),
        "[{'type': 'function', 'function': {'name': 'c', 'description': 'd', 'parameters': {'type': 'object', 'properties': \
         {'input': {'type': 'string', 'description': 'The freeform text payload for this tool.'}}, 'required': ['input'], \
         'additionalProperties': False}}}]"
    );
    assert_eq!(tools(r#"[{"type": "web_search"}]"#).unwrap(), "[]");
    assert_eq!(tools("[]"), None);
    assert_eq!(tools("null"), None);
}

#[test]
fn effort_and_arguments_of_a_response_reach_the_template() {
    let chat = |more: &str| arguments(&responses(&format!(r#"{{"input": "q", {more}}}"#)).unwrap());
    assert_eq!(
        chat(r#""reasoning": {"effort": "low", "summary": "auto"}"#),
        "enable_thinking=True reasoning_effort=low"
    );
    assert_eq!(chat(r#""reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": 1}"#), {
        "enable_thinking=1 reasoning_effort=none"
    });
    assert_eq!(chat(r#""reasoning": {}, "chat_template_kwargs": {"a": null, "b": "auto"}"#), "a=None b=auto");
    assert_eq!(chat(r#""tool_choice": "none", "text": {"format": {"type": "json_object"}}, "store": true"#), "");
}

#[test]
fn what_only_the_engine_has_is_refused() {
    for name in ["previous_response_id", "conversation", "prompt", "previous_input_messages"] {
        let error = responses(&format!(r#"{{"input": "q", "{name}": "x"}}"#)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("engine"), "{error}");
        assert!(responses(&format!(r#"{{"input": "q", "{name}": null}}"#)).is_ok());
    }
}

#[test]
fn items_that_the_engine_refuses_are_refused_with_their_place() {
    for (body, field) in [
        ("[]", "the body"),
        ("{}", "input"),
        (r#"{"input": 1}"#, "input"),
        (r#"{"input": []}"#, "messages"),
        (r#"{"input": ["x"]}"#, "input"),
        (r#"{"input": [{"type": "item_reference", "id": "m"}]}"#, "input[0].type"),
        (r#"{"input": [{"type": null, "role": "user", "content": "x"}]}"#, "input[0].type"),
        (r#"{"input": [{"type": "web_search_call", "id": "w"}]}"#, "input[0].type"),
        (r#"{"input": [{"role": "tool", "content": "x"}]}"#, "input[0].role"),
        (
            r#"{"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}]}"#,
            "input[0].content",
        ),
        (
            r#"{"input": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}]}"#,
            "input[0].content",
        ),
        (r#"{"input": [{"type": "message", "role": "assistant", "content": []}]}"#, "input[0].content"),
        (
            r#"{"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}"#,
            "input[0].encrypted_content",
        ),
        (r#"{"input": [{"type": "reasoning"}]}"#, "input[0].summary"),
        (
            r#"{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}"#,
            "input[0].arguments",
        ),
        (r#"{"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}"#, "input[0].call_id"),
        (r#"{"input": [{"type": "function_call_output", "call_id": "c"}]}"#, "input[0].output"),
        (
            r#"{"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}"#,
            "messages[0].content",
        ),
        (r#"{"input": "q", "instructions": 1}"#, "instructions"),
        (r#"{"input": "q", "reasoning": "low"}"#, "reasoning"),
        (r#"{"input": "q", "truncation": "auto"}"#, "truncation"),
        (r#"{"input": "q", "truncation": null}"#, "truncation"),
        (r#"{"input": "q", "tools": [{"type": "hologram"}]}"#, "tools"),
        (r#"{"input": "q", "tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}"#, "tools"),
        (r#"{"input": "q", "tools": [{"type": "function", "name": "f", "defer_loading": true}]}"#, "tools"),
    ] {
        let error = responses(body).unwrap_err().to_string();
        assert!(error.contains(field), "{body}: {error}");
    }
}

#[test]
fn a_system_prompt_is_a_text_or_texts() {
    let system = |system: &str| {
        printed(messages(&format!(r#"{{"system": {system}, "messages": [{{"role": "user", "content": "q"}}]}}"#)))
    };
    let user = "{'role': 'user', 'content': 'q'}";
    assert_eq!(system(r#""s""#), format!("{{'role': 'system', 'content': 's'}}\n{user}"));
    let blocks = r#"[{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}]"#;
    assert_eq!(system(blocks), format!("{{'role': 'system', 'content': 'ab'}}\n{user}"));
    assert_eq!(system("[]"), user);
    assert_eq!(system("null"), user);
    let chat = messages(r#"{"messages": [{"role": "user", "content": "q"}]}"#).unwrap();
    assert!(chat.add_generation_prompt && !chat.add_special_tokens && !chat.has_tools());
}

#[test]
fn results_stand_in_front_of_what_the_user_says() {
    let turn = r#"[
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "s"}, {"type": "text", "text": "t"},
            {"type": "redacted_thinking", "data": "d"}, {"type": "thinking", "thinking": "b"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1, "a": 2}}]},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": ""},
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "one"}, {"type": "document"}, {"type": "text", "text": "two"}, {"type": "tool_reference", "tool_name": "g"}]},
            {"type": "tool_result", "tool_use_id": "d", "is_error": true}, {"type": "text", "text": "then"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "e", "content": "three"}]},
        {"role": "assistant", "content": []}]"#;
    let expected = [
        "{'role': 'user', 'content': 'q'}",
        "{'role': 'assistant', 'content': 't', 'tool_calls': [{'id': 'c', 'function': {'arguments': {'b': 1, 'a': 2}, 'name': 'f'}, \
         'type': 'function'}], 'reasoning': 'ab', 'reasoning_content': 'ab'}",
        "{'role': 'tool', 'content': 'one\\ntwo', 'tool_call_id': 'c'}",
        "{'role': 'tool', 'content': 'g', 'tool_call_id': 'c'}",
        "{'role': 'tool', 'content': '', 'tool_call_id': 'd'}",
        "{'role': 'user', 'content': 'and\\nthen'}",
        "{'role': 'tool', 'content': 'three', 'tool_call_id': 'e'}",
        "{'role': 'assistant', 'content': ''}",
    ];
    assert_eq!(of_messages(turn), expected.join("\n"));
}

#[test]
fn schemas_are_parameters_and_an_empty_list_of_tools_is_one() {
    let tools = |tools: &str| {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "q"}}], "tools": {tools}}}"#);
        messages(&body).unwrap().tools.map(|tools| tools.to_string())
    };
    assert_eq!(
        tools(r#"[{"type": "custom", "name": "f", "description": "d", "input_schema": {"properties": {}}, "cache_control": {}},
            {"name": "g", "input_schema": {"type": "object"}, "strict": false}]"#).unwrap(),
        "[{'type': 'function', 'function': {'name': 'f', 'description': 'd', 'parameters': {'properties': {}, 'type': 'object'}}}, \
         {'type': 'function', 'function': {'name': 'g', 'description': None, 'parameters': {'type': 'object'}, 'strict': False}}]"
    );
    assert_eq!(tools("[]").unwrap(), "[]");
    assert_eq!(tools("null"), None);
}

#[test]
fn an_assistants_message_at_the_end_is_not_gone_on_with() {
    let body = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "To be"}]}"#;
    let source = format!("{TEXT}{{{{ '<assistant>' if add_generation_prompt }}}}");
    let text = compile(&source).render(&messages(body).unwrap(), CLOCK).unwrap().text;
    assert_eq!(text, "developer<user>q</><assistant>To be</><assistant>");
}

#[test]
fn disabled_thinking_asks_for_the_least_that_the_template_knows() {
    let asked = |source: &str, more: &str| {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "q"}}], {more}}}"#);
        arguments(&Chat::from_messages(body.as_bytes(), &compile(source)).unwrap())
    };
    let disabled = r#""thinking": {"type": "disabled"}, "output_config": {"effort": "max"}"#;
    let none = "enable_thinking=False reasoning_effort=none";
    let low = "enable_thinking=True reasoning_effort=low";
    assert_eq!(asked("{{ enable_thinking }}", disabled), none);
    assert_eq!(asked("{{ reasoning_effort }}", disabled), none);
    assert_eq!(asked("ignores it", disabled), low);
    assert_eq!(asked("{{ 'max' if reasoning_effort not in ['low', 'high'] else reasoning_effort }}", disabled), low);
    assert_eq!(asked("{{ raise_exception('no') if reasoning_effort == 'none' }}", disabled), low);
    let enabled = r#""thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "max"}"#;
    assert_eq!(asked("", enabled), "enable_thinking=True reasoning_effort=max");
    assert_eq!(asked("", r#""thinking": {"type": "adaptive"}"#), "");
}

#[test]
fn messages_of_the_system_stay_where_the_template_takes_them() {
    let body = r#"{"system": "a", "messages": [{"role": "user", "content": "q"}, {"role": "system", "content": "b"},
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header"}]}, {"role": "user", "content": "r"}]}"#;
    let placed = |source: &str| printed(Chat::from_messages(body.as_bytes(), &compile(source)));
    let (q, r) = ("{'role': 'user', 'content': 'q'}", "{'role': 'user', 'content': 'r'}");
    let (a, b) = ("{'role': 'system', 'content': 'a'}", "{'role': 'system', 'content': 'b'}");
    assert_eq!(placed("{{ messages }}"), [a, q, b, r].join("\n"));
    let merged = ["{'role': 'system', 'content': 'ab'}", q, r].join("\n");
    let guard = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{% endfor %}";
    assert_eq!(placed(guard), merged);
    assert_eq!(placed("{{ strftime_now('%Y') }}"), merged);
    assert_eq!(placed("{{ bos_token + 'x' }}"), merged);
    assert_eq!(placed("{% generation %}{% endgeneration %}"), merged);
    assert_eq!(placed("{{ strftime_now('%Y') if strftime_now is defined }}{{ bos_token }}"), [a, q, b, r].join("\n"));
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert!(Chat::from_messages(body.as_bytes(), &compile(endless)).is_err());
}

#[test]
fn blocks_that_the_engine_refuses_are_refused_with_their_place() {
    for (body, field) in [
        ("{}", "messages"),
        (r#"{"messages": []}"#, "messages"),
        (r#"{"messages": ["x"]}"#, "messages[0].role"),
        (r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "messages[0].role"),
        (r#"{"messages": [{"role": "user"}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "document"}]}]}"#, "messages[0].content"),
        (r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}"#, "messages[0].content"),
        (
            r#"{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}"#,
            "messages[0].content",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": []}]}]}"#,
            "messages[0].content",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": [{"type": "tool_result", "content": []}]}]}"#,
            "messages[0].content",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": null}]}]}]}"#,
            "messages[0].content",
        ),
        (r#"{"messages": [{"role": "system", "content": [{"type": "tool_removal"}]}]}"#, "messages[0].content"),
        (r#"{"system": 1, "messages": [{"role": "user", "content": "q"}]}"#, "system"),
        (
            r#"{"messages": [{"role": "user", "content": "q"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}"#,
            "tools",
        ),
        (r#"{"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "x"}}"#, "thinking"),
        (r#"{"messages": [{"role": "user", "content": "q"}], "output_config": {"effort": "none"}}"#, "output_config"),
    ] {
        let error = messages(body).unwrap_err().to_string();
        assert!(error.contains(field), "{body}: {error}");
    }
}

#[test]
fn in_front_of_an_image_the_prompt_of_each_api_is_known() {
    let template = compile(PARTS);
    let prompt = |api, body: &str| -> Result<Prompt, RenderError> {
        template.render(&Chat::read(api, body.as_bytes(), &template).unwrap(), CLOCK)
    };
    let known = |text: &str| Ok(Prompt { text: text.to_owned(), complete: false });
    let item = r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "look: "}, {"type": "input_image", "image_url": "x"}, {"type": "input_text", "text": "?"}]}]}"#;
    assert_eq!(prompt(ChatApi::Responses, item), known("<user>look: "));
    let chat = Chat::from_responses(item.as_bytes(), &template).unwrap();
    assert!(chat.messages[0].to_string().contains("{'type': 'image', 'detail': 'auto'}"), "{:?}", chat.messages);
    let block = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "look: "}, {"type": "image", "source": {"type": "base64", "data": "x"}}, {"type": "text", "text": "?"}]}]}"#;
    assert_eq!(prompt(ChatApi::Messages, block), known("<user>look: "));
    // An image of a tool is a user's, after the tool's text and before what the user says.
    let result = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "tool_result", "tool_use_id": "c",
        "content": [{"type": "image", "source": {"type": "url", "url": "x"}}, {"type": "text", "text": "seen"}]}]}]}"#;
    assert_eq!(prompt(ChatApi::Messages, result), known("<tool>seen</><user>"));
}

#[test]
fn special_tokens_are_added_where_the_engine_adds_them() {
    let template = compile(TEXT);
    let added = |more: &str| {
        let body = format!(r#"{{"messages": [{{"role": "user", "content": "q"}}]{more}}}"#);
        Chat::read(ChatApi::ChatCompletions, body.as_bytes(), &template).map(|chat| chat.add_special_tokens)
    };
    assert_eq!(added(""), Ok(false));
    assert_eq!(added(r#", "add_special_tokens": true"#), Ok(true));
    assert!(added(r#", "add_special_tokens": "yes""#).is_err());
}

#[test]
fn json_is_bounded_and_read_as_python_reads_it() {
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    for (name, read) in [("input", responses as fn(&str) -> _), ("system", messages)] {
        let body = |text: &str| format!(r#"{{"messages": [{{"role": "user", "content": "q"}}], "{name}": {text}}}"#);
        assert!(read(&body(r#""x""#)).is_ok());
        assert!(matches!(read(&body(&deep(100_000))), Err(InvalidChat::Json(_))), "{name}");
        assert!(matches!(read(&body(r#""\ud800""#)), Err(InvalidChat::Json(_))), "{name}");
        assert!(matches!(read(&body(r#""x", "model": 1"#)[..20]), Err(InvalidChat::Json(_))), "{name}");
        // Of a key that is given twice the last counts.
        let twice = printed(read(&body(&format!(r#""x", "{name}": "y""#))));
        assert!(twice.contains("'y'") && !twice.contains("'x'"), "{twice}");
    }
    let long = "x".repeat(3 << 20);
    assert!(of_input(&format!("{long:?}")).contains(&long));
}

#[test]
fn arguments_that_only_python_reads_are_refused() {
    let call = |arguments: &str| {
        let item = format!(r#"{{"type": "function_call", "call_id": "c", "name": "f", "arguments": {arguments:?}}}"#);
        responses(&format!(r#"{{"input": [{item}]}}"#))
    };
    for arguments in
        [r#"{"a": NaN}"#, r#"{"a": -Infinity}"#, r#"{"a": "\ud800"}"#, &format!("{{\"a\": {}}}", "9".repeat(40))]
    {
        assert!(call(arguments).is_err(), "{arguments}");
    }
    assert!(call(&"[".repeat(200)).is_err());
    for arguments in ["{", "{'a': 1}", "nul", "1 2"] {
        assert!(printed(call(arguments)).contains("'arguments': {}"), "{arguments}");
    }
}
