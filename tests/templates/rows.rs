//! Replays the `render` rows of a file of reference renders; shared by the native and the wasm32 test.
//!
//! A file has one JSON object a line, told apart by `kind`: `meta`; `template` (`name`, `text`); `chat` (`id`, `messages`,
//! perhaps `tools`, `documents`, and every other field an argument of the template); `render` (`template`, `chat`, `bos`,
//! `eos`, and what the reference made of it: `text` or its `sha256`, or `raises`); `renders` (one template through every
//! conversation of the file: `texts` are the first 16 digits of each `sha256`, or `raises`); `body` (`template`, the `body`
//! of a request, its `api` if it is no chat completion, the `text` that the engine makes of it unless it refuses it, and
//! whether the tokenizer adds `special` tokens); `trial` (a `template`, and what the engine finds out about it). Rows of other kinds are passed over.

use std::collections::HashMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use warmroute::request::ChatApi;
use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, RenderError, SpecialTokens, parse_json};

/// The moment of every reference render, in UTC.
pub const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 0 };

/// Renders where the reference raises and the engine used here does not, each with its reason. The serving engine refuses
/// such a request, so the text is compared with nothing.
const LENIENT: &[(&str, &[u64], &str)] =
    &[("llama-cpp-deepseek-r1.jinja", &[3, 4, 5, 7, 12, 16], "tojson of a generator: here a lazy list is a list")];

/// What came of a file.
#[derive(Default)]
pub struct Report {
    /// Renders compared.
    pub rows: usize,
    /// One line for each that is not as it should be.
    pub mismatched: Vec<String>,
    /// One line for each known difference that was met.
    pub known: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Row {
    Template {
        name: String,
        text: String,
    },
    Chat(ChatRow),
    Render(RenderRow),
    Renders(RendersRow),
    Body(BodyRow),
    Trial(TrialRow),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct ChatRow {
    id: u64,
}

#[derive(Deserialize)]
struct RenderRow {
    template: String,
    chat: u64,
    bos: Option<String>,
    eos: Option<String>,
    sha256: Option<String>,
    text: Option<String>,
    err: Option<String>,
    #[serde(default)]
    raises: bool,
}

/// One template, every conversation.
#[derive(Deserialize)]
struct RendersRow {
    template: String,
    template_sha256: String,
    bos: Option<String>,
    eos: Option<String>,
    texts: Vec<String>,
}

/// A request.
#[derive(Deserialize)]
struct BodyRow {
    template: String,
    #[serde(default)]
    api: Api,
    body: String,
    /// None if the engine refuses the request.
    text: Option<String>,
    #[serde(default)]
    special: bool,
}

/// What the engine finds out about the template of a model.
#[derive(Deserialize)]
struct TrialRow {
    template: String,
    template_sha256: String,
    /// Whether messages of the system among the others become part of the first one.
    merges: bool,
    /// The effort that disabled thinking asks for.
    effort: String,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Api {
    #[default]
    ChatCompletions,
    Responses,
    Messages,
}

/// The templates and conversations of a file.
#[derive(Default)]
struct Shelf {
    templates: HashMap<String, String>,
    chats: HashMap<u64, Chat>,
    compiled: HashMap<(String, SpecialTokens), ChatTemplate>,
}

// === impl Report ===

impl Report {
    /// Replays files as if they were one; `templates` are there beside those of the files.
    pub fn of(rows: &[&str], templates: HashMap<String, String>) -> Report {
        let mut shelf = Shelf { templates, ..Shelf::default() };
        let mut report = Report::default();
        for line in rows.iter().flat_map(|rows| rows.lines()) {
            match serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")) {
                Row::Template { name, text } => drop(shelf.templates.insert(name, text)),
                Row::Chat(row) => drop(shelf.chats.insert(row.id, chat(line))),
                Row::Render(row) => report.take(&row, &mut shelf),
                Row::Renders(row) => row.each(&shelf).iter().for_each(|row| report.take(row, &mut shelf)),
                Row::Body(row) => report.take_body(&row, &mut shelf),
                Row::Trial(row) if shelf.has(&row.template, &row.template_sha256) => {
                    report.take_trial(&row, &mut shelf)
                }
                Row::Trial(_) => {}
                Row::Other => {}
            }
        }
        report
    }

    fn take_body(&mut self, row: &BodyRow, shelf: &mut Shelf) {
        self.rows += 1;
        let template = shelf.compiled(&row.template, SpecialTokens::default());
        let chat = Chat::read(row.api.into(), row.body.as_bytes(), template).map_err(|error| error.to_string());
        let special = chat.as_ref().is_ok_and(|chat| chat.add_special_tokens);
        let text = chat.and_then(|chat| template.render(&chat, CLOCK).map_err(|error| error.to_string()));
        let is_same = match (&text, &row.text) {
            (Ok(prompt), Some(expected)) => &prompt.text == expected && special == row.special,
            (Err(_), None) => true,
            _ => false,
        };
        if !is_same {
            self.mismatched.push(format!("{} x {}: {text:?}\n  expected {:?}", row.template, row.body, row.text));
        }
    }

    fn take_trial(&mut self, row: &TrialRow, shelf: &mut Shelf) {
        self.rows += 1;
        let template = shelf.compiled(&row.template, SpecialTokens::new(Some("<s>"), Some("</s>")));
        let body = r#"{"system": "a", "messages": [{"role": "user", "content": "b"}, {"role": "system", "content": "c"}],
            "thinking": {"type": "disabled"}}"#;
        let chat =
            Chat::from_messages(body.as_bytes(), template).unwrap_or_else(|error| panic!("{}: {error}", row.template));
        let merges = chat.messages.len() == 2;
        let effort =
            chat.arguments.iter().find(|(name, _)| name == "reasoning_effort").map(|(_, effort)| effort.to_string());
        if merges != row.merges || effort.as_ref() != Some(&row.effort) {
            self.mismatched
                .push(format!("{}: merges {merges}, not {}; {effort:?}, not {}", row.template, row.merges, row.effort));
        }
    }

    fn take(&mut self, row: &RenderRow, shelf: &mut Shelf) {
        let rendered = shelf.render(row);
        self.rows += 1;
        let name = format!("{} x chat {}", row.template, row.chat);
        let difference = match (&rendered, row.raises) {
            (Err(_), true) => return,
            (Ok(text), false) if row.is_text(text) => return,
            (Ok(_), true) => {
                match LENIENT.iter().find(|known| known.0 == row.template && known.1.contains(&row.chat)) {
                    Some((.., reason)) => return self.known.push(format!("{name}: {reason}")),
                    None => format!("renders where the reference raises {}", row.err.as_deref().unwrap_or_default()),
                }
            }
            (Ok(text), false) => format!("differs: {text:?}\n  expected {:?}", row.text),
            (Err(error), false) => format!("{error}"),
        };
        self.mismatched.push(format!("{name}: {difference}"));
    }
}

// === impl Api ===

impl From<Api> for ChatApi {
    fn from(api: Api) -> ChatApi {
        match api {
            Api::ChatCompletions => ChatApi::ChatCompletions,
            Api::Responses => ChatApi::Responses,
            Api::Messages => ChatApi::Messages,
        }
    }
}

// === impl RenderRow ===

impl RenderRow {
    fn is_text(&self, text: &str) -> bool {
        match (&self.text, &self.sha256) {
            (Some(expected), _) => expected == text,
            (None, Some(expected)) => sha256(text).starts_with(expected),
            (None, None) => panic!("{} x chat {}: neither text nor sha256", self.template, self.chat),
        }
    }
}

// === impl RendersRow ===

impl RendersRow {
    /// A row for each conversation; none if the template is not there, or is another one of that name.
    fn each(&self, shelf: &Shelf) -> Vec<RenderRow> {
        if !shelf.has(&self.template, &self.template_sha256) {
            return Vec::new();
        }
        let row = |(chat, text): (usize, &String)| RenderRow {
            template: self.template.clone(),
            chat: chat as u64,
            bos: self.bos.clone(),
            eos: self.eos.clone(),
            sha256: Some(text.clone()),
            text: None,
            err: None,
            raises: text == "raises",
        };
        self.texts.iter().enumerate().map(row).collect()
    }
}

// === impl Shelf ===

impl Shelf {
    /// Whether the template is there, and not another one of that name.
    fn has(&self, name: &str, digest: &str) -> bool {
        self.templates.get(name).is_some_and(|source| sha256(source) == digest)
    }

