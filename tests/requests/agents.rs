//! Bodies as agents send them: dozens of tools and a history that grows by two messages a turn. They are built here, since
//! they are long; what they come to in tokens is the templates' and the tokenizers' matter.

use serde_json::{Map, Value, json};
use warmroute::request::{ChatApi, NoAdapters, PromptSource, TextPrompt, read_body};

use crate::{config, inputs};

const TOOLS: usize = 60;
const TURNS: usize = 400;

/// What the tools of an agent look like, in the words of either API.
fn tools(with: impl Fn(String, String, Value) -> Value) -> Vec<Value> {
    let tool = |number: usize| {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "A path below the \"root\", such as C:\\src\\lib.rs."},
                "limit": {"type": ["integer", "null"], "minimum": 0, "default": null},
                "mode": {"enum": ["read", "write", "\u{e9}diter"]}
            },
            "required": ["path"],
            "additionalProperties": false
        });
        with(format!("tool_{number}"), format!("Does {number} things. ").repeat(12), schema)
    };
    (0..TOOLS).map(tool).collect()
}

fn said(turn: usize) -> String {
    format!("Turn {turn}: \u{65e5}\u{672c}\u{8a9e}, \u{1f600}, \\n, \"quoted\",\n\tfn main() {{ let a = [1, 2]; }}\n")
        .repeat(3)
}

fn chat_completions() -> Value {
    let mut messages = vec![json!({"role": "system", "content": "You write code. ".repeat(200)})];
    for turn in 0..TURNS {
        let id = format!("call_{turn}");
        let arguments = json!({"path": format!("src/{turn}.rs"), "limit": turn}).to_string();
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": said(turn)}]}));
        messages
            .push(json!({"role": "assistant", "content": null, "reasoning_content": "Let me look.", "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "tool_1", "arguments": arguments}}]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": said(turn)}));
    }
    let tools = tools(
        |name, description, parameters| json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}),
    );
    json!({"model": "llama", "messages": messages, "tools": tools, "tool_choice": "auto", "stream": true})
}

fn responses() -> Value {
    let mut input = Vec::new();
    for turn in 0..TURNS {
        let id = format!("call_{turn}");
        input.push(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said(turn)}]}));
        input.push(json!({"type": "function_call", "call_id": id, "name": "tool_1", "arguments": "{}"}));
        input.push(json!({"type": "function_call_output", "call_id": id, "output": said(turn)}));
    }
    let tools = tools(
        |name, description, parameters| json!({"type": "function", "name": name, "description": description, "parameters": parameters, "strict": true}),
    );
    json!({"input": input, "instructions": "You write code.", "tools": tools, "store": false, "model": "llama"})
}

fn messages() -> Value {
    let mut messages = Vec::new();
    for turn in 0..TURNS {
        let id = format!("toolu_{turn}");
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": said(turn)}]}));
        messages.push(json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": "tool_1", "input": {"path": "a", "limit": turn}}]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": said(turn)}]}]}));
    }
    let tools =
        tools(|name, description, schema| json!({"name": name, "description": description, "input_schema": schema}));
    json!({"max_tokens": 8192, "messages": messages, "model": "llama", "tools": tools,
           "system": [{"type": "text", "text": "You write code.", "cache_control": {"type": "ephemeral"}}]})
}

/// Python's `json.dumps`: everything beyond ASCII escaped.
fn escaped(body: &Value) -> String {
    let escape = |character: char| match character {
        '\0'..='\u{7f}' => character.to_string(),
        _ => {
            let mut units = [0; 2];
            character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
    };
    body.to_string().chars().map(escape).collect()
}

#[test]
fn a_long_conversation_is_passed_on_without_a_copy() {
    let config = config(&Map::new());
    for (path, api, body) in [
        ("/v1/chat/completions", ChatApi::ChatCompletions, chat_completions()),
        ("/v1/responses", ChatApi::Responses, responses()),
        ("/v1/messages", ChatApi::Messages, messages()),
    ] {
        let forms = [body.to_string(), escaped(&body), serde_json::to_string_pretty(&body).unwrap()];
        for text in forms {
            assert!(text.len() > 200_000, "{} bytes", text.len());
            let sent = text.clone().into_bytes();
            let at = sent.as_ptr();
            let request = read_body(sent, &inputs(path), &config, &mut NoAdapters).unwrap();
            let PromptSource::Text(TextPrompt::Chat { api: found, body }) = request.prompt.source else {
                panic!("{path}: {:?}", request.prompt.source)
            };
            assert_eq!((found, body.as_ptr()), (api, at), "{path}");
            assert_eq!(body, text.as_bytes(), "{path}");
        }
    }
}

#[test]
fn a_field_behind_a_long_conversation_counts_all_the_same() {
    let config = config(&Map::new());
    let text = chat_completions().to_string();
    for (end, expected) in [
        (r#","cache_salt":"s"}"#, Some("unsupported_key")),
        (r#","messages":null}"#, Some("no_prompt")),
        (r#","model":"unknown"}"#, Some("model_not_configured")),
        (r#","#, Some("malformed_json")),
        (r#"}}"#, Some("malformed_json")),
        (r#","user":"u"}"#, None),
    ] {
        let sent = format!("{}{end}", &text[..text.len() - 1]).into_bytes();
        let found = match read_body(sent, &inputs("/v1/chat/completions"), &config, &mut NoAdapters) {
            Err(refusal) => Some(refusal.detail.as_str()),
            Ok(request) => match request.prompt.source {
                PromptSource::Refused(detail) => Some(detail.as_str()),
                _ => None,
            },
        };
        assert_eq!(found, expected, "{end}");
    }
}
