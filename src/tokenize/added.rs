//! Added tokens: finds them in a text, by the rules of the reference.
//!
//! Of all added tokens that begin at a position the longest matches; matches do not overlap. A token may insist on
//! standing alone (`single_word`) and may swallow the blanks before it (`lstrip`) or after it (`rstrip`). Work per
//! position is bounded by the longest added token, and blanks are walked over once.

use std::ops::Range;

use bitcannon::classify::{classify, in_mask, mask};

use super::format::MAX_ADDED_BYTES;
use super::starts::Starts;
use super::tables::Words;

/// Takes the blanks before it.
pub(super) const LSTRIP: u32 = 1;
/// Takes the blanks after it.
pub(super) const RSTRIP: u32 = 1 << 1;
/// Matches only between characters that are no part of a word.
pub(super) const SINGLE_WORD: u32 = 1 << 2;
/// Marked as special in its file: a chat template's own token rather than text.
pub(super) const SPECIAL: u32 = 1 << 3;

/// The tries' nodes: first edge, number of edges, index of the token that ends here plus one.
pub(super) type Nodes<'a> = &'a [[u8; 12]];

/// A set of added tokens to look for.
#[derive(Clone, Copy)]
pub(super) struct Trie<'a> {
    pub(super) nodes: Nodes<'a>,
    /// Byte in the upper 8 bits, node in the lower 24; a node's edges are in the order of their bytes.
    pub(super) edges: Words<'a>,
    /// Id and flags by index.
    pub(super) tokens: &'a [[u8; 8]],
    pub(super) starts: &'a Starts,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text without added tokens.
    Text(Range<usize>),
    /// An added token.
    Token(Match),
}

/// Where an added token stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) id: u32,
    pub(super) special: bool,
    /// Start of the token, blanks that it took included.
    pub(super) start: usize,
    /// Start of the token itself.
    pub(super) at: usize,
    /// The text cut before this token encodes to the same ids as both parts do for themselves.
    pub(super) exact_cut: bool,
}

/// The parts of a text, in order.
pub(super) struct Pieces<'a> {
    trie: Trie<'a>,
    text: &'a str,
    /// Where the search goes on.
    at: usize,
    /// End of what has been given out.
    given: usize,
    /// A token that follows the text given out last.
    pending: Option<Match>,
    /// End of the last match that asked for `single_word`, whether it was taken or not.
    single_word_end: Option<usize>,
    /// A run of blanks that an `rstrip` walked over.
    blanks: Range<usize>,
}

/// A match before the flags are looked at.
struct Found {
    start: usize,
    end: usize,
    id: u32,
    flags: u32,
}

// === impl Trie ===

impl<'a> Trie<'a> {
    /// The parts of a text.
    pub(super) fn pieces(self, text: &'a str) -> Pieces<'a> {
        Pieces { trie: self, text, at: 0, given: 0, pending: None, single_word_end: None, blanks: 0..0 }
    }

    /// Where it begins to matter what follows a text: whether a token is found before this position is known, what it is
    /// from there on is not. A search takes at most the square of the longest token.
    pub(super) fn open_from(self, text: &str) -> usize {
        let bytes = text.as_bytes();
        let first = bytes.len().saturating_sub(MAX_ADDED_BYTES);
        let reaches_end = |at: &usize| bytes.get(*at..).is_some_and(|rest| self.is_begun_by(rest));
        (first..bytes.len()).find(reaches_end).unwrap_or(bytes.len())
    }

    /// Whether a token begins with all of `bytes`, or is them.
    fn is_begun_by(&self, bytes: &[u8]) -> bool {
        let mut node = 0;
        bytes.iter().all(|byte| {
            let edges = children(self.nodes, self.edges, node);
            let edge = edges.binary_search_by_key(byte, |[.., byte]| *byte).ok().and_then(|edge| edges.get(edge));
            node = edge.map_or(0, |edge| u32::from_le_bytes(*edge) & 0x00ff_ffff) as usize;
            edge.is_some()
        })
    }

    /// The longest token that `bytes` begins with: its length and index.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, usize)> {
        let mut node = 0;
        let mut longest = None;
        for (length, byte) in (1..=MAX_ADDED_BYTES).zip(bytes) {
            let edge = match children(self.nodes, self.edges, node) {
                [only] => (only[3] == *byte).then_some(only),
                edges => edges.binary_search_by_key(byte, |[.., byte]| *byte).ok().and_then(|edge| edges.get(edge)),
            };
            let Some(edge) = edge else { break };
            node = (u32::from_le_bytes(*edge) & 0x00ff_ffff) as usize;
            match self.nodes.get(node).and_then(|node| node.last_chunk::<4>()).map(|index| u32::from_le_bytes(*index)) {
                None => break,
                Some(0) => {}
                Some(index) => longest = Some((length, index as usize - 1)),
            }
        }
        longest
    }