    fn render(&mut self, row: &RenderRow) -> Result<String, RenderError> {
        let special = SpecialTokens::new(row.bos.as_deref(), row.eos.as_deref());
        let chat = self.chats.get(&row.chat).cloned().unwrap_or_else(|| panic!("chat {} is missing", row.chat));
        self.compiled(&row.template, special).render(&chat, CLOCK).map(|prompt| prompt.text)
    }

    fn compiled(&mut self, name: &str, special: SpecialTokens) -> &ChatTemplate {
        let source = self.templates.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        self.compiled.entry((name.to_owned(), special)).or_insert_with_key(|(name, special)| {
            ChatTemplate::compile(source, special, Limits::DEFAULT).unwrap_or_else(|error| panic!("{name}: {error}"))
        })
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A conversation from its row: fields with a meaning of their own, the rest arguments of the template.
fn chat(line: &str) -> Chat {
    let row = parse_json(line.as_bytes()).unwrap();
    let mut chat = Chat::new(Vec::new());
    for key in row.try_iter().unwrap() {
        let value = row.get_item(&key).unwrap();
        match key.as_str().unwrap() {
            "kind" | "id" => {}
            "messages" => chat.messages = value.try_iter().unwrap().collect(),
            "tools" => chat.tools = Some(value).filter(|tools| !tools.is_none()),
            "documents" => chat.documents = Some(value),
            "add_generation_prompt" => chat.add_generation_prompt = value.is_true(),
            "continue_final_message" => chat.continue_final_message = value.is_true(),
            name => chat.arguments.push((name.to_owned(), value)),
        }
    }
    chat
}
