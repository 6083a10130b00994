//! What is answered to a request for text: the shapes of vLLM's OpenAI and Anthropic servers.
//!
//! In: the request, what was generated, the counts. Out: JSON, whole or as the server-sent events of a stream. What comes
//! from the cache is told as each API tells it: `usage.prompt_tokens_details.cached_tokens`,
//! `usage.input_tokens_details.cached_tokens` of responses, `usage.cache_read_input_tokens` of messages, where
//! `input_tokens` are those that did not come from there. A stream of completions has a usage only if it is asked for.

use serde_json::{Value, json};

use super::completion::{Api, CompletionRequest};
use crate::request::ChatApi;

/// What all parts of one reply share.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The engine's how-manieth reply it is, from 0.
    pub number: u64,
    /// Unix time in seconds.
    pub created: u64,
    /// The model.
    pub model: String,
    /// What kind of request it answers.
    pub api: Api,
}

/// Tokens that were generated, and their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated<'a> {
    /// The ids.
    pub token_ids: &'a [u32],
    /// The text.
    pub text: &'a str,
}

/// The counts of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones that came from the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name, where the API names events.
    pub name: Option<&'static str>,
    /// Its data.
    pub data: String,
}

// === impl Reply ===

impl Reply {
    /// The whole reply of a request that is not streamed.
    pub fn whole(&self, request: &CompletionRequest, generated: Generated<'_>, usage: Usage) -> Value {
        match self.api {
            Api::Completions => {
                let mut choice = choice("text", json!(generated.text), true);
                if request.return_token_ids {
                    set(&mut choice, "prompt_token_ids", json!(request.prompt));
                    set(&mut choice, "token_ids", json!(generated.token_ids));
                }
                self.object("text_completion", json!([choice]), Some(usage))
            }
            Api::Chat(ChatApi::ChatCompletions) => {
                let message = json!({ "role": "assistant", "content": generated.text, "tool_calls": [] });
                let mut choice = choice("message", message, true);
                let mut ids = None;
                if request.return_token_ids {
                    set(&mut choice, "token_ids", json!(generated.token_ids));
                    ids = Some(json!(request.prompt));
                }
                let mut object = self.object("chat.completion", json!([choice]), Some(usage));
                set(&mut object, "prompt_token_ids", json!(ids));
                object
            }
            Api::Chat(ChatApi::Responses) => self.response("completed", Some((generated.text, usage))),
            Api::Chat(ChatApi::Messages) => self.message(Some(generated.text), usage, true),
        }
    }

    /// What a stream begins with, before any token.
    pub fn opening(&self, usage: Usage) -> Vec<Event> {
        let before = Usage { completion_tokens: 0, ..usage };
        match self.api {
            Api::Completions => Vec::new(),
            Api::Chat(ChatApi::ChatCompletions) => {
                let delta = json!({ "role": "assistant", "content": "" });
                vec![self.chat_chunk(json!([choice("delta", delta, false)]), None)]
            }
            Api::Chat(ChatApi::Responses) => {
                let part = json!({ "type": "output_text", "text": "", "annotations": [] });
                vec![
                    self.response_event("response.created", json!({ "response": self.response("in_progress", None) })),
                    self.response_event("response.output_item.added", json!({ "item": self.item("in_progress", "") })),
                    self.response_event("response.content_part.added", json!({ "content_index": 0, "part": part })),
                ]
            }
            Api::Chat(ChatApi::Messages) => vec![
                // Not known to vLLM when a stream begins: what came from the cache.
                named("message_start", json!({ "message": self.message(None, before, false) })),
                named("content_block_start", json!({ "index": 0, "content_block": { "type": "text", "text": "" } })),
            ],
        }
    }

