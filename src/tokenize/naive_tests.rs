//! Random models against the plainest byte pair encoding there is.
//!
//! Their merges come in any order, unlike those of trained models, so what is proved at compile time about words,
//! characters and cuts is put to the test.

use serde_json::{Map, Value, json};

use super::random::Random;
use super::*;

/// Characters that share bytes, ASCII letters, and the mark of character mode.
const ALPHABET: [char; 7] = ['\u{4e2d}', '\u{4e2e}', '\u{4eae}', '\u{e9}', '\u{ea}', 'a', 'b'];

/// A model: merges by rank, as texts.
struct Naive {
    merges: Vec<(String, String)>,
}

/// A word of random characters.
fn word(random: &mut Random, alphabet: &[char], longest: usize) -> String {
    (0..1 + random.below(longest)).map(|_| random.of(alphabet)).collect()
}

// === impl Naive ===

impl Naive {
    /// Merges of neighbours in random words, so that most of them apply somewhere.
    fn random(random: &mut Random, word: impl Fn(&mut Random) -> String) -> Naive {
        let mut naive = Naive { merges: Vec::new() };
        for _ in 0..60 {
            let symbols = naive.encode(&word(random));
            if symbols.len() > 1 {
                let at = random.below(symbols.len() - 1);
                // Early and late ranks alike: a token may be of use before it can be made.
                let rank = random.below(naive.merges.len() + 1);
                let pair = (symbols[at].clone(), symbols[at + 1].clone());
                if !naive.merges.contains(&pair) {
                    naive.merges.insert(rank, pair);
                }
            }
        }
        naive
    }

    fn encode(&self, word: &str) -> Vec<String> {
        let mut symbols: Vec<String> = word.chars().map(String::from).collect();
        loop {
            let rank =
                |pair: &[String]| self.merges.iter().position(|(left, right)| *left == pair[0] && *right == pair[1]);
            let ranked = symbols.windows(2).zip(0..).filter_map(|(pair, at)| rank(pair).map(|rank| (rank, at)));
            let Some((_, at)) = ranked.min() else { return symbols };
            let merged = symbols[at].clone() + &symbols[at + 1];
            symbols.splice(at..at + 2, [merged]);
        }
    }

    /// The vocabulary and the file.
    fn file(&self, single: impl Iterator<Item = String>, pre_tokenizer: &Value) -> (Map<String, Value>, Vec<u8>) {
        let mut vocab = Map::new();
        for token in single.chain(self.merges.iter().map(|(left, right)| format!("{left}{right}"))) {
            let id = vocab.len();
            vocab.entry(token).or_insert(json!(id));
        }
        let file = json!({
            "version": "1.0",
            "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": vocab, "merges": self.merges},
        });
        (vocab, serde_json::to_vec(&file).unwrap())
    }
}

fn byte_text(text: &str, characters: &[char; 256]) -> String {
    text.bytes().map(|byte| characters[usize::from(byte)]).collect()
}

/// The characters that byte-level vocabularies write bytes as.
fn byte_characters() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte as u32).unwrap(),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    })
}

fn ids_of(vocab: &Map<String, Value>, symbols: &[String]) -> Vec<u32> {
    symbols.iter().map(|symbol| vocab[symbol].as_u64().unwrap() as u32).collect()
}

#[test]
fn byte_level_words_are_merged_like_the_plainest_way() {
    let mut random = Random(41);
    let characters = byte_characters();
    let pre_tokenizer = json!({"type": "ByteLevel", "add_prefix_space": false});
    for _ in 0..150 {
        let naive = Naive::random(&mut random, |random| byte_text(&word(random, &ALPHABET, 5), &characters));
        let (vocab, file) = naive.file(characters.iter().map(char::to_string), &pre_tokenizer);
        let tokenizer = Tokenizer::load(compile(&file).unwrap()).unwrap();
        let mut workspace = Workspace::new(0);
        for longest in [3, 8, 8, 8, 40, 120] {
            let text = word(&mut random, &ALPHABET, longest);
            let found = tokenizer.encode(&text, Specials::None, &Limits::default(), &mut workspace).unwrap();
            let expected = naive.encode(&byte_text(&text, &characters));
            assert_eq!(found, ids_of(&vocab, &expected), "{text:?} with {:?}", naive.merges);
        }
    }
}

#[test]
fn texts_of_characters_are_merged_like_the_plainest_way() {
    const MARKED: [char; 4] = ['\u{2581}', '\u{e9}', 'a', 'b'];
    let mut random = Random(43);
    for _ in 0..150 {
        let naive = Naive::random(&mut random, |random| word(random, &MARKED, 6));
        let (vocab, file) = naive.file(MARKED.iter().map(char::to_string), &Value::Null);
        let tokenizer = Tokenizer::load(compile(&file).unwrap()).unwrap();
        let mut workspace = Workspace::new(0);
        for longest in [4, 12, 12, 60, 150] {
            let text = word(&mut random, &MARKED, longest);
            let found = tokenizer.encode(&text, Specials::None, &Limits::default(), &mut workspace).unwrap();
            assert_eq!(found, ids_of(&vocab, &naive.encode(&text)), "{text:?} with {:?}", naive.merges);
        }
    }
}
