//! Split patterns character by character, over the classes that `bitcannon` gives to a text.
//!
//! For the grammars and texts that `bitcannon` has no splitter for: Qwen3.5, and a contraction with U+017F. Each
//! function returns where the word that begins at a position ends; the order of tests is the order of the pattern's
//! alternatives, and a group's longest match is tried first, as a backtracking expression does.

use bitcannon::Span;
use bitcannon::classify::{Atom, CONT, in_mask, mask};

use super::super::format::Grammar;

/// A text with the class of each character at its first byte.
struct Scan<'a> {
    text: &'a [u8],
    tags: &'a [u8],
    rules: Rules,
}

/// What the grammars differ in.
#[derive(Clone, Copy)]
struct Rules {
    /// Whether case makes word boundaries, with contractions as suffixes.
    cased: bool,
    contractions: bool,
    marks_are_letters: bool,
    /// Whether `/` may follow punctuation like a newline.
    slash_tail: bool,
    max_digits: usize,
}

/// The spans of the words of `text`.
pub(super) fn split(grammar: Grammar, text: &[u8], tags: &[u8], spans: &mut Vec<Span>) {
    let plain = Rules { cased: false, contractions: true, marks_are_letters: false, slash_tail: false, max_digits: 1 };
    let rules = match grammar {
        Grammar::Cl100k => Rules { max_digits: 3, ..plain },
        Grammar::O200k => Rules { cased: true, slash_tail: true, max_digits: 3, ..plain },
        Grammar::Tekken => Rules { cased: true, contractions: false, slash_tail: true, ..plain },
        Grammar::Qwen35 => Rules { marks_are_letters: true, ..plain },
        Grammar::Qwen | Grammar::Gpt2 | Grammar::Deepseek => plain,
    };
    let scan = Scan { text, tags, rules };
    spans.clear();
    let mut at = 0;
    while at < text.len() {
        let end = scan.word_end(at).max(at + 1);
        spans.push(Span::new(at as u32, end as u32));
        at = end;
    }
}

// === impl Scan ===

