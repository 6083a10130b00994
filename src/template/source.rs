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
//!
//! And these are bounded, because the engine recurses along them without a limit of its own: the tokens of one tag
//! (`a|f|f|f…`, `x.y.y.y…`), the brackets, blocks and `elif` branches that are open, and the expressions that put values
//! into containers. Each bound is at least twice what the most complicated of 74 templates of real models needs.

use minijinja::machinery::ast::{CallArg, CallType, Expr, Stmt};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::InvalidTemplate;
use super::tree::{Node, nodes};

/// The filter that values pass which are assigned to a namespace attribute.
pub(super) const STORED: &str = "__stored";

/// The filter that values pass which a loop goes over.
pub(super) const ITERATED: &str = "__iterated";

/// How long a source may be.
const MAX_SOURCE_BYTES: usize = 512 * 1024;

/// How many tokens a tag may have: each can be one level of recursion.
const MAX_TAG_TOKENS: usize = 256;

/// How many brackets may be open in a tag: each is some ten levels of recursion.
const MAX_OPEN_BRACKETS: usize = 24;

/// How many blocks and `elif` branches may be open: each is a few levels of recursion.
const MAX_OPEN_BLOCKS: usize = 48;

/// How many literals of a template may put values into a container. Each adds a level to a value, and macros, the one way
/// to pass an expression twice without a namespace, nest less than twenty deep.
const MAX_CONTAINER_LITERALS: usize = 64;

/// How many slices and filters may put a lazy container around another, for the same reason.
const MAX_CONTAINER_VIEWS: usize = 24;

/// How long a line may be, and how many there may be: the engine counts both in 16 bits.
const MAX_LINES: usize = 60_000;

/// Filters that make a container, or a lazy one around another.
const CONTAINER_FILTERS: [&str; 16] = [
    "batch",
    "chain",
    "dictsort",
    "groupby",
    "items",
    "list",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "unique",
    "zip",
];

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
    brackets: usize,
    /// Its first word says so: it opens a block, closes one, or is another branch.
    role: Role,
    /// There is a `=` outside brackets.
    assigns: bool,
    kind: Kind,
    /// What ends the parenthesis that was put around an expression, if one is open.
    close: Option<&'static str>,
}

