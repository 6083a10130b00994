//! `warmroute-hub verify`: the ids of a set of prompts, ours beside an engine's.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use super::cases::{Case, CasePrompt, cases};
use super::engine::{Answer, Engine, NoAnswer};
use super::opened::Opened;
use super::tokenize::why;
use super::{Failure, ModelArguments};
use crate::request::{ChatApi, TextPrompt, TokenizeError};

/// The arguments of `verify`.
#[derive(Args, Debug)]
pub struct VerifyArguments {
    /// Where the engine is: http://host:port
    #[arg(long)]
    engine: String,
    /// The model, as the engine names it
    #[arg(long)]
    model: String,
    #[command(flatten)]
    directory: ModelArguments,
    /// What the engine's time zone adds to UTC, for templates that write the date
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "MINUTES",
        value_parser = clap::value_parser!(i32).range(-super::DAY_MINUTES..=super::DAY_MINUTES))]
    utc_offset_minutes: i32,
}

/// How a prompt came out.
enum Outcome {
    /// Both make the same of it: so many ids, or nothing.
    Agrees(String),
    /// They do not.
    Differs(String),
}

/// Compares all prompts.
pub(super) async fn run(arguments: &VerifyArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let engine = Engine::new(&arguments.engine, &arguments.model).map_err(Failure::Refused)?;
    let mut opened = Opened::open(&arguments.directory)?;
    opened.set_clock(arguments.utc_offset_minutes);
    let with_chats = opened.model.has_chat_template;
    let cases = cases(&opened.pieces, with_chats);
    let mut differing = 0;
    for (at, case) in cases.iter().enumerate() {
        let theirs = engine.tokenize(&case.prompt).await;
        if let (0, Ok(Answer { max_model_len: Some(longest), .. })) = (at, &theirs) {
            writeln!(out, "{} serves {} up to {longest} tokens", arguments.engine, arguments.model)?;
        }
        match compared(&mut opened, case, theirs)? {
            Outcome::Agrees(how) => writeln!(out, "ok       {}: {how}", case.name)?,
            Outcome::Differs(how) => {
                differing += 1;
                writeln!(out, "DIFFERS  {}: {how}", case.name)?;
            }
        }
    }
    if !with_chats {
        writeln!(out, "conversations were not compared: there is no chat template here, so they get no hint")?;
    }
    writeln!(out, "verify: {} prompts, {differing} differ", cases.len())?;
    match differing {
        0 => Ok(()),
        _ => Err(Failure::Disagrees(format!("{differing} of {} prompts differ", cases.len()))),
    }
}

fn compared(opened: &mut Opened, case: &Case, theirs: Result<Answer, NoAnswer>) -> Result<Outcome, Failure> {
    let ours = ours(opened, case);
    let theirs = match theirs {
        Ok(answer) => answer,
        Err(NoAnswer::NoTokenize) => {
            let why = "the engine has no /tokenize: vLLM has it, other engines may not, and a proxy may hide it";
            return Err(Failure::Disagrees(why.to_owned()));
        }
        Err(NoAnswer::Failed(what)) => return Err(Failure::Disagrees(what)),
        Err(NoAnswer::Refused(what)) => {
            return Ok(match ours {
                Ok(ids) => Outcome::Differs(format!("{} ids here, the engine refuses it: {what}", ids.len())),
                Err(_) => Outcome::Agrees("refused by both".to_owned()),
            });
        }
    };
    let count = theirs.tokens.len();
    if theirs.count.is_some_and(|said| said != count) {
        return Ok(Outcome::Differs(format!("the engine sends {count} ids and says {:?}", theirs.count)));
    }
    Ok(match ours {
        Err(error) => {
            Outcome::Differs(format!("none here ({}), {count} ids at the engine", reason(opened, case, error)))
        }
        Ok(ids) => match difference(opened, &ids, &theirs.tokens) {
            None => Outcome::Agrees(format!("{count} ids")),
            Some(difference) => Outcome::Differs(difference),
        },
    })
}

fn ours(opened: &mut Opened, case: &Case) -> Result<Vec<u32>, TokenizeError> {
    let prompt = match &case.prompt {
        CasePrompt::Text { text, add_special_tokens } => {
            TextPrompt::Plain { text: text.clone(), add_special_tokens: *add_special_tokens }
        }
        CasePrompt::Chat(_) => TextPrompt::Chat { api: ChatApi::ChatCompletions, body: body(case) },
    };
    opened.ids(&prompt).map(|tokenized| tokenized.ids)
}

fn body(case: &Case) -> Vec<u8> {
    match &case.prompt {
        CasePrompt::Chat(fields) => Value::Object(fields.clone()).to_string().into_bytes(),
        CasePrompt::Text { .. } => Vec::new(),
    }
}

fn reason(opened: &Opened, case: &Case, error: TokenizeError) -> String {
    let rendered = match &case.prompt {
        CasePrompt::Chat(_) => opened.render(ChatApi::ChatCompletions, &body(case)).err(),
        CasePrompt::Text { .. } => None,
    };
    rendered.unwrap_or_else(|| why(error).to_owned())
}

/// The first place where they part.
fn difference(opened: &Opened, ours: &[u32], theirs: &[u32]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let position = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
    let id = |ids: &[u32]| match ids.get(position) {
        Some(id) => format!("{id} {:?}", opened.pieces.text(*id)),
        None => "no more".to_owned(),
    };
    let before: String =
        ours.iter().take(position).skip(position.saturating_sub(4)).map(|id| opened.pieces.text(*id)).collect();
    Some(format!(
        "at id {position}, after {before:?}: {} here, {} at the engine ({} and {} ids)",
        id(ours),
        id(theirs),
        ours.len(),
        theirs.len()
    ))
}