impl Scan<'_> {
    fn word_end(&self, at: usize) -> usize {
        let letters = if self.rules.cased { self.cased_word(at) } else { self.plain_word(at) };
        letters.or_else(|| self.digits(at)).or_else(|| self.punctuation(at)).unwrap_or_else(|| self.blanks(at))
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+`
    fn plain_word(&self, at: usize) -> Option<usize> {
        let contraction = if self.rules.contractions { self.contraction(at) } else { None };
        contraction.or_else(|| {
            let start = if self.holds(at, Self::is_letter) { at } else { self.after_prefix(at)? };
            self.holds(start, Self::is_letter).then(|| self.run(start, Self::is_letter))
        })
    }

    /// `[^\r\n\p{L}\p{N}]?U*L+(?i:'s|…)?|[^\r\n\p{L}\p{N}]?U+L*(?i:'s|…)?`, with `U` and `L` as in [`Self::is_upper`]
    /// and [`Self::is_lower`].
    fn cased_word(&self, at: usize) -> Option<usize> {
        let prefixed = self.after_prefix(at);
        let lower = prefixed.and_then(|start| self.upper_then_lower(start)).or_else(|| self.upper_then_lower(at));
        let upper = || prefixed.and_then(|start| self.upper_first(start)).or_else(|| self.upper_first(at));
        let end = lower.or_else(upper)?;
        if self.rules.contractions { self.contraction(end).or(Some(end)) } else { Some(end) }
    }

    /// `U*L+`
    fn upper_then_lower(&self, start: usize) -> Option<usize> {
        let upper_end = self.run(start, Self::is_upper);
        if self.holds(upper_end, Self::is_lower) {
            return Some(self.run(upper_end, Self::is_lower));
        }
        // `U*` gives characters back until one of them is an `L`, which then is the only one.
        let mut end = upper_end;
        while end > start {
            let last = self.before(end);
            if self.holds(last, Self::is_lower) {
                return Some(end);
            }
            end = last;
        }
        None
    }

    /// `U+L*`
    fn upper_first(&self, start: usize) -> Option<usize> {
        let upper_end = self.run(start, Self::is_upper);
        (upper_end > start).then(|| self.run(upper_end, Self::is_lower))
    }

    /// The position behind `[^\r\n\p{L}\p{N}]`.
    fn after_prefix(&self, at: usize) -> Option<usize> {
        const NOT: u16 = mask::LETTER | mask::NUMBER | Atom::Newline.bit();
        self.holds(at, |_, _, tag| !in_mask(tag, NOT)).then(|| self.after(at))
    }

    /// `\p{N}{1,n}`
    fn digits(&self, at: usize) -> Option<usize> {
        let mut end = at;
        for _ in 0..self.rules.max_digits {
            if self.holds(end, |_, _, tag| in_mask(tag, mask::NUMBER)) {
                end = self.after(end);
            }
        }
        (end > at).then_some(end)
    }

    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
    fn punctuation(&self, at: usize) -> Option<usize> {
        let start = if self.text.get(at) == Some(&b' ') { at + 1 } else { at };
        let end = self.run(start, Self::is_other);
        (end > start).then(|| self.run(end, Self::is_tail))
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    fn blanks(&self, at: usize) -> usize {
        let end = self.run(at, |_, _, tag| in_mask(tag, mask::WS));
        let blanks = self.text.get(at..end).unwrap_or_default();
        if let Some(newline) = blanks.iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
            return at + newline + 1;
        }
        let last = self.before(end);
        if end < self.text.len() && last > at { last } else { end }
    }

    /// End of `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at a position.
    fn contraction(&self, at: usize) -> Option<usize> {
        let rest = self.text.get(at..)?.strip_prefix(b"'")?;
        let letters = |count: usize| rest.get(..count).map(<[u8]>::to_ascii_lowercase);
        let length = match letters(1)?.as_slice() {
            b"s" | b"t" | b"m" | b"d" => 1,
            b"\xc5" if rest.starts_with("\u{17f}".as_bytes()) => 2,
            _ if matches!(letters(2)?.as_slice(), b"re" | b"ve" | b"ll") => 2,
            _ => return None,
        };
        Some(at + 1 + length)
    }

    fn is_letter(&self, _at: usize, tag: u8) -> bool {
        in_mask(tag, mask::LETTER) || (self.rules.marks_are_letters && is_mark(tag))
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
    fn is_upper(&self, _at: usize, tag: u8) -> bool {
        is_mark(tag) || (in_mask(tag, mask::LETTER) && tag != Atom::LowerLetter as u8)
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
    fn is_lower(&self, _at: usize, tag: u8) -> bool {
        is_mark(tag) || (in_mask(tag, mask::LETTER) && tag != Atom::UpperLetter as u8)
    }

    /// `[^\s\p{L}\p{N}]`
    fn is_other(&self, at: usize, tag: u8) -> bool {
        in_mask(tag, mask::NOT_WS_L_N) && !self.is_letter(at, tag)
    }

    /// `[\r\n]`, or `[\r\n/]`
    fn is_tail(&self, at: usize, tag: u8) -> bool {
        in_mask(tag, Atom::Newline.bit()) || (self.rules.slash_tail && self.text.get(at) == Some(&b'/'))
    }

    fn holds(&self, at: usize, class: impl Fn(&Self, usize, u8) -> bool) -> bool {
        self.tags.get(at).is_some_and(|tag| class(self, at, *tag))
    }

    /// End of the longest run of a class.
    fn run(&self, start: usize, class: impl Fn(&Self, usize, u8) -> bool) -> usize {
        let mut at = start;
        while self.holds(at, &class) {
            at = self.after(at);
        }
        at
    }

    /// The position of the next character.
    fn after(&self, at: usize) -> usize {
        let mut next = at + 1;
        while self.tags.get(next) == Some(&CONT) {
            next += 1;
        }
        next
    }

    /// The position of the character before.
    fn before(&self, at: usize) -> usize {
        let mut last = at.saturating_sub(1);
        while last > 0 && self.tags.get(last) == Some(&CONT) {
            last -= 1;
        }
        last
    }
}

/// `\p{M}`: the other refinements of this class are joiners and symbols.
fn is_mark(tag: u8) -> bool {
    tag == Atom::Mark as u8
}
