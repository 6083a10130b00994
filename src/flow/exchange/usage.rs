//! What an engine says of a prompt in its response: how many tokens it had, and how many of them were cached.
//!
//! In: a body's pieces, cut anywhere. Out: the [`Usage`] that was in them. The body is looked at once, in time that grows
//! with its bytes, and nothing of it is kept but some hundred bytes of state. `json.rs` has what is taken from where.
//!
//! Of a stream of events each `data` line is a JSON text of its own, as all engines write it; no byte of a text can be a line
//! end, so a line begins afresh whatever was before it. What comes later counts: running usage by the last, and an event
//! without usage, or with `null`, takes nothing back.

mod json;

use memchr::memchr2;

/// What an engine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt; as Anthropic means it, without those that were cached.
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    /// Anthropic's words for tokens that were cached, and that have been since.
    cache_read_tokens: Option<u64>,
    cache_creation_tokens: Option<u64>,
}

/// What a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One JSON text.
    Json,
    /// Server-sent events.
    Events,
}

/// Reads a body.
#[derive(Clone, Debug)]
pub struct Scanner {
    framing: Framing,
    line: Line,
    json: json::Reader,
    usage: Usage,
}

/// Where in a line of a stream of events the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// At its start, with so many bytes of [`DATA`].
    Start(usize),
    /// In the text after it.
    Data,
    /// In a line of another kind.
    Other,
}

/// How a line with a JSON text starts.
const DATA: &[u8] = b"data:";

// === impl Usage ===

impl Usage {
    /// Tokens of the prompt that were cached; none if the engine did not say.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens.or(self.cache_read_tokens)
    }

    /// Tokens of the prompt; none if the engine did not say. A prompt without any is what vLLM writes before it has counted.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens.filter(|tokens| *tokens > 0)
    }

    /// Whether the prompt can have had `tokens` tokens: where cached ones are told apart, the others may be all that count
    /// as the prompt's.
    pub fn agrees_with(&self, tokens: u64) -> bool {
        let apart = self.cache_read_tokens.unwrap_or(0).saturating_add(self.cache_creation_tokens.unwrap_or(0));
        self.prompt_tokens().is_none_or(|prompt| prompt == tokens || prompt.saturating_add(apart) == tokens)
    }
}

// === impl Scanner ===

impl Scanner {
    /// Before the first byte of a body.
    pub fn new(framing: Framing) -> Scanner {
        Scanner { framing, line: Line::Start(0), json: json::Reader::default(), usage: Usage::default() }
    }

    /// Reads on.
    pub fn read(&mut self, piece: &[u8]) {
        match self.framing {
            Framing::Json => self.json.read(piece, &mut self.usage),
            Framing::Events => self.read_events(piece),
        }
    }

    /// What was found so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn read_events(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while !rest.is_empty() {
            if let Line::Start(matched) = self.line {
                rest = self.start(matched, rest);
                continue;
            }
            let end = memchr2(b'\n', b'\r', rest);
            let (line, after) = rest.split_at_checked(end.unwrap_or(rest.len())).unwrap_or((rest, &[]));
            if self.line == Line::Data {
                self.json.read(line, &mut self.usage);
            }
            rest = after.get(1..).unwrap_or_default();
            if end.is_some() {
                self.line = Line::Start(0);
            }
        }
    }

    fn start<'a>(&mut self, matched: usize, rest: &'a [u8]) -> &'a [u8] {
        let Some((byte, after)) = rest.split_first() else { return rest };
        if DATA.get(matched) != Some(byte) {
            self.line = Line::Other;
            return rest;
        }
        self.line = if matched + 1 == DATA.len() { Line::Data } else { Line::Start(matched + 1) };
        if self.line == Line::Data {
            self.json = json::Reader::default();
        }
        after
    }
}

#[cfg(test)]
mod tests;
