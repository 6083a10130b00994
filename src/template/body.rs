//! A chat completion body to a conversation, as vLLM makes one.
//!
//! In: the JSON body of `/v1/chat/completions`, and the model's template. Out: what vLLM 0.33 hands to
//! `apply_chat_template`, or an error where vLLM refuses the request or where what it would do cannot be known here.
//! Followed are `entrypoints/openai/chat_completion/protocol.py` (`build_chat_params`), `renderers/params.py`
//! (`merge_kwargs`), `renderers/hf.py` and what [`message`](super::message) and [`tools`](super::tools) name, then
//! transformers 5.24 `apply_chat_template`. So:
//!
//! - `tools`, absent or null, are none; an empty list is refused. `tool_choice` changes nothing.
//! - Of `chat_template_kwargs`, those that are null or `"auto"` are left out. `reasoning_effort` is one more of them, and
//!   sets `enable_thinking` if that is not given. `add_generation_prompt` and `continue_final_message` of the body count,
//!   not those among the arguments; `tools` among the arguments hide those of the body, `documents` stand in for missing
//!   ones.
//! - Where the template does not name the role `developer`, it becomes `system`, and the system messages one, at the start.
//! - `add_special_tokens` is false unless it is given; true adds the start token a second time.
//! - A template in the body is refused, as vLLM does unless told otherwise; so are arguments that tell
//!   `apply_chat_template` itself something.
//!
//! Not covered: models that vLLM renders without a template (gpt-oss through Harmony, DeepSeek V3.2 and V4, Kimi K3, Mistral
//! with its own tokenizer), and what an engine is started with: `--default-chat-template-kwargs`,
//! `--chat-template-content-format`, `--exclude-tools-when-tool-choice-none`, a map of reasoning efforts.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::chat::{Chat, entries, field};
use super::draft::{Draft, list, object, switch, text};
use super::known::KnownItems;
use super::message::invalid;
use super::{ChatTemplate, InvalidChat, tools};
use crate::request::ChatApi;

// === impl Chat ===

impl Chat {
    /// Reads the body of a request to one of the APIs. Of a model that has a template of its own for tools, a body that turns
    /// out to [have them](Chat::has_tools) is to be read again with that.
    ///
    /// # Errors
    ///
    /// See [`Chat::from_body`], [`Chat::from_responses`] and [`Chat::from_messages`].
    pub fn read(api: ChatApi, body: &[u8], template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        Chat::read_knowing(api, body, template, &mut KnownItems::new(0))
    }

    /// The same of a body whose messages may be known, and are from now on.
    ///
    /// # Errors
    ///
    /// As [`Chat::read`].
    pub fn read_knowing(
        api: ChatApi,
        body: &[u8],
        template: &ChatTemplate,
        known: &mut KnownItems,
    ) -> Result<Chat, InvalidChat> {
        let body = object(body, known)?;
        match api {
            ChatApi::ChatCompletions => Chat::of_completions(&body, template),
            ChatApi::Responses => Chat::of_responses(&body, template),
            ChatApi::Messages => Chat::of_messages(&body, template),
        }
    }

    /// Reads the body of a chat completion request.
    ///
    /// # Errors
    ///
    /// The body is not JSON, or names no conversation that the engine would render.
    pub fn from_body(body: &[u8], template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        Chat::read(ChatApi::ChatCompletions, body, template)
    }

    fn of_completions(body: &Value, template: &ChatTemplate) -> Result<Chat, InvalidChat> {
        if field(body, "chat_template").is_some() {
            return Err(invalid("chat_template", "absent"));
        }
        Draft {
            tools: tools::tools(list(body, "tools")?)?,
            documents: documents(list(body, "documents")?)?,
            arguments: field(body, "chat_template_kwargs"),
            reasoning_effort: text(body, "reasoning_effort")?,
            add_generation_prompt: switch(body, "add_generation_prompt", true)?,
            continue_final_message: switch(body, "continue_final_message", false)?,
            add_special_tokens: switch(body, "add_special_tokens", false)?,
            ..Draft::new(list(body, "messages")?.ok_or_else(|| invalid("messages", "a list"))?)
        }
        .into_chat(template)
    }
}

/// Documents are maps of texts.
fn documents(documents: Option<Vec<Value>>) -> Result<Option<Value>, InvalidChat> {
    let Some(documents) = documents else { return Ok(None) };
    let is_document = |document: &Value| {
        document.kind() == ValueKind::Map && entries(document).all(|(_, value)| value.kind() == ValueKind::String)
    };
    if documents.iter().all(is_document) {
        Ok(Some(Value::from(documents)))
    } else {
        Err(invalid("documents", "a list of objects whose values are strings"))
    }
}
