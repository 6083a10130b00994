//! One conversation through three APIs: the prompt is the same.

#[path = "../support/random.rs"]
mod random;

use random::Random;
use serde_json::{Value, json};
use warmroute::request::ChatApi;
use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, Prompt, SpecialTokens};

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };
const TEXTS: [&str; 7] = ["", "a", "b c", "é\n", "it's \"so\"", "<|start|>", "{\"a\": 1}"];
/// In the order in which serde_json writes keys.
const ARGUMENTS: [&str; 4] = ["{}", r#"{"a":[1.5,null],"b":1}"#, r#"{"city":"Zürich"}"#, r#"{"x":{"y":true}}"#];

/// A conversation as far as all three can say it.
struct Conversation {
    system: Option<&'static str>,
    tools: usize,
    effort: Option<&'static str>,
    turns: Vec<Turn>,
}

enum Turn {
    User(&'static str),
    Assistant {
        reasoning: Option<&'static str>,
        text: Option<&'static str>,
        calls: Vec<&'static str>,
    },
    /// The results of a tool's calls.
    Results(Vec<&'static str>),
}

/// Every template that is given tools must see the same whichever way they came.
pub fn one_conversation_is_one_prompt(count: u64) {
    let templates = [include_str!("chatml.jinja"), include_str!("headers.jinja"), include_str!("parts.jinja")];
    for (index, source) in templates.into_iter().enumerate() {
        let special = SpecialTokens::new(Some("<s>"), Some("</s>"));
        let template = ChatTemplate::compile(source, &special, Limits::DEFAULT).unwrap();
        let mut texts = Vec::new();
        for seed in 0..count {
            let conversation = Conversation::random(&mut Random(seed));
            let prompt = |api, body: &Value| -> Result<Prompt, String> {
                let chat =
                    Chat::read(api, body.to_string().as_bytes(), &template).map_err(|error| error.to_string())?;
                template.render(&chat, CLOCK).map_err(|error| error.to_string())
            };
            let completion = conversation.completion();
            let expected = prompt(ChatApi::ChatCompletions, &completion);
            let (response, message) = (conversation.response(), conversation.message());
            assert_eq!(prompt(ChatApi::Responses, &response), expected, "{index}: {completion}\n{response}");
            assert_eq!(prompt(ChatApi::Messages, &message), expected, "{index}: {completion}\n{message}");
            texts.extend(expected.ok().map(|prompt| prompt.text));
        }
        texts.sort();
        texts.dedup();
        assert!(texts.len() as u64 > count / 4, "{index}: only {} prompts of {count}", texts.len());
    }
}

// === impl Conversation ===

impl Conversation {
    fn random(random: &mut Random) -> Conversation {
        let system = (random.below(2) == 0).then(|| random.pick(&TEXTS[1..]));
        let tools = random.below(3) as usize;
        let effort = (random.below(2) == 0).then(|| random.pick(&["low", "high"]));
        let mut turns = vec![Turn::User(random.pick(&TEXTS[1..]))];
        for _ in 0..random.below(4) {
            let calls: Vec<&str> = (0..random.below(3)).map(|_| random.pick(&ARGUMENTS)).collect();
            let results = calls.iter().map(|_| random.pick(&TEXTS)).collect();
            let text = (calls.is_empty() || random.below(2) == 0).then(|| random.pick(&TEXTS[1..]));
            let reasoning = (random.below(2) == 0).then(|| random.pick(&["why", "since\n"]));
            let has_calls = !calls.is_empty();
            turns.push(Turn::Assistant { reasoning, text, calls });
            turns.push(if has_calls { Turn::Results(results) } else { Turn::User(random.pick(&TEXTS[1..])) });
        }
        Conversation { system, tools, effort, turns }
    }

    fn schema() -> Value {
        json!({"type": "object", "properties": {"city": {"type": "string", "minLength": 1}}, "required": ["city"]})
    }

    fn completion(&self) -> Value {
        let mut messages: Vec<Value> =
            self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
        for turn in &self.turns {
            match turn {
                Turn::User(text) => messages.push(json!({"role": "user", "content": text})),
                Turn::Assistant { reasoning, text, calls } => {
                    let mut message = json!({"role": "assistant", "content": text});
                    if let Some(reasoning) = reasoning {
                        message["reasoning_content"] = json!(reasoning);
                    }
                    if !calls.is_empty() {
                        let call = |(index, arguments): (usize, &&str)| json!({"id": format!("call_{index}"), "type": "function", "function": {"name": "weather", "arguments": arguments}});
                        message["tool_calls"] = calls.iter().enumerate().map(call).collect();
                    }
                    messages.push(message);
                }
                Turn::Results(results) => messages.extend(results.iter().enumerate().map(
                    |(index, text)| json!({"role": "tool", "tool_call_id": format!("call_{index}"), "content": text}),
                )),
            }
        }
        let mut body = json!({"model": "m", "messages": messages});
        if self.tools > 0 {
            let function = json!({"name": "weather", "description": "Tells it.", "parameters": Self::schema()});
            body["tools"] = vec![json!({"type": "function", "function": function}); self.tools].into();
        }
        if let Some(effort) = self.effort {
            body["reasoning_effort"] = json!(effort);
        }
        body
    }

    fn response(&self) -> Value {
        let mut items = Vec::new();
        for turn in &self.turns {
            match turn {
                Turn::User(text) => {
                    items.push(json!({"role": "user", "content": [{"type": "input_text", "text": text}]}));
                }
                Turn::Assistant { reasoning, text, calls } => {
                    items.extend(reasoning.map(|reasoning| {
                        json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]})
                    }));
                    items.extend(text.map(|text| {
                        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]})
                    }));
                    items.extend(calls.iter().enumerate().map(|(index, arguments)| {
                        json!({"type": "function_call", "call_id": format!("call_{index}"), "name": "weather", "arguments": arguments})
                    }));
                }
                Turn::Results(results) => items.extend(results.iter().enumerate().map(|(index, text)| {
                    json!({"type": "function_call_output", "call_id": format!("call_{index}"), "output": text})
                })),
            }
        }
        let mut body = json!({"model": "m", "instructions": self.system, "input": items});
        let function =
            json!({"type": "function", "name": "weather", "description": "Tells it.", "parameters": Self::schema()});
        body["tools"] = vec![function; self.tools].into();
        body["reasoning"] = json!({"effort": self.effort});
        body
    }

    fn message(&self) -> Value {
        let mut messages = Vec::new();
        for turn in &self.turns {
            messages.push(match turn {
                Turn::User(text) => json!({"role": "user", "content": [{"type": "text", "text": text}]}),
                Turn::Assistant { reasoning, text, calls } => {
                    let mut blocks: Vec<Value> = Vec::new();
                    blocks.extend(reasoning.map(|reasoning| json!({"type": "thinking", "thinking": reasoning, "signature": ""})));
                    blocks.extend(text.map(|text| json!({"type": "text", "text": text})));
                    blocks.extend(calls.iter().enumerate().map(|(index, arguments)| {
                        let input: Value = serde_json::from_str(arguments).unwrap();
                        json!({"type": "tool_use", "id": format!("call_{index}"), "name": "weather", "input": input})
                    }));
                    json!({"role": "assistant", "content": blocks})
                }
                Turn::Results(results) => {
                    let block = |(index, text): (usize, &&str)| {
                        json!({"type": "tool_result", "tool_use_id": format!("call_{index}"), "content": text})
                    };
                    json!({"role": "user", "content": results.iter().enumerate().map(block).collect::<Vec<_>>()})
                }
            });
        }
        let mut body = json!({"model": "m", "max_tokens": 100, "system": self.system, "messages": messages});
        if self.tools > 0 {
            let tool = json!({"name": "weather", "description": "Tells it.", "input_schema": Self::schema()});
            body["tools"] = vec![tool; self.tools].into();
        }
        if let Some(effort) = self.effort {
            body["output_config"] = json!({"effort": effort});
        }
        body
    }
}