    /// The event of one token. The first one of completions also has the prompt's ids, when ids are asked for.
    pub fn token(&self, request: &CompletionRequest, generated: Generated<'_>, first: bool, last: bool) -> Event {
        let text = json!(generated.text);
        match self.api {
            Api::Completions => {
                let mut choice = choice("text", text, last);
                if request.return_token_ids {
                    if first {
                        set(&mut choice, "prompt_token_ids", json!(request.prompt));
                    }
                    set(&mut choice, "token_ids", json!(generated.token_ids));
                }
                unnamed(self.object("text_completion", json!([choice]), None))
            }
            Api::Chat(ChatApi::ChatCompletions) => {
                self.chat_chunk(json!([choice("delta", json!({ "content": text }), last)]), None)
            }
            Api::Chat(ChatApi::Responses) => {
                let delta = json!({ "item_id": self.item_id(), "content_index": 0, "delta": text });
                self.response_event("response.output_text.delta", delta)
            }
            Api::Chat(ChatApi::Messages) => {
                let delta = json!({ "index": 0, "delta": { "type": "text_delta", "text": text } });
                named("content_block_delta", delta)
            }
        }
    }

    /// What a stream ends with, after its last token; `text` is all that was generated.
    pub fn closing(&self, request: &CompletionRequest, text: &str, usage: Usage) -> Vec<Event> {
        let done = Event { name: None, data: "[DONE]".to_owned() };
        match self.api {
            Api::Completions if request.include_usage => {
                vec![unnamed(self.object("text_completion", json!([]), Some(usage))), done]
            }
            Api::Chat(ChatApi::ChatCompletions) if request.include_usage => {
                vec![self.chat_chunk(json!([]), Some(usage)), done]
            }
            Api::Completions | Api::Chat(ChatApi::ChatCompletions) => vec![done],
            Api::Chat(ChatApi::Responses) => {
                let whole = json!({ "response": self.response("completed", Some((text, usage))) });
                vec![
                    self.response_event("response.output_item.done", json!({ "item": self.item("completed", text) })),
                    self.response_event("response.completed", whole),
                ]
            }
            Api::Chat(ChatApi::Messages) => {
                let delta = json!({ "stop_reason": "max_tokens", "stop_sequence": null });
                vec![
                    named("content_block_stop", json!({ "index": 0 })),
                    named("message_delta", json!({ "delta": delta, "usage": usage.of_messages() })),
                    named("message_stop", json!({})),
                ]
            }
        }
    }

    fn object(&self, kind: &str, choices: Value, usage: Option<Usage>) -> Value {
        let prefix = if self.api == Api::Completions { "cmpl" } else { "chatcmpl" };
        let mut object = json!({
            "id": format!("{prefix}-{}", self.number),
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            set(&mut object, "usage", usage.of_completions());
        }
        object
    }

    fn chat_chunk(&self, choices: Value, usage: Option<Usage>) -> Event {
        unnamed(self.object("chat.completion.chunk", choices, usage))
    }

    /// OpenAI's response object; once it is completed with its text.
    fn response(&self, status: &str, completed: Option<(&str, Usage)>) -> Value {
        json!({
            "id": format!("resp_{}", self.number),
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "output": completed.map(|(text, _)| vec![self.item(status, text)]).unwrap_or_default(),
            "usage": completed.map(|(_, usage)| usage.of_responses()),
        })
    }

    fn item(&self, status: &str, text: &str) -> Value {
        json!({
            "id": self.item_id(),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [{ "type": "output_text", "text": text, "annotations": [] }],
        })
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.number)
    }

    fn response_event(&self, name: &'static str, mut data: Value) -> Event {
        set(&mut data, "output_index", json!(0));
        named(name, data)
    }

    /// Anthropic's message.
    fn message(&self, text: Option<&str>, usage: Usage, ended: bool) -> Value {
        let content: Vec<Value> = text.iter().map(|text| json!({ "type": "text", "text": text })).collect();
        json!({
            "id": format!("msg_{}", self.number),
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": ended.then_some("max_tokens"),
            "stop_sequence": null,
            "usage": usage.of_messages(),
        })
    }
}

fn choice(name: &str, content: Value, last: bool) -> Value {
    let mut choice = json!({
        "index": 0,
        "logprobs": null,
        "finish_reason": last.then_some("length"),
        "stop_reason": null,
    });
    set(&mut choice, name, content);
    choice
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), value);
    }
}

fn unnamed(data: Value) -> Event {
    Event { name: None, data: data.to_string() }
}

