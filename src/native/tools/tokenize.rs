//! `warmroute-hub tokenize`: one text or conversation, to its ids and what they stand for.

use std::io::{Read, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::opened::Opened;
use super::{DAY_MINUTES, Failure, ModelArguments};
use crate::request::{ChatApi, TextPrompt, TokenizeError};

/// The arguments of `tokenize`.
#[derive(Args, Debug)]
pub struct TokenizeArguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The text; without it and --chat, standard input is the text
    #[arg(long, conflicts_with = "chat")]
    text: Option<String>,
    /// A file with the body of a request that has a conversation; `-` is standard input
    #[arg(long, value_name = "FILE")]
    chat: Option<String>,
    /// What the fields of the conversation mean; chat-completions unless said
    #[arg(long, value_enum, requires = "chat", conflicts_with = "text")]
    api: Option<Api>,
    /// Leave out the tokens that the tokenizer puts around a text
    #[arg(long)]
    no_special_tokens: bool,
    /// What the engine's time zone adds to UTC, for templates that write the date
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "MINUTES",
        value_parser = clap::value_parser!(i32).range(-DAY_MINUTES..=DAY_MINUTES))]
    utc_offset_minutes: i32,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// OpenAI's /v1/chat/completions
    ChatCompletions,
    /// OpenAI's /v1/responses
    Responses,
    /// Anthropic's /v1/messages
    Messages,
}

/// Tokenizes what the arguments name.
pub(super) fn run(arguments: &TokenizeArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let mut opened = Opened::open(&arguments.model)?;
    opened.set_clock(arguments.utc_offset_minutes);
    let (prompt, rendered) = prompt(arguments, &opened)?;
    let tokenized = opened.ids(&prompt).map_err(|error| Failure::Refused(why(error).to_owned()))?;
    let pieces: Vec<String> = tokenized.ids.iter().map(|id| opened.pieces.text(*id)).collect();
    if arguments.json {
        let object = json!({
            "ids": tokenized.ids, "pieces": pieces, "prompt": rendered, "complete": tokenized.complete,
        });
        return Ok(writeln!(out, "{object}")?);
    }
    if let Some(rendered) = rendered {
        writeln!(out, "{rendered}\n")?;
    }
    for (id, piece) in tokenized.ids.iter().zip(&pieces) {
        writeln!(out, "{id:>8}  {piece:?}")?;
    }
    let note = if tokenized.complete { "" } else { ", the first ones of the prompt: what follows is not text" };
    Ok(writeln!(out, "{} ids{note}", pieces.len())?)
}

/// What is to be tokenized, and the prompt that a conversation comes to.
fn prompt(arguments: &TokenizeArguments, opened: &Opened) -> Result<(TextPrompt, Option<String>), Failure> {
    if let Some(file) = &arguments.chat {
        let body = read(file)?;
        let api = match arguments.api {
            None | Some(Api::ChatCompletions) => ChatApi::ChatCompletions,
            Some(Api::Responses) => ChatApi::Responses,
            Some(Api::Messages) => ChatApi::Messages,
        };
        let rendered = opened.render(api, &body).map_err(|reason| Failure::Refused(format!("{file}: {reason}")))?;
        return Ok((TextPrompt::Chat { api, body }, Some(rendered.text)));
    }
    let text = match &arguments.text {
        Some(text) => text.clone(),
        None => String::from_utf8(read("-")?)
            .map_err(|error| Failure::Refused(format!("standard input is not UTF-8: {error}")))?,
    };
    Ok((TextPrompt::Plain { text, add_special_tokens: !arguments.no_special_tokens }, None))
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(|_| bytes),
        file => std::fs::read(Path::new(file)),
    };
    read.map_err(|error| Failure::Refused(format!("{file} cannot be read: {error}")))
}

/// In words.
pub(super) fn why(error: TokenizeError) -> &'static str {
    match error {
        TokenizeError::Unavailable | TokenizeError::Arriving => "there is no tokenizer",
        TokenizeError::NoTemplate => "the model has no chat template",
        TokenizeError::Failed => "it is no conversation, or the template refuses it",
        TokenizeError::UnsupportedKey => "the engine's key depends on more than the tokens",
        TokenizeError::OverBudget => "it is too long",
        TokenizeError::Saturated => "too many texts are being tokenized",
    }
}
