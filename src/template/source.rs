//! A chat template's source, made fit for the template engine.
//!
//! In: the source as a model ships it. Out: source that the engine can parse with bounded stack and whose values stay
//! shallow, or a reason why not. Four things are done, all on the engine's own tokens, so that strings, comments and raw
//! blocks are left alone:
//!
//! - `{% generation %}`, an extension of `transformers` that marks what the assistant wrote and changes no text, becomes
//!   `{% with %}`: a scope of its own, as there.
//! - A value that is assigned to a namespace attribute passes the filter [`STORED`]. That is the one way in which a loop
//!   can hand a value to its next pass, so also the one way to nest values without end.
//! - What a loop goes over passes the filter [`ITERATED`], which refuses what Python cannot iterate over: the engine
//!   takes none for an empty list.
//! - The engine's parser and code generator recurse along chains (`a|f|f|f…`, `x.y.y.y…`, `elif` after `elif`) without a
//!   limit of their own: the tokens of one tag and the open branches are bounded here.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::InvalidTemplate;

/// The filter that values pass which are assigned to a namespace attribute.
pub(super) const STORED: &str = "__stored";

/// The filter that values pass which a loop goes over.
pub(super) const ITERATED: &str = "__iterated";

/// How long a source may be.
const MAX_SOURCE_BYTES: usize = 512 * 1024;

/// How many tokens a tag may have: each can be one level of recursion.
const MAX_TAG_TOKENS: usize = 400;

/// How many `elif` branches may be open: each is one level of recursion.
const MAX_OPEN_BRANCHES: usize = 48;

/// A replacement of a range of the source.
struct Edit {
    start: usize,
    end: usize,
    text: &'static str,
}

/// What is known of the tag that is being read.
#[derive(Default)]
struct Tag {
    tokens: usize,
    /// Brackets that are open.
    depth: usize,
    kind: Kind,
    /// What ends the parenthesis that was put around an expression, if one is open.
    close: Option<&'static str>,
}

/// The tags that are looked into.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// `set a.b =`, as far as has been read.
    Set,
    /// `for`, up to `in`.
    For,
    #[default]
    Other,
}

/// The branches of the `if` statements that are open.
#[derive(Default)]
struct Branches {
    counts: Vec<usize>,
    open: usize,
}

/// The source that the engine is to parse.
pub(super) fn prepare(source: &str, syntax: &SyntaxConfig) -> Result<String, InvalidTemplate> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(InvalidTemplate::new(format!(
            "the template has {} bytes, at most {MAX_SOURCE_BYTES} are allowed",
            source.len()
        )));
    }
    let mut edits = Vec::new();
    let mut tag = Tag::default();
    let mut branches = Branches::default();
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token.map_err(InvalidTemplate::from)?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tag = Tag::default(),
            Token::BlockEnd => edits.extend(tag.close.take().map(|text| Edit { start, end: start, text })),
            _ => {
                tag.tokens += 1;
                if tag.tokens > MAX_TAG_TOKENS {
                    return Err(InvalidTemplate::new(format!(
                        "line {}: a tag has more than {MAX_TAG_TOKENS} tokens",
                        span.start_line
                    )));
                }
                if let (1, Token::Ident(word)) = (tag.tokens, &token) {
                    branches.note(word, span.start_line)?;
                }
                if let Some(text) = tag.renamed(&token) {
                    edits.push(Edit { start, end, text });
                }
                if tag.ends_expression(&token) {
                    edits.extend(tag.close.take().map(|text| Edit { start, end: start, text }));
                }
                if tag.begins_expression(&token) {
                    edits.push(Edit { start: end, end, text: OPEN });
                }
            }
        }
    }
    Ok(apply(source, &edits))
}

const OPEN: &str = " (";
const CLOSE_STORED: &str = ")|__stored ";
const CLOSE_ITERATED: &str = ")|__iterated ";

// === impl Tag ===

impl Tag {
    /// What a tag's first word is replaced by.
    fn renamed(&self, token: &Token<'_>) -> Option<&'static str> {
        match token {
            Token::Ident("generation") if self.tokens == 1 => Some("with"),
            Token::Ident("endgeneration") if self.tokens == 1 => Some("endwith"),
            _ => None,
        }
    }

    /// Whether this token comes after what a loop goes over.
    fn ends_expression(&self, token: &Token<'_>) -> bool {
        self.depth == 0 && self.kind == Kind::For && matches!(token, Token::Ident("if" | "recursive"))
    }

    /// Whether this token is the `=` of `set a.b =` or the `in` of a loop.
    fn begins_expression(&mut self, token: &Token<'_>) -> bool {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => self.depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        match (self.tokens, token) {
            (1, Token::Ident("set")) => self.kind = Kind::Set,
            (1, Token::Ident("for")) => self.kind = Kind::For,
            (2, Token::Ident(_)) | (3, Token::Dot) | (4, Token::Ident(_)) if self.kind == Kind::Set => {}
            (5, Token::Assign) if self.kind == Kind::Set => {
                self.close = Some(CLOSE_STORED);
                return true;
            }
            (_, Token::Ident("in")) if self.kind == Kind::For && self.depth == 0 && self.close.is_none() => {
                self.close = Some(CLOSE_ITERATED);
                return true;
            }
            _ if self.kind == Kind::Set => self.kind = Kind::Other,
            _ => {}
        }
        false
    }
}

// === impl Branches ===

impl Branches {
    fn note(&mut self, word: &str, line: u16) -> Result<(), InvalidTemplate> {
        match word {
            "if" => self.counts.push(0),
            "elif" => {
                self.open += 1;
                if let Some(count) = self.counts.last_mut() {
                    *count += 1;
                }
            }
            "endif" => self.open = self.open.saturating_sub(self.counts.pop().unwrap_or_default()),
            _ => {}
        }
        if self.open > MAX_OPEN_BRANCHES {
            return Err(InvalidTemplate::new(format!(
                "line {line}: more than {MAX_OPEN_BRANCHES} elif branches are open at once"
            )));
        }
        Ok(())
    }
}

fn apply(source: &str, edits: &[Edit]) -> String {
    let mut out = String::with_capacity(source.len() + 16 * edits.len());
    let mut done = 0;
    for edit in edits {
        out.push_str(source.get(done..edit.start).unwrap_or_default());
        out.push_str(edit.text);
        done = edit.end;
    }
    out.push_str(source.get(done..).unwrap_or_default());
    out
}
