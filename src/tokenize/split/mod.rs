//! A text to words, by the split patterns of byte-level tokenizers.
//!
//! In: text without added tokens, and the grammar. Out: its words in order, which together are the text. Most grammars
//! run on `bitcannon`, which the reference uses too; what it lacks is in [`scalar`]. A long text is worked off in
//! windows that end where every grammar has a boundary whatever comes before and after, so that scratch memory is
//! about ten times a window; a text without such places is one window.

mod scalar;

use bitcannon::Span;
use bitcannon::classify::classify;

use super::format::Grammar;

/// Bytes of a window, where the text has boundaries.
const WINDOW: usize = 32 << 10;
/// U+017F after an apostrophe, which counts as an `s` where a contraction ignores case.
const LONG_S: &str = "'\u{17f}";

/// Scratch memory for splitting.
#[derive(Default)]
pub(super) struct Splitter {
    tags: Vec<u8>,
    starts: Vec<u64>,
    flags: Vec<u64>,
    later: Vec<u64>,
    spans: Vec<Span>,
}

// === impl Splitter ===

impl Splitter {
    /// Hands the words of `text` to `word`, until it refuses one.
    pub(super) fn split<E>(
        &mut self,
        grammar: Grammar,
        text: &str,
        mut word: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = text;
        while !rest.is_empty() {
            let (window, after) = rest.split_at_checked(window_end(grammar, rest)).unwrap_or((rest, ""));
            rest = after;
            self.split_window(grammar, window);
            for span in &self.spans {
                word(window.get(span.range()).unwrap_or_default())?;
            }
        }
        self.shrink();
        Ok(())
    }

    fn split_window(&mut self, grammar: Grammar, text: &str) {
        let bytes = text.as_bytes();
        let blocks = bytes.len().div_ceil(64);
        self.tags.resize(bytes.len(), 0);
        classify(bytes, &mut self.tags);
        if needs_scalar(grammar, text) {
            scalar::split(grammar, bytes, &self.tags, &mut self.spans);
            return;
        }
        self.starts.resize(blocks, 0);
        self.flags.resize(blocks, 0);
        self.later.resize(2 * blocks, 0);
        self.spans.resize(bytes.len(), Span::default());
        let (tags, starts, flags, later) = (&self.tags, &mut self.starts, &mut self.flags, &mut self.later);
        let spans = &mut self.spans;
        let count = match grammar {
            Grammar::Gpt2 => bitcannon::bitcannon_byte_level(bytes, tags, starts, flags, spans),
            Grammar::Cl100k => bitcannon::bitcannon_cl100k(bytes, tags, starts, flags, spans),
            Grammar::Qwen | Grammar::Qwen35 => bitcannon::bitcannon_qwen(bytes, tags, starts, flags, spans),
            Grammar::O200k => bitcannon::bitcannon_o200k(bytes, tags, starts, flags, later, spans),
            Grammar::Tekken => bitcannon::bitcannon_tekken(bytes, tags, starts, flags, later, spans),
            Grammar::Deepseek => bitcannon::bitcannon_deepseek(bytes, tags, starts, spans),
        };
        spans.truncate(count);
    }

    /// Gives back what a window of unusual size took.
    fn shrink(&mut self) {
        if self.tags.capacity() > 2 * WINDOW {
            *self = Splitter::default();
        }
    }
}

fn needs_scalar(grammar: Grammar, text: &str) -> bool {
    match grammar {
        Grammar::Qwen35 => true,
        Grammar::Cl100k | Grammar::Qwen | Grammar::O200k => {
            memchr::memchr(0xc5, text.as_bytes()).is_some() && text.contains(LONG_S)
        }
        Grammar::Gpt2 | Grammar::Tekken | Grammar::Deepseek => false,
    }
}

/// Where the first window of `text` ends: the last boundary inside [`WINDOW`] bytes, else the first after them.
fn window_end(grammar: Grammar, text: &str) -> usize {
    let bytes = text.as_bytes();
    if bytes.len() <= WINDOW {
        return bytes.len();
    }
    let last = (1..WINDOW).rev().find(|at| is_boundary(grammar, bytes, *at));
    last.or_else(|| (WINDOW..bytes.len()).find(|at| is_boundary(grammar, bytes, *at))).unwrap_or(bytes.len())
}

/// The last position where a word ends whatever follows the text.
pub(super) fn last_boundary(grammar: Grammar, text: &str) -> Option<usize> {
    (1..text.len()).rev().find(|at| is_boundary(grammar, text.as_bytes(), *at))
}