    fn find(&self, text: &str, from: usize) -> Option<Found> {
        let bytes = text.as_bytes();
        let mut at = from;
        loop {
            let rest = bytes.get(at..)?;
            let start = at + self.starts.find(rest)?;
            if let Some((length, index)) = self.longest(bytes.get(start..)?)
                && let Some(token) = self.tokens.get(index)
                && text.is_char_boundary(start + length)
            {
                let token = u64::from_le_bytes(*token);
                let (id, flags) = (token as u32, (token >> 32) as u32);
                return Some(Found { start, end: start + length, id, flags });
            }
            at = start + 1;
        }
    }
}

/// The edges of a node.
pub(super) fn children<'a>(nodes: Nodes<'_>, edges: Words<'a>, node: usize) -> Words<'a> {
    let Some([a, b, c, d, e, f, g, h, ..]) = nodes.get(node) else { return &[] };
    let first = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    let count = u32::from_le_bytes([*e, *f, *g, *h]) as usize;
    edges.get(first..first.saturating_add(count)).unwrap_or_default()
}

// === impl Pieces ===

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if let Some(token) = self.pending.take() {
            return Some(Piece::Token(token));
        }
        while let Some(found) = self.trie.find(self.text, self.at) {
            self.at = found.end;
            let exact_cut =
                found.flags & LSTRIP == 0 && self.given <= found.start && self.single_word_end != Some(found.start);
            if found.flags & SINGLE_WORD != 0 {
                self.single_word_end = Some(found.end);
                if !self.stands_alone(&found) {
                    continue;
                }
            }
            let start = if found.flags & LSTRIP != 0 { self.blanks_before(found.start) } else { found.start };
            let end = if found.flags & RSTRIP != 0 { self.blanks_after(found.end) } else { found.end };
            let token = Match { id: found.id, special: found.flags & SPECIAL != 0, start, at: found.start, exact_cut };
            let text = self.given..start;
            self.given = end;
            if text.start < text.end {
                self.pending = Some(token);
                return Some(Piece::Text(text));
            }
            return Some(Piece::Token(token));
        }
        let rest = self.given..self.text.len();
        self.at = self.text.len();
        self.given = self.text.len();
        (!rest.is_empty()).then_some(Piece::Text(rest))
    }
}

impl Pieces<'_> {
    fn stands_alone(&self, found: &Found) -> bool {
        let before = self.text.get(..found.start).and_then(|text| text.chars().next_back());
        let after = self.text.get(found.end..).and_then(|text| text.chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    }

    /// Start of the blanks before `end`, as far as they are not given out.
    fn blanks_before(&self, end: usize) -> usize {
        let open = self.text.get(self.given..end).unwrap_or_default();
        self.given.max(end.saturating_sub(open.len() - open.trim_end().len()))
    }

    /// End of the blanks after `start`.
    fn blanks_after(&mut self, start: usize) -> usize {
        if !self.blanks.contains(&start) {
            let rest = self.text.get(start..).unwrap_or_default();
            self.blanks = start..start + (rest.len() - rest.trim_start().len());
        }
        self.blanks.end.max(start)
    }
}

/// Whether a character is part of a word: `\w` of a Unicode-aware expression.
fn is_word(character: char) -> bool {
    let mut bytes = [0; 4];
    let text = character.encode_utf8(&mut bytes).as_bytes();
    let mut tags = [0; 4];
    classify(text, &mut tags);
    tags.first().is_some_and(|tag| in_mask(*tag, mask::WORD))
}

