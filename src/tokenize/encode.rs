//! A text to ids, step by step as the reference does it: added tokens, normalizer, added tokens again, words, symbols.

use std::borrow::Cow;
use std::ops::Range;

use super::Limits;
use super::added::Piece;
use super::artifact::Artifact;
use super::format::{Parameters, PreTokenizer, Prepend, Section, Words};
use super::normalize::{normalized, normalized_beginning};
use super::split::{Splitter, last_boundary};
use super::tables::{Tables, word};
use super::words::{Symbols, WordEncoder};

/// Bytes of text to an id, of which most have more.
const BYTES_OF_ID: usize = 4;

/// A limit that encoding ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Tokens,
    Symbols,
}

/// Encodes one text.
pub(super) struct Encoding<'a> {
    artifact: &'a Artifact,
    tables: Tables<'a>,
    parameters: &'a Parameters,
    splitter: &'a mut Splitter,
    words: &'a mut WordEncoder,
    max_tokens: usize,
    /// Symbols that may still be merged.
    symbols_left: usize,
    ids: Vec<u32>,
}

// === impl Encoding ===

impl<'a> Encoding<'a> {
    /// Begins a text of so many bytes, without ids so far.
    pub(super) fn new(
        artifact: &'a Artifact,
        bytes: usize,
        splitter: &'a mut Splitter,
        words: &'a mut WordEncoder,
        limits: &Limits,
    ) -> Encoding<'a> {
        Encoding {
            artifact,
            tables: artifact.tables(),
            parameters: &artifact.parameters,
            splitter,
            words,
            max_tokens: limits.max_tokens,
            symbols_left: limits.max_symbols,
            ids: Vec::with_capacity((bytes / BYTES_OF_ID).min(limits.max_tokens)),
        }
    }

    /// The ids so far.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The ids.
    pub(super) fn into_ids(self) -> Vec<u32> {
        self.ids
    }

    /// Appends ids that are known.
    pub(super) fn extend(&mut self, ids: impl IntoIterator<Item = u32>) -> Result<(), Stopped> {
        self.ids.extend(ids);
        check(&self.ids, self.max_tokens)
    }

    /// Appends the ids of a part of the text. `at_start`: it is the beginning.
    pub(super) fn part(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        for piece in self.artifact.raw_added().pieces(text) {
            match piece {
                Piece::Token(token) => self.extend([token.id])?,
                Piece::Text(range) => {
                    let at_start = at_start && range.start == 0;
                    self.segment(text.get(range).unwrap_or_default(), at_start)?;
                }
            }
        }
        Ok(())
    }

    /// Appends the ids of as much of a part as is certain whatever follows it. `at_start`: it is the beginning.
    pub(super) fn open_part(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        let trie = self.artifact.raw_added();
        let open = trie.open_from(text);
        let mut pieces = trie.pieces(text).peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Token(token) if token.at < open => self.extend([token.id])?,
                Piece::Token(_) => break,
                Piece::Text(range) => {
                    let at_start = at_start && range.start == 0;
                    let is_closed = matches!(pieces.peek(), Some(Piece::Token(token)) if token.at < open);
                    if is_closed {
                        self.segment(text.get(range).unwrap_or_default(), at_start)?;
                        continue;
                    }
                    return self.open_segment(up_to(open, text, range), at_start);
                }
            }
        }
        Ok(())
    }

    /// Text behind the last added token that is matched before normalizing.
    fn open_segment(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        let text = normalized_beginning(&self.artifact.steps, text);
        let trie = self.artifact.normalized_added();
        let open = trie.open_from(&text);
        let mut pieces = trie.pieces(&text).peekable();
        while let Some(piece) = pieces.next() {
            match piece {
                Piece::Token(token) if token.at < open => self.extend([token.id])?,
                Piece::Token(_) => break,
                Piece::Text(range) => {
                    let at_start = at_start && range.start == 0;
                    let is_closed = matches!(pieces.peek(), Some(Piece::Token(token)) if token.at < open);
                    if is_closed {
                        self.plain(text.get(range).unwrap_or_default(), at_start)?;
                        continue;
                    }
                    return self.open_plain(up_to(open, &text, range), at_start);
                }
            }
        }
        Ok(())
    }

    /// The words of a text of which something may follow.
    fn open_plain(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        match self.parameters.pre_tokenizer {
            PreTokenizer::ByteLevel { grammar, .. } => match last_boundary(grammar, text) {
                Some(end) => self.plain(text.get(..end).unwrap_or_default(), at_start),
                None => Ok(()),
            },
            PreTokenizer::Characters { mark, metaspace, words } => {
                let text = metaspace.map_or(Cow::Borrowed(text), |prepend| metaspaced(mark, prepend, text, at_start));
                self.marked(mark, words, Symbols::Characters, &text, false)
            }
        }
    }

    /// Text between added tokens that are matched before normalizing.
    fn segment(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        if let Some(mark) = self.artifact.blank.filter(|mark| mark_from(*mark, text, 0).is_none()) {
            return self.marked(' ', Words::BeforeRuns, Symbols::Spaced(mark), text, true);
        }
        let text = normalized(&self.artifact.steps, text);
        for piece in self.artifact.normalized_added().pieces(&text) {
            match piece {
                Piece::Token(token) => self.extend([token.id])?,
                Piece::Text(range) => {
                    let at_start = at_start && range.start == 0;
                    self.plain(text.get(range).unwrap_or_default(), at_start)?;
                }
            }
        }
        Ok(())
    }

    /// Normalized text between added tokens.
    fn plain(&mut self, text: &str, at_start: bool) -> Result<(), Stopped> {
        match self.parameters.pre_tokenizer {
            PreTokenizer::ByteLevel { grammar, add_prefix_space } => {
                let text = if add_prefix_space { prefixed(' ', text.into()) } else { text.into() };
                let (words, tables, parameters) = (&mut *self.words, &self.tables, self.parameters);
                let (ids, max_tokens, left) = (&mut self.ids, self.max_tokens, &mut self.symbols_left);
                self.splitter.split(grammar, &text, |text| {
                    words.encode(tables, parameters, Symbols::Bytes, text, left, ids)?;
                    check(ids, max_tokens)
                })
            }
            PreTokenizer::Characters { mark, metaspace, words } => {
                let text = match metaspace {
                    None => Cow::Borrowed(text),
                    Some(prepend) => metaspaced(mark, prepend, text, at_start),
                };
                self.marked(mark, words, Symbols::Characters, &text, true)
            }
        }
    }

    /// Text whose words begin with marks. Unless it is `whole`, its last word may go on.
    fn marked(&mut self, mark: char, rule: Words, symbols: Symbols, text: &str, whole: bool) -> Result<(), Stopped> {
        let mut rest = text;
        while !rest.is_empty() {
            let end = match rule {
                Words::Whole => rest.len(),
                Words::BeforeEach => next_mark(mark, rest).unwrap_or(rest.len()),
                Words::BeforeRuns => self.next_run(mark, rest),
            };
            let (text, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
            if after.is_empty() && !whole {
                return Ok(());
            }
            rest = after;
            let (left, ids) = (&mut self.symbols_left, &mut self.ids);
            self.words.encode(&self.tables, self.parameters, symbols, text, left, ids)?;
            check(&self.ids, self.max_tokens)?;
        }
        Ok(())
    }

    /// The next start of a run of marks that no merge crosses.
    fn next_run(&self, mark: char, text: &str) -> usize {
        let uncut = self.artifact.words(Section::UncutAfter);
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| next_mark(mark, rest)).map(|at| from + at) {
            let before = text.get(..at).and_then(|text| text.chars().next_back()).map_or(0, u32::from);
            let crossed = (0..uncut.len()).any(|at| word(uncut, at) == Some(before));
            if before != u32::from(mark) && !crossed {
                return at;
            }
            from = at;
        }
        text.len()
    }
}

