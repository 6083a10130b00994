use super::random::Random;
use super::*;

const CL100K: &[u8] = include_bytes!("../../tests/tokenizers/small/cl100k.json");
const QWEN35: &[u8] = include_bytes!("../../tests/tokenizers/small/qwen35.json");
const GPT2: &[u8] = include_bytes!("../../tests/tokenizers/small/gpt2.json");
const MISTRAL: &[u8] = include_bytes!("../../tests/tokenizers/small/mistral.json");
const GEMMA: &[u8] = include_bytes!("../../tests/tokenizers/small/gemma.json");
const FIRST: &[u8] = include_bytes!("../../tests/tokenizers/small/first.json");

fn tokenizer(json: &[u8]) -> Tokenizer {
    Tokenizer::load(compile(json).unwrap()).unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Specials::None, &Limits::default(), &mut Workspace::new(0)).unwrap()
}

/// A chat with the added tokens of the small tokenizers, all flags among them.
fn chat(random: &mut Random, pieces: usize) -> String {
    const PIECES: [&str; 14] = [
        "<one>",
        "<two>",
        "<left>",
        "<right>",
        "<both>",
        "alone",
        " ",
        "\n",
        "\u{e9}toile",
        "said",
        " the cache of a request",
        "x",
        "\u{4e2d}\u{6587} 12",
        " a longer message that says what was said before, in other words",
    ];
    (0..pieces).map(|_| random.of(&PIECES)).collect()
}

/// Ends that make something else of what stands before them.
const ENDS: [&str; 12] = ["", "a", " ", "\n", "\u{301}", "\u{1161}\u{11a8}", ">", "<one>", "ne>", "'s", "1", "\u{338}"];

#[test]
fn limits_refuse_and_never_cut() {
    let tokenizer = tokenizer(CL100K);
    let text = "a router sends each request";
    let tokens = ids(&tokenizer, text).len();
    let encode = |text: &str, limits: Limits| tokenizer.encode(text, Specials::None, &limits, &mut Workspace::new(0));
    let bytes = |max_bytes| encode(text, Limits { max_bytes, ..Limits::default() });
    assert_eq!(bytes(27).unwrap().len(), tokens);
    assert_eq!(bytes(26), Err(OverLimit::Bytes { found: 27, allowed: 26 }));
    let counted = |max_tokens| encode(text, Limits { max_tokens, ..Limits::default() });
    assert_eq!(counted(tokens).unwrap().len(), tokens);
    assert_eq!(counted(tokens - 1), Err(OverLimit::Tokens { allowed: tokens - 1 }));
    // No token of the small vocabulary is this long, and the second time the word is remembered.
    let merged = |text: &str, max_symbols| encode(text, Limits { max_symbols, ..Limits::default() }).is_ok();
    assert!(merged("zqzqzq", 6) && !merged("zqzqzq", 5) && merged("zqzqzq\nzqzqzq", 6));
    assert_eq!(
        encode(&"z".repeat(1_000), Limits { max_symbols: 999, ..Limits::default() }),
        Err(OverLimit::Symbols { allowed: 999 })
    );
}

/// Text of which the ids must not change, whatever follows it.
fn beginning(tokenizer: &Tokenizer, text: &str, limits: &Limits) -> Vec<u32> {
    let encoded = tokenizer.encode_leading(Extent::Beginning(text), Specials::None, limits, &mut Workspace::new(0));
    assert!(!encoded.complete);
    encoded.ids
}

#[test]
fn leading_ids_are_those_of_the_text_whatever_follows() {
    let mut random = Random(11);
    for json in [CL100K, QWEN35, GPT2, MISTRAL, GEMMA, FIRST] {
        let tokenizer = tokenizer(json);
        let (mut given, mut of) = (0, 0);
        for _ in 0..400 {
            let text = chat(&mut random, 16) + random.of(&ENDS);
            let end = text.floor_char_boundary(random.below(text.len() + 1));
            let all = ids(&tokenizer, &text);
            let leading = beginning(&tokenizer, &text[..end], &Limits::default());
            assert!(all.starts_with(&leading), "{text:?} at {end}: {leading:?} of {all:?}");
            let limits = Limits { max_bytes: end, ..Limits::default() };
            let cut = tokenizer.encode_leading(Extent::Whole(&text), Specials::None, &limits, &mut Workspace::new(0));
            assert_eq!(
                (cut.ids.len(), cut.complete),
                if end == text.len() { (all.len(), true) } else { (leading.len(), false) }
            );
            given += leading.len();
            of += ids(&tokenizer, &text[..end]).len();
        }
        assert!(given * 2 > of, "{given} ids of {of}");
    }
}

#[test]
fn over_a_limit_ids_end_between_two_words() {
    let mut random = Random(12);
    for json in [CL100K, GPT2, MISTRAL, GEMMA, FIRST] {
        let tokenizer = tokenizer(json);
        for _ in 0..200 {
            let text = chat(&mut random, 16);
            let all = ids(&tokenizer, &text);
            let leading = |limits: &Limits| {
                tokenizer.encode_leading(Extent::Whole(&text), Specials::None, limits, &mut Workspace::new(0))
            };
            let max_tokens = random.below(all.len() + 2);
            let counted = leading(&Limits { max_tokens, ..Limits::default() });
            assert_eq!(counted.ids, all[..max_tokens.min(all.len())]);
            assert_eq!(counted.complete, max_tokens >= all.len());
            let merged = leading(&Limits { max_symbols: random.below(60), ..Limits::default() });
            assert!(all.starts_with(&merged.ids), "{text:?}");
            assert_eq!(merged.complete, merged.ids.len() == all.len());
        }
    }
}