/// An event whose data repeats its name.
fn named(name: &'static str, mut data: Value) -> Event {
    set(&mut data, "type", json!(name));
    Event { name: Some(name), data: data.to_string() }
}

// === impl Usage ===

impl Usage {
    fn of_completions(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
        })
    }

    fn of_responses(self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": { "cached_tokens": self.cached_tokens },
            "output_tokens": self.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }

    fn of_messages(self) -> Value {
        json!({
            "input_tokens": self.prompt_tokens.saturating_sub(self.cached_tokens),
            "output_tokens": self.completion_tokens,
            "cache_read_input_tokens": self.cached_tokens,
        })
    }
}

// === impl Event ===

impl Event {
    /// The event on the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let name = self.name.map(|name| format!("event: {name}\n")).unwrap_or_default();
        format!("{name}data: {}\n\n", self.data).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: Usage = Usage { prompt_tokens: 40, cached_tokens: 32, completion_tokens: 2 };

    fn reply(api: Api) -> (Reply, CompletionRequest) {
        let request = CompletionRequest {
            api,
            lora: None,
            salt: None,
            prompt: vec![1, 2],
            max_tokens: 2,
            stream: true,
            include_usage: true,
            return_token_ids: true,
        };
        (Reply { number: 7, created: 1, model: "m".to_owned(), api }, request)
    }

    #[test]
    fn each_api_tells_what_came_from_the_cache_in_its_own_way() {
        let generated = Generated { token_ids: &[3, 4], text: " a b" };
        for (api, cached, text, id) in [
            (Api::Completions, "/usage/prompt_tokens_details/cached_tokens", "/choices/0/text", "cmpl-7"),
            (
                Api::Chat(ChatApi::ChatCompletions),
                "/usage/prompt_tokens_details/cached_tokens",
                "/choices/0/message/content",
                "chatcmpl-7",
            ),
            (
                Api::Chat(ChatApi::Responses),
                "/usage/input_tokens_details/cached_tokens",
                "/output/0/content/0/text",
                "resp_7",
            ),
            (Api::Chat(ChatApi::Messages), "/usage/cache_read_input_tokens", "/content/0/text", "msg_7"),
        ] {
            let (reply, request) = reply(api);
            let whole = reply.whole(&request, generated, USAGE);
            assert_eq!(whole.pointer(cached), Some(&json!(32)), "{whole}");
            assert_eq!(whole.pointer(text), Some(&json!(" a b")), "{whole}");
            assert_eq!(whole["id"], id);
        }
    }

    #[test]
    fn input_tokens_of_messages_are_those_that_were_computed() {
        let (reply, request) = reply(Api::Chat(ChatApi::Messages));
        let whole = reply.whole(&request, Generated { token_ids: &[], text: "" }, USAGE);
        assert_eq!(whole["usage"]["input_tokens"], 8);
    }

    #[test]
    fn streams_open_and_close_as_each_api_has_it() {
        let names = |api| {
            let (reply, request) = reply(api);
            let token = reply.token(&request, Generated { token_ids: &[3], text: " a" }, true, false);
            let events = reply.opening(USAGE).into_iter().chain([token]).chain(reply.closing(&request, " a", USAGE));
            events.map(|event| event.name.map_or_else(|| event.data.chars().take(6).collect(), str::to_owned)).collect()
        };
        let expected: [(Api, &[&str]); 4] = [
            (Api::Completions, &["{\"choi", "{\"choi", "[DONE]"]),
            (Api::Chat(ChatApi::ChatCompletions), &["{\"choi", "{\"choi", "{\"choi", "[DONE]"]),
            (
                Api::Chat(ChatApi::Responses),
                &[
                    "response.created",
                    "response.output_item.added",
                    "response.content_part.added",
                    "response.output_text.delta",
                    "response.output_item.done",
                    "response.completed",
                ],
            ),
            (
                Api::Chat(ChatApi::Messages),
                &[
                    "message_start",
                    "content_block_start",
                    "content_block_delta",
                    "content_block_stop",
                    "message_delta",
                    "message_stop",
                ],
            ),
        ];
        for (api, expected) in expected {
            let found: Vec<String> = names(api);
            assert_eq!(found, expected, "{api:?}");
        }
    }
}