/// The nodes and edges of a trie over `patterns`: a pattern's bytes and its index.
///
/// Patterns are non-empty and differ. Nodes are numbered breadth first, so that the edges of each lie together.
pub(super) fn build_trie(patterns: &[(&[u8], u32)]) -> (Vec<u8>, Vec<u8>) {
    use std::collections::BTreeMap;
    let mut nodes: Vec<(BTreeMap<u8, usize>, u32)> = vec![Default::default()];
    for (pattern, index) in patterns {
        let mut node = 0;
        for byte in *pattern {
            let next = nodes.len();
            let child = nodes.get_mut(node).map_or(0, |(edges, _)| *edges.entry(*byte).or_insert(next));
            if child == next {
                nodes.push(Default::default());
            }
            node = child;
        }
        if let Some((_, end)) = nodes.get_mut(node) {
            *end = index + 1;
        }
    }
    let (mut node_bytes, mut edge_bytes) = (Vec::new(), Vec::new());
    for (edges, index) in &nodes {
        let first = (edge_bytes.len() / 4) as u32;
        for (byte, child) in edges {
            edge_bytes.extend_from_slice(&((u32::from(*byte) << 24) | *child as u32).to_le_bytes());
        }
        for number in [first, edges.len() as u32, *index] {
            node_bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    (node_bytes, edge_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of `text`, tokens as `[index]`, for added tokens with flags.
    fn pieces(text: &str, tokens: &[(&str, u32)]) -> Vec<String> {
        let patterns: Vec<_> = tokens.iter().enumerate().map(|(at, (text, _))| (text.as_bytes(), at as u32)).collect();
        let (nodes, edges) = build_trie(&patterns);
        let (nodes, edges) = (nodes.as_chunks().0, edges.as_chunks().0);
        let starts = Starts::of(nodes, edges);
        let tokens: Vec<[u8; 8]> =
            (0_u64..).zip(tokens).map(|(id, (_, flags))| (id | u64::from(*flags) << 32).to_le_bytes()).collect();
        let trie = Trie { nodes, edges, tokens: &tokens, starts: &starts };
        trie.pieces(text)
            .map(|piece| match piece {
                Piece::Text(range) => text[range].to_owned(),
                Piece::Token(token) if token.exact_cut => format!("|[{}]", token.id),
                Piece::Token(token) => format!("[{}]", token.id),
            })
            .collect()
    }

    #[test]
    fn the_longest_token_of_a_position_wins() {
        let tokens = [("<a", 0), ("<a>", 0), ("<a><b>", 0), ("x", 0)];
        assert_eq!(pieces("<a><b <a>y<ax<", &tokens), ["|[1]", "<b ", "|[1]", "y", "|[0]", "|[3]", "<"]);
        assert_eq!(pieces("", &tokens), [""; 0]);
        assert_eq!(pieces("none", &[]), ["none"]);
    }

    #[test]
    fn blanks_go_to_the_token_that_asks_for_them() {
        let tokens = [("<l>", LSTRIP), ("<r>", RSTRIP), ("<b>", LSTRIP | RSTRIP)];
        assert_eq!(pieces("a <l> b", &tokens), ["a", "[0]", " b"]);
        assert_eq!(pieces("a <r>\u{3000}\n b", &tokens), ["a ", "|[1]", "b"]);
        assert_eq!(pieces("a <b> <l> <b>", &tokens), ["a", "[2]", "[0]", "[2]"]);
    }

    #[test]
    fn a_single_word_stands_between_other_characters() {
        let tokens = [("word", SINGLE_WORD), ("<e>", 0)];
        assert_eq!(pieces("word swordword word", &tokens), ["|[0]", " swordword ", "|[0]"]);
        // The cut before <e> is not exact: what follows decides whether the word stands alone.
        assert_eq!(pieces("word<e>", &tokens), ["|[0]", "[1]"]);
        assert_eq!(pieces("\u{e9}word", &tokens), ["\u{e9}word"]);
    }

    #[test]
    fn a_token_of_blanks_may_lie_in_blanks_already_taken() {
        let tokens = [("<r>", RSTRIP), ("  ", 0)];
        // The reference gives the blanks behind the second token out again.
        assert_eq!(pieces("<r>   x", &tokens), ["|[0]", "[1]", " x"]);
    }
}
