//! Random texts at which tokenizers differ: blanks, case, digits, marks, contractions, scripts and added tokens.

/// Number of long texts.
pub const LONG: usize = 12;

/// Pieces that split patterns, normalizers and added tokens treat each in its way.
const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u{a0}",
    "\u{3000}",
    "\u{85}",
    "\u{2028}",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "'s",
    "'S",
    "'re",
    "'VE",
    "'ll",
    "'d",
    "'m",
    "'T",
    "'\u{17f}",
    "'",
    "\u{2019}s",
    "a",
    "B",
    "the",
    "The",
    "THE",
    "ing",
    "request",
    "Hello",
    "camelCase",
    "HTTPServer",
    "x86_64",
    "don't",
    "1",
    "12",
    "345",
    "6789",
    "00",
    ".",
    ",",
    "!",
    "?",
    "/",
    "//",
    "-",
    "--",
    "_",
    "=",
    "==",
    "(",
    ")",
    "()",
    "{",
    "}",
    "[]",
    "<",
    ">",
    "<|",
    "|>",
    "#",
    "@",
    "$",
    "%",
    "&",
    "*",
    "+",
    "\\",
    "\"",
    "`",
    "~",
    "^",
    ":",
    ";",
    "\u{e9}",
    "e\u{301}",
    "\u{301}",
    "\u{308}\u{301}",
    "\u{1e9b}\u{323}",
    "\u{212b}",
    "\u{fb01}",
    "\u{df}",
    "\u{1c5}",
    "\u{1c8}",
    "\u{2b0}",
    "\u{2c6}",
    "\u{130}",
    "\u{b2}",
    "\u{bd}",
    "\u{2168}",
    "\u{661}",
    "\u{4e2d}",
    "\u{6587}\u{5b57}",
    "\u{3042}",
    "\u{30ab}",
    "\u{30fc}",
    "\u{ff76}",
    "\u{d55c}",
    "\u{1112}\u{1161}",
    "\u{627}\u{644}",
    "\u{64b}",
    "\u{5d0}",
    "\u{915}\u{94d}\u{937}",
    "\u{e01}\u{e34}",
    "\u{416}",
    "\u{3b1}",
    "\u{1f600}",
    "\u{1f468}\u{200d}\u{1f469}",
    "\u{1f1e8}\u{1f1ed}",
    "\u{2764}\u{fe0f}",
    "\u{2581}",
    "\u{2581}\u{2581}",
    "<0x0A>",
    "<unk>",
    "<s>",
    "\0",
    "\u{1}",
    "\u{7f}",
    "\u{20ac}",
    "\u{2192}",
    "\u{2014}",
    "\u{2026}",
    "\u{201c}",
    "\u{3001}",
    "\u{ff01}",
];

/// Ranges that have been assigned long enough for all tables to agree.
const RANGES: &[(u32, u32)] = &[
    (0x20, 0x7e),
    (0xa0, 0x17f),
    (0x300, 0x36f),
    (0x391, 0x3c9),
    (0x410, 0x44f),
    (0x5d0, 0x5ea),
    (0x620, 0x652),
    (0x905, 0x939),
    (0xe01, 0xe3a),
    (0x1e00, 0x1eff),
    (0x2000, 0x2064),
    (0x2150, 0x215f),
    (0x2190, 0x21ff),
    (0x2500, 0x257f),
    (0x3041, 0x3096),
    (0x30a0, 0x30ff),
    (0x4e00, 0x9fa5),
    (0xac00, 0xd7a3),
    (0xff01, 0xff9f),
    (0x1f600, 0x1f64f),
    (0x20000, 0x2a6d6),
];

/// A seeded source of texts.
pub struct Texts {
    state: u64,
    added: Vec<String>,
}

// === impl Texts ===

impl Texts {
    /// Texts for a tokenizer with these added tokens.
    pub fn new(seed: u64, mut added: Vec<String>) -> Texts {
        added.sort();
        Texts { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, added }
    }

    /// A string of a few pieces.
    pub fn short(&mut self) -> String {
        let pieces = 1 + self.below(40);
        (0..pieces).map(|_| self.piece()).collect()
    }

    /// A long text, or one without words, by its number below [`LONG`].
    pub fn long(&mut self, which: usize) -> String {
        const BYTES: usize = 100_000;
        match which {
            0 => (0..30_000).map(|_| self.piece()).collect(),
            1 => (0..20_000).map(|_| self.word() + " ").collect(),
            2 => (0..12_000)
                .fold(String::new(), |text, _| text + &self.word() + ["\n", " ", "\n\n", ".\nThe "][self.below(4)]),
            3 => (0..BYTES).map(|_| char::from(b'a' + self.below(26) as u8)).collect(),
            4 => (0..BYTES / 3).map(|_| self.character(0x4e00, 0x9fa5)).collect(),
            5 => (0..BYTES).map(|_| char::from(b'0' + self.below(10) as u8)).collect(),
            6 => (0..20_000).map(|_| ["the ", "a b ", "x\ny"][self.below(3)]).collect(),
            _ => ["a", " ", "\n", "=", "\u{1f600}", "\u{301}"][which % 6].repeat(BYTES / 4),
        }
    }

    fn piece(&mut self) -> String {
        match self.below(20) {
            0 | 1 if !self.added.is_empty() => {
                let at = self.below(self.added.len());
                self.added[at].clone()
            }
            2..=4 => {
                let (first, last) = RANGES[self.below(RANGES.len())];
                (0..=self.below(4)).map(|_| self.character(first, last)).collect()
            }
            5 => self.word(),
            6 => PIECES[self.below(PIECES.len())].repeat(1 + self.below(12)),
            _ => PIECES[self.below(PIECES.len())].to_owned(),
        }
    }

    fn word(&mut self) -> String {
        let length = 1 + self.below(9);
        (0..length).map(|_| char::from(b"etaoinshrdlucmfETAS"[self.below(19)])).collect()
    }

    fn character(&mut self, first: u32, last: u32) -> char {
        char::from_u32(first + self.below((last - first + 1) as usize) as u32).unwrap_or(' ')
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % bound
    }
}