/// The part of a text before `open`, without the blanks that an added token may take which begins there.
fn up_to(open: usize, text: &str, range: Range<usize>) -> &str {
    text.get(range.start..range.end.min(open)).unwrap_or_default().trim_end()
}

/// The position of the next mark behind the first character.
fn next_mark(mark: char, text: &str) -> Option<usize> {
    mark_from(mark, text, 1)
}

/// The position of the first mark from a byte on.
fn mark_from(mark: char, text: &str, mut from: usize) -> Option<usize> {
    let mut buffer = [0; 4];
    let mark = mark.encode_utf8(&mut buffer).as_bytes();
    let lead = *mark.first()?;
    let bytes = text.as_bytes();
    loop {
        let at = from + memchr::memchr(lead, bytes.get(from..)?)?;
        if bytes.get(at..).is_some_and(|rest| rest.starts_with(mark)) {
            return Some(at);
        }
        from = at + 1;
    }
}

fn metaspaced(mark: char, prepend: Prepend, text: &str, at_start: bool) -> Cow<'_, str> {
    let mut buffer = [0; 4];
    let replaced: Cow<'_, str> =
        if text.contains(' ') { text.replace(' ', mark.encode_utf8(&mut buffer)).into() } else { text.into() };
    match prepend {
        Prepend::Always => prefixed(mark, replaced),
        Prepend::First if at_start => prefixed(mark, replaced),
        Prepend::First | Prepend::Never => replaced,
    }
}

fn prefixed(prefix: char, text: Cow<'_, str>) -> Cow<'_, str> {
    if text.starts_with(prefix) { text } else { format!("{prefix}{text}").into() }
}

fn check(ids: &[u32], max_tokens: usize) -> Result<(), Stopped> {
    if ids.len() > max_tokens { Err(Stopped::Tokens) } else { Ok(()) }
}