#[test]
fn what_may_go_on_is_left_out() {
    let tokenizer = tokenizer(CL100K);
    let leading = |text: &str| beginning(&tokenizer, text, &Limits::default());
    let same = |text: &str, known: &str| assert_eq!(leading(text), ids(&tokenizer, known), "{text:?}");
    same("ab", "");
    same("no token in here", "no token in");
    same("ab<one>cd<one>ef", "ab<one>cd<one>");
    // May be <one> or not.
    same("ab<one>cd<on", "ab<one>");
    same("ab<one>cd ef gh<one", "ab<one>cd ef");
    // Takes the blanks before it.
    same("ab<one>cd <left", "ab<one>");
}

#[test]
fn a_memo_changes_no_ids() {
    let mut random = Random(5);
    let tokenizers = [tokenizer(CL100K), tokenizer(MISTRAL), tokenizer(FIRST)];
    // Shared by all of them and small, so that entries are dropped.
    let mut workspace = Workspace::new(4_000);
    for _ in 0..300 {
        let mut text = String::new();
        for _ in 0..3 {
            text += &chat(&mut random, 6);
            for tokenizer in &tokenizers {
                let found = tokenizer.encode(&text, Specials::None, &Limits::default(), &mut workspace).unwrap();
                assert_eq!(found, ids(tokenizer, &text), "{text:?}");
                assert!(workspace.memo_bytes() <= 4_000);
            }
        }
    }
    assert!(workspace.memo_bytes() > 1_000);
}

#[test]
fn texts_without_words_are_encoded() {
    const BYTES: usize = 20_000;
    let mut random = Random(3);
    let cjk = (0..BYTES / 3).filter_map(|_| char::from_u32(0x4e00 + random.below(20_000) as u32)).collect::<String>();
    let letters: String = (0..BYTES).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    let repeated = ["a", " ", "\n", "\u{1f600}", "7", "\u{301}", "<", "<one", "<right> ", "'\u{17f}", "\u{2581}", "\0"];
    let texts = repeated.iter().map(|piece| piece.repeat(BYTES / piece.len())).chain([cjk, letters]);
    let texts: Vec<String> = texts.collect();
    for json in [CL100K, QWEN35, GPT2, MISTRAL, GEMMA, FIRST] {
        let tokenizer = tokenizer(json);
        for text in &texts {
            let found = ids(&tokenizer, text);
            assert!(!found.is_empty() && found.len() <= text.len() + 1);
        }
    }
}

#[test]
fn damaged_artifacts_are_refused() {
    let artifact = compile(CL100K).unwrap();
    let error = |artifact: Vec<u8>| Tokenizer::load(artifact).err().unwrap();
    assert_eq!(error(Vec::new()), ArtifactError::NotAnArtifact);
    assert_eq!(
        error(artifact[..artifact.len() - 1].to_vec()),
        ArtifactError::Length { expected: artifact.len() as u64, found: artifact.len() as u64 - 1 }
    );
    let with = |at: usize, byte: u8| {
        let mut changed = artifact.clone();
        changed[at] ^= byte;
        error(changed)
    };
    assert_eq!(with(0, 1), ArtifactError::NotAnArtifact);
    assert_eq!(with(4, 3), ArtifactError::Version { found: format::VERSION ^ 3 });
    assert_eq!(with(40, 1), ArtifactError::Digest);
    assert_eq!(with(artifact.len() - 1, 1), ArtifactError::Digest);
}

/// Every artifact whose digest is right, however wrong its contents, loads to something that works or is refused.
#[test]
fn forged_artifacts_do_no_harm() {
    let mut random = Random(23);
    let text = chat(&mut Random(1), 40) + &"\u{4e2d}".repeat(50) + &" ".repeat(100);
    for json in [CL100K, QWEN35, MISTRAL, GEMMA, FIRST] {
        let artifact = compile(json).unwrap();
        let mut loaded = 0;
        for round in 0..400 {
            let mut forged = artifact.clone();
            // The header and the section table, then everything.
            let reach = if round % 2 == 0 { format::HEADER_BYTES } else { forged.len() };
            for _ in 0..=random.below(6) {
                let at = format::DIGESTED_FROM + random.below(reach - format::DIGESTED_FROM);
                forged[at] = [0, 1, 0xff, random.below(256) as u8][random.below(4)];
            }
            let digest = xxhash_rust::xxh3::xxh3_128(&forged[format::DIGESTED_FROM..]);
            forged[32..48].copy_from_slice(&digest.to_le_bytes());
            if let Ok(tokenizer) = Tokenizer::load(forged) {
                loaded += 1;
                let limits = Limits { max_tokens: 100_000, ..Limits::default() };
                let _ = tokenizer.encode(&text, Specials::Around, &limits, &mut Workspace::new(1_000));
                let _ = beginning(&tokenizer, &text, &Limits { max_bytes: 100, ..Limits::default() });
            }
        }
        assert!(loaded > 100, "{loaded} loaded");
    }
}
