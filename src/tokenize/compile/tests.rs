use serde_json::{Value, json};

use super::super::{Limits, Specials, Tokenizer, Workspace};
use super::*;

const SPLIT: &str = bitcannon::regexes::CL100K;

/// A small file over characters, with the given fields put in.
fn file(changes: &[(&str, Value)]) -> Vec<u8> {
    let mut file = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": null,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u{2581}": 3, "<unk>": 4}, "merges": ["a b"]},
    });
    for (pointer, value) in changes {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        file.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::to_vec(&file).unwrap()
}

fn refused(pointer: &str, value: Value) -> CompileError {
    compile(&file(&[(pointer, value)])).unwrap_err()
}

fn ids(file: &[u8], text: &str, specials: Specials) -> Vec<u32> {
    let tokenizer = Tokenizer::load(compile(file).unwrap()).unwrap();
    tokenizer.encode(text, specials, &Limits::default(), &mut Workspace::new(0)).unwrap()
}

#[test]
fn the_same_file_gives_the_same_artifact() {
    let first = compile(&file(&[])).unwrap();
    assert_eq!(first, compile(&file(&[])).unwrap());
    let other = compile(&file(&[("/model/unk_token", json!("<unk>"))])).unwrap();
    let digest = |artifact: &[u8]| Tokenizer::load(artifact.to_vec()).unwrap().digest();
    assert_ne!(digest(&first), digest(&other));
}

#[test]
fn kinds_that_are_not_supported_are_named() {
    let unsupported = [
        ("/model", json!({"type": "Unigram", "vocab": []}), Unsupported::Model("Unigram".into())),
        ("/model", json!({"type": "WordPiece", "vocab": {}}), Unsupported::Model("WordPiece".into())),
        ("/model/dropout", json!(0.1), Unsupported::ModelOption { name: "dropout", value: "0.1".into() }),
        (
            "/model/end_of_word_suffix",
            json!("</w>"),
            Unsupported::ModelOption { name: "end_of_word_suffix", value: "\"</w>\"".into() },
        ),
        ("/normalizer", json!({"type": "NFKC"}), Unsupported::Normalizer("NFKC".into())),
        (
            "/normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}),
            Unsupported::Normalizer("Replace of the expression \"\\\\s+\"".into()),
        ),
        ("/pre_tokenizer", json!({"type": "Whitespace"}), Unsupported::PreTokenizer("Whitespace".into())),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
            Unsupported::PreTokenizer("Split at \" \" without ByteLevel".into()),
        ),
        ("/post_processor", json!({"type": "Other"}), Unsupported::PostProcessor("Other".into())),
    ];
    for (pointer, value, expected) in unsupported {
        assert_eq!(refused(pointer, value), CompileError::Unsupported(expected));
    }
}

#[test]
fn a_pattern_that_differs_in_one_sign_is_refused() {
    let byte_level = |pattern: &str, behavior: &str, invert: bool| {
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        ]})
    };
    let other = SPLIT.replace("{1,3}", "{1,2}");
    let error = refused("/pre_tokenizer", byte_level(&other, "Isolated", false));
    assert_eq!(error, CompileError::Unsupported(Unsupported::SplitPattern(other)));
    for (behavior, invert) in [("Removed", false), ("MergedWithNext", false)] {
        let error = refused("/pre_tokenizer", byte_level(SPLIT, behavior, invert));
        assert!(matches!(error, CompileError::Unsupported(Unsupported::PreTokenizer(_))), "{error}");
    }
    // The pattern is known, so the next thing missed is a byte's token.
    let error = refused("/pre_tokenizer", byte_level(SPLIT, "Removed", true));
    assert_eq!(error.to_string(), "model.vocab: has tokens for bytes, but none for byte 0x00");
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let invalid = [
        ("/version", json!("2.0"), "version: is \"2.0\", allowed is \"1.0\""),
        ("/model/merges", json!(["a c"]), "model.vocab: lacks \"c\", which merges names"),
        ("/model/merges", json!([["b", "a"]]), "model.vocab: lacks \"ba\", which merges names"),
        ("/model/unk_token", json!("<none>"), "model.vocab: lacks \"<none>\", which unk_token names"),
        ("/model/vocab", json!({"a": 1, "b": 1, "ab": 2}), "model.vocab: two tokens with id 1"),
        (
            "/model/vocab",
            json!({"a": 1, "b": 0, "ab": 3_000_000}),
            "model.vocab: id 3000000, allowed are ids below 2097151",
        ),
        (
            "/normalizer",
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
            "normalizer: an empty pattern",
        ),
        (
            "/added_tokens",
            json!([{"content": "x".repeat(257)}]),
            "added_tokens: \"xxx\" is 257 bytes long when normalized, allowed are 1 to 256",
        ),
    ];
    for (pointer, value, expected) in invalid {
        let message = refused(pointer, value).to_string().replace(&"x".repeat(257), "xxx");
        assert_eq!(message, expected);
    }
    assert!(matches!(compile(b"{"), Err(CompileError::Json(_))));
    assert!(matches!(refused("/model/merges", json!(["a b c"])), CompileError::Json(_)));
}

#[test]
fn added_tokens_get_the_ids_that_the_reference_counts() {
    let file = file(&[(
        "/added_tokens",
        json!([
            {"id": 90, "content": "<x>"},
            {"id": 91, "content": "ab", "special": true},
            {"id": 92, "content": "<x>", "lstrip": true},
            {"id": 93, "content": "<y>"},
        ]),
    )]);
    assert_eq!(ids(&file, "a <x><y>ab", Specials::None), [0, 5, 6, 2]);
}

#[test]
fn the_post_processor_puts_ids_around() {
    let processor = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing", "pair": [],
         "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "y"}}],
         "special_tokens": {"x": {"ids": [7, 8]}, "y": {"ids": [9]}}},
    ]});
    let file = file(&[("/post_processor", processor)]);
    assert_eq!(ids(&file, "ab", Specials::None), [2]);
    assert_eq!(ids(&file, "ab", Specials::Before), [7, 8, 2]);
    assert_eq!(ids(&file, "ab", Specials::Around), [7, 8, 2, 9]);
}

#[test]
fn unknown_characters_follow_the_models_options() {
    let with = |fuse: bool, token: Value| file(&[("/model/fuse_unk", json!(fuse)), ("/model/unk_token", token)]);
    assert_eq!(ids(&with(false, json!("<unk>")), "ab??a", Specials::None), [2, 4, 4, 0]);
    assert_eq!(ids(&with(true, json!("<unk>")), "ab??a", Specials::None), [2, 4, 0]);
    assert_eq!(ids(&with(true, Value::Null), "ab??a", Specials::None), [2, 0]);
}