/// What a tag means for the blocks around it.
#[derive(Clone, Copy, Default)]
enum Role {
    Opens,
    /// `set`, which opens a block if it has no `=`.
    Set,
    Branches,
    Closes,
    #[default]
    Other,
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

/// The blocks that are open, each with its levels: one, and one more for every `elif`.
#[derive(Default)]
struct Blocks {
    levels: Vec<usize>,
    total: usize,
}

/// Whether the template has the tag `generation`, which is not Jinja2's own.
pub(super) fn marks_generation(source: &str, syntax: &SyntaxConfig) -> bool {
    let mut starts = false;
    tokenize(source, false, syntax.clone()).filter_map(Result::ok).any(|(token, _)| {
        let is_mark = starts && matches!(token, Token::Ident("generation"));
        starts = matches!(token, Token::BlockStart);
        is_mark
    })
}

/// The source that the engine is to parse.
pub(super) fn prepare(source: &str, syntax: &SyntaxConfig) -> Result<String, InvalidTemplate> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(InvalidTemplate::new(format!(
            "the template has {} bytes, at most {MAX_SOURCE_BYTES} are allowed",
            source.len()
        )));
    }
    if source.lines().count() > MAX_LINES || source.lines().any(|line| line.len() > MAX_LINES) {
        return Err(InvalidTemplate::new(format!(
            "the template has more than {MAX_LINES} lines, or one of more bytes"
        )));
    }
    let mut edits = Vec::new();
    let mut tag = Tag::default();
    let mut blocks = Blocks::default();
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token.map_err(InvalidTemplate::from)?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => tag = Tag::default(),
            Token::BlockEnd => {
                edits.extend(tag.close.take().map(|text| Edit { start, end: start, text }));
                blocks.note(&tag, span.start_line)?;
            }
            _ => {
                tag.tokens = tag.tokens.saturating_add(1);
                if tag.tokens > MAX_TAG_TOKENS {
                    return Err(InvalidTemplate::new(format!(
                        "line {}: a tag has more than {MAX_TAG_TOKENS} tokens",
                        span.start_line
                    )));
                }
                tag.note(&token);
                if tag.brackets > MAX_OPEN_BRACKETS {
                    return Err(InvalidTemplate::new(format!(
                        "line {}: more than {MAX_OPEN_BRACKETS} brackets are open at once",
                        span.start_line
                    )));
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

/// Refuses a template that could nest values too deeply, or has the engine divide by zero; `root` is its tree.
pub(super) fn check_shape(root: &Stmt<'_>) -> Result<(), InvalidTemplate> {
    let (mut literals, mut views) = (0_usize, 0_usize);
    for node in nodes(root) {
        let Node::Expression(expression) = node else { continue };
        if may_cycle_through_nothing(expression) {
            return Err(InvalidTemplate::new("cycle() has nothing to go through"));
        }
        match expression {
            Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) if expression.as_const().is_none() => {
                literals = literals.saturating_add(1);
            }
            Expr::Call(call) if matches!(call.identify_call(), CallType::Function("dict" | "namespace")) => {
                literals = literals.saturating_add(1);
            }
            Expr::Slice(_) => views = views.saturating_add(1),
            Expr::Filter(filter) if CONTAINER_FILTERS.contains(&filter.name) => {
                views = views.saturating_add(1);
            }
            _ => {}
        }
    }
    if literals > MAX_CONTAINER_LITERALS {
        return Err(InvalidTemplate::new(format!(
            "{literals} expressions make lists and maps, at most {MAX_CONTAINER_LITERALS} are allowed"
        )));
    }
    if views > MAX_CONTAINER_VIEWS {
        return Err(InvalidTemplate::new(format!(
            "{views} slices and filters make lists, at most {MAX_CONTAINER_VIEWS} are allowed"
        )));
    }
    Ok(())
}

/// The engine panics at such a call of a loop's method.
fn may_cycle_through_nothing(expression: &Expr<'_>) -> bool {
    let Expr::Call(call) = expression else { return false };
    matches!(call.identify_call(), CallType::Method(_, "cycle"))
        && !call.args.iter().any(|arg| matches!(arg, CallArg::Pos(_)))
}

const OPEN: &str = " (";
const CLOSE_STORED: &str = ")|__stored ";
const CLOSE_ITERATED: &str = ")|__iterated ";

// === impl Tag ===

impl Tag {
    /// Takes note of the next token.
    fn note(&mut self, token: &Token<'_>) {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.brackets = self.brackets.saturating_add(1);
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                self.brackets = self.brackets.saturating_sub(1);
            }
            Token::Assign if self.brackets == 0 => self.assigns = true,
            Token::Ident(word) if self.tokens == 1 => self.role = Role::of(word),
            _ => {}
        }
    }

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
        self.brackets == 0 && self.kind == Kind::For && matches!(token, Token::Ident("if" | "recursive"))
    }

    /// Whether this token is the `=` of `set a.b =` or the `in` of a loop.
    fn begins_expression(&mut self, token: &Token<'_>) -> bool {
        match (self.tokens, token) {
            (1, Token::Ident("set")) => self.kind = Kind::Set,
            (1, Token::Ident("for")) => self.kind = Kind::For,
            (2, Token::Ident(_)) | (3, Token::Dot) | (4, Token::Ident(_)) if self.kind == Kind::Set => {}
            (5, Token::Assign) if self.kind == Kind::Set => {
                self.close = Some(CLOSE_STORED);
                return true;
            }
            (_, Token::Ident("in")) if self.kind == Kind::For && self.brackets == 0 && self.close.is_none() => {
                self.close = Some(CLOSE_ITERATED);
                return true;
            }
            _ if self.kind == Kind::Set => self.kind = Kind::Other,
            _ => {}
        }
        false
    }
}

// === impl Role ===

impl Role {
    fn of(word: &str) -> Role {
        match word {
            "if" | "for" | "macro" | "call" | "filter" | "with" | "generation" | "autoescape" => Role::Opens,
            "set" => Role::Set,
            "elif" => Role::Branches,
            _ if word.starts_with("end") => Role::Closes,
            _ => Role::Other,
        }
    }
}

// === impl Blocks ===

impl Blocks {
    /// Takes note of a tag that has been read.
    fn note(&mut self, tag: &Tag, line: u16) -> Result<(), InvalidTemplate> {
        match tag.role {
            Role::Set if tag.assigns => {}
            Role::Opens | Role::Set => {
                self.levels.push(1);
                self.total = self.total.saturating_add(1);
            }
            Role::Branches => {
                self.total = self.total.saturating_add(1);
                if let Some(levels) = self.levels.last_mut() {
                    *levels = levels.saturating_add(1);
                }
            }
            Role::Closes => self.total = self.total.saturating_sub(self.levels.pop().unwrap_or_default()),
            Role::Other => {}
        }
        if self.total > MAX_OPEN_BLOCKS {
            return Err(InvalidTemplate::new(format!(
                "line {line}: more than {MAX_OPEN_BLOCKS} blocks and branches are open at once"
            )));
        }
        Ok(())
    }
}

fn apply(source: &str, edits: &[Edit]) -> String {
    let mut out = String::with_capacity(source.len().saturating_add(edits.len().saturating_mul(16)));
    let mut done = 0;
    for edit in edits {
        out.push_str(source.get(done..edit.start).unwrap_or_default());
        out.push_str(edit.text);
        done = edit.end;
    }
    out.push_str(source.get(done..).unwrap_or_default());
    out
}