/// Whether a word ends at `at` whatever else the text holds: between an ASCII letter and a blank before another, and,
/// but for GPT-2, between a newline and an ASCII letter.
fn is_boundary(grammar: Grammar, bytes: &[u8], at: usize) -> bool {
    let Some(&[before, here, after]) = at.checked_sub(1).and_then(|from| bytes.get(from..)?.first_chunk::<3>()) else {
        return false;
    };
    let spaced = before.is_ascii_alphabetic() && here == b' ' && after.is_ascii_alphabetic();
    spaced || (grammar != Grammar::Gpt2 && before == b'\n' && here.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn words(grammar: Grammar, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let collect = |word: &str| {
            words.push(word.to_owned());
            Ok::<(), ()>(())
        };
        Splitter::default().split(grammar, text, collect).unwrap();
        words
    }

    fn scalar_words(grammar: Grammar, text: &str) -> Vec<String> {
        let mut tags = vec![0; text.len()];
        let mut spans = Vec::new();
        classify(text.as_bytes(), &mut tags);
        scalar::split(grammar, text.as_bytes(), &tags, &mut spans);
        spans.iter().map(|span| text[span.range()].to_owned()).collect()
    }

    /// Random texts from characters at which the grammars differ.
    fn texts(count: usize) -> impl Iterator<Item = String> {
        const ALPHABET: [&str; 36] = [
            " ",
            "  ",
            "\t",
            "\n",
            "\r\n",
            "\u{a0}",
            "a",
            "B",
            "Ab",
            "it's",
            "'s",
            "'S",
            "'re",
            "'LL",
            "'",
            "1",
            "23",
            "\u{b2}",
            "\u{2168}",
            "!",
            "/",
            "//",
            "-",
            "_",
            "\u{e9}",
            "e\u{301}",
            "\u{301}",
            "\u{1c5}",
            "\u{2b0}",
            "\u{4e2d}",
            "\u{3042}",
            "\u{627}",
            "\u{1f600}",
            "\u{200d}",
            "\0",
            "\u{85}",
        ];
        let mut random = Random(0x1234_5678);
        (0..count).map(move |_| (0..random.below(90)).map(|_| random.of(&ALPHABET)).collect())
    }

    #[test]
    fn both_ways_of_splitting_agree() {
        for text in texts(5_000) {
            for grammar in [Grammar::Cl100k, Grammar::Qwen, Grammar::O200k, Grammar::Tekken] {
                assert_eq!(words(grammar, &text), scalar_words(grammar, &text), "{grammar:?} {text:?}");
            }
        }
    }

    #[test]
    fn words_are_the_text() {
        for text in texts(500) {
            for grammar in Grammar::ALL {
                assert_eq!(words(grammar, &text).concat(), text, "{grammar:?}");
            }
        }
    }

    #[test]
    fn windows_end_where_words_end() {
        for grammar in Grammar::ALL {
            for text in texts(300).map(|text| text.repeat(2) + " the end\nof it's x y") {
                let whole = words(grammar, &text);
                let boundaries = (1..text.len()).filter(|at| is_boundary(grammar, text.as_bytes(), *at));
                for at in boundaries {
                    let parts = [words(grammar, &text[..at]), words(grammar, &text[at..])].concat();
                    assert_eq!(parts, whole, "{grammar:?} {text:?} cut at {at}");
                }
            }
        }
    }

    #[test]
    fn a_long_text_is_split_like_its_windows() {
        let sentence = "We have a word, it's 12345 of them.\n\tAnd so on \u{4e2d}\u{6587}\n";
        let text = sentence.repeat(2_000);
        for grammar in Grammar::ALL {
            let once = words(grammar, &text);
            let expected = scalar_words(Grammar::Cl100k, &text);
            assert_eq!(once.concat(), text);
            if grammar == Grammar::Cl100k {
                assert_eq!(once, expected);
            }
        }
        assert_eq!(words(Grammar::Cl100k, &" ".repeat(100_000)).len(), 1);
    }

    #[test]
    fn a_long_s_is_a_contraction_where_case_is_ignored() {
        let text = "it'\u{17f}a fo\u{17f} it'S";
        assert_eq!(words(Grammar::Cl100k, text), ["it", "'\u{17f}", "a", " fo\u{17f}", " it", "'S"]);
        assert_eq!(words(Grammar::O200k, text), ["it'\u{17f}", "a", " fo\u{17f}", " it'S"]);
        assert_eq!(words(Grammar::Tekken, "it'\u{17f}a"), ["it", "'\u{17f}a"]);
    }

    #[test]
    fn marks_are_letters_to_qwen35() {
        assert_eq!(
            words(Grammar::Qwen35, "e\u{301}x \u{301}\u{301}! 12"),
            ["e\u{301}x", " \u{301}\u{301}", "!", " ", "1", "2"]
        );
        assert_eq!(words(Grammar::Qwen, "e\u{301}x"), ["e", "\u{301}x"]);
    }
}
