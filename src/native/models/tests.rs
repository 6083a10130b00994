use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::model::Package;
use crate::observation::ModelDigest;
use xxhash_rust::xxh3::xxh3_128;

/// A small tokenizer of this shape: `a`, `b`, `ab`, and `<s>` as an added token with these flags.
const TOKENIZER: &str = r#"{"version": "1.0",
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "</s>", "special": true}],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": false},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;

/// A directory of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmroute-models-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self) -> Result<VerifiedModel, InvalidModelFiles> {
        read(&self.0, ModelOptions::default())
    }

    fn package(&self) -> Package {
        Package::decode(self.read().unwrap().bytes.to_vec()).unwrap()
    }

    fn refusal(&self) -> String {
        self.read().unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn templates(files: &[(&str, &str)]) -> (Option<String>, Option<String>) {
    let folder = Folder::new(files);
    folder.write("tokenizer.json", TOKENIZER);
    let package = folder.package();
    (package.chat_template, package.tool_chat_template)
}

fn some(template: &str, tool_template: &str) -> (Option<String>, Option<String>) {
    let owned = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (owned(template), owned(tool_template))
}

#[test]
fn a_package_is_what_its_version_says() {
    let config = r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"}"#;
    let folder = Folder::new(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", config)]);
    let model = folder.read().unwrap();
    assert_eq!(model.version.digest, ModelDigest(xxh3_128(&model.bytes)));
    assert_eq!(model.version.length as usize, model.bytes.len());
    assert!(model.has_chat_template && model.warnings.is_empty(), "{:?}", model.warnings);
    let kind = "BPE over characters".to_owned();
    assert_eq!(model.outline, Outline { kind, vocabulary: 3, merges: 1, added_tokens: 2 });
    let package = folder.package();
    assert_eq!(package.special_tokens.get("bos_token"), Some("<s>"));
    assert_eq!(package.artifact, crate::tokenize::compile(TOKENIZER.as_bytes()).unwrap());
}

#[test]
fn files_of_templates_come_before_what_the_config_says() {
    let config = ("tokenizer_config.json", r#"{"chat_template": {"default": "d", "tool_use": "t"}}"#);
    assert_eq!(templates(&[]), some("", ""));
    assert_eq!(templates(&[config]), some("d", "t"));
    assert_eq!(templates(&[config, ("chat_template.jinja", "j\r\nk")]), some("j\nk", ""));
    let named = ("additional_chat_templates/tool_use.jinja", "u");
    assert_eq!(templates(&[config, ("chat_template.jinja", "j"), named]), some("j", "u"));
    assert_eq!(templates(&[config, named]), some("", "u"));
    let processor = ("chat_template.json", r#"{"chat_template": "p"}"#);
    assert_eq!(templates(&[processor]), some("p", ""));
    assert_eq!(templates(&[("tokenizer_config.json", r#"{"chat_template": "d"}"#), processor]), some("p", "d"));
    assert_eq!(templates(&[processor, ("chat_template.jinja", "j")]), some("j", ""));
}

#[test]
fn the_map_of_special_tokens_counts_where_the_config_has_no_decoder() {
    let map = ("special_tokens_map.json", r#"{"bos_token": {"content": "</s>"}, "additional_special_tokens": []}"#);
    let special = |config: &str| {
        let folder = Folder::new(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", config), map]);
        folder.package().special_tokens.get("bos_token").map(str::to_owned)
    };
    assert_eq!(special(r#"{"bos_token": "<s>"}"#).as_deref(), Some("</s>"));
    let decoder = r#"{"bos_token": "<s>", "added_tokens_decoder": {"3": {"content": "<s>"}}}"#;
    assert_eq!(special(decoder).as_deref(), Some("<s>"));
}

#[test]
fn what_is_wrong_is_said_by_file_and_field() {
    let folder = Folder::new(&[]);
    assert_eq!(folder.refusal(), "tokenizer.json: is not there");
    folder.write("tekken.json", "{}");
    assert_eq!(folder.refusal(), "tokenizer.json: is not there; of tekken.json alone no token ids are made");
    assert!(read(&folder.0.join("none"), ModelOptions::default()).unwrap_err().reason.contains("does not exist"));
    let with = |name: &str, text: &str| {
        let folder = Folder::new(&[("tokenizer.json", TOKENIZER)]);
        folder.write(name, text);
        folder.refusal()
    };
    for (name, text, expected) in [
        ("tokenizer.json", "[", "tokenizer.json: not JSON"),
        ("tokenizer.json", r#"{"model": {"type": "Unigram", "vocab": []}}"#, "tokenizer.json: model.type is Unigram"),
        ("tokenizer_config.json", r#"{"a": "#, "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: "),
        ("config.json", "{", "config.json: not JSON"),
        ("config.json", r#"{"model_type": 1}"#, "config.json: model_type: "),
        ("tokenizer_config.json", r#"{"bos_token": 1}"#, "tokenizer_config.json: bos_token must be"),
        ("special_tokens_map.json", r#"{"eos_token": 1}"#, "special_tokens_map.json: eos_token must be"),
        ("chat_template.jinja", "{% if %}", "chat_template.jinja: chat template: syntax error"),
        ("additional_chat_templates/tool_use.jinja", "{{", "additional_chat_templates/tool_use.jinja: chat template: "),
        ("tokenizer_config.json", r#"{"chat_template": "{{"}"#, "tokenizer_config.json: chat template: "),
        ("chat_template.json", r#"{"chat_template": 1}"#, "chat_template.json: chat_template must be"),
    ] {
        let refusal = with(name, text);
        assert!(refusal.starts_with(expected), "{name} {text}: {refusal}");
    }
    std::fs::create_dir_all(folder.0.join("tokenizer.json")).unwrap();
    assert_eq!(folder.refusal(), "tokenizer.json: cannot be read: it is no regular file");
}

#[test]
fn added_tokens_must_agree() {
    let read = |decoder: &str| {
        let config = format!(r#"{{"added_tokens_decoder": {decoder}}}"#);
        Folder::new(&[("tokenizer.json", TOKENIZER), ("tokenizer_config.json", &config)]).read()
    };
    assert_eq!(read(r#"{"3": {"content": "<s>", "special": true}}"#).unwrap().warnings, [""; 0]);
    for (decoder, what) in [
        (r#"{"9": {"content": "<x>"}}"#, "added_tokens_decoder.9 (\"<x>\") is no added token in tokenizer.json"),
        (r#"{"4": {"content": "<s>"}}"#, "added_tokens_decoder.4 (\"<s>\") has another id"),
        (r#"{"3": {"content": "<s>", "rstrip": true}}"#, "added_tokens_decoder.3 (\"<s>\") has another rstrip"),
    ] {
        let refusal = read(decoder).unwrap_err();
        assert_eq!(refusal.file, "tokenizer_config.json");
        assert!(refusal.reason.starts_with(what), "{refusal}");
    }
    let other_id = TOKENIZER.replace(r#""id": 4"#, r#""id": 7"#);
    let warnings = Folder::new(&[("tokenizer.json", &other_id)]).read().unwrap().warnings;
    assert!(warnings[0].contains("\"</s>\" has id 7 there and is tokenized as [4]"), "{warnings:?}");
}

#[test]
fn where_engines_do_not_render_with_a_template_there_is_none_unless_forced() {
    let template = ("chat_template.jinja", "x");
    for (more, how) in [
        (
            ("config.json", r#"{"model_type": "gpt_oss"}"#),
            "model_type gpt_oss: engines render its conversations with Harmony",
        ),
        (("config.json", r#"{"model_type": "deepseek_v32"}"#), "model_type deepseek_v32: engines render"),
        (("tekken.json", "{}"), "this model: engines render its conversations with Mistral's own tokenizer"),
    ] {
        let folder = Folder::new(&[("tokenizer.json", TOKENIZER), template, more]);
        let model = folder.read().unwrap();
        assert!(!model.has_chat_template);
        assert!(model.warnings[0].starts_with(how), "{:?}", model.warnings);
        let forced = read(&folder.0, ModelOptions { force_chat_template: true }).unwrap();
        assert!(forced.has_chat_template && forced.warnings.is_empty());
        std::fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
        assert_eq!(folder.read().unwrap().warnings, [""; 0], "nothing was left out");
    }
    let other = ("config.json", r#"{"model_type": "llama"}"#);
    assert!(Folder::new(&[("tokenizer.json", TOKENIZER), template, other]).read().unwrap().has_chat_template);
    let harmony = TOKENIZER
        .replace("<s>", "<|channel|>")
        .replace("</s>", "<|call|>")
        .replace(r#""added_tokens": ["#, r#""added_tokens": [{"id": 5, "content": "<|return|>"}, "#);
    assert!(!Folder::new(&[("tokenizer.json", &harmony), template]).read().unwrap().has_chat_template);
}

#[test]
fn every_file_that_counts_is_in_the_digest() {
    let folder = Folder::new(&[("tokenizer.json", TOKENIZER)]);
    let digest = || ModelFiles::read(&folder.0).unwrap().digest();
    let mut seen = vec![digest()];
    for (name, text) in [
        ("tokenizer_config.json", "{}"),
        ("special_tokens_map.json", "{}"),
        ("chat_template.jinja", ""),
        ("chat_template.json", "{}"),
        ("additional_chat_templates/tool_use.jinja", ""),
        ("config.json", "{}"),
        ("tekken.json", ""),
        ("tokenizer.json", "{}"),
    ] {
        folder.write(name, text);
        assert!(!seen.contains(&digest()), "{name}");
        seen.push(digest());
    }
    folder.write("generation_config.json", "{}");
    assert_eq!(seen.last(), Some(&digest()));
}

#[test]
fn pieces_are_the_texts_of_ids() {
    let small = include_bytes!("../../../tests/tokenizers/small/gpt2_plain.json");
    let pieces = Pieces::of(small).unwrap();
    let ids = |text: &str| {
        let tokenizer = crate::tokenize::Tokenizer::load(compile(small).unwrap()).unwrap();
        let mut workspace = crate::tokenize::Workspace::new(0);
        tokenizer.encode(text, crate::tokenize::Specials::None, &Default::default(), &mut workspace).unwrap()
    };
    let text = "The cache was cold.\n\u{e9}";
    let texts: String = ids(text).into_iter().map(|id| pieces.text(id)).collect();
    assert_eq!(texts.replace("\\xc3\\xa9", "\u{e9}"), text);
    assert_eq!(pieces.text(u32::MAX), "(no such token)");
}
